//! Conversations: the messages of a session, all of them or those before a command.

use ostler_protocol::{
    Failure,
    ids::{CommandId, RunId, SessionId},
    kernel::{
        commands::Command,
        conversation::{Conversation, HistoryAttachment},
        events::Event,
        sessions::{ParentSession, Session},
        turns::{self, NumberedTurn},
    },
    limits::{CONVERSATION_EVENTS_MAX, PAGE_ITEMS_MAX},
};
use ostler_store as store;

use super::commands;
use crate::{app::App, auth::Principal, dialect::Dialects};

/// How many sessions a conversation goes back through, each continuing the one before. Those before them are left out.
const ANCESTORS_MAX: usize = 16;

/// A caller that may see the run may see the conversation that its agent continues, including messages of earlier runs of
/// the session.
pub async fn get(app: &App, caller: &Principal, run_id: RunId, command_id: CommandId) -> Result<Conversation, Failure> {
    let command = commands::get(app, caller, run_id, command_id).await?;
    let (parts, has_gap) = parts(app, command.session).await?;
    let (events, truncated) = events(app, &parts).await?;
    let before = Conversation::before(command_id, &events);
    let truncated = truncated || has_gap || before.truncated;
    Ok(Conversation { truncated, images: images(app, &command).await?, ..before })
}

/// The conversation of a session so far, without its images. The caller of this function authorises.
pub async fn of_session(app: &App, session: SessionId) -> Result<Conversation, Failure> {
    let (parts, has_gap) = parts(app, session).await?;
    let (events, truncated) = events(app, &parts).await?;
    let whole = Conversation::of(&events);
    Ok(Conversation { truncated: truncated || has_gap || whole.truncated, ..whole })
}

/// The conversation of the sessions that this one continues. `None` if it continues none.
pub async fn inherited(app: &App, session: &Session) -> Result<Option<Conversation>, Failure> {
    if session.parent.is_none() {
        return Ok(None);
    }
    let (mut parts, has_gap) = parts(app, session.session).await?;
    parts.pop();
    let (events, truncated) = events(app, &parts).await?;
    let inherited = Conversation::of(&events);
    Ok(Some(Conversation { truncated: truncated || has_gap || inherited.truncated, ..inherited }))
}

/// The events of which a conversation is folded. True: there are more of them.
async fn events(app: &App, parts: &[ParentSession]) -> Result<(Vec<Event>, bool), Failure> {
    let (mut events, mut truncated) = (vec![], false);
    for part in parts {
        let limit = PAGE_ITEMS_MAX as usize;
        let said =
            store::kernel::events::list_conversation(&app.db, part.session, part.seq, CONVERSATION_EVENTS_MAX, limit);
        let said = said.await?;
        truncated |= said.truncated;
        events.extend(said.events);
    }
    Ok((events, truncated))
}

/// The sessions whose events make up a session's conversation, each up to a number, the oldest first. True: some are missing,
/// because they were erased or there are too many.
pub async fn parts(app: &App, session: SessionId) -> Result<(Vec<ParentSession>, bool), Failure> {
    let (mut parts, mut next) = (vec![], Some(ParentSession { session, seq: i64::MAX }));
    while let Some(part) = next.filter(|_| parts.len() <= ANCESTORS_MAX) {
        let Some(found) = store::kernel::sessions::get(&app.db, part.session).await? else { break };
        parts.insert(0, part);
        next = found.parent;
    }
    Ok((parts, next.is_some()))
}

/// The turns of a session's conversation, in order. Turns that the session was rewound over are not among them.
pub async fn turns(app: &App, session: SessionId) -> Result<Vec<NumberedTurn>, Failure> {
    let mut marks = vec![];
    for part in parts(app, session).await?.0 {
        let limit = CONVERSATION_EVENTS_MAX as u32;
        marks.extend(store::kernel::turns::list_marks(&app.db, part.session, part.seq, limit).await?);
    }
    Ok(turns::current(marks))
}

async fn images(app: &App, command: &Command) -> Result<Vec<HistoryAttachment>, Failure> {
    match Dialects::of(app).iter().find_map(|dialect| dialect.pictures.as_ref()) {
        Some(pictures) => pictures(app.clone(), command.clone()).await,
        None => Ok(vec![]),
    }
}
