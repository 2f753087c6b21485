//! Figures, the targets some of them have, and how both are shown.

use std::collections::BTreeMap;
use std::fmt::Write;

enum Target {
    AtLeast(f64),
    AtMost(f64),
}

use Target::{AtLeast, AtMost};

const TARGETS: [(&str, Target); 51] = [
    ("agui.accept_p50_ms", AtMost(1.0)),
    ("agui.cpu_ms_per_run", AtMost(1.0)),
    ("agui.first_delta_lag_ms", AtMost(5.0)),
    ("agui.history_ratio_10k_to_10", AtMost(2.0)),
    ("append.postgres.cpu_us_per_event", AtMost(15.0)),
    ("append.postgres.ratio_to_bare", AtLeast(0.6)),
    ("append.sqlite.cpu_us_per_event", AtMost(25.0)),
    ("append.sqlite.ratio_to_bare", AtLeast(0.6)),
    ("codex.first_text_lag_ms", AtMost(30.0)),
    ("codex.turn_ratio_to_bare", AtMost(1.15)),
    ("consent.reauth_10k_s", AtMost(2.0)),
    ("daemon.capabilities_ratio", AtLeast(10.0)),
    ("daemon.create_ratio", AtLeast(50.0)),
    ("daemon.fan_out_ratio_64_to_8", AtMost(1.0)),
    ("daemon.frame_lag_ms", AtMost(3.0)),
    ("daemon.health_ratio", AtLeast(10.0)),
    ("daemon.memory_ratio", AtLeast(10.0)),
    ("follow.kib_per_follower", AtMost(16.0)),
    ("follow.p99_ms", AtMost(100.0)),
    ("follow.replay_writer_ratio", AtLeast(0.6)),
    ("generator.cpu_share_max", AtMost(1.0)),
    ("growth.ratio_max", AtMost(2.0)),
    ("idle.rss_mib", AtMost(30.0)),
    ("idle.sessions_10k_mib", AtMost(20.0)),
    ("kubernetes.api_calls_per_job", AtMost(3.0)),
    ("kubernetes.finished_jobs_anon_mib", AtMost(50.0)),
    ("kubernetes.request_ratio", AtMost(1.5)),
    ("manifest.check_cpu_ms", AtMost(50.0)),
    ("manifest.diff_cpu_ms", AtMost(20.0)),
    ("manifest.hostile_check_cpu_ms", AtMost(75.0)),
    ("manifest.hostile_diff_cpu_ms", AtMost(30.0)),
    ("mesh.cpu_us_per_send", AtMost(120.0)),
    ("mesh.idle_10k_mib", AtMost(400.0)),
    ("mesh.login_cpu_ms", AtMost(5.0)),
    ("refuse.block_ms_max", AtMost(5.0)),
    ("refuse.cpu_ms_per_4mb_body", AtMost(5.0)),
    ("replicas.ratio_two_to_one", AtLeast(0.9)),
    ("result.ratio_100k_to_100", AtMost(2.0)),
    ("run.postgres.cpu_ms_per_run", AtMost(0.8)),
    ("run.sqlite.cpu_ms_per_run", AtMost(0.8)),
    ("sessions.list_ratio_100k_to_100", AtMost(2.0)),
    ("soak.anonymous_growth", AtMost(1.1)),
    ("soak.fds_growth", AtMost(1.1)),
    ("soak.wal_growth", AtMost(1.2)),
    ("start.ready_ms", AtMost(200.0)),
    ("start.restart_ms", AtMost(200.0)),
    ("tools.call_overhead_us", AtMost(150.0)),
    ("tools.due_ratio_100k_to_100", AtMost(2.0)),
    ("tools.mcp_extra_commits", AtMost(2.0)),
    ("tools.mcp_over_direct_us", AtMost(150.0)),
    ("tools.start_1000_s", AtMost(5.0)),
];

/// The generator's CPU time as a share of the server's, at its highest.
const GENERATOR_SHARE: &str = "generator.cpu_share_max";

#[derive(Default)]
pub struct Report {
    figures: BTreeMap<String, f64>,
    notes: Vec<String>,
}

impl Report {
    pub fn figure(&mut self, name: impl Into<String>, value: f64) {
        self.figures.insert(name.into(), value);
    }

    /// A sentence under the table.
    pub fn note(&mut self, text: String) {
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// Remembers what the load cost beside what the server used for it.
    pub fn generator_share(&mut self, share: f64) {
        let highest = self.figures.entry(GENERATOR_SHARE.into()).or_insert(0.0);
        *highest = highest.max(share);
    }

    pub fn table(&self) -> String {
        let mut out = format!("\n{:<42} {:>12}   {:<9} verdict\n", "figure", "value", "target");
        let mut missed = vec![];
        for (name, value) in &self.figures {
            let target = TARGETS.iter().find(|(known, _)| known == name).map(|(_, target)| target);
            let (wanted, verdict) = match target {
                Some(AtLeast(limit)) => (format!("≥ {limit}"), if value >= limit { "pass" } else { "FAIL" }),
                Some(AtMost(limit)) => (format!("≤ {limit}"), if value <= limit { "pass" } else { "FAIL" }),
                None => (String::new(), ""),
            };
            if verdict == "FAIL" {
                missed.push(name.as_str());
            }
            writeln!(out, "{name:<42} {:>12}   {wanted:<9} {verdict}", shown(*value)).expect("writing to a string");
        }
        out.push('\n');
        for note in &self.notes {
            writeln!(out, "  {note}").expect("writing to a string");
        }
        let verdict =
            if missed.is_empty() { "every target met".into() } else { format!("missed: {}", missed.join(", ")) };
        writeln!(out, "  {verdict}").expect("writing to a string");
        out
    }

    /// A flat map from figure name to number.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(&self.figures).expect("names and numbers serialise") + "\n"
    }
}

fn shown(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

/// The middle value; of two in the middle, the mean.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    assert!(!sorted.is_empty(), "a median of nothing");
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// The value below which `percent` of the others lie.
pub fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_on_the_wrong_side_of_its_target_fails() {
        let mut report = Report::default();
        report.figure("start.ready_ms", 200.0);
        report.figure("append.sqlite.ratio_to_bare", 0.59);
        report.figure("append.sqlite.rows_per_s", 50_000.0);
        let table = report.table();
        assert!(table.contains("missed: append.sqlite.ratio_to_bare\n"), "{table}");
    }

    #[test]
    fn the_middle_is_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(percentile(&[1.0, 2.0, 3.0, 4.0], 50), 3.0);
        assert_eq!(percentile(&[1.0], 99), 1.0);
    }
}
