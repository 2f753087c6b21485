//! Commands.

use ostler_protocol::{
    Timestamp,
    ids::{CommandId, RunId, SessionId},
    kernel::commands::{Command, CommandState, CommandType},
};

use crate::{
    db::{Db, StoreError},
    record::{Kind::*, Reader, Record, Value, json, opt_text, text},
};

/// In SQL, next to the partial index that says the same.
pub(crate) const UNFINISHED: &str = "state IN ('pending', 'acked', 'running')";

impl Record for Command {
    const TABLE: &'static str = "commands";
    const KEY: usize = 1;
    const FIXED: usize = 10;
    const COLUMNS: &'static [(&'static str, crate::record::Kind)] = &[
        ("command_id", Text),
        ("run_id", Text),
        ("session_id", Text),
        ("seq", Int),
        ("type", Text),
        ("payload", Text),
        ("payload_hash", Text),
        ("idempotency_key", Text),
        ("target_command_id", Text),
        ("created_at", Int),
        ("state", Text),
        ("cancel_requested_at", Int),
        ("cancel_reason", Text),
        ("rolled_back_at", Int),
        ("acked_at", Int),
        ("deadline_at", Int),
        ("attempt_id", Text),
        ("terminal", Text),
        ("fold", Text),
        ("reply_session_seq", Int),
        ("updated_at", Int),
    ];

    fn key(&self) -> Vec<Value> {
        vec![text(self.command_id)]
    }

    fn fixed(&self) -> Vec<Value> {
        vec![
            text(self.command_id),
            text(self.run_id),
            text(self.session),
            self.seq.into(),
            self.command_type.as_str().into(),
            (&self.payload).into(),
            self.payload_hash.as_str().into(),
            self.idempotency_key.clone().into(),
            opt_text(self.target_command_id),
            self.created_at.into(),
        ]
    }

    fn state(&self) -> Vec<Value> {
        vec![
            self.state.as_str().into(),
            self.cancel_requested_at.into(),
            self.cancel_reason.clone().into(),
            self.rolled_back_at.into(),
            self.acked_at.into(),
            self.deadline_at.into(),
            opt_text(self.attempt_id),
            Value::Text(self.terminal.as_ref().map(|t| serde_json::to_string(t).expect("serialises"))),
            json(&self.fold),
            Value::Int(self.fold.pick().map(|pick| pick.session_seq)),
            self.updated_at.into(),
        ]
    }

    fn decode(row: &mut Reader<'_>) -> Result<Self, StoreError> {
        Ok(Self {
            command_id: row.id()?,
            run_id: row.id()?,
            session: row.id()?,
            seq: row.int()?,
            command_type: row.named(CommandType::parse)?,
            payload: row.raw_json()?,
            payload_hash: row.text()?,
            idempotency_key: row.opt_text()?,
            target_command_id: row.opt_id()?,
            created_at: row.time()?,
            state: row.named(CommandState::parse)?,
            cancel_requested_at: row.opt_time()?,
            cancel_reason: row.opt_text()?,
            rolled_back_at: row.opt_time()?,
            acked_at: row.opt_time()?,
            deadline_at: row.opt_time()?,
            attempt_id: row.opt_id()?,
            terminal: row.opt_json()?,
            fold: row.json()?,
            updated_at: {
                row.skip(1);
                row.time()?
            },
        })
    }
}

pub async fn get(db: &Db, command_id: CommandId) -> Result<Option<Command>, StoreError> {
    Ok(db.select::<Command>("WHERE t.command_id = $1", vec![text(command_id)]).await?.pop())
}

/// Every command of a run, by number.
pub async fn list_by_run(db: &Db, run_id: RunId) -> Result<Vec<Command>, StoreError> {
    db.select::<Command>("WHERE t.run_id = $1 ORDER BY t.seq", vec![text(run_id)]).await
}

/// The column of every command of a run that only searches read: the session's number of its reply.
pub async fn list_reply_seqs(db: &Db, run_id: RunId) -> Result<Vec<(CommandId, Option<i64>)>, StoreError> {
    let sql = "SELECT command_id, reply_session_seq FROM commands WHERE run_id = $1";
    db.read(sql, vec![text(run_id)], |row| Ok((row.id()?, row.opt_int()?))).await
}

/// The run's first command.
pub async fn get_first(db: &Db, run_id: RunId) -> Result<Option<Command>, StoreError> {
    Ok(db.select::<Command>("WHERE t.run_id = $1 AND t.seq = 1", vec![text(run_id)]).await?.pop())
}

/// Every unfinished command of a run, by number.
pub async fn list_unfinished(db: &Db, run_id: RunId) -> Result<Vec<Command>, StoreError> {
    db.select::<Command>(&format!("WHERE t.run_id = $1 AND t.{UNFINISHED} ORDER BY t.seq"), vec![text(run_id)]).await
}

/// Runs with a command that has run past its time.
pub async fn list_overdue(db: &Db, now: Timestamp, limit: u32) -> Result<Vec<(SessionId, RunId)>, StoreError> {
    let sql = format!(
        "SELECT session_id, run_id FROM commands WHERE deadline_at <= $1 AND {UNFINISHED} ORDER BY deadline_at LIMIT $2"
    );
    db.read(sql, vec![now.into(), i64::from(limit).into()], |row| Ok((row.id()?, row.id()?))).await
}
