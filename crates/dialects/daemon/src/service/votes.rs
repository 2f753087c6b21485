//! Votes on permission requests. Whose vote counts is a rule of the kernel, the same for every dialect.

use ostler_protocol::{
    Failure, FailureKind, Rule,
    daemon::votes::CastVote,
    ids::PermissionId,
    kernel::{
        operations::AnswerPermissionOp,
        permissions::{Choice, PermissionRequest, PermissionStatus, PermissionStrategy, VoteRefusal},
    },
};
use ostler_server::{app::App, auth::Principal, net::Locality, service::permissions};
use ostler_store as store;
use serde_json::{Value, json};

use super::{
    clients,
    lookup::{self, OpenSession},
    notes::{self, Note},
    presence,
};

/// How many requests of one id are looked at. Runners choose the ids, so that runs may have the same.
const SAME_ID_MAX: u32 = 8;
/// How many late votes on one request are recorded. Each of them is an event of the session's log.
const LATE_VOTES_MAX: u32 = 16;

/// The caller of a vote.
pub(crate) struct VoteCaller<'a> {
    pub caller: &'a Principal,
    pub client: Option<&'a str>,
    pub locality: Locality,
}

fn unknown(request_id: &str, session_id: Option<&str>) -> Failure {
    let message = "no such permission request, or it was resolved";
    let failure = Failure::new(FailureKind::NotFound, message).detail("requestId", request_id);
    match session_id {
        Some(session_id) => failure.detail("sessionId", session_id),
        None => failure,
    }
}

/// Votes on a request of one session, or of any open session that the caller may control.
pub(crate) async fn cast(
    app: &App,
    vote_caller: VoteCaller<'_>,
    session_id: Option<&str>,
    request_id: &str,
    vote: &CastVote,
) -> Result<(), Failure> {
    let VoteCaller { caller, client, locality } = vote_caller;
    vote.outcome()?;
    let unknown = || unknown(request_id, session_id);
    let (open, request) = find(app, &vote_caller, session_id, request_id).await?;
    // A request that was resolved has no options any more, so that any vote on it is late.
    if request.status != PermissionStatus::Pending {
        report_late(app, &vote_caller, &open, &request).await?;
        return Err(unknown());
    }
    let choice = vote.choice(&request.options).map_err(|failure| failure.detail("requestId", request_id))?;
    if choice != Choice::Cancel {
        check_attached(app, &request, client).await?;
    }
    let voter = permissions::voter(caller, client.map(str::to_owned), locality);
    let op = AnswerPermissionOp { permission_id: request.permission_id, choice, digest: None, voter };
    match permissions::vote(app, caller, request.run_id, op).await {
        Ok(_) => Ok(()),
        Err(failure) if failure.broken_rule() == Some(Rule::PermissionResolved) => {
            let (open, request) = find(app, &vote_caller, session_id, request_id).await?;
            report_late(app, &vote_caller, &open, &request).await?;
            Err(unknown())
        }
        Err(failure) => Err(failure),
    }
}

/// The request, in an open session that the caller may control.
async fn find(
    app: &App,
    vote_caller: &VoteCaller<'_>,
    session_id: Option<&str>,
    request_id: &str,
) -> Result<(OpenSession, PermissionRequest), Failure> {
    let named = match session_id {
        Some(id) => Some(lookup::voted_session(app, vote_caller.caller, id, vote_caller.client).await?.0),
        None => None,
    };
    let permission_id: PermissionId = request_id.parse().map_err(|_| unknown(request_id, session_id))?;
    if let Some(open) = named {
        let session = open.session.session;
        let request = store::kernel::permissions::find_in_session(&app.db, session, permission_id).await?;
        return Ok((open, request.ok_or_else(|| unknown(request_id, session_id))?));
    }
    let requests = store::kernel::permissions::find_by_id(&app.db, permission_id, SAME_ID_MAX).await?;
    for request in requests {
        let session = store::kernel::sessions::get(&app.db, request.session).await?;
        let Some(session) = session else { continue };
        let found = lookup::voted_session(app, vote_caller.caller, &session.public_id(), vote_caller.client).await;
        match found {
            Ok((open, _)) if open.session.session == request.session => return Ok((open, request)),
            Ok(_) => {}
            // A session of another caller is not revealed.
            Err(failure) if matches!(failure.kind, FailureKind::NotFound | FailureKind::Forbidden) => {}
            Err(failure) => return Err(failure),
        }
    }
    Err(unknown(request_id, session_id))
}

/// Refuses a client that has left where only certain clients may vote. It votes on later requests when it has attached again.
async fn check_attached(app: &App, request: &PermissionRequest, client: Option<&str>) -> Result<(), Failure> {
    let refusal = match request.ballot.strategy {
        PermissionStrategy::Designated => VoteRefusal::DesignatedMismatch,
        PermissionStrategy::Consensus => VoteRefusal::NotAVoter,
        PermissionStrategy::FirstResponder | PermissionStrategy::LocalOnly => return Ok(()),
    };
    let Some(client_id) = client else { return Ok(()) };
    let found = store::daemon::clients::get(&app.db, client_id).await?;
    if let Some(found) = found.filter(|found| !presence::has_left(app, found)) {
        return clients::seen_again(app, &found).await;
    }
    let failure = Failure::rule(Rule::PermissionForbidden, "this client has left the session; attach again");
    Err(failure.detail("reason", refusal.as_str()))
}

/// Shows the session's clients that a vote came too late. Of very many late votes on a request, only the first are recorded.
async fn report_late(
    app: &App,
    vote_caller: &VoteCaller<'_>,
    open: &OpenSession,
    request: &PermissionRequest,
) -> Result<(), Failure> {
    let (session, resolved_seq) = (open.session.session, request.resolved_seq.unwrap_or_default());
    let counted =
        store::daemon::frames::count_late_votes(&app.db, session, request.permission_id, resolved_seq, LATE_VOTES_MAX);
    if counted.await? >= LATE_VOTES_MAX as usize {
        return Ok(());
    }
    let data = json!({"requestId": request.permission_id, "sessionId": open.session.public_id(),
        "outcome": outcome(request)});
    let client = vote_caller.client.map(str::to_owned);
    let note = Note { frame: "permission_already_resolved", data, client };
    notes::record(app, vote_caller.caller, open.session.session, &note).await
}

fn outcome(request: &PermissionRequest) -> Value {
    match &request.option_id {
        Some(option_id) => json!({"outcome": "selected", "optionId": option_id}),
        None => json!({"outcome": "cancelled"}),
    }
}
