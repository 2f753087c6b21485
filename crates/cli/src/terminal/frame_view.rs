//! What a person sees of a session that they are attached to: replies as they stream, thoughts, tool calls, prompts of other
//! clients and permission requests. Pure: takes frames and returns pieces of text, each for stdout or stderr.

use std::collections::BTreeMap;

use ostler_client::daemon::ReceivedFrame;
use ostler_protocol::kernel::permissions::{OptionKind, PermissionOption};
use serde_json::{Value, json};

use crate::terminal::{
    events::{field, tool_call},
    output::{self, line},
    paint::Paint,
    permissions,
    turn_view::Piece,
};

/// The most that is printed of one message on a line.
const LINE_CHARS_MAX: usize = 400;
/// The most that is printed of the data of a frame that has no text of its own.
const DATA_CHARS_MAX: usize = 160;
/// How much of a generated client id is printed.
const CLIENT_ID_CHARS: usize = 8;
const CLIENT_ID_PREFIX: &str = "client_";

/// A permission request that waits for votes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PermissionQuestion {
    pub request_id: String,
    pub title: String,
    /// What will run, as far as the request says.
    pub command: Option<String>,
    pub options: Vec<PermissionOption>,
}

impl PermissionQuestion {
    /// `None` if the frame is not a permission request, or has no option to vote for.
    pub(crate) fn read(frame: &ReceivedFrame) -> Option<Self> {
        if frame.frame_type != "permission_request" {
            return None;
        }
        let request_id = frame.data.get("requestId")?.as_str()?.to_owned();
        let options = serde_json::from_value(frame.data.get("options")?.clone()).ok()?;
        let call = frame.data.get("toolCall").unwrap_or(&Value::Null);
        let title = [field(call, "title"), field(call, "kind"), "a tool call".into()];
        let title = title.into_iter().find(|text| !text.is_empty()).unwrap_or_default();
        Some(Self { request_id, title, command: command_of(call), options })
    }
}

/// The name of the tool, or what the call is titled.
fn tool_name(call: &Value) -> Option<&Value> {
    call["_meta"].get("toolName").or(call.get("title")).or(call.get("kind"))
}

/// What a tool call will do: its command, or else all of its input.
fn command_of(call: &Value) -> Option<String> {
    let input = call.get("rawInput").filter(|input| !input.is_null());
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let command = input.and_then(|input| {
        let only = input.as_object().is_none_or(|members| members.len() == 1);
        input.get("command").filter(|_| only).and_then(text).or_else(|| text(input))
    });
    let whole = || input.or_else(|| call.get("content").filter(|content| !content.is_null())).map(output::json);
    command.or_else(whole).filter(|text| !text.trim().is_empty())
}

pub(crate) struct FrameView {
    paint: Paint,
    /// The id of this client, whose own prompts are not printed again.
    own: Option<String>,
    /// Whether a person answers permission requests where they are shown.
    answers_in_place: bool,
    /// The commands that answer a permission request elsewhere.
    answer_hint: String,
    /// The open tool calls, as they began.
    calls: BTreeMap<String, Value>,
    /// The options of the open permission requests.
    options: BTreeMap<String, Vec<PermissionOption>>,
    /// The unfinished line of a thought.
    thought: String,
    /// The message that the reply's last piece belongs to.
    message: Option<String>,
    /// The reply's last character was not a line end.
    mid_line: bool,
}

impl FrameView {
    pub(crate) fn new(own: Option<String>, answers_in_place: bool, answer_hint: String, paint: Paint) -> Self {
        Self {
            paint,
            own,
            answers_in_place,
            answer_hint,
            calls: BTreeMap::new(),
            options: BTreeMap::new(),
            thought: String::new(),
            message: None,
            mid_line: false,
        }
    }

    pub(crate) fn apply(&mut self, frame: &ReceivedFrame) -> Vec<Piece> {
        let data = &frame.data;
        match frame.frame_type.as_str() {
            "session_update" => self.update(frame),
            "permission_request" => self.permission(frame),
            "permission_resolved" => self.resolved(frame),
            "turn_complete" => {
                let reason = field(data, "stopReason");
                let note = (reason != "end_turn").then(|| format!("turn ended: {reason}"));
                self.block(note)
            }
            "turn_error" => {
                let code = match field(data, "code") {
                    code if code.is_empty() => String::new(),
                    code => format!(" {code}"),
                };
                let text = format!("error{code}: {}", line(&field(data, "message"), LINE_CHARS_MAX));
                self.whole_lines(vec![Piece::Note(format!("{}\n", self.paint.red(&text)))])
            }
            "session_closed" => self.block(Some(format!("the session was closed{}", self.by(data, "closedBy")))),
            "session_died" => self.block(Some(format!("the session ended: {}", field(data, "reason")))),
            // About the stream, or said by another frame.
            "replay_complete" | "session_snapshot" | "slow_client_warning" | "client_evicted" | "stream_error" => {
                vec![]
            }
            "permission_already_resolved" | "state_resync_required" | "mid_turn_message_injected" => vec![],
            other => {
                let text = self.other(other, frame);
                self.block(Some(text))
            }
        }
    }

    /// A line about a frame that is no part of a turn's text.
    fn other(&self, frame_type: &str, frame: &ReceivedFrame) -> String {
        let data = &frame.data;
        let field = |name: &str| line(&field(data, name), LINE_CHARS_MAX);
        let who = self.who(frame.originator_client_id.as_deref());
        match frame_type {
            "prompt_cancelled" => format!("cancelled by {who}"),
            "session_metadata_updated" => match field("displayName").as_str() {
                "" => format!("{who} removed the session's name"),
                name => format!("{who} renamed the session to {name}"),
            },
            "language_changed" => format!("{who} set the language to {}", field("language")),
            "memory_changed" => format!("{who} changed the memory in {}", field("filePath")),
            "workspace_initialized" => format!("{who} initialized the workspace: {}", field("path")),
            "settings_changed" => format!("{who} changed the setting {}", field("key")),
            "settings_reloaded" => format!("{who} had the settings of the workspace read again"),
            "model_switched" => format!("{who} chose the model {}", field("modelId")),
            "model_switch_failed" => format!("the model could not be changed: {}", field("error")),
            "approval_mode_changed" => format!("{who} changed the approval mode to {}", field("mode")),
            "permission_partial_vote" => format!("{} of {} votes", field("votesReceived"), field("quorum")),
            "permission_forbidden" => format!("a vote by {who} was refused: {}", field("reason")),
            "user_shell_command" => format!("{who} ran: {}", field("command")),
            _ => {
                let mut data = data.clone();
                if let Some(members) = data.as_object_mut() {
                    members.remove("sessionId");
                }
                let text = line(&data.to_string(), DATA_CHARS_MAX);
                format!("{} {text}", line(frame_type, LINE_CHARS_MAX))
            }
        }
    }

    fn update(&mut self, frame: &ReceivedFrame) -> Vec<Piece> {
        let Some(update) = frame.data.get("update") else { return vec![] };
        let text = || update.pointer("/content/text").and_then(Value::as_str).unwrap_or_default();
        match update.get("sessionUpdate").and_then(Value::as_str).unwrap_or_default() {
            "agent_message_chunk" => {
                let message = update.pointer("/_meta/ostler/messageId").and_then(Value::as_str);
                self.reply(text(), message)
            }
            "agent_thought_chunk" => self.think(text()),
            "user_message_chunk" => self.prompt(frame, text()),
            "tool_call" | "tool_call_update" => self.tool(update),
            "plan" => {
                let plan = plan_line(update);
                self.block(plan)
            }
            "notice" => match update.pointer("/_meta/ostler").filter(|notice| notice["type"] == "error") {
                Some(error) => {
                    let text = format!("error {}: {}", field(error, "failureKind"), field(error, "message"));
                    self.block(Some(text))
                }
                None => vec![],
            },
            _ => vec![],
        }
    }

    /// A piece of a message. Another message begins on a line of its own.
    fn reply(&mut self, text: &str, message: Option<&str>) -> Vec<Piece> {
        if text.is_empty() {
            return vec![];
        }
        let mut pieces = self.end_thought();
        if self.message.as_deref() != message {
            self.message = message.map(str::to_owned);
            if std::mem::take(&mut self.mid_line) {
                pieces.push(Piece::NextMessage);
            }
        }
        self.mid_line = !text.ends_with('\n');
        pieces.push(Piece::Reply(text.to_owned()));
        pieces
    }

    /// Thoughts are printed by whole lines.
    fn think(&mut self, text: &str) -> Vec<Piece> {
        self.thought.push_str(text);
        let Some(end) = self.thought.rfind('\n') else { return vec![] };
        let rest = self.thought.split_off(end + 1);
        let lines = std::mem::replace(&mut self.thought, rest);
        let note = self.dim_lines(&lines);
        self.whole_lines(note.into_iter().collect())
    }

    fn end_thought(&mut self) -> Vec<Piece> {
        let thought = std::mem::take(&mut self.thought);
        self.dim_lines(&thought).into_iter().collect()
    }

    fn dim_lines(&self, text: &str) -> Option<Piece> {
        let text = output::harmless(text);
        let lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty());
        let lines: String = lines.map(|line| format!("{}\n", self.paint.dim(line))).collect();
        (!lines.is_empty()).then_some(Piece::Note(lines))
    }

    fn prompt(&mut self, frame: &ReceivedFrame, text: &str) -> Vec<Piece> {
        let originator = frame.originator_client_id.as_deref();
        if originator.is_some() && originator == self.own.as_deref() {
            return self.whole_lines(vec![]);
        }
        let who = self.paint.bold(&format!("{}:", self.who(originator)));
        let note = format!("{who} {}\n", output::harmless(text).trim_end());
        self.whole_lines(vec![Piece::Note(note)])
    }

    /// A line when a call starts, and one when it ends.
    fn tool(&mut self, update: &Value) -> Vec<Piece> {
        let id = field(update, "toolCallId");
        let known = self.calls.remove(&id);
        let is_new = known.is_none();
        let mut call = known.unwrap_or_else(|| json!({}));
        // An update contains only what has changed.
        if let (Some(call), Some(update)) = (call.as_object_mut(), update.as_object()) {
            call.extend(update.iter().filter(|(_, value)| !value.is_null()).map(|(k, v)| (k.clone(), v.clone())));
        }
        let status = match field(&call, "status").as_str() {
            ended @ ("completed" | "failed") => ended.to_owned(),
            _ => {
                self.calls.insert(id, call.clone());
                if !is_new {
                    return vec![];
                }
                "started".to_owned()
            }
        };
        let text = tool_call(&json!({"name": tool_name(&call), "toolCallId": call["toolCallId"],
            "command": command_of(&call), "status": status}));
        self.block(Some(format!("tool {}", line(&text, LINE_CHARS_MAX))))
    }

    fn permission(&mut self, frame: &ReceivedFrame) -> Vec<Piece> {
        let Some(question) = PermissionQuestion::read(frame) else {
            return self.block(Some("a permission request could not be read".into()));
        };
        self.options.insert(question.request_id.clone(), question.options.clone());
        let head = self.paint.yellow(&format!("permission needed: {}", line(&question.title, LINE_CHARS_MAX)));
        let (command, width) = (question.command.as_deref(), output::stderr_width());
        let options = format!("  options: {}\n", permissions::options(&question.options));
        let note = match self.answers_in_place {
            true => permissions::question_text(&head, command, width),
            false => permissions::call_text(&head, command, width) + &options + &self.answer_hint,
        };
        self.whole_lines(vec![Piece::Note(note)])
    }

    fn resolved(&mut self, frame: &ReceivedFrame) -> Vec<Piece> {
        let options = self.options.remove(&field(&frame.data, "requestId")).unwrap_or_default();
        let outcome = frame.data.get("outcome").unwrap_or(&Value::Null);
        let option_id = outcome.get("optionId").and_then(Value::as_str);
        let chosen = options.iter().find(|option| Some(option.option_id.as_str()) == option_id);
        let what = match (chosen.map(|option| option.kind), option_id) {
            (Some(OptionKind::AllowOnce), _) => "allowed".to_owned(),
            (Some(OptionKind::AllowAlways), _) => "allowed from now on".to_owned(),
            (Some(OptionKind::RejectOnce), _) => "denied".to_owned(),
            (Some(OptionKind::RejectAlways), _) => "denied from now on".to_owned(),
            (None, Some(id)) => format!("answered with {}", line(id, 80)),
            (None, None) => "cancelled".to_owned(),
        };
        let voter = frame.data.get("voterClientId").and_then(Value::as_str).or(frame.originator_client_id.as_deref());
        let by = voter.map(|voter| format!(" by {}", self.who(Some(voter)))).unwrap_or_default();
        self.block(Some(format!("permission {what}{by}")))
    }

    /// Ends what was unfinished, and adds a dimmed line.
    fn block(&mut self, text: Option<String>) -> Vec<Piece> {
        let note = text.map(|text| Piece::Note(format!("{}\n", self.paint.dim(&text))));
        self.whole_lines(note.into_iter().collect())
    }

    /// The pieces, after the end of an unfinished thought and of the reply's unfinished line.
    fn whole_lines(&mut self, pieces: Vec<Piece>) -> Vec<Piece> {
        let mut all = self.end_thought();
        if std::mem::take(&mut self.mid_line) {
            all.push(Piece::NextMessage);
        }
        all.extend(pieces);
        all
    }

    fn by(&self, data: &Value, name: &str) -> String {
        let client = data.get(name).and_then(Value::as_str);
        client.map(|id| format!(" by {}", self.who(Some(id)))).unwrap_or_default()
    }

    /// A client, as people tell them apart.
    fn who(&self, client: Option<&str>) -> String {
        match client {
            None => "another client".to_owned(),
            Some(id) if self.own.as_deref() == Some(id) => "you".to_owned(),
            Some(id) => match id.strip_prefix(CLIENT_ID_PREFIX) {
                // The beginning of an id is a time, which clients that attach together share.
                Some(rest) => {
                    let rest: Vec<char> = line(rest, LINE_CHARS_MAX).chars().collect();
                    let end: String = rest[rest.len().saturating_sub(CLIENT_ID_CHARS)..].iter().collect();
                    format!("{CLIENT_ID_PREFIX}{end}")
                }
                None => line(id, 80),
            },
        }
    }
}

/// `plan 1/3: write the test`.
fn plan_line(update: &Value) -> Option<String> {
    let entries = update.get("entries")?.as_array()?;
    let is = |entry: &&Value, status: &str| field(entry, "status") == status;
    let done = entries.iter().filter(|entry| is(entry, "completed")).count();
    let current = entries
        .iter()
        .find(|entry| is(entry, "in_progress"))
        .or_else(|| entries.iter().find(|entry| is(entry, "pending")));
    let current = current.map(|entry| format!(": {}", line(&field(entry, "content"), DATA_CHARS_MAX)));
    Some(format!("plan {done}/{}{}", entries.len(), current.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> FrameView {
        FrameView::new(Some("client_me".into()), true, String::new(), Paint::PLAIN)
    }

    fn frame(frame_type: &str, data: Value) -> ReceivedFrame {
        serde_json::from_value(json!({"id": 1, "v": 1, "type": frame_type, "data": data})).unwrap()
    }

    fn update(kind: &str, rest: Value) -> ReceivedFrame {
        let mut update = rest;
        update["sessionUpdate"] = kind.into();
        frame("session_update", json!({"sessionId": "s", "update": update}))
    }

    fn text(kind: &str, text: &str) -> ReceivedFrame {
        update(kind, json!({"content": {"type": "text", "text": text}}))
    }

    /// Everything that is printed, as on a terminal that both streams go to.
    fn printed(view: &mut FrameView, frames: &[ReceivedFrame]) -> String {
        let mut out = String::new();
        for piece in frames.iter().flat_map(|frame| view.apply(frame)) {
            match piece {
                Piece::Reply(text) => out += &text,
                Piece::NextMessage if !out.ends_with('\n') => out.push('\n'),
                Piece::NextMessage => {}
                Piece::Note(text) => {
                    assert!(out.is_empty() || out.ends_with('\n'), "a note in the middle of a line: {out:?} {text:?}");
                    out += &text;
                }
            }
        }
        out
    }

    #[test]
    fn a_turn_is_shown_as_it_streams() {
        let mut other = text("user_message_chunk", "list the files");
        other.originator_client_id = Some("client_0123456789abcdef".into());
        let mut own = text("user_message_chunk", "not printed again");
        own.originator_client_id = Some("client_me".into());
        let call = json!({"toolCallId": "t", "title": "shell", "status": "in_progress", "rawInput": {"command": "ls"}});
        let frames = [
            own,
            other,
            text("agent_thought_chunk", "I should "),
            text("agent_thought_chunk", "look."),
            text("agent_message_chunk", "Look"),
            text("agent_message_chunk", "ing…"),
            update("tool_call", call),
            update("tool_call_update", json!({"toolCallId": "t", "status": "in_progress"})),
            update("tool_call_update", json!({"toolCallId": "t", "status": "completed"})),
            text("agent_message_chunk", "Done."),
            frame("turn_complete", json!({"stopReason": "end_turn", "promptId": "p"})),
            frame("turn_complete", json!({"stopReason": "cancelled", "promptId": "p"})),
        ];
        assert_eq!(
            printed(&mut view(), &frames),
            "client_89abcdef: list the files\nI should look.\nLooking…\ntool shell started: ls\n\
             tool shell completed: ls\nDone.\nturn ended: cancelled\n"
        );
    }

    #[test]
    fn nothing_that_an_agent_sends_drives_the_terminal() {
        let frames = [
            text("agent_thought_chunk", "a\u{1b}[2Jb\n"),
            text("user_message_chunk", "c\u{1b}]0;x\u{7}"),
            frame("memory_changed\u{1b}", json!({"sessionId": "s", "x": "\u{1b}[2J"})),
        ];
        let shown = printed(&mut view(), &frames);
        assert!(!shown.contains('\u{1b}') && !shown.contains('\u{7}'), "{shown:?}");
        assert!(shown.contains("memory_changed {\"x\":"), "{shown}");
    }

    fn request() -> ReceivedFrame {
        let options = json!([{"optionId": "yes", "name": "Once", "kind": "allow_once"},
            {"optionId": "no", "name": "No", "kind": "reject_once"}]);
        let call = json!({"toolCallId": "t", "title": "Clean up?", "rawInput": {"command": "rm -r build"}});
        frame("permission_request", json!({"requestId": "r", "sessionId": "s", "toolCall": call, "options": options}))
    }

    #[test]
    fn a_permission_request_shows_what_will_run_and_how_it_ended() {
        let mut resolved = frame(
            "permission_resolved",
            json!({"requestId": "r", "outcome": {"outcome": "selected", "optionId": "yes"}}),
        );
        resolved.originator_client_id = Some("client_me".into());
        let shown = printed(&mut view(), &[request(), resolved.clone()]);
        assert_eq!(shown, "permission needed: Clean up?\n  command: rm -r build\npermission allowed by you\n");
        let mut elsewhere = FrameView::new(None, false, "  approve: ostler approve s\n".into(), Paint::PLAIN);
        resolved.data["outcome"] = json!({"outcome": "cancelled"});
        resolved.originator_client_id = None;
        assert_eq!(
            printed(&mut elsewhere, &[request(), resolved]),
            "permission needed: Clean up?\n  command: rm -r build\n  options: yes (Once), no (No)\n  \
             approve: ostler approve s\npermission cancelled\n"
        );
    }

    #[test]
    fn the_whole_input_of_a_call_is_shown_if_it_is_more_than_a_command() {
        let call = |input: Value| command_of(&json!({"rawInput": input}));
        assert_eq!(call(json!({"command": "ls"})).unwrap(), "ls");
        assert_eq!(call(json!("ls")).unwrap(), "ls");
        let whole = call(json!({"command": "ls", "directory": "/etc"})).unwrap();
        assert!(whole.contains("\"directory\": \"/etc\"") && whole.contains("\"command\": \"ls\""), "{whole}");
        assert_eq!(call(Value::Null), None);
        let content = command_of(&json!({"content": [{"type": "diff", "path": "a", "newText": "b"}]})).unwrap();
        assert!(content.contains("\"path\": \"a\""), "{content}");
    }

    #[test]
    fn other_frames_are_one_line_each() {
        let view = &mut view();
        let mut renamed = frame("session_metadata_updated", json!({"sessionId": "s", "displayName": "Review"}));
        renamed.originator_client_id = Some("client_me".into());
        let plan =
            json!({"entries": [{"content": "look", "status": "completed"}, {"content": "fix", "status": "pending"}]});
        let frames = [
            renamed,
            frame("turn_error", json!({"message": "no provider", "code": "backend_failed", "promptId": "p"})),
            update("plan", plan),
            frame("replay_complete", json!({"replayedCount": 3})),
            frame("session_closed", json!({"sessionId": "s", "reason": "client_close", "closedBy": "ed"})),
        ];
        assert_eq!(
            printed(view, &frames),
            "you renamed the session to Review\nerror backend_failed: no provider\nplan 1/2: fix\n\
             the session was closed by ed\n"
        );
    }
}
