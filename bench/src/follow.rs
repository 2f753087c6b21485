//! A thousand followers of one busy session: how long after it was sent an event has reached each of them, what a follower
//! costs in memory, and that none of them misses one.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use futures_util::future::{join, try_join_all};
use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::calls::{Append, claimed_run};
use crate::engine::{Bench, Engine};
use crate::http::{Connection, field, number, number_after, request};
use crate::machine::{cpu, now, own_cpu, rss_mib, since};
use crate::outcome::Outcome;
use crate::report::{Report, percentile};
use crate::server::Server;

const FOLLOWERS: usize = 1_000;
const EVENTS_PER_S: u32 = 20;
const PAYLOAD_BYTES: usize = 1_000;
/// Written before anything is measured, so that what a first event costs is not counted as a follower's.
const WARM_UP_EVENTS: usize = 40;
/// Longer than anything that starts with a connection takes to settle.
const SETTLE: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(120);

/// When each event was sent, by its number in the session.
type Sent = RefCell<Vec<Option<Instant>>>;

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let (mut worst_p50, mut worst_p99, mut worst_kib) = (0.0_f64, 0.0_f64, 0.0_f64);
    for engine in Engine::BOTH {
        let place = bench.place(engine)?;
        let server = bench.serve(&place)?;
        let (latencies, kib, cpu_share) = timeout(TIMEOUT, load(bench, report, &server)).await??;
        server.stop()?;
        let (p50, p99) = (percentile(&latencies, 50), percentile(&latencies, 99));
        let name = engine.name();
        let worst = latencies.last().copied().unwrap_or_default();
        eprintln!("    follow.{name}: p50 {p50:.1} ms, p99 {p99:.1} ms, worst {worst:.1} ms, {kib:.1} KiB each");
        report.figure(format!("follow.{name}.p50_ms"), p50);
        report.figure(format!("follow.{name}.p99_ms"), p99);
        report.figure(format!("follow.{name}.kib_per_follower"), kib);
        report.figure(format!("follow.{name}.cores"), cpu_share);
        worst_p50 = worst_p50.max(p50);
        worst_p99 = worst_p99.max(p99);
        worst_kib = worst_kib.max(kib);
    }
    report.figure("follow.p50_ms", worst_p50);
    report.figure("follow.p99_ms", worst_p99);
    report.figure("follow.kib_per_follower", worst_kib);
    report.note(format!(
        "follow: {FOLLOWERS} followers of one session, {EVENTS_PER_S} events/s of {PAYLOAD_BYTES} bytes, from the append's first \
         byte to the frame's last at each follower; a missed or repeated event fails the run; on the engine where it is worse"
    ));
    Ok(())
}

/// Latencies in ms, sorted; KiB per follower; cores the server used.
async fn load(bench: &Bench, report: &mut Report, server: &Server) -> Outcome<(Vec<f64>, f64, f64)> {
    let mut connection = Connection::open(server).await?;
    let claimed = claimed_run(&mut connection, server).await?;
    let run = connection.call(&request(server, "GET", &format!("/api/v1/runs/{}", claimed.run_id), "")).await?;
    let session_id = field(run, "sessionId")?.to_owned();
    let payload = format!(r#"{{"name":"note","value":"{}"}}"#, "x".repeat(PAYLOAD_BYTES - 26));
    let mut append = Append::new(server, &claimed, &[("custom", payload)]);
    for _ in 0..WARM_UP_EVENTS {
        append.send(&mut connection).await?;
    }
    let session = connection.call(&request(server, "GET", &format!("/api/v1/sessions/{session_id}"), "")).await?;
    let first = usize::try_from(number(session, "lastSeq")?)?;
    sleep(SETTLE).await;
    let memory_before = rss_mib(server.pid())?;

    let last = first + bench.sizes.follow_events;
    let sent: Sent = RefCell::new(vec![None; last + 1]);
    let follow = follow_request(server, &session_id, first);
    let mut followers = vec![];
    for _ in 0..FOLLOWERS {
        followers.push(open(server, &follow).await?);
    }
    let (server_before, own_before, started) = (cpu(server.pid())?, own_cpu()?, now());
    let following = try_join_all(followers.iter_mut().map(|follower| read(follower, &sent, first, last)));
    let writing = write(&mut append, &mut connection, &sent, first, last);
    let (read, written) = join(following, writing).await;
    written?;
    let mut latencies: Vec<f64> = read?.into_iter().flatten().collect();
    let (used, own) = (cpu(server.pid())? - server_before, own_cpu()? - own_before);
    let cores = used.as_secs_f64() / since(started).as_secs_f64();
    report.generator_share(own.as_secs_f64() / used.as_secs_f64());
    let memory = rss_mib(server.pid())? - memory_before;
    latencies.sort_by(f64::total_cmp);
    Ok((latencies, memory * 1024.0 / FOLLOWERS as f64, cores))
}

pub(crate) fn follow_request(server: &Server, session_id: &str, after: usize) -> Vec<u8> {
    let (host, token) = (server.address, &server.token);
    format!(
        "GET /api/v1/sessions/{session_id}/trace HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n\
         accept: text/event-stream\r\nlast-event-id: {after}\r\n\r\n"
    )
    .into_bytes()
}

/// Connects and reads the answer's head and its first words.
pub(crate) async fn open(server: &Server, request: &[u8]) -> Outcome<TcpStream> {
    let mut stream = TcpStream::connect(server.address).await?;
    stream.write_all(request).await?;
    let mut head = Vec::with_capacity(1_024);
    while memmem::find(&head, b": open\n\n\r\n").is_none() {
        if stream.read_buf(&mut head).await? == 0 {
            return Err(format!("no stream: {}", String::from_utf8_lossy(&head)).into());
        }
    }
    Ok(stream)
}

async fn write(
    append: &mut Append,
    connection: &mut Connection,
    sent: &Sent,
    first: usize,
    last: usize,
) -> Outcome<()> {
    let mut ticks = interval(Duration::from_secs(1) / EVENTS_PER_S);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in first + 1..=last {
        ticks.tick().await;
        sent.borrow_mut()[number] = Some(now());
        append.send(connection).await?;
    }
    Ok(())
}

/// Reads every event from behind `first` to `last`, each exactly once and in order.
async fn read(stream: &mut TcpStream, sent: &Sent, first: usize, last: usize) -> Outcome<Vec<f64>> {
    let mut latencies = Vec::with_capacity(last - first);
    let mut buffer = Vec::with_capacity(4 * PAYLOAD_BYTES);
    let mut seen = first;
    while seen < last {
        if stream.read_buf(&mut buffer).await? == 0 {
            return Err(format!("a stream ended behind {seen}").into());
        }
        // Frames end with an empty line; what the chunks are wrapped in does not.
        while let Some(end) = memmem::find(&buffer, b"\n\n") {
            // Heartbeats have no number.
            if let Some(number) = number_after(&buffer[..end], b"\nid: ") {
                if number != seen as i64 + 1 {
                    return Err(format!("a follower saw {number} behind {seen}").into());
                }
                seen += 1;
                let sent = sent.borrow()[seen].ok_or("an event came before it was sent")?;
                latencies.push(since(sent).as_secs_f64() * 1e3);
            }
            buffer.drain(..end + 2);
        }
    }
    Ok(latencies)
}
