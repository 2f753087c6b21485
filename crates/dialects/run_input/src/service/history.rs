//! History of threads: the last day with a message, and the days before it, in the user's time zone.

use std::collections::HashMap;

use ostler_protocol::{
    Failure, Timestamp,
    ids::{CommandId, SessionId},
    kernel::{
        commands::{CommandState, CommandType},
        events::{Event, EventType},
        sessions::Session,
    },
    limits::PAGE_BYTES_MAX,
    run_input::{
        agui::input::read_thread_id,
        history::{
            self, HISTORY_DAYS_MAX, HISTORY_MESSAGES_MAX, HistoryMessage, HistoryQuery, HistorySnapshot, Picture,
            day_of, read_day, span_of, start_of,
        },
    },
};
use ostler_store::{
    self as store,
    run_input::history::{Extent, Span, Turn},
};

use super::{attachments, threads};
use ostler_server::{app::App, auth::Principal, service::users};

/// Incomplete turns whose partial messages a page contains: each costs a read.
const PARTIAL_TURNS_MAX: usize = 50;

/// One day of the caller's thread. A thread that does not exist is empty.
pub(crate) async fn get(app: &App, caller: &Principal, query: HistoryQuery) -> Result<HistorySnapshot, Failure> {
    let zone = users::time_zone(app, caller).await?;
    let before = query.before.as_deref().map(read_day).transpose()?;
    let Some(session) = thread(app, caller, query.thread_id.as_deref()).await? else {
        return Ok(HistorySnapshot::default());
    };
    let mut before = before.map_or(Timestamp::MAX, |day| start_of(day, &zone));
    let thread_id = session.external_id.clone().or(query.thread_id);
    // All messages of a day may be steers that no agent received; then the day is skipped.
    for _ in 0..HISTORY_DAYS_MAX {
        let last = store::run_input::history::find_last(&app.db, session.session, before).await?;
        let Some(last) = last else { break };
        let day = day_of(last, &zone);
        let (start, end) = span_of(day, &zone);
        let span = Span { start, end: end.min(before) };
        // Reads that do not need each other's rows run concurrently: on Postgres each one is a round trip.
        let has_more = store::run_input::history::has_earlier(&app.db, session.session, start);
        let has_more = async { Ok::<_, Failure>(has_more.await?) };
        let (messages, has_more) = tokio::try_join!(read_messages(app, session.session, span), has_more)?;
        if !messages.is_empty() {
            return Ok(HistorySnapshot { thread_id, day: Some(day), has_more, messages, ..HistorySnapshot::default() });
        }
        before = start;
    }
    Ok(HistorySnapshot { thread_id, ..HistorySnapshot::default() })
}

async fn thread(app: &App, caller: &Principal, thread_id: Option<&str>) -> Result<Option<Session>, Failure> {
    match thread_id {
        Some(thread_id) => threads::find_any(app, caller, &read_thread_id(thread_id)?).await,
        None => threads::find_newest(app, caller).await,
    }
}

async fn read_messages(app: &App, session: SessionId, span: Span) -> Result<Vec<HistoryMessage>, Failure> {
    let db = &app.db;
    let messages = store::run_input::history::list_messages(db, session, span, HISTORY_MESSAGES_MAX, PAGE_BYTES_MAX);
    let turns = store::run_input::history::list_turns(db, session, span);
    let (mut events, turns) = tokio::try_join!(messages, turns)?;
    let Some(start) = events.iter().map(|event| event.created_at).min() else { return Ok(vec![]) };
    // A turn may have ended on the next day.
    let end = turns.iter().map(|turn| turn.updated_at).max().unwrap_or(start);
    let partial = read_partial(app, &events, &turns).await?;
    events.extend(store::run_input::history::list_phases(db, session, Span { start, end }).await?);
    let signed = |picture: &Picture| attachments::url_of(app, picture);
    let mut messages = history::fold(&events, signed);
    messages.extend(partial);
    messages.sort_by_key(HistoryMessage::seq);
    Ok(messages)
}

/// The partial messages of incomplete turns, as many of the newest as the page has room for.
async fn read_partial(app: &App, events: &[Event], turns: &[Turn]) -> Result<Vec<HistoryMessage>, Failure> {
    let is_incomplete = |turn: &&Turn| turn.command_type == CommandType::Turn && turn.state != CommandState::Completed;
    let incomplete: HashMap<CommandId, &Turn> =
        turns.iter().filter(is_incomplete).map(|turn| (turn.command_id, turn)).collect();
    let questions = events.iter().rev().filter(|event| event.event_type == EventType::UserMessage);
    let questions =
        questions.filter_map(|event| Some((event, Extent::of(incomplete.get(&event.command_id?)?, event)?)));
    let used: usize = events.iter().filter_map(|event| event.payload.as_deref()).map(str::len).sum();
    let (mut messages, mut room) = (vec![], PAGE_BYTES_MAX.saturating_sub(used));
    for (question, extent) in questions.take(PARTIAL_TURNS_MAX) {
        let turn = store::run_input::history::list_turn(&app.db, extent).await?;
        let partial = history::partial(question, &turn);
        let bytes = partial.iter().map(|message| message.content().len()).sum();
        let Some(left) = room.checked_sub(bytes) else { break };
        room = left;
        messages.extend(partial);
    }
    Ok(messages)
}
