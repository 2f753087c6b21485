//! Commands.

use ostler_protocol::{
    RawJson, Timestamp,
    ids::{CommandId, RunId, SessionId},
    kernel::commands::{Command, CommandState, CommandType},
    limits::PAGE_BYTES_MAX,
};

use super::{conditions::unfinished, session_and_run};
use crate::{
    db::Db,
    error::StoreError,
    record::{Reader, Record, record, select, text},
};

/// Rows that [`list_payloads_with`] reads at a time.
const PAYLOADS_CHUNK: usize = 8;

record! {
    Command, command in "commands";
    key {
        command_id: id;
    }
    fixed {
        run_id: id;
        session = "session_id": id;
        seq: int;
        command_type = "type": named(CommandType);
        payload: raw_json;
        payload_hash: text;
        idempotency_key: opt_text;
        origin: opt_text;
        submitted_by: opt_text;
        target_command_id: opt_id;
        created_at: time;
    }
    state {
        state: named(CommandState);
        cancel_requested_at: opt_time;
        cancel_reason: opt_text;
        rolled_back_at: opt_time;
        acked_at: opt_time;
        deadline_at: opt_time;
        attempt_id: opt_id;
        terminal: opt_json;
        fold: json;
        // Only searches read it.
        _reply_session_seq = "reply_session_seq": unread_int from command.fold.pick().map(|pick| pick.session_seq);
        updated_at: time;
    }
    build Command {
        command_id,
        run_id,
        session,
        seq,
        command_type,
        payload,
        payload_hash,
        idempotency_key,
        origin,
        submitted_by,
        target_command_id,
        created_at,
        state,
        cancel_requested_at,
        cancel_reason,
        rolled_back_at,
        acked_at,
        deadline_at,
        attempt_id,
        terminal,
        fold,
        updated_at,
    };
}

pub async fn get(db: &Db, command_id: CommandId) -> Result<Option<Command>, StoreError> {
    Ok(db.select::<Command>("WHERE t.command_id = $1", vec![text(command_id)]).await?.pop())
}

/// The state of a command. `None` if there is no such command.
pub async fn get_state(db: &Db, command_id: CommandId) -> Result<Option<CommandState>, StoreError> {
    let sql = "SELECT state FROM commands WHERE command_id = $1";
    db.read_one(sql, vec![text(command_id)], |row| row.named(CommandState::parse)).await
}

/// Whether a command of the run was submitted with this key.
pub async fn has_key(db: &Db, run_id: RunId, key: &str) -> Result<bool, StoreError> {
    let sql = "SELECT command_id FROM commands WHERE run_id = $1 AND idempotency_key = $2";
    Ok(db.read_one(sql, vec![text(run_id), key.into()], |row| row.text()).await?.is_some())
}

/// The command of a session that was submitted with this key to one of its runs. `None` if there is none.
pub async fn find_by_key(
    db: &Db,
    session: SessionId,
    session_name: &str,
    key: &str,
) -> Result<Option<Command>, StoreError> {
    // The session's runs are found by its name, and their commands by run and key: both have an index.
    let rest = "WHERE t.run_id IN (SELECT r.run_id FROM runs r WHERE r.session_name = $1 AND r.session_id = $2)
         AND t.idempotency_key = $3 LIMIT 1";
    Ok(db.select::<Command>(rest, vec![session_name.into(), text(session), key.into()]).await?.pop())
}

/// The payloads of a session's commands that have this text, the newest first. `None` if there are more than `limit`, or if they have
/// more bytes than a page.
pub async fn list_payloads_with(
    db: &Db,
    session: SessionId,
    session_name: &str,
    words: &str,
    limit: usize,
) -> Result<Option<Vec<RawJson>>, StoreError> {
    // A payload has up to half a mebibyte, so they are read in small parts.
    let order = db.byte_order();
    let mut payloads: Vec<RawJson> = vec![];
    let mut last: Option<(i64, String)> = None;
    loop {
        let mut args = vec![session_name.into(), text(session), format!("%{words}%").into()];
        let older = last.map(|(created_at, id)| {
            args.extend([created_at.into(), id.into()]);
            format!("AND (created_at, command_id{order}) < ($4, $5)")
        });
        let sql = format!(
            "SELECT payload, created_at, command_id FROM commands WHERE run_id IN (
                SELECT r.run_id FROM runs r WHERE r.session_name = $1 AND r.session_id = $2)
             AND CAST(payload AS TEXT) LIKE $3 {}
             ORDER BY created_at DESC, command_id{order} DESC LIMIT {PAYLOADS_CHUNK}",
            older.unwrap_or_default()
        );
        let decode = |row: &mut Reader<'_>| {
            let (payload, created_at) = (row.at("payload")?.raw_json()?, row.at("created_at")?.int()?);
            Ok((payload, created_at, row.at("command_id")?.text()?))
        };
        let chunk = db.read(sql, args, decode).await?;
        let is_last = chunk.len() < PAYLOADS_CHUNK;
        last = chunk.last().map(|(_, created_at, id)| (*created_at, id.clone()));
        payloads.extend(chunk.into_iter().map(|(payload, _, _)| payload));
        let bytes: usize = payloads.iter().map(RawJson::size).sum();
        if payloads.len() > limit || bytes > PAGE_BYTES_MAX {
            return Ok(None);
        }
        if is_last {
            return Ok(Some(payloads));
        }
    }
}

/// Every command of a run, by number.
pub async fn list_by_run(db: &Db, run_id: RunId) -> Result<Vec<Command>, StoreError> {
    db.select::<Command>("WHERE t.run_id = $1 ORDER BY t.seq", vec![text(run_id)]).await
}

/// The column of every command of a run that only searches read: the session's number of its reply.
pub async fn list_reply_seqs(db: &Db, run_id: RunId) -> Result<Vec<(CommandId, Option<i64>)>, StoreError> {
    let sql = "SELECT command_id, reply_session_seq FROM commands WHERE run_id = $1";
    db.read(sql, vec![text(run_id)], |row| Ok((row.at("command_id")?.id()?, row.at("reply_session_seq")?.opt_int()?)))
        .await
}

/// The run's first command.
pub async fn get_first(db: &Db, run_id: RunId) -> Result<Option<Command>, StoreError> {
    Ok(db.select::<Command>("WHERE t.run_id = $1 AND t.seq = 1", vec![text(run_id)]).await?.pop())
}

/// The run's last turn.
pub async fn get_last_turn(db: &Db, run_id: RunId) -> Result<Option<Command>, StoreError> {
    let last = "WHERE t.run_id = $1 AND t.type = 'turn' ORDER BY t.seq DESC LIMIT 1";
    Ok(db.select::<Command>(last, vec![text(run_id)]).await?.pop())
}

/// Every unfinished command of a run, by number.
pub async fn list_unfinished(db: &Db, run_id: RunId) -> Result<Vec<Command>, StoreError> {
    let sql = select!(Command, &format!("WHERE t.run_id = $1 AND {} ORDER BY t.seq", unfinished("t.")));
    db.read(sql, vec![text(run_id)], Command::decode).await
}

/// Runs with a command that has run past its time.
pub async fn list_overdue(db: &Db, now: Timestamp, limit: u32) -> Result<Vec<(SessionId, RunId)>, StoreError> {
    let sql = format!(
        "SELECT session_id, run_id FROM commands WHERE deadline_at <= $1 AND {} ORDER BY deadline_at LIMIT $2",
        unfinished("")
    );
    db.read(sql, vec![now.into(), i64::from(limit).into()], session_and_run).await
}

/// The first time after `now` at which an unfinished command will have run past its time. `None` if there is none.
pub async fn next_deadline(db: &Db, now: Timestamp) -> Result<Option<Timestamp>, StoreError> {
    let sql = format!(
        "SELECT deadline_at FROM commands WHERE deadline_at > $1 AND {} ORDER BY deadline_at LIMIT 1",
        unfinished("")
    );
    Ok(db.read(sql, vec![now.into()], |row| row.at("deadline_at")?.time()).await?.pop())
}
