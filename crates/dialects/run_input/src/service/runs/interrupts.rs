//! The permission requests that interrupts stand for. An attempt that continues a turn, after a restart of the server or the loss of its
//! runner, makes its requests again under other ids. A client answers by the id that it was shown.

use std::time::Duration;

use ostler_protocol::{
    Failure, Rule,
    ids::{PermissionId, RunId},
    kernel::{
        events::{Event, EventType},
        operations::{Choice, Submission},
        permissions::{PermissionRequest, PermissionStatus, resolved_by},
        sessions::Session,
    },
};
use ostler_server::{app::App, recheck::SessionWatch};
use ostler_store as store;
use tokio::time::Instant;

/// How long the next attempt is waited for, in all answers of one request together.
const REQUESTED_AGAIN_WITHIN: Duration = Duration::from_secs(10);
/// How long is left once the attempt has made another request: one for another call of the same reply may follow.
const OTHERS_FOLLOW_WITHIN: Duration = Duration::from_millis(200);

/// Until when answers may wait for the next attempt.
pub(super) fn wait_until() -> Instant {
    Instant::now() + REQUESTED_AGAIN_WITHIN
}

/// The current request of an interrupt with this id: the one of this id, or the same one of a later attempt. If the next attempt
/// has not made the request again yet, this waits for it for a while. `None` if the run has no such request.
pub(super) async fn current_request(
    app: &App,
    thread: &Session,
    (run_id, permission_id): (RunId, PermissionId),
    mut until: Instant,
) -> Result<Option<PermissionRequest>, Failure> {
    let mut watch = SessionWatch::new(app, thread.session);
    loop {
        let found = store::kernel::permissions::get(&app.db, run_id, permission_id).await?;
        let Some(request) = found else { return Ok(None) };
        let request = latest(app, request).await?;
        if Instant::now() >= until || !awaits_attempt(app, &request).await? {
            return Ok(Some(request));
        }
        if is_superseded(&request) && asks_otherwise(app, &request).await? {
            until = until.min(Instant::now() + OTHERS_FOLLOW_WITHIN);
        }
        tokio::select! {
            () = watch.changed(until, may_change) => {}
            () = app.drained() => app.accepting()?,
        }
    }
}

/// The failure of an answer to a request that no attempt has made again.
pub(super) async fn not_requested_again(app: &App, request: &PermissionRequest) -> Result<Failure, Failure> {
    let pending = store::kernel::permissions::list_open(&app.db, request.run_id).await?;
    let ids: Vec<_> = pending.iter().map(|pending| pending.permission_id.to_string()).collect();
    let message = "the agent was started again, and has not requested this permission again";
    Ok(Failure::rule(Rule::InterruptUnknown, message).detail("interruptIds", ids))
}

fn may_change(event: &Event) -> bool {
    use EventType::{Lease, PermissionRequest, PermissionResolved, TerminalStatus};
    matches!(event.event_type, Lease | PermissionRequest | PermissionResolved | TerminalStatus)
}

/// Whether the attempt that made the request is gone, so that the next one may make it again.
async fn awaits_attempt(app: &App, request: &PermissionRequest) -> Result<bool, Failure> {
    if request.status == PermissionStatus::Pending {
        let lease = store::kernel::leases::get(&app.db, request.run_id).await?;
        return Ok(lease.is_none_or(|lease| !lease.is_live(app.now())));
    }
    if !is_superseded(request) {
        return Ok(false);
    }
    let state = store::kernel::commands::get_state(&app.db, request.command_id).await?;
    Ok(state.is_some_and(|state| !state.is_terminal()))
}

/// Whether the agent waits for the answer to another request of the same command.
async fn asks_otherwise(app: &App, request: &PermissionRequest) -> Result<bool, Failure> {
    let pending = store::kernel::permissions::list_open(&app.db, request.run_id).await?;
    Ok(pending.iter().any(|pending| pending.command_id == request.command_id))
}

/// Whether the request was cancelled because another attempt has begun.
pub(super) fn is_superseded(request: &PermissionRequest) -> bool {
    request.status == PermissionStatus::Cancelled && request.resolved_by.as_deref() == Some(resolved_by::NEW_ATTEMPT)
}

/// The requests that a submission allows or denies. Cancelling a request that is superseded needs no other attempt.
pub(super) fn answered_by(work: &Submission) -> Vec<PermissionId> {
    match work {
        Submission::Answers { answers, .. } => {
            let decided = answers.iter().filter(|answer| answer.choice != Choice::Cancel);
            decided.map(|answer| answer.permission_id).collect()
        }
        Submission::Turn { .. } | Submission::QueuedTurn { .. } => vec![],
    }
}

/// Whether another attempt has begun since one of the requests was made.
pub(super) async fn is_any_superseded(app: &App, thread: &Session, requests: &[PermissionId]) -> Result<bool, Failure> {
    let Some(run_id) = thread.last_run_id else { return Ok(false) };
    for permission_id in requests {
        let found = store::kernel::permissions::get(&app.db, run_id, *permission_id).await?;
        if found.is_some_and(|request| is_superseded(&request)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The request as the latest attempt has made it.
async fn latest(app: &App, request: PermissionRequest) -> Result<PermissionRequest, Failure> {
    if !is_superseded(&request) {
        return Ok(request);
    }
    let all = store::kernel::permissions::list_by_command(&app.db, request.run_id, request.command_id).await?;
    Ok(latest_of(&all, &request).clone())
}

/// The same among all requests of the command, oldest first.
fn latest_of<'a>(all: &'a [PermissionRequest], mut request: &'a PermissionRequest) -> &'a PermissionRequest {
    while let Some(next) = successor(all, request) {
        request = next;
    }
    request
}

/// The same request of the first later attempt that has made it. Attempts in between may have ended before they came to it. Of several
/// equal requests, which an agent makes for equal calls, each has its own successor.
fn successor<'a>(all: &'a [PermissionRequest], request: &PermissionRequest) -> Option<&'a PermissionRequest> {
    let superseded_at = request.resolved_at.filter(|_| is_superseded(request))?;
    let equal = all.iter().filter(|other| is_same(other, request));
    let (before, after): (Vec<_>, Vec<_>) =
        equal.partition(|other| is_superseded(other) && other.resolved_at == Some(superseded_at));
    let place = before.iter().position(|other| other.permission_id == request.permission_id)?;
    // An attempt ends where its requests are superseded. An attempt that has made none counts as a part of the next one.
    let ends = all.iter().filter(|other| is_superseded(other)).filter_map(|other| other.resolved_at);
    let mut ends: Vec<_> = ends.filter(|end| *end > superseded_at).collect();
    ends.sort_unstable();
    ends.dedup();
    let starts = [superseded_at].into_iter().chain(ends.iter().copied());
    let mut attempts = starts.zip(ends.iter().copied().map(Some).chain([None]));
    attempts.find_map(|(start, end)| {
        let is_of_attempt =
            |other: &&&PermissionRequest| other.created_at >= start && end.is_none_or(|end| other.created_at < end);
        after.iter().filter(is_of_attempt).nth(place).copied()
    })
}

/// Whether a person who has seen one of the requests knows what the other one is about. A request about a tool of an MCP server is not
/// the same after the server was configured differently: another program, or another machine, may answer under its name.
fn is_same(one: &PermissionRequest, other: &PermissionRequest) -> bool {
    one.command_id == other.command_id
        && one.digest == other.digest
        && one.server_digest == other.server_digest
        && one.title == other.title
        && one.command == other.command
        && one.options == other.options
        && one.editable == other.editable
}

#[cfg(test)]
mod tests {
    use ostler_protocol::Timestamp;
    use serde_json::json;

    use super::*;

    /// The second in which an attempt begins. It supersedes the open requests of the one before.
    fn begin_of(attempt: u32) -> i64 {
        i64::from(attempt) * 100
    }

    /// The `number`th request of an attempt. `last` is the latest attempt: requests of earlier ones are superseded.
    fn request(attempt: u32, number: u32, title: &str, last: u32) -> PermissionRequest {
        let time = |second| Timestamp::from_second(second).unwrap();
        let is_open = attempt == last;
        let resolved_by = (!is_open).then_some(resolved_by::NEW_ATTEMPT);
        serde_json::from_value(json!({
            "permissionId": format!("prm_{attempt:016x}{number:016x}"), "runId": format!("run_{:032x}", 1),
            "commandId": format!("cmd_{:032x}", 1), "title": title, "command": title, "toolCallId": null,
            "options": [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}], "digest": title,
            "deadline": time(10_000), "status": if is_open { "pending" } else { "cancelled" }, "optionId": null,
            "resolvedBy": resolved_by, "resolvedAt": (!is_open).then(|| time(begin_of(attempt + 1))),
            "createdAt": time(begin_of(attempt) + i64::from(number)),
        }))
        .unwrap()
    }

    #[test]
    fn a_request_is_followed_over_all_attempts_that_made_it() {
        let all = [1, 2, 3].map(|attempt| request(attempt, 1, "push", 3));
        for request in &all {
            assert_eq!(latest_of(&all, request), &all[2]);
        }
    }

    #[test]
    fn a_request_is_found_in_a_later_attempt_if_the_one_between_did_not_make_it() {
        let all =
            [request(1, 1, "push", 3), request(2, 1, "pull", 3), request(3, 1, "pull", 3), request(3, 2, "push", 3)];
        assert_eq!(latest_of(&all, &all[0]), &all[3]);
        assert_eq!(latest_of(&all, &all[1]), &all[2]);
        // The attempt between made no request at all.
        let all = [request(1, 1, "push", 3), request(3, 1, "push", 3)];
        assert_eq!(latest_of(&all, &all[0]), &all[1]);
    }

    #[test]
    fn each_of_several_equal_requests_is_followed_to_its_own_successor() {
        let all = [
            request(1, 1, "push", 3),
            request(1, 2, "push", 3),
            request(2, 1, "push", 3),
            request(3, 1, "push", 3),
            request(3, 2, "push", 3),
        ];
        assert_eq!(latest_of(&all, &all[0]), &all[3]);
        assert_eq!(latest_of(&all, &all[1]), &all[4], "the second attempt came to the first one only");
    }

    #[test]
    fn a_request_is_not_followed_to_a_tool_of_another_server() {
        let of_servers = |servers: [Option<&str>; 3]| {
            let number = |attempt: usize| u32::try_from(attempt + 1).unwrap();
            let requests = servers.into_iter().enumerate().map(|(attempt, server)| PermissionRequest {
                server_digest: server.map(str::to_owned),
                ..request(number(attempt), 1, "push", 3)
            });
            let all: Vec<_> = requests.collect();
            all.iter().position(|request| request == latest_of(&all, &all[0])).unwrap()
        };
        assert_eq!(of_servers([Some("a"), Some("a"), Some("a")]), 2);
        assert_eq!(of_servers([Some("a"), Some("b"), Some("b")]), 0, "the server was replaced");
        assert_eq!(of_servers([Some("a"), Some("b"), Some("a")]), 2, "and put back");
        assert_eq!(
            of_servers([None, Some("a"), Some("a")]),
            0,
            "an older release has not recorded which server it was"
        );
        assert_eq!(of_servers([Some("a"), None, None]), 0);
    }

    #[test]
    fn a_request_that_no_later_attempt_made_has_no_successor() {
        let all = [request(1, 1, "push", 3), request(2, 1, "pull", 3), request(3, 1, "pull", 3)];
        assert_eq!(latest_of(&all, &all[0]), &all[0]);
        let all = [request(1, 1, "push", 3), request(2, 1, "push", 3), request(3, 1, "pull", 3)];
        assert_eq!(latest_of(&all, &all[0]), &all[1], "the last attempt that made it");
        assert!(is_superseded(latest_of(&all, &all[0])), "it cannot be answered");
    }
}
