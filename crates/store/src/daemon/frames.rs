//! What the translation of events into frames reads beside the events themselves.

use ostler_protocol::{
    ids::{CommandId, PermissionId, RunId, SessionId},
    kernel::events::{Event, EventType},
};
use serde::Deserialize;

use crate::{
    db::Db,
    error::StoreError,
    kernel::events::{INDEXED, is_change, of_types},
    record::{Record, text},
};

/// The last event with a number above `after` and up to `until` whose payload was removed. `None` if all have theirs. Read from what
/// retention has recorded, so that a long session is not scanned.
pub async fn last_removed(db: &Db, session: SessionId, after: i64, until: i64) -> Result<Option<i64>, StoreError> {
    let sql = "SELECT MAX(removed.last_seq) FROM (
            SELECT p.through_seq AS last_seq FROM session_payload_removals p WHERE p.session_id = $1
            UNION ALL
            SELECT (SELECT e.session_seq FROM events e
                WHERE e.session_id = r.session_id AND e.run_id = r.run_id AND e.seq = r.through_seq) AS last_seq
            FROM payload_removals r WHERE r.session_id = $2
        ) AS removed";
    let args = vec![text(session), text(session)];
    let last = db.read_one(sql, args, |row| row.opt_int()).await?.flatten();
    Ok(last.map(|last| last.min(until)).filter(|last| *last > after))
}

/// Messages of a command, pieces of them, and the statuses between them, numbered above `after` and below `before`. The newest come
/// first.
pub async fn list_message_parts(
    db: &Db,
    session: SessionId,
    command_id: CommandId,
    (after, before): (i64, i64),
    limit: u32,
) -> Result<Vec<Event>, StoreError> {
    let names = <Event as Record>::NAMES;
    let sql = format!(
        "SELECT {names} FROM events WHERE session_id = $1 AND session_seq > $2 AND session_seq < $3 AND command_id = $4
            AND type IN ('assistant_delta', 'assistant_message', 'reasoning_delta', 'reasoning', 'backend_status')
        ORDER BY session_seq DESC LIMIT $5"
    );
    let args = vec![text(session), after.into(), before.into(), text(command_id), i64::from(limit).into()];
    db.read(sql, args, Event::decode).await
}

/// The first message of a command. `None` if the command has none. It is read from the index of messages, from the command's own
/// time on, so that neither a long session nor a long turn before the command has to be scanned.
pub async fn find_message(db: &Db, session: SessionId, command_id: CommandId) -> Result<Option<Event>, StoreError> {
    let names = <Event as Record>::NAMES;
    let sql = format!(
        "SELECT {names} FROM events e WHERE e.session_id = $1 AND {INDEXED} AND e.type = 'user_message'
            AND e.created_at >= (SELECT c.created_at FROM commands c WHERE c.command_id = $2) AND e.command_id = $3
        ORDER BY e.created_at, e.session_seq LIMIT 1"
    );
    db.read_one(sql, vec![text(session), text(command_id), text(command_id)], Event::decode).await
}

/// Whether an event of these types belongs to the command and is numbered above `after` and below `before` in the run.
pub async fn has_event_of(
    db: &Db,
    (session, run_id): (SessionId, RunId),
    command_id: CommandId,
    types: &[EventType],
    (after, before): (i64, i64),
) -> Result<bool, StoreError> {
    let sql = format!(
        "SELECT 1 FROM events WHERE session_id = $1 AND run_id = $2 AND seq > $3 AND seq < $4 AND command_id = $5 AND {}
        ORDER BY seq LIMIT 1",
        of_types(types)
    );
    let args = vec![text(session), text(run_id), after.into(), before.into(), text(command_id)];
    Ok(!db.read(sql, args, |_| Ok(())).await?.is_empty())
}

/// The last audit events that belong to the command and are numbered below `before` in the run. The newest come first.
pub async fn list_last_audits(
    db: &Db,
    (session, run_id): (SessionId, RunId),
    command_id: CommandId,
    before: i64,
    limit: u32,
) -> Result<Vec<Event>, StoreError> {
    let names = <Event as Record>::NAMES;
    let sql = format!(
        "SELECT {names} FROM events WHERE session_id = $1 AND run_id = $2 AND seq < $3 AND command_id = $4 AND {}
        ORDER BY seq DESC LIMIT $5",
        of_types(&[EventType::Audit])
    );
    let args = vec![text(session), text(run_id), before.into(), text(command_id), i64::from(limit).into()];
    db.read(sql, args, Event::decode).await
}

/// How many turns before a turn are looked at. Those that have not ended are among the last ones.
const EARLIER_TURNS_MAX: i64 = 64;

/// The number, in the run, of the last end of the turns before command `number`; 0 if there are none. `None` if one of them had
/// not ended at event `seq` of the run.
pub async fn find_end_of_earlier_turns(
    db: &Db,
    run_id: RunId,
    number: i64,
    seq: i64,
) -> Result<Option<i64>, StoreError> {
    #[derive(Deserialize)]
    struct End {
        seq: i64,
    }
    let sql = "SELECT terminal FROM commands WHERE run_id = $1 AND seq < $2 AND type = 'turn'
        ORDER BY seq DESC LIMIT $3";
    let args = vec![text(run_id), number.into(), EARLIER_TURNS_MAX.into()];
    let ends = db.read(sql, args, |row| row.opt_text()).await?;
    let end_by_then = |end: Option<String>| {
        let end = end.as_deref().and_then(|end| serde_json::from_str::<End>(end).ok());
        end.map(|end| end.seq).filter(|end| *end <= seq)
    };
    let ends: Option<Vec<i64>> = ends.into_iter().map(end_by_then).collect();
    Ok(ends.map(|ends| ends.into_iter().max().unwrap_or(0)))
}

/// How many late votes on the permission request were recorded in the session, counted up to `limit`. `after`: the event that
/// resolved the request.
pub async fn count_late_votes(
    db: &Db,
    session: SessionId,
    permission_id: PermissionId,
    after: i64,
    limit: u32,
) -> Result<usize, StoreError> {
    let sql = format!(
        "SELECT 1 FROM events WHERE session_id = $1 AND session_seq > $2 AND {}
         AND CAST(payload AS TEXT) LIKE $3 AND CAST(payload AS TEXT) LIKE $4 LIMIT $5",
        is_change(&["noted"])
    );
    let request = format!("%\"requestId\":\"{permission_id}\"%");
    let note = "%\"daemon.permission_already_resolved\"%";
    let args = vec![text(session), after.into(), request.into(), note.into(), i64::from(limit).into()];
    Ok(db.read(sql, args, |_| Ok(())).await?.len())
}
