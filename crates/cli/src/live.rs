//! What a person sees while a turn runs: the reply as it comes, and a line for everything else that matters. Pure: an
//! event goes in, pieces of text come out, each meant for one of the two streams.

use std::collections::BTreeMap;

use ostler_protocol::{
    Timestamp,
    ids::{CommandId, RunId},
    kernel::{
        events::{
            EventType, EventView, PHASE_APPROVAL_DECLINED, PHASE_ATTEMPT_RESTARTED, PHASE_COST_UNKNOWN,
            PHASE_TRANSPORT_DISCONNECTED, PHASE_WAITING_PROVIDER,
        },
        liveness::{Phase, Recovery},
        permissions::{AskPermission, Asked},
        results::RunResult,
        runs::TerminalStatus,
    },
};
use serde_json::Value;

use crate::{
    errors,
    events::{declined, field, tool_call},
    output::{count, line},
    paint::Paint,
    permissions,
};

#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// A piece of the reply, for stdout.
    Reply(String),
    /// The reply goes on with another message, on a line of its own.
    NextMessage,
    /// A whole line or several, for stderr.
    Note(String),
}

pub struct Live {
    run_id: RunId,
    command_id: CommandId,
    /// How to call `ostler` so that it reaches the same server.
    invocation: String,
    paint: Paint,
    /// When each tool call that has not ended began.
    tools: BTreeMap<String, (Timestamp, Value)>,
    /// What has been shown of each message that is still being written.
    shown: BTreeMap<String, String>,
    /// The message that the last piece of the reply belongs to.
    current: Option<String>,
    mid_line: bool,
    /// It was said how questions could be answered.
    hinted: bool,
    pub replied: bool,
    pub end: Option<TerminalStatus>,
}

impl Live {
    pub fn new(run_id: RunId, command_id: CommandId, invocation: String, paint: Paint) -> Self {
        Self {
            run_id,
            command_id,
            invocation,
            paint,
            tools: BTreeMap::new(),
            shown: BTreeMap::new(),
            current: None,
            mid_line: false,
            hinted: false,
            replied: false,
            end: None,
        }
    }

    pub fn apply(&mut self, event: &EventView) -> Vec<Piece> {
        let payload = event.payload.to_value();
        let is_ours = event.command_id == Some(self.command_id);
        match event.event_type {
            EventType::TerminalStatus if is_ours || event.command_id.is_none() => self.terminal(&payload),
            _ if !is_ours => vec![],
            EventType::AssistantDelta => self.delta(&payload),
            EventType::AssistantMessage => self.message(&payload),
            EventType::ToolCall => self.tool(&payload, event.created_at),
            EventType::BackendStatus => self.backend(&payload),
            EventType::PermissionRequest => self.permission(event),
            EventType::PermissionResolved => {
                let (id, status, by) =
                    (field(&payload, "permissionId"), field(&payload, "status"), field(&payload, "resolvedBy"));
                vec![self.note(&format!("permission {id} {status} by {by}"))]
            }
            EventType::Error => {
                let (kind, message) = (field(&payload, "failureKind"), field(&payload, "message"));
                vec![self.note(&format!("error {kind}: {message}"))]
            }
            _ => vec![],
        }
    }

    fn delta(&mut self, payload: &Value) -> Vec<Piece> {
        let delta = payload.get("delta").and_then(Value::as_str).unwrap_or_default();
        let id = message_id(payload);
        self.shown.entry(id.clone()).or_default().push_str(delta);
        self.reply(id, delta)
    }

    /// Shows of a finished message what its deltas have not shown yet.
    fn message(&mut self, payload: &Value) -> Vec<Piece> {
        let text = payload.get("text").and_then(Value::as_str).unwrap_or_default();
        let id = message_id(payload);
        let shown = self.shown.remove(&id).unwrap_or_default();
        match text.strip_prefix(shown.as_str()) {
            Some(rest) => self.reply(id, rest),
            None => vec![],
        }
    }

    fn reply(&mut self, id: String, text: &str) -> Vec<Piece> {
        if text.is_empty() {
            return vec![];
        }
        let breaks = self.mid_line && self.current.as_ref() != Some(&id);
        self.current = Some(id);
        self.mid_line = !text.ends_with('\n');
        self.replied = true;
        let reply = Piece::Reply(text.to_owned());
        if breaks { vec![Piece::NextMessage, reply] } else { vec![reply] }
    }

    /// A line when a call starts, and one when it ends, with how long it took.
    fn tool(&mut self, payload: &Value, at: Timestamp) -> Vec<Piece> {
        let id = field(payload, "toolCallId");
        if field(payload, "status") == "started" {
            self.tools.insert(id, (at, payload.clone()));
            return vec![self.note(&format!("tool {}", tool_call(payload)))];
        }
        let Some((began, mut call)) = self.tools.remove(&id) else {
            return vec![self.note(&format!("tool {}", tool_call(payload)))];
        };
        // Of one that nobody saw end, only the beginning says what it was.
        if let (Some(call), Some(end)) = (call.as_object_mut(), payload.as_object()) {
            call.extend(end.clone());
        }
        vec![self.note(&format!("tool {} in {}", tool_call(&call), duration(began, at)))]
    }

    fn backend(&mut self, payload: &Value) -> Vec<Piece> {
        match field(payload, "phase").as_str() {
            PHASE_ATTEMPT_RESTARTED => {
                self.shown.clear();
                self.current = None;
                vec![self.note("another runner took the turn over; the reply starts anew")]
            }
            PHASE_APPROVAL_DECLINED => {
                let told = self.note(&declined("declined", payload));
                let hint = "`ostler run --approval on-request` lets somebody answer such a question";
                let hints = self.hints_at_asking(payload).then(|| self.note(&format!("hint: {hint}")));
                [Some(told), hints].into_iter().flatten().collect()
            }
            PHASE_COST_UNKNOWN => vec![self.note(&line(&field(payload, "message"), 400))],
            phase @ (PHASE_WAITING_PROVIDER | PHASE_TRANSPORT_DISCONNECTED) => {
                let until = field(payload, "resumeAt");
                let until = until.split('.').next().unwrap_or_default().trim_end_matches('Z');
                let why = line(&field(payload, "message"), 300);
                let why = match (why.as_str(), phase) {
                    ("", PHASE_WAITING_PROVIDER) => "the provider says later",
                    ("", _) => "the connection was lost",
                    (why, _) => why,
                };
                let again =
                    if until.is_empty() { "trying again".to_owned() } else { format!("it is asked again at {until}Z") };
                vec![self.note(&format!("{why}; {again}"))]
            }
            _ => vec![],
        }
    }

    /// Whether a question could have been answered, had the policy let it be asked; said once.
    fn hints_at_asking(&mut self, payload: &Value) -> bool {
        field(payload, "reason").contains("never to ask") && !std::mem::replace(&mut self.hinted, true)
    }

    fn permission(&self, event: &EventView) -> Vec<Piece> {
        let Asked::Well(ask) = AskPermission::read(&event.payload) else {
            return vec![self.note("a permission request could not be read and counts as denied")];
        };
        let head = self.paint.yellow(&format!("permission needed: {}", line(&ask.title, 400)));
        let asked = permissions::asked(&head, ask.command.as_deref(), &ask.digest, &ask.options);
        let answers = permissions::answers(&self.invocation, self.run_id, ask.permission_id);
        vec![Piece::Note(format!("{asked}{answers}"))]
    }

    fn terminal(&mut self, payload: &Value) -> Vec<Piece> {
        self.end = self.end.or_else(|| TerminalStatus::parse(&field(payload, "status")));
        vec![]
    }

    fn note(&self, text: &str) -> Piece {
        Piece::Note(format!("{}\n", self.paint.dim(text)))
    }
}

/// `0.3s`, `75.0s`.
fn duration(from: Timestamp, to: Timestamp) -> String {
    let ms = (to.as_millisecond() - from.as_millisecond()).max(0);
    format!("{}.{}s", ms / 1_000, ms % 1_000 / 100)
}

/// A phase as people say it.
pub fn phase_words(phase: Phase) -> &'static str {
    match phase {
        Phase::Idle => "idle",
        Phase::WaitingRunner => "waiting for a runner",
        Phase::WaitingModel => "waiting for the agent",
        Phase::WaitingTool => "running a tool",
        Phase::WaitingPermission => "waiting for permission",
        Phase::WaitingProvider => "waiting for the provider",
        Phase::IdleAfterTool => "silent after a tool",
        Phase::TransportDisconnected => "cut off from the agent",
        Phase::RunnerHeartbeatStale => "not heard of its runner",
        Phase::Terminal => "ended",
    }
}

/// The command that sends a suggested request.
pub fn recovery_command(recovery: &Recovery) -> String {
    let Recovery { method, path, body } = recovery;
    // Escaped for a shell: the server could have put anything there.
    let body = body.to_string().replace('\'', "'\\''");
    line(&format!("ostler api {method} {path} -d '{body}'"), 400)
}

fn message_id(payload: &Value) -> String {
    payload.get("messageId").and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// How it ended, in one line; where it did not complete, why and what to do in two more.
pub fn outcome(result: &RunResult, paint: Paint) -> String {
    let mut facts = vec![];
    if result.tool_call_summary.count > 0 {
        facts.push(count(result.tool_call_summary.count, "tool call"));
    }
    if result.usage.total_tokens > 0 {
        facts.push(count(result.usage.total_tokens, "token"));
    }
    if result.usage.cost_usd > 0.0 {
        facts.push(format!("{:.4} USD", result.usage.cost_usd));
    }
    if result.status == "completed" && result.reply.as_deref().unwrap_or_default().is_empty() {
        facts.push("nothing was answered".to_owned());
    }
    facts.push(result.run_id.to_string());
    let mut out = format!("{} · {}\n", paint.status(&line(&result.status, 40)), facts.join(" · "));
    if let Some(kind) = result.failure_kind {
        let blocker = result.blocker.as_deref().unwrap_or(kind.row().meaning);
        out.push_str(&format!("  {kind}: {}\n", line(blocker, 500)));
        out.push_str(&format!("{} {}\n", paint.bold("hint:"), errors::hint_about(kind, result.run_id)));
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::events::fixtures::{event, id};

    fn live() -> Live {
        Live::new(id("run_", 1), id("cmd_", 1), "ostler".into(), Paint::PLAIN)
    }

    fn reply(live: &mut Live, event_type: EventType, payload: Value) -> String {
        live.apply(&event(1, event_type, payload))
            .into_iter()
            .map(|piece| match piece {
                Piece::Reply(text) => text,
                Piece::NextMessage => "\n".into(),
                Piece::Note(text) => panic!("a note: {text}"),
            })
            .collect()
    }

    fn note(live: &mut Live, event_type: EventType, payload: Value) -> String {
        live.apply(&event(1, event_type, payload))
            .into_iter()
            .map(|piece| match piece {
                Piece::Note(text) => text,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn a_tool_that_nobody_saw_end_is_named_by_how_it_began() {
        use EventType::*;
        let live = &mut live();
        let began = json!({"toolCallId": "t", "name": "shell", "status": "started", "command": "sleep 5"});
        note(live, ToolCall, began);
        let end = note(live, ToolCall, json!({"toolCallId": "t", "status": "outcome-unknown"}));
        assert!(end.contains("tool shell outcome-unknown: sleep 5 in "), "{end}");
    }

    #[test]
    fn whoever_waits_for_a_provider_is_told_why() {
        let live = &mut live();
        let phase = |message: &str| json!({"phase": "waiting-provider", "resumeAt": "2030-01-01T00:00:20.123456789Z", "message": message});
        let unreachable = note(live, EventType::BackendStatus, phase("the provider cannot be reached"));
        assert!(unreachable.contains("the provider cannot be reached; it is asked again at 2030-01-01T00:00:20Z"));
        assert!(note(live, EventType::BackendStatus, phase("")).contains("the provider says later; "));
        let lost = note(live, EventType::BackendStatus, json!({"phase": "transport-disconnected"}));
        assert!(lost.contains("the connection was lost; trying again"), "{lost}");
    }

    #[test]
    fn a_message_is_not_shown_again_after_its_deltas() {
        use EventType::*;
        let live = &mut live();
        assert_eq!(reply(live, AssistantDelta, json!({"messageId": "a", "delta": "hel"})), "hel");
        assert_eq!(reply(live, AssistantDelta, json!({"messageId": "a", "delta": "lo"})), "lo");
        assert_eq!(reply(live, AssistantMessage, json!({"messageId": "a", "text": "hello"})), "");
        assert_eq!(reply(live, AssistantMessage, json!({"messageId": "b", "text": "again"})), "\nagain");
    }

    #[test]
    fn what_the_deltas_left_out_is_shown_at_the_end() {
        use EventType::*;
        let live = &mut live();
        assert_eq!(reply(live, AssistantDelta, json!({"messageId": "a", "delta": "hel"})), "hel");
        assert_eq!(reply(live, AssistantMessage, json!({"messageId": "a", "text": "hello"})), "lo");
        assert_eq!(reply(live, AssistantDelta, json!({"delta": "x"})), "\nx");
        assert_eq!(reply(live, AssistantMessage, json!({"text": "another text"})), "");
    }

    #[test]
    fn another_commands_text_is_not_shown() {
        let mut other = event(1, EventType::AssistantDelta, json!({"delta": "x"}));
        other.command_id = Some(id("cmd_", 2));
        assert_eq!(live().apply(&other), []);
        other.event_type = EventType::TerminalStatus;
        let live = &mut live();
        live.apply(&other);
        assert_eq!(live.end, None);
    }

    #[test]
    fn a_tool_call_is_a_line_at_its_start_and_one_at_its_end() {
        let live = &mut live();
        let call = |status: &str, exit: Option<i64>, at: &str| {
            let payload =
                json!({"toolCallId": "t", "name": "shell", "command": "ls", "status": status, "exitCode": exit});
            let mut call = event(1, EventType::ToolCall, payload);
            call.created_at = at.parse().unwrap();
            call
        };
        let mut told = |call: EventView| match live.apply(&call).remove(0) {
            Piece::Note(text) => text,
            other => panic!("{other:?}"),
        };
        assert_eq!(told(call("started", None, "2030-01-01T00:00:00Z")), "tool shell started: ls\n");
        let ended = told(call("completed", Some(2), "2030-01-01T00:01:02.34Z"));
        assert_eq!(ended, "tool shell completed: ls (exit 2) in 62.3s\n");
        assert_eq!(told(call("declined", None, "2030-01-01T00:00:00Z")), "tool shell declined: ls\n");
    }

    #[test]
    fn a_permission_request_shows_the_commands_that_answer_it() {
        let prm = format!("prm_{:032x}", 7);
        let payload = json!({"permissionId": prm, "title": "rm -rf build", "digest": "ab".repeat(32),
            "options": [{"optionId": "yes", "name": "Allow", "kind": "allow_once"}]});
        let text = note(&mut live(), EventType::PermissionRequest, payload.clone());
        let run = format!("run_{:032x}", 1);
        let digest = "ab".repeat(32);
        assert_eq!(
            text,
            format!(
                "permission needed: rm -rf build\n  digest:  {digest}\n  options: yes (Allow)\n  \
                 approve: ostler approve {run} {prm}\n  deny:    ostler deny {run} {prm}\n"
            )
        );
        let mut hidden = payload;
        hidden["title"] = json!("rm -rf \u{1b}[8mbuild");
        for denied in [hidden, json!({"title": "x"})] {
            let text = note(&mut live(), EventType::PermissionRequest, denied);
            assert_eq!(text, "a permission request could not be read and counts as denied\n");
        }
    }

    #[test]
    fn what_was_declined_is_shown_with_its_reason_and_once_with_what_to_do() {
        let live = &mut live();
        let payload = json!({"phase": PHASE_APPROVAL_DECLINED, "command": "touch x", "reason": "the run's policy is never to ask"});
        let told = "declined: touch x (the run's policy is never to ask)\n";
        let text = note(live, EventType::BackendStatus, payload.clone());
        assert!(text.starts_with(told) && text.contains("--approval on-request"), "{text}");
        assert_eq!(note(live, EventType::BackendStatus, payload), told);
    }

    #[test]
    fn only_the_terminal_fact_ends_it() {
        let live = &mut live();
        live.apply(&event(1, EventType::Error, json!({"failureKind": "internal", "message": "x"})));
        assert_eq!(live.end, None);
        live.apply(&event(2, EventType::TerminalStatus, json!({"status": "blocked"})));
        assert_eq!(live.end, Some(TerminalStatus::Blocked));
    }

    #[test]
    fn a_new_attempt_starts_the_reply_anew() {
        let live = &mut live();
        reply(live, EventType::AssistantDelta, json!({"messageId": "a", "delta": "hel"}));
        note(live, EventType::BackendStatus, json!({"phase": PHASE_ATTEMPT_RESTARTED}));
        assert_eq!(reply(live, EventType::AssistantDelta, json!({"messageId": "a", "delta": "hello"})), "\nhello");
        assert_eq!(reply(live, EventType::AssistantMessage, json!({"messageId": "a", "text": "hello"})), "");
    }
}
