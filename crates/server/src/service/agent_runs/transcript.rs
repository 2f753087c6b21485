//! The transcript that a stock AG-UI client sends along with each message. Our own history is what counts, so the transcript
//! is compared with it and dropped; a client whose memory differs from ours is told so instead of being answered past it.

use std::{borrow::Cow, collections::HashSet};

use ostler_protocol::{
    Failure,
    agui::{input::RUN_MESSAGES_INVALID, messages::Message},
    events::{Event, EventType, PHASE_ATTEMPT_RESTARTED},
    limits::CONVERSATION_EVENTS_MAX,
    runs::TerminalStatus,
    sessions::Session,
};
use ostler_store as store;
use serde::Deserialize;

use crate::app::{App, store_failure};

/// What is read of a thread's log for it, the newest. What a client remembers from before that is taken on trust, if the
/// newest fits: it is dropped like the rest.
const EVENTS_MAX: u32 = 2_000;

const READ: [EventType; 5] = [
    EventType::UserMessage,
    EventType::AssistantMessage,
    EventType::BackendStatus,
    EventType::PermissionResolved,
    EventType::TerminalStatus,
];

#[derive(Default, Deserialize)]
#[serde(default)]
struct View<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
    content: Vec<Part<'a>>,
    #[serde(borrow)]
    phase: Cow<'a, str>,
    #[serde(borrow)]
    status: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
}

impl<'a> View<'a> {
    fn of(event: &'a Event) -> Self {
        event.payload.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    fn words(&self) -> String {
        self.content.iter().filter_map(|part| part.text.as_deref()).collect::<Vec<_>>().join("\n")
    }
}

/// Refuses a transcript in which a user or the assistant says what our log of the thread does not have.
pub async fn check(app: &App, thread: Option<&Session>, transcript: &[Message]) -> Result<(), Failure> {
    let asked: Vec<String> = transcript.iter().filter_map(|message| asked(app, message)).collect();
    let answered: Vec<&str> = transcript.iter().filter_map(answered).collect();
    if asked.is_empty() && answered.is_empty() {
        return Ok(());
    }
    let Some(thread) = thread else { return Err(differs()) };
    let log = store::events::list_newest(&app.db, thread.session, &READ, CONVERSATION_EVENTS_MAX, EVENTS_MAX);
    let log = log.await.map_err(store_failure)?;
    let is_whole = log.len() < EVENTS_MAX as usize && thread.last_seq <= CONVERSATION_EVENTS_MAX;
    let fits = match is_whole {
        true => was_asked(&asked, &log) && was_answered(&answered, &log),
        false => was_asked(asked.last().map_or(&[], std::slice::from_ref), &log),
    };
    if fits { Ok(()) } else { Err(differs()) }
}

/// What users ask is kept redacted.
fn asked(app: &App, message: &Message) -> Option<String> {
    match message {
        Message::User { content, .. } => Some(app.redactor.redact(&content.text()).into_owned()),
        _ => None,
    }
}

fn answered(message: &Message) -> Option<&str> {
    match message {
        Message::Assistant { content, .. } => content.as_deref().filter(|text| !text.is_empty()),
        _ => None,
    }
}

/// Whether the texts were asked, in their order. A client need not remember everything.
fn was_asked(texts: &[String], log: &[Event]) -> bool {
    let mut left = texts.iter().peekable();
    for event in log.iter().filter(|event| event.event_type == EventType::UserMessage) {
        let words = View::of(event).words();
        left.next_if(|text| **text == words);
    }
    left.next().is_none()
}

/// Whether the texts were answered. One that was never said whole was cut off by something that the log has.
fn was_answered(texts: &[&str], log: &[Event]) -> bool {
    let said = log.iter().filter(|event| event.event_type == EventType::AssistantMessage);
    let whole: HashSet<_> = said.map(|event| View::of(event).text).collect();
    let parts = texts.iter().filter(|text| !whole.contains(**text)).count();
    parts <= log.iter().filter(|event| cuts(event)).count()
}

/// Whether it can have cut a message off half-way: an answer that was awaited, a runner's death, an end that is no completion.
fn cuts(event: &Event) -> bool {
    match event.event_type {
        EventType::PermissionResolved => true,
        EventType::BackendStatus => View::of(event).phase == PHASE_ATTEMPT_RESTARTED,
        EventType::TerminalStatus => View::of(event).status != TerminalStatus::Completed.as_str(),
        _ => false,
    }
}

fn differs() -> Failure {
    Failure::invalid(RUN_MESSAGES_INVALID, "RunAgentInput.messages must contain exactly one user message")
}
