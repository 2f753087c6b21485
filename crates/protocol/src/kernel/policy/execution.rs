//! What a run is allowed: the execution policy, its budgets and the secrets it may reference.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{kernel::permissions::PermissionStrategy, limits::PERMISSIONS_OPEN_MAX};

/// From narrow to wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Sandbox {
    ReadOnly,
    WorkspaceWrite,
    DangerFullAccess,
}

/// From narrow to wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Approval {
    Untrusted,
    OnRequest,
    Never,
}

/// From narrow to wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    Disabled,
    Enabled,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecutionPolicy {
    pub sandbox: Sandbox,
    pub approval: Approval,
    pub timeout_ms: i64,
    pub network: Network,
    pub secret_scope: SecretScope,
    /// Whose answer to a permission request counts. Absent: as the server is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub permission_strategy: Option<PermissionStrategy>,
    /// How long a permission request waits at most. Absent: as long as the backend wants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub permission_timeout_ms: Option<i64>,
    /// How many permission requests may be open at once. Absent: 32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_open_permissions: Option<i64>,
    #[serde(flatten)]
    pub budgets: Budgets,
}

impl ExecutionPolicy {
    /// How many permission requests of the run may be open at once.
    pub fn open_permissions_max(&self) -> usize {
        self.max_open_permissions.and_then(|max| usize::try_from(max).ok()).unwrap_or(PERMISSIONS_OPEN_MAX)
    }
}

/// Ceilings that interrupt the agent when they are reached. Absent means no ceiling.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Budgets {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_turns: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_tokens: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_tool_calls: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_cost_usd: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretScope {
    pub allow_credential_echo: bool,
    pub provider_credentials: Vec<ProviderCredential>,
    pub tool_credentials: Vec<ToolCredential>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderCredential {
    pub profile: String,
    pub secret_ref: SecretRef,
}

/// A reference to a secret; never its value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SecretRef {
    pub name: String,
    #[serde(default)]
    pub keys: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolCredential {
    pub tool: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub secret_ref: Option<SecretRef>,
}

/// What a caller requests; what is absent is completed. Nothing may be wider than this server's ceiling.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
#[schema(as = AskedPolicy)]
pub struct RequestedPolicy {
    pub(super) sandbox: Option<Sandbox>,
    pub(super) approval: Option<Approval>,
    pub(super) timeout_ms: Option<i64>,
    pub(super) network: Option<Network>,
    pub(super) secret_scope: SecretScope,
    /// Only where the server's own strategy is `first-responder`.
    pub(super) permission_strategy: Option<PermissionStrategy>,
    pub(super) permission_timeout_ms: Option<i64>,
    /// At most 64.
    pub(super) max_open_permissions: Option<i64>,
    pub(super) max_turns: Option<i64>,
    pub(super) max_tokens: Option<i64>,
    pub(super) max_tool_calls: Option<i64>,
    pub(super) max_cost_usd: Option<f64>,
}
