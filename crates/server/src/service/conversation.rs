//! Conversations: the messages of a session before a command.

use ostler_protocol::{
    Failure,
    ids::{CommandId, RunId},
    kernel::{
        commands::Command,
        conversation::{Conversation, HistoryAttachment, SAID},
    },
    limits::{CONVERSATION_EVENTS_MAX, PAGE_ITEMS_MAX},
};
use ostler_store as store;

use super::commands;
use crate::{app::App, auth::Principal, dialect::Dialects};

/// A caller that may see the run may see the conversation that its agent continues, including messages of earlier runs of
/// the session.
pub async fn get(app: &App, caller: &Principal, run_id: RunId, command_id: CommandId) -> Result<Conversation, Failure> {
    let command = commands::get(app, caller, run_id, command_id).await?;
    let messages = store::kernel::events::list_newest(
        &app.db,
        command.session,
        &SAID,
        CONVERSATION_EVENTS_MAX,
        PAGE_ITEMS_MAX as usize,
    );
    let messages = messages.await?;
    let before = Conversation::before(command_id, &messages.events);
    let truncated = before.truncated || messages.truncated;
    Ok(Conversation { truncated, images: images(app, &command).await?, ..before })
}

async fn images(app: &App, command: &Command) -> Result<Vec<HistoryAttachment>, Failure> {
    match Dialects::of(app).iter().find_map(|dialect| dialect.pictures.as_ref()) {
        Some(pictures) => pictures(app.clone(), command.clone()).await,
        None => Ok(vec![]),
    }
}
