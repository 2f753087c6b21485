//! Conversations: what was said in a session before a command.

use ostler_protocol::{
    Failure,
    conversation::{Conversation, SAID},
    ids::{CommandId, RunId},
    limits::{CONVERSATION_EVENTS_MAX, PAGE_ITEMS_MAX},
};
use ostler_store as store;

use super::commands;
use crate::{
    app::{App, store_failure},
    auth::Principal,
};

/// Whoever may see the run may see what its agent goes on with, also where it was said in an earlier run of the session.
pub async fn get(app: &App, caller: &Principal, run_id: RunId, command_id: CommandId) -> Result<Conversation, Failure> {
    let command = commands::get(app, caller, run_id, command_id).await?;
    let said = store::events::list_newest(&app.db, command.session, &SAID, CONVERSATION_EVENTS_MAX, PAGE_ITEMS_MAX);
    Ok(Conversation::before(command_id, &said.await.map_err(store_failure)?))
}
