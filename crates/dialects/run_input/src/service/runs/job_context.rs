//! The context of an automation's run: the end of its owner's latest chat, as much of it as the automation asks for.

use jiff::{ToSpan, civil::Date};
use ostler_protocol::{
    Failure, Timestamp,
    ids::SessionId,
    kernel::{context::Remark, events::Event},
    run_input::{
        agui::input::ClientTime,
        automations::{Automation, WINDOW_MESSAGES_MAX, WindowMode},
        history::{self, HistoryMessage, start_of},
        local_times::find_zone,
    },
};
use ostler_store::{self as store, run_input::history::Span};
use serde_json::Map;

use crate::service::threads;
use ostler_server::{app::App, auth::Principal};

/// Bytes of messages that a run gets.
const CONTEXT_BYTES_MAX: usize = 64 * 1024;
/// Most messages that are read to find those of a window, some of which are not shown.
const READ_MESSAGES_MAX: usize = 1_000;

/// The messages of the context. The days of a window end at the time of the run: that of its clock, if it has one.
pub(super) async fn read(
    app: &App,
    owner: &Principal,
    automation: &Automation,
    clock: Option<&ClientTime>,
) -> Result<Vec<Remark>, Failure> {
    let Some(window) = &automation.config.context else { return Ok(vec![]) };
    let owner_id = threads::owner(owner)?;
    let tenants = std::slice::from_ref(&automation.tenant_id);
    let latest = store::run_input::automations::find_latest_chat(&app.db, &owner_id, Some(tenants)).await?;
    let Some(chat) = latest else { return Ok(vec![]) };
    let zone = find_zone(&automation.timezone)?;
    let (start, count) = match window.window_mode {
        WindowMode::Number => (Timestamp::MIN, window.window_count),
        WindowMode::Day => {
            let at = clock.and_then(|clock| Timestamp::from_millisecond(clock.client_epoch_ms).ok());
            let at = at.unwrap_or_else(|| app.wall());
            let earlier = i64::from(window.window_count.saturating_sub(1));
            let first = at.to_zoned(zone.clone()).date().checked_sub(earlier.days()).unwrap_or(Date::MIN);
            (start_of(first, &zone), WINDOW_MESSAGES_MAX)
        }
    };
    let span = Span { start, end: Timestamp::MAX };
    let messages = read_newest(app, chat.session, span, count as usize).await?;
    Ok(messages.iter().map(as_remark).collect())
}

/// The newest messages of a chat, as its history shows them. The log also has steers that the agent did not accept, and messages of
/// attempts that were replaced: they do not count toward `count`, and older messages are read instead. All that is read has at most
/// [`CONTEXT_BYTES_MAX`] bytes.
async fn read_newest(app: &App, session: SessionId, span: Span, count: usize) -> Result<Vec<HistoryMessage>, Failure> {
    let mut read_max = count;
    loop {
        let mut events =
            store::run_input::history::list_messages(&app.db, session, span, read_max, CONTEXT_BYTES_MAX).await?;
        let is_last_read = events.len() < read_max || read_max >= READ_MESSAGES_MAX;
        let phases = read_phases(app, session, &events).await?;
        events.extend(phases);
        let mut messages = history::fold(&events, |_| None);
        if is_last_read || messages.len() >= count {
            messages.drain(..messages.len().saturating_sub(count));
            return Ok(messages);
        }
        read_max = (4 * read_max).min(READ_MESSAGES_MAX);
    }
}

/// The phases since the first of these messages: where steers were accepted and attempts replaced.
async fn read_phases(app: &App, session: SessionId, messages: &[Event]) -> Result<Vec<Event>, Failure> {
    let Some(start) = messages.iter().map(|message| message.created_at).min() else { return Ok(vec![]) };
    let span = Span { start, end: Timestamp::MAX };
    Ok(store::run_input::history::list_phases(&app.db, session, span).await?)
}

/// The message as context. No front end has sent it, so that the run's followers do not get it back.
fn as_remark(message: &HistoryMessage) -> Remark {
    let role = match message {
        HistoryMessage::User { .. } => "user",
        HistoryMessage::Assistant { .. } => "assistant",
    };
    Remark { role: role.to_owned(), text: message.content().to_owned(), sent: Map::new() }
}
