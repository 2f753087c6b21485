//! The targets of figures. A figure without a target is printed without a verdict.

use crate::report::Quartiles;

pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
}

use Target::{AtLeast, AtMost};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Whether the median meets the target.
    pub is_met: bool,
    /// Whether the quartiles of the rounds are on different sides of the target.
    pub is_noisy: bool,
}

impl Verdict {
    pub(crate) fn name(self) -> &'static str {
        match (self.is_met, self.is_noisy) {
            (true, false) => "pass",
            (true, true) => "pass, noisy",
            (false, false) => "FAIL",
            (false, true) => "FAIL, noisy",
        }
    }
}

impl Target {
    pub(crate) fn text(&self) -> String {
        match self {
            AtLeast(limit) => format!("≥ {limit}"),
            AtMost(limit) => format!("≤ {limit}"),
        }
    }

    fn is_met_by(&self, value: f64) -> bool {
        match self {
            AtLeast(limit) => value >= *limit,
            AtMost(limit) => value <= *limit,
        }
    }

    /// The median decides, because targets are of the median. Rounds that disagree are only marked: a noisy figure must not
    /// avoid its verdict.
    pub(crate) fn verdict(&self, rounds: Quartiles) -> Verdict {
        let is_noisy = self.is_met_by(rounds.lower) != self.is_met_by(rounds.upper);
        Verdict { is_met: self.is_met_by(rounds.median), is_noisy }
    }
}

/// `None` for a figure without a target.
pub(crate) fn target(figure: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|(name, _)| *name == figure).map(|(_, target)| target)
}

const TARGETS: &[(&str, Target)] = &[
    ("agui.accept_p50_ms", AtMost(0.7)),
    ("agui.cpu_ms_per_run", AtMost(0.6)),
    ("agui.first_delta_lag_ms", AtMost(5.0)),
    ("agui.history_ratio_10k_to_10", AtMost(2.0)),
    ("agui.postgres.alone_less_syncs_ms", AtMost(0.8)),
    ("agui.sqlite.alone_less_syncs_ms", AtMost(0.8)),
    ("append.postgres.cpu_us_per_event", AtMost(10.0)),
    ("append.postgres.ratio_to_bare", AtLeast(0.8)),
    ("append.sqlite.cpu_us_per_event", AtMost(18.0)),
    ("append.sqlite.ratio_to_bare", AtLeast(0.8)),
    ("codex.first_text_lag_ms", AtMost(30.0)),
    ("codex.turn_ratio_to_bare", AtMost(1.06)),
    ("consent.reauth_10k_s", AtMost(2.0)),
    ("daemon.capabilities_ratio", AtLeast(10.0)),
    ("daemon.create_ratio", AtLeast(50.0)),
    ("daemon.fan_out_ratio_64_to_8", AtMost(1.0)),
    ("daemon.frame_lag_ms", AtMost(3.0)),
    ("daemon.health_ratio", AtLeast(10.0)),
    ("daemon.memory_ratio", AtLeast(10.0)),
    ("follow.kib_per_follower", AtMost(8.0)),
    ("follow.p99_ms", AtMost(100.0)),
    ("follow.replay_writer_ratio", AtLeast(0.6)),
    ("generator.cpu_share_max", AtMost(1.0)),
    ("growth.failed_calls", AtMost(0.0)),
    ("growth.ratio_max", AtMost(2.0)),
    ("idle.anonymous_mib", AtMost(12.0)),
    ("idle.rss_mib", AtMost(30.0)),
    ("idle.sessions_10k_mib", AtMost(20.0)),
    ("kubernetes.api_calls_per_job", AtMost(3.0)),
    ("kubernetes.finished_jobs_anon_mib", AtMost(50.0)),
    ("kubernetes.request_ratio", AtMost(1.5)),
    ("lists.history_postgres_to_sqlite", AtMost(2.0)),
    ("lists.sessions_postgres_to_sqlite", AtMost(2.0)),
    ("lists.threads_postgres_to_sqlite", AtMost(2.0)),
    ("manifest.check_cpu_ms", AtMost(50.0)),
    ("manifest.diff_cpu_ms", AtMost(20.0)),
    ("manifest.hostile_check_cpu_ms", AtMost(75.0)),
    ("manifest.hostile_diff_cpu_ms", AtMost(30.0)),
    ("mesh.cpu_us_per_send", AtMost(120.0)),
    ("mesh.idle_10k_mib", AtMost(400.0)),
    ("mesh.login_cpu_ms", AtMost(5.0)),
    ("mesh.postgres.ratio_to_bare", AtLeast(0.5)),
    ("mesh.sqlite.ratio_to_bare", AtLeast(0.5)),
    ("refuse.block_ms_max", AtMost(5.0)),
    ("refuse.cpu_ms_per_4mb_body", AtMost(5.0)),
    ("replicas.ratio_two_to_one", AtLeast(0.95)),
    ("result.ratio_100k_to_100", AtMost(2.0)),
    ("run.postgres.cluster_cpu_ms_per_run", AtMost(0.9)),
    ("run.postgres.cpu_ms_per_run", AtMost(0.6)),
    ("run.postgres.p99_to_p50", AtMost(8.0)),
    ("run.sqlite.cpu_ms_per_run", AtMost(0.6)),
    ("run.sqlite.p99_to_p50", AtMost(8.0)),
    ("sessions.list_ratio_100k_to_100", AtMost(2.0)),
    ("soak.anonymous_growth", AtMost(1.1)),
    ("soak.append_p999_growth", AtMost(2.0)),
    ("soak.append_p999_ms", AtMost(100.0)),
    ("soak.fds_growth", AtMost(1.1)),
    ("soak.tables_per_event_growth", AtMost(1.2)),
    ("soak.wal_growth", AtMost(1.2)),
    ("start.ready_ms", AtMost(60.0)),
    ("start.restart_ms", AtMost(60.0)),
    ("tools.call_overhead_us", AtMost(150.0)),
    ("tools.due_ratio_100k_to_100", AtMost(2.0)),
    ("tools.mcp_extra_commits", AtMost(2.0)),
    ("tools.mcp_over_direct_us", AtMost(150.0)),
    ("tools.start_1000_s", AtMost(5.0)),
];

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::report::GENERATOR_SHARE;

    #[test]
    fn the_median_decides_and_rounds_on_both_sides_of_the_target_are_marked() {
        let verdict = |target: Target, of: [f64; 3]| {
            let [lower, median, upper] = of;
            target.verdict(Quartiles { lower, median, upper }).name()
        };
        assert_eq!(verdict(AtMost(8.0), [5.0, 6.0, 8.0]), "pass");
        assert_eq!(verdict(AtMost(8.0), [8.1, 9.0, 9.5]), "FAIL");
        assert_eq!(verdict(AtMost(8.0), [7.0, 7.5, 8.5]), "pass, noisy");
        assert_eq!(verdict(AtMost(8.0), [7.0, 8.1, 8.5]), "FAIL, noisy");
        assert_eq!(verdict(AtLeast(0.8), [0.8, 0.9, 1.0]), "pass");
        assert_eq!(verdict(AtLeast(0.8), [0.5, 0.6, 0.7]), "FAIL");
        assert_eq!(verdict(AtLeast(0.8), [0.7, 0.9, 1.0]), "pass, noisy");
        assert_eq!(verdict(AtLeast(0.8), [0.7, 0.75, 1.0]), "FAIL, noisy");
    }

    #[test]
    fn targets_are_sorted_and_unique() {
        assert!(TARGETS.is_sorted_by(|(one, _), (next, _)| one < next));
    }

    /// Whether a format string such as `append.{name}.per_s` can make this name. A placeholder makes no dot.
    fn can_make(template: &str, name: &str) -> bool {
        let Some((before, rest)) = template.split_once('{') else { return template == name };
        let (Some((_, after)), Some(tail)) = (rest.split_once('}'), name.strip_prefix(before)) else { return false };
        let placeholder_end = tail.find('.').unwrap_or(tail.len());
        (0..=placeholder_end).any(|end| can_make(after, &tail[end..]))
    }

    const CALLS: [&str; 3] = ["report.figure(", "report.rounds(", "growth.insert("];

    /// The first arguments of all calls that report a figure, in the sources of a folder.
    fn templates(folder: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                templates(&path, found);
                continue;
            }
            let source = fs::read_to_string(&path).unwrap();
            let code = source.split("#[cfg(test)]").next().unwrap_or_default();
            for call in CALLS {
                for after in code.split(call).skip(1) {
                    let argument = after.trim_start();
                    let argument = argument.strip_prefix("format!(").unwrap_or(argument).trim_start();
                    if let Some((template, _)) = argument.strip_prefix('"').and_then(|text| text.split_once('"')) {
                        found.push(template.to_owned());
                    }
                }
            }
        }
    }

    #[test]
    fn every_target_belongs_to_a_figure_that_a_group_reports() {
        let mut found = vec![GENERATOR_SHARE.to_owned()];
        templates(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
        assert!(found.len() > 100, "only {} figures were found", found.len());
        for (name, _) in TARGETS {
            assert!(found.iter().any(|template| can_make(template, name)), "no group reports {name}");
        }
        assert!(can_make("append.{name}.per_s", "append.sqlite.per_s"));
        assert!(can_make("a.{kind}check_ms", "a.check_ms") && can_make("a.{kind}check_ms", "a.hostile_check_ms"));
        assert!(!can_make("{name}_ms", "append.sqlite_ms") && !can_make("a.{name}.b", "a.c.d"));
    }
}
