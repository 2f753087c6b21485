//! The link between an agent and its runner, for the time of one turn. The agent's end emits events, asks for permission
//! and hears steers and the order to stop; the runner's end hands out batches and brings the answers.
//!
//! What is emitted is queued, not sent: the runner sends as soon as the agent waits for something, and an agent that runs
//! ahead of the server is made to wait. Digests of permissions are checked here, before an agent may go on.

mod runner_end;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ostler_protocol::{
    RawJson,
    events::{EventType, PHASE_APPROVAL_DECLINED, PHASE_COST_UNKNOWN, PHASE_STEER_ACCEPTED},
    ids::{CommandId, PermissionId},
    json::canonical_hash,
    permissions::{self, AskPermission, PermissionRequest, PermissionStatus},
    runs::TerminalStatus,
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    time::{Duration, timeout},
};

pub use runner_end::RunnerEnd;

use crate::{
    agent::{Left, Turn, TurnEnd},
    budgets::{Meter, Stop},
    holdback::clip,
    outbox::Outbox,
};

/// Escaped bytes of the text of one message or output. The rest of the event's limit is for the fields around it.
pub const TEXT_BYTES_MAX: usize = 240 * 1024;
/// The server resolves a request at its deadline; should it not, the agent still does not wait for ever.
const ANSWER_GRACE_MS: u64 = 60_000;
/// Why a request is refused without asking anybody.
pub const NEVER_ASKS: &str = "the run's policy is never to ask";
pub const CANNOT_BE_SHOWN: &str = "what it would do is not said, or too long to be shown";
/// Of what was refused.
const DECLINED_CHARS_MAX: usize = 300;
/// Steers of one turn that wait to be heard. The server allows fewer unfinished commands.
const STEERS_MAX: usize = 128;

/// The agent's end.
pub struct Link {
    shared: Arc<Shared>,
    stop: watch::Receiver<Option<Stop>>,
    steers: mpsc::Receiver<Steer>,
    made: u32,
}

struct Shared {
    command_id: CommandId,
    command: String,
    lease_epoch: i64,
    state: Mutex<State>,
    /// Something was queued.
    queued: Notify,
    /// A batch was sent, or taken to be sent.
    moved: Notify,
    stop: watch::Sender<Option<Stop>>,
}

struct State {
    outbox: Outbox,
    in_flight: bool,
    meter: Meter,
    asked: HashMap<PermissionId, oneshot::Sender<PermissionRequest>>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event_type: EventType, payload: RawJson) {
        let mut state = self.state();
        let spent = state.meter.observe(event_type, &payload);
        state.outbox.push(event_type, &self.command, payload);
        drop(state);
        self.queued.notify_one();
        if let Some(spent) = spent {
            self.stop(spent);
        }
    }

    /// The first reason to stop stands.
    fn stop(&self, reason: Stop) {
        self.stop.send_if_modified(|stop| {
            let first = stop.is_none();
            stop.get_or_insert(reason);
            first
        });
    }
}

/// The two ends of a link.
pub fn open(turn: &Turn, lease_epoch: i64, meter: Meter) -> (Link, RunnerEnd) {
    let (stop, stopped) = watch::channel(None);
    let (steer_in, steers) = mpsc::channel(STEERS_MAX);
    let shared = Arc::new(Shared {
        command_id: turn.command.command_id,
        command: turn.command.command_id.to_string(),
        lease_epoch,
        state: Mutex::new(State { outbox: Outbox::default(), in_flight: false, meter, asked: HashMap::new() }),
        queued: Notify::new(),
        moved: Notify::new(),
        stop,
    });
    let link = Link { shared: shared.clone(), stop: stopped.clone(), steers, made: 0 };
    (link, RunnerEnd { shared, stop: stopped, steers: steer_in })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MessagePayload<'a> {
    message_id: &'a str,
    text: &'a str,
    #[serde(rename = "final")]
    is_final: bool,
    reply_authority: bool,
    text_truncated: bool,
    output_truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    ui_hints: Option<&'a Value>,
}

impl Link {
    /// Emits one event of the turn's command. Waits only while the server is far behind.
    pub async fn emit<T: Serialize>(&self, event_type: EventType, payload: &T) {
        self.room().await;
        self.shared.push(event_type, RawJson::of(payload));
    }

    /// What one call of the model used. Where the agent does not say what it cost, the profile's prices do.
    pub async fn usage(&self, mut used: Map<String, Value>) {
        let cost_unknown = self.shared.state().meter.price(&mut used);
        self.emit(EventType::Usage, &used).await;
        if cost_unknown {
            let message =
                "the profile has no price for this model, or no tokens were counted: maxCostUsd does not stop it";
            let phase = json!({"phase": PHASE_COST_UNKNOWN, "model": used.get("model"), "message": message});
            self.emit(EventType::BackendStatus, &phase).await;
        }
    }

    /// A piece of a message the agent is writing: `assistant_delta` or `reasoning_delta`.
    pub async fn delta(&self, event_type: EventType, message_id: &str, text: &str) {
        self.room().await;
        self.shared.state().outbox.push_delta(event_type, &self.shared.command, message_id, text);
        self.shared.queued.notify_one();
    }

    /// A whole message. A final one is the turn's reply.
    pub async fn message(&self, message_id: &str, text: &str, is_final: bool) {
        self.message_with(message_id, text, is_final, None).await;
    }

    /// The same, with how it could be shown.
    pub async fn message_with(&self, message_id: &str, text: &str, is_final: bool, ui_hints: Option<&Value>) {
        let (text, text_truncated) = fit(text, TEXT_BYTES_MAX);
        let payload = MessagePayload {
            message_id,
            text,
            is_final,
            reply_authority: is_final,
            text_truncated,
            output_truncated: false,
            ui_hints,
        };
        self.emit(EventType::AssistantMessage, &payload).await;
    }

    /// A whole thought that the agent shows.
    pub async fn reasoning(&self, message_id: &str, text: &str) {
        let (text, text_truncated) = fit(text, TEXT_BYTES_MAX);
        let payload = json!({"messageId": message_id, "text": text, "textTruncated": text_truncated});
        self.emit(EventType::Reasoning, &payload).await;
    }

    /// Output of a tool.
    pub async fn output(&self, tool_call_id: &str, stream: &str, text: &str) {
        let (text, cut) = fit(text, TEXT_BYTES_MAX);
        let payload = json!({"toolCallId": tool_call_id, "stream": stream, "text": text, "textTruncated": cut, "outputTruncated": cut});
        self.emit(EventType::CommandOutput, &payload).await;
    }

    /// Says that a tool starts, unless the budget has no room for it: then nothing is emitted and the turn stops.
    pub async fn start_tool<T: Serialize>(&self, payload: &T) -> Result<(), Left> {
        self.check()?;
        let spent = self.shared.state().meter.before_tool();
        if let Some(spent) = spent {
            self.shared.stop(spent);
            return Err(Left::Stopped);
        }
        self.emit(EventType::ToolCall, payload).await;
        Ok(())
    }

    /// An id for a message or tool call, the same whenever the same attempt makes the same steps.
    pub fn new_id(&mut self, prefix: &str) -> String {
        self.made += 1;
        let body = self.shared.command.trim_start_matches(CommandId::PREFIX);
        format!("{prefix}_{body}_{}_{}", self.shared.lease_epoch, self.made)
    }

    /// An id for a permission request, sorted by time like its command.
    pub fn new_permission_id(&mut self) -> PermissionId {
        self.made += 1;
        let seed = canonical_hash(&json!([self.shared.command, self.shared.lease_epoch, self.made]));
        let time = &self.shared.command[CommandId::PREFIX.len()..][..12];
        format!("{}{time}{}", PermissionId::PREFIX, &seed[..20]).parse().expect("32 hexadecimal digits")
    }

    /// Asks for permission. The request is on its way when this returns; the answer is awaited on what it returns.
    pub async fn ask(&self, ask: &AskPermission) -> Asked {
        let payload = RawJson::of(ask);
        let well_formed = matches!(AskPermission::read(&payload), permissions::Asked::Well(_));
        let (send, answer) = oneshot::channel();
        if well_formed {
            self.shared.state().asked.insert(ask.permission_id, send);
        }
        self.room().await;
        self.shared.push(EventType::PermissionRequest, payload);
        let wait_ms = ask.wait_ms().unsigned_abs() + ANSWER_GRACE_MS;
        let digest = ask.digest.clone();
        Asked { permission_id: ask.permission_id, digest, answer: well_formed.then_some(answer), wait_ms }
    }

    /// Says that what would have been asked is refused without asking anybody.
    pub async fn declined(&self, method: &str, reason: &str, ask: &AskPermission) {
        let command = ask.command.as_deref().map(|command| clip(command, DECLINED_CHARS_MAX));
        let told = json!({"phase": PHASE_APPROVAL_DECLINED, "method": method, "reason": reason,
            "toolCallId": ask.tool_call_id, "command": command});
        self.emit(EventType::BackendStatus, &told).await;
    }

    /// The next steer. Dropping one without accepting it leaves it undelivered, and it ends as blocked.
    pub async fn next_steer(&mut self) -> Steer {
        match self.steers.recv().await {
            Some(steer) => steer,
            // The runner's end is gone; there will be none.
            None => std::future::pending().await,
        }
    }

    /// Resolves when the agent must stop.
    pub fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stop = self.stop.clone();
        async move {
            if stop.wait_for(Option::is_some).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Fails when the agent must stop.
    pub fn check(&self) -> Result<(), Left> {
        if self.stop.borrow().is_some() { Err(Left::Stopped) } else { Ok(()) }
    }

    /// Waits until everything emitted so far is durable.
    pub async fn flushed(&self) {
        self.wait_until(|state| state.outbox.is_empty() && !state.in_flight).await;
    }

    async fn room(&self) {
        self.wait_until(|state| state.outbox.has_room()).await;
    }

    async fn wait_until(&self, holds: impl Fn(&State) -> bool) {
        loop {
            let moved = self.shared.moved.notified();
            if holds(&self.shared.state()) {
                return;
            }
            moved.await;
        }
    }
}

/// As much of a text as takes so many bytes once it is escaped, and whether that is less than all.
pub fn fit(text: &str, bytes_max: usize) -> (&str, bool) {
    if text.len() <= bytes_max / 6 {
        return (text, false);
    }
    let mut bytes = 0;
    for (at, char) in text.char_indices() {
        bytes += match char {
            '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
            '\0'..='\u{1f}' => 6,
            char => char.len_utf8(),
        };
        if bytes > bytes_max {
            return (&text[..at], true);
        }
    }
    (text, false)
}

/// A question that was asked.
pub struct Asked {
    pub permission_id: PermissionId,
    digest: String,
    /// `None`: the request made no sense, which counts as denied.
    answer: Option<oneshot::Receiver<PermissionRequest>>,
    wait_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Allowed {
        option_id: Option<String>,
    },
    Denied {
        option_id: Option<String>,
    },
    /// Nobody answered in time, or the question has become void.
    Cancelled,
}

impl Asked {
    /// The answer. One that does not name this very request and digest counts as a denial.
    pub async fn answer(self) -> Answer {
        let Some(answer) = self.answer else { return Answer::Denied { option_id: None } };
        let Ok(Ok(resolved)) = timeout(Duration::from_millis(self.wait_ms), answer).await else {
            return Answer::Cancelled;
        };
        let same = resolved.permission_id == self.permission_id && resolved.digest.eq_ignore_ascii_case(&self.digest);
        match resolved.status {
            PermissionStatus::Allowed if same => Answer::Allowed { option_id: resolved.option_id },
            PermissionStatus::Cancelled => Answer::Cancelled,
            PermissionStatus::Denied if same => Answer::Denied { option_id: resolved.option_id },
            _ => Answer::Denied { option_id: None },
        }
    }
}

/// Something said to a running turn.
pub struct Steer {
    pub command_id: CommandId,
    pub text: String,
    shared: Arc<Shared>,
}

impl Steer {
    /// The agent has taken it: its command ends as completed.
    pub fn accept(self) -> String {
        let id = self.command_id.to_string();
        let phase = json!({"phase": PHASE_STEER_ACCEPTED, "targetCommandId": self.shared.command_id});
        let mut state = self.shared.state();
        state.outbox.push(EventType::BackendStatus, &id, RawJson::of(&phase));
        state.outbox.push(EventType::TerminalStatus, &id, terminal(&TurnEnd::completed()));
        drop(state);
        self.shared.queued.notify_one();
        self.text
    }
}

/// The payload that ends a command.
pub fn terminal(end: &TurnEnd) -> RawJson {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Payload<'a> {
        status: TerminalStatus,
        failure_kind: Option<ostler_protocol::FailureKind>,
        message: Option<&'a str>,
        source: Value,
    }
    let (status, failure_kind) = (end.status, end.failure_kind);
    RawJson::of(&Payload { status, failure_kind, message: end.message.as_deref(), source: "runner".into() })
}
