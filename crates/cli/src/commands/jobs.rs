//! `ostler jobs`: lists, shows and creates the runner jobs of a run, each of which starts a runner, and prints runners' logs.

use clap::{Subcommand, builder::NonEmptyStringValueParser};
use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind,
    ids::{RunnerJobId, prefix_range},
    kernel::{
        liveness::Phase,
        runner_jobs::{JobPhase, ListRunnerJobs, RUNNER_RELEASED, RunnerJob},
    },
    limits::PAGE_ITEMS_MAX,
};

use crate::{
    candidates,
    commands::{
        job_log::{self, JobLogArgs},
        list::Listing,
    },
    connection::Connection,
    errors, exit_codes,
    targets::{self, Finder, Within},
    terminal::{
        events::field,
        list_output::ListOutput,
        output::{Output, line},
        pods::{pod_words, waiting_pod_words},
        status::recovery_job,
        table::Column,
        times::{Times, now},
    },
};

/// Show the runner jobs of a run: which runner was started, and how it ended
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler jobs list RUN\n  ostler jobs show RUN job_01a1\n  ostler jobs create RUN\n  ostler jobs log -f RUN job_01a1"
)]
pub(crate) struct JobsArgs {
    #[command(subcommand)]
    verb: JobsVerb,
}

#[derive(Subcommand, Debug)]
enum JobsVerb {
    List(ListJobsArgs),
    Show(ShowJobArgs),
    Create(CreateJobArgs),
    Log(JobLogArgs),
}

/// List a run's jobs, newest first
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler jobs list RUN\n  ostler jobs list RUN -o jsonl | jq -r .phase")]
struct ListJobsArgs {
    #[arg(value_name = "RUN", value_parser = NonEmptyStringValueParser::new(), add = candidates::targets(),
        help = "The run, or a session for its latest one")]
    run: String,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    output: ListOutput,
}

/// Show one job
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler jobs show RUN job_01a1 -o json")]
struct ShowJobArgs {
    #[arg(value_name = "RUN", value_parser = NonEmptyStringValueParser::new(), add = candidates::targets(),
        help = "The run, or a session for its latest one")]
    run: String,
    #[arg(value_name = "JOB", help = "The job's id, or the beginning of it")]
    job: String,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    output: Output,
}

/// Start a runner for a turn that waits for one
///
/// The server starts the runners of most runs by itself. This is for a run that was created without a runner job, and for one
/// whose runner was lost: `ostler result RUN` shows the command then. Repeating it starts no second runner.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler jobs create RUN")]
struct CreateJobArgs {
    #[arg(value_name = "RUN", value_parser = NonEmptyStringValueParser::new(), add = candidates::targets(),
        help = "The run, or a session for its latest one")]
    run: String,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn jobs(connection: &Connection, args: &JobsArgs) -> Result<u8, Failure> {
    match &args.verb {
        JobsVerb::List(args) => list(&args.within.finder(connection)?, args).await,
        JobsVerb::Show(args) => show(&args.within.finder(connection)?, args).await,
        JobsVerb::Create(args) => create(&args.within.finder(connection)?, args).await,
        JobsVerb::Log(args) => log(&args.within.finder(connection)?, args).await,
    }
}

async fn list(finder: &Finder, args: &ListJobsArgs) -> Result<u8, Failure> {
    let jobs = all(&finder.client, &finder.run(&args.run).await?).await?;
    JOBS.print(&jobs, false, args.times, &args.output)
}

const JOBS: Listing<RunnerJob> = Listing {
    nothing: "the run has no runner jobs; its creator starts the runner\n",
    columns: &[
        Column::whole("JOB"),
        Column::whole("PHASE"),
        Column::spare(1, "LAUNCHER"),
        Column::spare(2, "STARTS"),
        Column::spare(3, "CHANGED"),
        Column::text(4, "ENDED"),
    ],
    row: |job, times, now| {
        vec![
            job.runner_job_id.to_string(),
            job.phase.as_str().into(),
            job.launcher.as_str().into(),
            job.attempt.to_string(),
            times.ago(job.updated_at, now),
            ending(job),
        ]
    },
};

async fn log(finder: &Finder, args: &JobLogArgs) -> Result<u8, Failure> {
    let run = finder.run(&args.run).await?;
    let job = find_one(finder, &run, &args.job).await?;
    job_log::print(finder, &run, &job, args).await
}

/// The job of the run with this id, or with an id that begins with this word.
async fn find_one(finder: &Finder, run: &str, word: &str) -> Result<RunnerJob, Failure> {
    let found = match word.parse::<RunnerJobId>() {
        Ok(_) => finder.client.get_runner_job(run, word).await,
        Err(_) => find(all(&finder.client, run).await?, word),
    };
    found.map_err(|failure| errors::listed_by(failure, &format!("ostler jobs list {run}")))
}

async fn show(finder: &Finder, args: &ShowJobArgs) -> Result<u8, Failure> {
    let run = finder.run(&args.run).await?;
    let job = find_one(finder, &run, &args.job).await?;
    args.output.one(&job, || render(&job, args.times));
    Ok(exit_codes::OK)
}

async fn create(finder: &Finder, args: &CreateJobArgs) -> Result<u8, Failure> {
    let run = finder.run(&args.run).await?;
    let liveness = finder.client.run_result(&run, None).await?.liveness;
    let Some(job) = recovery_job(&liveness) else {
        let hint = match liveness.phase {
            Phase::WaitingRunner => {
                "its runner job waits until a server starts it; `ostler doctor` shows whether this one does".to_owned()
            }
            _ => format!("`ostler result {run}` shows what the run waits for"),
        };
        return Err(errors::hinted(FailureKind::StateConflict, "the run needs no other runner", hint));
    };
    let job = finder.client.create_runner_job(&run, &job).await?;
    args.output.one(&job, || format!("{}\n", job.runner_job_id));
    Ok(exit_codes::OK)
}

async fn all(client: &Client, run: &str) -> Result<Vec<RunnerJob>, Failure> {
    let query = ListRunnerJobs { limit: Some(PAGE_ITEMS_MAX), ..ListRunnerJobs::default() };
    Ok(client.list_runner_jobs(run, &query).await?.runner_jobs)
}

fn find(jobs: Vec<RunnerJob>, word: &str) -> Result<RunnerJob, Failure> {
    let unknown = || targets::unknown("runner job of this run", word);
    let (prefix, _) = prefix_range(RunnerJobId::PREFIX, word).ok_or_else(unknown)?;
    let fits = |job: &&RunnerJob| job.runner_job_id.to_string().starts_with(&prefix);
    let candidates = jobs.iter().filter(fits).map(|job| (job.runner_job_id.to_string(), job.phase.as_str().to_owned()));
    let id = targets::one(word, "runner job", candidates.collect())?.ok_or_else(unknown)?;
    jobs.into_iter().find(|job| job.runner_job_id.to_string() == id).ok_or_else(unknown)
}

/// How the last runner ended. A runner that did all its work has succeeded, also if its last turn did not. While the pod of the
/// current one does not start, what it waits for.
fn ending(job: &RunnerJob) -> String {
    if let Some(words) = waiting_pod_words(job).filter(|_| job.phase == JobPhase::Running) {
        return format!("not yet; pod {words}");
    }
    let summary = job.terminal_summary.to_value();
    let turn = field(&summary, "turnStatus");
    let status = match (job.phase, turn.as_str()) {
        (JobPhase::Succeeded, "") if field(&summary, "status") == RUNNER_RELEASED => {
            "its runner had released the run".to_owned()
        }
        (JobPhase::Succeeded, "") => "nothing was left to do".to_owned(),
        (JobPhase::Succeeded, turn) => format!("last turn {turn}"),
        _ => field(&summary, "status"),
    };
    let (kind, message) = (field(&summary, "failureKind"), field(&summary, "message"));
    let status = match (status.is_empty(), kind.is_empty()) {
        (_, true) => status,
        (true, false) => kind,
        (false, false) => format!("{status} ({kind})"),
    };
    // The message of a job without work repeats its status.
    let has_had_work = job.phase != JobPhase::Succeeded || !turn.is_empty();
    match (status.is_empty(), message.is_empty() || !has_had_work) {
        (true, true) => "-".into(),
        (true, false) => message,
        (false, true) => status,
        (false, false) => format!("{status}: {message}"),
    }
}

fn render(job: &RunnerJob, times: Times) -> String {
    let fields = [
        ("job", job.runner_job_id.to_string()),
        ("run", job.run_id.to_string()),
        ("command", job.command_id.to_string()),
        ("phase", job.phase.as_str().to_owned()),
        ("launcher", job.launcher.as_str().into()),
        ("starts", job.attempt.to_string()),
        ("standing", if job.standing { "yes" } else { "no" }.to_owned()),
        ("runner", line(&job.runner_id, 200)),
        ("name", format!("{} in {}", line(&job.job_name, 200), line(&job.namespace, 80))),
        ("pod", pod(job)),
        ("node", line(&field(&job.observed.to_value(), "nodeName"), 200)),
        ("log", job.log_path.as_deref().map_or_else(|| "-".to_owned(), |path| line(path, 400))),
        ("made", times.ago(job.created_at, now())),
        ("changed", times.ago(job.updated_at, now())),
        ("ended", ending(job)),
    ];
    let fields = fields.into_iter().filter(|(name, value)| *name != "node" || !value.is_empty());
    fields.map(|(name, value)| format!("{name:<9}{value}\n")).collect()
}

/// The pod of the runner, with its state.
fn pod(job: &RunnerJob) -> String {
    let name = job.pod_name.as_deref().map_or_else(|| "-".to_owned(), |name| line(name, 200));
    pod_words(job).map_or_else(|| name.clone(), |words| format!("{name} ({words})"))
}

#[cfg(test)]
mod tests {
    use ostler_protocol::RawJson;
    use serde_json::json;

    use super::*;

    fn job(number: u32) -> RunnerJob {
        let id = |prefix: &str| format!("{prefix}{number:032x}");
        let body = json!({"runnerJobId": id("job_"), "runId": id("run_"), "commandId": id("cmd_"), "attemptId": id("att_"),
            "attempt": 2, "jobName": "n", "namespace": "local", "launcher": "resident", "runnerId": "r", "podName": null,
            "logPath": null, "standing": true, "phase": "failed",
            "terminalSummary": {"status": "failed", "failureKind": "infra-failed", "message": "it died"},
            "poll": {"job": "", "events": "", "result": ""},
            "createdAt": "2030-01-01T00:00:00Z", "updatedAt": "2030-01-01T00:00:00Z"});
        serde_json::from_str(&body.to_string()).unwrap()
    }

    #[test]
    fn a_job_is_found_by_the_beginning_of_its_id() {
        let jobs = vec![job(0x1f), job(0x2f)];
        let whole = job(0x1f).runner_job_id.to_string();
        assert_eq!(find(jobs.clone(), &whole[..35]).unwrap().runner_job_id.to_string(), whole);
        assert!(find(jobs.clone(), "job_0000").unwrap_err().message.contains("is the beginning of 2 runner jobs"));
        assert_eq!(find(jobs, "nonsense").unwrap_err().message, "no runner job of this run \"nonsense\"");
    }

    #[test]
    fn a_job_whose_pod_does_not_start_shows_why() {
        let mut waiting = job(1);
        waiting.phase = JobPhase::Running;
        waiting.observed =
            RawJson::of(&json!({"jobName": "n-2", "jobUid": "u", "podName": "n-2-x", "nodeName": "node-1",
            "phase": "pending", "reason": "ImagePullBackOff", "message": "no such image"}));
        assert_eq!(ending(&waiting), "not yet; pod pending, ImagePullBackOff: no such image");
        waiting.pod_name = Some("n-2-x".into());
        let shown = render(&waiting, Times::default());
        assert!(shown.contains("n-2-x (pending, ImagePullBackOff: no such image)\nnode     node-1\n"), "{shown}");
        assert!(!render(&job(1), Times::default()).contains("node "), "other launchers have no node");
    }

    #[test]
    fn an_ended_job_shows_its_outcome() {
        assert_eq!(ending(&job(1)), "failed (infra-failed): it died");
        let mut succeeded = job(1);
        succeeded.phase = JobPhase::Succeeded;
        let summary =
            json!({"status": "idle", "turnStatus": "failed", "failureKind": "backend-failed", "message": "it fell"});
        succeeded.terminal_summary = RawJson::of(&summary);
        assert_eq!(ending(&succeeded), "last turn failed (backend-failed): it fell");
        succeeded.terminal_summary = RawJson::of(&json!({"status": "idle", "message": "there was nothing left to do"}));
        assert_eq!(ending(&succeeded), "nothing was left to do", "said once");
        let summary = json!({"status": "released", "message": "the pod of the runner is gone: DeadlineExceeded"});
        succeeded.terminal_summary = RawJson::of(&summary);
        assert_eq!(ending(&succeeded), "its runner had released the run");
        let mut pending = job(1);
        pending.terminal_summary = RawJson::of(&json!({}));
        assert_eq!(ending(&pending), "-");
    }
}
