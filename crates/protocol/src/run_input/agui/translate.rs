//! Kernel events in, AG-UI events out. The translation is deterministic: a follower that reconnects receives the same
//! events under the same ids, because they are made again from the same log.
//!
//! One command can be several AG-UI runs: a permission request ends one as an interrupt, and the run that brings the
//! answers continues where that one ended. Whatever the agent sends, every event passes a verifier, and a run that is
//! followed to its end has exactly one terminal event.

mod activities;
mod documents;
mod out;
mod place;
mod questions;
mod streamed;
mod tools;

use serde_json::{Map, Value, json};

use self::{
    activities::Activities, documents::StateDocument, questions::Questions, streamed::StreamedMessages, tools::Tools,
};
pub use self::{documents::TranslatorState, place::EventPlace, tools::announced_call_ids};
use super::{
    events::{
        AgUiEvent, COUNT_MAX, EventBody, Outcome, PROTOCOL_VERSION, Patch, ReplayedInput, SnapshotMessage, TokenUsage,
    },
    verify::{EventVerifier, OPEN_MAX},
};
use crate::{
    FailureKind,
    kernel::{
        events::{Event, EventType, PHASE_ATTEMPT_RESTARTED, PHASE_TRANSPORT_DISCONNECTED, PHASE_WAITING_PROVIDER},
        facts::Facts,
        runs::TerminalStatus,
    },
    limits::{BLOCKER_CHARS_MAX, NAME_BYTES_MAX},
    run_input::{agui::translate::out::Out, history, ui},
    text::clip,
};

/// Events made before a resumed run begins. A run that waits for an answer has few; more than this are left out.
const HELD_MAX: usize = 10_000;
/// Models whose usage is counted separately; the usage of further ones is added to the last.
const MODELS_MAX: usize = 32;

/// The longest deadline of a call whose result comes before the next interrupt.
const AWAITED_MS_MAX: u64 = 60_000;

/// The `CUSTOM` event and the metadata field that the run input protocol itself defines. Hence no prefix.
const UI_SCHEMA: &str = "ui_schema";
/// Names of the other `CUSTOM` events that the server sends begin with this. An agent's event whose name does, or is
/// [`UI_SCHEMA`], is not passed on: clients can trust these names.
const OUR_PREFIX: &str = "ostler.";
const ERROR: &str = "ostler.error";
const WAITING_PROVIDER: &str = "ostler.waiting_provider";
pub(super) const ATTEMPT_RESTARTED: &str = "ostler.attempt_restarted";
/// An agent's event without a name of its own.
const UNNAMED: &str = "ostler.custom";

/// An event, and the id it is sent under.
#[derive(Clone, Debug, PartialEq)]
pub struct SentEvent {
    pub id: EventPlace,
    pub event: AgUiEvent,
}

#[derive(Clone, Debug)]
pub struct Translator {
    thread_id: String,
    run_id: String,
    parent_run_id: Option<String>,
    /// What the run was started with. Its first event takes it.
    input: Option<Box<ReplayedInput>>,
    after_seq: i64,
    verifier: EventVerifier,
    texts: StreamedMessages,
    thoughts: StreamedMessages,
    tools: Tools,
    questions: Questions,
    /// Calls of this server's tools that were asked about, by the agent's ids. Their results come before the next interrupt.
    awaited: Vec<String>,
    usage: Vec<TokenUsage>,
    activities: Activities,
    /// The agent's steps that have begun and not ended. A run that resumes an interrupted one begins with them.
    steps: Vec<String>,
    /// `None` until the first snapshot or patch, or [`Self::set_state`].
    state: Option<StateDocument>,
    patches_held_back: u64,
    /// An interrupt has ended the run that was sent so far.
    paused: bool,
    /// The number of the last interrupt's event, if tool calls were open then.
    left_open_at: Option<i64>,
    /// What the run's stream begins with. `Some(None)`: nothing, though tool calls were open.
    messages: Option<Option<Vec<SnapshotMessage>>>,
    /// The thread's messages, for the interrupt that the next event makes. `Some(None)`: they are too large to send.
    at_interrupt: Option<Option<Vec<SnapshotMessage>>>,
    held: Vec<AgUiEvent>,
    /// The run's own events have begun.
    has_started: bool,
}

impl Translator {
    /// A run whose own events come after the session's number `after_seq`: 0 for one that starts a command, and for one
    /// that resumes it the number before its answers.
    pub fn new(thread_id: impl Into<String>, run_id: impl Into<String>, after_seq: i64) -> Self {
        Self {
            thread_id: thread_id.into(),
            run_id: run_id.into(),
            parent_run_id: None,
            input: None,
            after_seq,
            verifier: EventVerifier::default(),
            texts: StreamedMessages::texts(),
            thoughts: StreamedMessages::thoughts(),
            tools: Tools::default(),
            questions: Questions::default(),
            awaited: vec![],
            usage: vec![],
            activities: Activities::default(),
            steps: vec![],
            state: None,
            patches_held_back: 0,
            paused: false,
            left_open_at: None,
            messages: None,
            at_interrupt: None,
            held: vec![],
            has_started: false,
        }
    }

    /// The run that this one follows from, by its client's own account.
    pub fn with_parent(self, parent_run_id: Option<String>) -> Self {
        Self { parent_run_id, ..self }
    }

    /// Whether `event`, the next one, begins a run that was started with more than a message: then [`Self::set_input`] comes
    /// first.
    pub fn wants_input(&self, event: &Event) -> bool {
        let is_first = !self.verifier.has_begun() && event.session_seq > self.after_seq;
        let payload = || event.payload.as_deref().and_then(history::user_content);
        let is_wanted = is_first && self.input.is_none() && event.event_type == EventType::UserMessage;
        is_wanted && payload().is_some_and(|message| message.has_input)
    }

    /// What the run was started with, so that its followers read it back.
    pub fn set_input(&mut self, input: ReplayedInput) {
        let parent_run_id = self.parent_run_id.clone();
        self.input = Some(Box::new(ReplayedInput { parent_run_id, ..input }));
    }

    /// The terminal event has been sent; nothing follows.
    pub fn is_over(&self) -> bool {
        self.has_started && self.verifier.is_over()
    }

    /// Patches that were not sent, because they do not apply to what clients hold.
    pub fn patches_held_back(&self) -> u64 {
        self.patches_held_back
    }

    /// Whether `event`, the next one, patches a state that earlier turns of the thread may have set: then
    /// [`Self::set_state`] comes first.
    pub fn wants_state(&self, event: &Event) -> bool {
        let payload = || event.payload.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
        let is_patch = || payload().is_some_and(|payload| payload["snapshot"].is_null() && payload["patch"].is_array());
        event.event_type == EventType::State && self.state.is_none() && is_patch()
    }

    /// The state as the thread's earlier turns have left it.
    pub fn set_state(&mut self, state: TranslatorState) {
        self.state = Some(state.0);
    }

    /// Whether the run resumes one whose tool calls were open when it was interrupted, and `event`, the next one, is the
    /// run's first: then [`Self::set_messages`] comes first. The answer is the number of the interrupt's event.
    pub fn wants_messages(&self, event: &Event) -> Option<i64> {
        let is_first = !self.has_started && event.session_seq > self.after_seq;
        self.left_open_at.filter(|_| is_first && self.messages.is_none())
    }

    /// The thread's messages up to the interrupt, open tool calls included, so that results in this stream belong to calls
    /// that its clients know. `None` if they are too large to send.
    pub fn set_messages(&mut self, messages: Option<Vec<SnapshotMessage>>) {
        self.messages = Some(messages);
    }

    /// Whether `event`, the next one, ends the run as an interrupt: then [`Self::set_messages_at_interrupt`] comes first. The
    /// run that resumes it may have another client.
    pub fn wants_messages_at_interrupt(&self, event: &Event) -> bool {
        use EventType::{Audit, BackendStatus, PermissionRequest, PermissionResolved, ToolCall};
        let may_interrupt = match event.event_type {
            PermissionRequest | PermissionResolved | Audit => true,
            ToolCall | BackendStatus => !self.awaited.is_empty(),
            _ => false,
        };
        if !may_interrupt || self.at_interrupt.is_some() || event.session_seq <= self.after_seq {
            return false;
        }
        let mut next = self.clone();
        drop(next.take(event));
        next.paused
    }

    /// The thread's messages up to the interrupt. `None` if they are too large to send.
    pub fn set_messages_at_interrupt(&mut self, messages: Option<Vec<SnapshotMessage>>) {
        self.at_interrupt = Some(messages);
    }

    /// Takes the next event of the command. Feed it all of them, from the command's first: events before a resumed run
    /// are not sent again, but the translator learns from them which tools were called and which messages are
    /// incomplete.
    pub fn take(&mut self, event: &Event) -> Vec<SentEvent> {
        if self.is_over() {
            return vec![];
        }
        if std::mem::take(&mut self.paused) {
            self.verifier = EventVerifier::default();
            self.usage.clear();
            self.held.clear();
        }
        let mut verifier = std::mem::take(&mut self.verifier);
        let timestamp = event.created_at.as_millisecond();
        let is_held = event.session_seq <= self.after_seq;
        let room = if is_held { HELD_MAX } else { usize::MAX };
        let mut out = Out { verifier: &mut verifier, events: std::mem::take(&mut self.held), room, timestamp };
        if !out.verifier.has_begun() {
            let (thread_id, run_id) = (self.thread_id.clone(), self.run_id.clone());
            let (parent_run_id, input) = (self.parent_run_id.clone(), self.input.take());
            let protocol_version = PROTOCOL_VERSION;
            out.send(EventBody::RunStarted { thread_id, run_id, protocol_version, parent_run_id, input });
            for step_name in self.steps.clone() {
                out.send(EventBody::StepStarted { step_name });
            }
        }
        let payload = event.payload.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null);
        self.translate(event, &payload, &mut out);
        let mut events = out.events;
        self.verifier = verifier;
        if is_held {
            self.held = events;
            return vec![];
        }
        if !self.has_started
            && let Some(messages) = self.messages.take().flatten()
        {
            let body = EventBody::MessagesSnapshot { messages };
            events.insert(1.min(events.len()), AgUiEvent { body, timestamp, metadata: Map::new() });
        }
        self.has_started = true;
        let session_seq = event.session_seq;
        events.into_iter().zip(0..).map(|(event, n)| SentEvent { id: EventPlace { session_seq, n }, event }).collect()
    }

    fn translate(&mut self, event: &Event, payload: &Value, out: &mut Out) {
        let seq = event.session_seq;
        match event.event_type {
            EventType::AssistantDelta => self.texts.delta(payload, seq, out),
            EventType::AssistantMessage => self.message(event, payload, out),
            EventType::ReasoningDelta => self.thoughts.delta(payload, seq, out),
            EventType::Reasoning => drop(self.thoughts.whole(payload, seq, Map::new(), out)),
            EventType::ToolCall => {
                self.tools.fact(payload, seq, out);
                self.await_calls(payload, seq, out);
            }
            EventType::CommandOutput => self.tools.output(payload, out),
            EventType::Step => self.step(payload, out),
            EventType::State => self.state(payload, out),
            EventType::Activity => self.activity(payload, seq, out),
            EventType::Usage => self.count(payload),
            EventType::BackendStatus => self.phase(payload, seq, out),
            EventType::PermissionRequest => {
                self.questions.open(event, payload, &mut self.tools, out);
                // Requests of one set are appended together, and the last of them ends the run.
                if payload["withNext"] != true {
                    self.interrupt(seq, out);
                }
            }
            EventType::PermissionResolved => {
                let call = self.questions.resolved(payload);
                self.awaited.extend(call.filter(|call| self.tools.announced(call).is_some()));
                self.interrupt(seq, out);
            }
            EventType::Error => out.custom(ERROR, picked(payload, &["failureKind", "message", "willRetry"])),
            EventType::TerminalStatus => self.end(event, out),
            EventType::Custom => custom(payload, out),
            EventType::Audit => {
                self.questions.note_cancel(payload);
                // A run that brought a vote which does not decide ends with the same question.
                if self.questions.note_vote(payload) {
                    self.interrupt(seq, out);
                }
            }
            EventType::UserMessage | EventType::Lease | EventType::Session => {}
        }
    }

    /// A whole message, with what its hints compile to. The hints themselves stay here.
    fn message(&mut self, event: &Event, payload: &Value, out: &mut Out) {
        let schema = event.payload.as_deref().and_then(ui::of_message).map(|schema| json!(schema));
        let metadata = schema.iter().map(|schema| (UI_SCHEMA.to_owned(), schema.clone())).collect();
        let message_id = self.texts.whole(payload, event.session_seq, metadata, out);
        if let Some((message_id, schema)) = message_id.zip(schema) {
            out.custom(UI_SCHEMA, json!({"messageId": message_id, UI_SCHEMA: schema}));
        }
    }

    fn activity(&mut self, payload: &Value, seq: i64, out: &mut Out) {
        if !self.activities.take(payload, seq, out) {
            self.patches_held_back += 1;
        }
    }

    fn step(&mut self, payload: &Value, out: &mut Out) {
        let Some(name) = payload["name"].as_str() else { return };
        let step_name = clip(name, NAME_BYTES_MAX);
        match payload["status"].as_str() {
            Some("started") => {
                if !self.steps.contains(&step_name) && self.steps.len() < OPEN_MAX {
                    self.steps.push(step_name.clone());
                }
                out.send(EventBody::StepStarted { step_name });
            }
            Some("finished") => {
                self.steps.retain(|open| *open != step_name);
                out.send(EventBody::StepFinished { step_name });
            }
            _ => {}
        }
    }

    fn state(&mut self, payload: &Value, out: &mut Out) {
        if let Some(snapshot) = payload.get("snapshot").filter(|snapshot| !snapshot.is_null()) {
            self.state = Some(StateDocument::new(snapshot.clone()));
            return out.send(EventBody::StateSnapshot { snapshot: snapshot.clone() });
        }
        let Some(patch) = payload.get("patch") else { return };
        let state = self.state.get_or_insert_with(|| TranslatorState::default().0);
        match Patch::read(patch).filter(|patch| state.apply(patch)) {
            Some(delta) => out.send(EventBody::StateDelta { delta }),
            None => self.patches_held_back += 1,
        }
    }

    fn phase(&mut self, payload: &Value, seq: i64, out: &mut Out) {
        match payload["phase"].as_str() {
            Some(PHASE_WAITING_PROVIDER) => out.custom(WAITING_PROVIDER, picked(payload, &["resumeAt"])),
            Some(PHASE_TRANSPORT_DISCONNECTED) if payload["resumeAt"].is_string() => {
                out.custom(WAITING_PROVIDER, picked(payload, &["resumeAt"]));
            }
            // The messages of a dead attempt do not count. A client cannot remove what it has displayed, but it can be
            // notified.
            Some(PHASE_ATTEMPT_RESTARTED) => {
                out.close_all();
                self.steps.clear();
                self.thoughts.forget();
                out.custom(ATTEMPT_RESTARTED, json!({"messageIds": self.texts.forget()}));
                if !std::mem::take(&mut self.awaited).is_empty() {
                    self.interrupt(seq, out);
                }
            }
            _ => {}
        }
    }

    fn count(&mut self, payload: &Value) {
        let name = |field: &str| payload[field].as_str().map(|text| clip(text, NAME_BYTES_MAX));
        let (provider, model) = (name("provider"), name("model"));
        let known = self.usage.iter().position(|usage| usage.provider == provider && usage.model == model);
        let at = known.unwrap_or_else(|| {
            if self.usage.len() < MODELS_MAX {
                self.usage.push(TokenUsage { provider, model, ..TokenUsage::default() });
            }
            self.usage.len() - 1
        });
        let usage = &mut self.usage[at];
        let reasoning = ["reasoningTokens", "reasoningOutputTokens"];
        for (sum, fields) in [
            (&mut usage.input_tokens, &["inputTokens"][..]),
            (&mut usage.output_tokens, &["outputTokens"]),
            (&mut usage.total_tokens, &["totalTokens"]),
            (&mut usage.reasoning_tokens, &reasoning),
            (&mut usage.cached_input_tokens, &["cachedInputTokens"]),
        ] {
            if let Some(count) = fields.iter().find_map(|field| payload[*field].as_u64()) {
                *sum = Some(sum.unwrap_or(0).saturating_add(count).min(COUNT_MAX));
            }
        }
    }

    /// Asks the next questions when the calls that were asked about before have ended. A call that may take long is not waited for.
    fn await_calls(&mut self, payload: &Value, seq: i64, out: &mut Out) {
        if self.awaited.is_empty() {
            return;
        }
        let is_slow = payload["deadlineMs"].as_u64().is_some_and(|deadline_ms| deadline_ms > AWAITED_MS_MAX);
        let is_waited_for = |call: &String| {
            self.tools.announced(call).is_some() && !(is_slow && payload["toolCallId"] == call.as_str())
        };
        self.awaited.retain(is_waited_for);
        if self.awaited.is_empty() {
            self.interrupt(seq, out);
        }
    }

    /// Ends the run if there are questions that only its front end can answer, and that were not sent to it yet. The results of calls
    /// that were asked about come first: they belong to the run that brought the answer.
    fn interrupt(&mut self, seq: i64, out: &mut Out) {
        if !self.awaited.is_empty() {
            return;
        }
        let interrupts = self.questions.put();
        if !interrupts.is_empty() {
            self.snapshots(out);
            self.finish(Outcome::Interrupt { interrupts }, Map::new(), out);
            self.paused = true;
            self.left_open_at = self.tools.has_open().then_some(seq);
        }
    }

    /// Sends what a client needs to resume the run, whichever client that is.
    fn snapshots(&mut self, out: &mut Out) {
        let messages = self.at_interrupt.take().flatten();
        if messages.is_some() {
            out.close_all();
        }
        if let Some(snapshot) = self.state.as_ref().and_then(StateDocument::value).filter(|_| messages.is_some()) {
            out.send(EventBody::StateSnapshot { snapshot: snapshot.clone() });
        }
        if let Some(messages) = messages {
            out.send(EventBody::MessagesSnapshot { messages });
        }
    }

    fn end(&mut self, event: &Event, out: &mut Out) {
        use FailureKind::{Cancelled, PermissionDenied};
        let Facts::Terminal(end) = event.facts() else {
            self.tools.abandon(out);
            return self.fail("the end of this run is not known any more", FailureKind::Gone, out);
        };
        let default = if end.status == TerminalStatus::Cancelled { Cancelled } else { FailureKind::BackendFailed };
        let kind = end.failure_kind.unwrap_or(default);
        let message = end.message.unwrap_or_else(|| kind.row().meaning.to_owned());
        let pending_tool_call_ids = match end.status {
            TerminalStatus::Completed => self.tools.pending(),
            _ => vec![],
        };
        self.tools.abandon(out);
        // A person who declines, or lets the question expire, stops the run. That is no error of the run, and stock clients
        // forget an interrupt only when a run finishes.
        let is_declined = self.questions.were_declined() && matches!(kind, PermissionDenied | Cancelled);
        match end.status {
            TerminalStatus::Completed => self.finish(Outcome::Success { pending_tool_call_ids }, Map::new(), out),
            TerminalStatus::Cancelled => self.stop(&message, kind, out),
            TerminalStatus::Failed | TerminalStatus::Blocked if is_declined => self.stop(&message, kind, out),
            TerminalStatus::Failed | TerminalStatus::Blocked => self.fail(&message, kind, out),
        }
    }

    fn stop(&mut self, message: &str, kind: FailureKind, out: &mut Out) {
        let fields = [("failureKind", kind.as_str().into()), ("message", clip(message, BLOCKER_CHARS_MAX).into())];
        let metadata = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        self.finish(Outcome::Cancelled, metadata, out);
    }

    fn finish(&mut self, outcome: Outcome, metadata: Map<String, Value>, out: &mut Out) {
        let (thread_id, run_id, usage) = (self.thread_id.clone(), self.run_id.clone(), std::mem::take(&mut self.usage));
        out.send_with(EventBody::RunFinished { thread_id, run_id, outcome, usage }, metadata);
    }

    fn fail(&mut self, message: &str, kind: FailureKind, out: &mut Out) {
        let usage = std::mem::take(&mut self.usage);
        let (message, code) = (clip(message, BLOCKER_CHARS_MAX), kind.as_str().to_owned());
        out.send(EventBody::RunError { message, code, usage });
    }
}

fn custom(payload: &Value, out: &mut Out) {
    match payload["name"].as_str() {
        Some(name) if name == UI_SCHEMA || name.starts_with(OUR_PREFIX) => {}
        Some(name) => out.custom(&clip(name, NAME_BYTES_MAX), payload.get("value").cloned().unwrap_or_default()),
        None => out.custom(UNNAMED, payload.clone()),
    }
}

/// The fields of these names that are present.
fn picked(payload: &Value, names: &[&str]) -> Value {
    let known = |name: &&str| Some(((*name).to_owned(), payload.get(*name).filter(|value| !value.is_null())?.clone()));
    Value::Object(names.iter().filter_map(known).collect())
}
