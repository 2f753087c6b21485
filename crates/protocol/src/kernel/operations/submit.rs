//! Submits work under an alias that the client chose. A turn goes to the session's run, or to a new one; answers resolve the
//! permission requests that the session's agent waits for. The alias is written together with the work.

use serde_json::json;

use super::{
    Reply,
    admission::{check_accepting, session_busy},
    cancel, command,
    desk::{Desk, RunDesk, Tracked},
    permission,
    reply::Submitted,
    run::{self, CreateRunOp},
};
use crate::{
    Failure, FailureKind, Rule, Timestamp,
    ids::{CommandId, PermissionId, RunId},
    kernel::{
        aliases::{CommandAlias, OnBusy},
        commands::{Command, CommandType},
        events::{EventType, NewEvent, PHASE_ROLLED_BACK},
        permissions::{CheckedEdits, Choice, EditedArguments, PermissionRequest, PermissionStatus, Voter},
        runs::Run,
    },
};

#[derive(Clone, Debug)]
pub struct SubmitOp {
    pub alias: String,
    /// See [`CommandAlias::parent`].
    pub parent: Option<String>,
    pub request_hash: String,
    pub work: Submission,
    pub by: String,
}

#[derive(Clone, Debug)]
pub enum Submission {
    /// A turn. It comes with a run and a job, for a session without a run that accepts work.
    Turn { fresh: Box<CreateRunOp>, on_busy: OnBusy },
    /// As [`Submission::Turn`], but it waits for earlier turns, also while the agent waits for answers. It is rejected if the
    /// session has `turns_max` unfinished turns, or if it has none and was changed after `at_seq`, the session's last number when
    /// the caller decided on it.
    QueuedTurn { fresh: Box<CreateRunOp>, turns_max: usize, at_seq: i64 },
    /// Answers to every permission request that the session's agent waits for.
    Answers { answers: Vec<PermissionAnswer>, voter: Voter },
}

#[derive(Clone, Debug, PartialEq)]
pub struct PermissionAnswer {
    pub permission_id: PermissionId,
    pub choice: Choice,
    /// Arguments that replace those of the request.
    pub edited: Option<CheckedEdits>,
}

impl SubmitOp {
    /// The run that a turn creates.
    pub fn fresh_run(&self) -> Option<&CreateRunOp> {
        match &self.work {
            Submission::Turn { fresh, .. } | Submission::QueuedTurn { fresh, .. } => Some(fresh),
            Submission::Answers { .. } => None,
        }
    }

    /// Bytes of the turn's payload, counted once for its command and once for its event.
    pub fn bytes(&self) -> usize {
        let first = self.fresh_run().and_then(|fresh| fresh.start.as_ref());
        first.map_or(0, |(first, _)| first.command.payload.as_str().len() * 2)
    }

    pub fn permissions(&self) -> Vec<PermissionId> {
        match &self.work {
            Submission::Turn { .. } | Submission::QueuedTurn { .. } => vec![],
            Submission::Answers { answers, .. } => answers.iter().map(|answer| answer.permission_id).collect(),
        }
    }
}

/// `last` is the session's last run, as the caller has read it.
pub(super) fn submit(desk: &mut Desk, last: Option<RunId>, op: SubmitOp, now: Timestamp) -> Result<Reply, Failure> {
    if let Some(existing) = desk.aliases.get(&op.alias) {
        existing.check_same(&op.request_hash)?;
        let submitted = Submitted { alias: (**existing).clone(), is_new_session: false, started: None };
        return Ok(Reply::Submitted(Box::new(submitted)));
    }
    if desk.session.last_run_id != last {
        return Err(Failure::rule(Rule::SessionMovedOn, "the session has another run by now"));
    }
    let is_new_session = desk.session.last_seq == 0;
    let (command_id, after_seq, started) = match op.work {
        Submission::Turn { fresh, on_busy } => {
            check_nothing_open(desk, last)?;
            turn(desk, last, *fresh, on_busy, &op.by, now)?
        }
        Submission::QueuedTurn { fresh, turns_max, at_seq } => {
            if desk.session.active_unfinished == 0 && desk.session.last_seq != at_seq {
                return Err(Failure::rule(Rule::SessionMovedOn, "the session has changed since it was read"));
            }
            check_queue(desk, last, turns_max)?;
            turn(desk, last, *fresh, OnBusy::Enqueue, &op.by, now)?
        }
        Submission::Answers { answers, voter } => answer(desk, last, &answers, &voter, now)?,
    };
    let alias = CommandAlias {
        session: desk.session.session,
        alias: op.alias,
        command_id,
        request_hash: op.request_hash,
        after_seq,
        parent: op.parent,
        created_at: now,
    };
    desk.aliases.insert(alias.alias.clone(), Tracked::new(alias.clone()));
    Ok(Reply::Submitted(Box::new(Submitted { alias, is_new_session, started })))
}

/// The detail of a rejection that names the turn which keeps the session busy.
pub const ACTIVE_COMMAND: &str = "activeCommandId";

/// The command, the sequence number before its first event, and the run that was created for it.
type PlacedTurn = (CommandId, i64, Option<Run>);

fn turn(
    desk: &mut Desk,
    last: Option<RunId>,
    fresh: CreateRunOp,
    on_busy: OnBusy,
    by: &str,
    now: Timestamp,
) -> Result<PlacedTurn, Failure> {
    let existing = last.map(|run_id| desk.run(run_id)).transpose()?;
    let fits = |rows: &&RunDesk| check_accepting(&rows.run).is_ok() && can_reuse(&rows.run, &fresh.run);
    let Some(rows) = existing.filter(fits) else {
        let after_seq = desk.session.last_seq;
        let created = run::create(desk, fresh, now)?;
        let command = created.command.expect("it was started with its first command");
        return Ok((command.command_id, after_seq, Some(created.run)));
    };
    let run_id = rows.run.run_id;
    let (first, _) = fresh.start.expect("it comes with its first command");
    let message = command::CreateCommandOp { command: Command { run_id, ..first.command }, ..*first };
    // After these checks nothing is rejected, so that no turn is cancelled for one that is.
    command::check_room(desk, run_id, &message.command, now)?;
    let turns = |c: &&Command| c.command_type == CommandType::Turn;
    let working: Vec<_> = rows.unfinished().filter(turns).map(|c| c.command_id).collect();
    if on_busy == OnBusy::Reject && !working.is_empty() {
        return Err(session_busy(run_id).detail(ACTIVE_COMMAND, working[0].to_string()));
    }
    if matches!(on_busy, OnBusy::Interrupt | OnBusy::Rollback) {
        for command_id in working {
            replace_turn(desk, run_id, command_id, on_busy, by, now);
        }
    }
    let (command_id, after_seq) = (message.command.command_id, desk.session.last_seq);
    command::create(desk, run_id, message, now)?;
    Ok((command_id, after_seq, None))
}

/// Whether the session's run can take the turn in place of the fresh one: it has the same backend profile and policy, and
/// its own job starts it. A run that a client created in the session by other means is left alone.
fn can_reuse(run: &Run, fresh: &Run) -> bool {
    run.standing_job_id.is_some()
        && run.backend_profile == fresh.backend_profile
        && run.execution_policy == fresh.execution_policy
}

/// Cancels a turn that a newer one replaces.
fn replace_turn(desk: &mut Desk, run_id: RunId, command_id: CommandId, on_busy: OnBusy, by: &str, now: Timestamp) {
    if on_busy == OnBusy::Rollback {
        let command = desk.run_mut(run_id).commands.get_mut(&command_id).expect("unfinished, and so on the desk");
        if command.rolled_back_at.is_none() {
            command.rolled_back_at = Some(now);
            let fact = json!({"phase": PHASE_ROLLED_BACK, "by": by});
            desk.append(run_id, NewEvent::written(EventType::BackendStatus, Some(command_id), &fact), now);
        }
    }
    cancel::request_cancel(desk, run_id, command_id, by, Some("another message took its place"), None, now);
}

/// The detail of a rejection that counts the turns which are unfinished.
pub const UNFINISHED_TURNS: &str = "unfinishedTurns";

/// Whether one more turn may wait.
fn check_queue(desk: &Desk, last: Option<RunId>, turns_max: usize) -> Result<(), Failure> {
    let Some(rows) = last.map(|run_id| desk.run(run_id)).transpose()? else { return Ok(()) };
    let count = rows.unfinished().filter(|command| command.command_type == CommandType::Turn).count();
    if count < turns_max {
        return Ok(());
    }
    let message = format!("the session has {count} unfinished turns");
    Err(Failure::rule(Rule::CommandsUnfinished, message).detail(UNFINISHED_TURNS, count))
}

/// While the agent waits for answers, only answers are accepted.
fn check_nothing_open(desk: &Desk, last: Option<RunId>) -> Result<(), Failure> {
    let Some(rows) = last.map(|run_id| desk.run(run_id)).transpose()? else { return Ok(()) };
    let waiting = rows.unfinished().map(|command| permission::put(rows, command.command_id));
    match waiting.flatten().collect::<Vec<_>>() {
        open if open.is_empty() => Ok(()),
        open => Err(still_open(&open)),
    }
}

/// The detail that lists the permission requests which must be answered first.
pub const OPEN_PERMISSIONS: &str = "permissionIds";

fn still_open(open: &[&PermissionRequest]) -> Failure {
    let ids: Vec<_> = open.iter().map(|request| request.permission_id.to_string()).collect();
    let message = format!("the session waits for answers to permission requests: {}", ids.join(", "));
    Failure::rule(Rule::PermissionsOpen, message).detail(OPEN_PERMISSIONS, ids)
}

fn answer(
    desk: &mut Desk,
    last: Option<RunId>,
    answers: &[PermissionAnswer],
    voter: &Voter,
    now: Timestamp,
) -> Result<PlacedTurn, Failure> {
    let unknown = || Failure::rule(Rule::PermissionUnknown, "the session has no such permission request");
    let run_id = last.ok_or_else(unknown)?;
    let rows = desk.run(run_id)?;
    let (mut verdicts, mut placed) = (vec![], None);
    for (at, answer) in answers.iter().enumerate() {
        let request = rows.permissions.get(&answer.permission_id).ok_or_else(unknown)?;
        if answers[..at].iter().any(|other| other.permission_id == answer.permission_id) {
            return Err(Failure::rule(Rule::PermissionTwice, "a permission request is answered twice"));
        }
        // The events of an answer begin with the event that resolved the request, also if another client resolved it, or with
        // the one that recorded the same voter's vote.
        let recorded = request.resolved_seq.or_else(|| request.ballot.vote_of(voter).map(|vote| vote.seq));
        let after_seq = recorded.map_or(desk.session.last_seq, |seq| seq - 1);
        placed = match placed {
            Some((command_id, _)) if command_id != request.command_id => {
                return Err(Failure::rule(Rule::PermissionUnknown, "the permission requests are of different turns"));
            }
            Some((command_id, earliest)) => Some((command_id, after_seq.min(earliest))),
            None => Some((request.command_id, after_seq)),
        };
        let edited = edits(request, answer)?;
        let verdict = verdict(request, &answer.choice, edited.as_ref(), now)?;
        verdicts.extend(verdict.map(|option_id| (answer, option_id, edited)));
    }
    let (command_id, after_seq) = placed.ok_or_else(unknown)?;
    let is_left = |open: &&PermissionRequest| answers.iter().all(|answer| answer.permission_id != open.permission_id);
    let left: Vec<_> = permission::put(rows, command_id).into_iter().filter(is_left).collect();
    if !left.is_empty() {
        return Err(still_open(&left));
    }
    // A request that waits behind others was not shown to the client yet, so the client cannot answer it.
    let put = permission::put(rows, command_id);
    let is_put = |answer: &PermissionAnswer| put.iter().any(|request| request.permission_id == answer.permission_id);
    if !verdicts.iter().all(|(answer, ..)| is_put(answer)) {
        return Err(unknown());
    }
    let of_id = |(answer, option_id, edited): (&PermissionAnswer, _, _)| (answer.permission_id, option_id, edited);
    let votes: Vec<(_, Option<String>, _)> = verdicts.into_iter().map(of_id).collect();
    for (permission_id, ..) in votes.iter().filter(|(_, option_id, _)| option_id.is_some()) {
        permission::check_voter(desk, run_id, *permission_id, voter, now)?;
    }
    for (permission_id, option_id, edited) in votes {
        match option_id {
            Some(option_id) => permission::vote(desk, run_id, permission_id, &option_id, edited, voter, now),
            None => {
                let verdict = permission::Verdict::of(PermissionStatus::Cancelled, None, voter);
                permission::resolve(desk, run_id, permission_id, verdict, now);
            }
        }
    }
    desk.settle(run_id, now);
    Ok((command_id, after_seq, None))
}

/// The arguments that replace those of the request, if the answer has some. Only an answer that decides alone may: other voters
/// would not have seen them.
fn edits(request: &PermissionRequest, answer: &PermissionAnswer) -> Result<Option<EditedArguments>, Failure> {
    let Some(checked) = &answer.edited else { return Ok(None) };
    let rejected = |message: &str| Err(Failure::invalid(Rule::PermissionEdits, message));
    let edited = checked.fit(request.editable.as_ref(), &request.digest)?;
    if !answer.choice.select(&request.options).is_some_and(|option| option.kind.allows()) {
        return rejected("edited arguments need an answer that allows the request");
    }
    if !request.ballot.strategy.is_first_responder() {
        return rejected("arguments cannot be edited where several voters decide");
    }
    Ok(Some(edited.clone()))
}

/// The option to vote for, or `Some(None)` to cancel the request. `None` if the answer changes nothing.
fn verdict(
    request: &PermissionRequest,
    choice: &Choice,
    edited: Option<&EditedArguments>,
    now: Timestamp,
) -> Result<Option<Option<String>>, Failure> {
    let is_cancel = *choice == Choice::Cancel;
    let (status, option_id) = match choice.select(&request.options) {
        _ if is_cancel => (PermissionStatus::Cancelled, None),
        Some(option) if option.kind.allows() => (PermissionStatus::Allowed, Some(option.option_id.clone())),
        Some(option) => (PermissionStatus::Denied, Some(option.option_id.clone())),
        None => {
            let failure = Failure::rule(Rule::PermissionOption, "the permission request has no such option");
            return Err(failure.with_kind(FailureKind::StateConflict));
        }
    };
    let is_late = request.deadline <= now;
    match request.status {
        PermissionStatus::Pending if is_late && !is_cancel => Err(expired()),
        PermissionStatus::Pending => Ok(Some(option_id)),
        current if current == status && request.option_id == option_id && request.edited.as_ref() == edited => Ok(None),
        // Cancelling a request that was resolved elsewhere changes nothing, and shows the client how it was resolved. A
        // stock AG-UI client has no other way to drop a request that has expired.
        _ if is_cancel => Ok(None),
        _ if is_late => Err(expired()),
        _ => Err(Failure::rule(Rule::PermissionResolved, "the permission request was answered otherwise")),
    }
}

fn expired() -> Failure {
    Failure::rule(Rule::PermissionExpired, "the permission request has expired; it can only be cancelled")
}
