//! The context of an automation's run: the end of its owner's latest chat, as much of it as the automation asks for.

use jiff::ToSpan;
use ostler_protocol::{
    Failure, Timestamp,
    run_input::{
        agui::messages::{InputMessage, SentMessage},
        automations::{Automation, WINDOW_MESSAGES_MAX, WindowMode},
        history::{self, HistoryMessage, start_of},
        local_times::find_zone,
    },
};
use ostler_store::{self as store, run_input::history::Span};
use serde_json::{Map, json};

use ostler_server::{app::App, auth::Principal};

/// Bytes of messages that a run gets.
const CONTEXT_BYTES_MAX: usize = 64 * 1024;

pub(super) async fn read(
    app: &App,
    owner: &Principal,
    automation: &Automation,
    at: Timestamp,
) -> Result<Vec<SentMessage>, Failure> {
    let Some(window) = &automation.config.context else { return Ok(vec![]) };
    let owner_id = owner.owner()?;
    let latest = store::run_input::automations::find_latest_chat(&app.db, &owner_id, &automation.tenant_id).await?;
    let Some(chat) = latest else { return Ok(vec![]) };
    let zone = find_zone(&automation.timezone)?;
    let (start, count) = match window.window_mode {
        WindowMode::Number => (Timestamp::MIN, window.window_count),
        WindowMode::Day => {
            let earlier = i64::from(window.window_count.saturating_sub(1));
            let first = at.to_zoned(zone.clone()).date().checked_sub(earlier.days()).map_err(Failure::internal)?;
            (start_of(first, &zone), WINDOW_MESSAGES_MAX)
        }
    };
    let span = Span { start, end: Timestamp::MAX };
    let events =
        store::run_input::history::list_messages(&app.db, chat.session, span, count as usize, CONTEXT_BYTES_MAX);
    let messages = history::fold(&events.await?, |_| None);
    Ok(messages.iter().filter_map(as_input).collect())
}

/// The message as context. No front end has sent it, so that the run's followers do not get it back.
fn as_input(message: &HistoryMessage) -> Option<SentMessage> {
    let (id, role) = match message {
        HistoryMessage::User { id, .. } => (id, "user"),
        HistoryMessage::Assistant { id, .. } => (id, "assistant"),
    };
    let message = InputMessage::read(json!({"id": id, "role": role, "content": message.content()}))?;
    Some(SentMessage { message, sent: Map::new() })
}
