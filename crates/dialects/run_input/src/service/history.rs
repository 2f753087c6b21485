//! History of threads: the last day on which anything was said, and the days before it, by the user's own clock.

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

/// Turns that did not complete whose beginnings a page shows: each has to be looked for.
const BEGUN_MAX: usize = 50;

/// One day of the caller's thread. A thread that nobody has is an empty one.
pub async fn get(app: &App, caller: &Principal, asked: HistoryQuery) -> Result<HistorySnapshot, Failure> {
    let zone = users::time_zone(app, caller).await?;
    let before = asked.before.as_deref().map(read_day).transpose()?;
    let Some(session) = thread(app, caller, asked.thread_id.as_deref()).await? else {
        return Ok(HistorySnapshot::default());
    };
    let mut before = before.map_or(Timestamp::MAX, |day| start_of(day, &zone));
    let thread_id = session.external_id.clone();
    // Of a day, everything may be a steer that nobody heard.
    for _ in 0..HISTORY_DAYS_MAX {
        let last = store::run_input::history::find_last(&app.db, session.session, before).await?;
        let Some(last) = last else { break };
        let day = day_of(last, &zone);
        let (start, end) = span_of(day, &zone);
        let messages = said(app, session.session, Span { start, end: end.min(before) }).await?;
        if !messages.is_empty() {
            let has_more = store::run_input::history::has_earlier(&app.db, session.session, start).await?;
            return Ok(HistorySnapshot { thread_id, day: Some(day), has_more, messages, ..HistorySnapshot::default() });
        }
        before = start;
    }
    Ok(HistorySnapshot { thread_id, ..HistorySnapshot::default() })
}

async fn thread(app: &App, caller: &Principal, thread_id: Option<&str>) -> Result<Option<Session>, Failure> {
    match thread_id {
        Some(thread_id) => threads::find(app, caller, &read_thread_id(thread_id)?).await,
        None => threads::find_newest(app, caller).await,
    }
}

async fn said(app: &App, session: SessionId, span: Span) -> Result<Vec<HistoryMessage>, Failure> {
    let db = &app.db;
    let messages = store::run_input::history::list_messages(db, session, span, HISTORY_MESSAGES_MAX, PAGE_BYTES_MAX);
    let mut events = messages.await?;
    let Some(start) = events.iter().map(|event| event.created_at).min() else { return Ok(vec![]) };
    let turns = store::run_input::history::list_turns(db, session, span).await?;
    // What became of a turn may have shown on the next day only.
    let end = turns.iter().map(|turn| turn.updated_at).max().unwrap_or(start);
    let begun = begun(app, &events, &turns).await?;
    events.extend(store::run_input::history::list_phases(db, session, Span { start, end }).await?);
    let signed = |picture: &Picture| attachments::url_of(app, picture);
    let mut said = history::fold(&events, signed);
    said.extend(begun);
    said.sort_by_key(HistoryMessage::seq);
    Ok(said)
}

/// What turns that did not complete had begun to say, as many of the newest as the page has room for.
async fn begun(app: &App, events: &[Event], turns: &[Turn]) -> Result<Vec<HistoryMessage>, Failure> {
    let cut_short = |turn: &&Turn| turn.command_type == CommandType::Turn && turn.state != CommandState::Completed;
    let cut_short: HashMap<CommandId, &Turn> =
        turns.iter().filter(cut_short).map(|turn| (turn.command_id, turn)).collect();
    let asked = events.iter().rev().filter(|event| event.event_type == EventType::UserMessage);
    let asked = asked.filter_map(|event| Some((event, Extent::of(cut_short.get(&event.command_id?)?, event)?)));
    let said: usize = events.iter().filter_map(|event| event.payload.as_deref()).map(str::len).sum();
    let (mut begun, mut room) = (vec![], PAGE_BYTES_MAX.saturating_sub(said));
    for (asked, extent) in asked.take(BEGUN_MAX) {
        let turn = store::run_input::history::list_turn(&app.db, extent).await?;
        let partial = history::partial(asked, &turn);
        let bytes = partial.iter().map(|message| message.content().len()).sum();
        let Some(left) = room.checked_sub(bytes) else { break };
        room = left;
        begun.extend(partial);
    }
    Ok(begun)
}
