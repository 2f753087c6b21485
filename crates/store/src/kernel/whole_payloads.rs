//! Whole payloads of commands whose own payload is a short form. They are written together with their commands.

use ostler_protocol::{
    RawJson,
    ids::{CommandId, SessionId},
};

use crate::{
    db::Db,
    error::StoreError,
    lane::AttachedRows,
    record::{insert, record, text},
};

pub(crate) struct StoredPayload {
    command_id: CommandId,
    session: SessionId,
    payload: RawJson,
}

record! {
    StoredPayload, stored in "command_payloads";
    key {
        command_id: id;
    }
    fixed {
        session = "session_id": id;
        payload: raw_json;
    }
    state {}
}

/// The row of a new command's whole payload, to be written together with the command.
pub fn rows_of_new(command_id: CommandId, session: SessionId, payload: RawJson) -> AttachedRows {
    AttachedRows(vec![insert(&StoredPayload { command_id, session, payload }, vec![], "")])
}

/// The whole payload of a command. `None` if nothing is stored beside it.
pub async fn get(db: &Db, command_id: CommandId) -> Result<Option<RawJson>, StoreError> {
    let found = db.select::<StoredPayload>("WHERE t.command_id = $1", vec![text(command_id)]).await?.pop();
    Ok(found.map(|stored| stored.payload))
}
