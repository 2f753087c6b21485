//! Status cells: one line of a diagnosis, as clients show it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CellStatus {
    Ok,
    Warning,
    Error,
    /// Does not apply here, or is switched off.
    Disabled,
    /// Known only while an agent runs, and none does.
    NotStarted,
    Unknown,
}

/// What is wrong. Clients know this list, so that it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CellErrorKind {
    MissingBinary,
    BlockedEgress,
    AuthEnvError,
    InitTimeout,
    ProtocolError,
    MissingFile,
    ParseError,
    StatFailed,
    BudgetExhausted,
    McpBudgetWouldExceed,
    McpServerSpawnFailed,
    InvalidConfig,
    PromptDeadlineExceeded,
    WriterIdleTimeout,
}

/// A problem of a snapshot as a whole, such as a file that cannot be read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StatusCell {
    pub kind: String,
    pub status: CellStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error_kind: Option<CellErrorKind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub hint: Option<String>,
}

impl StatusCell {
    pub fn error(kind: &str, error_kind: CellErrorKind, error: impl Into<String>) -> Self {
        Self {
            kind: kind.to_owned(),
            status: CellStatus::Error,
            error: Some(error.into()),
            error_kind: Some(error_kind),
            hint: None,
        }
    }
}

/// A part of the environment that the server and its agents run in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EnvironmentKind {
    Runtime,
    Platform,
    Sandbox,
    Proxy,
    EnvVar,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentCell {
    pub kind: EnvironmentKind,
    pub name: String,
    pub status: CellStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub present: Option<bool>,
    /// Absent for environment variables, whose values may be secrets. A proxy is reduced to its host and port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub value: Option<String>,
}

impl EnvironmentCell {
    /// A fact with a value that every client may read.
    pub fn fact(kind: EnvironmentKind, name: &str, value: impl Into<String>) -> Self {
        Self { kind, name: name.to_owned(), status: CellStatus::Ok, present: None, value: Some(value.into()) }
    }

    /// Whether something is there.
    pub fn presence(kind: EnvironmentKind, name: &str, present: bool) -> Self {
        let status = if present { CellStatus::Ok } else { CellStatus::Disabled };
        Self { kind, name: name.to_owned(), status, present: Some(present), value: None }
    }
}

/// Where a check was made: by the server, or for the agent behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CellLocality {
    Daemon,
    Acp,
}

/// A check that is made before a prompt could fail because of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreflightCell {
    pub kind: String,
    pub status: CellStatus,
    pub locality: CellLocality,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error_kind: Option<CellErrorKind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub hint: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<Object>)]
    pub detail: Option<Map<String, Value>>,
}

impl PreflightCell {
    pub fn new(kind: &str, locality: CellLocality, status: CellStatus) -> Self {
        let (error, error_kind, hint, detail) = (None, None, None, None);
        Self { kind: kind.to_owned(), status, locality, error, error_kind, hint, detail }
    }

    #[must_use]
    pub fn failed(self, error_kind: CellErrorKind, error: impl Into<String>) -> Self {
        Self { error: Some(error.into()), error_kind: Some(error_kind), ..self }
    }

    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    #[must_use]
    pub fn detail(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.detail.get_or_insert_default().insert(name.to_owned(), value.into());
        self
    }
}
