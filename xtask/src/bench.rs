//! `cargo xtask bench`: builds the release server and the load generator, lends them a private Postgres cluster with its
//! durability on, and leaves the figures in `target/bench/latest.json`. With `--against REV` it compares the working tree
//! with another revision instead, and with `--peers` with programs of other people. The group `kubernetes` needs an API server,
//! which runs only while that group is measured.

mod against;
mod cluster;
mod compare;
mod equipment;
mod peers;

use crate::process::{cargo, run};
use cluster::{BenchCluster, ClusterTurn, build_server};
use equipment::{Equipment, build, figures_dir, release_dir};

const USAGE: &str = "`cargo xtask bench [--quick] [--against REV [--rounds N] | --peers [--write]] [FILTER]`";
/// Even, so that each revision is measured first equally often.
const ROUNDS_DEFAULT: usize = 6;

pub(crate) fn bench(arguments: &[String]) -> Result<(), String> {
    let options = Options::parse(arguments)?;
    if options.has_peers {
        return peers::measure(options.quick, options.is_written, options.filter.as_deref());
    }
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
    has_peers: bool,
    /// Write the page and its chart.
    is_written: bool,
    filter: Option<String>,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self {
            quick: false,
            against: None,
            rounds: ROUNDS_DEFAULT,
            has_peers: false,
            is_written: false,
            filter: None,
        };
        let mut are_rounds_given = false;
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().ok_or_else(|| format!("{argument} needs a value\nhint: {USAGE}"));
            match argument.as_str() {
                "--quick" => options.quick = true,
                "--peers" => options.has_peers = true,
                "--write" => options.is_written = true,
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
        if options.has_peers && options.against.is_some() {
            return Err(format!("--peers and --against exclude each other\nhint: {USAGE}"));
        }
        // Some figures, or few rounds, must not pass for all of them.
        if options.is_written && (!options.has_peers || options.quick || options.filter.is_some()) {
            return Err(format!("--write needs --peers, without --quick and FILTER\nhint: {USAGE}"));
        }
        Ok(options)
    }
}

fn measure(options: &Options) -> Result<(), String> {
    let turn = ClusterTurn::of(options.filter.as_deref());
    let mut server = None;
    if matches!(turn, ClusterTurn::Alone | ClusterTurn::AfterOthers) {
        eprintln!("==> building the release server with the launcher for Kubernetes");
        server = Some(build_server()?);
    }
    eprintln!("==> building the release server and the load generator");
    build(&mut cargo()?)?;
    let equipment = Equipment::start()?;
    let generator = || {
        let mut program = equipment.load_generator(&release_dir()?)?;
        if options.quick {
            program.arg("--quick");
        }
        Ok::<_, String>(program)
    };
    let mut program = generator()?;
    turn.explain(&mut program);
    let mut cluster = None;
    if turn == ClusterTurn::Alone {
        cluster = server.take().map(BenchCluster::find_or_start).transpose()?;
    }
    cluster.iter().for_each(|cluster| cluster.set_environment(&mut program));
    // Some figures must not pass for all of them.
    if options.filter.is_none() {
        program.arg("--out").arg(figures_dir()?.join("latest.json"));
    }
    eprintln!("==> measuring");
    run(program.args(&options.filter))?;
    match server {
        Some(server) => BenchCluster::find_or_start(server)?.measure_alone(generator()?),
        None => Ok(()),
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
        let expected = Options {
            quick: false,
            against: Some("v1".into()),
            rounds: 8,
            has_peers: false,
            is_written: false,
            filter: Some("append".into()),
        };
        assert_eq!(options, expected);
        let peers = parse("--write --peers").unwrap();
        assert!(peers.has_peers && peers.is_written);
        assert_eq!(parse("--against HEAD~3").unwrap().rounds, ROUNDS_DEFAULT);
        assert!(parse("--quick").unwrap().quick);
    }

    #[test]
    fn unknown_and_incomplete_options_are_rejected() {
        for wrong in ["--slow", "--against", "append mesh", "--rounds 8", "--against v1 --rounds 4"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        for wrong in ["--peers --against v1", "--write", "--peers --write --quick", "--peers --write restate"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
