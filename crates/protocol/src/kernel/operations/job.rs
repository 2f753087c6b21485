//! Runner jobs: created once per key, finished by the launcher that owns them, started again while work is left.

use serde_json::json;

use super::{
    Reply,
    admission::check_accepting,
    desk::{Desk, RunDesk, Tracked},
    ending::{End, end_command},
    lease,
};
use crate::{
    Failure, FailureKind, RawJson, Rule, Timestamp,
    created::Created,
    ids::{CommandId, RunId, RunnerJobId},
    kernel::{
        cluster_launching::{DEADLINE_EXCEEDED, is_needed},
        commands::{Command, CommandState},
        events::{EventType, NewEvent, PHASE_RUNNER_ENDED},
        leases::Lease,
        runner_jobs::{JOB_OBSERVE_FAILED, JobEnd, JobExtras, JobPhase, JobPoll, Launcher, RUNNER_RELEASED, RunnerJob},
        runs::TerminalStatus,
        session_storage::MissingStorage,
    },
    limits::JOB_ATTEMPTS_MAX,
};

#[derive(Clone, Debug)]
pub struct CreateJobOp {
    /// Complete except for its command.
    pub job: RunnerJob,
    /// The run's latest command when left out.
    pub command_id: Option<CommandId>,
    /// What the server does not find of the session's storage. See [`SessionStorage::check_found`].
    ///
    /// [`SessionStorage::check_found`]: crate::kernel::session_storage::SessionStorage::check_found
    pub storage_missing: MissingStorage,
}

/// The launcher reports how the runner it started has ended, or a sweeper that its launcher is gone.
#[derive(Clone, Debug)]
pub struct FinishJobOp {
    pub runner_job_id: RunnerJobId,
    /// The launcher that owned the job when it was read. If another one owns it now, the report changes nothing.
    pub owner: String,
    pub end: JobEnd,
    /// For [`JobEnd::Lost`]: the heartbeat that the sweeper found too old. If the job has another one now, its launcher
    /// has vouched for it or has claimed it again, and the report changes nothing.
    pub heartbeat_at: Option<Timestamp>,
    pub summary: RawJson,
}

pub(super) fn create(
    desk: &mut Desk,
    run_id: RunId,
    op: CreateJobOp,
    now: Timestamp,
) -> Result<Created<RunnerJob>, Failure> {
    let rows = desk.run(run_id)?;
    if let Some(known) = op.job.idempotency_key.as_deref().and_then(|key| find_by_key(rows, key)) {
        if known.request_hash == op.job.request_hash {
            return Ok(Created::existing(known.clone()));
        }
        let message = "this idempotency key was used for another runner job";
        return Err(Failure::rule(Rule::PayloadHash, message).detail("runnerJobId", known.runner_job_id.to_string()));
    }
    check_accepting(&rows.run).map_err(as_order_refused)?;
    desk.session.storage.check_found(op.storage_missing)?;
    let command = match op.command_id {
        Some(id) => rows.commands.get(&id).map(|c| &**c),
        None => rows.commands.values().map(|c| &**c).max_by_key(|c| c.seq),
    };
    let command = command.ok_or_else(|| Failure::not_found("command"))?;
    check_startable(command, rows.live_lease(now).is_some()).map_err(as_order_refused)?;
    let command_id = command.command_id;
    let poll = JobPoll::of(run_id, op.job.runner_job_id, command_id);
    let job = RunnerJob { command_id, poll, ..op.job };
    let rows = desk.run_mut(run_id);
    rows.run.offered_attempt_id = Some(job.attempt_id);
    if job.standing {
        rows.run.standing_job_id = Some(job.runner_job_id);
    }
    rows.jobs.insert(job.runner_job_id, Tracked::new(job.clone()));
    rows.run.updated_at = now;
    desk.waiting_jobs.push((run_id, job.runner_job_id));
    Ok(Created::new(job))
}

fn find_by_key<'a>(rows: &'a RunDesk, key: &str) -> Option<&'a RunnerJob> {
    rows.jobs.values().map(|j| &**j).find(|j| j.idempotency_key.as_deref() == Some(key))
}

/// The failure of an order for what has ended: the manager's specification has `schema-invalid` for it, and `cancelled` for what was
/// cancelled.
fn as_order_refused(failure: Failure) -> Failure {
    match failure.broken_rule() {
        Some(Rule::RunTerminal | Rule::CommandTerminal) => failure.with_kind(FailureKind::SchemaInvalid),
        _ => failure,
    }
}

/// Whether a runner may be started for the command. `is_held`: a runner holds the run. A command that a runner has taken up
/// waits for another one only after that runner has lost or released the run. Then it is accepted in every open state, although the
/// manager's specification rejects that: nothing else would continue a command whose runner was not started by a job.
fn check_startable(command: &Command, is_held: bool) -> Result<(), Failure> {
    if command.state == CommandState::Cancelled || command.cancel_requested_at.is_some() {
        return Err(Failure::rule(Rule::CommandCancelled, "the command was cancelled"));
    }
    if command.state.is_terminal() {
        let message = format!("the command has ended: {}", command.state.as_str());
        return Err(Failure::rule(Rule::CommandTerminal, message));
    }
    if command.state != CommandState::Pending && is_held {
        let message = format!("a runner works on the command: {}", command.state.as_str());
        return Err(Failure::rule(Rule::CommandNotPending, message).detail("state", command.state.as_str()));
    }
    Ok(())
}

/// Ends a job's start. Work that is left is tried again a bounded number of times, then given up. A runner that leaves
/// a command behind that it was started for has not succeeded, whatever it reports: otherwise it would be started for
/// ever. A claim of a runner elsewhere whose response was lost is no start, and neither is one whose runner has released its run
/// before its time limit was over.
pub(super) fn finish(desk: &mut Desk, run_id: RunId, mut op: FinishJobOp, now: Timestamp) -> Result<Reply, Failure> {
    let rows = desk.run(run_id)?;
    let job = rows.jobs.get(&op.runner_job_id).ok_or_else(|| Failure::not_found("runner job"))?;
    if job.phase != JobPhase::Running || job.owner.as_deref() != Some(&op.owner) {
        return Ok(Reply::FinishedJob(false));
    }
    if op.end == JobEnd::Lost && job.heartbeat_at != op.heartbeat_at {
        return Ok(Reply::FinishedJob(false));
    }
    let holder = rows.live_lease(now).map(|lease| lease.runner_id == job.runner_id);
    if op.end == JobEnd::Lost && holder == Some(true) && job.launcher.outlives_server() {
        // Only its launcher is gone; the runner itself renews its lease. Look again after the next silence.
        desk.run_mut(run_id).jobs.get_mut(&op.runner_job_id).expect("found above").heartbeat_at = Some(now);
        return Ok(Reply::FinishedJob(false));
    }
    if op.end == JobEnd::Lost {
        explain_loss(rows, job, &mut op);
    }
    // Work that another runner has in hand is not left over, and not this job's to give up. Neither is other work, if this job's own
    // is over and it has never had a runner.
    let is_unneeded = !is_still_needed(rows, job);
    let left = if holder == Some(false) || is_unneeded { vec![] } else { rows.unfinished_ids() };
    let left_behind = left.iter().any(|id| rows.commands[id].created_at < job.updated_at);
    let succeeded = match op.end {
        JobEnd::Succeeded => !left_behind,
        JobEnd::Returned | JobEnd::Overdue | JobEnd::Lost => rows.unfinished().next().is_none(),
        JobEnd::Failed => false,
    };
    let starts = counted_starts(desk, rows, job, op.end, succeeded);
    // No other runner would find storage that is gone.
    let is_evicted = failure_of(&op.summary) == Some(FailureKind::SessionStoreEvicted);
    let again = !succeeded && !is_evicted && !left.is_empty() && starts < JOB_ATTEMPTS_MAX;
    if holder == Some(true) {
        match op.end {
            JobEnd::Failed | JobEnd::Overdue => lease::expire(desk, run_id, true, now),
            JobEnd::Returned => lease::release(desk, run_id, now),
            JobEnd::Succeeded | JobEnd::Lost => {}
        }
    }
    if !succeeded && op.end != JobEnd::Returned {
        note_end(desk, run_id, op.runner_job_id, &op.summary, now);
    }
    // Commands of a cancelled run that still have to stop end with their lease; no other runner is started for them.
    let cancelled = desk.run(run_id)?.run.cancel_requested_at.is_some();
    let job = desk.run_mut(run_id).jobs.get_mut(&op.runner_job_id).expect("found above");
    job.phase = match (succeeded, again, cancelled) {
        (_, _, true) => JobPhase::Cancelled,
        (_, true, _) => JobPhase::Pending,
        (true, ..) => JobPhase::Succeeded,
        (false, ..) => JobPhase::Failed,
    };
    job.attempt = starts;
    job.owner = None;
    job.heartbeat_at = None;
    job.token_hash = None;
    job.terminal_summary = op.summary;
    job.updated_at = now;
    if job.phase.is_finished() {
        job.extras = JobExtras::without_values(&job.extras);
    }
    if again && !cancelled {
        desk.waiting_jobs.push((run_id, op.runner_job_id));
    }
    if !succeeded && !again {
        let (rule, message) = match is_evicted {
            true => (Rule::StorageEvicted, "the session's storage is gone"),
            false => (Rule::RunnerStarts, "no runner could finish it"),
        };
        give_up(desk, run_id, &left, (rule, message), now);
    }
    desk.settle(run_id, now);
    Ok(Reply::FinishedJob(true))
}

/// What is known of a start whose launcher cannot tell how it ended.
fn explain_loss(rows: &RunDesk, job: &RunnerJob, op: &mut FinishJobOp) {
    let has_released = has_released(rows, job);
    op.end = match (is_overdue(&op.summary), has_released) {
        // Also if it has released its run: such a start counts.
        (true, _) => JobEnd::Overdue,
        (false, true) => JobEnd::Returned,
        (false, false) => JobEnd::Lost,
    };
    if has_released {
        op.summary = released_summary(&op.summary);
    }
}

/// How many starts of the job count after this one has ended.
fn counted_starts(desk: &Desk, rows: &RunDesk, job: &RunnerJob, end: JobEnd, succeeded: bool) -> i64 {
    // A runner elsewhere that never claimed the run may not have received its job.
    let is_unseen = end == JobEnd::Lost
        && job.launcher == Launcher::External
        && rows.lease.as_deref().is_none_or(|lease| lease.acquired_at < job.updated_at);
    // A start after which nothing is left counts, however it ended.
    let is_uncounted = !succeeded && (end == JobEnd::Returned || is_unseen);
    // Otherwise a queue that never drains would be given up although each of its turns fits the time limit.
    let has_advanced = end == JobEnd::Overdue && desk.session.ended_at.is_some_and(|at| at >= job.updated_at);
    match !succeeded && has_advanced {
        true => 0,
        false => job.attempt - i64::from(is_uncounted),
    }
}

/// See [`is_needed`]. A command that is not loaded has ended.
fn is_still_needed(rows: &RunDesk, job: &RunnerJob) -> bool {
    let is_open = rows.commands.get(&job.command_id).is_some_and(|command| command.is_unfinished());
    is_needed(job, is_open, rows.lease.as_deref())
}

/// Whether the runner of a cluster's job has released its run since it was started. A cluster that shows no end of such a runner, for
/// example because its Job was deleted, has stopped it in order.
fn has_released(rows: &RunDesk, job: &RunnerJob) -> bool {
    job.launcher == Launcher::Kubernetes && lease_of_start(rows, job).is_some_and(|lease| lease.ended && !lease.expired)
}

/// Whether the cluster has ended the start because its time limit was over, as its summary has it.
fn is_overdue(summary: &RawJson) -> bool {
    #[derive(serde::Deserialize)]
    struct EndedStart {
        reason: String,
    }
    summary.view::<EndedStart>().is_some_and(|start| start.reason == DEADLINE_EXCEEDED)
}

/// The run's latest lease, if the job's runner has acquired it since the job was claimed. A lease from before belongs to an earlier
/// start.
fn lease_of_start<'a>(rows: &'a RunDesk, job: &RunnerJob) -> Option<&'a Lease> {
    let lease = rows.lease.as_deref();
    lease.filter(|lease| lease.runner_id == job.runner_id && lease.acquired_at >= job.updated_at)
}

/// The summary of a lost runner that turned out to have released its run.
fn released_summary(summary: &RawJson) -> RawJson {
    let mut fields = match summary.to_value() {
        serde_json::Value::Object(fields) => fields,
        _ => serde_json::Map::new(),
    };
    fields.remove("failureKind");
    fields.remove("category");
    fields.insert("status".into(), RUNNER_RELEASED.into());
    let message = fields.get("message").and_then(|message| message.as_str()).unwrap_or("nothing shows how it ended");
    let message = format!("the runner released its run; {message}");
    fields.insert("message".into(), message.into());
    RawJson::of(&fields)
}

/// Ends the start of a standing job whose runner is elsewhere, once that runner's lease has ended: no launcher reports it.
/// A job that is not standing is ended by the sweeper.
pub(super) fn end_external(desk: &mut Desk, run_id: RunId, now: Timestamp) {
    let Ok(rows) = desk.run(run_id) else { return };
    let Some(job) = rows.run.standing_job_id.and_then(|id| rows.jobs.get(&id)) else { return };
    let Some(lease) = lease_of_start(rows, job).filter(|lease| lease.ended) else { return };
    if job.launcher != Launcher::External || job.phase != JobPhase::Running {
        return;
    }
    let (end, summary) = match lease.expired {
        true => {
            let summary = json!({"status": "lost", "failureKind": "infra-failed", "message": "its lease expired",
                "category": JOB_OBSERVE_FAILED});
            (JobEnd::Failed, summary)
        }
        false => (JobEnd::Succeeded, json!({"status": "released"})),
    };
    let owner = job.owner.clone().unwrap_or_default();
    let op = FinishJobOp {
        runner_job_id: job.runner_job_id,
        owner,
        end,
        heartbeat_at: None,
        summary: RawJson::of(&summary),
    };
    let _ = finish(desk, run_id, op, now);
}

/// Ends the job of a runner in the server's process whose lease has just ended. False if its launcher must report the end.
pub(super) fn end_resident(
    desk: &mut Desk,
    run_id: RunId,
    runner_job_id: RunnerJobId,
    summary: RawJson,
    now: Timestamp,
) -> bool {
    let Ok(rows) = desk.run(run_id) else { return false };
    let Some(job) = rows.jobs.get(&runner_job_id).filter(|job| job.launcher == Launcher::Resident) else {
        return false;
    };
    let is_its_lease = lease_of_start(rows, job).is_some();
    let Some(owner) = job.owner.clone().filter(|_| is_its_lease) else { return false };
    let op = FinishJobOp { runner_job_id, owner, end: JobEnd::Succeeded, heartbeat_at: None, summary };
    matches!(finish(desk, run_id, op, now), Ok(Reply::FinishedJob(true)))
}

/// A runner's bad end is a fact of its run, as long as the run has no end of its own.
fn note_end(desk: &mut Desk, run_id: RunId, runner_job_id: RunnerJobId, summary: &RawJson, now: Timestamp) {
    let rows = desk.run_mut(run_id);
    if rows.run.status.is_terminal() {
        return;
    }
    let job = &rows.jobs[&runner_job_id];
    let fact = json!({"phase": PHASE_RUNNER_ENDED, "runnerJobId": runner_job_id, "runnerId": job.runner_id,
        "launcher": job.launcher, "attempt": job.attempt, "end": summary});
    desk.append(run_id, NewEvent::written(EventType::BackendStatus, None, &fact), now);
}

/// Why a start failed, as its summary has it.
fn failure_of(summary: &RawJson) -> Option<FailureKind> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct FailedStart {
        failure_kind: FailureKind,
    }
    summary.view::<FailedStart>().map(|start| start.failure_kind)
}

fn give_up(desk: &mut Desk, run_id: RunId, left: &[CommandId], (rule, message): (Rule, &'static str), now: Timestamp) {
    for command_id in left {
        if desk.run_mut(run_id).commands[command_id].is_unfinished() {
            let end = End::manager(TerminalStatus::Failed, rule.row().kind, message).with_rule(Some(rule));
            end_command(desk, run_id, *command_id, end, now);
        }
    }
}
