//! Playing a script, step by step. Steers that come while it waits are taken at once and kept for the step that asks for
//! one.

use std::collections::VecDeque;

use ostler_protocol::{
    FailureKind,
    events::{EventType, clip},
    json::canonical_hash,
    limits::TOOL_COMMAND_CHARS_MAX,
    permissions::{AskPermission, OptionKind, PermissionOption},
};
use serde_json::{Map, Value, json};
use tokio::time::{Duration, Instant, sleep};

use super::script::{Ask, Say, Step, Tool};
use crate::{
    agent::{Left, TurnEnd, TurnResult},
    link::{Answer, Link},
};

pub struct Play {
    link: Link,
    is_repeat: bool,
    heard: VecDeque<String>,
}

/// A step ends the turn or lets it go on.
type StepResult = Result<Option<TurnEnd>, Left>;

impl Play {
    pub fn new(link: Link, is_repeat: bool) -> Self {
        Self { link, is_repeat, heard: VecDeque::new() }
    }

    pub async fn run(mut self, steps: Vec<Step>) -> TurnResult {
        for step in steps {
            self.link.check()?;
            if let Some(end) = self.step(step).await? {
                return Ok(end);
            }
        }
        Ok(TurnEnd::completed())
    }

    async fn step(&mut self, step: Step) -> StepResult {
        match step {
            Step::Say(say) => self.say(&say).await?,
            Step::Tool(tool) => self.tool(&tool).await?,
            Step::Wait(ms) => self.pause(ms).await?,
            Step::Fail { status, kind, message } => {
                return Ok(Some(TurnEnd { status, failure_kind: Some(kind), message: Some(message) }));
            }
            Step::Ask(ask) => return self.ask(ask).await,
            Step::AwaitSteer { wait_ms, is_final } => return self.await_steer(wait_ms, is_final).await,
            Step::Usage(mut usage) => {
                usage.entry("model").or_insert_with(|| "scripted".into());
                self.link.usage(usage).await;
            }
            Step::Crash { always } => self.crash(always).await?,
            Step::Error { kind, message } => {
                self.link.emit(EventType::Error, &json!({"failureKind": kind, "message": message})).await;
            }
            Step::Custom(payload) => self.link.emit(EventType::Custom, &payload).await,
            Step::Emit { count, bytes } => self.emit(count, bytes).await?,
        }
        Ok(None)
    }

    /// Streams a text piece by piece, then says it whole.
    async fn say(&mut self, say: &Say) -> Result<(), Left> {
        let message_id = self.link.new_id("msg");
        for (index, piece) in pieces(&say.text, say.pieces).enumerate() {
            if index > 0 && say.every_ms > 0 {
                self.pause(say.every_ms).await?;
            }
            self.link.delta(EventType::AssistantDelta, &message_id, piece).await;
        }
        self.link.message_with(&message_id, &say.text, say.is_final, say.ui_hints.as_ref()).await;
        Ok(())
    }

    async fn tool(&mut self, tool: &Tool) -> Result<(), Left> {
        let id = self.link.new_id("tool");
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
        self.link.start_tool(&call("started")).await?;
        if tool.leave_open {
            return Ok(());
        }
        if tool.wait_ms > 0 {
            self.pause(tool.wait_ms).await?;
        }
        if let Some(output) = &tool.output {
            self.link.output(&id, "stdout", output).await;
        }
        let mut ended = call(if tool.exit_code == 0 { "completed" } else { "failed" });
        ended.insert("exitCode".into(), tool.exit_code.into());
        self.link.emit(EventType::ToolCall, &ended).await;
        Ok(())
    }

    async fn ask(&mut self, ask: Ask) -> StepResult {
        let option = |id: &str, name: &str, kind| PermissionOption { option_id: id.into(), name: name.into(), kind };
        let request = AskPermission {
            permission_id: self.link.new_permission_id(),
            title: ask.title,
            command: Some(shown(&ask.command)),
            tool_call_id: None,
            options: vec![
                option("allow", "Allow", OptionKind::AllowOnce),
                option("deny", "Deny", OptionKind::RejectOnce),
            ],
            digest: canonical_hash(&ask.command),
            wait_ms: ask.wait_ms,
            deadline: None,
        };
        let answer = self.link.ask(&request).await.answer();
        tokio::pin!(answer);
        let stopped = self.link.stopped();
        tokio::pin!(stopped);
        let answer = loop {
            tokio::select! {
                biased;
                () = &mut stopped => return Err(Left::Stopped),
                answer = &mut answer => break answer,
                steer = self.link.next_steer() => self.heard.push_back(steer.accept()),
            }
        };
        Ok(match answer {
            Answer::Allowed { .. } => None,
            Answer::Denied { .. } => {
                Some(TurnEnd::blocked(FailureKind::PermissionDenied, format!("permission denied: {}", request.title)))
            }
            Answer::Cancelled => {
                Some(TurnEnd::blocked(FailureKind::Cancelled, format!("the question was given up: {}", request.title)))
            }
        })
    }

    /// Waits for a steer, or takes one that came before, and says what it was.
    async fn await_steer(&mut self, wait_ms: u64, is_final: bool) -> StepResult {
        let until = Instant::now() + Duration::from_millis(wait_ms);
        while self.heard.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let message = format!("no steer came within {wait_ms} ms");
                return Ok(Some(TurnEnd::blocked(FailureKind::BackendTimeout, message)));
            }
            self.pause_or_steer(left).await?;
        }
        let text = format!("steered: {}", self.heard.pop_front().unwrap_or_default());
        self.say(&Say { text, is_final, pieces: 1, every_ms: 0, ui_hints: None }).await?;
        Ok(None)
    }

    /// Dies once what was emitted is durable, so that whoever takes over finds the same every time.
    async fn crash(&mut self, always: bool) -> Result<(), Left> {
        if self.is_repeat && !always {
            return Ok(());
        }
        self.link.flushed().await;
        Err(Left::Crashed)
    }

    async fn emit(&mut self, count: u32, bytes: usize) -> Result<(), Left> {
        let pad = "x".repeat(bytes);
        for n in 0..count {
            self.link.check()?;
            self.link.emit(EventType::Custom, &json!({"name": "emit", "value": {"n": n, "pad": pad}})).await;
        }
        Ok(())
    }

    async fn pause(&mut self, ms: u64) -> Result<(), Left> {
        let until = Instant::now() + Duration::from_millis(ms);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.pause_or_steer(left).await?;
        }
    }

    async fn pause_or_steer(&mut self, time: Duration) -> Result<(), Left> {
        let stopped = self.link.stopped();
        tokio::select! {
            biased;
            () = stopped => return Err(Left::Stopped),
            steer = self.link.next_steer() => self.heard.push_back(steer.accept()),
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

/// What would run, as a person reads it.
fn shown(command: &Value) -> String {
    let text = command.as_str().map_or_else(|| command.to_string(), str::to_owned);
    clip(&text, TOOL_COMMAND_CHARS_MAX)
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
