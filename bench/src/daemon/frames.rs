//! Frames: how long after a backend's output a follower has it, and what a frame costs with few and with many followers. We are
//! the runner, so that it is known when the output was sent.

use std::time::Duration;

use futures_util::future::{join, try_join_all};
use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::calls::{Append, Claimed};
use crate::engine::{Bench, Engine};
use crate::http::{Connection, field, number, request};
use crate::machine::{cpu, now, own_cpu, since};
use crate::outcome::Outcome;
use crate::report::{Report, median, percentile};
use crate::server::Server;

const PIECES: usize = 300;
const FEW: usize = 8;
/// As many as one session may have.
const MANY: usize = 64;
const BATCH_EVENTS: usize = 16;
const ROUNDS: usize = 5;
/// So many that the clock of processes, which has ticks of 10 ms, is good enough.
const BATCHES: usize = 250;
const TIMEOUT: Duration = Duration::from_secs(180);
const TAIL: Duration = Duration::from_millis(50);
/// In every frame of a piece of text, once.
const PIECE: &[u8] = b"agent_message_chunk";

pub(super) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let server = bench.serve_with(&bench.place(Engine::Sqlite)?, &[("OSTLER_RUNNER__SLOTS", "0")])?;
    timeout(TIMEOUT, lag(&server, report)).await??;
    timeout(TIMEOUT, fan_out(&server, report)).await??;
    server.stop()
}

/// A session whose prompt we work on.
struct Prompted {
    session_id: String,
    claimed: Claimed,
}

impl Prompted {
    async fn open(connection: &mut Connection, server: &Server) -> Outcome<Self> {
        let opened = connection.call(&request(server, "POST", "/session", r#"{"sessionScope":"thread"}"#)).await?;
        let session_id = field(opened, "sessionId")?.to_owned();
        let prompt = r#"{"prompt":[{"type":"text","text":"hi"}]}"#;
        connection.call(&request(server, "POST", &format!("/session/{session_id}/prompt"), prompt)).await?;
        let path = format!("/api/v1/sessions/{session_id}");
        let run_id = field(connection.call(&request(server, "GET", &path, "")).await?, "lastRunId")?.to_owned();
        let trace = request(server, "GET", &format!("{path}/trace?limit=100"), "");
        let command_id = field(connection.call(&trace).await?, "commandId")?.to_owned();
        let claim = r#"{"runnerId":"bench","leaseMs":600000}"#;
        let claim = request(server, "POST", &format!("/api/v1/runs/{run_id}/claim"), claim);
        let lease_epoch = number(connection.call(&claim).await?, "leaseEpoch")?;
        Ok(Self { session_id, claimed: Claimed { run_id, command_id, lease_epoch } })
    }

    /// An append of pieces of a reply.
    fn append(&self, server: &Server, pieces: usize) -> Append {
        let piece = ("assistant_delta", r#"{"messageId":"m","delta":"some words of the reply "}"#.to_owned());
        Append::new(server, &self.claimed, &vec![piece; pieces])
    }
}

/// One stream of a session.
struct Follower {
    stream: TcpStream,
    buffer: Vec<u8>,
    pieces: usize,
}

impl Follower {
    async fn open(server: &Server, session_id: &str) -> Outcome<Self> {
        let mut stream = TcpStream::connect(server.address).await?;
        stream.write_all(&request(server, "GET", &format!("/session/{session_id}/events"), "")).await?;
        let mut head = Vec::with_capacity(1_024);
        while memmem::find(&head, b"retry: ").is_none() {
            if stream.read_buf(&mut head).await? == 0 {
                return Err(format!("no stream: {}", String::from_utf8_lossy(&head)).into());
            }
        }
        Ok(Self { stream, buffer: Vec::with_capacity(64 * 1024), pieces: 0 })
    }

    /// Reads until this many pieces have arrived in all.
    async fn read(&mut self, pieces: usize) -> Outcome<()> {
        while self.pieces < pieces {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(format!("a stream ended after {} pieces", self.pieces).into());
            }
            let complete = memmem::rfind(&self.buffer, b"\n\n").map_or(0, |at| at + 2);
            self.pieces += memmem::find_iter(&self.buffer[..complete], PIECE).count();
            self.buffer.drain(..complete);
        }
        Ok(())
    }
}

async fn lag(server: &Server, report: &mut Report) -> Outcome<()> {
    let mut connection = Connection::open(server).await?;
    let prompted = Prompted::open(&mut connection, server).await?;
    let mut follower = Follower::open(server, &prompted.session_id).await?;
    let mut append = prompted.append(server, 1);
    let mut latencies = vec![];
    for number in 1..=PIECES {
        let started = now();
        let received = async {
            follower.read(number).await?;
            Outcome::Ok(since(started).as_secs_f64() * 1e3)
        };
        let (received, appended) = join(received, append.send(&mut connection)).await;
        appended?;
        latencies.push(received?);
    }
    latencies.sort_by(f64::total_cmp);
    report.figure("daemon.frame_lag_ms", percentile(&latencies, 50));
    report.figure("daemon.frame_lag_p99_ms", percentile(&latencies, 99));
    report.note("daemon.frame_lag: from a runner's append of a piece of text to its frame at a follower; p50".into());
    Ok(())
}

/// Microseconds of CPU per delivered frame, with few followers and with many, in rounds that alternate.
async fn fan_out(server: &Server, report: &mut Report) -> Outcome<()> {
    let mut rounds = [vec![], vec![]];
    for round in 0..ROUNDS {
        for (followers, costs) in [FEW, MANY].into_iter().zip(&mut rounds) {
            let cost_us = frame_cost_us(server, report, followers).await?;
            eprintln!("    daemon {}: {cost_us:.2} us of CPU for a frame of {followers} followers", round + 1);
            costs.push(cost_us);
        }
    }
    let [few, many] = rounds;
    report.figure("daemon.fan_out_ratio_64_to_8", median(many.iter().zip(&few).map(|(many, few)| many / few)));
    report.figure("daemon.frame_cpu_us_8", median(few));
    report.figure("daemon.frame_cpu_us_64", median(many));
    report.note(format!(
        "daemon.fan_out: CPU for each delivered frame with {MANY} followers of a session, as a share of that with {FEW}"
    ));
    Ok(())
}

async fn frame_cost_us(server: &Server, report: &mut Report, followers: usize) -> Outcome<f64> {
    let mut connection = Connection::open(server).await?;
    let prompted = Prompted::open(&mut connection, server).await?;
    let mut streams = vec![];
    for _ in 0..followers {
        streams.push(Follower::open(server, &prompted.session_id).await?);
    }
    let mut append = prompted.append(server, BATCH_EVENTS);
    append.send(&mut connection).await?;
    try_join_all(streams.iter_mut().map(|stream| stream.read(BATCH_EVENTS))).await?;
    let (before, own_before) = (cpu(server.pid())?, own_cpu()?);
    for batch in 1..=BATCHES {
        append.send(&mut connection).await?;
        // No follower may fall so far behind that it is evicted.
        try_join_all(streams.iter_mut().map(|stream| stream.read((batch + 1) * BATCH_EVENTS))).await?;
    }
    sleep(TAIL).await;
    let used = cpu(server.pid())? - before;
    report.generator_share((own_cpu()? - own_before).as_secs_f64() / used.as_secs_f64());
    Ok(used.as_secs_f64() * 1e6 / (BATCHES * BATCH_EVENTS * followers) as f64)
}
