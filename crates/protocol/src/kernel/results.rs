//! The result envelope: what became of a command, derived from its record and its fold alone. Every field is always
//! there, null when empty. Nothing but a terminal fact makes `completed`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    FailureKind, Rule, Timestamp,
    ids::{AttemptId, CommandId, RunId},
    json::hex,
    kernel::{
        chain::Hash,
        commands::{Command, CommandType},
        fold::{AssistantPick, CommandFold, ToolItem},
        leases::Lease,
        liveness::{Liveness, Supervisor},
        permissions::PermissionRequest,
        runs::{Run, RunState, Terminal, TerminalStatus},
    },
    limits::BLOCKER_CHARS_MAX,
    text::clip,
};

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunResult {
    pub run_id: RunId,
    pub command_id: Option<CommandId>,
    pub attempt_id: Option<AttemptId>,
    pub session_id: String,
    /// The profile of the backend that the run is for.
    #[serde(default)]
    pub backend_profile: String,
    /// The tenant that owns this profile, if the command failed. Null: it is the operator's, or the command did not fail.
    #[serde(default)]
    pub profile_tenant_id: Option<String>,
    /// The command's state, or the run's where it has no command.
    pub status: String,
    pub run_status: String,
    /// What became of the command, or of the run where it has no command, for people.
    pub state: RunState,
    pub terminal_status: Option<TerminalStatus>,
    pub completed: bool,
    /// `terminal_status` (an event of the command), `run` (the run's own end) or null.
    pub terminal_source: Option<String>,
    /// The reply of a completed command. Null for every other outcome; `finalResponse` shows what text there is.
    pub reply: Option<String>,
    pub final_response: Option<FinalResponse>,
    pub final_assistant_seq: Option<i64>,
    pub final_assistant_source: Option<String>,
    pub final_assistant_text_truncated: Option<bool>,
    pub final_assistant_output_truncated: Option<bool>,
    pub failure_kind: Option<FailureKind>,
    /// The exact rule that was broken. Null: no rule covers this end, or the runner did not name one.
    #[serde(default, deserialize_with = "Rule::deserialize_known")]
    #[schema(value_type = Option<String>)]
    pub rule: Option<Rule>,
    pub blocker: Option<String>,
    pub last_seq: i64,
    pub event_count: i64,
    pub events_capped: bool,
    pub next_after_seq: i64,
    /// The number of the last event of the command, or of a steer or an interrupt that targets it.
    pub scoped_last_seq: Option<i64>,
    /// Events of the command, and of the steers and interrupts that target it.
    pub scoped_event_count: Option<i64>,
    pub artifact_summary: ArtifactSummary,
    pub tool_call_summary: ToolCallSummary,
    pub usage: Usage,
    pub liveness: Liveness,
    pub supervisor: Supervisor,
    pub open_permissions: Vec<PermissionRequest>,
    pub steer_delivery: Option<SteerDelivery>,
    /// The run that this one repeats.
    #[serde(default)]
    pub retry_of: Option<RunId>,
    pub chain_head: ChainHead,
    /// When retention removed the payloads of the run's events, and with them the reply. Null: they are there.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub payloads_removed_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FinalResponse {
    pub text: String,
    pub seq: i64,
    /// `authoritative-final` or `fallback-last-text`.
    pub source: String,
    pub reply_authority: bool,
    #[serde(rename = "final")]
    pub is_final: bool,
    pub text_truncated: bool,
    pub output_truncated: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactSummary {
    pub output_events: i64,
    pub output_bytes: i64,
    pub truncated: bool,
    /// Where the whole output can be read.
    pub events_path: String,
    /// What the agent changed in its workspace; 0 where it has none.
    #[serde(default)]
    pub files_changed: i64,
    #[serde(default)]
    pub bytes_added: i64,
    #[serde(default)]
    pub bytes_removed: i64,
    /// The agent's changes could not be determined; the difference gives the reason.
    #[serde(default)]
    pub changes_unknown: bool,
    /// Where the difference can be read; null where nothing was changed.
    #[serde(default)]
    pub diff_path: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolCallSummary {
    pub count: i64,
    pub status_counts: BTreeMap<String, i64>,
    pub exit_code_counts: BTreeMap<String, i64>,
    /// The most recent ones.
    pub items: Vec<ToolItem>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    pub total_tokens: i64,
    pub cost_usd: f64,
    /// How often the model was called, as far as the agent reports it.
    #[serde(default)]
    pub turns: i64,
    /// What runs that the command started with `run_agent` have used. It counts against the command's budgets, and is not part of
    /// `totalTokens`, `costUsd` and the tool calls of the command.
    #[serde(default)]
    pub delegated_tokens: i64,
    #[serde(default)]
    pub delegated_cost_usd: f64,
    #[serde(default)]
    pub delegated_tool_calls: i64,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SteerDelivery {
    pub target_command_id: Option<CommandId>,
    pub acked: bool,
    /// The backend took the steer.
    pub accepted: bool,
    pub accepted_seq: Option<i64>,
    /// Whether the target has produced any event since.
    pub target_events_observed: bool,
    pub note: String,
}

/// The end of the session's hash chain, for comparing with `ostler verify`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChainHead {
    pub session_seq: i64,
    pub hash: String,
}

/// The events of the commands that target another one: how many there are, and the number of the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetingEvents {
    pub count: i64,
    pub last_seq: i64,
}

/// Everything a result is made of, as read in one go.
pub struct ResultParts {
    pub run: Run,
    pub command: Option<Command>,
    pub lease: Option<Lease>,
    pub open_permissions: Vec<PermissionRequest>,
    /// The text of the picked assistant message.
    pub reply_text: Option<String>,
    /// For a steer: the number of its target's last event.
    pub target_last_seq: Option<i64>,
    /// Events of the steers and interrupts that target the command.
    pub targeting: TargetingEvents,
    pub session_seq: i64,
    pub chain_head: Hash,
    /// Retention has removed payloads of the run.
    pub payloads_removed_at: Option<Timestamp>,
}

impl RunResult {
    pub fn of(parts: ResultParts, now: Timestamp) -> Self {
        let ResultParts {
            run,
            command,
            lease,
            open_permissions,
            reply_text,
            target_last_seq,
            targeting,
            session_seq,
            chain_head,
            payloads_removed_at,
        } = parts;
        let empty = CommandFold::default();
        let fold = command.as_ref().map_or(&empty, |c| &c.fold);
        let terminal = command.as_ref().map_or(run.terminal.as_ref(), |c| c.terminal.as_ref());
        let completed = terminal.is_some_and(|t| t.status == TerminalStatus::Completed);
        // A reply that was removed is not an empty one.
        let pick = fold.pick().filter(|_| payloads_removed_at.is_none() || reply_text.is_some());
        let final_response = pick.map(|pick| final_response(pick, reply_text.unwrap_or_default()));
        let liveness = Liveness::of(&run, command.as_ref(), lease.as_ref(), open_permissions.len() as i64, now);
        Self {
            run_id: run.run_id,
            command_id: command.as_ref().map(|c| c.command_id),
            attempt_id: command.as_ref().and_then(|c| c.attempt_id).or(run.attempt_id),
            session_id: run.session_id.clone(),
            backend_profile: run.backend_profile.clone(),
            profile_tenant_id: None,
            status: command.as_ref().map_or(run.status.as_str(), |c| c.state.as_str()).to_owned(),
            run_status: run.status.as_str().to_owned(),
            state: RunState::of(run.status, open_permissions.len() as i64, terminal.map(|t| t.status)),
            terminal_status: terminal.map(|t| t.status),
            completed,
            terminal_source: terminal.map(|t| if t.source == "run" { "run" } else { "terminal_status" }.to_owned()),
            reply: final_response.as_ref().filter(|_| completed).map(|r| r.text.clone()),
            final_assistant_seq: final_response.as_ref().map(|r| r.seq),
            final_assistant_source: final_response.as_ref().map(|r| r.source.clone()),
            final_assistant_text_truncated: final_response.as_ref().map(|r| r.text_truncated),
            final_assistant_output_truncated: final_response.as_ref().map(|r| r.output_truncated),
            final_response,
            failure_kind: terminal.and_then(|t| t.failure_kind),
            rule: terminal.and_then(|t| t.rule),
            blocker: blocker(terminal, fold),
            last_seq: run.last_seq,
            event_count: run.last_seq,
            events_capped: false,
            next_after_seq: run.last_seq,
            scoped_last_seq: command.as_ref().map(|c| c.fold.last_seq.max(targeting.last_seq)),
            scoped_event_count: command.as_ref().map(|c| c.fold.events + targeting.count),
            artifact_summary: artifact_summary(&run, command.as_ref(), fold),
            tool_call_summary: ToolCallSummary {
                count: fold.tools.count,
                status_counts: fold.tools.statuses.clone(),
                exit_code_counts: fold.tools.exit_codes.clone(),
                items: fold.tools.last_items().to_vec(),
            },
            usage: Usage {
                total_tokens: fold.tokens,
                cost_usd: fold.cost_usd,
                turns: fold.turns,
                delegated_tokens: fold.delegated.tokens,
                delegated_cost_usd: fold.delegated.cost_usd,
                delegated_tool_calls: fold.delegated.tool_calls,
            },
            supervisor: liveness.supervisor(),
            liveness,
            open_permissions,
            steer_delivery: command.as_ref().and_then(|c| steer_delivery(c, target_last_seq)),
            retry_of: run.retry_of,
            chain_head: ChainHead { session_seq, hash: hex(&chain_head) },
            payloads_removed_at,
        }
    }
}

fn artifact_summary(run: &Run, command: Option<&Command>, fold: &CommandFold) -> ArtifactSummary {
    let changes = fold.changes.as_ref().map(|changes| changes.facts.clone()).unwrap_or_default();
    let of_command = command.filter(|_| fold.changes.is_some());
    ArtifactSummary {
        output_events: fold.output.events,
        output_bytes: fold.output.bytes,
        truncated: fold.output.truncated || changes.truncated,
        events_path: format!("/api/v1/runs/{}/events", run.run_id),
        files_changed: changes.files_changed,
        bytes_added: changes.bytes_added,
        bytes_removed: changes.bytes_removed,
        changes_unknown: changes.unknown,
        diff_path: of_command.map(|c| format!("/api/v1/runs/{}/commands/{}/diff", run.run_id, c.command_id)),
    }
}

fn final_response(pick: &AssistantPick, text: String) -> FinalResponse {
    let authoritative = pick.is_final && pick.reply_authority;
    FinalResponse {
        text,
        seq: pick.seq,
        source: if authoritative { "authoritative-final" } else { "fallback-last-text" }.into(),
        reply_authority: pick.reply_authority,
        is_final: pick.is_final,
        text_truncated: pick.text_truncated,
        output_truncated: pick.output_truncated,
    }
}

/// Why it did not complete, in one bounded line.
fn blocker(terminal: Option<&Terminal>, fold: &CommandFold) -> Option<String> {
    let terminal = terminal.filter(|t| t.status != TerminalStatus::Completed)?;
    let stated = terminal.message.clone().filter(|m| !m.is_empty());
    let from_error = || fold.last_error.as_ref().map(|(_, message)| message.clone()).filter(|m| !m.is_empty());
    let fallback = || terminal.failure_kind.map(|kind| kind.row().meaning.to_owned());
    stated.or_else(from_error).or_else(fallback).map(|text| clip(&text, BLOCKER_CHARS_MAX))
}

fn steer_delivery(command: &Command, target_last_seq: Option<i64>) -> Option<SteerDelivery> {
    if command.command_type != CommandType::Steer {
        return None;
    }
    let accepted_seq = command.fold.steer_accepted_seq;
    Some(SteerDelivery {
        target_command_id: command.target_command_id,
        acked: command.acked_at.is_some(),
        accepted: accepted_seq.is_some(),
        accepted_seq,
        target_events_observed: accepted_seq.zip(target_last_seq).is_some_and(|(seq, last)| last > seq),
        note: "A completed steer was handed to the running turn; it does not mean that the turn has answered to it."
            .into(),
    })
}
