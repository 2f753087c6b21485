//! Items: what Codex says and does, as events. A whole message is held back until it is known whether another follows: the
//! last one of a completed turn is the reply. A message that only ever came in pieces is no reply.

use std::collections::HashMap;

use ostler_protocol::{events::EventType, limits::TOOL_COMMAND_CHARS_MAX};
use serde_json::{Value, json};

use super::{
    output::{Output, Piece},
    wire::{DeltaNote, FileChange, Item},
};
use crate::{
    holdback::clip,
    link::{Link, TEXT_BYTES_MAX, fit},
};

const THOUGHT_BYTES_MAX: usize = 32 * 1024;
const ARGUMENT_CHARS_MAX: usize = 2_000;
const FILES_MAX: usize = 50;

#[derive(Default)]
pub struct Items {
    /// Ids of ours by those of Codex, which a provider chooses and may use again in the next turn.
    ids: HashMap<String, String>,
    /// Tools that have started and not ended.
    open: HashMap<String, Tool>,
    held: Option<(String, String)>,
}

#[derive(Default)]
struct Tool {
    output: Output,
    /// The files it is about to change.
    changes: Vec<FileChange>,
}

impl Items {
    /// Whether a tool may still be running.
    pub fn has_open_tools(&self) -> bool {
        !self.open.is_empty()
    }

    /// The files that an open item is about to change.
    pub fn changes(&self, item_id: &str) -> &[FileChange] {
        self.open.get(item_id).map_or(&[], |tool| &tool.changes)
    }

    /// Says of the tools that never ended that nobody can know how they did.
    pub async fn abandon(&mut self, link: &mut Link) {
        let open: Vec<(String, Tool)> = self.open.drain().collect();
        for (item_id, mut tool) in open {
            let id = self.id(link, &item_id, "tool");
            tell(link, &id, tool.output.end(None)).await;
            let call = json!({"toolCallId": id, "itemId": item_id, "status": "outcome-unknown"});
            link.emit(EventType::ToolCall, &call).await;
        }
    }

    /// The id under which an item stands in the log.
    pub fn id(&mut self, link: &mut Link, item_id: &str, prefix: &str) -> String {
        self.ids.entry(item_id.to_owned()).or_insert_with(|| link.new_id(prefix)).clone()
    }

    pub async fn started(&mut self, link: &mut Link, item: &Item) {
        self.release(link, false).await;
        match item.kind.as_str() {
            "contextCompaction" => compaction(link, "started").await,
            _ if is_tool(item) => {
                let changes = item.changes.clone();
                self.open.insert(item.id.clone(), Tool { changes, ..Tool::default() });
                let call = self.tool_call(link, item, "item/started", "started");
                link.emit(EventType::ToolCall, &call).await;
            }
            _ => {}
        }
    }

    pub async fn completed(&mut self, link: &mut Link, item: &Item) {
        match item.kind.as_str() {
            "agentMessage" => {
                self.release(link, false).await;
                let id = self.id(link, &item.id, "msg");
                // Whoever uses the id again says something new.
                self.ids.remove(&item.id);
                self.held = Some((id, item.text.clone()));
                if item.phase.as_deref() == Some("commentary") {
                    self.release(link, false).await;
                }
            }
            "reasoning" => {
                let text = thought(item);
                if !text.is_empty() {
                    let id = self.id(link, &item.id, "think");
                    link.emit(EventType::Reasoning, &json!({"messageId": id, "text": clip_bytes(&text)})).await;
                }
            }
            "contextCompaction" => compaction(link, "completed").await,
            _ if is_tool(item) => self.tool_ended(link, item).await,
            _ => {}
        }
    }

    async fn tool_ended(&mut self, link: &mut Link, item: &Item) {
        let mut tool = self.open.remove(&item.id).unwrap_or_default();
        let id = self.id(link, &item.id, "tool");
        tell(link, &id, tool.output.end(item.aggregated_output.as_deref())).await;
        let status = match item.status.as_deref() {
            // Not every kind of item has one.
            None | Some("completed") => "completed",
            Some("failed") => "failed",
            Some("declined") => "declined",
            Some(_) => "outcome-unknown",
        };
        let call = self.tool_call(link, item, "item/completed", status);
        self.ids.remove(&item.id);
        link.emit(EventType::ToolCall, &call).await;
    }

    pub async fn text(&mut self, link: &mut Link, note: &DeltaNote) {
        let id = self.id(link, &note.item_id, "msg");
        link.delta(EventType::AssistantDelta, &id, &note.delta).await;
    }

    pub async fn thought(&mut self, link: &mut Link, note: &DeltaNote) {
        let id = self.id(link, &note.item_id, "think");
        link.delta(EventType::ReasoningDelta, &id, &note.delta).await;
    }

    pub async fn output(&mut self, link: &mut Link, note: &DeltaNote) {
        let id = self.id(link, &note.item_id, "tool");
        let Some(tool) = self.open.get_mut(&note.item_id) else { return };
        tell(link, &id, tool.output.hear(&note.delta)).await;
    }

    /// Lets go of the message that was held back, as the turn's reply or as one on the way.
    pub async fn release(&mut self, link: &mut Link, is_reply: bool) {
        if let Some((id, text)) = self.held.take() {
            link.message(&id, &text, is_reply).await;
        }
    }

    fn tool_call(&mut self, link: &mut Link, item: &Item, method: &str, status: &str) -> Value {
        let mut call = json!({"toolCallId": self.id(link, &item.id, "tool"), "itemId": item.id, "name": tool_name(item),
            "method": method, "type": item.kind, "status": status});
        if let Some(command) = command(item) {
            call["command"] = clip(&command, TOOL_COMMAND_CHARS_MAX).into();
        }
        if let Some(arguments) = &item.arguments {
            call["arguments"] = clip(arguments.as_str(), ARGUMENT_CHARS_MAX).into();
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

/// Items that do something, as opposed to those that say something.
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

/// What it does, in a line.
fn command(item: &Item) -> Option<String> {
    if !item.changes.is_empty() {
        return Some(item.changes.iter().map(|change| change.path.as_str()).collect::<Vec<_>>().join(" "));
    }
    item.command.clone().or_else(|| item.query.clone())
}

fn thought(item: &Item) -> String {
    let text = |part: &Value| part.as_str().or_else(|| part["text"].as_str()).unwrap_or_default().to_owned();
    let parts = if item.summary.is_empty() { &item.content } else { &item.summary };
    parts.iter().map(text).collect::<Vec<_>>().join("\n")
}

async fn compaction(link: &Link, what: &str) {
    link.emit(EventType::BackendStatus, &json!({"phase": format!("context-compaction:{what}")})).await;
}

async fn tell(link: &Link, tool_call_id: &str, pieces: Vec<Piece>) {
    for piece in pieces {
        let (text, is_unfit) = fit(&piece.text, TEXT_BYTES_MAX);
        let is_cut = piece.is_cut || is_unfit;
        let payload = json!({"toolCallId": tool_call_id, "stream": "stdout", "text": text, "textTruncated": is_cut,
            "outputTruncated": is_cut, "isBeginning": piece.is_beginning});
        link.emit(EventType::CommandOutput, &payload).await;
    }
}

/// Thoughts are shown, not kept whole at any price.
fn clip_bytes(text: &str) -> &str {
    &text[..text.floor_char_boundary(THOUGHT_BYTES_MAX)]
}
