//! Conversations: what was said in a session before a command.

use ostler_protocol::{
    Failure,
    ids::{CommandId, RunId},
    kernel::{
        commands::Command,
        conversation::{Conversation, HistoryAttachment, SAID},
    },
    limits::{CONVERSATION_EVENTS_MAX, PAGE_ITEMS_MAX},
    run_input::history::{Picture, pictures},
};
use ostler_store as store;

use super::{attachments, commands};
use crate::{
    app::{App, store_failure},
    auth::Principal,
};

/// Whoever may see the run may see what its agent goes on with, also where it was said in an earlier run of the session.
pub async fn get(app: &App, caller: &Principal, run_id: RunId, command_id: CommandId) -> Result<Conversation, Failure> {
    let command = commands::get(app, caller, run_id, command_id).await?;
    let said = store::kernel::events::list_newest(
        &app.db,
        command.session,
        &SAID,
        CONVERSATION_EVENTS_MAX,
        PAGE_ITEMS_MAX as usize,
    );
    let said = said.await.map_err(store_failure)?;
    let before = Conversation::before(command_id, &said.events);
    let truncated = before.truncated || said.truncated;
    Ok(Conversation { truncated, images: images(app, &command).await?, ..before })
}

/// The pictures of the command's message. Only those of its own thread are signed: a command can say anything.
async fn images(app: &App, command: &Command) -> Result<Vec<HistoryAttachment>, Failure> {
    let pictures = pictures(command.payload.as_str());
    if pictures.is_empty() {
        return Ok(vec![]);
    }
    let session = store::kernel::sessions::get(&app.db, command.session).await.map_err(store_failure)?;
    let signed = |picture: Picture| {
        let url = attachments::url_of_thread(app, session.as_ref()?, &picture)?;
        Some(HistoryAttachment { mime_type: picture.mime_type, url })
    };
    Ok(pictures.into_iter().filter_map(signed).collect())
}
