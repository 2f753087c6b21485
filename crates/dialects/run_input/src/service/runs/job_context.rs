//! The context of an automation's run: the end of its owner's latest chat, as much of it as the automation asks for.

use jiff::{ToSpan, civil::Date};
use ostler_protocol::{
    Failure, Timestamp,
    kernel::context::Remark,
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
    let events =
        store::run_input::history::list_messages(&app.db, chat.session, span, count as usize, CONTEXT_BYTES_MAX);
    let messages = history::fold(&events.await?, |_| None);
    Ok(messages.iter().map(as_remark).collect())
}

/// The message as context. No front end has sent it, so that the run's followers do not get it back.
fn as_remark(message: &HistoryMessage) -> Remark {
    let role = match message {
        HistoryMessage::User { .. } => "user",
        HistoryMessage::Assistant { .. } => "assistant",
    };
    Remark { role: role.to_owned(), text: message.content().to_owned(), sent: Map::new() }
}
