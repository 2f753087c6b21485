//! Plays a script step by step. Steers that arrive while it waits are accepted at once and queued for the step that awaits
//! one.

use std::collections::VecDeque;

use ostler_protocol::{
    FailureKind,
    json::canonical_hash,
    kernel::{
        events::EventType,
        front_end::{FrontEndTool, call_payload},
        permissions::{AskPermission, OptionKind, PermissionOption},
    },
};
use serde_json::{Map, Value, json};
use tokio::time::{Duration, Instant, sleep};

use super::script::{AskStep, CallStep, SayStep, ScriptStep, ToolStep};
use crate::{
    backend::turn::{TurnAbort, TurnEnd, TurnResult},
    turn_sink::{PermissionDecision, TurnSink},
};

/// Bytes of a reply that may wait to be sent. What is queued is sent even if the turn is stopped, so a long reply waits for the
/// server before it continues.
const AHEAD_BYTES_MAX: usize = 256 * 1024;
/// Size of the parts in which a long piece is emitted.
const PART_BYTES_MAX: usize = 32 * 1024;

pub(super) struct Player {
    sink: TurnSink,
    is_repeat: bool,
    /// The tools that the front end offers.
    tools: Vec<FrontEndTool>,
    steers: VecDeque<String>,
}

/// `Some` if the step ends the turn.
type StepResult = Result<Option<TurnEnd>, TurnAbort>;

impl Player {
    pub(super) fn new(sink: TurnSink, is_repeat: bool, tools: Vec<FrontEndTool>) -> Self {
        Self { sink, is_repeat, tools, steers: VecDeque::new() }
    }

    pub(super) async fn run(mut self, steps: Vec<ScriptStep>) -> TurnResult {
        for step in steps {
            self.sink.check_stop()?;
            if let Some(end) = self.play_step(step).await? {
                return Ok(end);
            }
        }
        Ok(TurnEnd::completed())
    }

    async fn play_step(&mut self, step: ScriptStep) -> StepResult {
        match step {
            ScriptStep::Say(say) => self.play_say(&say).await?,
            ScriptStep::Tool(tool) => self.play_tool(&tool).await?,
            ScriptStep::Wait(ms) => self.pause(ms).await?,
            ScriptStep::Fail { status, kind, message } => {
                return Ok(Some(TurnEnd { status, failure_kind: Some(kind), rule: None, message: Some(message) }));
            }
            ScriptStep::Ask(ask) => return self.play_ask(ask).await,
            ScriptStep::AwaitSteer { wait_ms, is_final } => return self.await_steer(wait_ms, is_final).await,
            ScriptStep::Usage(mut usage) => {
                usage.entry("model").or_insert_with(|| "scripted".into());
                self.sink.emit_usage(usage).await;
            }
            ScriptStep::Crash { always } => self.crash(always).await?,
            ScriptStep::Error { kind, message } => {
                self.sink.emit(EventType::Error, &json!({"failureKind": kind, "message": message})).await;
            }
            ScriptStep::Custom(payload) => self.sink.emit(EventType::Custom, &payload).await,
            ScriptStep::Call(call) => return self.play_call(call).await,
            ScriptStep::State(payload) => self.sink.emit(EventType::State, &payload).await,
            ScriptStep::Emit { count, bytes } => self.play_emit(count, bytes).await?,
        }
        Ok(None)
    }

    /// Streams a text piece by piece, then emits it as a whole. A stop ends it between two pieces.
    async fn play_say(&mut self, say: &SayStep) -> Result<(), TurnAbort> {
        let message_id = self.sink.new_id("msg");
        let mut bytes_ahead = 0;
        for (index, piece) in pieces(&say.text, say.pieces).enumerate() {
            if index > 0 && say.every_ms > 0 {
                self.pause(say.every_ms).await?;
            }
            for part in pieces(piece, parts_of(piece)) {
                self.sink.check_stop()?;
                if bytes_ahead + part.len() > AHEAD_BYTES_MAX {
                    self.flush_unless_stopped().await?;
                    bytes_ahead = 0;
                }
                bytes_ahead += part.len();
                self.sink.emit_delta(EventType::AssistantDelta, &message_id, part).await;
            }
        }
        self.sink.check_stop()?;
        self.sink.emit_message_with(&message_id, &say.text, say.is_final, say.ui_hints.as_ref()).await;
        Ok(())
    }

    async fn play_tool(&mut self, tool: &ToolStep) -> Result<(), TurnAbort> {
        let id = self.sink.new_id("tool");
        let call = |status: &str| {
            let mut call = Map::new();
            call.insert("toolCallId".into(), id.clone().into());
            call.insert("name".into(), tool.name.clone().into());
            call.insert("method".into(), "scripted/tool".into());
            call.insert("type".into(), "commandExecution".into());
            call.insert("status".into(), status.into());
            call.insert("command".into(), tool.command.clone().map_or(Value::Null, Value::from));
            call
        };
        self.sink.start_tool(&call("started")).await?;
        if tool.leave_open {
            return Ok(());
        }
        if tool.wait_ms > 0 {
            self.pause(tool.wait_ms).await?;
        }
        if let Some(output) = &tool.output {
            self.sink.emit_output(&id, "stdout", output).await;
        }
        let mut ended = call(if tool.exit_code == 0 { "completed" } else { "failed" });
        ended.insert("exitCode".into(), tool.exit_code.into());
        self.sink.emit(EventType::ToolCall, &ended).await;
        Ok(())
    }

    /// Calls a front end's tool. The call stays open: the next turn brings its result.
    async fn play_call(&mut self, call: CallStep) -> StepResult {
        let Some(tool) = self.tools.iter().find(|tool| tool.name == call.name) else {
            let message = format!("the front end offers no tool {:?}", call.name);
            return Ok(Some(TurnEnd::failed(FailureKind::SchemaInvalid, message)));
        };
        let arguments = Value::Object(call.arguments);
        if let Err(fault) = tool.check_arguments(&arguments) {
            return Ok(Some(TurnEnd::failed(FailureKind::SchemaInvalid, format!("{}: {fault}", call.name))));
        }
        let id = self.sink.new_id("tool");
        self.sink.start_tool(&call_payload(&id, &call.name, &arguments)).await?;
        Ok(None)
    }

    async fn play_ask(&mut self, ask: AskStep) -> StepResult {
        let option = |id: &str, name: &str, kind| PermissionOption { option_id: id.into(), name: name.into(), kind };
        let request = AskPermission {
            permission_id: self.sink.new_permission_id(),
            title: ask.title,
            command: Some(command_text(&ask.command)),
            tool_call_id: None,
            options: vec![
                option("allow", "Allow", OptionKind::AllowOnce),
                option("deny", "Deny", OptionKind::RejectOnce),
            ],
            digest: canonical_hash(&ask.command),
            server_digest: None,
            editable: ask.editable,
            call_details: None,
            with_next: false,
            wait_ms: ask.wait_ms,
            deadline: None,
        };
        let decision = self.sink.ask_permission(&request).await.decision();
        tokio::pin!(decision);
        let stopped = self.sink.stopped();
        tokio::pin!(stopped);
        let decision = loop {
            tokio::select! {
                biased;
                () = &mut stopped => return Err(TurnAbort::Stopped),
                decision = &mut decision => break decision,
                steer = self.sink.next_steer() => self.steers.push_back(steer.accept()),
            }
        };
        if let PermissionDecision::Allowed { edited: Some(arguments), .. } = &decision {
            let used = json!({"name": "edited_arguments", "value": arguments});
            self.sink.emit(EventType::Custom, &used).await;
        }
        Ok(match decision {
            PermissionDecision::Allowed { .. } => None,
            PermissionDecision::Denied { .. } => {
                Some(TurnEnd::blocked(FailureKind::PermissionDenied, format!("permission denied: {}", request.title)))
            }
            PermissionDecision::Cancelled => Some(TurnEnd::blocked(
                FailureKind::Cancelled,
                format!("the permission request was cancelled: {}", request.title),
            )),
        })
    }

    /// Waits for a steer, unless one is queued, and emits its text.
    async fn await_steer(&mut self, wait_ms: u64, is_final: bool) -> StepResult {
        let until = Instant::now() + Duration::from_millis(wait_ms);
        while self.steers.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let message = format!("no steer arrived within {wait_ms} ms");
                return Ok(Some(TurnEnd::blocked(FailureKind::BackendTimeout, message)));
            }
            self.pause_or_steer(left).await?;
        }
        let text = format!("steered: {}", self.steers.pop_front().unwrap_or_default());
        self.play_say(&SayStep { text, is_final, pieces: 1, every_ms: 0, ui_hints: None }).await?;
        Ok(None)
    }

    /// Waits until everything emitted so far is durable, or the turn is stopped.
    async fn flush_unless_stopped(&mut self) -> Result<(), TurnAbort> {
        tokio::select! {
            biased;
            () = self.sink.stopped() => Err(TurnAbort::Stopped),
            () = self.sink.flush() => Ok(()),
        }
    }

    /// Crashes once all emitted events are durable, so that the next attempt always finds the same state.
    async fn crash(&mut self, always: bool) -> Result<(), TurnAbort> {
        if self.is_repeat && !always {
            return Ok(());
        }
        self.sink.flush().await;
        Err(TurnAbort::Crashed)
    }

    async fn play_emit(&mut self, count: u32, bytes: usize) -> Result<(), TurnAbort> {
        let pad = "x".repeat(bytes);
        for n in 0..count {
            self.sink.check_stop()?;
            self.sink.emit(EventType::Custom, &json!({"name": "emit", "value": {"n": n, "pad": pad}})).await;
        }
        Ok(())
    }

    async fn pause(&mut self, ms: u64) -> Result<(), TurnAbort> {
        let until = Instant::now() + Duration::from_millis(ms);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.pause_or_steer(left).await?;
        }
    }

    async fn pause_or_steer(&mut self, time: Duration) -> Result<(), TurnAbort> {
        let stopped = self.sink.stopped();
        tokio::select! {
            biased;
            () = stopped => return Err(TurnAbort::Stopped),
            steer = self.sink.next_steer() => self.steers.push_back(steer.accept()),
            () = sleep(time) => {}
        }
        Ok(())
    }
}

/// A text in at most `count` pieces of about the same length, cut between characters.
fn pieces(text: &str, count: u32) -> impl Iterator<Item = &str> {
    let size = text.len().div_ceil(count.max(1) as usize).max(1);
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let piece = &rest[..rest.ceil_char_boundary(size)];
        rest = &rest[piece.len()..];
        Some(piece)
    })
}

/// How many parts a piece is emitted in.
fn parts_of(piece: &str) -> u32 {
    u32::try_from(piece.len().div_ceil(PART_BYTES_MAX)).unwrap_or(u32::MAX)
}

/// What would run, whole: a person who allows it must have been able to read it.
fn command_text(command: &Value) -> String {
    command.as_str().map_or_else(|| command.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::pieces;

    #[test]
    fn a_text_is_cut_between_characters() {
        for text in ["", "a", "héllo wörld ✓✓✓", "0123456789"] {
            for count in 1..20 {
                let cut: Vec<_> = pieces(text, count).collect();
                assert_eq!(cut.concat(), text);
                assert!(cut.len() <= count as usize);
            }
        }
    }
}
