//! Snapshots of the workspace that a server is bound to: its environment, its checks, its providers; and how it is initialised.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::cells::{CellStatus, EnvironmentCell, PreflightCell};

/// The shape of snapshots.
pub const SNAPSHOT_VERSION: u32 = 1;

/// `POST /workspace/init`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct InitWorkspace {
    /// Whether a memory file that has content is overwritten.
    #[schema(nullable = false)]
    pub force: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum InitAction {
    Created,
    Overwrote,
    /// There is a memory file without content, which was left as it is.
    Noop,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkspaceInitialized {
    pub path: String,
    pub action: InitAction,
}

/// `GET /workspace/env`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentStatus {
    pub v: u32,
    pub workspace_cwd: String,
    pub initialized: bool,
    /// Whether a process of the agent runs beside the turns.
    pub acp_channel_live: bool,
    pub cells: Vec<EnvironmentCell>,
}

/// `GET /workspace/preflight`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreflightStatus {
    pub v: u32,
    pub workspace_cwd: String,
    pub initialized: bool,
    /// Whether a process of the agent runs beside the turns.
    pub acp_channel_live: bool,
    pub cells: Vec<PreflightCell>,
}

/// `GET /workspace/providers`. A model is a backend profile; profiles of one kind of backend are one provider.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProvidersStatus {
    pub v: u32,
    pub workspace_cwd: String,
    pub initialized: bool,
    /// What new sessions use. Absent if the server has no such profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub current: Option<CurrentProvider>,
    pub providers: Vec<ModelProvider>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CurrentProvider {
    pub auth_type: String,
    pub model_id: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelProvider {
    /// Always `model_provider`.
    pub kind: String,
    /// `ok` if a run of one of its models can start.
    pub status: CellStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<String>,
    /// The kind of backend.
    pub auth_type: String,
    pub current: bool,
    pub models: Vec<ProviderModel>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderModel {
    /// The backend profile.
    pub model_id: String,
    pub base_model_id: String,
    pub name: String,
    /// Why a run of it cannot start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub description: Option<String>,
    pub is_current: bool,
    /// Always false: no model is added while the server runs without being stored.
    pub is_runtime: bool,
}
