//! What a session has used, as clients of the daemon read it: a sum over the folds of its turns.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{RawJson, Timestamp, kernel::fold::CommandFold};

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

impl SessionStats {
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
            let name = item.tool_name.clone().or_else(|| item.tool_type.clone()).unwrap_or_else(|| "tool".to_owned());
            let named = self.tools.by_name.entry(name).or_default();
            let status = item.status.as_deref().unwrap_or_default();
            named.count += 1;
            named.success += i64::from(status == "completed");
            named.fail += i64::from(FAILED.contains(&status));
        }
    }
}
