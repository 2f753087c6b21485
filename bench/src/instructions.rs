//! Instructions that the server executes for a run and for an appended event, counted by Valgrind. Neither the disk nor other
//! processes change them, so a difference of a few percent is meaningful. They are no measure of time: a copied page counts more
//! than it costs, a wait counts nothing, and Valgrind's processor has no instructions for SHA-256.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::{FdFlags, fcntl_setfd};

use crate::append::{BATCH_EVENTS, EVENT_TYPE, payload};
use crate::calls::{Append, claimed_run};
use crate::engine::{Bench, Engine, Place};
use crate::http::Connection;
use crate::outcome::Outcome;
use crate::report::Report;
use crate::run::{Load, TAIL};
use crate::server::Server;

/// Before the count begins. Statements are prepared and caches filled by then.
const WARM_UP_RUNS: usize = 40;
const RUNS: usize = 100;
const WARM_UP_BATCHES: usize = 20;
const BATCHES: usize = 50;

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    if Command::new("callgrind_control").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err()
    {
        report.note("instructions: not counted, because Valgrind is not installed".into());
        return Ok(());
    }
    for engine in Engine::BOTH {
        let name = engine.name();
        let per_run = Counted::start(bench, engine)?.runs().await? / RUNS as u64;
        let per_event = Counted::start(bench, engine)?.appends().await? / (BATCHES * BATCH_EVENTS) as u64;
        eprintln!("    instructions.{name}: {per_run} per run, {per_event} per event");
        report.figure(format!("instructions.{name}.per_run"), per_run as f64);
        report.figure(format!("instructions.{name}.per_event"), per_event as f64);
    }
    report.note("instructions: of the server alone, for one client that does one thing after the other".into());
    Ok(())
}

/// A server whose instructions are counted.
struct Counted {
    server: Server,
    counts: PathBuf,
}

impl Counted {
    fn start(bench: &Bench, engine: Engine) -> Outcome<Self> {
        let place = bench.place(engine)?;
        let counts = place.data_dir.with_extension("callgrind");
        let taken = taken_environment(&place)?;
        let mut command = Command::new("valgrind");
        command.env_clear().envs(["PATH", "HOME"].into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        // Valgrind adds variables that the server takes for secrets. It would start itself again without them, which Valgrind
        // does not allow, so this setting marks the secrets as removed already.
        command.env("OSTLER_HANDOVER", taken.as_raw_fd().to_string());
        command.args(["--tool=callgrind", "--instr-atstart=no"]);
        command.arg(format!("--callgrind-out-file={}", counts.display())).arg(bench.ostler());
        let server = Server::spawn(command, &Place { database_url: None, ..place })?;
        Ok(Self { server, counts })
    }

    async fn runs(self) -> Outcome<u64> {
        let mut load = Load::open_clients(&[&self.server], 1).await?;
        load.run(WARM_UP_RUNS).await?;
        tokio::time::sleep(TAIL).await;
        self.switch("on")?;
        load.run(RUNS).await?;
        tokio::time::sleep(TAIL).await;
        drop(load);
        self.total()
    }

    async fn appends(self) -> Outcome<u64> {
        let mut connection = Connection::open(&self.server).await?;
        let claimed = claimed_run(&mut connection, &self.server).await?;
        let mut append = Append::new(&self.server, &claimed, &vec![(EVENT_TYPE, payload()); BATCH_EVENTS]);
        for batch in 0..WARM_UP_BATCHES + BATCHES {
            if batch == WARM_UP_BATCHES {
                self.switch("on")?;
            }
            append.send(&mut connection).await?;
        }
        self.total()
    }

    fn switch(&self, state: &str) -> Outcome<()> {
        let mut control = Command::new("callgrind_control");
        let status = control.args(["-i", state, &self.server.pid().to_string()]).stdout(Stdio::null()).status()?;
        if status.success() { Ok(()) } else { Err(format!("callgrind_control: {status}").into()) }
    }

    fn total(self) -> Outcome<u64> {
        self.switch("off")?;
        self.server.stop()?;
        total(&fs::read_to_string(&self.counts)?)
    }
}

/// The sum of all counts that Callgrind has written.
fn total(counts: &str) -> Outcome<u64> {
    let sum = counts.lines().rev().find_map(|line| line.strip_prefix("totals: "));
    sum.and_then(|sum| sum.trim().parse().ok()).ok_or_else(|| "Callgrind has written no total".into())
}

/// What a server that has removed the secrets from its environment hands to its next process: an open file with them.
fn taken_environment(place: &Place) -> Outcome<File> {
    let path: &Path = &place.data_dir.with_extension("environment");
    let mut file = File::create(path)?;
    if let Some(url) = &place.database_url {
        write!(file, "--database-url={url}\0")?;
    }
    // The server inherits it.
    fcntl_setfd(&file, FdFlags::empty())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_at_the_end() {
        assert_eq!(total("summary: 3\nfn=(1) totals\n16 3\n\ntotals: 426518937\n").unwrap(), 426_518_937);
        assert!(total("summary: 3\n").is_err());
    }
}
