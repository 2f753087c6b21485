//! The same trivial work on this server and on what users would pick instead, in alternating rounds. `cargo xtask bench
//! --peers` installs the peers and starts this; it starts and stops all servers itself. A peer that cannot be installed,
//! started or measured is reported with the reason, and the others are measured all the same.

mod a2a;
mod agentscope;
mod chart;
mod floor;
mod jetstream;
mod langgraph;
mod messages;
mod meter;
mod page;
mod peer;
mod process;
mod restate;
mod results;
mod runs;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::sleep;

use crate::agui::message;
use crate::engine::{Bench, Engine};
use crate::machine::{anonymous_mib, description, load, raise_open_files, rss_mib, sync_us, tree};
use crate::outcome::Outcome;
use crate::run::CLIENTS;
use crate::server::Server;
use messages::Writers;
use meter::Throughput;
use peer::{Installed, Peer, Work};
use process::Processes;
use results::{Absent, Compared, Metric, Pair, Results};
use runs::Side;

const USAGE: &str =
    "usage: ostler-bench --peers FILE --ostler FILE --postgres-url URL [--out FILE] [--docs DIRECTORY] \
                     [--quick] [FILTER]
       ostler-bench --peers-measured FILE --docs DIRECTORY
  FILE    where each peer is installed, or what was measured before and is only to be shown
  FILTER  only peers whose name contains this";

const PEERS: [&Peer; 6] =
    [&floor::PEER, &agentscope::PEER, &a2a::PEER, &langgraph::PEER, &restate::PEER, &jetstream::PEER];

/// Known, and not compared on purpose.
const NOT_YET: [(&str, &str); 1] =
    [("qwen serve", "compared by `cargo xtask bench daemon`, because it serves other routes")];

/// Only the answer of a run of ours that succeeded contains this.
const SUCCESS: &[u8] = br#""outcome":{"type":"success"}"#;
/// Long enough for everything that starts with a server to have settled.
const SETTLE: Duration = Duration::from_secs(1);

pub(crate) struct Options {
    source: Source,
    out: Option<PathBuf>,
    docs: Option<PathBuf>,
    filter: Option<String>,
}

enum Source {
    Measure { peers: PathBuf, ostler: PathBuf, postgres_url: String, is_quick: bool },
    Measured(PathBuf),
}

impl Options {
    /// `None` if the arguments are those of the other measurements.
    pub(crate) fn parse(arguments: &[String]) -> Option<Result<Self, String>> {
        let is_ours = arguments.iter().any(|argument| argument == "--peers" || argument == "--peers-measured");
        is_ours.then(|| Self::parse_all(arguments.iter()))
    }

    fn parse_all<'a>(mut arguments: impl Iterator<Item = &'a String>) -> Result<Self, String> {
        let (mut values, mut is_quick, mut filter) = (BTreeMap::new(), false, None);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--quick" => is_quick = true,
                "--peers" | "--peers-measured" | "--ostler" | "--postgres-url" | "--out" | "--docs" => {
                    let value = arguments.next().ok_or_else(|| format!("{argument} needs a value\n{USAGE}"))?;
                    values.insert(argument.as_str(), value);
                }
                word if !word.starts_with('-') && filter.is_none() => filter = Some(word.to_lowercase()),
                _ => return Err(format!("what is {argument:?}?\n{USAGE}")),
            }
        }
        let mut path = |name: &str| values.remove(name).map(PathBuf::from);
        let (out, docs, measured) = (path("--out"), path("--docs"), path("--peers-measured"));
        let source = match measured {
            Some(file) => Source::Measured(file),
            None => Source::Measure {
                peers: path("--peers").ok_or(USAGE)?,
                ostler: path("--ostler").ok_or(USAGE)?,
                postgres_url: values.remove("--postgres-url").ok_or(USAGE)?.clone(),
                is_quick,
            },
        };
        Ok(Self { source, out, docs, filter })
    }
}

pub(crate) async fn compare(options: &Options) -> Outcome<()> {
    let results = match &options.source {
        Source::Measured(file) => serde_json::from_str(&fs::read_to_string(file)?)?,
        Source::Measure { peers, ostler, postgres_url, is_quick } => {
            let bench = Bench::new(ostler.clone(), postgres_url.clone(), *is_quick)?;
            let found = serde_json::from_str(&fs::read_to_string(peers)?)?;
            let mut driver = Driver::new(&bench, *is_quick, version(ostler)?)?;
            driver.measure(found, options.filter.as_deref()).await;
            driver.results
        }
    };
    print!("{}", table::text(&results));
    if let Some(out) = &options.out {
        fs::write(out, serde_json::to_string_pretty(&results)? + "\n")?;
        eprintln!("==> wrote {}", out.display());
    }
    if let Some(docs) = &options.docs {
        write_docs(docs, &results)?;
    }
    Ok(())
}

/// Only a complete comparison is written: the reasons for which others are missing name files of this machine.
fn write_docs(docs: &Path, results: &Results) -> Outcome<()> {
    let is_unexpected = |absent: &&Absent| NOT_YET.iter().all(|(name, _)| *name != absent.name);
    if let Some(Absent { name, reason }) = results.absent.iter().find(is_unexpected) {
        return Err(format!("the page is not written, because {name} was not compared: {reason}").into());
    }
    let (page, chart) = (docs.join("benchmarks.md"), docs.join("benchmarks.svg"));
    let text = page::replace_generated(&fs::read_to_string(&page)?, &page::generated(results))?;
    fs::write(&page, text)?;
    fs::write(&chart, chart::svg(results))?;
    eprintln!("==> wrote {} and {}", page.display(), chart.display());
    Ok(())
}

fn version(ostler: &Path) -> Outcome<String> {
    let output = Command::new(ostler).arg("--version").output()?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().trim().to_owned())
}

/// What the installation has found of a peer.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum Found {
    Installed(Installed),
    Missing { missing: String },
}

/// How the pairs of a peer's rounds are ordered: ABBA for both pairs, because the peer is in the middle of the two engines
/// and each round has the opposite direction of the one before.
fn order(round: usize) -> [usize; 3] {
    if round.is_multiple_of(2) { [0, 1, 2] } else { [2, 1, 0] }
}

const SQLITE: usize = 0;
const PEER: usize = 1;
const POSTGRES: usize = 2;
const ENGINES: [(usize, &str); 2] = [(SQLITE, table::SQLITE), (POSTGRES, table::POSTGRES)];

struct Driver<'a> {
    bench: &'a Bench,
    rounds: usize,
    starts: usize,
    round: Duration,
    alone: Duration,
    directories: usize,
    results: Results,
}

impl<'a> Driver<'a> {
    fn new(bench: &'a Bench, is_quick: bool, ostler: String) -> Outcome<Self> {
        raise_open_files()?;
        let (rounds, starts, round_s) = if is_quick { (2, 2, 1.0) } else { (6, 4, 2.0) };
        let results = Results {
            ostler,
            machine: description(),
            load_before: load(),
            round_s,
            generator_share_max: 0.0,
            compared: vec![],
            absent: vec![],
        };
        let round = Duration::from_secs_f64(round_s);
        Ok(Self { bench, rounds, starts, round, alone: round / 2, directories: 0, results })
    }

    async fn measure(&mut self, found: BTreeMap<String, Found>, filter: Option<&str>) {
        let is_wanted = |name: &str| filter.is_none_or(|filter| name.to_lowercase().contains(filter));
        for peer in PEERS.into_iter().filter(|peer| is_wanted(peer.name)) {
            eprintln!("==> {}", peer.name);
            let reason = match found.get(peer.name) {
                Some(Found::Installed(installed)) => match self.one(peer, installed).await {
                    Ok(compared) => {
                        self.results.compared.push(compared);
                        continue;
                    }
                    Err(error) => format!("not measured: {error}"),
                },
                Some(Found::Missing { missing }) => format!("not installed: {missing}"),
                None => "not installed: the installer does not know it".to_owned(),
            };
            eprintln!("    {reason}");
            self.results.absent.push(Absent { name: peer.name.to_owned(), reason });
        }
        let known = NOT_YET.into_iter().filter(|(name, _)| is_wanted(name));
        self.results.absent.extend(known.map(|(name, reason)| Absent { name: name.into(), reason: reason.into() }));
    }

    async fn one(&mut self, peer: &Peer, installed: &Installed) -> Outcome<Compared> {
        let mut compared = Compared {
            name: peer.name.to_owned(),
            version: installed.version.clone(),
            durability: peer.durability.to_owned(),
            evidence: peer.evidence.to_owned(),
            figures: vec![],
            fsync_us: vec![],
            others_share: vec![],
        };
        self.starts(peer, installed, &mut compared).await?;
        match peer.work {
            Work::Runs { request, end } => {
                let processes = self.start(peer, installed).await?;
                let address = processes.address;
                let request = Box::new(move |client, number| request(address, client, number));
                let side = Side::new(address, processes.pids(), request, end);
                let outcome = self.runs(side, &mut compared).await;
                outcome.map_err(|error| format!("{error}; it printed: {}", processes.log_end()))?;
            }
            Work::Publish => {
                let processes = self.start(peer, installed).await?;
                let writers = Writers::of_jetstream(processes.address, processes.pids()).await?;
                self.messages(writers, &mut compared).await?;
            }
        }
        Ok(compared)
    }

    async fn start(&mut self, peer: &Peer, installed: &Installed) -> Outcome<Processes> {
        let directory = self.bench.scratch().join(format!("peer-{}", self.directories));
        self.directories += 1;
        fs::create_dir(&directory)?;
        Processes::start((peer.plan)(installed, &directory)?, &directory).await
    }

    /// How soon each side is ready, and its memory before the first run. Ours is on the embedded store.
    async fn starts(&mut self, peer: &Peer, installed: &Installed, compared: &mut Compared) -> Outcome<()> {
        for number in 0..self.starts {
            let mut sides = [Started::default(); 2];
            for is_ours in [number % 2 == 0, number % 2 == 1] {
                sides[usize::from(is_ours)] = if is_ours {
                    let server = self.bench.serve(&self.bench.directory(Engine::Sqlite))?;
                    let started = Started::settle(server.ready_after, &[server.pid()]).await?;
                    server.stop()?;
                    started
                } else {
                    let processes = self.start(peer, installed).await?;
                    Started::settle(processes.ready_after, &processes.pids()).await?
                };
            }
            let [theirs, ours] = sides;
            eprintln!(
                "    start {}: ready after {:.0} ms (ours {:.0}), {:.0} MiB resident (ours {:.0})",
                number + 1,
                theirs.ready_ms,
                ours.ready_ms,
                theirs.rss_mib,
                ours.rss_mib
            );
            for (metric, ours, theirs) in [
                (Metric::ReadyMs, ours.ready_ms, theirs.ready_ms),
                (Metric::RssMib, ours.rss_mib, theirs.rss_mib),
                (Metric::AnonymousMib, ours.anonymous_mib, theirs.anonymous_mib),
            ] {
                compared.add(metric, table::SQLITE, Pair { ours, theirs });
            }
        }
        Ok(())
    }

    async fn runs(&mut self, theirs: Side<'_>, compared: &mut Compared) -> Outcome<()> {
        let [sqlite, postgres] = self.serve_both()?;
        let postmaster = self.bench.postmaster().await?;
        let mut sides =
            [our_side(&sqlite, vec![sqlite.pid()]), theirs, our_side(&postgres, vec![postgres.pid(), postmaster])];
        for round in 0..self.rounds {
            let fsync_us = sync_us(self.bench.scratch())?;
            let (mut together, mut alone) = ([const { None }; 3], [const { None }; 3]);
            for index in order(round) {
                together[index] = Some(sides[index].round(CLIENTS, self.round).await?);
                alone[index] = Some(sides[index].round(1, self.alone).await?);
            }
            let (Some(together), Some(alone)) = (all(together), all(alone)) else { continue };
            self.note(round, fsync_us, &together, compared);
            for (index, engine) in ENGINES {
                let pair = |of: &[Throughput; 3], value: fn(&Throughput) -> f64| Pair {
                    ours: value(&of[index]),
                    theirs: value(&of[PEER]),
                };
                compared.add(Metric::RunsPerS, engine, pair(&together, |of| of.per_s));
                compared.add(Metric::CpuMsPerRun, engine, pair(&together, |of| of.cpu_ms));
                compared.add(Metric::AloneP50Ms, engine, pair(&alone, |of| of.p50_ms));
            }
        }
        drop(sides);
        sqlite.stop()?;
        postgres.stop()
    }

    async fn messages(&mut self, theirs: Writers, compared: &mut Compared) -> Outcome<()> {
        let [sqlite, postgres] = self.serve_both()?;
        let postmaster = self.bench.postmaster().await?;
        let mut sides = [
            Writers::of_ostler(&sqlite, vec![sqlite.pid()]).await?,
            theirs,
            Writers::of_ostler(&postgres, vec![postgres.pid(), postmaster]).await?,
        ];
        for round in 0..self.rounds {
            let fsync_us = sync_us(self.bench.scratch())?;
            let mut together = [const { None }; 3];
            for index in order(round) {
                together[index] = Some(sides[index].round(self.round).await?);
            }
            let Some(together) = all(together) else { continue };
            self.note(round, fsync_us, &together, compared);
            for (index, engine) in ENGINES {
                let pair = |value: fn(&Throughput) -> f64| Pair {
                    ours: value(&together[index]),
                    theirs: value(&together[PEER]),
                };
                compared.add(Metric::MessagesPerS, engine, pair(|of| of.per_s));
                compared.add(Metric::CpuUsPerMessage, engine, pair(|of| of.cpu_ms * 1e3));
            }
        }
        drop(sides);
        sqlite.stop()?;
        postgres.stop()
    }

    fn serve_both(&self) -> Outcome<[Server; 2]> {
        let serve = |engine| self.bench.place(engine).and_then(|place| self.bench.serve(&place));
        Ok([serve(Engine::Sqlite)?, serve(Engine::Postgres)?])
    }

    /// Prints a round, and keeps what belongs to no figure.
    fn note(&mut self, round: usize, fsync_us: f64, together: &[Throughput; 3], compared: &mut Compared) {
        compared.fsync_us.push(fsync_us);
        let others = together.iter().map(|side| side.others_share).fold(0.0, f64::max);
        compared.others_share.push(others);
        for side in together {
            self.results.generator_share_max = self.results.generator_share_max.max(side.generator_share);
        }
        eprintln!(
            "    round {}: sync {fsync_us:.0} µs, others {:.0} %; {:.0}/s, ours {:.0}/s on SQLite and {:.0}/s on Postgres",
            round + 1,
            others * 100.0,
            together[PEER].per_s,
            together[SQLITE].per_s,
            together[POSTGRES].per_s
        );
    }
}

#[derive(Clone, Copy, Default)]
struct Started {
    ready_ms: f64,
    rss_mib: f64,
    anonymous_mib: f64,
}

impl Started {
    async fn settle(ready_after: Duration, pids: &[u32]) -> Outcome<Self> {
        sleep(SETTLE).await;
        let mut started = Self { ready_ms: ready_after.as_secs_f64() * 1e3, ..Self::default() };
        for pid in pids {
            for member in tree(*pid)? {
                // A child that has just ended has no memory.
                let (Ok(rss), Ok(anonymous)) = (rss_mib(member), anonymous_mib(member)) else { continue };
                started.rss_mib += rss;
                started.anonymous_mib += anonymous;
            }
        }
        Ok(started)
    }
}

/// Every client has a thread of its own, and each message in it makes a run that is followed in the same response.
fn our_side(server: &Server, pids: Vec<u32>) -> Side<'_> {
    let request = Box::new(move |client: usize, number: usize| {
        let thread = format!("{client:08x}-0000-4000-8000-000000000000");
        message(server, &thread, number, true)
    });
    Side::new(server.address, pids, request, SUCCESS)
}

fn all<T>(values: [Option<T>; 3]) -> Option<[T; 3]> {
    let [Some(first), Some(second), Some(third)] = values else { return None };
    Some([first, second, third])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_is_always_between_the_engines() {
        let rounds: Vec<[usize; 3]> = (0..4).map(order).collect();
        assert_eq!(rounds, [[0, 1, 2], [2, 1, 0], [0, 1, 2], [2, 1, 0]]);
        // Nothing is between the two of a pair, or one of them would be measured at another time.
        let beside =
            |index| rounds.iter().all(|of| of.windows(2).any(|pair| pair.contains(&index) && pair.contains(&PEER)));
        assert!(beside(SQLITE) && beside(POSTGRES));
    }

    #[test]
    fn the_installer_prints_where_a_peer_is_or_why_it_is_missing() {
        let json = r#"{"a":{"version":"1","files":{"server":"/s"}},"b":{"missing":"no network"}}"#;
        let found: BTreeMap<String, Found> = serde_json::from_str(json).unwrap();
        assert!(matches!(&found["a"], Found::Installed(installed) if installed.version == "1"));
        assert_eq!(found["b"], Found::Missing { missing: "no network".into() });
    }

    #[test]
    fn names_of_peers_are_different() {
        let mut names: Vec<&str> = PEERS.iter().map(|peer| peer.name).chain(NOT_YET.map(|(name, _)| name)).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PEERS.len() + NOT_YET.len());
    }

    #[test]
    fn options_of_a_comparison_are_recognized_by_their_names() {
        let parse = |line: &str| Options::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert!(parse("--ostler o --postgres-url u append").is_none());
        let options = parse("--peers p --ostler o --postgres-url u --quick Rest").unwrap().unwrap();
        assert_eq!(options.filter.as_deref(), Some("rest"));
        assert!(matches!(options.source, Source::Measure { is_quick: true, .. }));
        assert!(matches!(parse("--peers-measured m --docs d").unwrap().unwrap().source, Source::Measured(_)));
        assert!(parse("--peers p --ostler o").unwrap().is_err());
        assert!(parse("--peers").unwrap().is_err());
    }
}
