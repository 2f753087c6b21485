//! Aliases of commands: the ids that clients chose for what they submitted.

use ostler_protocol::{
    ids::{CommandId, SessionId},
    kernel::aliases::CommandAlias,
};

use crate::{
    db::Db,
    error::StoreError,
    record::{record, text},
};

record! {
    CommandAlias, alias in "command_aliases";
    key {
        session = "session_id": id;
        alias: text;
    }
    fixed {
        command_id: id;
        request_hash: text;
        after_seq: int;
        parent: opt_text;
        created_at: time;
    }
    state {}
}

/// The newest alias of a command.
pub async fn find_by_command(db: &Db, command_id: CommandId) -> Result<Option<CommandAlias>, StoreError> {
    let newest = "WHERE t.command_id = $1 ORDER BY t.after_seq DESC LIMIT 1";
    Ok(db.select::<CommandAlias>(newest, vec![text(command_id)]).await?.pop())
}

/// The alias under which a command was submitted. Later ones belong to answers to its permission requests.
pub async fn find_first_by_command(db: &Db, command_id: CommandId) -> Result<Option<CommandAlias>, StoreError> {
    let first = "WHERE t.command_id = $1 ORDER BY t.after_seq, t.alias LIMIT 1";
    Ok(db.select::<CommandAlias>(first, vec![text(command_id)]).await?.pop())
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
