//! The messages of a thread as its clients hold them, from its log: every turn is translated, and the events are put
//! together as the stock client does it. Message ids are those of the streams.
//!
//! A resumed run begins with these messages if tool calls were open at the interrupt. A client replaces its own list with
//! them, so they are sent whole or not at all. Thoughts and activities are left out: clients keep their own.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::{
    events::{AgUiEvent, EventBody, Outcome, SnapshotCall, SnapshotFunction, SnapshotMessage},
    translate::{ATTEMPT_RESTARTED, Translator},
};
use crate::{
    ids::CommandId,
    kernel::{
        commands::CommandType,
        context::{Context, Remark},
        events::{Event, EventType, PHASE_ROLLED_BACK},
    },
    run_input::history::{self, Picture, TextOrPicture, UserContent, UserContentPart},
};

/// What the messages of a thread may come to. Larger threads are not replayed.
pub const REPLAY_BYTES_MAX: usize = 2 * 1024 * 1024;
const REPLAY_MESSAGES_MAX: usize = 5_000;

/// The client's instructions among the messages that an agent received with a turn. They are no part of the thread's log.
pub fn instructions(context: &Context) -> Vec<SnapshotMessage> {
    let sent = context.messages.iter().filter_map(Remark::as_sent);
    let instruction = |sent: Value| {
        let Value::Object(mut fields) = sent else { return None };
        let (id, role) = (fields.remove("id")?, fields.remove("role")?);
        let id = id.as_str()?.to_owned();
        match role.as_str()? {
            "system" => Some(SnapshotMessage::System { id, fields }),
            "developer" => Some(SnapshotMessage::Developer { id, fields }),
            _ => None,
        }
    };
    sent.filter_map(instruction).collect()
}

#[derive(Default)]
pub struct RunReplay {
    /// Turns that have not ended.
    turns: HashMap<CommandId, Translator>,
    messages: Vec<(CommandId, SnapshotMessage)>,
    /// The tool calls that permission requests are about, by the ids of the requests.
    asked: HashMap<String, String>,
    bytes: usize,
}

impl RunReplay {
    /// Takes the thread's next event. `signed` makes a picture's URL; `None` if the picture is gone.
    pub fn take(&mut self, event: &Event, signed: impl Fn(&Picture) -> Option<String>) {
        let Some(command_id) = event.command_id else { return };
        let payload = event.payload.as_deref().unwrap_or_default();
        match event.event_type {
            EventType::UserMessage => self.user(command_id, payload, signed),
            EventType::BackendStatus if is_rolled_back(payload) => self.messages.retain(|(of, _)| *of != command_id),
            EventType::AssistantDelta
            | EventType::AssistantMessage
            | EventType::ToolCall
            | EventType::CommandOutput
            | EventType::BackendStatus
            | EventType::PermissionRequest
            | EventType::PermissionResolved
            | EventType::Audit
            | EventType::TerminalStatus => {
                let turn = self.turns.entry(command_id).or_insert_with(|| Translator::new("", "", 0));
                let sent = turn.take(event);
                if turn.is_over() {
                    self.turns.remove(&command_id);
                }
                sent.into_iter().for_each(|sent| self.apply(command_id, sent.event));
                if event.event_type == EventType::PermissionResolved {
                    self.edit(payload);
                }
            }
            _ => {}
        }
    }

    /// `None` if there are more messages than can be sent.
    pub fn finish(self) -> Option<Vec<SnapshotMessage>> {
        let fits = !self.is_over_limit();
        fits.then(|| self.messages.into_iter().map(|(_, message)| message).collect())
    }

    pub fn is_over_limit(&self) -> bool {
        self.bytes > REPLAY_BYTES_MAX || self.messages.len() > REPLAY_MESSAGES_MAX
    }

    fn user(&mut self, command_id: CommandId, payload: &str, signed: impl Fn(&Picture) -> Option<String>) {
        let Some(message) =
            history::user_content(payload).filter(|message| message.command_type == Some(CommandType::Turn))
        else {
            return;
        };
        self.bytes += payload.len();
        for message in user_messages(message, signed) {
            match message {
                SnapshotMessage::Tool { ref tool_call_id, .. } => {
                    let at = self.after_results(tool_call_id);
                    self.messages.insert(at, (command_id, message));
                }
                message => self.messages.push((command_id, message)),
            }
        }
    }

    fn apply(&mut self, command_id: CommandId, event: AgUiEvent) {
        if self.is_over_limit() {
            return;
        }
        match event.body {
            EventBody::TextMessageStart { message_id, .. } if self.find(&message_id).is_none() => {
                self.push(command_id, message_id, Some(String::new()), vec![]);
            }
            EventBody::TextMessageContent { message_id, delta } => {
                self.bytes += delta.len();
                if let Some(SnapshotMessage::Assistant { content, .. }) = self.find(&message_id) {
                    content.get_or_insert_default().push_str(&delta);
                }
            }
            EventBody::TextMessageEnd { message_id } => {
                self.bytes += Value::Object(event.metadata.clone()).to_string().len();
                if let Some(SnapshotMessage::Assistant { metadata, .. }) = self.find(&message_id) {
                    metadata.extend(event.metadata);
                }
            }
            EventBody::ToolCallStart { tool_call_id: id, tool_call_name: name } => {
                let function = SnapshotFunction { name, arguments: String::new() };
                match self.owner(&id) {
                    None => self.push(command_id, id.clone(), None, vec![SnapshotCall { id, function }]),
                    // Another turn used the id before. Arguments of both calls, joined, would not be JSON.
                    Some(at) => {
                        if let (_, SnapshotMessage::Assistant { tool_calls, .. }) = &mut self.messages[at] {
                            *tool_calls = vec![SnapshotCall { id, function }];
                        }
                    }
                }
            }
            EventBody::ToolCallArgs { tool_call_id, delta } => {
                self.bytes += delta.len();
                if let Some(at) = self.owner(&tool_call_id)
                    && let (_, SnapshotMessage::Assistant { tool_calls, .. }) = &mut self.messages[at]
                {
                    tool_calls.iter_mut().for_each(|call| call.function.arguments.push_str(&delta));
                }
            }
            EventBody::ToolCallResult { message_id: id, tool_call_id, content, .. } => {
                self.bytes += content.len();
                let at = self.after_results(&tool_call_id);
                let (error, metadata, fields) = (None, event.metadata, Map::new());
                let message = SnapshotMessage::Tool { id, tool_call_id, content, error, metadata, fields };
                self.messages.insert(at, (command_id, message));
            }
            EventBody::RunFinished { outcome: Outcome::Interrupt { interrupts }, .. } => {
                self.asked.extend(interrupts.into_iter().filter_map(|asked| Some((asked.id, asked.tool_call_id?))));
            }
            EventBody::Custom { name, value } if name == ATTEMPT_RESTARTED => {
                let dead: Vec<_> = value["messageIds"].as_array().into_iter().flatten().collect();
                self.messages.retain_mut(|(_, message)| match message {
                    message if !dead.iter().any(|id| *id == message.id()) => true,
                    // An agent may name a text like a tool call. The call was announced and stays.
                    SnapshotMessage::Assistant { content, tool_calls, .. } if !tool_calls.is_empty() => {
                        *content = None;
                        true
                    }
                    _ => false,
                });
            }
            _ => {}
        }
    }

    /// Replaces the arguments of a call by those with which a person has allowed it.
    fn edit(&mut self, payload: &str) {
        let Ok(payload) = serde_json::from_str::<Value>(payload) else { return };
        let tool_call_id = payload["permissionId"].as_str().and_then(|id| self.asked.remove(id));
        let arguments = payload["edited"].get("arguments");
        let (Some(id), Some(arguments)) = (tool_call_id, arguments) else { return };
        let text = arguments.to_string();
        self.bytes += text.len();
        if let Some(at) = self.owner(&id)
            && let (_, SnapshotMessage::Assistant { tool_calls, .. }) = &mut self.messages[at]
        {
            let edited = tool_calls.iter_mut().filter(|call| call.id == id);
            edited.for_each(|call| call.function.arguments.clone_from(&text));
        }
    }

    fn push(&mut self, of: CommandId, id: String, content: Option<String>, tool_calls: Vec<SnapshotCall>) {
        self.bytes += 2 * id.len();
        self.messages.push((of, SnapshotMessage::Assistant { id, content, tool_calls, metadata: Map::new() }));
    }

    /// The newest messages are looked up most.
    fn find(&mut self, id: &str) -> Option<&mut SnapshotMessage> {
        self.messages.iter_mut().rev().map(|(_, message)| message).find(|message| message.id() == id)
    }

    /// The place after the message that made a tool call, and after the results that are there.
    fn after_results(&self, tool_call_id: &str) -> usize {
        let after_owner = self.owner(tool_call_id).map_or(self.messages.len(), |at| at + 1);
        let results = self.messages[after_owner..].iter();
        after_owner + results.take_while(|(_, message)| matches!(message, SnapshotMessage::Tool { .. })).count()
    }

    /// The place of the message that made a tool call.
    fn owner(&self, tool_call_id: &str) -> Option<usize> {
        self.messages.iter().rposition(|(_, message)| match message {
            SnapshotMessage::Assistant { tool_calls, .. } => tool_calls.iter().any(|call| call.id == tool_call_id),
            _ => false,
        })
    }
}

/// A `user_message` event as the messages that its client sent: results of tools, and the user's own message.
pub fn user_messages(message: UserContent, signed: impl Fn(&Picture) -> Option<String>) -> Vec<SnapshotMessage> {
    let UserContent { message_id: id, parts, results, fields, .. } = message;
    let mut messages: Vec<_> = results
        .into_iter()
        .map(|result| SnapshotMessage::Tool {
            id: result.message_id,
            tool_call_id: result.tool_call_id,
            content: result.content,
            error: result.error,
            metadata: Map::new(),
            fields: result.sent,
        })
        .collect();
    let content = match parts.as_slice() {
        [] if !messages.is_empty() => return messages,
        [UserContentPart { content: TextOrPicture::Text(text), fields }] if fields.is_empty() => text.as_str().into(),
        parts => parts.iter().filter_map(|part| user_part(part, &signed)).collect(),
    };
    messages.push(SnapshotMessage::User { id, content, fields });
    messages
}

/// A part of AG-UI 1.0, which has no file names: that one is in its metadata. `None` if the picture is gone.
fn user_part(part: &UserContentPart, signed: impl Fn(&Picture) -> Option<String>) -> Option<Value> {
    let mut sent = match &part.content {
        TextOrPicture::Text(text) => json!({"type": "text", "text": text}),
        TextOrPicture::Picture(picture) => {
            let source = json!({"type": "url", "value": signed(picture)?, "mimeType": picture.mime_type});
            json!({"type": "image", "source": source})
        }
    };
    for (name, value) in &part.fields {
        match name.as_str() {
            "filename" => sent["metadata"]["filename"] = value.clone(),
            "metadata" => {
                for (name, value) in value.as_object().into_iter().flatten() {
                    sent["metadata"][name] = value.clone();
                }
            }
            name => sent[name] = value.clone(),
        }
    }
    Some(sent)
}

fn is_rolled_back(payload: &str) -> bool {
    serde_json::from_str::<Value>(payload).is_ok_and(|payload| payload["phase"] == PHASE_ROLLED_BACK)
}
