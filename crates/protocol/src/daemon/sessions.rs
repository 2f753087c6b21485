//! Sessions as clients of the daemon know them: open or closed, shared by all clients or one client's own.

use std::path::Path;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{Failure, Rule, Timestamp, daemon::models::SessionState, ids::SessionId, kernel::modes::ApprovalMode};

/// Maximum bytes of a working directory's path.
const CWD_BYTES_MAX: usize = 4096;
/// Maximum characters of a session's name. What follows them is cut off.
const DISPLAY_NAME_CHARS_MAX: usize = 256;
/// Sessions on a page of the list, unless the client requests another number.
pub const LIST_SIZE_DEFAULT: u32 = 20;
/// Maximum number of sessions on a page of the list.
pub const LIST_SIZE_MAX: u32 = 100;

/// Who gets the session that a client creates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SessionScope {
    /// All clients of the owner in the workspace share one.
    #[default]
    Single,
    /// Each request creates one.
    Thread,
}

enum_words!(SessionScope { Single => "single", Thread => "thread" });

/// What the daemon stores beside a session of the kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct DaemonSession {
    pub session: SessionId,
    pub tenant_id: String,
    /// The user who owns the session. Empty if it belongs to the whole tenant.
    pub owner: String,
    pub workspace: String,
    pub scope: SessionScope,
    pub model_id: Option<String>,
    pub language: Option<String>,
    pub output_language: Option<String>,
    /// How much the agent does without asking, by its name. `None`: it asks.
    pub approval_mode: Option<String>,
    pub opened_at: Timestamp,
    /// When a client closed it. A closed session can be loaded again.
    pub closed_at: Option<Timestamp>,
    /// When a server last had an event stream of it open.
    pub followed_at: Option<Timestamp>,
}

impl DaemonSession {
    /// How much the agent does without asking.
    pub fn approval_mode(&self) -> ApprovalMode {
        self.approval_mode.as_deref().and_then(ApprovalMode::parse).unwrap_or(ApprovalMode::Default)
    }

    /// The owner of sessions in the store. `None` if they belong to the whole tenant.
    pub fn owner(&self) -> Option<&str> {
        (!self.owner.is_empty()).then_some(&self.owner)
    }
}

/// The body of `POST /session`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OpenDaemonSession {
    /// The workspace that the server is bound to, if the client names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The model of the session. An unknown one does not fail the request; followers receive `model_switch_failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_service_id: Option<String>,
    /// `single` or `thread`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_scope: Option<String>,
}

impl OpenDaemonSession {
    pub fn scope(&self) -> Result<SessionScope, Failure> {
        let Some(text) = &self.session_scope else { return Ok(SessionScope::default()) };
        let unknown = || Failure::invalid(Rule::InvalidSessionScope, "sessionScope must be single or thread");
        SessionScope::parse(text).ok_or_else(unknown)
    }
}

/// The body of `POST /session/{sessionId}/load` and `/resume`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RestoreSession {
    /// The workspace that the server is bound to, if the client names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// A session that a client is attached to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttachedSession {
    pub session_id: String,
    /// Empty if the server is bound to no workspace.
    pub workspace_cwd: String,
    /// False: this request has opened the session.
    pub attached: bool,
    /// The id that the client sends with its next requests.
    pub client_id: String,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Whether a prompt waits or runs. Absent if this request has opened the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub has_active_prompt: Option<bool>,
}

/// A session that a client has loaded again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestoredSession {
    #[serde(flatten)]
    pub attached: AttachedSession,
    pub state: SessionState,
    /// The messages of the session that this one continues, as frames without ids. Absent if it continues none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Vec<Object>, required = false)]
    pub compacted_replay: Option<Vec<serde_json::Value>>,
    /// The id of the newest frame. A client that follows from id 0 receives the whole history.
    pub last_event_id: i64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct ListDaemonSessions {
    /// The `nextCursor` of the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// 1 to 100; 20 if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u32>,
    /// Another name of `size`, as the other lists of this server have it. Not both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

impl ListDaemonSessions {
    /// How many sessions a page has.
    pub fn page_size(&self) -> Result<u32, Failure> {
        if self.size.is_some() && self.limit.is_some() {
            return Err(Failure::invalid(Rule::PageLimit, "size and limit are the same: give one of them"));
        }
        let size = self.size.or(self.limit).unwrap_or(LIST_SIZE_DEFAULT);
        if !(1..=LIST_SIZE_MAX).contains(&size) {
            return Err(Failure::invalid(Rule::PageLimit, format!("size must be 1 to {LIST_SIZE_MAX}")));
        }
        Ok(size)
    }
}

/// A session of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ListedSession {
    pub session_id: String,
    pub workspace_cwd: String,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub display_name: Option<String>,
    /// Clients that are attached. A closed session has none.
    pub client_count: i64,
    pub has_active_prompt: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ListedSessions {
    pub sessions: Vec<ListedSession>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub next_cursor: Option<String>,
}

/// The body of `PATCH /session/{sessionId}/metadata`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateMetadata {
    /// The new name; an empty one removes it. What is over 256 characters is cut off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionMetadata {
    pub session_id: String,
    pub display_name: Option<String>,
}

/// A session's name as a client sent it, cut to its length. `None`: an empty one, which is none.
pub fn display_name(text: &str) -> Result<Option<String>, Failure> {
    let name: String = text.trim().chars().take(DISPLAY_NAME_CHARS_MAX).collect();
    if name.chars().any(char::is_control) {
        let message = "displayName must not have control characters";
        return Err(Failure::invalid(Rule::InvalidMetadata, message).detail("field", "displayName"));
    }
    let name = name.trim_end();
    Ok((!name.is_empty()).then(|| name.to_owned()))
}

/// Checks the form of a working directory's path.
pub fn check_cwd(cwd: &str) -> Result<&Path, Failure> {
    let path = Path::new(cwd);
    if cwd.len() > CWD_BYTES_MAX {
        return Err(Failure::invalid(Rule::InvalidCwd, format!("cwd is over {CWD_BYTES_MAX} bytes")));
    }
    if !path.is_absolute() || cwd.contains('\0') {
        return Err(Failure::invalid(Rule::InvalidCwd, "cwd must be an absolute path"));
    }
    Ok(path)
}

/// The response to a heartbeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionHeartbeat {
    pub session_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub client_id: Option<String>,
    /// Milliseconds since 1970.
    pub last_seen_at: i64,
}

/// The id of the last frame of the events up to this sequence number. Each event has room for two frames.
pub fn frame_id(session_seq: i64) -> i64 {
    2 * session_seq
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_and_empty_ones_are_none() {
        assert_eq!(display_name("  A plan ").unwrap().as_deref(), Some("A plan"));
        assert_eq!(display_name("").unwrap(), None);
        assert_eq!(display_name(&"é".repeat(300)).unwrap().unwrap().chars().count(), 256);
        assert_eq!(display_name("a\u{7}b").unwrap_err().rule_name(), Some("invalid-metadata"));
    }

    #[test]
    fn working_directories_are_absolute_and_short() {
        assert!(check_cwd("/home/ada").is_ok());
        for bad in ["", "src", "./src", &format!("/{}", "x".repeat(4096)), "/a\0b"] {
            assert_eq!(check_cwd(bad).unwrap_err().rule_name(), Some("invalid-cwd"), "{bad}");
        }
    }
}
