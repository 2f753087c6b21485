//! Capability manifests: what an agent claims it can do, and the scopes a person must grant for it.
//!
//! A manifest is read strictly ([`Checked::read`]), kept in one canonical form with its hash, and compared with the one
//! before it by [`diff`]. Nothing here knows who granted what.

mod canonical;
mod changes;
mod check;
mod compare;
pub mod diff;
mod document;
mod extensions;
mod fields;
mod keywords;
mod outline;
mod pointer;
mod rules;
mod schema;
pub mod scopes;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

pub use canonical::Canonical;
pub use changes::Change;
pub use check::{Checked, Warning};
pub use diff::ManifestDiff;
pub use document::json_schema;
pub use rules::{DiffRule, DiffRuleRow, Effect, RuleOrigin};
pub use scopes::Sensitivity;

/// The whole manifest, in its canonical form.
pub const MANIFEST_BYTES_MAX: usize = 128 * 1024;
/// From this size on a manifest is taken with a warning.
pub const MANIFEST_BYTES_WARN: usize = 64 * 1024;
/// The only format there is. It determines which parser reads the rest.
pub const SCHEMA_VERSION: &str = "1.0";
/// Tools in a manifest. A person is shown every one of them.
pub const TOOLS_MAX: usize = 256;
/// Scopes in a manifest. Each receipt of a consent holds the texts of all of them.
pub const SCOPES_MAX: usize = 100;
pub const TOOL_TIMEOUT_MS_DEFAULT: u64 = 10_000;
pub const TOOL_TIMEOUT_MS_MAX: u64 = 600_000;
pub const TEXT_KEY_BYTES_MAX: usize = 128;
pub const SCOPE_ID_BYTES_MAX: usize = 64;
/// A label that replaces a missing translation.
pub const LABEL_BYTES_MAX: usize = 200;
/// A description that replaces a missing translation.
pub const DESCRIPTION_BYTES_MAX: usize = 1_000;

/// What an agent claims it can do, and the scopes that people must grant for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Manifest {
    /// The version of this format.
    #[schema(pattern = r"^1\.0$")]
    pub schema_version: String,
    /// The agent's own version, such as `1.0.0`. Nothing is decided by it.
    #[schema(max_length = 128)]
    pub agent_version: String,
    /// What the agent can do, each as a tool.
    #[schema(max_items = 256)]
    pub tools: Vec<Tool>,
    /// The permissions that the tools need.
    #[schema(max_items = 100)]
    pub permission_scopes: Vec<Scope>,
    /// What clients can use the agent for.
    #[serde(default)]
    pub capability_flags: CapabilityFlags,
}

impl Manifest {
    /// What an agent declares that has not declared anything.
    const NOTHING: Self = Self {
        schema_version: String::new(),
        agent_version: String::new(),
        tools: vec![],
        permission_scopes: vec![],
        capability_flags: CapabilityFlags {
            supports_streaming: false,
            supports_artifacts: false,
            supports_voice: false,
            supports_group_chat: false,
        },
    };
}

/// Something that the agent can do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = ManifestTool)]
pub struct Tool {
    /// The name by which the agent calls it. No other tool has it.
    #[schema(pattern = "^[a-z][a-z0-9_]{1,31}$")]
    pub name: String,
    /// The key under which an application that shows the manifest finds a translated description.
    #[schema(max_length = 128, pattern = "^[a-z0-9_-]+(\\.[a-z0-9_-]+)*$")]
    pub description_i18n_key: String,
    /// The description that is shown where the key has no translation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 1000, min_length = 1, format = "visible-text")]
    pub description_fallback: Option<String>,
    /// A JSON Schema (2020-12) of the tool's arguments.
    #[schema(value_type = Object)]
    pub input_schema: Value,
    /// The id of one of `permission_scopes`.
    #[schema(max_length = 64, pattern = "^[a-z][a-z0-9:_.-]*$")]
    pub permission_scope: String,
    /// The agent is of no use without it, so its scope cannot be declined.
    #[serde(default)]
    pub required: bool,
    /// How long a call may take, in milliseconds.
    #[serde(default = "timeout_ms")]
    #[schema(minimum = 1, maximum = 600_000, default = 10_000)]
    pub timeout_ms: u64,
}

fn timeout_ms() -> u64 {
    TOOL_TIMEOUT_MS_DEFAULT
}

/// A permission that a person grants or declines. The preset ones are `notification:send`, `filesystem:read`,
/// `clipboard:read`, `location:read`, `calendar:read` and `calendar:write`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = ManifestScope)]
pub struct Scope {
    /// `<domain>:<action>`.
    #[schema(max_length = 64, pattern = "^[a-z][a-z0-9:_.-]*$")]
    pub id: String,
    /// The key under which an application that shows the manifest finds a translated label.
    #[schema(max_length = 128, pattern = "^[a-z0-9_-]+(\\.[a-z0-9_-]+)*$")]
    pub label_i18n_key: String,
    /// The label that is shown where the key has no translation; needed unless the scope is one of the preset ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 200, min_length = 1, format = "visible-text")]
    pub label_fallback: Option<String>,
    /// The key under which an application that shows the manifest finds a translated description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 128, pattern = "^[a-z0-9_-]+(\\.[a-z0-9_-]+)*$")]
    pub description_i18n_key: Option<String>,
    /// The description that is shown where the key has no translation; needed unless the scope is one of the preset ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 1000, min_length = 1, format = "visible-text")]
    pub description_fallback: Option<String>,
    pub sensitivity: Sensitivity,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CapabilityFlags {
    /// The agent streams its replies.
    pub supports_streaming: bool,
    /// The agent sends artifacts, such as files.
    pub supports_artifacts: bool,
    /// The agent can be talked to.
    pub supports_voice: bool,
    /// The agent may talk in groups. It may not call tools there.
    pub supports_group_chat: bool,
}

#[cfg(test)]
mod tests;
