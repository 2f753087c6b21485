//! Permission requests: opened by a runner's event, decided by votes, resolved as cancelled by cancel or deadline. A rejected
//! vote is recorded, up to a limit: the other failure that leaves a trace on purpose.

use serde_json::json;

use super::{
    Reply,
    desk::{Desk, RunDesk, Tracked},
};
use crate::{
    Failure, Rule, Timestamp,
    ids::{CommandId, PermissionId, RunId},
    kernel::{
        events::{EventType, NewEvent},
        permissions::{
            AskPermission, Ballot, Choice, EditedArguments, EligibleVoter, PermissionRequest, PermissionStatus,
            PermissionStrategy, Vote, VoteRefusal, Voter, VotingRules, resolved_by,
        },
    },
    limits::PERMISSION_REFUSALS_MAX,
};

/// The actions of `audit` events about votes.
pub const ACTION_STRATEGY: &str = "permission.strategy";
pub const ACTION_VOTED: &str = "permission.voted";
pub const ACTION_FORBIDDEN: &str = "permission.forbidden";

#[derive(Clone, Debug)]
pub struct AnswerPermissionOp {
    pub permission_id: PermissionId,
    /// [`Choice::Cancel`] is not subject to the strategy, the digest or the deadline.
    pub choice: Choice,
    /// The digest the voter saw. `None` if the voter's protocol has none.
    pub digest: Option<String>,
    pub voter: Voter,
}

/// A request that a runner reported in a well-formed event.
pub(super) struct ReportedPermission {
    pub(super) command_id: CommandId,
    pub(super) ask: AskPermission,
    pub(super) event: NewEvent,
}

/// Writes the request with the deadline that holds for it. `joined`: the round of the request together with which people see this
/// one. Returns its own round.
pub(super) fn ask(
    desk: &mut Desk,
    run_id: RunId,
    request: ReportedPermission,
    joined: Option<i64>,
    voting: VotingRules,
    now: Timestamp,
) -> i64 {
    let ReportedPermission { command_id, ask, event } = request;
    let waits_ms_max = desk.run_mut(run_id).run.execution_policy.permission_timeout_ms;
    let deadline = ask.waits_until(now, waits_ms_max);
    desk.append(run_id, event.with_deadline(deadline), now);
    let asked_seq = desk.session.last_seq;
    let ballot = ballot(desk, run_id, command_id, voting);
    let round = joined.or_else(|| round(desk.run_mut(run_id), command_id)).unwrap_or(asked_seq);
    let request = PermissionRequest {
        permission_id: ask.permission_id,
        run_id,
        session: desk.session.session,
        command_id,
        deadline,
        round,
        title: ask.title,
        command: ask.command,
        tool_call_id: ask.tool_call_id,
        options: ask.options,
        digest: ask.digest.to_ascii_lowercase(),
        server_digest: ask.server_digest,
        editable: ask.editable,
        edited: None,
        status: PermissionStatus::Pending,
        option_id: None,
        resolved_by: None,
        resolved_at: None,
        resolved_seq: None,
        ballot: ballot.clone(),
        created_at: now,
    };
    let (permission_id, too_late) = (request.permission_id, request.deadline <= now);
    let rows = desk.run_mut(run_id);
    rows.run.open_permissions += 1;
    rows.permissions.insert(permission_id, Tracked::new(request));
    if !ballot.strategy.is_first_responder() {
        let fact = json!({"action": ACTION_STRATEGY, "permissionId": permission_id, "strategy": ballot.strategy,
            "voters": ballot.voters, "quorum": ballot.quorum});
        desk.append(run_id, NewEvent::written(EventType::Audit, Some(command_id), &fact), now);
    }
    let rows = desk.run_mut(run_id);
    // The agent may have sent it before the runner learned that the command is to stop.
    let to_stop = rows.commands.get(&command_id).is_some_and(|command| command.cancel_requested_at.is_some());
    if too_late || to_stop {
        let by = if to_stop { resolved_by::CANCEL } else { resolved_by::DEADLINE };
        resolve(desk, run_id, permission_id, Verdict::cancelled(by), now);
    }
    round
}

/// Who may vote on a request of the command that is issued now.
fn ballot(desk: &mut Desk, run_id: RunId, command_id: CommandId, voting: VotingRules) -> Ballot {
    let rows = desk.run_mut(run_id);
    let strategy = voting.strategy_of(rows.run.execution_policy.permission_strategy);
    let command = rows.commands.get(&command_id);
    let originator = command.map_or_else(EligibleVoter::default, |command| EligibleVoter {
        client: command.origin.clone(),
        principal: command.submitted_by.clone(),
    });
    Ballot::issue(strategy, voting.quorum, originator, &desk.session.participants)
}

/// The round that a new request joins: of those that wait for people to be done with the round before. `None`: one of
/// its own.
fn round(rows: &RunDesk, command_id: CommandId) -> Option<i64> {
    let first = open(rows, command_id).map(|request| request.round).min()?;
    open(rows, command_id).map(|request| request.round).find(|round| *round > first)
}

/// The command's open requests.
fn open(rows: &RunDesk, command_id: CommandId) -> impl Iterator<Item = &PermissionRequest> {
    let is_open = move |p: &&PermissionRequest| p.status == PermissionStatus::Pending && p.command_id == command_id;
    rows.permissions.values().map(|p| &**p).filter(is_open)
}

/// The open requests that are put to people now.
pub(super) fn put(rows: &RunDesk, command_id: CommandId) -> Vec<&PermissionRequest> {
    let first = open(rows, command_id).map(|request| request.round).min();
    open(rows, command_id).filter(|request| Some(request.round) == first).collect()
}

/// A malformed request counts as denied, and is stored under its id where that could be read, for the runner that waits
/// for it.
pub(super) fn deny_unread(
    desk: &mut Desk,
    run_id: RunId,
    command_id: CommandId,
    permission_id: Option<PermissionId>,
    now: Timestamp,
) {
    let asked_seq = desk.session.last_seq;
    let reason = "the request could not be read or is over-long";
    let fact = json!({"permissionId": permission_id, "status": PermissionStatus::Denied, "resolvedBy": resolved_by::SERVER,
        "reason": reason});
    desk.append(run_id, NewEvent::written(EventType::PermissionResolved, Some(command_id), &fact), now);
    let Some(permission_id) = permission_id else { return };
    let request = PermissionRequest {
        permission_id,
        run_id,
        session: desk.session.session,
        command_id,
        title: reason.into(),
        command: None,
        tool_call_id: None,
        options: vec![],
        digest: String::new(),
        server_digest: None,
        editable: None,
        edited: None,
        deadline: now,
        round: asked_seq,
        status: PermissionStatus::Denied,
        option_id: None,
        resolved_by: Some(resolved_by::SERVER.into()),
        resolved_at: Some(now),
        resolved_seq: Some(desk.session.last_seq),
        ballot: Ballot::default(),
        created_at: now,
    };
    desk.run_mut(run_id).permissions.insert(permission_id, Tracked::new(request));
}

pub(super) fn answer(desk: &mut Desk, run_id: RunId, op: AnswerPermissionOp, now: Timestamp) -> Result<Reply, Failure> {
    let rows = desk.run(run_id)?;
    let request = rows.permissions.get(&op.permission_id).ok_or_else(|| Failure::not_found("permission request"))?;
    let (is_open, is_cancel) = (request.status == PermissionStatus::Pending, op.choice == Choice::Cancel);
    if !is_open || (request.deadline <= now && !is_cancel) {
        return already(request, &op);
    }
    if is_cancel {
        resolve(desk, run_id, op.permission_id, Verdict::of(PermissionStatus::Cancelled, None, &op.voter), now);
    } else {
        if !is_digest(request, op.digest.as_deref()) {
            let message = "the digest is not that of what will run; look at the request again";
            return Err(Failure::rule(Rule::PermissionDigest, message));
        }
        let option = op.choice.select(&request.options);
        let option =
            option.ok_or_else(|| Failure::invalid(Rule::PermissionOption, "the request has no such option"))?;
        let option_id = option.option_id.clone();
        check_voter(desk, run_id, op.permission_id, &op.voter, now)?;
        let ballot = &desk.run(run_id)?.permissions[&op.permission_id].ballot;
        if ballot.vote_of(&op.voter).is_some_and(|vote| vote.option_id != option_id) {
            let message = "this voter has already voted for another option; the request can still be cancelled";
            return Err(Failure::rule(Rule::PermissionVoted, message));
        }
        vote(desk, run_id, op.permission_id, &option_id, None, &op.voter, now);
    }
    desk.settle(run_id, now);
    let request = (*desk.run(run_id)?.permissions[&op.permission_id]).clone();
    Ok(Reply::Permission(Box::new(request)))
}

fn is_digest(request: &PermissionRequest, digest: Option<&str>) -> bool {
    digest.is_none_or(|digest| request.digest.eq_ignore_ascii_case(digest))
}

/// The same answer again is fine; another one, or one too late, is refused.
fn already(request: &PermissionRequest, op: &AnswerPermissionOp) -> Result<Reply, Failure> {
    let option_id = op.choice.select(&request.options).map(|option| &option.option_id);
    let is_same = match option_id {
        Some(option_id) => request.option_id.as_ref() == Some(option_id) && is_digest(request, op.digest.as_deref()),
        None => op.choice == Choice::Cancel && request.status == PermissionStatus::Cancelled,
    };
    if is_same {
        return Ok(Reply::Permission(Box::new(request.clone())));
    }
    let message = "the request has been resolved";
    Err(Failure::rule(Rule::PermissionResolved, message)
        .detail("status", request.status.as_str())
        .detail("resolvedBy", request.resolved_by.clone()))
}

/// Rejects a voter that the request's strategy excludes, and records that. The number of records is bounded, so that rejected
/// votes cannot fill the log.
pub(super) fn check_voter(
    desk: &mut Desk,
    run_id: RunId,
    permission_id: PermissionId,
    voter: &Voter,
    now: Timestamp,
) -> Result<(), Failure> {
    let request = &desk.run(run_id)?.permissions[&permission_id];
    let Err(refusal) = request.ballot.check(voter) else { return Ok(()) };
    if request.ballot.refusals < PERMISSION_REFUSALS_MAX {
        note_refusal(desk, run_id, permission_id, voter, refusal, now);
    }
    Err(Failure::rule(Rule::PermissionForbidden, refusal.message()).detail("reason", refusal.as_str()))
}

fn note_refusal(
    desk: &mut Desk,
    run_id: RunId,
    permission_id: PermissionId,
    voter: &Voter,
    refusal: VoteRefusal,
    now: Timestamp,
) {
    let request = desk.run_mut(run_id).permissions.get_mut(&permission_id).expect("found before");
    request.ballot.refusals += 1;
    let command_id = request.command_id;
    let fact = json!({"action": ACTION_FORBIDDEN, "permissionId": permission_id, "voter": voter.identity(),
        "reason": refusal.as_str()});
    desk.append(run_id, NewEvent::written(EventType::Audit, Some(command_id), &fact), now);
}

/// Counts the vote of an eligible voter for an option of an open request, and resolves the request if that decides it. A voter's
/// second vote changes nothing.
pub(super) fn vote(
    desk: &mut Desk,
    run_id: RunId,
    permission_id: PermissionId,
    option_id: &str,
    edited: Option<EditedArguments>,
    voter: &Voter,
    now: Timestamp,
) {
    let seq = desk.session.last_seq + 1;
    let request = desk.run_mut(run_id).permissions.get_mut(&permission_id).expect("found before");
    if request.ballot.vote_of(voter).is_some() {
        return;
    }
    let decides = request.ballot.decides(option_id);
    if request.ballot.strategy == PermissionStrategy::Consensus {
        request.ballot.votes.push(Vote { voter: voter.identity().to_owned(), option_id: option_id.to_owned(), seq });
    }
    if decides {
        let allows = request.options.iter().any(|option| option.option_id == option_id && option.kind.allows());
        let status = if allows { PermissionStatus::Allowed } else { PermissionStatus::Denied };
        let verdict = Verdict { edited, ..Verdict::of(status, Some(option_id.to_owned()), voter) };
        return resolve(desk, run_id, permission_id, verdict, now);
    }
    let Ballot { quorum, votes, .. } = &request.ballot;
    let fact = json!({"action": ACTION_VOTED, "permissionId": permission_id, "optionId": option_id,
        "voter": voter.identity(), "votesReceived": votes.len(), "votesNeeded": quorum, "quorum": quorum,
        "optionTallies": request.ballot.tallies()});
    let command_id = request.command_id;
    desk.append(run_id, NewEvent::written(EventType::Audit, Some(command_id), &fact), now);
}

/// How a request is resolved, and by whom.
pub(super) struct Verdict<'a> {
    status: PermissionStatus,
    option_id: Option<String>,
    edited: Option<EditedArguments>,
    by: &'a str,
    voter: Option<&'a Voter>,
}

impl<'a> Verdict<'a> {
    pub(super) fn of(status: PermissionStatus, option_id: Option<String>, voter: &'a Voter) -> Self {
        Self { status, option_id, edited: None, by: &voter.principal, voter: Some(voter) }
    }

    /// The server itself cancels it, for the reason that `by` names.
    pub(super) fn cancelled(by: &'a str) -> Self {
        Self { status: PermissionStatus::Cancelled, option_id: None, edited: None, by, voter: None }
    }
}

/// Resolves every open request of the command, or of the run, as cancelled.
pub(super) fn cancel_open(desk: &mut Desk, run_id: RunId, command_id: Option<CommandId>, by: &str, now: Timestamp) {
    let open: Vec<_> = desk
        .run_mut(run_id)
        .permissions
        .values()
        .filter(|p| p.status == PermissionStatus::Pending && command_id.is_none_or(|id| id == p.command_id))
        .map(|p| p.permission_id)
        .collect();
    for permission_id in open {
        resolve(desk, run_id, permission_id, Verdict::cancelled(by), now);
    }
}

pub(super) fn resolve(
    desk: &mut Desk,
    run_id: RunId,
    permission_id: PermissionId,
    verdict: Verdict<'_>,
    now: Timestamp,
) {
    let Verdict { status, option_id, edited, by, voter } = verdict;
    let resolved_seq = desk.session.last_seq + 1;
    let rows = desk.run_mut(run_id);
    rows.run.open_permissions -= 1;
    let request = rows.permissions.get_mut(&permission_id).expect("found before");
    request.resolved_seq = Some(resolved_seq);
    request.status = status;
    request.option_id = option_id;
    request.edited = edited;
    request.resolved_by = Some(by.to_owned());
    request.resolved_at = Some(now);
    let mut fact = json!({"permissionId": permission_id, "status": status, "optionId": request.option_id,
        "digest": request.digest, "resolvedBy": by});
    if let Some(edited) = &request.edited {
        fact["edited"] = json!(edited);
    }
    let is_vote = |voter: &&Voter| voter.client.is_some() || !request.ballot.strategy.is_first_responder();
    if let Some(voter) = voter.filter(is_vote) {
        fact["voter"] = voter.identity().into();
    }
    let command_id = request.command_id;
    desk.append(run_id, NewEvent::written(EventType::PermissionResolved, Some(command_id), &fact), now);
}
