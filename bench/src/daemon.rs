//! The daemon dialect, on SQLite, and beside it the published daemon (`qwen serve`) where its program is given: how many
//! requests of clients that connect are answered, what a session takes to open and to keep, how soon a backend's words reach a
//! follower, and what a frame costs for each of them.

mod frames;
mod published;

use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::{sleep, timeout};

use crate::engine::{Bench, Engine};
use crate::http::{Connection, field};
use crate::machine::{now, rss_mib, since, sync_us, tree};
use crate::outcome::Outcome;
use crate::report::{Report, median};
use published::Published;

/// Connections that send requests, one after the other.
const CONNECTIONS: usize = 8;
const SESSIONS: usize = 100;
const SETTLE: Duration = Duration::from_secs(2);
const TIMEOUT: Duration = Duration::from_secs(300);

/// The published daemon, and the program that runs it.
pub(crate) struct QwenPrograms {
    pub node: PathBuf,
    pub qwen: PathBuf,
}

/// A server of the dialect, as clients know it.
struct Side {
    name: &'static str,
    pid: u32,
    address: std::net::SocketAddr,
    token: String,
    workspace: PathBuf,
}

/// What was measured of a side.
#[derive(Default)]
struct Figures {
    health_per_s: Vec<f64>,
    capabilities_per_s: Vec<f64>,
    create_ms: f64,
    sessions_mib: f64,
}

impl Side {
    fn request(&self, method: &str, path: &str, body: &str) -> Vec<u8> {
        let (host, token) = (self.address, &self.token);
        let mut text = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n");
        if !body.is_empty() {
            text += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        }
        format!("{text}\r\n{body}").into_bytes()
    }

    /// Requests per second of all connections together.
    async fn rate(&self, path: &str, requests: usize) -> Outcome<f64> {
        let mut connections = vec![];
        for _ in 0..CONNECTIONS {
            connections.push(Connection::open_at(self.address).await?);
        }
        let request = self.request("GET", path, "");
        let each = requests / CONNECTIONS;
        let started = now();
        try_join_all(connections.iter_mut().map(|connection| async {
            for _ in 0..each {
                connection.call(&request).await?;
            }
            Outcome::Ok(())
        }))
        .await?;
        Ok((each * CONNECTIONS) as f64 / since(started).as_secs_f64())
    }

    /// Opens sessions one after the other: the median time of one in ms, without the first, which may start an agent.
    async fn open_sessions(&self) -> Outcome<f64> {
        let mut connection = Connection::open_at(self.address).await?;
        let body = format!(r#"{{"cwd":"{}","sessionScope":"thread"}}"#, self.workspace.display());
        let request = self.request("POST", "/session", &body);
        let mut times = vec![];
        for _ in 0..SESSIONS {
            let started = now();
            field(connection.call(&request).await?, "sessionId")?;
            times.push(since(started).as_secs_f64() * 1e3);
        }
        Ok(median(times.into_iter().skip(1)))
    }

    /// Resident memory of the server and of all that it has started.
    fn memory_mib(&self) -> Outcome<f64> {
        let members = tree(self.pid)?;
        // One that ends while we look has no memory.
        Ok(members.into_iter().filter_map(|pid| rss_mib(pid).ok()).sum())
    }
}

pub(crate) async fn measure(bench: &Bench, programs: Option<&QwenPrograms>, report: &mut Report) -> Outcome<()> {
    report.figure("daemon.sync_us", sync_us(bench.scratch())?);
    frames::measure(bench, report).await?;
    let workspace = bench.scratch().join("daemon-workspace");
    std::fs::create_dir_all(&workspace)?;
    let workspace = workspace.canonicalize()?;
    let limit = (2 * SESSIONS).to_string();
    let settings =
        [("OSTLER_SERVER__WORKSPACE", &*workspace.to_string_lossy()), ("OSTLER_DAEMON__SESSIONS_MAX", &limit)];
    let server = bench.serve_with(&bench.place(Engine::Sqlite)?, &settings)?;
    let ours =
        Side { name: "ours", pid: server.pid(), address: server.address, token: server.token.clone(), workspace };
    let theirs = match programs {
        Some(programs) => Some(Published::start(programs, bench.scratch()).await?),
        None => {
            report.note("daemon: without Node and the published daemon, nothing is compared with it".into());
            None
        }
    };
    let mut figures = [Figures::default(), Figures::default()];
    let sides: Vec<&Side> = [Some(&ours), theirs.as_ref().map(|daemon| &daemon.side)].into_iter().flatten().collect();
    let requests = bench.sizes.results_per_round;
    for round in 0..bench.sizes.append_rounds {
        for (side, figures) in sides.iter().zip(&mut figures) {
            // The published daemon answers so much slower that it gets fewer requests.
            let requests = if side.name == "ours" { requests } else { requests / 4 };
            let health = timeout(TIMEOUT, side.rate("/health", requests)).await??;
            let capabilities = timeout(TIMEOUT, side.rate("/capabilities", requests)).await??;
            eprintln!(
                "    daemon {}, {}: {health:.0} health/s, {capabilities:.0} capabilities/s",
                round + 1,
                side.name
            );
            // The first round warms both up.
            if round > 0 {
                figures.health_per_s.push(health);
                figures.capabilities_per_s.push(capabilities);
            }
        }
    }
    for (side, figures) in sides.iter().zip(&mut figures) {
        figures.create_ms = timeout(TIMEOUT, side.open_sessions()).await??;
        sleep(SETTLE).await;
        figures.sessions_mib = side.memory_mib()?;
        eprintln!(
            "    daemon, {}: {:.2} ms to open a session, {:.0} MiB with {SESSIONS} of them",
            side.name, figures.create_ms, figures.sessions_mib
        );
    }
    let has_peer = theirs.is_some();
    drop(theirs);
    server.stop()?;
    show(report, &figures, has_peer);
    Ok(())
}

/// Values of ours and, where there is a peer, the factors by which ours are better, from values of the same round.
fn show(report: &mut Report, [ours, theirs]: &[Figures; 2], has_peer: bool) {
    report.figure("daemon.health_per_s", median(ours.health_per_s.iter().copied()));
    report.figure("daemon.capabilities_per_s", median(ours.capabilities_per_s.iter().copied()));
    report.figure("daemon.create_ms", ours.create_ms);
    report.figure("daemon.sessions_100_mib", ours.sessions_mib);
    if !has_peer {
        return;
    }
    let ratio = |ours: &[f64], theirs: &[f64]| median(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs));
    report.figure("daemon.qwen.health_per_s", median(theirs.health_per_s.iter().copied()));
    report.figure("daemon.qwen.capabilities_per_s", median(theirs.capabilities_per_s.iter().copied()));
    report.figure("daemon.qwen.create_ms", theirs.create_ms);
    report.figure("daemon.qwen.sessions_100_mib", theirs.sessions_mib);
    report.figure("daemon.health_ratio", ratio(&ours.health_per_s, &theirs.health_per_s));
    report.figure("daemon.capabilities_ratio", ratio(&ours.capabilities_per_s, &theirs.capabilities_per_s));
    report.figure("daemon.create_ratio", theirs.create_ms / ours.create_ms);
    report.figure("daemon.memory_ratio", theirs.sessions_mib / ours.sessions_mib);
    report.note(format!(
        "daemon.*_ratio: the published daemon (`qwen serve`) in the same run, {CONNECTIONS} connections; above 1, ours is better. \
         Memory is that of all processes with {SESSIONS} idle sessions; a session of ours is opened without a backend"
    ));
}
