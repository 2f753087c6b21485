//! One turn of Codex's: from `turn/start` to what Codex says of its end. In between, what it says becomes events, what it
//! asks is answered, steers go in, and the order to stop interrupts it.
//!
//! `turn/completed` is the truth about an end. An interrupt may never be answered, and a provider that cannot be reached
//! makes a turn that never ends by itself; both are bounded here.

use std::collections::{HashMap, VecDeque};

use ostler_protocol::{
    FailureKind, RawJson,
    events::EventType,
    rpc::{Frame, RpcId},
};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep_until, timeout_at};

use super::{
    CALL_MS, Live, NOTICE_CHARS_MAX,
    approvals::{Approvals, Decision},
    failures,
    items::Items,
    later::GO_ON,
    notice_text, process_ended,
    untold::Untold,
    wire::{DeltaNote, ErrorNote, ItemNote, Notice, RawNote, Turn as CodexTurn, TurnError, TurnNote, UsageNote},
};
use crate::{
    Outfit,
    agent::{
        Left, Turn, TurnEnd, TurnResult,
        process::{CallError, Heard},
    },
    holdback::clip,
    link::{Link, Steer},
};

const OUTPUT: &str = "item/commandExecution/outputDelta";
/// After an interrupt, for Codex to say that the turn has ended. The runner waits a little longer before it drops us.
const STOP_MS: u64 = 5_000;
/// For terminals that outlived an interrupt to be cleaned up.
const CLEAN_MS: u64 = 2_000;
/// Threads whose tokens are kept count of. What is said of one more is still counted, by its latest part.
const THREADS_MAX: usize = 1_024;
/// Notices, retries and lines that make no sense that are told of one turn.
const NOTES_MAX: u32 = 50;

pub struct Conversation<'a> {
    live: &'a mut Live,
    /// The session's thread, as the agent remembers it whatever becomes of this turn.
    thread_id: &'a mut Option<String>,
    pub(super) outfit: &'a Outfit,
    turn: &'a Turn,
    pub(super) link: Link,
    items: Items,
    untold: Untold,
    approvals: Approvals,
    turn_id: String,
    has_started: bool,
    /// Said to us before Codex would take it.
    steers: VecDeque<Steer>,
    /// On its way to Codex, by the call's id.
    steering: HashMap<i64, Steer>,
    /// Since when Codex tries in vain to reach its provider.
    pub(super) trying_since: Option<Instant>,
    /// The log says that the connection to the provider is lost.
    pub(super) disconnected: bool,
    /// The turn is being ended: until when that may take, and how it ends. `None`: the runner knows how.
    ending: Option<(Instant, Option<TurnEnd>)>,
    /// An approval that ended the turn.
    cancelled_by: Option<Decision>,
    notes: u32,
    /// How often the provider said "later".
    pub(super) later: u32,
    /// The process can be used for another turn.
    pub is_well: bool,
}

/// How Codex left a turn.
pub enum Ended {
    As(TurnEnd),
    /// The provider wants to be asked again later.
    Later(TurnError),
}

enum Happening {
    Stop,
    Heard(Option<Heard>),
    Decided((RpcId, Decision, Value)),
    Steer(Steer),
    TimeUp,
}

impl<'a> Conversation<'a> {
    pub fn new(
        live: &'a mut Live,
        thread_id: &'a mut Option<String>,
        outfit: &'a Outfit,
        turn: &'a Turn,
        link: Link,
    ) -> Self {
        Self {
            live,
            thread_id,
            outfit,
            turn,
            link,
            items: Items::default(),
            untold: Untold::default(),
            approvals: Approvals::default(),
            turn_id: String::new(),
            has_started: false,
            steers: VecDeque::new(),
            steering: HashMap::new(),
            trying_since: None,
            disconnected: false,
            ending: None,
            cancelled_by: None,
            notes: 0,
            later: 0,
            is_well: true,
        }
    }

    /// `holds_prompt`: the thread has heard the prompt before, and is only told to go on.
    pub async fn run(&mut self, holds_prompt: bool) -> TurnResult {
        let asked = self.turn.asked();
        let mut text = if holds_prompt { GO_ON } else { asked.as_str() };
        loop {
            if let Err(error) = self.start(text).await {
                self.is_well = false;
                process_ended(&self.link, &self.live.process).await;
                return Ok(failures::refused("turn/start", &error));
            }
            match self.listen().await? {
                Ended::As(end) => return Ok(end),
                Ended::Later(error) => {
                    if let Some(end) = self.wait_for_provider(&error).await? {
                        return Ok(end);
                    }
                    text = GO_ON;
                }
            }
        }
    }

    async fn start(&mut self, text: &str) -> Result<(), CallError> {
        // Codex keeps what it was shown; it is shown once.
        let images = if text == GO_ON { &[][..] } else { &self.turn.images };
        let params = json!({"threadId": self.live.thread_id, "input": input(text, images),
            "clientUserMessageId": self.turn.command.command_id});
        let answer = self.live.process.call("turn/start", &params, Duration::from_millis(CALL_MS)).await?;
        self.has_started = false;
        self.trying_since = None;
        self.turn_id = answer.view::<TurnNote>().ok_or(CallError::Gone)?.turn.id;
        Ok(())
    }

    async fn listen(&mut self) -> Result<Ended, Left> {
        let stopped = self.link.stopped();
        tokio::pin!(stopped);
        loop {
            let deadline = self.deadline();
            let happening = tokio::select! {
                () = &mut stopped, if self.ending.is_none() => Happening::Stop,
                heard = self.live.process.next() => Happening::Heard(heard),
                decided = self.approvals.next() => Happening::Decided(decided),
                steer = self.link.next_steer(), if self.ending.is_none() => Happening::Steer(steer),
                () = reached(deadline) => Happening::TimeUp,
            };
            let ended = match happening {
                Happening::Stop => self.end_turn(None).await,
                Happening::Steer(steer) if self.has_started => self.steer(steer).await,
                Happening::Steer(steer) => {
                    self.steers.push_back(steer);
                    Ok(None)
                }
                Happening::Decided((id, decision, answer)) => self.decide(id, decision, answer).await,
                Happening::Heard(Some(Heard::Frame(frame))) => self.hear(frame).await,
                Happening::Heard(Some(Heard::Noise(noise))) => {
                    self.note("noise", &noise.to_string()).await;
                    Ok(None)
                }
                Happening::Heard(None) => Err(CallError::Gone),
                Happening::TimeUp => match self.ending {
                    Some(_) => return self.give_up().await,
                    None => self.end_turn(Some(self.unreachable())).await,
                },
            };
            match ended {
                Ok(None) => {}
                Ok(Some(turn)) => return self.leave(turn).await,
                Err(_) => return self.give_up().await,
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let patience = Duration::from_millis(self.outfit.patience.unreachable_ms);
        match &self.ending {
            Some((until, _)) => Some(*until),
            None => self.trying_since.map(|since| since + patience),
        }
    }

    fn unreachable(&self) -> TurnEnd {
        let ms = self.outfit.patience.unreachable_ms;
        TurnEnd::failed(FailureKind::ProviderUnavailable, format!("the provider could not be reached for {ms} ms"))
    }

    /// Interrupts the turn. That it has ended is only known when Codex says so.
    async fn end_turn(&mut self, end: Option<TurnEnd>) -> Heeded {
        self.ending = Some((Instant::now() + Duration::from_millis(STOP_MS), end));
        self.interrupt().await
    }

    async fn interrupt(&mut self) -> Heeded {
        // A turn that has not begun cannot be interrupted; it is as soon as it has.
        if self.has_started {
            let params = json!({"threadId": self.live.thread_id, "turnId": self.turn_id});
            self.live.process.start_call("turn/interrupt", &params).await?;
        }
        Ok(None)
    }

    async fn steer(&mut self, steer: Steer) -> Heeded {
        let params =
            json!({"threadId": self.live.thread_id, "expectedTurnId": self.turn_id, "input": input(&steer.text, &[])});
        let id = self.live.process.start_call("turn/steer", &params).await?;
        self.steering.insert(id, steer);
        Ok(None)
    }

    async fn decide(&mut self, id: RpcId, decision: Decision, answer: Value) -> Heeded {
        if matches!(decision, Decision::Cancel | Decision::Unanswered) {
            self.cancelled_by = Some(decision);
        }
        self.live.process.answer(id, Ok(&answer)).await?;
        Ok(None)
    }

    async fn hear(&mut self, frame: Frame) -> Heeded {
        match frame {
            Frame::Notification { method, params } => return self.notice(&method, &params).await,
            Frame::Request { id, method, params } => self.request(id, &method, &params).await?,
            Frame::Answer { id: RpcId::Number(id), .. } => {
                if let Some(steer) = self.steering.remove(&id) {
                    steer.accept();
                }
            }
            Frame::Error { id: Some(RpcId::Number(id)), error } => {
                // Not accepted: it ends undelivered, with the turn.
                if self.steering.remove(&id).is_some() {
                    self.note("turn/steer:refused", &error.message).await;
                }
            }
            Frame::Answer { .. } | Frame::Error { .. } => {}
        }
        Ok(None)
    }

    async fn request(&mut self, id: RpcId, method: &str, params: &RawJson) -> Result<(), CallError> {
        let item = params.view::<super::wire::ApprovalRequest>().map(|asked| asked.item_id).unwrap_or_default();
        let tool_call_id = (!item.is_empty()).then(|| self.items.id(&mut self.link, &item, "tool"));
        let approval = self.turn.run.execution_policy.approval;
        let changes = self.items.changes(&item);
        let reply = self.approvals.take(&mut self.link, approval, &id, method, params, changes, tool_call_id).await;
        match reply {
            Some(Ok(result)) => self.live.process.answer(id, Ok(&result)).await,
            Some(Err(error)) => self.live.process.answer::<Value>(id, Err(error)).await,
            None => Ok(()),
        }
    }

    /// `Some`: the turn has ended.
    async fn notice(&mut self, method: &str, params: &RawJson) -> Heeded {
        match method {
            "turn/started" => return self.started(params).await,
            "turn/completed" => {
                let turn = params.view::<TurnNote>().map(|note| note.turn).filter(|turn| turn.id == self.turn_id);
                return Ok(turn);
            }
            "thread/tokenUsage/updated" => self.usage(params).await,
            "error" => self.error(params).await,
            "warning" | "configWarning" | "model/rerouted" => {
                let text = notice_text(&params.view::<Notice>().unwrap_or_default());
                self.note(method, &text).await;
            }
            "turn/plan/updated" => {
                self.link.emit(EventType::Activity, &json!({"activityType": "plan", "content": params})).await;
            }
            _ if method.starts_with("item/") => self.item(method, params).await,
            "rawResponseItem/completed" => self.said(params).await,
            _ => {}
        }
        Ok(None)
    }

    async fn started(&mut self, params: &RawJson) -> Heeded {
        if params.view::<TurnNote>().is_none_or(|note| note.turn.id != self.turn_id) {
            return Ok(None);
        }
        self.has_started = true;
        let phase = json!({"phase": "turn/started", "turnId": self.turn_id, "threadId": self.live.thread_id});
        self.link.emit(EventType::BackendStatus, &phase).await;
        if self.ending.is_some() {
            return self.interrupt().await;
        }
        while let Some(steer) = self.steers.pop_front() {
            self.steer(steer).await?;
        }
        Ok(None)
    }

    async fn item(&mut self, method: &str, params: &RawJson) {
        match method {
            "item/started" | "item/completed" => {
                let Some(ItemNote { item, thread_id, turn_id }) = params.view() else { return };
                if !self.is_of_turn(&thread_id, &turn_id) {
                    return;
                }
                // Codex got somewhere. A command that goes on talking says nothing about the provider.
                self.provider_reached().await;
                self.untold.is_told(&item.id);
                match method {
                    "item/started" => self.items.started(&mut self.link, &item).await,
                    _ => self.items.completed(&mut self.link, &item).await,
                }
                if item.kind == "userMessage" {
                    self.tell_thread().await;
                }
            }
            _ => {
                let ours = |note: &DeltaNote| self.is_of_turn(&note.thread_id, &note.turn_id);
                let Some(note) = params.view::<DeltaNote>().filter(ours) else { return };
                if method != OUTPUT {
                    self.provider_reached().await;
                }
                match method {
                    "item/agentMessage/delta" => self.items.text(&mut self.link, &note).await,
                    "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta" => {
                        self.items.thought(&mut self.link, &note).await;
                    }
                    OUTPUT => self.items.output(&mut self.link, &note).await,
                    _ => {}
                }
            }
        }
    }

    async fn said(&mut self, params: &RawJson) {
        let ours = |note: &RawNote| self.is_of_turn(&note.thread_id, &note.turn_id);
        let Some(note) = params.view::<RawNote>().filter(ours) else { return };
        if let Some(item) = self.untold.hear(&note.item) {
            self.items.started(&mut self.link, &item).await;
            self.items.completed(&mut self.link, &item).await;
        }
    }

    /// Codex may have other threads, of agents it made itself; but for what they cost they are its own affair.
    fn is_ours(&self, thread_id: &str) -> bool {
        thread_id.is_empty() || thread_id == self.live.thread_id
    }

    /// A command that an earlier turn left running goes on talking: that is no part of this one.
    fn is_of_turn(&self, thread_id: &str, turn_id: &str) -> bool {
        self.is_ours(thread_id) && (turn_id.is_empty() || turn_id == self.turn_id)
    }

    /// With its first message a thread is on disk: from then on it is the session's.
    async fn tell_thread(&mut self) {
        if !self.live.is_on_disk {
            self.live.is_on_disk = true;
            *self.thread_id = Some(self.live.thread_id.clone());
            self.link.emit(EventType::Session, &json!({"threadId": self.live.thread_id})).await;
        }
    }

    /// Each of these is one call of the model's, also when it failed and cost nothing: so `maxTurns` bounds them. What the
    /// agents cost that Codex made itself is counted with the rest.
    async fn usage(&mut self, params: &RawJson) {
        let Some(note) = params.view::<UsageNote>() else { return };
        let (total, last) = (note.token_usage.total, note.token_usage.last);
        let is_ours = self.is_ours(&note.thread_id);
        let before = self.live.used.get(&note.thread_id).copied().unwrap_or_else(|| total.before(last));
        if is_ours || self.live.used.len() < THREADS_MAX {
            self.live.used.insert(note.thread_id, total);
        }
        // After a resume the old count is told again.
        if is_ours && note.turn_id != self.turn_id {
            return;
        }
        let used = total.since(before);
        let counts = [
            ("inputTokens", used.input_tokens),
            ("cachedInputTokens", used.cached_input_tokens),
            ("outputTokens", used.output_tokens),
            ("reasoningTokens", used.reasoning_output_tokens),
            ("totalTokens", used.input_tokens + used.output_tokens),
        ];
        let model = ("model".to_owned(), self.live.model.as_str().into());
        let counts = counts.map(|(name, count)| (name.to_owned(), count.into()));
        self.link.usage([model].into_iter().chain(counts).collect()).await;
    }

    /// An error that is not the end: Codex tries again.
    async fn error(&mut self, params: &RawJson) {
        let Some(note) = params.view::<ErrorNote>().filter(|note| self.is_ours(&note.thread_id)) else { return };
        if note.will_retry {
            self.provider_lost(&note.error).await;
        }
        if self.may_note() {
            let details = note.error.additional_details.as_deref().unwrap_or_default();
            let payload = json!({"failureKind": failures::kind(&note.error), "message": failures::message(&note.error),
                "details": clip(details, NOTICE_CHARS_MAX), "willRetry": note.will_retry});
            self.link.emit(EventType::Error, &payload).await;
        }
    }

    fn may_note(&mut self) -> bool {
        self.notes += 1;
        self.notes <= NOTES_MAX
    }

    async fn note(&mut self, phase: &str, message: &str) {
        if self.may_note() {
            let payload = json!({"phase": phase, "message": clip(message, NOTICE_CHARS_MAX)});
            self.link.emit(EventType::BackendStatus, &payload).await;
        }
    }

    /// Codex says that the turn has ended.
    async fn leave(&mut self, turn: CodexTurn) -> Result<Ended, Left> {
        let is_reply = turn.status == "completed" && self.ending.is_none();
        self.items.release(&mut self.link, is_reply).await;
        if let Some((_, end)) = self.ending.take() {
            self.clean().await;
            return end.map(Ended::As).ok_or(Left::Stopped);
        }
        if is_reply {
            // What Codex left running goes on; of this turn nobody will hear how it ends.
            self.items.abandon(&mut self.link).await;
        } else {
            self.clean().await;
        }
        let error = turn.error.unwrap_or_default();
        Ok(match (turn.status.as_str(), self.cancelled_by) {
            ("completed", _) => Ended::As(TurnEnd::completed()),
            ("failed", _) if failures::says_later(&error) => Ended::Later(error),
            ("failed", _) => Ended::As(failures::failed(&error)),
            ("interrupted", Some(Decision::Unanswered)) => {
                Ended::As(TurnEnd::blocked(FailureKind::Cancelled, "nobody answered the agent's question in time"))
            }
            ("interrupted", Some(_)) => {
                Ended::As(TurnEnd::blocked(FailureKind::PermissionDenied, "permission was refused, and the turn ended"))
            }
            (status, _) => {
                let message = format!("the agent ended the turn as {}", clip(status, NOTICE_CHARS_MAX));
                Ended::As(TurnEnd::failed(FailureKind::BackendFailed, message))
            }
        })
    }

    /// An interrupt does not stop the command that runs: its shell lives on in a session of its own.
    async fn clean(&mut self) {
        if !self.items.has_open_tools() {
            return;
        }
        let until = Instant::now() + Duration::from_millis(CLEAN_MS);
        let params = json!({"threadId": self.live.thread_id});
        let method = "thread/backgroundTerminals/clean";
        let cleaned = self.live.process.call(method, &params, Duration::from_millis(CLEAN_MS)).await;
        while cleaned.is_ok() && self.items.has_open_tools() {
            let Ok(Some(Heard::Frame(frame))) = timeout_at(until, self.live.process.next()).await else { break };
            if self.hear(frame).await.is_err() {
                break;
            }
        }
        // What cannot be cleaned up ends with the process.
        self.is_well = !self.items.has_open_tools();
        self.items.abandon(&mut self.link).await;
    }

    /// Codex is gone, or does not end its turn: so does its process.
    async fn give_up(&mut self) -> Result<Ended, Left> {
        self.is_well = false;
        self.items.release(&mut self.link, false).await;
        self.items.abandon(&mut self.link).await;
        process_ended(&self.link, &self.live.process).await;
        match self.ending.take() {
            Some((_, end)) => end.map(Ended::As).ok_or(Left::Stopped),
            None => Ok(Ended::As(TurnEnd::failed(FailureKind::BackendFailed, "the agent's process ended in mid-turn"))),
        }
    }
}

/// `Some`: Codex says how its turn ended. `Err`: it does not listen any more.
type Heeded = Result<Option<CodexTurn>, CallError>;

fn input(text: &str, images: &[String]) -> Value {
    let mut input = vec![json!({"type": "text", "text": text, "text_elements": []})];
    input.extend(images.iter().map(|url| json!({"type": "image", "url": url})));
    input.into()
}

async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
