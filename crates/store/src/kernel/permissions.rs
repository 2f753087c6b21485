//! Permission requests.

use ostler_protocol::{
    Timestamp,
    ids::{CommandId, PermissionId, RunId, SessionId},
    kernel::permissions::{Ballot, PermissionRequest, PermissionStatus, PermissionStrategy},
    limits::PAGE_ITEMS_MAX,
};

use super::{conditions::unfinished, session_and_run};
use crate::{
    db::Db,
    error::StoreError,
    record::{record, text},
};

record! {
    PermissionRequest, request in "permissions";
    key {
        run_id: id;
        permission_id: id;
    }
    fixed {
        session = "session_id": id;
        command_id: id;
        title: text;
        command: opt_text;
        tool_call_id: opt_text;
        options: json;
        digest: text;
        server_digest: opt_text;
        editable: opt_json;
        deadline: time;
        round: int;
        // Most requests have none of these: the first valid answer decides.
        strategy: opt_named(PermissionStrategy) from (!request.ballot.strategy.is_first_responder()).then_some(request.ballot.strategy);
        voters: opt_json from (!request.ballot.voters.is_empty()).then_some(&request.ballot.voters);
        quorum: opt_int from request.ballot.quorum;
        created_at: time;
    }
    state {
        status: named(PermissionStatus);
        option_id: opt_text;
        edited: opt_json;
        resolved_by: opt_text;
        resolved_at: opt_time;
        resolved_seq: opt_int;
        votes: opt_json from (!request.ballot.votes.is_empty()).then_some(&request.ballot.votes);
        refusals: int from request.ballot.refusals;
    }
    build PermissionRequest {
        run_id,
        permission_id,
        session,
        command_id,
        title,
        command,
        tool_call_id,
        options,
        digest,
        server_digest,
        editable,
        deadline,
        round,
        created_at,
        status,
        option_id,
        edited,
        resolved_by,
        resolved_at,
        resolved_seq,
        ballot: Ballot {
            strategy: Option::unwrap_or_default(strategy),
            voters: Option::unwrap_or_default(voters),
            quorum,
            votes: Option::unwrap_or_default(votes),
            refusals,
        },
    };
}

pub async fn get(db: &Db, run_id: RunId, id: PermissionId) -> Result<Option<PermissionRequest>, StoreError> {
    Ok(db.select("WHERE t.run_id = $1 AND t.permission_id = $2", vec![text(run_id), text(id)]).await?.pop())
}

/// The run's requests, newest first.
pub async fn list(db: &Db, run_id: RunId) -> Result<Vec<PermissionRequest>, StoreError> {
    let limit = i64::from(PAGE_ITEMS_MAX).into();
    let rest = "WHERE t.run_id = $1 ORDER BY t.created_at DESC, t.permission_id DESC LIMIT $2";
    db.select(rest, vec![text(run_id), limit]).await
}

/// Every request of the run.
pub async fn list_by_run(db: &Db, run_id: RunId) -> Result<Vec<PermissionRequest>, StoreError> {
    db.select("WHERE t.run_id = $1 ORDER BY t.permission_id", vec![text(run_id)]).await
}

/// The requests of a command, in the order in which they were made.
pub async fn list_by_command(
    db: &Db,
    run_id: RunId,
    command_id: CommandId,
) -> Result<Vec<PermissionRequest>, StoreError> {
    let rest = "WHERE t.run_id = $1 AND t.command_id = $2 ORDER BY t.created_at, t.permission_id";
    db.select(rest, vec![text(run_id), text(command_id)]).await
}

/// The run's open requests, oldest first; never more than may be open at once.
pub async fn list_open(db: &Db, run_id: RunId) -> Result<Vec<PermissionRequest>, StoreError> {
    db.select("WHERE t.run_id = $1 AND t.status = 'pending' ORDER BY t.created_at", vec![text(run_id)]).await
}

/// The open requests of every run of the session, oldest first.
pub async fn list_pending_by_session(db: &Db, session: SessionId) -> Result<Vec<PermissionRequest>, StoreError> {
    let rest = "WHERE t.session_id = $1 AND t.status = 'pending' ORDER BY t.created_at, t.permission_id LIMIT $2";
    db.select(rest, vec![text(session), i64::from(PAGE_ITEMS_MAX).into()]).await
}

/// What has been resolved of the requests of the run's unfinished commands, in that order.
pub async fn list_resolved(db: &Db, run_id: RunId) -> Result<Vec<PermissionRequest>, StoreError> {
    let rest = format!(
        "JOIN commands c ON c.command_id = t.command_id AND {}
         WHERE t.run_id = $1 AND t.status <> 'pending' ORDER BY t.resolved_at, t.permission_id LIMIT $2",
        unfinished("c.")
    );
    db.select(&rest, vec![text(run_id), i64::from(PAGE_ITEMS_MAX).into()]).await
}

/// Open requests whose deadline has passed by `now`: work for the sweeper.
pub async fn list_overdue(db: &Db, now: Timestamp, limit: u32) -> Result<Vec<(SessionId, RunId)>, StoreError> {
    let sql =
        "SELECT DISTINCT session_id, run_id FROM permissions WHERE status = 'pending' AND deadline <= $1 LIMIT $2";
    db.read(sql, vec![now.into(), i64::from(limit).into()], session_and_run).await
}

/// The first deadline of an open request after `now`. `None` if there is none.
pub async fn next_deadline(db: &Db, now: Timestamp) -> Result<Option<Timestamp>, StoreError> {
    let sql = "SELECT deadline FROM permissions WHERE status = 'pending' AND deadline > $1 ORDER BY deadline LIMIT 1";
    Ok(db.read(sql, vec![now.into()], |row| row.at("deadline")?.time()).await?.pop())
}

/// Requests with this id, newest first. Runners choose the ids, so that runs may have the same.
pub async fn find_by_id(db: &Db, id: PermissionId, limit: u32) -> Result<Vec<PermissionRequest>, StoreError> {
    let rest = "WHERE t.permission_id = $1 ORDER BY t.created_at DESC LIMIT $2";
    db.select(rest, vec![text(id), i64::from(limit).into()]).await
}

/// The newest request with this id in a session.
pub async fn find_in_session(
    db: &Db,
    session: SessionId,
    id: PermissionId,
) -> Result<Option<PermissionRequest>, StoreError> {
    let rest = "WHERE t.permission_id = $1 AND t.session_id = $2 ORDER BY t.created_at DESC LIMIT 1";
    Ok(db.select(rest, vec![text(id), text(session)]).await?.pop())
}
