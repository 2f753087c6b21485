//! What a run's clients have from before the run: the thread's messages, and its state. Both are read from the log when a stream
//! needs them, so a stream that is read again has the same events.

use ostler_protocol::{
    Failure,
    ids::SessionId,
    kernel::events::{Event, EventType},
    limits::CONVERSATION_EVENTS_MAX,
    run_input::{
        agui::{events::SnapshotMessage, replay::RunReplay, translate::TranslatorState},
        history::Picture,
    },
};
use ostler_store::{self as store, kernel::events::Bounds};
use serde_json::Value;

use crate::service::attachments;
use ostler_server::app::App;

/// Events that are read and translated at once: the task yields between chunks.
const CHUNK: Bounds = Bounds { events: 256, bytes: 256 * 1024 };
/// Changes of the state among which a snapshot is searched.
const STATE_EVENTS_MAX: usize = 32;

/// The thread's messages up to the event of this number, and then those of the answers that `answer` is the first of: they may have
/// changed arguments of calls. `None` if the thread is too long, or they are too large to send.
pub(super) async fn messages(
    app: &App,
    session: SessionId,
    last: i64,
    answer: Option<&Event>,
) -> Result<Option<Vec<SnapshotMessage>>, Failure> {
    if last > CONVERSATION_EVENTS_MAX {
        return Ok(None);
    }
    let signed = |picture: &Picture| attachments::url_of(app, picture);
    let (mut replay, mut after) = (RunReplay::default(), 0);
    while after < last {
        let page = store::kernel::events::list_by_session(&app.db, session, after, CHUNK).await?;
        for event in page.events.iter().filter(|event| event.session_seq <= last) {
            replay.take(event, signed);
        }
        if replay.is_over_limit() {
            return Ok(None);
        }
        after = page.events.last().map_or(last, |event| event.session_seq);
    }
    if let Some(first) = answer.filter(|event| event.event_type == EventType::PermissionResolved) {
        // The answers of one request are recorded together, at the same time.
        let is_answer = |event: &&Event| {
            event.event_type == first.event_type
                && event.command_id == first.command_id
                && event.created_at == first.created_at
        };
        let page = store::kernel::events::list_by_session(&app.db, session, first.session_seq - 1, CHUNK).await?;
        page.events.iter().take_while(is_answer).for_each(|event| replay.take(event, signed));
    }
    Ok(replay.finish())
}

/// The thread's state after the events up to this number.
pub(super) async fn state(app: &App, session: SessionId, last: i64) -> Result<TranslatorState, Failure> {
    let newest = store::kernel::events::list_newest_before(
        &app.db,
        session,
        EventType::State,
        last,
        CONVERSATION_EVENTS_MAX,
        STATE_EVENTS_MAX,
    );
    let newest = newest.await?;
    let payload = |event: &Event| event.payload.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let mut changes: Vec<_> = newest.iter().filter_map(payload).collect();
    let snapshot = changes.iter().position(|change| !change["snapshot"].is_null());
    let mut state = match snapshot {
        None if newest.len() == STATE_EVENTS_MAX || last > CONVERSATION_EVENTS_MAX => TranslatorState::unknown(),
        _ => TranslatorState::default(),
    };
    changes.truncate(snapshot.map_or(changes.len(), |at| at + 1));
    changes.iter().rev().for_each(|change| state.take(change));
    Ok(state)
}
