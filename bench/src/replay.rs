//! How much of its rate a writer keeps while many followers read a long log from its start.

use std::cell::Cell;
use std::time::Duration;

use futures_util::future::{join, try_join_all};
use memchr::memmem;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::calls::{Append, claimed_run};
use crate::engine::{Bench, Engine};
use crate::follow::{follow_request, open};
use crate::http::{Connection, field, request};
use crate::machine::{now, since};
use crate::outcome::Outcome;
use crate::report::Report;
use crate::server::Server;

const FOLLOWERS: usize = 300;
const WRITERS: usize = 4;
const BATCH_EVENTS: usize = 16;
const FILL_EVENTS: usize = 100;
const PAYLOAD_BYTES: usize = 1_000;
/// Before and after the storm: what else runs on the machine changes.
const ALONE: Duration = Duration::from_secs(2);
const TIMEOUT: Duration = Duration::from_secs(600);

struct Writer {
    connection: Connection,
    append: Append,
}

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let mut worst = f64::INFINITY;
    for engine in Engine::BOTH {
        let place = bench.place(engine)?;
        let server = bench.serve(&place)?;
        let (alone, during_replays, took) = timeout(TIMEOUT, load(bench, &server)).await??;
        server.stop()?;
        let (name, ratio) = (engine.name(), during_replays / alone);
        eprintln!(
            "    follow.{name}: {alone:.0} events/s alone, {during_replays:.0} during {took:.1} s of replays ({ratio:.2})"
        );
        report.figure(format!("follow.{name}.replay_writer_ratio"), ratio);
        report.figure(format!("follow.{name}.replay_s"), took);
        worst = worst.min(ratio);
    }
    report.figure("follow.replay_writer_ratio", worst);
    report.note(format!(
        "follow: the rate of {WRITERS} writers (batches of {BATCH_EVENTS} events of {PAYLOAD_BYTES} bytes) while {FOLLOWERS} followers \
         read {} events each from the start, as a share of their rate before and after; on the engine where it is worse",
        bench.sizes.replay_events
    ));
    Ok(())
}

/// Events per second alone and during the replays, and how many seconds those took.
async fn load(bench: &Bench, server: &Server) -> Outcome<(f64, f64, f64)> {
    let mut connection = Connection::open(server).await?;
    let claimed = claimed_run(&mut connection, server).await?;
    let run = connection.call(&request(server, "GET", &format!("/api/v1/runs/{}", claimed.run_id), "")).await?;
    let session_id = field(run, "sessionId")?.to_owned();
    let mut fill = Append::new(server, &claimed, &events(FILL_EVENTS));
    for _ in 0..bench.sizes.replay_events.div_ceil(FILL_EVENTS) {
        fill.send(&mut connection).await?;
    }
    let mut writers = vec![];
    for _ in 0..WRITERS {
        let mut connection = Connection::open(server).await?;
        let claimed = claimed_run(&mut connection, server).await?;
        writers.push(Writer { connection, append: Append::new(server, &claimed, &events(BATCH_EVENTS)) });
    }
    rate(&mut writers, sleep(ALONE)).await?;
    let before = rate(&mut writers, sleep(ALONE)).await?;
    let follow = follow_request(server, &session_id, 0);
    let mut followers = vec![];
    for _ in 0..FOLLOWERS {
        followers.push(open(server, &follow).await?);
    }
    let started = now();
    let failed = Cell::new(None);
    let replays = async {
        let replays = followers.iter_mut().map(|follower| replay(follower, bench.sizes.replay_events));
        failed.set(try_join_all(replays).await.err());
    };
    let during_replays = rate(&mut writers, replays).await?;
    let took = since(started).as_secs_f64();
    if let Some(error) = failed.into_inner() {
        return Err(error);
    }
    drop(followers);
    let after = rate(&mut writers, sleep(ALONE)).await?;
    Ok((f64::midpoint(before, after), during_replays, took))
}

fn events(count: usize) -> Vec<(&'static str, String)> {
    let payload = format!(r#"{{"name":"note","value":"{}"}}"#, "x".repeat(PAYLOAD_BYTES - 26));
    vec![("custom", payload); count]
}

/// Events per second that the writers get done until something else has ended.
async fn rate(writers: &mut [Writer], until: impl Future<Output = ()>) -> Outcome<f64> {
    let (batches, ended, started) = (Cell::new(0_u32), Cell::new(None), now());
    let waiting = async {
        until.await;
        ended.set(Some((batches.get(), since(started))));
    };
    let (batches, ended) = (&batches, &ended);
    let writing = writers.iter_mut().map(|writer| async move {
        while ended.get().is_none() {
            writer.append.send(&mut writer.connection).await?;
            batches.set(batches.get() + 1);
        }
        Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    });
    let ((), written) = join(waiting, try_join_all(writing)).await;
    written?;
    let (batches, took) = ended.get().ok_or("nothing has ended")?;
    Ok(f64::from(batches) * BATCH_EVENTS as f64 / took.as_secs_f64())
}

/// Reads until this many events have come. They are counted, not looked at: the load must not be what limits.
async fn replay(stream: &mut TcpStream, events: usize) -> Outcome<()> {
    let (mut seen, mut buffer) = (0, Vec::with_capacity(64 * 1024));
    while seen < events {
        if stream.read_buf(&mut buffer).await? == 0 {
            return Err(format!("a stream ended behind {seen}").into());
        }
        seen += memmem::find_iter(&buffer, b"\nid: ").count();
        // A mark that is cut in two is counted with what follows.
        let rest = buffer.len().saturating_sub(4);
        buffer.drain(..rest);
    }
    Ok(())
}
