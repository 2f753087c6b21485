//! Permission requests: opened by a runner's event, answered once, resolved as cancelled by cancel or deadline.

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
        facts::Facts,
        permissions::{Asked, PermissionRequest, PermissionStatus, resolved_by},
    },
};

#[derive(Clone, Debug)]
pub struct AnswerPermissionOp {
    pub permission_id: PermissionId,
    pub option_id: String,
    pub digest: String,
    pub by: String,
}

/// Writes the request and, where it is malformed, its denial.
pub(super) fn ask(desk: &mut Desk, run_id: RunId, command_id: CommandId, event: NewEvent, now: Timestamp) {
    let Facts::Permission(request) = event.facts.clone() else { unreachable!("only permission requests ask") };
    desk.append(run_id, event, now);
    let asked_seq = desk.session.last_seq;
    let ask = match request {
        Asked::Well(ask) => *ask,
        Asked::Badly(permission_id) => return deny_unread(desk, run_id, command_id, permission_id, now),
    };
    let request = PermissionRequest {
        permission_id: ask.permission_id,
        run_id,
        session: desk.session.session,
        command_id,
        deadline: ask.waits_until(now),
        round: round(desk.run_mut(run_id), command_id).unwrap_or(asked_seq),
        title: ask.title,
        command: ask.command,
        tool_call_id: ask.tool_call_id,
        options: ask.options,
        digest: ask.digest.to_ascii_lowercase(),
        status: PermissionStatus::Pending,
        option_id: None,
        resolved_by: None,
        resolved_at: None,
        resolved_seq: None,
        created_at: now,
    };
    let (permission_id, too_late) = (request.permission_id, request.deadline <= now);
    let rows = desk.run_mut(run_id);
    rows.run.open_permissions += 1;
    rows.permissions.insert(permission_id, Tracked::new(request));
    // The agent may have sent it before the runner learned that the command is to stop.
    let to_stop = rows.commands.get(&command_id).is_some_and(|command| command.cancel_requested_at.is_some());
    if too_late || to_stop {
        let by = if to_stop { resolved_by::CANCEL } else { resolved_by::DEADLINE };
        resolve(desk, run_id, permission_id, PermissionStatus::Cancelled, None, by, now);
    }
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
fn deny_unread(
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
        deadline: now,
        round: asked_seq,
        status: PermissionStatus::Denied,
        option_id: None,
        resolved_by: Some(resolved_by::SERVER.into()),
        resolved_at: Some(now),
        resolved_seq: Some(desk.session.last_seq),
        created_at: now,
    };
    desk.run_mut(run_id).permissions.insert(permission_id, Tracked::new(request));
}

pub(super) fn answer(desk: &mut Desk, run_id: RunId, op: AnswerPermissionOp, now: Timestamp) -> Result<Reply, Failure> {
    let rows = desk.run(run_id)?;
    let request = rows.permissions.get(&op.permission_id).ok_or_else(|| Failure::not_found("permission request"))?;
    if request.status != PermissionStatus::Pending || request.deadline <= now {
        return already(request, &op);
    }
    if !request.digest.eq_ignore_ascii_case(&op.digest) {
        let message = "the digest is not that of what will run; look at the request again";
        return Err(Failure::rule(Rule::PermissionDigest, message));
    }
    let option = request.options.iter().find(|o| o.option_id == op.option_id);
    let option = option.ok_or_else(|| Failure::invalid(Rule::PermissionOption, "the request has no such option"))?;
    let status = if option.kind.allows() { PermissionStatus::Allowed } else { PermissionStatus::Denied };
    resolve(desk, run_id, op.permission_id, status, Some(op.option_id), &op.by, now);
    desk.settle(run_id, now);
    let request = (*desk.run(run_id)?.permissions[&op.permission_id]).clone();
    Ok(Reply::Permission(Box::new(request)))
}

/// The same answer again is fine; another one, or one too late, is refused.
fn already(request: &PermissionRequest, op: &AnswerPermissionOp) -> Result<Reply, Failure> {
    if request.option_id.as_deref() == Some(&op.option_id) && request.digest.eq_ignore_ascii_case(&op.digest) {
        return Ok(Reply::Permission(Box::new(request.clone())));
    }
    let message = "the request has been resolved";
    Err(Failure::rule(Rule::PermissionResolved, message)
        .detail("status", request.status.as_str())
        .detail("resolvedBy", request.resolved_by.clone()))
}

/// Resolves every open request of the command, or of the run.
pub(super) fn resolve_open(
    desk: &mut Desk,
    run_id: RunId,
    command_id: Option<CommandId>,
    status: PermissionStatus,
    by: &str,
    now: Timestamp,
) {
    let open: Vec<_> = desk
        .run_mut(run_id)
        .permissions
        .values()
        .filter(|p| p.status == PermissionStatus::Pending && command_id.is_none_or(|id| id == p.command_id))
        .map(|p| p.permission_id)
        .collect();
    for permission_id in open {
        resolve(desk, run_id, permission_id, status, None, by, now);
    }
}

pub(super) fn resolve(
    desk: &mut Desk,
    run_id: RunId,
    permission_id: PermissionId,
    status: PermissionStatus,
    option_id: Option<String>,
    by: &str,
    now: Timestamp,
) {
    let resolved_seq = desk.session.last_seq + 1;
    let rows = desk.run_mut(run_id);
    rows.run.open_permissions -= 1;
    let request = rows.permissions.get_mut(&permission_id).expect("found before");
    request.resolved_seq = Some(resolved_seq);
    request.status = status;
    request.option_id = option_id;
    request.resolved_by = Some(by.to_owned());
    request.resolved_at = Some(now);
    let fact = json!({"permissionId": permission_id, "status": status, "optionId": request.option_id,
        "digest": request.digest, "resolvedBy": by});
    let command_id = request.command_id;
    desk.append(run_id, NewEvent::written(EventType::PermissionResolved, Some(command_id), &fact), now);
}
