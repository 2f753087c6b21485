//! Commands: one request to the agent. A command's end never ends its run.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{
    Failure, RawJson, Rule, Timestamp,
    ids::{AttemptId, CommandId, RunId, SessionId},
    json::canonical_hash,
    kernel::{
        budgets,
        fold::CommandFold,
        permissions::PermissionRequest,
        runs::{Run, RunStatus, Terminal, TerminalStatus, from_terminal_status},
    },
    limits::{COMMAND_PAYLOAD_BYTES_MAX, PROMPT_BYTES_MAX},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CommandType {
    Turn,
    Steer,
    Interrupt,
}

enum_words!(CommandType { Turn => "turn", Steer => "steer", Interrupt => "interrupt" });

/// `pending → acked → running → completed | failed | blocked | cancelled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CommandState {
    Pending,
    Acked,
    Running,
    Completed,
    Failed,
    Blocked,
    Cancelled,
}

enum_words!(CommandState {
    Pending => "pending",
    Acked => "acked",
    Running => "running",
    Completed => "completed",
    Failed => "failed",
    Blocked => "blocked",
    Cancelled => "cancelled",
});

impl CommandState {
    pub fn is_terminal(self) -> bool {
        !matches!(self, Self::Pending | Self::Acked | Self::Running)
    }
}

from_terminal_status!(CommandState);

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreateCommand {
    #[serde(rename = "type")]
    pub command_type: CommandType,
    /// For `turn` and `steer`: an object with a non-empty `prompt`, `message` or `text`.
    #[serde(default = "empty_object")]
    #[schema(value_type = Object)]
    pub payload: RawJson,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

fn empty_object() -> RawJson {
    RawJson::of(&serde_json::Map::new())
}

/// A command as stored and as sent.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Command {
    pub command_id: CommandId,
    pub run_id: RunId,
    #[serde(skip, default = "SessionId::unset")]
    pub session: SessionId,
    /// The command's number inside its run: 1, 2, 3…
    pub seq: i64,
    #[serde(rename = "type")]
    pub command_type: CommandType,
    #[schema(value_type = Object)]
    pub payload: RawJson,
    pub payload_hash: String,
    pub idempotency_key: Option<String>,
    /// The client that submitted it, where the dialect knows one.
    #[serde(skip)]
    pub origin: Option<String>,
    /// The principal that submitted it. `None` for commands of earlier versions.
    #[serde(skip)]
    pub submitted_by: Option<String>,
    pub state: CommandState,
    /// For `steer` and `interrupt`: the turn that was active when it was submitted.
    pub target_command_id: Option<CommandId>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub cancel_requested_at: Option<Timestamp>,
    /// The reason given by the client that requested the cancel.
    pub cancel_reason: Option<String>,
    /// When it was rolled back. It is no longer shown to any client, though its events stay.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub rolled_back_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub acked_at: Option<Timestamp>,
    /// When the server ends it, unless it has ended before.
    #[serde(skip)]
    pub deadline_at: Option<Timestamp>,
    /// The attempt that works, or last worked, on it.
    pub attempt_id: Option<AttemptId>,
    pub terminal: Option<Terminal>,
    #[serde(skip)]
    pub fold: CommandFold,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}

impl Command {
    /// The digest of what never changes about a command, recorded in its first event. Its number, run and target follow from
    /// the events before it.
    pub fn record_digest(&self) -> String {
        let mut record = serde_json::json!({
            "commandId": self.command_id, "type": self.command_type, "payload": self.payload.as_str(),
            "payloadHash": self.payload_hash, "idempotencyKey": self.idempotency_key,
            "createdAtUs": self.created_at.as_microsecond(),
        });
        // Commands of earlier versions have neither, and keep their digests.
        for (field, value) in [("origin", &self.origin), ("submittedBy", &self.submitted_by)] {
            if let Some(value) = value {
                record[field] = value.as_str().into();
            }
        }
        canonical_hash(&record)
    }

    pub fn is_unfinished(&self) -> bool {
        !self.state.is_terminal()
    }

    pub fn prompt(&self) -> Option<String> {
        prompt(&self.payload)
    }
}

#[derive(Deserialize)]
struct Prompt {
    prompt: Option<String>,
    message: Option<String>,
    text: Option<String>,
}

/// The first non-empty of `prompt`, `message` and `text`.
pub fn prompt(payload: &RawJson) -> Option<String> {
    let view: Prompt = payload.view()?;
    [view.prompt, view.message, view.text].into_iter().flatten().find(|text| !text.trim().is_empty())
}

/// The bytes of the longest of `prompt`, `message` and `text`: each is bounded, also beside another one.
fn longest_text(payload: &RawJson) -> Option<usize> {
    let view: Prompt = payload.view()?;
    [view.prompt, view.message, view.text].into_iter().flatten().map(|text| text.len()).max()
}

/// Checks a new command's payload by its type. Its size comes first, before anything in it is read; the prompt has a limit
/// of its own, on its text.
pub fn check_payload(command_type: CommandType, payload: &RawJson) -> Result<(), Failure> {
    if !payload.is_object() {
        return Err(Failure::invalid(Rule::PayloadObject, "payload must be a JSON object"));
    }
    if payload.size() > COMMAND_PAYLOAD_BYTES_MAX {
        return Err(Failure::too_large(Rule::PayloadSize, "payload", payload.size(), COMMAND_PAYLOAD_BYTES_MAX));
    }
    if command_type == CommandType::Interrupt {
        return Ok(());
    }
    budgets::check(payload)?;
    if let Some(bytes) = longest_text(payload).filter(|bytes| *bytes > PROMPT_BYTES_MAX) {
        return Err(Failure::too_large(Rule::PromptSize, "the prompt", bytes, PROMPT_BYTES_MAX));
    }
    match prompt(payload) {
        None => {
            let message = format!("a {} needs a non-empty prompt, message or text", command_type.as_str());
            Err(Failure::invalid(Rule::PromptRequired, message))
        }
        Some(_) => Ok(()),
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct PollCommands {
    pub after_seq: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Wait this long for something to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// The `newsMark` of the last page: only another one, or a new command, ends the wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub known_news: Option<String>,
}

/// What a runner needs to know now: new commands, what to stop, and answers to its questions.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommandPage {
    /// Unfinished commands numbered above `afterSeq`.
    pub commands: Vec<Command>,
    /// Unfinished commands, of any number, whose cancel was requested.
    pub cancel_requested: Vec<CommandId>,
    pub run_cancel_requested: bool,
    /// Permission requests of unfinished commands that have been resolved.
    pub resolved_permissions: Vec<PermissionRequest>,
    /// Identifies the cancels and permissions on this page; empty if there are none.
    pub news_mark: String,
    pub next_after_seq: i64,
}

/// The mark of a page of this run with these cancels and answers. A lost lease is news too, for a runner that believes
/// it still holds the run.
pub fn news_mark(run: &Run, cancels: &[CommandId], answers: &[PermissionRequest]) -> String {
    let cancelling = run.cancel_requested_at.is_some();
    let let_go = run.lease_epoch > 0 && run.status == RunStatus::Pending;
    if !cancelling && !let_go && cancels.is_empty() && answers.is_empty() {
        return String::new();
    }
    let answers: Vec<_> = answers.iter().map(|answer| answer.permission_id).collect();
    crate::cursors::fingerprint("news", &(cancelling, let_go, cancels, answers))
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AckCommand {
    pub runner_id: String,
    pub lease_epoch: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_id: Option<String>,
}

/// The body of `PATCH …/status`, for a command as for a run.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PatchStatus {
    pub runner_id: String,
    pub lease_epoch: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_id: Option<String>,
    /// `running`, or an end: `completed`, `failed`, `blocked`, `cancelled`.
    pub status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
