//! The transcript that a stock AG-UI client sends along with each message. The server's own history is authoritative, so the
//! transcript is compared with it and dropped; a client whose transcript differs receives an error instead of a reply that
//! does not fit its transcript.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    ops::Bound::{Included, Unbounded},
};

use ostler_protocol::{
    Failure, Rule,
    kernel::{
        events::{Event, EventType},
        front_end::TOOL_RESULT_PART,
        sessions::Session,
    },
    limits::CONVERSATION_EVENTS_MAX,
    run_input::agui::messages::InputMessage,
};
use ostler_store::{self as store, kernel::events::Newest};
use serde::Deserialize;

use ostler_server::app::App;

/// How many of the newest messages of a thread's log are compared. In a longer thread only the transcript's newest user message
/// must match: the transcript is dropped in any case.
const MESSAGES_MAX: usize = 2_000;
/// The same for deltas, where those must be compared.
const DELTAS_MAX: usize = 20_000;
/// Texts from the middle of a message that are searched: each search reads all messages.
const MIDDLES_MAX: usize = 64;

const MESSAGES: [EventType; 2] = [EventType::UserMessage, EventType::AssistantMessage];
const DELTAS: [EventType; 1] = [EventType::AssistantDelta];

#[derive(Default, Deserialize)]
#[serde(default)]
struct TranscriptView<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
    content: Vec<TranscriptPart<'a>>,
    #[serde(borrow)]
    delta: Cow<'a, str>,
    #[serde(borrow, rename = "messageId")]
    message_id: Cow<'a, str>,
}

#[derive(Deserialize)]
struct TranscriptPart<'a> {
    #[serde(borrow, default, rename = "type")]
    part_type: Cow<'a, str>,
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
}

impl<'a> TranscriptView<'a> {
    fn of(event: &'a Event) -> Self {
        event.payload.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    fn full_text(&self) -> String {
        let words = self.content.iter().filter(|part| part.part_type != TOOL_RESULT_PART);
        words.filter_map(|part| part.text.as_deref()).collect::<Vec<_>>().join("\n")
    }
}

/// Rejects a transcript with a message of the user or the assistant that the log of the thread does not have.
pub(super) async fn check(app: &App, thread: Option<&Session>, transcript: &[InputMessage]) -> Result<(), Failure> {
    let questions: Vec<String> = transcript.iter().filter_map(|message| user_text(app, message)).collect();
    let replies: Vec<&str> = transcript.iter().filter_map(assistant_text).collect();
    if questions.is_empty() && replies.is_empty() {
        return Ok(());
    }
    let Some(thread) = thread else { return Err(differs()) };
    let log = newest(app, thread, &MESSAGES, MESSAGES_MAX).await?;
    let fits = match is_whole(thread, &log) {
        true => has_questions(&questions, &log.events) && has_replies(app, thread, replies, &log.events).await?,
        false => has_questions(questions.last().map_or(&[], std::slice::from_ref), &log.events),
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

/// The text of a user's message, redacted as it is in the log.
fn user_text(app: &App, message: &InputMessage) -> Option<String> {
    match message {
        InputMessage::User { content, .. } => Some(app.redactor.redact(&content.text()).into_owned()),
        _ => None,
    }
}

fn assistant_text(message: &InputMessage) -> Option<&str> {
    match message {
        InputMessage::Assistant { content, .. } => content.as_deref().filter(|text| !text.is_empty()),
        _ => None,
    }
}

/// Whether the log has these user messages, in their order. A client need not send all of them.
fn has_questions(texts: &[String], log: &[Event]) -> bool {
    let mut left = texts.iter().peekable();
    for event in log.iter().filter(|event| event.event_type == EventType::UserMessage) {
        let logged = TranscriptView::of(event).full_text();
        left.next_if(|text| **text == logged);
    }
    left.next().is_none()
}

/// Whether the log has these messages of the assistant: whole, or as far as a client has read them. Joined deltas count too,
/// even if the final message differs from them.
async fn has_replies(app: &App, thread: &Session, texts: Vec<&str>, log: &[Event]) -> Result<bool, Failure> {
    let messages = log.iter().filter(|event| event.event_type == EventType::AssistantMessage);
    let mut messages: BTreeSet<String> = messages.map(|event| TranscriptView::of(event).text.into_owned()).collect();
    let left = without_match(&messages, texts);
    if left.is_empty() {
        return Ok(true);
    }
    let deltas = newest(app, thread, &DELTAS, DELTAS_MAX).await?;
    if !is_whole(thread, &deltas) {
        return Ok(true);
    }
    messages.extend(join_deltas(&deltas.events));
    let left = without_match(&messages, left);
    // An interrupt ends a run in the middle of a message, and the next run continues it.
    let is_middle = |text: &&str| messages.iter().any(|message| message.contains(*text));
    Ok(left.len() <= MIDDLES_MAX && left.iter().all(is_middle))
}

/// The texts that no message begins with. In the set's order, a message that begins with a text directly follows the text.
fn without_match<'a>(messages: &BTreeSet<String>, texts: Vec<&'a str>) -> Vec<&'a str> {
    let next = |text: &'a str| messages.range::<str, _>((Included(text), Unbounded)).next();
    texts.into_iter().filter(|text| !next(text).is_some_and(|found| found.starts_with(text))).collect()
}

/// Joins deltas to messages.
fn join_deltas(deltas: &[Event]) -> impl Iterator<Item = String> {
    let mut messages: HashMap<_, String> = HashMap::new();
    for event in deltas {
        let view = TranscriptView::of(event);
        messages.entry((event.command_id, view.message_id.into_owned())).or_default().push_str(&view.delta);
    }
    messages.into_values()
}

fn differs() -> Failure {
    let message = "RunAgentInput.messages contains earlier messages that the thread does not have";
    Failure::invalid(Rule::AgentRunMessagesInvalid, message)
}
