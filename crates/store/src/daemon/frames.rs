//! What the translation of events into frames reads beside the events themselves.

use ostler_protocol::{
    ids::{CommandId, PermissionId, RunId, SessionId},
    kernel::events::Event,
};
use serde::Deserialize;

use crate::{
    db::Db,
    error::StoreError,
    kernel::events::is_change,
    record::{Record, text},
};

/// The last event with a number above `after` and up to `until` whose payload was removed. `None` if all have theirs.
pub async fn last_removed(db: &Db, session: SessionId, after: i64, until: i64) -> Result<Option<i64>, StoreError> {
    let sql = "SELECT MAX(session_seq) FROM events
        WHERE session_id = $1 AND session_seq > $2 AND session_seq <= $3 AND payload IS NULL";
    let args = vec![text(session), after.into(), until.into()];
    Ok(db.read_one(sql, args, |row| row.opt_int()).await?.flatten())
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

/// Events of a command numbered above `after` and below `before`. The newest come first.
pub async fn list_of_command(
    db: &Db,
    session: SessionId,
    command_id: CommandId,
    (after, before): (i64, i64),
    limit: u32,
) -> Result<Vec<Event>, StoreError> {
    let names = <Event as Record>::NAMES;
    let sql = format!(
        "SELECT {names} FROM events WHERE session_id = $1 AND session_seq > $2 AND session_seq < $3 AND command_id = $4
        ORDER BY session_seq DESC LIMIT $5"
    );
    let args = vec![text(session), after.into(), before.into(), text(command_id), i64::from(limit).into()];
    db.read(sql, args, Event::decode).await
}

/// How many turns before a turn are looked at. Those that have not ended are among the last ones.
const EARLIER_TURNS_MAX: i64 = 64;

/// Whether a turn before command `number` of the run had not ended at event `seq` of the run.
pub async fn had_unfinished_turn(db: &Db, run_id: RunId, number: i64, seq: i64) -> Result<bool, StoreError> {
    #[derive(Deserialize)]
    struct End {
        seq: i64,
    }
    let sql = "SELECT terminal FROM commands WHERE run_id = $1 AND seq < $2 AND type = 'turn'
        ORDER BY seq DESC LIMIT $3";
    let args = vec![text(run_id), number.into(), EARLIER_TURNS_MAX.into()];
    let ends = db.read(sql, args, |row| row.opt_text()).await?;
    let had_ended = |end: &Option<String>| {
        let end = end.as_deref().and_then(|end| serde_json::from_str::<End>(end).ok());
        end.is_some_and(|end| end.seq <= seq)
    };
    Ok(!ends.iter().all(had_ended))
}

/// Whether a late vote on the permission request was recorded in the session. `after`: the event that resolved the request.
pub async fn has_late_vote(
    db: &Db,
    session: SessionId,
    permission_id: PermissionId,
    after: i64,
) -> Result<bool, StoreError> {
    let sql = format!(
        "SELECT 1 FROM events WHERE session_id = $1 AND session_seq > $2 AND {}
         AND CAST(payload AS TEXT) LIKE $3 AND CAST(payload AS TEXT) LIKE $4 LIMIT 1",
        is_change(&["noted"])
    );
    let request = format!("%\"requestId\":\"{permission_id}\"%");
    let args = vec![text(session), after.into(), request.into(), "%\"daemon.permission_already_resolved\"%".into()];
    Ok(!db.read(sql, args, |_| Ok(())).await?.is_empty())
}
