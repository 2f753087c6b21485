//! Messages of the mesh: the cost of a durable message that is pushed to its recipient, beside what the disk makes of bare
//! inserts; what a login costs; and how much memory ten thousand idle connections take.

mod bare;
mod identity;

use std::time::{Duration, Instant};

use futures_util::future::{join, try_join_all};
use memchr::memmem;
use tokio::time::{sleep, timeout};

use crate::engine::{Bench, Engine, Place};
use crate::http::number_after;
use crate::machine::{cpu, now, own_cpu, rss_mib, since};
use crate::outcome::Outcome;
use crate::report::{Report, median, percentile};
use crate::server::Server;
use crate::websocket::{WebSocket, text_frame};
use identity::enter;

pub(crate) const SENDERS: usize = 64;
const IDLE: usize = 10_000;
/// Tasks that each connect identities one after the other.
const MAKERS: usize = 32;
const PAYLOAD_BYTES: usize = 1_000;
const WARM_UP_SENDS: usize = 50;
const SETTLE: Duration = Duration::from_secs(2);
const TIMEOUT: Duration = Duration::from_secs(600);
/// No limit on names, and no connection is dead because it does not answer pings.
const SETTINGS: [(&str, &str); 3] = [
    ("OSTLER_MESH__REGISTRATIONS_PER_HOUR_MAX", "1000000"),
    ("OSTLER_MESH__REGISTRATIONS_PER_HOUR_TOTAL_MAX", "1000000"),
    ("OSTLER_LIMITS__SOCKET_DEAD_MS", "3600000"),
];

/// An envelope of the size that the published client makes of a few sentences.
pub(crate) fn payload() -> String {
    let around = r#"{"type":"e2ee.encrypted","ciphertext":""}"#.len();
    format!(r#"{{"type":"e2ee.encrypted","ciphertext":"{}"}}"#, "x".repeat(PAYLOAD_BYTES - around))
}

/// A sender and the one it writes to.
struct Pair {
    sender: WebSocket,
    recipient: WebSocket,
    frame: Vec<u8>,
    number_at: usize,
    sent: u32,
}

/// One round of sends.
struct Round {
    sends_per_s: f64,
    server_us: f64,
    generator_us: f64,
    answered_ms: Vec<f64>,
    pushed_ms: Vec<f64>,
}

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let (mut send_us, mut login_ms, mut idle_mib) = (0.0_f64, 0.0_f64, 0.0_f64);
    for engine in Engine::BOTH {
        let place = bench.place(engine)?;
        let server = bench.serve_with(&place, &SETTINGS)?;
        send_us = send_us.max(timeout(TIMEOUT, sends(bench, report, &place, &server)).await??);
        let (login, idle) = timeout(TIMEOUT, logins(report, engine, &server)).await??;
        (login_ms, idle_mib) = (login_ms.max(login), idle_mib.max(idle));
        server.stop()?;
    }
    report.figure("mesh.cpu_us_per_send", send_us);
    report.figure("mesh.login_cpu_ms", login_ms);
    report.figure("mesh.idle_10k_mib", idle_mib);
    report.note(format!(
        "mesh: {SENDERS} senders, each to a recipient of its own that is connected, envelopes of {PAYLOAD_BYTES} bytes, the next \
         send after the last answer; answered and pushed from the send's first byte; bare: {SENDERS} rows of the same table \
         per transaction; a login is four connections: create, login1, login2, connect; on the engine where it is worse"
    ));
    Ok(())
}

/// Rounds of sends and of bare inserts in turn; the server's CPU per send.
async fn sends(bench: &Bench, report: &mut Report, place: &Place, server: &Server) -> Outcome<f64> {
    let name = place.engine.name();
    let mut pairs = try_join_all((0..SENDERS).map(|number| Pair::connect(server, number))).await?;
    all(&mut pairs, WARM_UP_SENDS).await?;
    let (mut bare, mut rounds) = (vec![], vec![]);
    for number in 0..bench.sizes.mesh_rounds {
        bare.push(bare::rows_per_s(place, number, SENDERS * bench.sizes.sends_per_sender).await?);
        rounds.push(round(server, &mut pairs, bench.sizes.sends_per_sender).await?);
        let round = &rounds[rounds.len() - 1];
        eprintln!(
            "    mesh.{name} {}: bare {:.0} rows/s, {:.0} sends/s, {:.1} µs of CPU per send",
            number + 1,
            bare[bare.len() - 1],
            round.sends_per_s,
            round.server_us
        );
    }
    let of = |get: fn(&Round) -> f64| median(rounds.iter().map(get));
    let server_us = of(|round| round.server_us);
    report.figure(format!("mesh.{name}.cpu_us_per_send"), server_us);
    report.figure(format!("mesh.{name}.sends_per_s"), of(|round| round.sends_per_s));
    report.figure(format!("mesh.{name}.bare_rows_per_s"), median(bare.iter().copied()));
    let ratios = bare.iter().zip(&rounds).map(|(bare, round)| round.sends_per_s / bare);
    report.rounds(format!("mesh.{name}.ratio_to_bare"), ratios);
    for (what, get) in
        [("answered", (|round| &round.answered_ms) as fn(&Round) -> &Vec<f64>), ("pushed", |round| &round.pushed_ms)]
    {
        let mut times: Vec<f64> = rounds.iter().flat_map(get).copied().collect();
        times.sort_by(f64::total_cmp);
        report.figure(format!("mesh.{name}.{what}_p50_ms"), percentile(&times, 50));
        report.figure(format!("mesh.{name}.{what}_p99_ms"), percentile(&times, 99));
    }
    report.generator_share(of(|round| round.generator_us / round.server_us));
    Ok(server_us)
}

async fn round(server: &Server, pairs: &mut [Pair], sends: usize) -> Outcome<Round> {
    let (server_before, own_before, started) = (cpu(server.pid())?, own_cpu()?, now());
    let times = all(pairs, sends).await?;
    let seconds = since(started).as_secs_f64();
    let (used, own) = (cpu(server.pid())? - server_before, own_cpu()? - own_before);
    let count = (pairs.len() * sends) as f64;
    let (answered_ms, pushed_ms) = times.into_iter().unzip();
    Ok(Round {
        sends_per_s: count / seconds,
        server_us: used.as_secs_f64() * 1e6 / count,
        generator_us: own.as_secs_f64() * 1e6 / count,
        answered_ms,
        pushed_ms,
    })
}

/// Every pair at once; milliseconds to the answer and to the push of every send.
async fn all(pairs: &mut [Pair], sends: usize) -> Outcome<Vec<(f64, f64)>> {
    Ok(try_join_all(pairs.iter_mut().map(|pair| pair.exchange(sends))).await?.concat())
}

/// All numbers of messages have as many digits, so that a frame's length stays.
const FIRST: u32 = 1_000_000;

impl Pair {
    async fn connect(server: &Server, number: usize) -> Outcome<Self> {
        let (from, to) = (format!("sender-{number}"), format!("recipient-{number}"));
        let (sender, recipient) = (enter(server, &from).await?, enter(server, &to).await?);
        let start =
            r#"{"jsonrpc":"2.0","id":"rpc-0123456789abcdef","method":"message.send","params":{"message_id":"m-"#;
        let rest = format!(
            r#"","to":"{to}.localhost.test","type":"e2ee.encrypted","encrypted":true,"timestamp":1794700691728,"payload":{}}}}}"#,
            payload()
        );
        let frame = text_frame(&format!("{start}{FIRST}{rest}"));
        let number_at = frame.len() - rest.len() - FIRST.to_string().len();
        Ok(Self { sender, recipient, frame, number_at, sent: 0 })
    }

    /// Sends one after the other. Each push must be the next one.
    async fn exchange(&mut self, sends: usize) -> Outcome<Vec<(f64, f64)>> {
        let mut times = Vec::with_capacity(sends);
        for _ in 0..sends {
            let number = (FIRST + self.sent).to_string();
            self.frame[self.number_at..self.number_at + number.len()].copy_from_slice(number.as_bytes());
            self.sent += 1;
            let started = now();
            self.sender.send(&self.frame).await?;
            let (answered, pushed) =
                join(answer(&mut self.sender, started), push(&mut self.recipient, self.sent, started)).await;
            times.push((answered?, pushed?));
        }
        Ok(times)
    }
}

async fn answer(sender: &mut WebSocket, started: Instant) -> Outcome<f64> {
    let answer = sender.receive().await?;
    if memmem::find(answer, br#""status":"delivered""#).is_none() {
        return Err(format!("a send was not delivered: {}", String::from_utf8_lossy(answer)).into());
    }
    Ok(since(started).as_secs_f64() * 1e3)
}

async fn push(recipient: &mut WebSocket, seq: u32, started: Instant) -> Outcome<f64> {
    let pushed = recipient.receive().await?;
    if number_after(pushed, br#""seq":"#) != Some(seq.into()) {
        return Err(format!("not the push of {seq}: {}", String::from_utf8_lossy(pushed)).into());
    }
    Ok(since(started).as_secs_f64() * 1e3)
}

/// Ten thousand identities connect and stay: CPU of the server for each, in ms, and its memory afterwards, in MiB.
async fn logins(report: &mut Report, engine: Engine, server: &Server) -> Outcome<(f64, f64)> {
    let (server_before, own_before) = (cpu(server.pid())?, own_cpu()?);
    let makers = (0..MAKERS).map(|maker| async move {
        let mut connections = vec![];
        for number in (maker..IDLE).step_by(MAKERS) {
            connections.push(enter(server, &format!("idle-{number}")).await?);
        }
        Outcome::Ok(connections)
    });
    let connections = try_join_all(makers).await?.into_iter().flatten().collect::<Vec<_>>();
    let (used, own) = (cpu(server.pid())? - server_before, own_cpu()? - own_before);
    sleep(SETTLE).await;
    let (login_ms, mib) = (used.as_secs_f64() * 1e3 / connections.len() as f64, rss_mib(server.pid())?);
    let name = engine.name();
    eprintln!("    mesh.{name}: {login_ms:.2} ms of CPU per login; {IDLE} idle connections, {mib:.0} MiB");
    report.figure(format!("mesh.{name}.login_cpu_ms"), login_ms);
    report.figure(format!("mesh.{name}.idle_10k_mib"), mib);
    report.generator_share(own.as_secs_f64() / used.as_secs_f64());
    Ok((login_ms, mib))
}
