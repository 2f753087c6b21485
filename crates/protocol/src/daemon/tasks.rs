//! Background tasks of a session: work that goes on beside the prompt. A task of the kind `agent` is a prompt that waits or runs;
//! the backends that this server drives report no others.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `GET /session/{sessionId}/tasks`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionTasks {
    pub v: u32,
    pub session_id: String,
    /// The server's time, in milliseconds since 1970.
    pub now: i64,
    pub tasks: Vec<SessionTask>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionTask {
    pub kind: String,
    pub id: String,
    pub label: String,
    pub description: String,
    pub status: String,
    pub start_time: i64,
    pub runtime_ms: i64,
    pub is_backgrounded: bool,
}

/// `POST /session/{sessionId}/tasks/{taskId}/cancel`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CancelTask {
    pub kind: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskCancelled {
    pub session_id: String,
    pub task_id: String,
    pub cancelled: bool,
}
