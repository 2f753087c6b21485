//! `cargo xtask bench`: builds the release server and the load generator, lends them a private Postgres cluster with its
//! durability on, and leaves the figures in `target/bench/latest.json`. With `--against REV` it compares the working tree
//! with another revision instead.

mod against;
mod compare;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ostler_testkit::postgres::Cluster;

use crate::npm::{self, Agents};
use crate::postgres;
use crate::process::{cargo, in_workspace, run, workspace_root};

const USAGE: &str = "`cargo xtask bench [--quick] [--against REV [--rounds N]] [FILTER]`";
const PACKAGES: [&str; 3] = ["ostler-cli", "ostler-bench", "ostler-stand-ins"];
const PROGRAMS: [&str; 3] = ["ostler", "ostler-bench", "ostler-stand-in"];
/// Even, so that each revision is measured first equally often.
const ROUNDS_DEFAULT: usize = 6;

pub fn bench(arguments: &[String]) -> Result<(), String> {
    let options = Options::parse(arguments)?;
    match &options.against {
        Some(revision) => against::measure(revision, options.rounds, options.filter.as_deref()),
        None => measure(&options),
    }
}

#[derive(Debug, PartialEq)]
struct Options {
    quick: bool,
    against: Option<String>,
    rounds: usize,
    filter: Option<String>,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self { quick: false, against: None, rounds: ROUNDS_DEFAULT, filter: None };
        let mut are_rounds_given = false;
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().ok_or_else(|| format!("{argument} needs a value\nhint: {USAGE}"));
            match argument.as_str() {
                "--quick" => options.quick = true,
                "--against" => options.against = Some(value()?.clone()),
                "--rounds" => {
                    let rounds = value()?.parse().ok().filter(|rounds| *rounds >= compare::ROUNDS_MIN);
                    let message = || format!("--rounds must be a number of at least {}", compare::ROUNDS_MIN);
                    options.rounds = rounds.ok_or_else(message)?;
                    are_rounds_given = true;
                }
                word if !word.starts_with('-') && options.filter.is_none() => options.filter = Some(word.to_owned()),
                other => return Err(format!("`bench` does not know `{other}`\nhint: {USAGE}")),
            }
        }
        if are_rounds_given && options.against.is_none() {
            return Err(format!("--rounds needs --against\nhint: {USAGE}"));
        }
        Ok(options)
    }
}

fn measure(options: &Options) -> Result<(), String> {
    eprintln!("==> building the release server and the load generator");
    build(&mut cargo()?)?;
    let equipment = Equipment::start()?;
    let mut program = equipment.load_generator(&release_dir()?)?;
    // Some figures must not pass for all of them.
    if options.filter.is_none() {
        program.arg("--out").arg(figures_dir()?.join("latest.json"));
    }
    if options.quick {
        program.arg("--quick");
    }
    eprintln!("==> measuring");
    run(program.args(&options.filter))
}

/// Builds all programs of a measurement, in the checkout that the command runs in.
fn build(cargo: &mut Command) -> Result<(), String> {
    let packages = PACKAGES.map(|package| ["--package", package]);
    run(cargo.args(["build", "--release"]).args(packages.as_flattened()))
}

fn release_dir() -> Result<PathBuf, String> {
    // Joining an absolute path replaces the root, which is also what cargo does with this variable.
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    Ok(workspace_root()?.join(target).join("release"))
}

/// Always the same place, wherever cargo builds, so that the figures are easy to find.
fn figures_dir() -> Result<PathBuf, String> {
    let figures = workspace_root()?.join("target").join("bench");
    fs::create_dir_all(&figures).map_err(|e| format!("cannot create {}: {e}", figures.display()))?;
    Ok(figures)
}

/// The parts of a measurement that do not depend on the revision.
struct Equipment {
    cluster: Cluster,
    agents: Agents,
    pg_test_fsync: Option<PathBuf>,
}

impl Equipment {
    fn start() -> Result<Self, String> {
        let agents = npm::find_or_install()?;
        let cluster = postgres::start_on_disk()?;
        let pg_test_fsync = cluster.program("pg_test_fsync");
        if pg_test_fsync.is_none() {
            eprintln!("    this Postgres has no pg_test_fsync: the cost of a sync will be missing");
        }
        Ok(Self { cluster, agents, pg_test_fsync })
    }

    /// The load generator among these programs, to measure the server beside it.
    fn load_generator(&self, programs: &Path) -> Result<Command, String> {
        let [ostler, load_generator, stand_in] = PROGRAMS.map(|program| programs.join(program));
        let mut command = in_workspace(load_generator)?;
        command.arg("--ostler").arg(ostler).args(["--postgres-url", &self.cluster.url()]);
        command.arg("--codex").arg(self.agents.codex()).arg("--stand-in").arg(stand_in);
        if let Some(tool) = &self.pg_test_fsync {
            command.arg("--pg-test-fsync").arg(tool);
        }
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_understood_in_any_order() {
        let options = parse("append --rounds 8 --against v1").unwrap();
        let expected = Options { quick: false, against: Some("v1".into()), rounds: 8, filter: Some("append".into()) };
        assert_eq!(options, expected);
        assert_eq!(parse("--against HEAD~3").unwrap().rounds, ROUNDS_DEFAULT);
        assert!(parse("--quick").unwrap().quick);
    }

    #[test]
    fn unknown_and_incomplete_options_are_rejected() {
        for wrong in ["--slow", "--against", "append mesh", "--rounds 8", "--against v1 --rounds 4"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
