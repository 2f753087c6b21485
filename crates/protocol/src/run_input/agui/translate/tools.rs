//! Tool calls: announced whole when they start, since the kernel knows a call's arguments by then, and answered when they end.

use serde_json::{Map, Value, json};

use crate::{
    kernel::{events::Event, front_end::FRONT_END_METHOD, permissions::ASKED_TOOL},
    limits::NAME_BYTES_MAX,
    run_input::agui::{
        events::{EventBody, ToolRole},
        translate::out::{OUTPUT, Out, named},
    },
    text::clip,
};

/// Calls that are remembered; beyond it the oldest that has ended is forgotten.
const CALLS_KEPT: usize = 1_024;
/// How much of a call's output its result repeats. All of the output was sent as it came.
const RESULT_BYTES_MAX: usize = 64 * 1024;

const UNKNOWN: &str = "outcome-unknown";

#[derive(Clone, Debug)]
struct OpenCall {
    key: String,
    id: String,
    output: String,
    output_cut: bool,
    answered: bool,
    /// The front end runs the tool.
    is_front_end: bool,
}

/// The id under which the call of an event is announced, unless the id was used before.
fn key_of(payload: &Value, seq: i64) -> String {
    payload["toolCallId"].as_str().map_or_else(|| format!("tool-{seq}"), named)
}

/// The id of a call whose own id was used before.
fn reused_id(key: &str, seq: i64) -> String {
    format!("{key}#{seq}")
}

/// The ids under which clients may know the call that an event is about.
pub fn announced_call_ids(event: &Event) -> [String; 2] {
    let payload = event.payload.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null);
    let key = key_of(&payload, event.session_seq);
    [reused_id(&key, event.session_seq), key]
}

#[derive(Clone, Debug, Default)]
pub(super) struct Tools {
    calls: Vec<OpenCall>,
}

impl Tools {
    pub(super) fn fact(&mut self, payload: &Value, seq: i64, out: &mut Out) {
        let key = key_of(payload, seq);
        let status = payload["status"].as_str().unwrap_or_default();
        let is_end = matches!(status, "completed" | "failed" | "declined" | UNKNOWN);
        let known = self.calls.iter().rposition(|call| call.key == key);
        let at = match known {
            Some(at) if !self.calls[at].answered => at,
            // It has ended before; an agent that uses its id again begins another call.
            Some(_) if is_end => return,
            _ => self.announce(key, payload, seq, out),
        };
        if is_end {
            self.calls[at].answer(payload, status, out);
        }
    }

    fn announce(&mut self, key: String, payload: &Value, seq: i64, out: &mut Out) -> usize {
        if self.calls.len() == CALLS_KEPT {
            // A call that has not ended may still get its result, or be pending when the run ends.
            let oldest = self.calls.iter().position(|call| call.answered).unwrap_or(0);
            self.calls.remove(oldest);
        }
        let used = self.calls.iter().any(|call| call.id == key);
        let id = if used { reused_id(&key, seq) } else { key.clone() };
        let names = ["name", "toolName", "type"].map(|field| payload[field].as_str().filter(|name| !name.is_empty()));
        let name = names.into_iter().flatten().next().unwrap_or("tool");
        out.send(EventBody::ToolCallStart { tool_call_id: id.clone(), tool_call_name: clip(name, NAME_BYTES_MAX) });
        out.send(EventBody::ToolCallArgs { tool_call_id: id.clone(), delta: arguments(payload) });
        out.send(EventBody::ToolCallEnd { tool_call_id: id.clone() });
        let is_front_end = payload["method"] == FRONT_END_METHOD;
        self.calls.push(OpenCall { key, id, output: String::new(), output_cut: false, answered: false, is_front_end });
        self.calls.len() - 1
    }

    /// The id under which the call that a person is asked about was announced. A call of this server's tools is asked about before it
    /// starts, so that it is announced here. `None` if the request is about no call that clients know.
    pub(super) fn announce_permission_call(&mut self, payload: &Value, seq: i64, out: &mut Out) -> Option<String> {
        let call_id = payload["toolCallId"].as_str()?;
        if let Some(id) = self.announced(call_id) {
            return Some(id);
        }
        let name = payload[ASKED_TOOL].as_str()?;
        let arguments = match payload["editable"].get("arguments") {
            Some(arguments) => arguments.clone(),
            // The name, and the arguments as JSON.
            None => payload["command"].as_str().and_then(|command| command.strip_prefix(name)).into(),
        };
        let at = self.announce(named(call_id), &json!({"name": name, "arguments": arguments}), seq, out);
        Some(self.calls[at].id.clone())
    }

    /// Output is sent as it comes, and again as the call's result.
    pub(super) fn output(&mut self, payload: &Value, out: &mut Out) {
        let text = payload["text"].as_str().unwrap_or_default();
        let mut value = Map::new();
        if let Some(key) = payload["toolCallId"].as_str().map(named) {
            let call = self.calls.iter_mut().rev().find(|call| call.key == key);
            let id = call.as_ref().map_or_else(|| key.clone(), |call| call.id.clone());
            value.insert("toolCallId".into(), id.into());
            if let Some(call) = call.filter(|call| !call.answered) {
                call.append_output(text);
            }
        }
        let stream = payload["stream"].as_str().unwrap_or("stdout");
        value.insert("stream".into(), clip(stream, NAME_BYTES_MAX).into());
        value.insert("text".into(), text.into());
        out.custom(OUTPUT, value.into());
    }

    /// Takes the calls of the front end's tools, for a run that completes: the next run answers them.
    pub(super) fn pending(&mut self) -> Vec<String> {
        let open = self.calls.iter_mut().filter(|call| call.is_front_end && !call.answered);
        open.map(|call| {
            call.answered = true;
            call.id.clone()
        })
        .collect()
    }

    /// Reports an unknown outcome for the calls that never ended.
    pub(super) fn abandon(&mut self, out: &mut Out) {
        for call in self.calls.iter_mut().filter(|call| !call.answered) {
            call.answer(&Value::Null, UNKNOWN, out);
        }
    }

    pub(super) fn has_open(&self) -> bool {
        self.calls.iter().any(|call| !call.answered)
    }

    /// The id under which an agent's running call was announced.
    pub(super) fn announced(&self, key: &str) -> Option<String> {
        let key = named(key);
        let call = self.calls.iter().rev().find(|call| call.key == key)?;
        (!call.answered).then(|| call.id.clone())
    }
}

impl OpenCall {
    fn append_output(&mut self, text: &str) {
        let room = RESULT_BYTES_MAX - self.output.len();
        let end = text.floor_char_boundary(room.min(text.len()));
        self.output.push_str(&text[..end]);
        self.output_cut |= end < text.len();
    }

    fn answer(&mut self, payload: &Value, status: &str, out: &mut Out) {
        self.answered = true;
        let exit_code = payload["exitCode"].as_i64();
        let content = match (
            std::mem::take(&mut self.output),
            payload["result"].as_str().or(payload["resultSummary"].as_str()),
        ) {
            (output, _) if !output.is_empty() => output,
            (_, Some(summary)) => summary.to_owned(),
            _ => match (status, exit_code) {
                (UNKNOWN, _) => "the outcome of this call is unknown".to_owned(),
                (status, Some(code)) => format!("{status} (exit code {code})"),
                (status, None) => status.to_owned(),
            },
        };
        let mut metadata = Map::new();
        metadata.insert("status".into(), status.into());
        metadata.extend(exit_code.map(|code| ("exitCode".to_owned(), code.into())));
        if self.output_cut {
            metadata.insert("truncated".into(), true.into());
        }
        let message_id = format!("{}-result", self.id);
        let body =
            EventBody::ToolCallResult { message_id, tool_call_id: self.id.clone(), content, role: ToolRole::Tool };
        out.send_with(body, metadata);
    }
}

/// Always a JSON object, as front ends expect.
fn arguments(payload: &Value) -> String {
    let arguments = match &payload["arguments"] {
        Value::Object(fields) => Some(fields.clone()),
        Value::String(text) => Some(
            serde_json::from_str(text)
                .unwrap_or_else(|_| [("arguments".to_owned(), json!(text))].into_iter().collect()),
        ),
        _ => None,
    };
    let command =
        || payload["command"].as_str().map(|command| [("command".to_owned(), json!(command))].into_iter().collect());
    Value::Object(arguments.or_else(command).unwrap_or_default()).to_string()
}
