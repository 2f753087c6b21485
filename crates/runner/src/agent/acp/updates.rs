//! Updates: what an agent says and does, as events. A message ends where something else begins; the last one of a turn is
//! its reply. A tool call is told once it is known what it does.

use std::collections::HashMap;

use ostler_protocol::{events::EventType, limits::TOOL_COMMAND_CHARS_MAX};
use serde_json::{Value, json};

use super::wire::{ToolCall, Update, Usage};
use crate::{holdback::clip, link::Link};

/// Output of one tool that is told.
const OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// What an agent may say in one turn.
const SAID_BYTES_MAX: usize = 8 * 1024 * 1024;
const PLAN_BYTES_MAX: usize = 64 * 1024;
const ARGUMENT_CHARS_MAX: usize = 2_000;
const TOOLS_OPEN_MAX: usize = 256;
const FILES_MAX: usize = 50;

/// The agent says or does more than anybody could follow.
#[derive(Debug)]
pub struct Flood;

pub struct Updates {
    model: String,
    /// What is being said: as which event it is told in pieces, under which id, and all of it so far.
    open: Option<(EventType, String, String)>,
    /// A message that is whole; whether it is the reply depends on what follows.
    held: Option<(String, String)>,
    tools: HashMap<String, Tool>,
    said_bytes: usize,
    counted: bool,
}

#[derive(Default)]
struct Tool {
    id: String,
    known: ToolCall,
    name: Option<String>,
    started: bool,
    declined: bool,
}

impl Updates {
    pub fn new(model: String) -> Self {
        Self { model, open: None, held: None, tools: HashMap::new(), said_bytes: 0, counted: false }
    }

    pub async fn take(&mut self, link: &mut Link, update: Update) -> Result<(), Flood> {
        match update.kind.as_str() {
            "agent_message_chunk" => self.say(link, EventType::AssistantDelta, "msg", &update.content).await?,
            "agent_thought_chunk" => self.say(link, EventType::ReasoningDelta, "think", &update.content).await?,
            "tool_call" | "tool_call_update" => self.tool(link, &update).await?,
            "plan" => self.plan(link, &update).await,
            _ => {}
        }
        if let Some(usage) = update.meta.and_then(|meta| meta.usage) {
            self.counted = true;
            self.usage(link, &usage).await;
        }
        Ok(())
    }

    async fn say(&mut self, link: &mut Link, kind: EventType, prefix: &str, content: &Value) -> Result<(), Flood> {
        let Some(text) = content["text"].as_str().filter(|text| !text.is_empty()) else { return Ok(()) };
        self.said_bytes += text.len();
        if self.said_bytes > SAID_BYTES_MAX {
            return Err(Flood);
        }
        if self.open.as_ref().is_none_or(|(open, ..)| *open != kind) {
            self.close(link).await;
            self.open = Some((kind, link.new_id(prefix), String::new()));
        }
        if let Some((_, id, whole)) = &mut self.open {
            whole.push_str(text);
            link.delta(kind, id, text).await;
        }
        Ok(())
    }

    /// What was being said is whole.
    async fn close(&mut self, link: &Link) {
        match self.open.take() {
            Some((EventType::AssistantDelta, id, text)) => {
                self.release(link, false).await;
                self.held = Some((id, text));
            }
            Some((_, id, text)) => link.reasoning(&id, &text).await,
            None => {}
        }
    }

    async fn release(&mut self, link: &Link, is_reply: bool) {
        if let Some((id, text)) = self.held.take() {
            link.message(&id, &text, is_reply).await;
        }
    }

    async fn plan(&mut self, link: &Link, update: &Update) {
        let entries = update.entries.as_ref().filter(|entries| entries.to_string().len() <= PLAN_BYTES_MAX);
        link.emit(EventType::Activity, &json!({"activityType": "plan", "content": {"entries": entries}})).await;
    }

    /// What one call of the model cost, as the agent counted it.
    pub async fn usage(&mut self, link: &Link, usage: &Usage) {
        let (input, output) = usage.whole();
        let counts = [
            ("inputTokens", input),
            ("outputTokens", output),
            ("totalTokens", usage.total_tokens),
            ("cachedInputTokens", usage.cached_read_tokens),
            ("reasoningTokens", usage.thought_tokens),
        ];
        let known =
            counts.into_iter().filter_map(|(name, count)| Some((name.to_owned(), i64::try_from(count?).ok()?.into())));
        let model = ("model".to_owned(), self.model.as_str().into());
        link.usage([model].into_iter().chain(known).collect()).await;
    }

    /// Whether the agent told usage as it went, so that a sum at the end would count twice.
    pub fn has_counted(&self) -> bool {
        self.counted
    }

    pub fn has_open_tools(&self) -> bool {
        self.tools.values().any(|tool| tool.started)
    }

    async fn tool(&mut self, link: &mut Link, update: &Update) -> Result<(), Flood> {
        self.close(link).await;
        self.release(link, false).await;
        let Some(theirs) = update.tool.tool_call_id.clone() else { return Ok(()) };
        if !self.tools.contains_key(&theirs) {
            if self.tools.len() >= TOOLS_OPEN_MAX {
                return Err(Flood);
            }
            self.tools.insert(theirs.clone(), Tool { id: link.new_id("tool"), ..Tool::default() });
        }
        let tool = self.tools.get_mut(&theirs).expect("it was put there");
        tool.learn(&update.tool);
        tool.name = tool.name.take().or_else(|| update.meta.as_ref()?.tool_name.clone());
        let ended = matches!(tool.known.status.as_deref(), Some("completed" | "failed"));
        if ended || tool.is_known() {
            tool.start(link).await;
        }
        if ended {
            let tool = self.tools.remove(&theirs).expect("it was there");
            tool.end(link, &update.content).await;
        }
        Ok(())
    }

    /// Somebody is asked about a call: the id under which it stands in the log, and all that is known of it.
    pub async fn asked_about(&mut self, link: &mut Link, call: &ToolCall) -> Option<(String, ToolCall)> {
        let update = Update { kind: "tool_call_update".into(), tool: call.clone(), ..Update::default() };
        self.tool(link, &update).await.ok()?;
        let tool = self.tools.get_mut(call.tool_call_id.as_ref()?)?;
        tool.start(link).await;
        Some((tool.id.clone(), tool.known.clone()))
    }

    pub fn declined(&mut self, theirs: Option<&String>) {
        if let Some(tool) = theirs.and_then(|id| self.tools.get_mut(id)) {
            tool.declined = true;
        }
    }

    /// The agent has ended the turn: the last message is its reply, and no call stays open.
    pub async fn finish(&mut self, link: &Link, is_reply: bool) {
        self.close(link).await;
        self.release(link, is_reply).await;
        for (_, mut tool) in self.tools.drain().filter(|(_, tool)| tool.started) {
            tool.known.status = Some("failed".into());
            tool.end(link, &json!("it had not ended when the turn did")).await;
        }
    }
}

impl Tool {
    fn learn(&mut self, update: &ToolCall) {
        let known = &mut self.known;
        let learn = |old: &mut Option<String>, new: &Option<String>| {
            if new.is_some() {
                old.clone_from(new);
            }
        };
        learn(&mut known.title, &update.title);
        learn(&mut known.tool_kind, &update.tool_kind);
        learn(&mut known.status, &update.status);
        if update.raw_input.as_ref().is_some_and(has_content) {
            known.raw_input.clone_from(&update.raw_input);
        }
        if update.raw_output.is_some() {
            known.raw_output.clone_from(&update.raw_output);
        }
    }

    fn is_known(&self) -> bool {
        self.known.raw_input.is_some() || self.known.status.as_deref() == Some("in_progress")
    }

    async fn start(&mut self, link: &Link) {
        if !std::mem::replace(&mut self.started, true) {
            link.emit(EventType::ToolCall, &self.fact("started")).await;
        }
    }

    async fn end(self, link: &Link, content: &Value) {
        let output = text_of(content);
        if !output.is_empty() {
            link.output(&self.id, "stdout", cut(&output, OUTPUT_BYTES_MAX)).await;
        }
        let status = match (self.declined, self.known.status.as_deref()) {
            (true, _) => "declined",
            (false, Some("failed")) => "failed",
            _ => "completed",
        };
        let mut fact = self.fact(status);
        if let Some(code) = self.exit_code() {
            fact["exitCode"] = code.into();
        }
        let files = files_of(content);
        if !files.is_empty() {
            fact["files"] = files.into();
        }
        link.emit(EventType::ToolCall, &fact).await;
    }

    fn fact(&self, status: &str) -> Value {
        let known = &self.known;
        let name = self.name.as_ref().or(known.tool_kind.as_ref()).or(known.title.as_ref());
        let mut fact = json!({"toolCallId": self.id, "name": clip(name.map_or("tool", String::as_str), 100),
            "method": "session/update", "type": known.tool_kind, "status": status});
        if let Some(command) = command(known) {
            fact["command"] = clip(&command, TOOL_COMMAND_CHARS_MAX).into();
        }
        if let Some(input) = &known.raw_input {
            fact["arguments"] = clip(&input.to_string(), ARGUMENT_CHARS_MAX).into();
        }
        fact
    }

    fn exit_code(&self) -> Option<i64> {
        let raw = self.known.raw_output.as_ref()?;
        raw.get("exitCode").or_else(|| raw.get("exit_code"))?.as_i64()
    }
}

/// What a call would do, in full: what it is given, or what it would make of files, or at least its title.
pub fn what(call: &ToolCall, content: &Value) -> String {
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

/// Files as they are and as they would be, line by line.
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

/// What a call does, in a line.
fn command(call: &ToolCall) -> Option<String> {
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

/// The texts among what a tool has produced.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["content"]["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

fn files_of(content: &Value) -> Vec<&str> {
    let parts = content.as_array().into_iter().flatten();
    parts.filter(|part| part["type"] == "diff").filter_map(|part| part["path"].as_str()).take(FILES_MAX).collect()
}

fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}
