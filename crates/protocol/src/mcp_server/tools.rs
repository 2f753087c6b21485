//! The tools: one table of their names, descriptions, schemas and hints.

use serde_json::{Value, json};

use super::{
    arguments::{FOLLOW_EVENTS_DEFAULT, FOLLOW_EVENTS_MAX, LIST_RUNS_DEFAULT, LIST_RUNS_MAX, WaitUntil},
    output_schemas::output,
};
use crate::{
    kernel::runs::RunState,
    limits::{
        IDEMPOTENCY_KEY_BYTES_MAX, LABEL_VALUE_BYTES_MAX, LABELS_MAX, NAME_BYTES_MAX, PROMPT_BYTES_MAX,
        REASON_BYTES_MAX, WAIT_MS_MAX,
    },
};

/// A tool that MCP clients may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedTool {
    SubmitRun,
    FollowRun,
    RunResult,
    ListRuns,
    CancelRun,
    ListPermissionRequests,
    AnswerPermissionRequest,
}

/// What a client may assume about a tool.
struct Hints {
    is_read_only: bool,
    is_destructive: bool,
    is_idempotent: bool,
    /// Whether it reaches beyond this server, as an agent does.
    is_open_world: bool,
}

const READS: Hints = Hints { is_read_only: true, is_destructive: false, is_idempotent: true, is_open_world: false };
const RUN_ID: &str = "^run_[0-9a-f]{32}$";

impl ServedTool {
    pub const ALL: [Self; 7] = [
        Self::SubmitRun,
        Self::FollowRun,
        Self::RunResult,
        Self::ListRuns,
        Self::CancelRun,
        Self::ListPermissionRequests,
        Self::AnswerPermissionRequest,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::SubmitRun => "submit_run",
            Self::FollowRun => "follow_run",
            Self::RunResult => "run_result",
            Self::ListRuns => "list_runs",
            Self::CancelRun => "cancel_run",
            Self::ListPermissionRequests => "list_permission_requests",
            Self::AnswerPermissionRequest => "answer_permission_request",
        }
    }

    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.name() == name)
    }

    fn title(self) -> &'static str {
        match self {
            Self::SubmitRun => "Submit a run",
            Self::FollowRun => "Follow a run",
            Self::RunResult => "Get a run's result",
            Self::ListRuns => "List runs",
            Self::CancelRun => "Cancel a run",
            Self::ListPermissionRequests => "List permission requests",
            Self::AnswerPermissionRequest => "Answer a permission request",
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::SubmitRun => {
                "Ask an agent to do something. Returns the run's id at once or, with waitMs, after the turn has ended, the \
                 agent needs a permission, or the time has passed. A run continues whether or not the client waits. Name a \
                 session to continue a conversation; set idempotencyKey to make a retry safe."
            }
            Self::FollowRun => {
                "Get the run's events numbered above afterSeq. With waitMs it waits for the first new event or, with until \
                 \"end\", for the end of the turn or a permission request. Call it again with nextAfterSeq."
            }
            Self::RunResult => {
                "Get what became of a run's latest turn: its state, reply, failure, usage and tool calls."
            }
            Self::ListRuns => "List runs, newest first.",
            Self::CancelRun => "Cancel a run. Cancelling a run that has ended returns how it ended.",
            Self::ListPermissionRequests => {
                "List what a run's agent asks permission for: the exact command, its digest, and the options."
            }
            Self::AnswerPermissionRequest => {
                "Answer a permission request once, with one of its options. The digest must be that of the request, so that \
                 nothing else is allowed than what was shown. Ask the user before you allow anything."
            }
        }
    }

    fn hints(self) -> Hints {
        match self {
            Self::SubmitRun => {
                Hints { is_read_only: false, is_destructive: true, is_idempotent: false, is_open_world: true }
            }
            Self::CancelRun => {
                Hints { is_read_only: false, is_destructive: true, is_idempotent: true, is_open_world: false }
            }
            Self::AnswerPermissionRequest => {
                Hints { is_read_only: false, is_destructive: true, is_idempotent: false, is_open_world: true }
            }
            Self::FollowRun | Self::RunResult | Self::ListRuns | Self::ListPermissionRequests => READS,
        }
    }

    fn input(self) -> Value {
        match self {
            Self::SubmitRun => object(
                json!({
                    "profile": name("The backend profile that runs the agent."),
                    "prompt": text("What the agent is to do.", PROMPT_BYTES_MAX),
                    "session": name("Continue this session, or start it under this id."),
                    "tenantId": name("The tenant of the run. Default: the token's only one, or local."),
                    "projectId": name("The project of the run."),
                    "workspace": {"type": "object", "description":
                        "Where the agent works, as workspaceRef of POST /api/v1/runs. Default: an empty directory."},
                    "approval": {"type": "string", "enum": ["untrusted", "on-request", "never"],
                        "description": "When the agent asks for permission. Default: on-request, or less if the server allows less."},
                    "labels": {"type": "object", "maxProperties": LABELS_MAX,
                        "additionalProperties": {"type": "string", "maxLength": LABEL_VALUE_BYTES_MAX},
                        "description": "By which the run can be found."},
                    "idempotencyKey": text("The same key and arguments again return the same run.", IDEMPOTENCY_KEY_BYTES_MAX),
                    "waitMs": wait(),
                }),
                &["profile", "prompt"],
            ),
            Self::FollowRun => object(
                json!({
                    "runId": id("The run.", RUN_ID),
                    "afterSeq": {"type": "integer", "minimum": 0, "description": "Only events numbered above this. Default: 0."},
                    "limit": limit("events", FOLLOW_EVENTS_DEFAULT, FOLLOW_EVENTS_MAX),
                    "waitMs": wait(),
                    "until": {"type": "string", "enum": WaitUntil::ALL.map(WaitUntil::as_str),
                        "description": "What to wait for: the first new event (default), or the end of the turn or a permission request."},
                }),
                &["runId"],
            ),
            Self::RunResult => object(
                json!({
                    "runId": id("The run.", RUN_ID),
                    "commandId": id("The turn. Default: the latest.", "^cmd_[0-9a-f]{32}$"),
                }),
                &["runId"],
            ),
            Self::ListRuns => object(
                json!({
                    "tenantId": name("Only runs of this tenant."),
                    "session": name("Only runs of this session."),
                    "state": {"type": "string", "maxLength": NAME_BYTES_MAX, "description": format!(
                        "Only runs in this state, or in one of several between commas: {}.",
                        RunState::ALL.map(RunState::as_str).join(", "))},
                    "label": {"type": "string", "maxLength": 4 * NAME_BYTES_MAX, "description": "Only runs with this label, key=value."},
                    "limit": limit("runs", LIST_RUNS_DEFAULT, LIST_RUNS_MAX),
                    "cursor": {"type": "string", "maxLength": 1_024, "description": "nextCursor of the previous page."},
                }),
                &[],
            ),
            Self::CancelRun => object(
                json!({
                    "runId": id("The run.", RUN_ID),
                    "reason": text("Why; shown with the run.", REASON_BYTES_MAX),
                }),
                &["runId"],
            ),
            Self::ListPermissionRequests => object(
                json!({
                    "runId": id("The run.", RUN_ID),
                    "all": {"type": "boolean", "description": "Also those that were resolved. Default: false."},
                }),
                &["runId"],
            ),
            Self::AnswerPermissionRequest => object(
                json!({
                    "runId": id("The run.", RUN_ID),
                    "permissionId": id("The request.", "^prm_[0-9a-f]{32}$"),
                    "optionId": text("One of the request's options.", NAME_BYTES_MAX),
                    "digest": id("The digest of the request.", "^[0-9a-fA-F]{64}$"),
                }),
                &["runId", "permissionId", "optionId", "digest"],
            ),
        }
    }

    /// The tool as `tools/list` shows it.
    pub fn describe(self) -> Value {
        let Hints { is_read_only, is_destructive, is_idempotent, is_open_world } = self.hints();
        json!({
            "name": self.name(), "title": self.title(), "description": self.description(), "inputSchema": self.input(),
            "outputSchema": output(self),
            "annotations": {"title": self.title(), "readOnlyHint": is_read_only, "destructiveHint": is_destructive,
                "idempotentHint": is_idempotent, "openWorldHint": is_open_world},
        })
    }
}

fn object(properties: Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

fn text(description: &str, bytes_max: usize) -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": bytes_max, "description": description})
}

fn name(description: &str) -> Value {
    text(description, NAME_BYTES_MAX)
}

fn id(description: &str, pattern: &str) -> Value {
    json!({"type": "string", "pattern": pattern, "description": description})
}

fn limit(what: &str, default: u32, max: u32) -> Value {
    json!({"type": "integer", "minimum": 1, "maximum": max, "description": format!("Most {what} to return. Default: {default}.")})
}

fn wait() -> Value {
    json!({"type": "integer", "minimum": 0, "maximum": WAIT_MS_MAX,
        "description": "How long to wait, in milliseconds. Default: 0."})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_is_found_by_its_name_and_has_a_schema_that_is_one() {
        for tool in ServedTool::ALL {
            assert_eq!(ServedTool::find(tool.name()), Some(tool));
            let described = tool.describe();
            let schema = &described["inputSchema"];
            assert!(jsonschema::meta::is_valid(schema), "{}", tool.name());
            let output = &described["outputSchema"];
            assert!(jsonschema::meta::is_valid(output) && output["type"] == "object", "{}", tool.name());
            assert!(!jsonschema::is_valid(output, &json!({})), "{}", tool.name());
            let failure = json!({"kind": "not-found", "message": "no", "traceId": "trc_1", "retry": false});
            assert!(jsonschema::is_valid(output, &failure), "{}", tool.name());
            for (field, of_field) in schema["properties"].as_object().unwrap() {
                let is_bounded =
                    ["maxLength", "maximum", "enum", "pattern", "maxProperties"].iter().any(|b| !of_field[b].is_null());
                let is_free = of_field["type"] == "boolean" || field == "workspace" || field == "afterSeq";
                assert!(is_bounded || is_free, "{} {field}", tool.name());
                assert!(of_field["description"].is_string(), "{} {field}", tool.name());
            }
        }
        assert_eq!(ServedTool::find("shell"), None);
    }

    #[test]
    fn only_tools_that_change_nothing_are_read_only() {
        for tool in ServedTool::ALL {
            let hints = tool.hints();
            let changes =
                matches!(tool, ServedTool::SubmitRun | ServedTool::CancelRun | ServedTool::AnswerPermissionRequest);
            assert_eq!((hints.is_read_only, hints.is_destructive), (!changes, changes), "{}", tool.name());
        }
    }
}
