//! The transcript that a stock AG-UI client sends along with each message. Our own history is what counts, so the transcript
//! is compared with it and dropped; a client whose memory differs from ours is told so instead of being answered past it.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    ops::Bound::{Included, Unbounded},
};

use ostler_protocol::{
    Failure,
    kernel::{
        events::{Event, EventType},
        sessions::Session,
    },
    limits::CONVERSATION_EVENTS_MAX,
    run_input::agui::{input::RUN_MESSAGES_INVALID, messages::Message},
};
use ostler_store::{self as store, kernel::events::Newest};
use serde::Deserialize;

use ostler_server::app::App;

/// What is read of a thread's log for it, the newest. What a client remembers from before that is taken on trust, if the
/// newest fits: it is dropped like the rest.
const MESSAGES_MAX: usize = 2_000;
/// The same, where what was told piece by piece must be looked at.
const PIECES_MAX: usize = 20_000;
/// Texts from the middle of a message that are looked for: each costs a look at everything that was said.
const MIDDLES_MAX: usize = 64;

const MESSAGES: [EventType; 2] = [EventType::UserMessage, EventType::AssistantMessage];
const PIECES: [EventType; 1] = [EventType::AssistantDelta];

#[derive(Default, Deserialize)]
#[serde(default)]
struct View<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
    content: Vec<Part<'a>>,
    #[serde(borrow)]
    delta: Cow<'a, str>,
    #[serde(borrow, rename = "messageId")]
    message_id: Cow<'a, str>,
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
    let log = newest(app, thread, &MESSAGES, MESSAGES_MAX).await?;
    let fits = match is_whole(thread, &log) {
        true => was_asked(&asked, &log.events) && was_answered(app, thread, answered, &log.events).await?,
        false => was_asked(asked.last().map_or(&[], std::slice::from_ref), &log.events),
    };
    if fits { Ok(()) } else { Err(differs()) }
}

async fn newest(app: &App, thread: &Session, types: &[EventType], limit: usize) -> Result<Newest, Failure> {
    let log = store::kernel::events::list_newest(&app.db, thread.session, types, CONVERSATION_EVENTS_MAX, limit);
    Ok(log.await?)
}

fn is_whole(thread: &Session, log: &Newest) -> bool {
    !log.truncated && thread.last_seq <= CONVERSATION_EVENTS_MAX
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

/// Whether the texts were answered: whole, or as far as a client has listened. What it was told piece by piece counts too,
/// even if the whole message then read otherwise.
async fn was_answered(app: &App, thread: &Session, texts: Vec<&str>, log: &[Event]) -> Result<bool, Failure> {
    let said = log.iter().filter(|event| event.event_type == EventType::AssistantMessage);
    let mut said: BTreeSet<String> = said.map(|event| View::of(event).text.into_owned()).collect();
    let left = not_begun(&said, texts);
    if left.is_empty() {
        return Ok(true);
    }
    let pieces = newest(app, thread, &PIECES, PIECES_MAX).await?;
    if !is_whole(thread, &pieces) {
        return Ok(true);
    }
    said.extend(joined(&pieces.events));
    let left = not_begun(&said, left);
    // An interrupt ends a run in the middle of a message, and the rest of it is told in the next.
    let is_middle = |text: &&str| said.iter().any(|said| said.contains(*text));
    Ok(left.len() <= MIDDLES_MAX && left.iter().all(is_middle))
}

/// The texts with which nothing begins that was said. What begins with a text stands right behind it, in order.
fn not_begun<'a>(said: &BTreeSet<String>, texts: Vec<&'a str>) -> Vec<&'a str> {
    let next = |text: &'a str| said.range::<str, _>((Included(text), Unbounded)).next();
    texts.into_iter().filter(|text| !next(text).is_some_and(|found| found.starts_with(text))).collect()
}

/// Messages as they were told.
fn joined(pieces: &[Event]) -> impl Iterator<Item = String> {
    let mut messages: HashMap<_, String> = HashMap::new();
    for event in pieces {
        let view = View::of(event);
        messages.entry((event.command_id, view.message_id.into_owned())).or_default().push_str(&view.delta);
    }
    messages.into_values()
}

fn differs() -> Failure {
    Failure::invalid(RUN_MESSAGES_INVALID, "RunAgentInput.messages must contain exactly one user message")
}
