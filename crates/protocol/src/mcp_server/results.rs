//! The results of the tools: structured, and the same as text for clients that read only that.

use serde::Serialize;
use serde_json::{Value, json};

use super::{failures::McpFailureData, resources::run_uri};
use crate::{
    RawJson, Timestamp,
    ids::{CommandId, RunId},
    json::text_of,
    kernel::{
        events::{EventPage, EventView},
        labels::Labels,
        permissions::PermissionRequest,
        results::RunResult,
        run_views::RunView,
        runs::RunState,
    },
};

/// Events of one result. The first one is always there, so a result can have one event more than this allows.
pub const FOLLOW_BYTES_MAX: usize = 256 * 1024;

/// The result of a call that the tool has carried out.
pub fn tool_result(value: &impl Serialize) -> RawJson {
    let structured = RawJson::of(value);
    let content = json!([{"type": "text", "text": structured.as_str()}]);
    let mut result = String::from(r#"{"content":"#);
    result.push_str(&text_of(&content));
    result.push_str(r#","structuredContent":"#);
    result.push_str(structured.as_str());
    result.push_str(r#","isError":false}"#);
    RawJson::parse(result).unwrap_or_else(|_| RawJson::null())
}

/// The result of a call that the tool has refused, or that failed.
pub fn failed_result(data: &McpFailureData) -> RawJson {
    let content = json!([{"type": "text", "text": data.text()}]);
    RawJson::of(&json!({"content": content, "structuredContent": data, "isError": true}))
}

/// The result of `submit_run`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SubmittedRun {
    pub run_id: RunId,
    pub session_id: String,
    pub command_id: Option<CommandId>,
    pub state: RunState,
    /// Whether the turn has ended. If not, `follow_run` waits for more.
    pub ended: bool,
    /// Where `follow_run` begins.
    pub after_seq: i64,
    /// The reply of a turn that has completed.
    pub reply: Option<String>,
    /// What the agent waits for, to be answered with `answer_permission_request`.
    pub open_permissions: Vec<PermissionRequest>,
}

impl SubmittedRun {
    pub fn of(result: RunResult, after_seq: i64) -> Self {
        Self {
            run_id: result.run_id,
            session_id: result.session_id,
            command_id: result.command_id,
            state: result.state,
            ended: result.state.is_ended(),
            after_seq,
            reply: result.reply,
            open_permissions: result.open_permissions,
        }
    }
}

/// The result of `follow_run`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FollowedRun {
    pub run_id: RunId,
    pub session_id: String,
    pub state: RunState,
    pub ended: bool,
    /// How many permission requests wait for an answer.
    pub open_permissions: i64,
    pub events: Vec<EventView>,
    /// Where the next call begins.
    pub next_after_seq: i64,
    /// Whether more events can be read without waiting.
    pub has_more: bool,
}

impl FollowedRun {
    pub fn of(view: RunView, page: EventPage) -> Self {
        let EventPage { events, next_after_seq, has_more } = page;
        Self {
            run_id: view.run.run_id,
            session_id: view.run.session_id,
            state: view.standing.state,
            ended: view.standing.state.is_ended(),
            open_permissions: view.standing.open_permissions,
            events,
            next_after_seq,
            has_more,
        }
    }
}

/// As many events of a page as fit into `bytes_max`, at least one.
pub fn within_bytes(mut page: EventPage, bytes_max: usize) -> EventPage {
    let mut bytes = 0;
    let fitting = page.events.iter().take_while(|event| {
        let is_first = bytes == 0;
        bytes += event.payload.as_str().len().max(1);
        is_first || bytes <= bytes_max
    });
    let count = fitting.count();
    if count < page.events.len() {
        page.events.truncate(count);
        page.has_more = true;
        page.next_after_seq = page.events.last().and_then(|event| event.seq).unwrap_or(page.next_after_seq);
    }
    page
}

/// A run as `list_runs` shows it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedRun {
    pub run_id: RunId,
    pub session_id: String,
    pub tenant_id: String,
    pub project_id: String,
    pub backend_profile: String,
    pub state: RunState,
    pub open_permissions: i64,
    pub labels: Labels,
    pub last_seq: i64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl From<RunView> for ListedRun {
    fn from(RunView { run, standing }: RunView) -> Self {
        Self {
            run_id: run.run_id,
            session_id: run.session_id,
            tenant_id: run.tenant_id,
            project_id: run.project_id,
            backend_profile: run.backend_profile,
            state: standing.state,
            open_permissions: standing.open_permissions,
            labels: run.labels,
            last_seq: run.last_seq,
            created_at: run.created_at,
            updated_at: run.updated_at,
        }
    }
}

impl ListedRun {
    /// As `resources/list` shows it.
    pub fn resource(&self) -> Value {
        let name = format!("{} ({})", self.run_id, self.state.as_str());
        json!({"uri": run_uri(self.run_id), "name": name, "mimeType": "application/json"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(seq: i64, bytes: usize) -> EventView {
        EventView {
            seq: Some(seq),
            run_id: None,
            session_seq: seq,
            event_type: crate::kernel::events::EventType::Custom,
            command_id: None,
            created_at: Timestamp::UNIX_EPOCH,
            payload: RawJson::of(&"x".repeat(bytes - 2)),
        }
    }

    fn page(sizes: &[usize]) -> EventPage {
        let events: Vec<_> = (1..).zip(sizes).map(|(seq, bytes)| event(seq, *bytes)).collect();
        EventPage { next_after_seq: events.len() as i64, events, has_more: false }
    }

    #[test]
    fn a_page_is_cut_behind_the_last_event_that_fits() {
        for (sizes, bytes_max, count) in [
            (vec![10, 10, 10], 30, 3),
            (vec![10, 10, 10], 29, 2),
            (vec![50, 10], 30, 1),
            (vec![10, 50], 30, 1),
            (vec![], 30, 0),
        ] {
            let cut = within_bytes(page(&sizes), bytes_max);
            assert_eq!((cut.events.len(), cut.has_more), (count, count < sizes.len()), "{sizes:?}");
            assert_eq!(cut.next_after_seq, count as i64, "{sizes:?}");
        }
    }

    #[test]
    fn a_result_has_the_same_as_structure_and_as_text() {
        let result = tool_result(&json!({"a": "\"quoted\" \u{1}"})).to_value();
        let text = result["content"][0]["text"].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), result["structuredContent"]);
        assert_eq!(result["isError"], false);
    }
}
