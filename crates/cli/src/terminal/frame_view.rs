//! What a person sees of a session that they are attached to: replies as they stream, thoughts, tool calls, prompts of other
//! clients and permission requests. Pure: takes frames and returns pieces of text, each for stdout or stderr.

use std::collections::{BTreeMap, BTreeSet};

use ostler_client::daemon::ReceivedFrame;
use ostler_protocol::{
    Timestamp,
    kernel::{
        events::{PHASE_APPROVAL_DECLINED, PHASE_ATTEMPT_RESTARTED},
        permissions::{OptionKind, PermissionOption},
    },
};
use serde_json::{Value, json};

use crate::terminal::{
    events::{field, resolution, tool_call},
    output::{self, line},
    paint::Paint,
    permissions,
    times::now,
    turn_view::Piece,
};

/// The most that is printed of one message on a line.
const LINE_CHARS_MAX: usize = 400;
/// The most that is printed of the data of a frame that has no text of its own.
const DATA_CHARS_MAX: usize = 160;
/// How much of a generated client id is printed.
const CLIENT_ID_CHARS: usize = 8;
const CLIENT_ID_PREFIX: &str = "client_";
/// How many prompts of this client are remembered while they wait. A server accepts far fewer.
const WAITING_MAX: usize = 1_000;

/// A permission request that waits for votes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PermissionQuestion {
    pub request_id: String,
    pub title: String,
    /// What will run, as far as the request names it.
    pub command: Option<String>,
    pub options: Vec<PermissionOption>,
    /// When the request expires. `None` if the server does not say.
    pub deadline: Option<Timestamp>,
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
        let deadline = frame.data.pointer("/_meta/ostler/deadline").and_then(Value::as_str);
        let deadline = deadline.and_then(|deadline| deadline.parse().ok());
        Some(Self { request_id, title, command: command_of(call), options, deadline })
    }
}

/// The name of the tool, or what the call is titled.
fn tool_name(call: &Value) -> Option<&Value> {
    call["_meta"].get("toolName").or(call.get("title")).or(call.get("kind"))
}

/// What a tool call will do: all of it as the server writes it, or its command, or else all of its input.
fn command_of(call: &Value) -> Option<String> {
    if let Some(whole) = call.pointer("/_meta/ostler/command").and_then(Value::as_str) {
        return Some(whole.to_owned());
    }
    let input = call.get("rawInput").filter(|input| !input.is_null());
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let command = input.and_then(|input| {
        let only = input.as_object().is_none_or(|members| members.len() == 1);
        input.get("command").filter(|_| only).and_then(text).or_else(|| text(input))
    });
    let whole = || input.or_else(|| call.get("content").filter(|content| !content.is_null())).map(output::json);
    command.or_else(whole).filter(|text| !text.trim().is_empty())
}

/// A permission request that was shown.
struct ShownRequest {
    options: Vec<PermissionOption>,
    /// The client whose prompt the agent works on.
    prompted_by: Option<String>,
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
    /// The open permission requests.
    requests: BTreeMap<String, ShownRequest>,
    /// Prompts of this client that wait for others. They are printed again when their turn begins.
    waiting: BTreeSet<String>,
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
            requests: BTreeMap::new(),
            waiting: BTreeSet::new(),
            thought: String::new(),
            message: None,
            mid_line: false,
        }
    }

    pub(crate) fn apply(&mut self, frame: &ReceivedFrame) -> Vec<Piece> {
        let data = &frame.data;
        if ["turn_complete", "turn_error"].contains(&frame.frame_type.as_str()) {
            // Also the end of a prompt that was cancelled while it waited.
            let prompt_id = data.get("promptId").and_then(Value::as_str).or(frame.prompt_id.as_deref());
            self.waiting.remove(prompt_id.unwrap_or_default());
        }
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
            "pending_prompt_added" => self.wait(frame),
            "permission_forbidden" => {
                let note = self.forbidden(frame);
                self.block(note)
            }
            "session_closed" => self.block(Some(format!("the session was closed{}", self.by(data, "closedBy")))),
            "session_died" => {
                let text = match field(data, "reason").as_str() {
                    "daemon_shutdown" => "the server is stopping; waiting for it to come back".to_owned(),
                    reason => format!("the session ended: {}", line(reason, LINE_CHARS_MAX)),
                };
                self.block(Some(text))
            }
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
            "agent_message_chunk" if is_restart(update) => self.restart(),
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
            "notice" => match update.pointer("/_meta/ostler").and_then(notice_line) {
                Some(text) => self.block(Some(text)),
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
        let has_waited = frame.prompt_id.as_ref().is_some_and(|id| self.waiting.remove(id));
        if self.is_own(frame) && !has_waited {
            return self.whole_lines(vec![]);
        }
        let who = self.paint.bold(&format!("{}:", self.who(frame.originator_client_id.as_deref())));
        let note = format!("{who} {}\n", output::harmless(text).trim_end());
        self.whole_lines(vec![Piece::Note(note)])
    }

    /// A prompt that waits for the turn that runs.
    fn wait(&mut self, frame: &ReceivedFrame) -> Vec<Piece> {
        if self.is_own(frame) {
            if self.waiting.len() >= WAITING_MAX {
                self.waiting.pop_first();
            }
            self.waiting.extend(frame.prompt_id.clone());
            return vec![];
        }
        let who = self.who(frame.originator_client_id.as_deref());
        let text = line(&field(&frame.data, "text"), LINE_CHARS_MAX);
        self.block(Some(format!("{who} waits for this turn with: {text}")))
    }

    /// Another attempt at the turn begins: nothing is added to the reply before.
    fn restart(&mut self) -> Vec<Piece> {
        self.message = None;
        self.block(Some("another runner took the turn over; the reply starts again".to_owned()))
    }

    fn is_own(&self, frame: &ReceivedFrame) -> bool {
        self.own.is_some() && frame.originator_client_id == self.own
    }

    /// A vote that did not count. The response to a vote of this client reports it already.
    fn forbidden(&self, frame: &ReceivedFrame) -> Option<String> {
        let data = &frame.data;
        let voter = data.get("clientId").and_then(Value::as_str).or(frame.originator_client_id.as_deref());
        if voter.is_some() && voter == self.own.as_deref() {
            return None;
        }
        let reason = data.pointer("/_meta/ostler/reason").and_then(Value::as_str).unwrap_or_default();
        let reason = if reason.is_empty() { field(data, "reason") } else { reason.to_owned() };
        let why = self.may_vote(&field(data, "requestId"), &reason).unwrap_or_else(|| line(&reason, LINE_CHARS_MAX));
        // A caller that votes without a client id is not named.
        let by = voter.map(|client| format!(" by {}", self.who(Some(client)))).unwrap_or_default();
        Some(format!("a vote{by} was refused: {why}"))
    }

    /// Who may vote, on a request on which a vote was refused for this reason. `None` if that is not known.
    fn may_vote(&self, request_id: &str, reason: &str) -> Option<String> {
        match reason {
            "designated_mismatch" => match self.designated_voter(request_id) {
                None => Some("only you may vote here, because you sent the prompt".to_owned())
                    .filter(|_| self.prompted_by(request_id).is_some()),
                text => text,
            },
            "not_a_voter" => Some("only clients that were attached when the agent asked may vote here".to_owned()),
            "remote_not_allowed" => Some("only clients on the server's own machine may vote here".to_owned()),
            _ => None,
        }
    }

    /// Which other client may vote on a request, where only the one that sent the prompt may. `None` if this client did, or if the
    /// request is not open.
    pub(crate) fn designated_voter(&self, request_id: &str) -> Option<String> {
        let prompted_by = self.prompted_by(request_id).filter(|client| self.own.as_deref() != Some(*client))?;
        Some(format!("only {} may vote here, because it sent the prompt", self.who(Some(prompted_by))))
    }

    fn prompted_by(&self, request_id: &str) -> Option<&str> {
        self.requests.get(request_id)?.prompted_by.as_deref()
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
        let (options, prompted_by) = (question.options.clone(), frame.originator_client_id.clone());
        self.requests.insert(question.request_id.clone(), ShownRequest { options, prompted_by });
        let head = self.paint.yellow(&format!("permission needed: {}", line(&question.title, LINE_CHARS_MAX)));
        let (command, width) = (question.command.as_deref(), output::stderr_width());
        let options = format!("  options: {}\n", permissions::options(&question.options));
        let time_left = permissions::time_left(question.deadline, now());
        let note = match self.answers_in_place {
            true => permissions::question_text(&head, command, width) + &time_left,
            false => permissions::call_text(&head, command, width) + &options + &time_left + &self.answer_hint,
        };
        self.whole_lines(vec![Piece::Note(note)])
    }

    fn resolved(&mut self, frame: &ReceivedFrame) -> Vec<Piece> {
        let request = self.requests.remove(&field(&frame.data, "requestId"));
        let options = request.map(|request| request.options).unwrap_or_default();
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

/// A line about an event that has no frame of its own. `None` if it is not for people.
fn notice_line(notice: &Value) -> Option<String> {
    let text = |name: &str| line(&field(notice, name), LINE_CHARS_MAX);
    match (text("type").as_str(), text("phase").as_str()) {
        ("error", _) => Some(format!("error {}: {}", text("failureKind"), text("message"))),
        ("permission_resolved", _) => Some(format!("permission {}", line(&resolution(notice), LINE_CHARS_MAX))),
        (_, PHASE_APPROVAL_DECLINED) => Some(format!("permission denied without asking: {}", text("reason"))),
        _ => None,
    }
}

/// Whether the update separates two attempts at a turn.
fn is_restart(update: &Value) -> bool {
    update.pointer("/_meta/ostler/phase").is_some_and(|phase| phase == PHASE_ATTEMPT_RESTARTED)
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
mod tests;
