//! The transcript that a stock AG-UI client sends along with each message. Our own history is what counts, so the transcript
//! is compared with it and dropped; a client whose memory differs from ours is told so instead of being answered past it.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use ostler_protocol::{
    Failure,
    agui::{input::RUN_MESSAGES_INVALID, messages::Message},
    events::{Event, EventType},
    limits::CONVERSATION_EVENTS_MAX,
    sessions::Session,
};
use ostler_store as store;
use serde::Deserialize;

use crate::app::{App, store_failure};

/// What is read of a thread's log for it.
const EVENTS_MAX: u32 = 50_000;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct View<'a> {
    #[serde(borrow)]
    message_id: Cow<'a, str>,
    #[serde(borrow)]
    text: Cow<'a, str>,
    #[serde(borrow)]
    delta: Cow<'a, str>,
    content: Vec<Part<'a>>,
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
    let log = async |types: &[EventType]| {
        let found = store::events::list_newest(&app.db, thread.session, types, CONVERSATION_EVENTS_MAX, EVENTS_MAX);
        found.await.map_err(store_failure)
    };
    let said = log(&[EventType::UserMessage, EventType::AssistantMessage]).await?;
    if !in_order(&asked, said.iter().filter(|event| event.event_type == EventType::UserMessage)) {
        return Err(differs());
    }
    let whole: HashSet<_> = said.iter().map(|event| View::of(event).text.into_owned()).collect();
    if answered.iter().all(|text| whole.contains(*text)) {
        return Ok(());
    }
    // What was cut off half-way was never said whole.
    let pieces = log(&[EventType::AssistantDelta]).await?;
    let half = joined(&pieces);
    if answered.iter().all(|text| whole.contains(*text) || half.contains(*text)) { Ok(()) } else { Err(differs()) }
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

/// Whether the texts are among what was asked, in its order. A client need not remember everything.
fn in_order<'a>(texts: &[String], events: impl Iterator<Item = &'a Event>) -> bool {
    let mut left = texts.iter().peekable();
    for event in events {
        let words = View::of(event).words();
        left.next_if(|text| **text == words);
    }
    left.next().is_none()
}

/// The texts that pieces make up, by command and message.
fn joined(pieces: &[Event]) -> HashSet<String> {
    let mut texts: HashMap<_, String> = HashMap::new();
    for event in pieces {
        let View { message_id, delta, .. } = View::of(event);
        texts.entry((event.command_id, message_id)).or_default().push_str(&delta);
    }
    texts.into_values().collect()
}

fn differs() -> Failure {
    Failure::invalid(RUN_MESSAGES_INVALID, "RunAgentInput.messages must contain exactly one user message")
}
