//! Capability manifests: what an agent claims it can do, and the scopes a person must grant for it.
//!
//! A manifest is read strictly ([`Checked::read`]), kept in one canonical form with its hash, and compared with the one
//! before it by [`diff`]. Nothing here knows who granted what.

mod canonical;
mod changes;
mod check;
mod compare;
pub mod diff;
mod extensions;
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Manifest {
    pub schema_version: String,
    /// The agent's own version. Nothing is decided by it.
    pub agent_version: String,
    pub tools: Vec<Tool>,
    pub permission_scopes: Vec<Scope>,
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Tool {
    pub name: String,
    pub description_i18n_key: String,
    /// Shown where no translation is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description_fallback: Option<String>,
    /// A JSON Schema (2020-12) of the tool's arguments.
    #[schema(value_type = Object)]
    pub input_schema: Value,
    pub permission_scope: String,
    /// The agent is of no use without it, so its scope cannot be declined.
    #[serde(default)]
    pub required: bool,
    #[serde(default = "timeout_ms")]
    pub timeout_ms: u64,
}

fn timeout_ms() -> u64 {
    TOOL_TIMEOUT_MS_DEFAULT
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Scope {
    pub id: String,
    pub label_i18n_key: String,
    /// Shown where no translation is known; needed unless the scope is one of the preset ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_fallback: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description_i18n_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description_fallback: Option<String>,
    pub sensitivity: Sensitivity,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CapabilityFlags {
    pub supports_streaming: bool,
    pub supports_artifacts: bool,
    pub supports_voice: bool,
    /// The agent may talk in groups. It may not call tools there.
    pub supports_group_chat: bool,
}

#[cfg(test)]
mod tests;
