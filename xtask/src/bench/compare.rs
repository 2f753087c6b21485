//! Compares the figures of two revisions that were measured in alternating rounds. Pure: it reads no files and runs no
//! programs. Only figures of the same round are compared with each other, because a shared machine is slower in one
//! minute than in the next.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// A change of more than this factor counts. If the values vary by 2 % with normal noise, a regression of 5 % is seen in 74 % of
/// all comparisons of 6 rounds, and in 89 % of those of 12.
const CHANGE_FACTOR: f64 = 1.03;
/// Half the width of the confidence interval, in quartile distances divided by the root of the number of rounds. With
/// normal noise, it contains the true median in 71 % of all cases with 5 rounds, 78 % with 6, 85 % with 12 and 87 % with 16.
const INTERVAL_WIDTH: f64 = 1.57;
/// Fewer rounds do not allow a verdict.
pub(crate) const ROUNDS_MIN: usize = 5;
/// One round of so many may contradict the others. On a shared machine some rounds are disturbed.
const ROUNDS_PER_OUTLIER: usize = 8;
/// Microseconds of an `fdatasync`, measured by the benchmark at the start of each run.
const FSYNC: &str = "fsync.us";
/// A round in which the two sync times differ by more than this factor is marked.
const DISK_FACTOR: f64 = 1.5;
/// Names before the first dot that describe the machine or the load generator instead of the server.
const CONTEXT_GROUPS: [&str; 3] = ["fsync", "generator", "machine"];
/// Resident memory, by the name after the last dot. It differs between two starts of the same program by the pages of its file
/// that the kernel maps around a page fault. Anonymous memory does not, and has a verdict.
const RESIDENT: &str = "rss_mib";
/// Figures, by their names after the last dot, that are better when they are higher. Rates are, too.
const HIGHER_IS_BETTER: [&str; 7] = [
    "ratio_to_bare",
    "ratio_two_to_one",
    "replay_writer_ratio",
    "capabilities_ratio",
    "create_ratio",
    "health_ratio",
    "memory_ratio",
];

/// What one run of the benchmark wrote: a number for each name.
pub(crate) type Figures = BTreeMap<String, f64>;

/// One run of each revision, one directly after the other.
pub(crate) struct Round {
    pub base: Figures,
    pub current: Figures,
    pub is_base_first: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Direction {
    LowerIsBetter,
    HigherIsBetter,
    /// Shown without a verdict: not a property of the server alone.
    Context,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    Better,
    Same,
    Worse,
    TooNoisy,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Same => "same",
            Self::Worse => "worse",
            Self::TooNoisy => "too noisy",
        }
    }
}

/// A figure that both revisions have.
#[derive(Debug, PartialEq)]
struct Change {
    name: String,
    base: f64,
    current: f64,
    /// `None` if no round has a ratio.
    ratios: Option<Spread>,
    /// `None` for context.
    verdict: Option<Verdict>,
}

/// Order statistics of the ratios current / base of all rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    count: usize,
    /// The lowest without outliers.
    low: f64,
    lower_quartile: f64,
    median: f64,
    upper_quartile: f64,
    /// The highest without outliers.
    high: f64,
}

pub(crate) struct Comparison {
    changes: Vec<Change>,
    only_base: Vec<String>,
    only_current: Vec<String>,
}

/// Parses the flat JSON object that the benchmark writes.
pub(crate) fn parse(json: &str) -> Result<Figures, String> {
    serde_json::from_str(json).map_err(|e| format!("the figures are not an object of numbers: {e}"))
}

pub(crate) fn compare(rounds: &[Round]) -> Comparison {
    let names = |figures: fn(&Round) -> &Figures| -> BTreeSet<&String> {
        rounds.iter().flat_map(|round| figures(round).keys()).collect()
    };
    let (base, current) = (names(|round| &round.base), names(|round| &round.current));
    let changes = base.intersection(&current).map(|name| change(name, rounds)).collect();
    let only = |these: &BTreeSet<&String>, others| these.difference(others).map(|name| (*name).clone()).collect();
    Comparison { changes, only_base: only(&base, &current), only_current: only(&current, &base) }
}

fn change(name: &str, rounds: &[Round]) -> Change {
    let pairs = rounds.iter().filter_map(|round| Some((*round.base.get(name)?, *round.current.get(name)?)));
    let ratios = Spread::of(pairs.filter_map(|(base, current)| ratio(base, current)).collect());
    let middle = |figures: fn(&Round) -> &Figures| {
        let values = rounds.iter().filter_map(|round| figures(round).get(name).copied());
        Spread::of(values.collect()).map_or(f64::NAN, |spread| spread.median)
    };
    let (base, current) = (middle(|round| &round.base), middle(|round| &round.current));
    let judge = |lower_is_better| ratios.map_or(Verdict::TooNoisy, |ratios| ratios.verdict(lower_is_better));
    let verdict = match direction(name) {
        Direction::LowerIsBetter => Some(judge(true)),
        Direction::HigherIsBetter => Some(judge(false)),
        Direction::Context => None,
    };
    Change { name: name.to_owned(), base, current, ratios, verdict }
}

/// Current / base. `None` if one of them is zero or less, unless they are equal: a CPU time can be too short to measure.
fn ratio(base: f64, current: f64) -> Option<f64> {
    if base == current {
        return Some(1.0);
    }
    (base > 0.0 && current > 0.0).then(|| current / base)
}

fn direction(name: &str) -> Direction {
    let (group, _) = name.split_once('.').unwrap_or((name, ""));
    let (_, last) = name.rsplit_once('.').unwrap_or(("", name));
    // `bare` figures are measured without the server, and so is the time of a sync.
    let is_bare = last.starts_with("bare_") || last.contains("_bare_") || last.ends_with("sync_us");
    if CONTEXT_GROUPS.contains(&group) || last.starts_with("generator_") || last == RESIDENT || is_bare {
        Direction::Context
    } else if last.ends_with("per_s") || HIGHER_IS_BETTER.contains(&last) {
        Direction::HigherIsBetter
    } else {
        Direction::LowerIsBetter
    }
}

impl Spread {
    /// `None` without values.
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        let outliers = values.len() / ROUNDS_PER_OUTLIER;
        let (low, high) = (values[outliers], values[last - outliers]);
        let [lower_quartile, median, upper_quartile] = [0.25, 0.5, 0.75].map(|share| quantile(&values, share));
        Some(Self { count: values.len(), low, lower_quartile, median, upper_quartile, high })
    }

    /// The confidence interval of the median. It is narrower with more rounds, unlike the quartiles.
    fn interval(self) -> (f64, f64) {
        let distance = self.upper_quartile / self.lower_quartile;
        let factor = distance.powf(INTERVAL_WIDTH / (self.count as f64).sqrt());
        (self.median / factor, self.median * factor)
    }

    /// The same rounds, with base and current exchanged.
    fn inverse(self) -> Self {
        Self {
            count: self.count,
            low: 1.0 / self.high,
            lower_quartile: 1.0 / self.upper_quartile,
            median: 1.0 / self.median,
            upper_quartile: 1.0 / self.lower_quartile,
            high: 1.0 / self.low,
        }
    }

    /// A change needs a median beyond the limit, an interval that does not contain 1, and all rounds except outliers on the
    /// same side. The interval of a few noisy rounds often excludes 1 by chance, and the last condition detects most of
    /// these cases.
    fn verdict(self, lower_is_better: bool) -> Verdict {
        let cost = if lower_is_better { self } else { self.inverse() };
        let has_grown = |cost: Self| cost.median > CHANGE_FACTOR && cost.interval().0 > 1.0 && cost.low > 1.0;
        let (from, to) = cost.interval();
        if self.count < ROUNDS_MIN {
            Verdict::TooNoisy
        } else if has_grown(cost) {
            Verdict::Worse
        } else if has_grown(cost.inverse()) {
            Verdict::Better
        } else if to <= CHANGE_FACTOR && from >= 1.0 / CHANGE_FACTOR {
            Verdict::Same
        } else {
            Verdict::TooNoisy
        }
    }
}

/// The value at this share of a sorted list, interpolated between its neighbours.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let position = share * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
    below + (above - below) * position.fract()
}

impl Comparison {
    /// Names of the figures that are clearly worse.
    pub(crate) fn worse(&self) -> Vec<&str> {
        self.with(Verdict::Worse)
    }

    fn with(&self, verdict: Verdict) -> Vec<&str> {
        let matching = self.changes.iter().filter(|change| change.verdict == Some(verdict));
        matching.map(|change| change.name.as_str()).collect()
    }

    pub(crate) fn table(&self, base_name: &str) -> String {
        let mut out =
            format!("{:<42} {base_name:>12} {:>12} {:>8}  {:<15} verdict\n", "figure", "current", "ratio", "interval");
        for change in &self.changes {
            let (ratio, interval) = change.ratios.map_or(("-".to_owned(), "-".to_owned()), |ratios| {
                let (from, to) = ratios.interval();
                (format!("{:.3}", ratios.median), format!("{from:.3}..{to:.3}"))
            });
            let (base, current) = (format_figure(change.base), format_figure(change.current));
            let verdict = change.verdict.map_or("", Verdict::name);
            let line = format!("{:<42} {base:>12} {current:>12} {ratio:>8}  {interval:<15} {verdict}", change.name);
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out.push('\n');
        for verdict in [Verdict::Worse, Verdict::Better, Verdict::TooNoisy] {
            list(&mut out, verdict.name(), &self.with(verdict));
        }
        list(&mut out, &format!("only in {base_name}"), &self.only_base);
        list(&mut out, "only in current", &self.only_current);
        if self.worse().is_empty() {
            out.push_str("  no figure is clearly worse\n");
        }
        out
    }
}

fn list(out: &mut String, title: &str, names: &[impl AsRef<str>]) {
    if !names.is_empty() {
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        let _ = writeln!(out, "  {title}: {}", names.join(", "));
    }
}

/// The order of each round and the sync times measured in it, in microseconds. Wall-clock figures of a round in which
/// these differ much depend more on the disk than on the server.
pub(crate) fn rounds_table(rounds: &[Round], base_name: &str) -> String {
    let [base, current] = [base_name, "current"].map(|name| format!("{FSYNC} {name}"));
    let mut out = format!("{:<6} {:<9} {base:>20} {current:>20}\n", "round", "first");
    for (index, round) in rounds.iter().enumerate() {
        let first = if round.is_base_first { base_name } else { "current" };
        let fsync = [&round.base, &round.current].map(|figures| figures.get(FSYNC).copied());
        let [base, current] = fsync.map(|us| us.map_or("-".to_owned(), format_figure));
        let has_changed =
            matches!(fsync, [Some(base), Some(current)] if base.max(current) > DISK_FACTOR * base.min(current));
        let remark = if has_changed { "  disk speed changed" } else { "" };
        let _ = writeln!(out, "{:<6} {first:<9} {base:>20} {current:>20}{remark}", index + 1);
    }
    out
}

fn format_figure(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests;
