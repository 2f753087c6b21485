//! The transcript that a stock AG-UI client sends along with each message. The server's own history is authoritative, so the
//! transcript is compared with it and dropped; a client whose transcript differs receives an error instead of a reply that
//! does not fit its transcript.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap, HashSet},
    ops::Bound::{Included, Unbounded},
};

use ostler_protocol::{
    Failure, RawJson, Rule,
    kernel::{
        context::Context,
        events::{Event, EventType},
        front_end::TOOL_RESULT_PART,
        sessions::Session,
    },
    limits::CONVERSATION_EVENTS_MAX,
    run_input::agui::{messages::InputMessage, translate::announced_call_ids},
};
use ostler_store::{self as store, kernel::events::Newest};
use serde::Deserialize;

use ostler_server::app::App;

/// How many of the newest messages of a thread's log are compared. In a longer thread only the transcript's newest user message
/// must match: the transcript is dropped in any case.
const MESSAGES_MAX: usize = 2_000;
/// The same for events of calls, of which a call has two or three.
const CALLS_MAX: usize = 2_000;
/// Commands with other messages that have calls. Of a thread with more, not all calls are read.
const SENT_MAX: usize = 200;
/// The same for deltas, where those must be compared.
const DELTAS_MAX: usize = 20_000;
/// Texts from the middle of a message that are searched: each search reads all messages.
const MIDDLES_MAX: usize = 64;

const MESSAGES: [EventType; 2] = [EventType::UserMessage, EventType::AssistantMessage];
/// A call that a person is asked about is announced before it starts.
const CALLS: [EventType; 2] = [EventType::ToolCall, EventType::PermissionRequest];
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

/// Rejects a transcript with a message of the user or the assistant, or with a call of a tool, that the log of the thread does not have.
pub(super) async fn check(app: &App, thread: Option<&Session>, transcript: &[InputMessage]) -> Result<(), Failure> {
    check_messages(app, thread, transcript).await?;
    check_calls(app, thread, transcript).await
}

/// A call in the transcript, or the result of one.
struct TranscriptCall<'a> {
    id: &'a str,
    /// Where the transcript has it.
    field: String,
}

fn calls_of(at: usize, message: &InputMessage) -> Vec<TranscriptCall<'_>> {
    match message {
        InputMessage::Assistant { tool_calls, .. } => {
            let field = |n: usize| format!("messages[{at}].toolCalls[{n}].id");
            tool_calls.iter().enumerate().map(|(n, call)| TranscriptCall { id: &call.id, field: field(n) }).collect()
        }
        InputMessage::Tool { tool_call_id, .. } => {
            vec![TranscriptCall { id: tool_call_id, field: format!("messages[{at}].toolCallId") }]
        }
        _ => vec![],
    }
}

/// Rejects calls, and results of calls, that neither the agents of the thread have made nor earlier runs have brought: the transcript is
/// dropped, and they would be lost with it. Of a thread with too many calls, and of one whose payloads were removed, not all calls can be
/// read, and nothing is rejected.
async fn check_calls(app: &App, thread: Option<&Session>, transcript: &[InputMessage]) -> Result<(), Failure> {
    let calls: Vec<_> = transcript.iter().enumerate().flat_map(|(at, message)| calls_of(at, message)).collect();
    if calls.is_empty() {
        return Ok(());
    }
    let mut known: HashSet<String> = HashSet::new();
    if let Some(thread) = thread {
        let log = newest(app, thread, &CALLS, CALLS_MAX).await?;
        if !is_whole(thread, &log) || log.events.iter().any(|event| event.payload.is_none()) {
            return Ok(());
        }
        known.extend(log.events.iter().flat_map(announced_call_ids));
        if calls.iter().all(|call| known.contains(call.id)) {
            return Ok(());
        }
        let (session, name) = (thread.session, thread.public_id());
        let payloads = store::kernel::commands::list_payloads_with(&app.db, session, &name, r#""toolCall"#, SENT_MAX);
        let Some(payloads) = payloads.await? else { return Ok(()) };
        known.extend(payloads.iter().flat_map(sent_call_ids));
    }
    let Some(unknown) = calls.iter().find(|call| !known.contains(call.id)) else { return Ok(()) };
    let TranscriptCall { id, field } = unknown;
    let message = format!("RunAgentInput.{field} is {id:?}, and the thread has no such tool call");
    Err(Failure::invalid(Rule::AgentRunMessagesInvalid, app.redactor.redact(&message).into_owned()))
}

/// The calls that a run's other messages have brought: they were passed to the agent with its message.
fn sent_call_ids(payload: &RawJson) -> Vec<String> {
    let sent = Context::of(payload).messages.into_iter().filter_map(|remark| remark.as_sent());
    let messages: Vec<_> = sent.filter_map(|sent| InputMessage::deserialize(sent).ok()).collect();
    let calls = messages.iter().flat_map(|message| calls_of(0, message));
    calls.map(|call| call.id.to_owned()).collect()
}

async fn check_messages(app: &App, thread: Option<&Session>, transcript: &[InputMessage]) -> Result<(), Failure> {
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
