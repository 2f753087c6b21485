//! Updates of an ACP backend as events. A message ends where something else begins; the last one of a turn is its reply. A
//! tool call is reported once it is known what it does.

use std::collections::{HashMap, hash_map::Entry};

use ostler_protocol::{kernel::events::EventType, limits::TOOL_COMMAND_CHARS_MAX};
use serde_json::{Value, json};

use super::{
    details::{DETAILS_BYTES_MAX, FILES_MAX, file_diffs, locations, shortened},
    wire::{AcpToolCall, AcpUsage, Update},
};
use crate::{text_cutter::TextCutter, tool_gateway::GATEWAY, turn_sink::TurnSink};

/// Output of one tool that is reported.
const OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// Text that a backend may send in one turn.
const TURN_BYTES_MAX: usize = 8 * 1024 * 1024;
const PLAN_BYTES_MAX: usize = 64 * 1024;
const ARGUMENT_CHARS_MAX: usize = 2_000;
const RESULT_BYTES_MAX: usize = 8 * 1024;
const TOOLS_OPEN_MAX: usize = 256;

/// The backend sends more text, or opens more tool calls, than a turn may hold.
#[derive(Debug)]
pub(super) struct TooMuchOutput;

pub(super) struct Updates {
    model: String,
    /// The message that is being written: the event type of its pieces, its id, and its text so far.
    open: Option<(EventType, String, String)>,
    /// The id and text of a complete message. Whether it is the reply depends on what follows.
    held: Option<(String, String)>,
    tools: HashMap<String, ReportedTool>,
    text_bytes: usize,
    has_usage: bool,
    /// The tokens that the context of the model may have, once the backend has reported that.
    context_window: Option<u64>,
    /// Whether the backend was given the server's tools.
    has_gateway: bool,
}

/// A call that needs permission.
pub(super) struct ReportedCall {
    /// Its id in our events.
    pub(super) id: String,
    pub(super) call: AcpToolCall,
    /// The name of the tool, if the backend gives it.
    pub(super) name: Option<String>,
}

#[derive(Default)]
struct ReportedTool {
    id: String,
    /// The call, merged from its updates.
    call: AcpToolCall,
    name: Option<String>,
    is_started: bool,
    is_declined: bool,
    /// A tool of the server, which records its calls.
    is_of_gateway: bool,
}

impl Updates {
    pub(super) fn new(model: String, context_window: Option<u64>, has_gateway: bool) -> Self {
        Self {
            model,
            open: None,
            held: None,
            tools: HashMap::new(),
            text_bytes: 0,
            has_usage: false,
            context_window,
            has_gateway,
        }
    }

    /// The tokens that the context of the model may have, as the backend last reported it.
    pub(super) fn context_window(&self) -> Option<u64> {
        self.context_window
    }

    /// The session may have another model. The size of its context is not known until the backend reports it.
    pub(super) fn set_model(&mut self, model: &str) {
        if self.model != model {
            (self.model, self.context_window) = (model.to_owned(), None);
        }
    }

    pub(super) async fn report(&mut self, sink: &mut TurnSink, update: Update) -> Result<(), TooMuchOutput> {
        match update.kind.as_str() {
            "agent_message_chunk" => self.report_chunk(sink, EventType::AssistantDelta, "msg", &update.content).await?,
            "agent_thought_chunk" => {
                self.report_chunk(sink, EventType::ReasoningDelta, "think", &update.content).await?
            }
            "tool_call" | "tool_call_update" => self.report_tool(sink, &update).await?,
            "plan" => self.report_plan(sink, &update).await,
            // The tokens are counted in the messages. This follows them, so that it counts for the next usage.
            "usage_update" => self.context_window = update.size.as_u64().or(self.context_window),
            _ => {}
        }
        if let Some(usage) = update.meta.and_then(|meta| meta.usage) {
            self.has_usage = true;
            self.report_usage(sink, &usage).await;
        }
        Ok(())
    }

    async fn report_chunk(
        &mut self,
        sink: &mut TurnSink,
        kind: EventType,
        prefix: &str,
        content: &Value,
    ) -> Result<(), TooMuchOutput> {
        let Some(text) = content["text"].as_str().filter(|text| !text.is_empty()) else { return Ok(()) };
        self.text_bytes += text.len();
        if self.text_bytes > TURN_BYTES_MAX {
            return Err(TooMuchOutput);
        }
        if self.open.as_ref().is_none_or(|(open, ..)| *open != kind) {
            self.close_message(sink).await;
            self.open = Some((kind, sink.new_id(prefix), String::new()));
        }
        if let Some((_, id, whole)) = &mut self.open {
            whole.push_str(text);
            sink.emit_delta(kind, id, text).await;
        }
        Ok(())
    }

    /// Completes the message that is being written.
    async fn close_message(&mut self, sink: &TurnSink) {
        match self.open.take() {
            Some((EventType::AssistantDelta, id, text)) => {
                self.release_message(sink, false).await;
                self.held = Some((id, text));
            }
            Some((_, id, text)) => sink.emit_reasoning(&id, &text).await,
            None => {}
        }
    }

    async fn release_message(&mut self, sink: &TurnSink, is_reply: bool) {
        if let Some((id, text)) = self.held.take() {
            sink.emit_message(&id, &text, is_reply).await;
        }
    }

    async fn report_plan(&mut self, sink: &TurnSink, update: &Update) {
        let entries = update.entries.as_ref().filter(|entries| entries.to_string().len() <= PLAN_BYTES_MAX);
        sink.emit(EventType::Activity, &json!({"activityType": "plan", "content": {"entries": entries}})).await;
    }

    /// Reports the usage of one model call, as the backend counted it.
    pub(super) async fn report_usage(&mut self, sink: &TurnSink, usage: &AcpUsage) {
        let (input, output) = usage.totals();
        let counts = [
            ("inputTokens", input),
            ("outputTokens", output),
            ("totalTokens", usage.total_tokens),
            ("cachedInputTokens", usage.cached_read_tokens),
            ("reasoningTokens", usage.thought_tokens),
            ("contextWindow", self.context_window),
        ];
        let counted =
            counts.into_iter().filter_map(|(name, count)| Some((name.to_owned(), i64::try_from(count?).ok()?.into())));
        let model = ("model".to_owned(), self.model.as_str().into());
        sink.emit_usage([model].into_iter().chain(counted).collect()).await;
    }

    /// Whether the backend reported usage during the turn, so that a sum at the end would count it twice.
    pub(super) fn has_usage(&self) -> bool {
        self.has_usage
    }

    pub(super) fn has_open_tools(&self) -> bool {
        self.tools.values().any(|tool| tool.is_started)
    }

    async fn report_tool(&mut self, sink: &mut TurnSink, update: &Update) -> Result<(), TooMuchOutput> {
        self.close_message(sink).await;
        self.release_message(sink, false).await;
        let Some(backend_id) = update.tool.tool_call_id.clone() else { return Ok(()) };
        let is_full = self.tools.len() >= TOOLS_OPEN_MAX;
        let mut entry = match self.tools.entry(backend_id) {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(_) if is_full => return Err(TooMuchOutput),
            Entry::Vacant(entry) => {
                entry.insert_entry(ReportedTool { id: sink.new_id("tool"), ..ReportedTool::default() })
            }
        };
        let tool = entry.get_mut();
        tool.merge(&update.tool);
        if !tool.is_started {
            let is_of_gateway = update.meta.as_ref().is_some_and(|meta| meta.is_of_server(GATEWAY));
            tool.is_of_gateway = self.has_gateway && is_of_gateway;
        }
        let name = || update.meta.as_ref()?.tool_name.clone();
        tool.name = tool.name.take().or_else(name).or_else(|| update.tool.tool_name().map(str::to_owned));
        let has_ended = matches!(tool.call.status.as_deref(), Some("completed" | "failed"));
        if has_ended || tool.is_described() || tool.is_of_gateway {
            tool.report_start(sink).await;
        }
        if has_ended {
            entry.remove().report_end(sink, &update.content).await;
        }
        Ok(())
    }

    /// Reports a call that needs permission. Returns everything known about it.
    pub(super) async fn report_for_permission(
        &mut self,
        sink: &mut TurnSink,
        call: &AcpToolCall,
    ) -> Option<ReportedCall> {
        let update = Update { kind: "tool_call_update".into(), tool: call.clone(), ..Update::default() };
        self.report_tool(sink, &update).await.ok()?;
        let tool = self.tools.get_mut(call.tool_call_id.as_ref()?)?;
        tool.report_start(sink).await;
        Some(ReportedCall { id: tool.id.clone(), call: tool.call.clone(), name: tool.name.clone() })
    }

    /// Whether this is a call of one of the server's tools, which decides about it.
    pub(super) fn is_of_gateway(&self, backend_id: Option<&String>) -> bool {
        backend_id.and_then(|id| self.tools.get(id)).is_some_and(|tool| tool.is_of_gateway)
    }

    pub(super) fn mark_declined(&mut self, backend_id: Option<&String>) {
        if let Some(tool) = backend_id.and_then(|id| self.tools.get_mut(id)) {
            tool.is_declined = true;
        }
    }

    /// Ends the turn: the last message is its reply, and no tool call stays open.
    pub(super) async fn finish(&mut self, sink: &TurnSink, is_reply: bool) {
        self.close_message(sink).await;
        self.release_message(sink, is_reply).await;
        for (_, mut tool) in self.tools.drain().filter(|(_, tool)| tool.is_started) {
            tool.call.status = Some("failed".into());
            tool.report_end(sink, &json!("the tool had not ended when the turn did")).await;
        }
    }
}

impl ReportedTool {
    fn merge(&mut self, update: &AcpToolCall) {
        let call = &mut self.call;
        let merge = |old: &mut Option<String>, new: &Option<String>| {
            if new.is_some() {
                old.clone_from(new);
            }
        };
        merge(&mut call.title, &update.title);
        merge(&mut call.tool_kind, &update.tool_kind);
        merge(&mut call.status, &update.status);
        if update.raw_input.as_ref().is_some_and(has_content) {
            call.raw_input.clone_from(&update.raw_input);
        }
        if update.raw_output.is_some() {
            call.raw_output.clone_from(&update.raw_output);
        }
        if update.locations.as_array().is_some_and(|locations| !locations.is_empty()) {
            call.locations.clone_from(&update.locations);
        }
    }

    /// Whether enough is known to report the call.
    fn is_described(&self) -> bool {
        self.call.raw_input.is_some() || self.call.status.as_deref() == Some("in_progress")
    }

    async fn report_start(&mut self, sink: &TurnSink) {
        if !std::mem::replace(&mut self.is_started, true) && !self.is_of_gateway {
            sink.emit(EventType::ToolCall, &self.payload(sink.cutter(), "started")).await;
        }
    }

    async fn report_end(self, sink: &TurnSink, content: &Value) {
        if self.is_of_gateway {
            return;
        }
        let output = content_text(content);
        if !output.is_empty() {
            let (output, _) = sink.cutter().cut_bytes(&output, OUTPUT_BYTES_MAX);
            sink.emit_output(&self.id, "stdout", &output).await;
        }
        let status = match (self.is_declined, self.call.status.as_deref()) {
            (true, _) => "declined",
            (false, Some("failed")) => "failed",
            _ => "completed",
        };
        let mut payload = self.payload(sink.cutter(), status);
        if let Some(code) = self.exit_code() {
            payload["exitCode"] = code.into();
        }
        let files = changed_files(content);
        if !files.is_empty() {
            payload["files"] = files.into();
        }
        let diffs = file_diffs(sink.cutter(), content, DETAILS_BYTES_MAX);
        if !diffs.is_empty() {
            payload["diffs"] = json!(diffs);
        }
        let output = self.call.raw_output.as_ref().filter(|output| has_content(output));
        if let Some(output) = output.and_then(|output| shortened(sink.cutter(), output, RESULT_BYTES_MAX)) {
            payload["rawOutput"] = output;
        }
        sink.emit(EventType::ToolCall, &payload).await;
    }

    fn payload(&self, cutter: &TextCutter, status: &str) -> Value {
        let call = &self.call;
        let name = self.name.as_ref().or(call.tool_kind.as_ref()).or(call.title.as_ref());
        let mut payload = json!({"toolCallId": self.id, "name": cutter.cut(name.map_or("tool", String::as_str), 100),
            "method": "session/update", "type": call.tool_kind, "status": status});
        if let Some(command) = command(call) {
            payload["command"] = cutter.cut(&command, TOOL_COMMAND_CHARS_MAX).into();
        }
        if let Some(input) = &call.raw_input {
            // Shortened, it is still JSON, so that the name of a file stays readable beside a long content.
            let arguments = shortened(cutter, input, ARGUMENT_CHARS_MAX).map(|input| input.to_string());
            let arguments = arguments.unwrap_or_else(|| cutter.cut(&input.to_string(), ARGUMENT_CHARS_MAX));
            payload["arguments"] = arguments.into();
        }
        let locations = locations(cutter, &call.locations);
        if !locations.is_empty() {
            payload["locations"] = json!(locations);
        }
        payload
    }

    fn exit_code(&self) -> Option<i64> {
        let raw = self.call.raw_output.as_ref()?;
        raw.get("exitCode").or_else(|| raw.get("exit_code"))?.as_i64()
    }
}

/// What a call would do, in full: its input, or its changes of files, or at least its title.
pub(super) fn call_action(call: &AcpToolCall, content: &Value) -> String {
    let field = |name: &str, value: &Value| match value {
        Value::String(text) => format!("{name}: {text}"),
        other => format!("{name}: {other}"),
    };
    let given = match call.raw_input.as_ref().filter(|input| has_content(input)) {
        Some(Value::Object(fields)) => {
            let rest = fields.iter().filter(|(name, value)| *name != "command" || !value.is_string());
            let command = fields.get("command").and_then(Value::as_str).map(str::to_owned);
            command.into_iter().chain(rest.map(|(name, value)| field(name, value))).collect()
        }
        Some(other) => vec![other.to_string()],
        None => diffs(content),
    };
    if given.is_empty() { call.title.clone().unwrap_or_default() } else { given.join("\n") }
}

/// The changes of files, line by line.
fn diffs(content: &Value) -> Vec<String> {
    let marked = |mark: char, text: &Value| {
        let lines = text.as_str().unwrap_or_default().lines();
        lines.map(|line| format!("{mark}{line}")).collect::<Vec<_>>()
    };
    let one = |part: &Value| {
        let path = part["path"].as_str().unwrap_or_default().to_owned();
        [vec![path], marked('-', &part["oldText"]), marked('+', &part["newText"])].concat().join("\n")
    };
    content.as_array().into_iter().flatten().filter(|part| part["type"] == "diff").map(one).collect()
}

/// What a call does, in one line.
fn command(call: &AcpToolCall) -> Option<String> {
    let input = call.raw_input.as_ref().and_then(|input| input["command"].as_str());
    input.map(str::to_owned).or_else(|| call.title.clone())
}

fn has_content(input: &Value) -> bool {
    match input {
        Value::Null => false,
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    }
}

/// The texts in the output of a tool.
fn content_text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["content"]["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

fn changed_files(content: &Value) -> Vec<&str> {
    let parts = content.as_array().into_iter().flatten();
    parts.filter(|part| part["type"] == "diff").filter_map(|part| part["path"].as_str()).take(FILES_MAX).collect()
}
