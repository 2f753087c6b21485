//! `ostler jobs log`: prints the log of a job's runner, and follows it.

use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use ostler_protocol::{
    Failure,
    kernel::runner_jobs::{JobLogQuery, RunnerJob},
    limits::{LOG_LINES_DEFAULT, LOG_LINES_MAX},
};

use crate::{
    candidates, exit_codes,
    targets::{Finder, Within},
    terminal::{output, pods::pod_words},
};

/// How often a log that is followed is read.
const POLL: Duration = Duration::from_secs(1);

/// Print the log of a job's runner
///
/// With the Kubernetes launcher it is the log of the runner's pod, while the cluster has it; with child processes, the end of the
/// log after the process has ended. The server redacts secrets that it knows.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler jobs log RUN job_01a1\n  ostler jobs log -f RUN job_01a1")]
pub(crate) struct JobLogArgs {
    #[arg(value_name = "RUN", value_parser = NonEmptyStringValueParser::new(), add = candidates::targets(),
        help = "The run, or a session for its latest one")]
    pub(super) run: String,
    #[arg(value_name = "JOB", help = "The job's id, or the beginning of it")]
    pub(super) job: String,
    /// Follow the log until the runner has ended
    #[arg(short, long)]
    follow: bool,
    /// How many of the last lines to print
    #[arg(long, value_name = "LINES", default_value_t = LOG_LINES_DEFAULT,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(LOG_LINES_MAX)))]
    tail: u32,
    #[command(flatten)]
    pub(super) within: Within,
}

/// Prints the log of a job. If there is none, what the cluster shows of the pod is printed to stderr instead.
pub(super) async fn print(finder: &Finder, run: &str, job: &RunnerJob, args: &JobLogArgs) -> Result<u8, Failure> {
    let job_id = job.runner_job_id.to_string();
    let mut query = JobLogQuery { tail_lines: Some(args.tail), after: None };
    let mut printed = String::new();
    let (mut had_finished, mut has_explained) = (false, false);
    loop {
        let log = finder.client.runner_job_log(run, &job_id, &query).await?;
        // A log without times is read as a whole each time: only what is new is printed.
        let fresh = match log.next_after {
            Some(_) => log.text.as_str(),
            None => log.text.strip_prefix(printed.as_str()).unwrap_or(&log.text),
        };
        output::data(&output::harmless(fresh));
        if fresh.is_empty() && query.after.is_none() && printed.is_empty() && !has_explained {
            has_explained = true;
            output::message(&no_log(job));
        }
        // What was written between the last lines and the end is read once more.
        let is_at_end = log.next_after == query.after || (fresh.is_empty() && log.next_after.is_none());
        if !args.follow || (had_finished && is_at_end) {
            return Ok(exit_codes::OK);
        }
        had_finished = log.finished;
        if log.next_after.is_none() {
            printed.push_str(fresh);
        }
        query.after = log.next_after.or(query.after);
        tokio::time::sleep(POLL).await;
    }
}

/// Why nothing is printed.
fn no_log(job: &RunnerJob) -> String {
    match pod_words(job) {
        Some(words) => format!("the runner has no log yet; its pod is {words}\n"),
        None => "the runner has no log\n".to_owned(),
    }
}
