//! Runs as AG-UI clients name them.

use ostler_protocol::{
    ids::{CommandId, SessionId},
    run_input::runs::AgentRun,
};

use crate::{
    db::{Db, StoreError},
    record::{Kind::*, Reader, Record, Value, text},
};

impl Record for AgentRun {
    const TABLE: &'static str = "agent_runs";
    const KEY: usize = 2;
    const FIXED: usize = 6;
    const COLUMNS: &'static [(&'static str, crate::record::Kind)] = &[
        ("session_id", Text),
        ("run_id", Text),
        ("command_id", Text),
        ("request_hash", Text),
        ("after_seq", Int),
        ("created_at", Int),
    ];

    fn key(&self) -> Vec<Value> {
        vec![text(self.session), self.run_id.as_str().into()]
    }

    fn fixed(&self) -> Vec<Value> {
        vec![
            text(self.session),
            self.run_id.as_str().into(),
            text(self.command_id),
            self.request_hash.as_str().into(),
            self.after_seq.into(),
            self.created_at.into(),
        ]
    }

    fn state(&self) -> Vec<Value> {
        vec![]
    }

    fn decode(row: &mut Reader<'_>) -> Result<Self, StoreError> {
        Ok(Self {
            session: row.id()?,
            run_id: row.text()?,
            command_id: row.id()?,
            request_hash: row.text()?,
            after_seq: row.int()?,
            created_at: row.time()?,
        })
    }
}

/// The newest that a command is known by.
pub async fn find_of_command(db: &Db, command_id: CommandId) -> Result<Option<AgentRun>, StoreError> {
    let newest = "WHERE t.command_id = $1 ORDER BY t.after_seq DESC LIMIT 1";
    Ok(db.select::<AgentRun>(newest, vec![text(command_id)]).await?.pop())
}

pub async fn get(db: &Db, session: SessionId, run_id: &str) -> Result<Option<AgentRun>, StoreError> {
    let named = "WHERE t.session_id = $1 AND t.run_id = $2";
    Ok(db.select::<AgentRun>(named, vec![text(session), run_id.into()]).await?.pop())
}

/// The number after which the events of a command come: that of the run which began it. Runs that resume it have later ones.
pub async fn first_seq(db: &Db, command_id: CommandId) -> Result<Option<i64>, StoreError> {
    let sql = "SELECT MIN(after_seq) FROM agent_runs WHERE command_id = $1";
    Ok(db.read_one(sql, vec![text(command_id)], |row| row.opt_int()).await?.flatten())
}
