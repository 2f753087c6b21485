//! What was done and what was found: counts of faults and checked facts, the bound that follows from them, and the table
//! and the JSON file that say so.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::resources::Engine;

/// With n faults and no violation, the probability of a violation per fault is below 3/n with 95 % confidence: it is the
/// p for which (1 - p)^n = 0.05, and -ln 0.05 is 2.996.
const RULE_OF_THREE: f64 = 2.995_732;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    ServerKill,
    RunnerKill,
    PostgresKill,
    PowerCut,
    PostgresOutage,
    IoError,
    DiskFull,
    ClockJump,
    ReplicaPause,
    HostileAgent,
    FollowerReturn,
    Replay,
}

impl Fault {
    pub(crate) const ALL: [Self; 12] = [
        Self::ServerKill,
        Self::RunnerKill,
        Self::PostgresKill,
        Self::PowerCut,
        Self::PostgresOutage,
        Self::IoError,
        Self::DiskFull,
        Self::ClockJump,
        Self::ReplicaPause,
        Self::HostileAgent,
        Self::FollowerReturn,
        Self::Replay,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ServerKill => "kills of the server",
            Self::RunnerKill => "kills of a runner",
            Self::PostgresKill => "kills of Postgres",
            Self::PowerCut => "power cuts",
            Self::PostgresOutage => "other Postgres faults",
            Self::IoError => "I/O errors",
            Self::DiskFull => "full disks",
            Self::ClockJump => "clock jumps",
            Self::ReplicaPause => "paused replicas",
            Self::HostileAgent => "hostile agents",
            Self::FollowerReturn => "returning followers",
            Self::Replay => "replays of a log",
        }
    }
}

/// Acknowledged facts that were compared with the store.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Facts {
    pub events: u64,
    pub runs: u64,
    pub messages: u64,
    /// Prompts and votes of the daemon.
    pub prompts: u64,
    pub grants: u64,
    pub followed: u64,
}

impl Facts {
    fn rows(&self) -> [(&'static str, u64); 6] {
        [
            ("acknowledged events", self.events),
            ("acknowledged runs", self.runs),
            ("acknowledged messages", self.messages),
            ("acknowledged prompts and votes", self.prompts),
            ("acknowledged grants", self.grants),
            ("events seen by followers", self.followed),
        ]
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.runs += other.runs;
        self.messages += other.messages;
        self.prompts += other.prompts;
        self.grants += other.grants;
        self.followed += other.followed;
    }
}

/// A violation, with what repeats its round.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub engine: Engine,
    pub probe: &'static str,
    pub seed: u64,
    pub what: String,
}

/// The result of one engine's campaign, or of one round of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub rounds: u64,
    pub faults: BTreeMap<Fault, u64>,
    pub facts: Facts,
    pub violations: Vec<Violation>,
    /// Runs that a probe created beside the load.
    pub hidden_runs: usize,
    /// What this machine cannot do.
    pub not_done: Vec<String>,
}

impl Tally {
    pub(crate) fn count(&mut self, fault: Fault, times: u64) {
        *self.faults.entry(fault).or_default() += times;
    }

    pub(crate) fn of(&self, fault: Fault) -> u64 {
        self.faults.get(&fault).copied().unwrap_or(0)
    }

    pub(crate) fn kills(&self) -> u64 {
        self.of(Fault::ServerKill) + self.of(Fault::RunnerKill) + self.of(Fault::PostgresKill)
    }

    /// Faults that can lose or repeat an acknowledged fact: what the bound is about.
    pub(crate) fn disturbances(&self) -> u64 {
        let others = [
            Fault::PowerCut,
            Fault::PostgresOutage,
            Fault::IoError,
            Fault::DiskFull,
            Fault::ClockJump,
            Fault::ReplicaPause,
        ];
        self.kills() + others.iter().map(|fault| self.of(*fault)).sum::<u64>()
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.rounds += other.rounds;
        other.faults.into_iter().for_each(|(fault, times)| self.count(fault, times));
        self.facts.add(&other.facts);
        self.violations.extend(other.violations);
        for line in other.not_done {
            if !self.not_done.contains(&line) {
                self.not_done.push(line);
            }
        }
    }

    fn json(&self) -> Value {
        let faults: BTreeMap<&str, u64> = Fault::ALL.iter().map(|fault| (fault.name(), self.of(*fault))).collect();
        let facts: BTreeMap<&str, u64> = self.facts.rows().into_iter().collect();
        let violations = self.violations.iter().map(|violation| {
            json!({"engine": violation.engine.name(), "probe": violation.probe, "seed": violation.seed, "what": violation.what})
        });
        json!({"rounds": self.rounds, "faults": faults, "kills": self.kills(), "facts": facts,
            "disturbances": self.disturbances(), "bound95": bound(self.disturbances()),
            "violations": violations.collect::<Vec<_>>(), "notDone": self.not_done})
    }
}

/// The 95 % upper bound on violations per fault after this many without one.
pub(crate) fn bound(faults: u64) -> Option<f64> {
    (faults > 0).then(|| RULE_OF_THREE / faults as f64)
}

pub(crate) struct Report {
    pub seed: u64,
    pub took: Duration,
    pub engines: Vec<(Engine, Tally)>,
}

impl Report {
    pub(crate) fn violations(&self) -> usize {
        self.engines.iter().map(|(_, tally)| tally.violations.len()).sum()
    }

    fn total(&self) -> Tally {
        let mut total = Tally::default();
        self.engines.iter().for_each(|(_, tally)| total.add(tally.clone()));
        total
    }

    pub(crate) fn json(&self) -> Value {
        let engines: BTreeMap<&str, Value> =
            self.engines.iter().map(|(engine, tally)| (engine.name(), tally.json())).collect();
        json!({"seed": self.seed, "seconds": self.took.as_secs(), "engines": engines, "total": self.total().json()})
    }

    /// The table of `docs/reliability.md`.
    pub(crate) fn markdown(&self) -> String {
        let columns: Vec<(&str, Tally)> =
            self.engines.iter().map(|(engine, tally)| (engine.name(), tally.clone())).collect();
        let mut columns = columns;
        if columns.len() > 1 {
            columns.push(("together", self.total()));
        }
        let mut out = format!("| seed {}, {} min |", self.seed, self.took.as_secs().div_ceil(60));
        columns.iter().for_each(|(name, _)| out.push_str(&format!(" {name} |")));
        out.push_str("\n|---|");
        columns.iter().for_each(|_| out.push_str("--:|"));
        let mut row = |name: &str, value: &dyn Fn(&Tally) -> String| {
            out.push_str(&format!("\n| {name} |"));
            columns.iter().for_each(|(_, tally)| out.push_str(&format!(" {} |", value(tally))));
        };
        row("rounds", &|tally| tally.rounds.to_string());
        for fault in Fault::ALL {
            row(fault.name(), &|tally| tally.of(fault).to_string());
        }
        row("**kills in all**", &|tally| tally.kills().to_string());
        let names: Vec<&str> = Facts::default().rows().iter().map(|(name, _)| *name).collect();
        for (at, name) in names.into_iter().enumerate() {
            row(name, &|tally| tally.facts.rows()[at].1.to_string());
        }
        row("**violations**", &|tally| tally.violations.len().to_string());
        row("faults that can lose something (n)", &|tally| tally.disturbances().to_string());
        row("95 % bound on violations per fault (3/n)", &|tally| match (
            tally.violations.len(),
            bound(tally.disturbances()),
        ) {
            (0, Some(bound)) => format!("{bound:.5}"),
            _ => "–".into(),
        });
        let not_done: Vec<String> = self
            .engines
            .iter()
            .flat_map(|(engine, tally)| tally.not_done.iter().map(move |line| (engine, line)))
            .map(|(engine, line)| format!("\nNOT DONE: {}: {line}\n", engine.name()))
            .collect();
        out + "\n" + &not_done.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_the_rule_of_three() {
        assert_eq!(bound(0), None);
        for n in [300_u64, 1_000, 10_000] {
            let p = bound(n).unwrap();
            assert!((3.0 / n as f64 - p).abs() < 0.01 * p);
            // At the bound, n faults in a row without a violation have a probability of about 5 %.
            assert!(((1.0 - p).powi(n as i32) - 0.05).abs() < 0.001);
        }
    }

    #[test]
    fn a_table_has_a_column_per_engine_and_their_sum() {
        let mut sqlite = Tally { rounds: 2, ..Tally::default() };
        sqlite.count(Fault::ServerKill, 3);
        sqlite.count(Fault::RunnerKill, 1);
        let mut postgres = Tally { rounds: 1, ..Tally::default() };
        postgres.count(Fault::PostgresOutage, 5);
        let report = Report {
            seed: 7,
            took: Duration::from_secs(61),
            engines: vec![(Engine::Sqlite, sqlite), (Engine::Postgres, postgres)],
        };
        let table = report.markdown();
        assert!(table.starts_with("| seed 7, 2 min | sqlite | postgres | together |\n|---|--:|--:|--:|\n"), "{table}");
        assert!(table.contains("\n| rounds | 2 | 1 | 3 |\n"), "{table}");
        assert!(table.contains("\n| **kills in all** | 4 | 0 | 4 |\n"), "{table}");
        assert!(table.contains("\n| **violations** | 0 | 0 | 0 |\n"), "{table}");
        assert!(table.contains("\n| faults that can lose something (n) | 4 | 5 | 9 |\n"), "{table}");
        assert_eq!(report.json()["total"]["disturbances"], 9);
    }
}
