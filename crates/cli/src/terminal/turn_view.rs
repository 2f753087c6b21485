//! What a person sees while a turn runs: the reply as it streams, and a line for every other relevant event. Pure: takes
//! events and returns pieces of text, each for stdout or stderr.

use std::collections::BTreeMap;

use ostler_protocol::{
    FailureKind, Rule, Timestamp,
    failures::RULE,
    ids::{CommandId, RunId},
    kernel::{
        events::{
            EventType, EventView, PHASE_APPROVAL_DECLINED, PHASE_ATTEMPT_RESTARTED, PHASE_COST_UNKNOWN,
            PHASE_TRANSPORT_DISCONNECTED, PHASE_WAITING_PROVIDER,
        },
        permissions::{AskPermission, ParsedPermission},
        results::RunResult,
        runs::{RunState, TerminalStatus},
    },
};
use serde_json::Value;

use crate::{
    errors,
    terminal::{
        amounts,
        events::{declined, field, resolution, tool_call},
        output::{self, count, line},
        paint::Paint,
        permissions,
        times::{age_ms, now},
    },
};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Piece {
    /// A piece of the reply, for stdout.
    Reply(String),
    /// The reply continues with another message, on a new line.
    NextMessage,
    /// One or more whole lines, for stderr.
    Note(String),
}

pub(crate) struct TurnView {
    run_id: RunId,
    command_id: CommandId,
    /// How to invoke `ostler` so that it reaches the same server.
    invocation: String,
    paint: Paint,
    /// The open tool calls: when each began, and its payload.
    tools: BTreeMap<String, (Timestamp, Value)>,
    /// The text printed so far of each unfinished message.
    printed: BTreeMap<String, String>,
    /// The message of the last piece of the reply.
    current: Option<String>,
    mid_line: bool,
    /// Whether the hint about `--approval` was printed.
    hint_printed: bool,
    /// A person answers permission requests where they are shown, so the commands that answer them are left out.
    pub answers_in_place: bool,
    pub replied: bool,
    pub end: Option<TerminalStatus>,
}

impl TurnView {
    pub(crate) fn new(run_id: RunId, command_id: CommandId, invocation: String, paint: Paint) -> Self {
        Self {
            run_id,
            command_id,
            invocation,
            paint,
            tools: BTreeMap::new(),
            printed: BTreeMap::new(),
            current: None,
            mid_line: false,
            hint_printed: false,
            answers_in_place: false,
            replied: false,
            end: None,
        }
    }

    pub(crate) fn apply(&mut self, event: &EventView) -> Vec<Piece> {
        let payload = event.payload.to_value();
        let is_ours = event.command_id == Some(self.command_id);
        match event.event_type {
            EventType::TerminalStatus if is_ours || event.command_id.is_none() => self.terminal(&payload),
            _ if !is_ours => vec![],
            EventType::AssistantDelta => self.delta(&payload),
            EventType::AssistantMessage => self.message(&payload),
            EventType::ToolCall => self.tool(&payload, event.created_at),
            EventType::BackendStatus => self.backend(&payload, event.created_at),
            EventType::PermissionRequest => self.permission(event),
            EventType::PermissionResolved => {
                let id = field(&payload, "permissionId");
                let id = if self.answers_in_place { String::new() } else { format!("{id} ") };
                vec![self.note(&format!("permission {id}{}", resolution(&payload)))]
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
        self.printed.entry(id.clone()).or_default().push_str(delta);
        self.reply(id, delta)
    }

    /// Returns the part of a finished message that its deltas did not contain.
    fn message(&mut self, payload: &Value) -> Vec<Piece> {
        let text = payload.get("text").and_then(Value::as_str).unwrap_or_default();
        let id = message_id(payload);
        let printed = self.printed.remove(&id).unwrap_or_default();
        match text.strip_prefix(printed.as_str()) {
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

    /// A line when a call starts, and one with its duration when it ends.
    fn tool(&mut self, payload: &Value, at: Timestamp) -> Vec<Piece> {
        let id = field(payload, "toolCallId");
        if field(payload, "status") == "started" {
            self.tools.insert(id, (at, payload.clone()));
            return vec![self.note(&format!("tool {}", tool_call(payload)))];
        }
        let Some((began, mut call)) = self.tools.remove(&id) else {
            return vec![self.note(&format!("tool {}", tool_call(payload)))];
        };
        // The end of a call may carry no details, so those of its start are used.
        if let (Some(call), Some(end)) = (call.as_object_mut(), payload.as_object()) {
            call.extend(end.clone());
        }
        vec![self.note(&format!("tool {} in {}", tool_call(&call), duration(began, at)))]
    }

    fn backend(&mut self, payload: &Value, at: Timestamp) -> Vec<Piece> {
        match field(payload, "phase").as_str() {
            PHASE_ATTEMPT_RESTARTED => {
                self.printed.clear();
                self.current = None;
                vec![self.note("another runner took the turn over; the reply starts again")]
            }
            PHASE_APPROVAL_DECLINED => {
                let note = self.note(&declined("declined", payload));
                let hint = Rule::PermissionNever.hint(FailureKind::PermissionDenied).unwrap_or_default();
                let hints = self.needs_approval_hint(payload).then(|| self.note(&format!("hint: {hint}")));
                [Some(note), hints].into_iter().flatten().collect()
            }
            PHASE_COST_UNKNOWN => vec![self.note(&line(&field(payload, "message"), 400))],
            phase @ (PHASE_WAITING_PROVIDER | PHASE_TRANSPORT_DISCONNECTED) => {
                let resumes = field(payload, "resumeAt").parse::<Timestamp>().ok();
                let why = line(&field(payload, "message"), 300);
                let why = match (why.as_str(), phase) {
                    ("", PHASE_WAITING_PROVIDER) => "the provider asks to retry later",
                    ("", _) => "the connection was lost",
                    (why, _) => why,
                };
                let wait = resumes.map(|until| until.as_millisecond() - at.as_millisecond()).filter(|ms| *ms >= 1_000);
                let retry = wait.map_or_else(|| "retrying".to_owned(), |ms| format!("retrying in {}", age_ms(ms)));
                vec![self.note(&format!("{why}; {retry}"))]
            }
            _ => vec![],
        }
    }

    /// Whether to hint at `--approval`: the policy declined the request, and the hint was not printed before.
    fn needs_approval_hint(&mut self, payload: &Value) -> bool {
        let rule = Rule::parse(&field(payload, RULE));
        rule == Some(Rule::PermissionNever) && !std::mem::replace(&mut self.hint_printed, true)
    }

    fn permission(&self, event: &EventView) -> Vec<Piece> {
        let ParsedPermission::Valid(ask) = AskPermission::read(&event.payload) else {
            return vec![self.note("a permission request could not be read and counts as denied")];
        };
        let head = self.paint.yellow(&format!("permission needed: {}", line(&ask.title, 400)));
        let width = output::stderr_width();
        let time_left = permissions::time_left(ask.deadline, now());
        if self.answers_in_place {
            let question = permissions::question_text(&head, ask.command.as_deref(), width);
            return vec![Piece::Note(format!("{question}{time_left}"))];
        }
        let request = permissions::request_text(&head, ask.command.as_deref(), &ask.digest, &ask.options, width);
        let answers = permissions::answer_commands(&self.invocation, self.run_id, ask.permission_id);
        vec![Piece::Note(format!("{request}{time_left}{answers}"))]
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

fn message_id(payload: &Value) -> String {
    payload.get("messageId").and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The outcome in one line; if the turn did not complete, two more lines with the reason and a hint.
pub(crate) fn outcome(result: &RunResult, paint: Paint) -> String {
    let mut facts = vec![];
    if result.tool_call_summary.count > 0 {
        facts.push(count(result.tool_call_summary.count, "tool call"));
    }
    if result.usage.total_tokens > 0 {
        facts.push(count(result.usage.total_tokens, "token"));
    }
    if result.usage.cost_usd > 0.0 {
        facts.push(amounts::cost(result.usage.cost_usd));
    }
    if result.state == RunState::Completed && result.reply.as_deref().unwrap_or_default().is_empty() {
        facts.push("no reply".to_owned());
    }
    facts.push(result.run_id.to_string());
    let state = paint.state(result.state, result.state.as_str());
    let mut out = format!("{state} · {}\n", facts.join(" · "));
    if let Some(kind) = result.failure_kind {
        let blocker = result.blocker.as_deref().unwrap_or(kind.row().meaning);
        out.push_str(&format!("  {kind}: {}\n", line(blocker, 500)));
        out.push_str(&format!("{} {}\n", paint.bold("hint:"), errors::hint_about(kind, result)));
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::terminal::events::fixtures::{event, id};

    fn view() -> TurnView {
        TurnView::new(id("run_", 1), id("cmd_", 1), "ostler".into(), Paint::PLAIN)
    }

    fn reply(view: &mut TurnView, event_type: EventType, payload: Value) -> String {
        view.apply(&event(1, event_type, payload))
            .into_iter()
            .map(|piece| match piece {
                Piece::Reply(text) => text,
                Piece::NextMessage => "\n".into(),
                Piece::Note(text) => panic!("a note: {text}"),
            })
            .collect()
    }

    fn note(view: &mut TurnView, event_type: EventType, payload: Value) -> String {
        view.apply(&event(1, event_type, payload))
            .into_iter()
            .map(|piece| match piece {
                Piece::Note(text) => text,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn a_tool_call_without_a_known_end_is_named_by_its_start() {
        use EventType::*;
        let view = &mut view();
        let began = json!({"toolCallId": "t", "name": "shell", "status": "started", "command": "sleep 5"});
        note(view, ToolCall, began);
        let end = note(view, ToolCall, json!({"toolCallId": "t", "status": "outcome-unknown"}));
        assert!(end.contains("tool shell outcome-unknown: sleep 5 in "), "{end}");
    }

    #[test]
    fn a_wait_for_the_provider_shows_its_reason() {
        let view = &mut view();
        // 20 seconds after the event.
        let phase = |message: &str| json!({"phase": "waiting-provider", "resumeAt": "2030-01-02T03:04:25.7Z", "message": message});
        let unreachable = note(view, EventType::BackendStatus, phase("the provider cannot be reached"));
        assert!(unreachable.contains("the provider cannot be reached; retrying in 20s"));
        assert!(note(view, EventType::BackendStatus, phase("")).contains("the provider asks to retry later; "));
        let lost = note(view, EventType::BackendStatus, json!({"phase": "transport-disconnected"}));
        assert!(lost.contains("the connection was lost; retrying"), "{lost}");
    }

    #[test]
    fn a_message_is_not_repeated_after_its_deltas() {
        use EventType::*;
        let view = &mut view();
        assert_eq!(reply(view, AssistantDelta, json!({"messageId": "a", "delta": "hel"})), "hel");
        assert_eq!(reply(view, AssistantDelta, json!({"messageId": "a", "delta": "lo"})), "lo");
        assert_eq!(reply(view, AssistantMessage, json!({"messageId": "a", "text": "hello"})), "");
        assert_eq!(reply(view, AssistantMessage, json!({"messageId": "b", "text": "again"})), "\nagain");
    }

    #[test]
    fn text_missing_from_the_deltas_is_printed_at_the_end() {
        use EventType::*;
        let view = &mut view();
        assert_eq!(reply(view, AssistantDelta, json!({"messageId": "a", "delta": "hel"})), "hel");
        assert_eq!(reply(view, AssistantMessage, json!({"messageId": "a", "text": "hello"})), "lo");
        assert_eq!(reply(view, AssistantDelta, json!({"delta": "x"})), "\nx");
        assert_eq!(reply(view, AssistantMessage, json!({"text": "another text"})), "");
    }

    #[test]
    fn text_of_another_command_is_not_printed() {
        let mut other = event(1, EventType::AssistantDelta, json!({"delta": "x"}));
        other.command_id = Some(id("cmd_", 2));
        assert_eq!(view().apply(&other), []);
        other.event_type = EventType::TerminalStatus;
        let view = &mut view();
        view.apply(&other);
        assert_eq!(view.end, None);
    }

    #[test]
    fn a_tool_call_is_a_line_at_its_start_and_one_at_its_end() {
        let view = &mut view();
        let call = |status: &str, exit: Option<i64>, at: &str| {
            let payload =
                json!({"toolCallId": "t", "name": "shell", "command": "ls", "status": status, "exitCode": exit});
            let mut call = event(1, EventType::ToolCall, payload);
            call.created_at = at.parse().unwrap();
            call
        };
        let mut note_of = |call: EventView| match view.apply(&call).remove(0) {
            Piece::Note(text) => text,
            other => panic!("{other:?}"),
        };
        assert_eq!(note_of(call("started", None, "2030-01-01T00:00:00Z")), "tool shell started: ls\n");
        let ended = note_of(call("completed", Some(2), "2030-01-01T00:01:02.34Z"));
        assert_eq!(ended, "tool shell completed: ls (exit 2) in 62.3s\n");
        assert_eq!(note_of(call("declined", None, "2030-01-01T00:00:00Z")), "tool shell declined: ls\n");
    }

    #[test]
    fn a_permission_request_shows_the_commands_that_answer_it() {
        let prm = format!("prm_{:032x}", 7);
        let payload = json!({"permissionId": prm, "title": "rm -rf build", "digest": "ab".repeat(32),
            "options": [{"optionId": "yes", "name": "Allow", "kind": "allow_once"}], "waitMs": 600_000});
        let text = note(&mut view(), EventType::PermissionRequest, payload.clone());
        let (run, prm) = (format!("run_{:016x}", 0), format!("prm_{:016x}", 0));
        let digest = "ab".repeat(32);
        assert!(text.lines().filter(|line| line.contains("ostler")).all(|line| line.len() <= 80), "{text}");
        assert_eq!(
            text,
            format!(
                "permission needed: rm -rf build\n  digest:  {digest}\n  options: yes (Allow)\n  \
                 approve: ostler approve {run} {prm}\n  deny:    ostler deny {run} {prm}\n"
            )
        );
        let mut expiring = payload.clone();
        expiring["deadline"] = json!("9000-01-01T00:00:00Z");
        let text = note(&mut view(), EventType::PermissionRequest, expiring.clone());
        assert!(text.contains("\n  options: yes (Allow)\n  answer:  within "), "{text}");
        let in_place = &mut TurnView { answers_in_place: true, ..view() };
        let text = note(in_place, EventType::PermissionRequest, expiring);
        assert!(text.starts_with("permission needed: rm -rf build\n  answer:  within "), "{text}");
        let mut hidden = payload;
        hidden["title"] = json!("rm -rf \u{1b}[8mbuild");
        for denied in [hidden, json!({"title": "x"})] {
            let text = note(&mut view(), EventType::PermissionRequest, denied);
            assert_eq!(text, "a permission request could not be read and counts as denied\n");
        }
    }

    #[test]
    fn a_declined_request_shows_its_reason_and_once_a_hint() {
        let view = &mut view();
        let payload = json!({"phase": PHASE_APPROVAL_DECLINED, "command": "touch x", "reason": "the run's policy is never to ask",
            "rule": "permission-never"});
        let declined = "declined: touch x (the run's policy is never to ask)\n";
        let text = note(view, EventType::BackendStatus, payload.clone());
        assert!(text.starts_with(declined) && text.contains("--approval on-request"), "{text}");
        assert_eq!(note(view, EventType::BackendStatus, payload.clone()), declined);
        let mut of_older_runner = payload;
        of_older_runner["rule"] = Value::Null;
        assert_eq!(note(&mut self::view(), EventType::BackendStatus, of_older_runner), declined);
    }

    #[test]
    fn only_a_terminal_status_ends_the_turn() {
        let view = &mut view();
        view.apply(&event(1, EventType::Error, json!({"failureKind": "internal", "message": "x"})));
        assert_eq!(view.end, None);
        view.apply(&event(2, EventType::TerminalStatus, json!({"status": "blocked"})));
        assert_eq!(view.end, Some(TerminalStatus::Blocked));
    }

    #[test]
    fn a_new_attempt_starts_the_reply_again() {
        let view = &mut view();
        reply(view, EventType::AssistantDelta, json!({"messageId": "a", "delta": "hel"}));
        note(view, EventType::BackendStatus, json!({"phase": PHASE_ATTEMPT_RESTARTED}));
        assert_eq!(reply(view, EventType::AssistantDelta, json!({"messageId": "a", "delta": "hello"})), "\nhello");
        assert_eq!(reply(view, EventType::AssistantMessage, json!({"messageId": "a", "text": "hello"})), "");
    }
}
