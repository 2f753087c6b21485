//! Items of Codex (messages, thoughts and tool calls) as events. A whole message is held back until it is known whether
//! another follows: the last one of a completed turn is the reply. A message that came only in pieces is no reply.

use std::collections::HashMap;

use ostler_protocol::{kernel::events::EventType, limits::TOOL_COMMAND_CHARS_MAX};
use serde_json::{Value, json};

use super::{
    command_output::{CommandOutput, OutputPart},
    wire::{DeltaNote, FileChange, Item},
};
use crate::{
    tool_gateway::GATEWAY,
    turn_sink::{TEXT_BYTES_MAX, TurnSink},
};

const THOUGHT_BYTES_MAX: usize = 32 * 1024;
const ARGUMENT_CHARS_MAX: usize = 2_000;
const FILES_MAX: usize = 50;

#[derive(Default)]
pub(super) struct Items {
    /// Our ids by those of Codex, which a provider chooses and may use again in the next turn.
    ids: HashMap<String, String>,
    /// Tools that have started and not ended.
    open: HashMap<String, OpenTool>,
    /// The id and text of the message that is held back.
    held: Option<(String, String)>,
    /// Whether Codex was given the server's tools.
    has_gateway: bool,
}

#[derive(Default)]
struct OpenTool {
    output: CommandOutput,
    /// The files it is about to change.
    changes: Vec<FileChange>,
}

impl Items {
    pub(super) fn new(has_gateway: bool) -> Self {
        Self { has_gateway, ..Self::default() }
    }

    /// Whether the item is an action that the backend records. The server records calls of its own tools.
    fn is_recorded(&self, item: &Item) -> bool {
        let is_of_gateway = item.kind == "mcpToolCall" && item.server.as_deref() == Some(GATEWAY);
        is_tool(item) && !(self.has_gateway && is_of_gateway)
    }

    /// Whether a tool may still be running.
    pub(super) fn has_open_tools(&self) -> bool {
        !self.open.is_empty()
    }

    /// The files that an open item is about to change.
    pub(super) fn changes(&self, item_id: &str) -> &[FileChange] {
        self.open.get(item_id).map_or(&[], |tool| &tool.changes)
    }

    /// Reports that the outcome of the tools that have not ended is unknown.
    pub(super) async fn abandon_tools(&mut self, sink: &mut TurnSink) {
        let open: Vec<(String, OpenTool)> = self.open.drain().collect();
        for (item_id, mut tool) in open {
            let id = self.event_id(sink, &item_id, "tool");
            emit_output(sink, &id, tool.output.end(sink.cutter(), None)).await;
            let call = json!({"toolCallId": id, "itemId": item_id, "status": "outcome-unknown"});
            sink.emit(EventType::ToolCall, &call).await;
        }
    }

    /// The id of an item in our events.
    pub(super) fn event_id(&mut self, sink: &mut TurnSink, item_id: &str, prefix: &str) -> String {
        self.ids.entry(item_id.to_owned()).or_insert_with(|| sink.new_id(prefix)).clone()
    }

    pub(super) async fn report_started(&mut self, sink: &mut TurnSink, item: &Item) {
        self.release_message(sink, false).await;
        match item.kind.as_str() {
            "contextCompaction" => emit_compaction(sink, "started").await,
            _ if self.is_recorded(item) => {
                let changes = item.changes.clone();
                self.open.insert(item.id.clone(), OpenTool { changes, ..OpenTool::default() });
                let call = self.tool_call(sink, item, "item/started", "started");
                sink.emit(EventType::ToolCall, &call).await;
            }
            _ => {}
        }
    }

    pub(super) async fn report_completed(&mut self, sink: &mut TurnSink, item: &Item) {
        match item.kind.as_str() {
            "agentMessage" => {
                self.release_message(sink, false).await;
                let id = self.event_id(sink, &item.id, "msg");
                // If the id is used again, it is for another message.
                self.ids.remove(&item.id);
                self.held = Some((id, item.text.clone()));
                if item.phase.as_deref() == Some("commentary") {
                    self.release_message(sink, false).await;
                }
            }
            "reasoning" => {
                let text = thought_text(item);
                if !text.is_empty() {
                    let id = self.event_id(sink, &item.id, "think");
                    // Thoughts are for display, so they need not be stored whole.
                    let (text, _) = sink.cutter().cut_bytes(&text, THOUGHT_BYTES_MAX);
                    sink.emit(EventType::Reasoning, &json!({"messageId": id, "text": text})).await;
                }
            }
            "contextCompaction" => emit_compaction(sink, "completed").await,
            _ if self.is_recorded(item) => self.report_tool_end(sink, item).await,
            _ => {}
        }
    }

    async fn report_tool_end(&mut self, sink: &mut TurnSink, item: &Item) {
        let mut tool = self.open.remove(&item.id).unwrap_or_default();
        let id = self.event_id(sink, &item.id, "tool");
        let rest = tool.output.end(sink.cutter(), item.aggregated_output.as_deref());
        emit_output(sink, &id, rest).await;
        let status = match item.status.as_deref() {
            // Not every kind of item has a status.
            None | Some("completed") => "completed",
            Some("failed") => "failed",
            Some("declined") => "declined",
            Some(_) => "outcome-unknown",
        };
        let call = self.tool_call(sink, item, "item/completed", status);
        self.ids.remove(&item.id);
        sink.emit(EventType::ToolCall, &call).await;
    }

    pub(super) async fn report_text(&mut self, sink: &mut TurnSink, note: &DeltaNote) {
        let id = self.event_id(sink, &note.item_id, "msg");
        sink.emit_delta(EventType::AssistantDelta, &id, &note.delta).await;
    }

    pub(super) async fn report_thought(&mut self, sink: &mut TurnSink, note: &DeltaNote) {
        let id = self.event_id(sink, &note.item_id, "think");
        sink.emit_delta(EventType::ReasoningDelta, &id, &note.delta).await;
    }

    pub(super) async fn report_output(&mut self, sink: &mut TurnSink, note: &DeltaNote) {
        let id = self.event_id(sink, &note.item_id, "tool");
        let Some(tool) = self.open.get_mut(&note.item_id) else { return };
        let parts = tool.output.push(sink.cutter(), &note.delta);
        emit_output(sink, &id, parts).await;
    }

    /// Emits the message that was held back, as the turn's reply or as an intermediate one.
    pub(super) async fn release_message(&mut self, sink: &mut TurnSink, is_reply: bool) {
        if let Some((id, text)) = self.held.take() {
            sink.emit_message(&id, &text, is_reply).await;
        }
    }

    fn tool_call(&mut self, sink: &mut TurnSink, item: &Item, method: &str, status: &str) -> Value {
        let mut call = json!({"toolCallId": self.event_id(sink, &item.id, "tool"), "itemId": item.id, "name": tool_name(item),
            "method": method, "type": item.kind, "status": status});
        if let Some(command) = command(item) {
            call["command"] = sink.cutter().cut(&command, TOOL_COMMAND_CHARS_MAX).into();
        }
        if let Some(arguments) = &item.arguments {
            call["arguments"] = sink.cutter().cut(arguments.as_str(), ARGUMENT_CHARS_MAX).into();
        }
        if !item.changes.is_empty() {
            call["files"] = item.changes.iter().take(FILES_MAX).map(|change| change.path.as_str()).collect();
        }
        if let Some(code) = item.exit_code.filter(|_| status != "started") {
            call["exitCode"] = code.into();
        }
        if let Some(ms) = item.duration_ms {
            call["durationMs"] = ms.into();
        }
        call
    }
}

/// Whether the item is an action, as opposed to a message.
fn is_tool(item: &Item) -> bool {
    matches!(
        item.kind.as_str(),
        "commandExecution"
            | "fileChange"
            | "mcpToolCall"
            | "dynamicToolCall"
            | "collabAgentToolCall"
            | "webSearch"
            | "imageView"
            | "imageGeneration"
    )
}

fn tool_name(item: &Item) -> String {
    match (item.kind.as_str(), &item.server, &item.tool) {
        ("commandExecution", ..) => "shell".into(),
        ("fileChange", ..) => "apply_patch".into(),
        (_, Some(server), Some(tool)) => format!("{server}.{tool}"),
        (_, None, Some(tool)) => tool.clone(),
        (kind, ..) => kind.to_owned(),
    }
}

/// The action in one line.
fn command(item: &Item) -> Option<String> {
    if !item.changes.is_empty() {
        return Some(item.changes.iter().map(|change| change.path.as_str()).collect::<Vec<_>>().join(" "));
    }
    item.command.clone().or_else(|| item.query.clone())
}

fn thought_text(item: &Item) -> String {
    let text = |part: &Value| part.as_str().or_else(|| part["text"].as_str()).unwrap_or_default().to_owned();
    let parts = if item.summary.is_empty() { &item.content } else { &item.summary };
    parts.iter().map(text).collect::<Vec<_>>().join("\n")
}

async fn emit_compaction(sink: &TurnSink, step: &str) {
    sink.emit(EventType::BackendStatus, &json!({"phase": format!("context-compaction:{step}")})).await;
}

async fn emit_output(sink: &TurnSink, tool_call_id: &str, parts: Vec<OutputPart>) {
    for part in parts {
        let (text, is_shortened) = sink.cutter().cut_escaped(&part.text, TEXT_BYTES_MAX);
        let is_cut = part.is_cut || is_shortened;
        let payload = json!({"toolCallId": tool_call_id, "stream": "stdout", "text": text, "textTruncated": is_cut,
            "outputTruncated": is_cut, "isBeginning": part.is_beginning});
        sink.emit(EventType::CommandOutput, &payload).await;
    }
}
