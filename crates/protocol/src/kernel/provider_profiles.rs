//! Provider profiles: which agent a backend profile runs, and with whose credential. Responses about a profile name its
//! secret and never show it. A profile never falls back to another one.

mod changes;
mod config;
mod config_problems;
mod credential;
mod destination;
mod owner;
mod prices;

use std::collections::BTreeMap;

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};
use utoipa::{IntoParams, ToSchema};

pub use changes::{ListProfileChanges, ProfileAction, ProfileChange, ProfileChangePage, changed_fields};
pub use config::{ProfileConfig, ProfileConfigFile, config_schema};
pub use credential::{AUTH, CONFIG, Credential, MODEL_CATALOG};
pub use destination::Destination;
pub use owner::ProfileOwner;
pub use prices::{Prices, TokensUsed};

use crate::{
    Failure, FailureKind, Rule, Timestamp,
    ids::{CommandId, RunId, RunnerJobId, ValidationId},
    kernel::{
        backends::secret_keys,
        policy::SecretRef,
        runs::{Terminal, TerminalStatus},
    },
};

/// Profiles that are always there, in the order they are listed; other slugs are dynamic.
pub const BUILT_IN: [&str; 5] = ["codex", "deepseek", "minimax-m3", "dsflash-go", "model"];

const SECRET_PREFIX: &str = "agentrun-v01-provider-";

/// The naming rule: the secret of a profile has exactly this name.
pub fn secret_name(profile: &str) -> String {
    format!("{SECRET_PREFIX}{profile}")
}

/// A reference to the profile's whole secret, as a run's scope carries it.
pub fn secret_ref(profile: &str) -> SecretRef {
    SecretRef { name: secret_name(profile), keys: secret_keys(profile).into_iter().map(String::from).collect() }
}

/// The agent behind a profile, as its config names it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "agent", rename_all = "kebab-case", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum AgentConfig {
    /// Plays the script in its prompt, inside the runner.
    Scripted,
    /// `codex app-server`, with `config.toml` and `auth.json` in its home.
    #[default]
    Codex,
    /// Any agent that speaks the Agent Client Protocol over stdio.
    Acp {
        /// The program and its arguments.
        command: Vec<String>,
        /// Folders of its home where it keeps its own account of a session. They outlive the runner.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        keep: Vec<String>,
        /// Requests beyond the protocol that it answers. Left out: as its program is known to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        extensions: Option<AgentExtensions>,
    },
    /// A model behind an OpenAI-compatible endpoint, called by the runner itself.
    Model { base_url: String, model: String },
}

/// A family of requests beyond the Agent Client Protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AgentExtensions {
    /// `qwen/status/…` and `qwen/control/…`.
    Qwen,
    /// None, whatever the program is.
    None,
}

impl AgentExtensions {
    /// Folders of the agent's home that all its sessions of a tenant share.
    pub fn shared_folders(self) -> &'static [&'static str] {
        match self {
            Self::Qwen => &[".qwen/extensions", ".qwen/extension-store", ".qwen/agents"],
            Self::None => &[],
        }
    }

    /// The family that a program is known for: Qwen Code, by its name or that of its package.
    fn of_command(command: &[String]) -> Option<Self> {
        let is_qwen = |word: &String| {
            let mut parts = word.split('/');
            word.contains("qwen-code/") || parts.next_back() == Some("qwen")
        };
        // The program, or its script if an interpreter runs it.
        command.iter().take(2).any(is_qwen).then_some(Self::Qwen)
    }
}

impl AgentConfig {
    /// The requests beyond its protocol that the agent answers. `None` if it answers none.
    pub fn extensions(&self) -> Option<AgentExtensions> {
        let Self::Acp { command, extensions, .. } = self else { return None };
        extensions.or_else(|| AgentExtensions::of_command(command)).filter(|family| *family != AgentExtensions::None)
    }

    /// Whether the agent is a program of its own, with business with files; the others live in their runner.
    pub fn is_program(&self) -> bool {
        matches!(self, Self::Codex | Self::Acp { .. })
    }

    /// Whether it confines its tools itself, in a way that ours would get into the way of.
    pub fn has_own_sandbox(&self) -> bool {
        matches!(self, Self::Codex)
    }

    /// The agent of a profile that has no config. `None` if the profile's name does not determine it.
    pub fn of_profile(profile: &str) -> Option<Self> {
        match profile {
            "scripted" => Some(Self::Scripted),
            "model" => None,
            _ => Some(Self::Codex),
        }
    }

    pub fn kind(&self) -> AgentKind {
        match self {
            Self::Scripted => AgentKind::Scripted,
            Self::Codex => AgentKind::Codex,
            Self::Acp { .. } => AgentKind::Acp,
            Self::Model { .. } => AgentKind::Model,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AgentKind {
    Scripted,
    Codex,
    Acp,
    Model,
    /// A runner elsewhere drives it (`runner.external_profiles`).
    External,
}

impl AgentKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scripted => "scripted",
            Self::Codex => "codex",
            Self::Acp => "acp",
            Self::Model => "model",
            Self::External => "external",
        }
    }
}

/// A profile as the API shows it. Callers who may use it and not manage it see no version, hash or trial.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderProfile {
    pub profile: String,
    /// The tenant that owns the profile; null if it is the operator's, which every tenant may use.
    #[serde(default)]
    pub tenant_id: Option<String>,
    pub built_in: bool,
    pub agent: AgentKind,
    /// The name of its secret, and the keys that are there; before there is one, the keys it needs.
    pub secret_ref: SecretRef,
    /// Whether a run of it finds everything that its agent needs.
    pub configured: bool,
    /// Whether a run of it can start: it is configured, and its program works on this server.
    #[serde(default)]
    pub ready: bool,
    /// The config was given another destination (server or command), so the stored credential was removed. It must be set
    /// again before the profile can be used.
    #[serde(default)]
    pub credential_dropped: bool,
    /// Changes with every change of its secret.
    pub resource_version: Option<String>,
    /// The end of the SHA-256 of `auth.json`: enough to distinguish two of them.
    pub credential_hash_suffix: Option<String>,
    /// The end of the SHA-256 of `config.toml`.
    pub config_hash_suffix: Option<String>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub updated_at: Option<Timestamp>,
    /// The latest trial.
    pub validation: Option<ValidationSummary>,
    /// Why a run of it would fail, as far as it is known: `secret-unavailable` when something is missing, else how the
    /// latest trial of this very secret failed.
    pub failure_kind: Option<FailureKind>,
    pub message: Option<String>,
    /// Of an external profile: when a runner last requested a job of it, since the server started.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_claim_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderProfileList {
    pub provider_profiles: Vec<ProviderProfile>,
}

/// Whose profile an operation is about.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ProfileScope {
    /// The tenant that owns the profile. Left out: the operator's for the operator, and otherwise the tenant of the token,
    /// which must have only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
}

/// A credential: the provider's key alone, or whole files. What is not given stays as it is.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PutCredential {
    /// The provider's key. It becomes `auth.json` with the one field `OPENAI_API_KEY`; other files may come with it.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "exposed")]
    #[schema(value_type = Option<String>, default = json!(null), write_only)]
    pub api_key: Option<SecretString>,
    /// Files by name, as text: `auth.json`, unless there is a key, and with it `config.toml` (and `model-catalog.json` for
    /// `dsflash-go`).
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "all_exposed")]
    #[schema(value_type = Option<BTreeMap<String, String>>, default = json!(null), write_only)]
    pub files: Option<BTreeMap<String, SecretString>>,
    /// Change it only if it still has this version, or, if this is empty, only if there is no such profile yet. The header
    /// `If-Match` means the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
}

/// A new `config.toml`. The credential stays if the config sends it to the same place as before, and is removed otherwise.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PutConfig {
    /// The text of `config.toml`: Codex's own, and the table `[ostler]` that names the agent.
    pub config: String,
    /// Change it only if the profile still has this version, or, if this is empty, only if there is no such profile yet. The
    /// header `If-Match` means the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
}

/// A profile's `config.toml`: the one file of its secret that can be read back.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProfileConfigText {
    pub profile: String,
    pub config: String,
    pub resource_version: String,
    pub config_hash_suffix: String,
}

/// The tenant, project and provider of a trial; the server chooses what is left out.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ValidateProfile {
    /// The tenant of the run: the caller's first when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ValidationStatus {
    Running,
    Passed,
    Failed,
}

impl ValidationStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Passed => "passed",
            Self::Failed => "failed",
        }
    }

    /// Only a terminal fact of the run determines how the trial went.
    pub fn of(terminal: Option<&Terminal>) -> Self {
        match terminal.map(|terminal| terminal.status) {
            None => Self::Running,
            Some(TerminalStatus::Completed) => Self::Passed,
            Some(_) => Self::Failed,
        }
    }
}

/// A trial, as its profile shows it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ValidationSummary {
    pub validation_id: ValidationId,
    pub status: ValidationStatus,
    pub failure_kind: Option<FailureKind>,
    /// The version of the secret that was tried.
    pub resource_version: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

/// A trial of a profile: an ordinary run, and what became of it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Validation {
    pub validation_id: ValidationId,
    pub profile: String,
    /// The tenant that owns the profile; null if it is the operator's.
    #[serde(default)]
    pub tenant_id: Option<String>,
    pub status: ValidationStatus,
    pub terminal_status: Option<TerminalStatus>,
    pub failure_kind: Option<FailureKind>,
    pub message: Option<String>,
    /// The version of the secret that was tried.
    pub resource_version: Option<String>,
    pub run_id: RunId,
    pub command_id: CommandId,
    pub runner_job_id: RunnerJobId,
    /// Where to ask again.
    pub poll: String,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

/// What is stored of a trial beside its run.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidationRecord {
    pub validation_id: ValidationId,
    pub profile: String,
    pub tenant_id: Option<String>,
    pub resource_version: Option<String>,
    pub run_id: RunId,
    pub command_id: CommandId,
    pub runner_job_id: RunnerJobId,
    pub created_at: Timestamp,
}

impl Validation {
    /// The trial, with the end of its run's command if it has one.
    pub fn of(record: ValidationRecord, terminal: Option<Terminal>) -> Self {
        let poll = format!("/api/v1/provider-profiles/{}/validations/{}", record.profile, record.validation_id);
        Self {
            validation_id: record.validation_id,
            profile: record.profile,
            tenant_id: record.tenant_id,
            status: ValidationStatus::of(terminal.as_ref()),
            terminal_status: terminal.as_ref().map(|terminal| terminal.status),
            failure_kind: terminal.as_ref().and_then(|terminal| terminal.failure_kind),
            message: terminal.and_then(|terminal| terminal.message),
            resource_version: record.resource_version,
            run_id: record.run_id,
            command_id: record.command_id,
            runner_job_id: record.runner_job_id,
            poll,
            created_at: record.created_at,
        }
    }

    pub fn summary(&self) -> ValidationSummary {
        ValidationSummary {
            validation_id: self.validation_id,
            status: self.status,
            failure_kind: self.failure_kind,
            resource_version: self.resource_version.clone(),
            created_at: self.created_at,
        }
    }
}

/// A refusal that names the profile.
pub(crate) fn unavailable(rule: Rule, profile: &str, message: impl Into<String>) -> Failure {
    Failure::rule(rule, message).detail("profile", profile)
}

/// A client that writes such a body sends it to the one server that is to store it.
fn exposed<S: Serializer>(secret: &Option<SecretString>, out: S) -> Result<S::Ok, S::Error> {
    secret.as_ref().map(ExposeSecret::expose_secret).serialize(out)
}

fn all_exposed<S: Serializer>(files: &Option<BTreeMap<String, SecretString>>, out: S) -> Result<S::Ok, S::Error> {
    let shown = |files: &BTreeMap<String, SecretString>| -> BTreeMap<String, String> {
        files.iter().map(|(name, text)| (name.clone(), text.expose_secret().to_owned())).collect()
    };
    files.as_ref().map(shown).serialize(out)
}
