//! The torturer: breaks servers, runners, Postgres, disks and clocks under load, on both engines, and compares everything
//! that was acknowledged with what is there afterwards. It uses the program `ostler` as a black box; `cargo xtask torture`
//! builds and starts both. What is checked, and how a round is repeated, is in `docs/reliability.md`.

#![expect(clippy::print_stdout, reason = "the report is the output of this program")]

mod api;
mod campaign;
mod clock;
mod interrupt;
mod load;
mod probe;
mod random;
mod report;
mod resources;
mod round;
mod server;
mod server_host;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
};

use campaign::Order;
use clap::{Parser, ValueEnum};
use clock::{now, since};
use report::Report;
use resources::Engine;

use crate::interrupt::{is_interrupted, listen_for_signals};

/// Set to anything: what cannot be done here has failed.
const TEST_EVERYTHING: &str = "OSTLER_TEST_EVERYTHING";

#[derive(Parser)]
#[command(about = "Breaks things under load and checks everything that was acknowledged")]
struct Args {
    /// The program under test, built with the feature `fault-injection`
    #[arg(long, required_unless_present = "list")]
    ostler: Option<PathBuf>,
    /// Where the results and the logs of violations go
    #[arg(long, default_value = "target/torture")]
    out: PathBuf,
    /// How long to go on, on both engines at once
    #[arg(long, default_value_t = 3.0)]
    minutes: f64,
    /// The seed of every choice
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Rounds per engine, at most
    #[arg(long)]
    rounds: Option<u64>,
    #[arg(long, value_enum, default_value = "both")]
    engine: Engines,
    /// Only this probe
    #[arg(long)]
    probe: Option<String>,
    /// Print the probes and end
    #[arg(long)]
    list: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Engines {
    Sqlite,
    Postgres,
    Both,
}

impl Engines {
    fn all(self) -> Vec<Engine> {
        match self {
            Self::Sqlite => vec![Engine::Sqlite],
            Self::Postgres => vec![Engine::Postgres],
            Self::Both => vec![Engine::Sqlite, Engine::Postgres],
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.list {
        for probe in probe::PROBES {
            let engines: Vec<&str> = probe.engines.iter().map(|engine| engine.name()).collect();
            println!("{:18} {:17} {}", probe.name, engines.join(", "), probe.about);
        }
        return ExitCode::SUCCESS;
    }
    match torture(&args) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(violations) => {
            eprintln!("error: {violations} violations; the logs of their rounds are in {}", args.out.display());
            ExitCode::FAILURE
        }
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the campaigns side by side, prints the table and writes the results. Returns the number of violations.
fn torture(args: &Args) -> Result<usize, String> {
    let probe = args
        .probe
        .as_deref()
        .map(|name| probe::find(name).ok_or_else(|| format!("there is no probe {name:?}\nhint: `--list` shows them")));
    let probe = probe.transpose()?;
    let ostler = args.ostler.as_deref().ok_or("--ostler is missing")?;
    let ostler = std::fs::canonicalize(ostler).map_err(|error| format!("{}: {error}", ostler.display()))?;
    std::fs::create_dir_all(&args.out).map_err(|error| format!("{}: {error}", args.out.display()))?;
    raise_file_limit();
    listen_for_signals();
    probe::check_seams(&ostler)?;
    let order = Order { seed: args.seed, minutes: args.minutes, rounds: args.rounds, probe };
    let engines: Vec<Engine> = args
        .engine
        .all()
        .into_iter()
        .filter(|engine| probe.is_none_or(|probe| probe.engines.contains(engine)))
        .collect();
    let started = now();
    let (logs, order, ostler) = (args.out.as_path(), &order, ostler.as_path());
    let tallies = thread::scope(|scope| {
        let campaign = |engine| (engine, scope.spawn(move || campaign::run(engine, ostler, order, logs, started)));
        let campaigns: Vec<_> = engines.into_iter().map(campaign).collect();
        let join = |(engine, task): (Engine, thread::ScopedJoinHandle<_>)| match task.join() {
            Ok(Ok(tally)) => Ok((engine, tally)),
            Ok(Err(message)) => Err(format!("the campaign on {} could not go on: {message}", engine.name())),
            Err(_) => Err(format!("the campaign on {} panicked", engine.name())),
        };
        campaigns.into_iter().map(join).collect::<Result<Vec<_>, String>>()
    })?;
    let report = Report { seed: args.seed, took: since(started), engines: tallies };
    write(&args.out, &report)?;
    if is_interrupted() {
        return Err("interrupted".into());
    }
    let incomplete = report.engines.iter().any(|(_, tally)| !tally.not_done.is_empty());
    if incomplete && std::env::var_os(TEST_EVERYTHING).is_some() {
        return Err("not everything could be done here".into());
    }
    Ok(report.violations())
}

fn write(out: &Path, report: &Report) -> Result<(), String> {
    let table = report.markdown();
    println!("\n{table}");
    let json = serde_json::to_string_pretty(&report.json()).map_err(|error| error.to_string())?;
    for (name, text) in [("latest.md", table), ("latest.json", json)] {
        std::fs::write(out.join(name), text).map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}

/// Thousands of followers need as many descriptors.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
