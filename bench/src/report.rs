//! Figures, with the spread of their rounds, and the table that compares them with their targets.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::outcome::Outcome;
use crate::targets::{Verdict, target};

/// The generator's CPU time as a share of the server's, at its highest.
pub(crate) const GENERATOR_SHARE: &str = "generator.cpu_share_max";

#[derive(Default)]
pub(crate) struct Report {
    figures: BTreeMap<String, f64>,
    /// Of the figures that were measured in rounds.
    spreads: BTreeMap<String, Quartiles>,
    notes: Vec<String>,
    /// What went wrong without ending the measurement.
    failures: Vec<String>,
}

impl Report {
    pub(crate) fn figure(&mut self, name: impl Into<String>, value: f64) {
        self.figures.insert(name.into(), value);
    }

    /// Adds a figure with one value per round: the median, whose spread the table shows.
    pub(crate) fn rounds(&mut self, name: impl Into<String>, values: impl IntoIterator<Item = f64>) {
        let Some(quartiles) = Quartiles::of(values) else { return };
        let name = name.into();
        self.spreads.insert(name.clone(), quartiles);
        self.figures.insert(name, quartiles.median);
    }

    /// A sentence under the table.
    pub(crate) fn note(&mut self, text: String) {
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// The measurement continues, but its outcome is an error.
    pub(crate) fn failure(&mut self, text: String) {
        self.failures.push(text);
    }

    /// An error if something has failed, for after the table.
    pub(crate) fn outcome(&self) -> Outcome<()> {
        if self.failures.is_empty() { Ok(()) } else { Err(self.failures.join("; ").into()) }
    }

    /// Remembers what the load cost beside what the server used for it.
    pub(crate) fn generator_share(&mut self, share: f64) {
        let highest = self.figures.entry(GENERATOR_SHARE.into()).or_insert(0.0);
        *highest = highest.max(share);
    }

    pub(crate) fn table(&self) -> String {
        let mut out = format!("\n{:<42} {:>12}  {:<17} {:<9} verdict\n", "figure", "value", "quartiles", "target");
        let (mut missed, mut noisy) = (vec![], vec![]);
        for (name, value) in &self.figures {
            let spread = self.spreads.get(name);
            let quartiles = spread
                .map(|of| format!("{}..{}", format_figure(of.lower), format_figure(of.upper)))
                .unwrap_or_default();
            let rounds = spread.copied().unwrap_or(Quartiles { lower: *value, median: *value, upper: *value });
            let target = target(name);
            let verdict = target.map(|target| target.verdict(rounds));
            if verdict.is_some_and(|verdict| !verdict.is_met) {
                missed.push(name.as_str());
            }
            if verdict.is_some_and(|verdict| verdict.is_noisy) {
                noisy.push(name.as_str());
            }
            let wanted = target.map(|target| target.text()).unwrap_or_default();
            let verdict = verdict.map_or("", Verdict::name);
            let line = format!("{name:<42} {:>12}  {quartiles:<17} {wanted:<9} {verdict}", format_figure(*value));
            let _ = writeln!(out, "{}", line.trim_end());
        }
        out.push('\n');
        for note in &self.notes {
            let _ = writeln!(out, "  {note}");
        }
        if missed.is_empty() {
            out += "  every target met\n";
        }
        for (title, names) in [("missed", missed), ("noisy", noisy)] {
            if !names.is_empty() {
                let _ = writeln!(out, "  {title}: {}", names.join(", "));
            }
        }
        out
    }

    /// A flat map from figure name to number.
    pub(crate) fn json(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string_pretty(&self.figures)? + "\n")
    }
}

fn format_figure(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

/// The quartiles of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Quartiles {
    pub lower: f64,
    pub median: f64,
    pub upper: f64,
}

impl Quartiles {
    /// `None` without values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        let [lower, median, upper] = [0.25, 0.5, 0.75].map(|share| {
            let position = share * last as f64;
            let (below, above) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
            below + (above - below) * position.fract()
        });
        Some(Self { lower, median, upper })
    }
}

/// The middle value; of two in the middle, the mean.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    assert!(!sorted.is_empty(), "a median of nothing");
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// The value below which `percent` of the others lie.
pub(crate) fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_on_the_wrong_side_of_its_target_fails() {
        let mut report = Report::default();
        report.figure("start.ready_ms", 60.0);
        report.figure("append.sqlite.ratio_to_bare", 0.79);
        report.figure("append.sqlite.rows_per_s", 50_000.0);
        let table = report.table();
        assert!(table.contains("missed: append.sqlite.ratio_to_bare\n"), "{table}");
        assert!(!table.contains("noisy") && !table.contains("every target met"), "{table}");
    }

    #[test]
    fn a_figure_whose_rounds_disagree_about_its_target_is_marked_as_noisy() {
        let mut report = Report::default();
        report.rounds("append.sqlite.ratio_to_bare", [0.5, 0.9, 1.1]);
        report.rounds("append.postgres.ratio_to_bare", [0.85, 0.9, 0.95]);
        report.rounds("mesh.sqlite.ratio_to_bare", []);
        let table = report.table();
        assert!(table.contains("0.700..1.000"), "{table}");
        assert!(table.contains("  every target met\n  noisy: append.sqlite.ratio_to_bare\n"), "{table}");
        assert!(!table.contains("missed") && !table.contains("mesh"), "{table}");
        let json = report.json().unwrap();
        assert!(json.contains("\"append.sqlite.ratio_to_bare\": 0.9"), "{json}");
    }

    #[test]
    fn a_noisy_figure_whose_median_misses_its_target_is_missed() {
        let mut report = Report::default();
        report.rounds("append.sqlite.ratio_to_bare", [0.5, 0.7, 1.1]);
        let table = report.table();
        let name = "append.sqlite.ratio_to_bare";
        assert!(table.contains(&format!("  missed: {name}\n  noisy: {name}\n")), "{table}");
        assert!(!table.contains("every target met"), "{table}");
    }

    #[test]
    fn a_failure_is_the_outcome_of_the_measurement() {
        let mut report = Report::default();
        assert!(report.outcome().is_ok());
        report.failure("2 calls failed".into());
        assert_eq!(report.outcome().unwrap_err().to_string(), "2 calls failed");
    }

    #[test]
    fn quartiles_are_interpolated() {
        let quartiles = Quartiles::of([4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(quartiles, Quartiles { lower: 1.75, median: 2.5, upper: 3.25 });
        assert_eq!(Quartiles::of([]), None);
    }

    #[test]
    fn the_middle_is_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(percentile(&[1.0, 2.0, 3.0, 4.0], 50), 3.0);
        assert_eq!(percentile(&[1.0], 99), 1.0);
    }
}
