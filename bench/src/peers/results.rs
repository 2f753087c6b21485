//! What a comparison has measured, as it is stored: the value of both sides in each round. Everything that is shown is
//! computed from that. Only values of the same round are compared, because a shared machine is slower in one minute than
//! in the next.

use serde::{Deserialize, Serialize};

pub(crate) use crate::report::Quartiles;
use crate::report::median;

/// A quiet machine has less than this.
const OTHERS_SHARE_MAX: f64 = 0.1;

/// A figure that both sides have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Metric {
    RunsPerS,
    CpuMsPerRun,
    AloneP50Ms,
    MessagesPerS,
    CpuUsPerMessage,
    ReadyMs,
    RssMib,
    AnonymousMib,
}

impl Metric {
    fn is_better_when_higher(self) -> bool {
        matches!(self, Self::RunsPerS | Self::MessagesPerS)
    }
}

/// One round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pair {
    pub ours: f64,
    pub theirs: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub metric: Metric,
    /// The engine that Ostler ran on.
    pub engine: String,
    pub pairs: Vec<Pair>,
}

impl Figure {
    pub(crate) fn ours(&self) -> f64 {
        median(self.pairs.iter().map(|pair| pair.ours))
    }

    pub(crate) fn theirs(&self) -> f64 {
        median(self.pairs.iter().map(|pair| pair.theirs))
    }

    /// How many times better Ostler is, round by round: above 1 it is ahead. Rounds in which a side has no measurable
    /// value do not count. `None` if no round is left.
    pub(crate) fn factor(&self) -> Option<Quartiles> {
        let pairs = self.pairs.iter().filter(|pair| pair.ours > 0.0 && pair.theirs > 0.0);
        let is_rate = self.metric.is_better_when_higher();
        Quartiles::of(pairs.map(|pair| if is_rate { pair.ours / pair.theirs } else { pair.theirs / pair.ours }))
    }
}

/// A peer that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Compared {
    pub name: String,
    pub version: String,
    pub durability: String,
    pub evidence: String,
    pub figures: Vec<Figure>,
    /// Microseconds of a sync of the disk, before each round.
    pub fsync_us: Vec<f64>,
    /// The share of the machine's processors that programs of neither side used, in each round.
    pub others_share: Vec<f64>,
}

impl Compared {
    /// `None` if it was not measured.
    pub(crate) fn figure(&self, metric: Metric, engine: &str) -> Option<&Figure> {
        let mut figures = self.figures.iter().filter(|figure| !figure.pairs.is_empty());
        figures.find(|figure| figure.metric == metric && figure.engine == engine)
    }

    /// Adds a round to a figure.
    pub(crate) fn add(&mut self, metric: Metric, engine: &str, pair: Pair) {
        let existing = self.figures.iter_mut().find(|figure| figure.metric == metric && figure.engine == engine);
        match existing {
            Some(figure) => figure.pairs.push(pair),
            None => self.figures.push(Figure { metric, engine: engine.to_owned(), pairs: vec![pair] }),
        }
    }
}

/// A peer that was not measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Absent {
    pub name: String,
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Results {
    /// What `ostler --version` prints.
    pub ostler: String,
    pub machine: String,
    /// Processes that wanted to run in the minute before the first round.
    pub load_before: f64,
    /// Seconds of each round under load.
    pub round_s: f64,
    /// The generator's CPU time as a share of the wall-clock time, at its highest. At 1 it limits the figures.
    pub generator_share_max: f64,
    pub compared: Vec<Compared>,
    pub absent: Vec<Absent>,
}

impl Results {
    /// Whether other programs used so much of the machine, in the middle of all rounds, that the figures say more about
    /// them than about the servers.
    pub(crate) fn is_disturbed(&self) -> bool {
        let shares = self.compared.iter().flat_map(|peer| peer.others_share.iter().copied());
        Quartiles::of(shares).is_some_and(|shares| shares.median > OTHERS_SHARE_MAX)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn figure(metric: Metric, pairs: &[(f64, f64)]) -> Figure {
        let pairs = pairs.iter().map(|&(ours, theirs)| Pair { ours, theirs }).collect();
        Figure { metric, engine: "SQLite".into(), pairs }
    }

    /// Two peers, one of them without most figures, and one that is absent.
    pub(crate) fn example() -> Results {
        let compared = |name: &str, figures| Compared {
            name: name.into(),
            version: "1.2".into(),
            durability: "nothing".into(),
            evidence: "strace".into(),
            figures,
            fsync_us: vec![50.0, 60.0, 400.0],
            others_share: vec![0.0, 0.25, 0.5],
        };
        let runs = figure(Metric::RunsPerS, &[(100.0, 50.0), (100.0, 40.0), (100.0, 25.0)]);
        let cpu = figure(Metric::CpuMsPerRun, &[(0.5, 2.0), (0.5, 2.0), (0.5, 2.0)]);
        let rss = figure(Metric::RssMib, &[(40.0, 30.0)]);
        let messages = figure(Metric::MessagesPerS, &[(9_000.0, 3_000.0)]);
        Results {
            ostler: "ostler 0.1.0".into(),
            machine: "2 cores".into(),
            load_before: 0.1,
            round_s: 2.0,
            generator_share_max: 0.5,
            compared: vec![compared("echo", vec![runs, cpu, rss]), compared("queue", vec![messages])],
            absent: vec![Absent { name: "other".into(), reason: "it does not start | here".into() }],
        }
    }

    #[test]
    fn only_values_of_the_same_round_are_compared() {
        // The machine is ten times slower in the second round, for both.
        let rate = figure(Metric::RunsPerS, &[(200.0, 100.0), (20.0, 10.0), (200.0, 100.0)]);
        assert_eq!(rate.factor(), Some(Quartiles { lower: 2.0, median: 2.0, upper: 2.0 }));
        let time = figure(Metric::AloneP50Ms, &[(1.0, 3.0), (10.0, 30.0)]);
        assert_eq!(time.factor().map(|factor| factor.median), Some(3.0));
        let not_measurable = figure(Metric::CpuMsPerRun, &[(0.0, 1.0)]);
        assert_eq!(not_measurable.factor(), None);
    }

    #[test]
    fn rounds_are_added_to_their_figure() {
        let mut compared = example().compared.remove(0);
        compared.add(Metric::RunsPerS, "SQLite", Pair { ours: 1.0, theirs: 2.0 });
        compared.add(Metric::RunsPerS, "Postgres", Pair { ours: 1.0, theirs: 2.0 });
        assert_eq!(compared.figure(Metric::RunsPerS, "SQLite").unwrap().pairs.len(), 4);
        assert_eq!(compared.figure(Metric::RunsPerS, "Postgres").unwrap().pairs.len(), 1);
        assert!(compared.figure(Metric::ReadyMs, "SQLite").is_none());
    }

    #[test]
    fn a_busy_machine_is_noticed() {
        let mut results = example();
        assert!(results.is_disturbed());
        results.compared.iter_mut().for_each(|peer| peer.others_share = vec![0.02, 0.03, 0.5]);
        assert!(!results.is_disturbed());
    }

    #[test]
    fn what_is_stored_can_be_read_again() {
        let json = serde_json::to_string(&example()).unwrap();
        assert_eq!(serde_json::from_str::<Results>(&json).unwrap(), example());
        assert!(json.contains(r#""metric":"runs_per_s""#), "{json}");
    }
}
