//! What a session has used, as clients of the daemon read it: a sum over the folds of its turns.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    RawJson, Timestamp,
    ids::CommandId,
    kernel::{
        events::{Event, EventType},
        facts::{Facts, ToolFacts},
        fold::CommandFold,
        permissions::ParsedPermission,
    },
};

/// `GET /session/{sessionId}/stats`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionStats {
    pub v: u32,
    pub session_id: String,
    pub workspace_cwd: String,
    pub session_start_time_ms: i64,
    pub duration_ms: i64,
    pub prompt_count: i64,
    /// By model, which is the backend profile of the run.
    pub models: BTreeMap<String, ModelStats>,
    pub tools: ToolStats,
    pub files: FileStats,
    pub skills: SkillStats,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelStats {
    pub api: ApiStats,
    pub tokens: TokenStats,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiStats {
    pub total_requests: i64,
    /// Turns that ended with a failure.
    pub total_errors: i64,
    pub total_latency_ms: i64,
}

/// The total is that of the turns; the parts are those of the session's newest reports of usage whose payloads are there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TokenStats {
    pub prompt: i64,
    pub candidates: i64,
    pub total: i64,
    pub cached: i64,
    pub thoughts: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolStats {
    pub total_calls: i64,
    pub total_success: i64,
    pub total_fail: i64,
    pub total_duration_ms: i64,
    pub by_name: BTreeMap<String, NamedToolStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamedToolStats {
    pub count: i64,
    pub success: i64,
    pub fail: i64,
    pub duration_ms: i64,
    pub decisions: ToolDecisions,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolDecisions {
    pub accept: i64,
    pub reject: i64,
    pub modify: i64,
    pub auto_accept: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileStats {
    pub total_lines_added: i64,
    pub total_lines_removed: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SkillStats {
    pub total_calls: i64,
    pub total_success: i64,
    pub total_fail: i64,
    #[schema(value_type = Object)]
    pub by_name: BTreeMap<String, i64>,
}

/// One report of usage in the session's log.
#[derive(Clone, Debug)]
pub struct TokenReport {
    pub backend_profile: String,
    /// The payload of the event.
    pub payload: RawJson,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct UsageParts {
    input_tokens: Option<i64>,
    output_tokens: Option<i64>,
    cached_input_tokens: Option<i64>,
    #[serde(alias = "reasoningOutputTokens")]
    reasoning_tokens: Option<i64>,
}

/// One turn of the session.
#[derive(Clone, Debug)]
pub struct TurnUsage {
    pub backend_profile: String,
    pub fold: CommandFold,
    pub has_failed: bool,
    pub acked_at: Option<Timestamp>,
    pub updated_at: Timestamp,
}

/// Statuses of a tool call that has failed, as backends name them.
const FAILED: [&str; 4] = ["failed", "error", "declined", "rejected"];

/// The name of a tool that the backend does not name.
const UNNAMED: &str = "tool";

/// What the log has about one tool call.
#[derive(Default)]
struct LoggedCall {
    name: Option<String>,
    tool_type: Option<String>,
    started_at: Option<Timestamp>,
    duration_ms: i64,
    decisions: ToolDecisions,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ResolvedRequest {
    permission_id: String,
    status: String,
    /// What the voter has changed of the call.
    edited: Option<Value>,
}

impl LoggedCall {
    fn report(&mut self, tool: ToolFacts, at: Timestamp) {
        self.name = tool.name.or_else(|| self.name.take());
        self.tool_type = tool.tool_type.or_else(|| self.tool_type.take());
        let has_ended = tool.status.as_deref().is_some_and(|status| status == "completed" || FAILED.contains(&status));
        if !has_ended {
            self.started_at.get_or_insert(at);
        } else if let Some(started_at) = self.started_at.take() {
            self.duration_ms += at.duration_since(started_at).as_millis().max(0) as i64;
        }
    }

    fn decide(&mut self, resolved: &ResolvedRequest) {
        match (resolved.status.as_str(), &resolved.edited) {
            ("allowed", None) => self.decisions.accept += 1,
            ("allowed", Some(_)) => self.decisions.modify += 1,
            ("denied", _) => self.decisions.reject += 1,
            _ => {}
        }
    }
}

/// The tool calls in the events, by their command and id. The events are in their order.
fn logged_calls(events: &[Event]) -> HashMap<(Option<CommandId>, String), LoggedCall> {
    let (mut calls, mut asked) = (HashMap::<_, LoggedCall>::new(), HashMap::new());
    for event in events {
        match event.facts() {
            Facts::Tool(tool) => {
                if let Some(id) = tool.tool_call_id.clone() {
                    calls.entry((event.command_id, id)).or_default().report(tool, event.created_at);
                }
            }
            Facts::Permission(ParsedPermission::Valid(ask)) => {
                if let Some(id) = &ask.tool_call_id {
                    asked.insert(ask.permission_id.to_string(), (event.command_id, id.clone()));
                }
            }
            _ if event.event_type == EventType::PermissionResolved => {
                let read = event.payload.as_deref().and_then(|payload| serde_json::from_str(payload).ok());
                let resolved: ResolvedRequest = read.unwrap_or_default();
                if let Some(call) = asked.remove(&resolved.permission_id) {
                    calls.entry(call).or_default().decide(&resolved);
                }
            }
            _ => {}
        }
    }
    calls
}

impl SessionStats {
    /// Adds how long tool calls took and what was decided about them, from events in their order. Tools of turns that were not added
    /// are left out.
    pub fn add_calls(&mut self, events: &[Event]) {
        for call in logged_calls(events).into_values() {
            let name = call.name.or(call.tool_type).unwrap_or_else(|| UNNAMED.to_owned());
            let Some(named) = self.tools.by_name.get_mut(&name) else { continue };
            self.tools.total_duration_ms += call.duration_ms;
            named.duration_ms += call.duration_ms;
            named.decisions.accept += call.decisions.accept;
            named.decisions.reject += call.decisions.reject;
            named.decisions.modify += call.decisions.modify;
        }
    }

    /// Adds the parts of the tokens that one report has.
    pub fn add_parts(&mut self, report: &TokenReport) {
        let Some(parts) = report.payload.view::<UsageParts>() else { return };
        let tokens = &mut self.models.entry(report.backend_profile.clone()).or_default().tokens;
        for (sum, part) in [
            (&mut tokens.prompt, parts.input_tokens),
            (&mut tokens.candidates, parts.output_tokens),
            (&mut tokens.cached, parts.cached_input_tokens),
            (&mut tokens.thoughts, parts.reasoning_tokens),
        ] {
            *sum = sum.saturating_add(part.unwrap_or(0).max(0));
        }
    }

    /// Adds one turn.
    pub fn add(&mut self, turn: &TurnUsage) {
        self.prompt_count += 1;
        let model = self.models.entry(turn.backend_profile.clone()).or_default();
        model.api.total_requests += turn.fold.turns;
        model.api.total_errors += i64::from(turn.has_failed);
        let active = turn.acked_at.map_or(0, |acked| turn.updated_at.duration_since(acked).as_millis() as i64);
        model.api.total_latency_ms += active.max(0);
        model.tokens.total = model.tokens.total.saturating_add(turn.fold.tokens);
        let tools = &turn.fold.tools;
        let failed: i64 = FAILED.iter().filter_map(|status| tools.statuses.get(*status)).sum();
        let finished: i64 = tools.statuses.get("completed").copied().unwrap_or_default();
        self.tools.total_calls += tools.count;
        self.tools.total_success += finished;
        self.tools.total_fail += failed;
        for item in &tools.items {
            let name = item.tool_name.clone().or_else(|| item.tool_type.clone()).unwrap_or_else(|| UNNAMED.to_owned());
            let named = self.tools.by_name.entry(name).or_default();
            let status = item.status.as_deref().unwrap_or_default();
            named.count += 1;
            named.success += i64::from(status == "completed");
            named.fail += i64::from(FAILED.contains(&status));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::{ids::SessionId, kernel::chain};

    fn event(at_ms: i64, event_type: EventType, payload: &Value) -> Event {
        Event {
            session: SessionId::new(Uuid::nil()),
            session_seq: at_ms,
            run: None,
            command_id: Some(CommandId::new(Uuid::nil())),
            event_type,
            payload: Some(payload.to_string().into()),
            digest: chain::GENESIS,
            hash: chain::GENESIS,
            created_at: Timestamp::from_millisecond(at_ms).unwrap(),
        }
    }

    #[test]
    fn calls_have_their_time_and_the_decisions_about_them() {
        let ask = |number: u32, call: &str| {
            let options = json!([{"optionId": "a", "name": "Allow", "kind": "allow_once"}]);
            json!({"permissionId": format!("prm_{number:032x}"), "title": "Go on?", "command": "make",
                "toolCallId": call, "digest": "0".repeat(64), "options": options})
        };
        let resolved =
            |number: u32, status: &str| json!({"permissionId": format!("prm_{number:032x}"), "status": status});
        let call = |id: &str, status: &str| json!({"toolCallId": id, "name": "shell", "status": status});
        let events = [
            event(1, EventType::PermissionRequest, &ask(1, "one")),
            event(2, EventType::PermissionResolved, &resolved(1, "allowed")),
            event(3, EventType::ToolCall, &call("one", "started")),
            event(10, EventType::ToolCall, &call("one", "completed")),
            event(11, EventType::ToolCall, &call("two", "started")),
            event(12, EventType::PermissionRequest, &ask(2, "two")),
            event(13, EventType::PermissionResolved, &resolved(2, "denied")),
            event(16, EventType::ToolCall, &call("two", "failed")),
            event(17, EventType::PermissionResolved, &resolved(3, "allowed")),
        ];
        let mut stats = SessionStats {
            v: 1,
            session_id: "s".into(),
            workspace_cwd: String::new(),
            session_start_time_ms: 0,
            duration_ms: 0,
            prompt_count: 0,
            models: BTreeMap::new(),
            tools: ToolStats::default(),
            files: FileStats::default(),
            skills: SkillStats::default(),
        };
        stats.add_calls(&events);
        assert_eq!(stats.tools, ToolStats::default(), "their turns were not added");
        stats.tools.by_name.insert("shell".into(), NamedToolStats::default());
        stats.add_calls(&events);
        let named = &stats.tools.by_name["shell"];
        assert_eq!((named.duration_ms, stats.tools.total_duration_ms), (12, 12));
        assert_eq!(named.decisions, ToolDecisions { accept: 1, reject: 1, ..ToolDecisions::default() });
    }
}
