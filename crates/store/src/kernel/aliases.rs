//! Aliases of commands: the ids that clients chose for what they submitted.

use ostler_protocol::{
    ids::{CommandId, SessionId},
    kernel::aliases::CommandAlias,
};

use crate::{
    db::{Db, StoreError},
    record::{Kind::*, Reader, Record, Value, text},
};

impl Record for CommandAlias {
    const TABLE: &'static str = "command_aliases";
    const KEY: usize = 2;
    const FIXED: usize = 6;
    const COLUMNS: &'static [(&'static str, crate::record::Kind)] = &[
        ("session_id", Text),
        ("alias", Text),
        ("command_id", Text),
        ("request_hash", Text),
        ("after_seq", Int),
        ("created_at", Int),
    ];

    fn key(&self) -> Vec<Value> {
        vec![text(self.session), self.alias.as_str().into()]
    }

    fn fixed(&self) -> Vec<Value> {
        vec![
            text(self.session),
            self.alias.as_str().into(),
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
            alias: row.text()?,
            command_id: row.id()?,
            request_hash: row.text()?,
            after_seq: row.int()?,
            created_at: row.time()?,
        })
    }
}

/// The newest alias of a command.
pub async fn find_by_command(db: &Db, command_id: CommandId) -> Result<Option<CommandAlias>, StoreError> {
    let newest = "WHERE t.command_id = $1 ORDER BY t.after_seq DESC LIMIT 1";
    Ok(db.select::<CommandAlias>(newest, vec![text(command_id)]).await?.pop())
}

pub async fn get(db: &Db, session: SessionId, alias: &str) -> Result<Option<CommandAlias>, StoreError> {
    let named = "WHERE t.session_id = $1 AND t.alias = $2";
    Ok(db.select::<CommandAlias>(named, vec![text(session), alias.into()]).await?.pop())
}

/// The sequence number after which the events of a command come. Aliases of answers to it have higher ones.
pub async fn first_seq(db: &Db, command_id: CommandId) -> Result<Option<i64>, StoreError> {
    let sql = "SELECT MIN(after_seq) FROM command_aliases WHERE command_id = $1";
    Ok(db.read_one(sql, vec![text(command_id)], |row| row.opt_int()).await?.flatten())
}
