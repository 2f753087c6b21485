//! Permission requests, as interrupts. A run ends with those that are open; what an agent asks while others are open waits
//! until those are answered and the calls that they are about have ended.

use serde_json::{Value, json};

use super::{out::Out, tools::Tools};
use crate::{
    RawJson,
    kernel::{
        events::Event,
        operations::ACTION_VOTED,
        permissions::{ASKED_TOOL, AskPermission, ParsedPermission},
    },
    limits::PERMISSIONS_OPEN_CEILING,
    run_input::agui::events::Interrupt,
};

#[derive(Clone, Debug)]
struct OpenQuestion {
    interrupt: Interrupt,
    /// An interrupt has named it.
    put: bool,
    /// The call of this server's tools that it is about, by the agent's id. The server ends the call after the answer.
    server_call: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Questions {
    open: Vec<OpenQuestion>,
    /// The turn is to stop: its further questions are void, and the kernel resolves them at once.
    to_stop: bool,
    declined: bool,
}

impl Questions {
    pub(super) fn open(&mut self, event: &Event, payload: &Value, tools: &mut Tools, out: &mut Out) {
        let raw = event.payload.as_ref().and_then(|text| RawJson::parse(text.to_string()).ok());
        // A request that is malformed, or comes too late, is answered by the kernel at once.
        let Some(ParsedPermission::Valid(ask)) = raw.map(|raw| AskPermission::read(&raw)) else { return };
        let until = ask.waits_until(event.created_at, None);
        let is_new = self.open.iter().all(|question| question.interrupt.id != ask.permission_id.to_string());
        if self.to_stop || until <= event.created_at || self.open.len() == PERMISSIONS_OPEN_CEILING || !is_new {
            return;
        }
        let options: Vec<&str> = ask.options.iter().map(|option| option.option_id.as_str()).collect();
        let tool_call_id = tools.announce_permission_call(payload, event.session_seq, out);
        let mut response_schema = json!({"type": "object", "properties": {
            "optionId": {"type": "string", "enum": options}, "approved": {"type": "boolean"}},
            "anyOf": [{"required": ["optionId"]}, {"required": ["approved"]}]});
        if let Some(editable) = &ask.editable {
            response_schema["properties"]["editedArgs"] = editable.schema.clone();
        }
        let mut metadata = json!({"options": ask.options, "digest": ask.digest});
        if let Some(command) = &ask.command {
            metadata["command"] = command.as_str().into();
        }
        if let Some(editable) = &ask.editable {
            metadata["arguments"] = editable.arguments.clone();
        }
        let interrupt = Interrupt {
            id: ask.permission_id.to_string(),
            reason: if tool_call_id.is_some() { "tool_call" } else { "confirmation" },
            message: ask.title,
            tool_call_id,
            response_schema,
            expires_at: until.to_string(),
            metadata: metadata.as_object().cloned().unwrap_or_default(),
        };
        let server_call = payload.get(ASKED_TOOL).and(payload["toolCallId"].as_str()).map(str::to_owned);
        self.open.push(OpenQuestion { interrupt, put: false, server_call });
    }

    /// Returns the call of this server's tools that the question was about, if it was about one.
    pub(super) fn resolved(&mut self, payload: &Value) -> Option<String> {
        let at = self.open.iter().position(|question| payload["permissionId"] == *question.interrupt.id)?;
        self.declined |= matches!(payload["status"].as_str(), Some("denied" | "cancelled"));
        self.open.remove(at).server_call
    }

    /// Whether a question that people could answer was declined, given up, or expired. A request that the server denied
    /// because it could not be read does not count.
    pub(super) fn were_declined(&self) -> bool {
        self.declined
    }

    pub(super) fn note_cancel(&mut self, payload: &Value) {
        self.to_stop |= payload["action"] == "command.cancel";
    }

    /// Makes a question be sent again after a vote that did not decide it. False if the event is no such vote.
    pub(super) fn note_vote(&mut self, payload: &Value) -> bool {
        let is_vote = payload["action"] == ACTION_VOTED;
        let voted = self.open.iter_mut().filter(|question| payload["permissionId"] == *question.interrupt.id);
        voted.for_each(|question| question.put &= !is_vote);
        is_vote
    }

    /// The questions to send now: everything open, unless an interrupt has sent part of it and still waits.
    pub(super) fn put(&mut self) -> Vec<Interrupt> {
        if self.open.iter().any(|question| question.put) {
            return vec![];
        }
        self.open.iter_mut().for_each(|question| question.put = true);
        self.open.iter().map(|question| question.interrupt.clone()).collect()
    }
}
