//! Accepting a run of an AG-UI client: a message becomes a turn on the thread's run, or on a new one; a resume answers what
//! the thread's agent has asked. Either way the client's name for it is written in the same breath.

use serde_json::json;

use super::{
    Reply, cancel, command,
    desk::{Desk, RunDesk, Tracked},
    permission,
    run::{self, CreateRunOp, check_accepting, session_busy},
};
use crate::{
    Failure, FailureKind, Timestamp,
    ids::{CommandId, PermissionId, RunId},
    kernel::{
        commands::{Command, CommandType},
        events::{EventType, NewEvent, PHASE_ROLLED_BACK},
        permissions::{PermissionRequest, PermissionStatus},
        runs::Run,
    },
    run_input::{
        agui::messages::{ResumeEntry, ResumeStatus},
        runs::{AgentRun, Busy},
    },
};

#[derive(Clone, Debug)]
pub struct AcceptRunOp {
    /// As the client calls it.
    pub run_id: String,
    pub request_hash: String,
    pub asked: AskedRun,
    pub by: String,
}

#[derive(Clone, Debug)]
pub enum AskedRun {
    /// A message. It comes with a run and a job, for a thread that has no run that takes work.
    Turn {
        fresh: Box<CreateRunOp>,
        busy: Busy,
    },
    Resume(Vec<Resumed>),
}

/// The answer to one interrupt, which is a permission request.
#[derive(Clone, Debug, PartialEq)]
pub struct Resumed {
    pub permission_id: PermissionId,
    pub entry: ResumeEntry,
}

impl AcceptRunOp {
    /// The run it brings along, if it is a message.
    pub fn brings(&self) -> Option<&CreateRunOp> {
        match &self.asked {
            AskedRun::Turn { fresh, .. } => Some(fresh),
            AskedRun::Resume(_) => None,
        }
    }

    /// What its message weighs: once in its command and once in its event.
    pub fn bytes(&self) -> usize {
        let first = self.brings().and_then(|fresh| fresh.start.as_ref());
        first.map_or(0, |(first, _)| first.command.payload.as_str().len() * 2)
    }

    pub fn answered(&self) -> Vec<PermissionId> {
        match &self.asked {
            AskedRun::Turn { .. } => vec![],
            AskedRun::Resume(answers) => answers.iter().map(|answer| answer.permission_id).collect(),
        }
    }
}

/// What an accepted run has come to.
#[derive(Clone, Debug)]
pub struct AcceptedRun {
    pub agent_run: AgentRun,
    /// The thread was made for it.
    pub is_new_thread: bool,
    /// The kernel's run, where one was made for it.
    pub started: Option<Run>,
}

/// `last` is the thread's last run, as whoever asks has seen it.
pub fn accept(desk: &mut Desk, last: Option<RunId>, op: AcceptRunOp, now: Timestamp) -> Result<Reply, Failure> {
    if let Some(known) = desk.agent_runs.get(&op.run_id) {
        known.check_same(&op.request_hash)?;
        let accepted = AcceptedRun { agent_run: (**known).clone(), is_new_thread: false, started: None };
        return Ok(Reply::AgentRun(Box::new(accepted)));
    }
    if desk.session.last_run_id != last {
        return Err(Failure::rule(FailureKind::SessionBusy, MOVED_ON, "the thread has moved on meanwhile"));
    }
    let is_new_thread = desk.session.last_seq == 0;
    let (command_id, after_seq, started) = match op.asked {
        AskedRun::Turn { fresh, busy } => turn(desk, last, *fresh, busy, &op.by, now)?,
        AskedRun::Resume(answers) => resume(desk, last, &answers, &op.by, now)?,
    };
    let agent_run = AgentRun {
        session: desk.session.session,
        run_id: op.run_id,
        command_id,
        request_hash: op.request_hash,
        after_seq,
        created_at: now,
    };
    desk.agent_runs.insert(agent_run.run_id.clone(), Tracked::new(agent_run.clone()));
    Ok(Reply::AgentRun(Box::new(AcceptedRun { agent_run, is_new_thread, started })))
}

/// The rule by which a decision is refused that was made on an earlier look at the thread: look again.
pub const MOVED_ON: &str = "thread-moved-on";

/// Where a refusal names the turn that keeps the thread busy.
pub const ACTIVE_COMMAND: &str = "activeCommandId";

type Bound = (CommandId, i64, Option<Run>);

fn turn(
    desk: &mut Desk,
    last: Option<RunId>,
    fresh: CreateRunOp,
    busy: Busy,
    by: &str,
    now: Timestamp,
) -> Result<Bound, Failure> {
    let known = last.map(|run_id| desk.run(run_id)).transpose()?;
    if let Some(rows) = known {
        check_nothing_asked(rows)?;
    }
    let fits = |rows: &&RunDesk| check_accepting(&rows.run).is_ok() && serves(&rows.run, &fresh.run);
    let Some(rows) = known.filter(fits) else {
        let after_seq = desk.session.last_seq;
        let created = match run::create(desk, fresh, now)? {
            Reply::Run(created, _) => *created,
            _ => unreachable!("creating a run answers with it"),
        };
        let command = created.command.expect("it was started with its first command");
        return Ok((command.command_id, after_seq, Some(created.run)));
    };
    let run_id = rows.run.run_id;
    let (first, _) = fresh.start.expect("it comes with its first command");
    let message = command::CreateCommandOp { command: Command { run_id, ..first.command }, ..*first };
    // Past these nothing can be refused, and so nothing is cancelled for a message that is.
    command::check_room(desk, run_id, &message.command, now)?;
    let turns = |c: &&Command| c.command_type == CommandType::Turn;
    let working: Vec<_> = rows.unfinished().filter(turns).map(|c| c.command_id).collect();
    if busy == Busy::Reject && !working.is_empty() {
        return Err(session_busy(run_id).detail(ACTIVE_COMMAND, working[0].to_string()));
    }
    if matches!(busy, Busy::Interrupt | Busy::Rollback) {
        for command_id in working {
            give_way(desk, run_id, command_id, busy, by, now);
        }
    }
    let (command_id, after_seq) = (message.command.command_id, desk.session.last_seq);
    command::create(desk, run_id, message, now)?;
    Ok((command_id, after_seq, None))
}

/// Whether the thread's run is as good as the one that the message brings along: of the same agent, under the same policy, and
/// started by its own job. A run that somebody made in the thread otherwise is left to them.
fn serves(run: &Run, fresh: &Run) -> bool {
    run.standing_job_id.is_some()
        && run.backend_profile == fresh.backend_profile
        && run.execution_policy == fresh.execution_policy
}

/// Stops a turn that another message takes the place of.
fn give_way(desk: &mut Desk, run_id: RunId, command_id: CommandId, busy: Busy, by: &str, now: Timestamp) {
    if busy == Busy::Rollback {
        let command = desk.run_mut(run_id).commands.get_mut(&command_id).expect("unfinished, and so on the desk");
        if command.rolled_back_at.is_none() {
            command.rolled_back_at = Some(now);
            let fact = json!({"phase": PHASE_ROLLED_BACK, "by": by});
            desk.append(run_id, NewEvent::written(EventType::BackendStatus, Some(command_id), &fact), now);
        }
    }
    cancel::request(desk, run_id, command_id, by, Some("another message took its place"), now);
}

/// While the agent waits for an answer, an answer is what it must get.
fn check_nothing_asked(rows: &RunDesk) -> Result<(), Failure> {
    let waiting = rows.unfinished().map(|command| permission::put(rows, command.command_id));
    match waiting.flatten().collect::<Vec<_>>() {
        open if open.is_empty() => Ok(()),
        open => Err(still_open(&open)),
    }
}

fn still_open(open: &[&PermissionRequest]) -> Failure {
    let ids: Vec<_> = open.iter().map(|request| request.permission_id.to_string()).collect();
    let message = format!("the thread waits for an answer; resume must cover every open interrupt: {}", ids.join(", "));
    invalid("interrupts-open", message).detail("interruptIds", ids)
}

fn invalid(rule: &'static str, message: impl Into<String>) -> Failure {
    Failure::rule(FailureKind::RunInputInvalid, rule, message)
}

fn resume(
    desk: &mut Desk,
    last: Option<RunId>,
    answers: &[Resumed],
    by: &str,
    now: Timestamp,
) -> Result<Bound, Failure> {
    let unknown = || invalid("interrupt-unknown", "the thread has no such interrupt");
    let run_id = last.ok_or_else(unknown)?;
    let rows = desk.run(run_id)?;
    let (mut verdicts, mut bound) = (vec![], None);
    for (at, answer) in answers.iter().enumerate() {
        let request = rows.permissions.get(&answer.permission_id).ok_or_else(unknown)?;
        if answers[..at].iter().any(|other| other.permission_id == answer.permission_id) {
            return Err(invalid("interrupt-twice", "resume answers one interrupt twice"));
        }
        // What an answer has brought on begins with the fact that it was given, by whomever and whenever.
        let after_seq = request.resolved_seq.map_or(desk.session.last_seq, |seq| seq - 1);
        bound = match bound {
            Some((command_id, _)) if command_id != request.command_id => {
                return Err(invalid("interrupt-unknown", "the interrupts are of different runs"));
            }
            Some((command_id, earliest)) => Some((command_id, after_seq.min(earliest))),
            None => Some((request.command_id, after_seq)),
        };
        verdicts.extend(verdict(request, &answer.entry, now)?.map(|(status, option)| (answer, status, option)));
    }
    let (command_id, after_seq) = bound.ok_or_else(unknown)?;
    let is_left = |open: &&PermissionRequest| answers.iter().all(|answer| answer.permission_id != open.permission_id);
    let left: Vec<_> = permission::put(rows, command_id).into_iter().filter(is_left).collect();
    if !left.is_empty() {
        return Err(still_open(&left));
    }
    // What waits behind others has been shown to nobody: no run could tell what came of the answer.
    let put = permission::put(rows, command_id);
    let is_put = |answer: &Resumed| put.iter().any(|request| request.permission_id == answer.permission_id);
    if !verdicts.iter().all(|(answer, ..)| is_put(answer)) {
        return Err(unknown());
    }
    for (answer, status, option_id) in verdicts {
        permission::resolve(desk, run_id, answer.permission_id, status, option_id, by, now);
    }
    desk.settle(run_id, now);
    Ok((command_id, after_seq, None))
}

type Verdict = (PermissionStatus, Option<String>);

/// What the answer makes of the request. `None`: that has been made of it before.
fn verdict(request: &PermissionRequest, entry: &ResumeEntry, now: Timestamp) -> Result<Option<Verdict>, Failure> {
    let is_cancel = entry.status == ResumeStatus::Cancelled;
    let (status, option_id) = match entry.option(&request.options).filter(|_| !is_cancel) {
        _ if is_cancel => (PermissionStatus::Cancelled, None),
        Some(option) if option.kind.allows() => (PermissionStatus::Allowed, Some(option.option_id.clone())),
        Some(option) => (PermissionStatus::Denied, Some(option.option_id.clone())),
        None => return Err(invalid("interrupt-answer", "the interrupt offers no such answer")),
    };
    let is_late = request.deadline <= now;
    match request.status {
        PermissionStatus::Pending if is_late && !is_cancel => Err(expired()),
        PermissionStatus::Pending => Ok(Some((status, option_id))),
        stands if stands == status && request.option_id == option_id => Ok(None),
        // Giving up a request that was resolved elsewhere changes nothing, and shows the client what came of it. A stock
        // client has no other way to let go of an interrupt that has expired.
        _ if is_cancel => Ok(None),
        _ if is_late => Err(expired()),
        _ => Err(invalid("interrupt-resolved", "the interrupt has been answered otherwise")),
    }
}

fn expired() -> Failure {
    invalid("interrupt-expired", "the interrupt has expired; it can only be cancelled")
}
