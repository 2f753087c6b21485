//! What the tools return, as JSON Schemas. The official SDKs check every `structuredContent` against them, also that of a refused call:
//! each schema allows the failure as well.

use serde_json::{Value, json};

use super::tools::ServedTool;
use crate::kernel::{permissions::PermissionStatus, runs::RunState};

/// The schema of a tool's `structuredContent`.
pub(super) fn output(tool: ServedTool) -> Value {
    match tool {
        ServedTool::SubmitRun => outcome(
            json!({
                "runId": text("The run."), "sessionId": text("Its session."), "commandId": text_or_null("The turn."),
                "state": state(), "ended": flag("Whether the turn has ended."),
                "afterSeq": count("Where follow_run begins."), "reply": text_or_null("The reply of a completed turn."),
                "openPermissions": list("What the agent waits for."),
            }),
            &["runId", "sessionId", "state", "ended", "afterSeq", "openPermissions"],
        ),
        ServedTool::FollowRun => outcome(
            json!({
                "runId": text("The run."), "sessionId": text("Its session."), "state": state(),
                "ended": flag("Whether the turn has ended."), "openPermissions": count("Requests without an answer."),
                "events": list("The events, in order."), "nextAfterSeq": count("Where the next call begins."),
                "hasMore": flag("Whether more events can be read without waiting."),
            }),
            &["runId", "sessionId", "state", "ended", "events", "nextAfterSeq", "hasMore"],
        ),
        ServedTool::RunResult => outcome(
            json!({
                "runId": text("The run."), "sessionId": text("Its session."), "commandId": text_or_null("The turn."),
                "state": state(), "completed": flag("Whether the turn has completed."),
                "reply": text_or_null("The reply of a completed turn."), "failureKind": text_or_null("Why it failed."),
                "blocker": text_or_null("Why it failed, for people."), "openPermissions": list("What the agent waits for."),
            }),
            &["runId", "sessionId", "state", "completed", "openPermissions"],
        ),
        ServedTool::ListRuns => outcome(
            json!({"runs": list("Runs, newest first."), "nextCursor": text_or_null("The next page.")}),
            &["runs"],
        ),
        ServedTool::CancelRun => outcome(
            json!({
                "runId": text("The run."), "sessionId": text("Its session."), "tenantId": text("Its tenant."),
                "state": state(), "lastSeq": count("The number of its last event."),
            }),
            &["runId", "sessionId", "state", "lastSeq"],
        ),
        ServedTool::ListPermissionRequests => {
            outcome(json!({"permissions": list("The requests of the run.")}), &["permissions"])
        }
        ServedTool::AnswerPermissionRequest => outcome(
            json!({
                "permissionId": text("The request."), "runId": text("Its run."), "digest": text("Of what was asked."),
                "status": {"type": "string", "enum": PermissionStatus::ALL.map(PermissionStatus::as_str)},
            }),
            &["permissionId", "runId", "digest", "status"],
        ),
    }
}

fn outcome(properties: Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties,
        "anyOf": [{"required": required}, {"required": ["kind", "message", "traceId"]}]})
}

fn state() -> Value {
    json!({"type": "string", "enum": RunState::ALL.map(RunState::as_str)})
}

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn text_or_null(description: &str) -> Value {
    json!({"type": ["string", "null"], "description": description})
}

fn flag(description: &str) -> Value {
    json!({"type": "boolean", "description": description})
}

fn count(description: &str) -> Value {
    json!({"type": "integer", "minimum": 0, "description": description})
}

fn list(description: &str) -> Value {
    json!({"type": "array", "items": {"type": "object"}, "description": description})
}
