//! A request that is refused must cost little, and delay no other request: the server's CPU time per refused body of 4 MiB, and
//! how long another request waits at the same time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::agui::RUNS;
use crate::calls::{Claimed, claimed_run};
use crate::engine::{Bench, Engine};
use crate::http::{Connection, request};
use crate::machine::{cpu, now, since};
use crate::outcome::Outcome;
use crate::report::Report;
use crate::server::Server;

const BODY_BYTES: usize = 4 * 1024 * 1024;
/// Requests of each kind in one round.
const REQUESTS: usize = 50;
/// The machine's own pauses are not the server's: of some rounds, the best counts.
const ROUNDS: usize = 3;

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    // What is refused at the edge never reaches the store.
    let place = bench.place(Engine::Sqlite)?;
    let server = bench.serve(&place)?;
    let mut connection = Connection::open(&server).await?;
    let claimed = claimed_run(&mut connection, &server).await?;
    let (mut most_cpu, mut longest_block): (f64, f64) = (0.0, 0.0);
    for (kind, refused) in requests(&server, &claimed) {
        let (mut cpu_ms, mut block_ms) = (f64::MAX, f64::MAX);
        for _ in 0..ROUNDS {
            let probe = Probe::start(&server);
            let before = cpu(server.pid())?;
            for _ in 0..REQUESTS {
                let status = connection.exchange(&refused).await?;
                if !(400..500).contains(&status) {
                    return Err(format!("{kind}: a status of {status}").into());
                }
            }
            cpu_ms = cpu_ms.min((cpu(server.pid())? - before).as_secs_f64() * 1e3 / REQUESTS as f64);
            block_ms = block_ms.min(probe.stop()?);
        }
        eprintln!("    refuse.{kind}: {cpu_ms:.2} ms of CPU, others wait {block_ms:.2} ms at most");
        report.figure(format!("refuse.{kind}.cpu_ms"), cpu_ms);
        (most_cpu, longest_block) = (most_cpu.max(cpu_ms), longest_block.max(block_ms));
    }
    server.stop()?;
    report.figure("refuse.cpu_ms_per_4mb_body", most_cpu);
    report.figure("refuse.block_ms_max", longest_block);
    report.note("refuse: the costliest kind of refusal; the CPU of requests that probe beside it is included".into());
    Ok(())
}

/// Requests of about 4 MiB that are refused, each for another reason.
fn requests(server: &Server, claimed: &Claimed) -> Vec<(&'static str, Vec<u8>)> {
    let Claimed { run_id, lease_epoch, .. } = claimed;
    let events = format!("/api/v1/runs/{run_id}/events");
    let append = |payload: String| {
        let event = format!(r#"{{"type":"custom","payload":{payload}}}"#);
        format!(r#"{{"runnerId":"bench","leaseEpoch":{lease_epoch},"events":[{event}]}}"#)
    };
    let text = |bytes: usize| format!(r#"{{"text":"{}"}}"#, "x".repeat(bytes));
    let keys: Vec<String> = (0..BODY_BYTES / 20).map(|n| format!(r#""key{n:07}":{n:06}"#)).collect();
    let post = |path: &str, body: String| request(server, "POST", path, &body);
    vec![
        ("announced", post(&events, append(text(BODY_BYTES + 1)))),
        ("small_operation", post(&format!("/api/v1/runs/{run_id}/claim"), text(BODY_BYTES))),
        ("keys", post(&events, append(format!("{{{}}}", keys[..keys.len() - 20].join(","))))),
        ("event", post(&events, append(text(BODY_BYTES - 200)))),
        ("run_input", post(RUNS, format!("{{{}}}", keys.join(",")))),
    ]
}

/// Another client that asks for something small all the time.
struct Probe {
    is_over: Arc<AtomicBool>,
    thread: thread::JoinHandle<std::io::Result<Duration>>,
}

impl Probe {
    fn start(server: &Server) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (address, request) = (server.address, request(server, "GET", "/health/live", ""));
        let until = is_over.clone();
        let thread = thread::spawn(move || {
            let mut stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            let (mut longest, mut answer) = (Duration::ZERO, [0; 4_096]);
            while !until.load(Ordering::Relaxed) {
                let asked = now();
                stream.write_all(&request)?;
                if stream.read(&mut answer)? == 0 {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
                longest = longest.max(since(asked));
                thread::sleep(Duration::from_micros(200));
            }
            Ok(longest)
        });
        Self { is_over, thread }
    }

    /// The longest wait, in milliseconds.
    fn stop(self) -> Outcome<f64> {
        self.is_over.store(true, Ordering::Relaxed);
        let longest = self.thread.join().map_err(|_| "the probe has panicked")??;
        Ok(longest.as_secs_f64() * 1e3)
    }
}
