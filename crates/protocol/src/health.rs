//! Health responses. They report what is ready and what is not, and never contain a secret.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use utoipa::ToSchema;

pub const SERVICE_ID: &str = "ostler";

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    pub service_id: String,
    /// `ok`, or `degraded` if the counts of `?deep=1` cannot be read.
    pub status: String,
    pub version: String,
    pub source_commit: String,
    /// The counts of `?deep=1`.
    #[serde(flatten)]
    #[schema(ignore)]
    pub counts: Map<String, Value>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Readiness {
    pub service_id: String,
    /// `ready`, `not-ready` or `draining`.
    pub status: String,
    pub version: String,
    pub source_commit: String,
    pub store: StoreReadiness,
    pub migrations: MigrationReadiness,
    pub durability: DurabilityReadiness,
    pub secret_refs: SecretRefReadiness,
    pub confinement: ConfinementReadiness,
    pub workspaces: WorkspaceReadiness,
    /// A member for each dialect that has something to report.
    #[serde(flatten)]
    #[schema(ignore)]
    pub dialects: Map<String, Value>,
}

impl Readiness {
    /// The member of a dialect, if the server has it.
    pub fn dialect<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_value(self.dialects.get(name)?.clone()).ok()
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoreReadiness {
    /// `sqlite` or `postgres`.
    pub engine: String,
    pub reachable: bool,
    /// Whether the last write, or a probe since, was written.
    #[serde(default = "assumed")]
    pub writable: bool,
    /// Why it is not reachable or not writable: `disk-full`, `disk-failed`, `read-only`, `out-of-memory`,
    /// `no-free-connection`, `starting`, `unreachable`, `denied`, `silent`, `failed`.
    #[serde(default)]
    pub reason: Option<String>,
    /// False for SQLite, which is one process by contract.
    pub multi_replica: bool,
}

/// Servers before this field existed did not report it.
fn assumed() -> bool {
    true
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigrationReadiness {
    /// Whether the schema is that of this server. While the store does not respond, both fields hold its last report.
    pub ready: bool,
    pub applied: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DurabilityReadiness {
    /// Whether a response means that the write survives power loss. While the store does not respond, this holds its
    /// last report.
    pub durable: bool,
    /// The weak settings found, by name and value.
    pub weak_settings: Vec<String>,
}

/// What agents that are programs of their own are held to, when this server starts their runners.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfinementReadiness {
    /// Whether a process of ours watches each, holds it to its limits and lets nothing outlive it.
    pub guarded: bool,
    /// Whether writes are confined to workspace, home and storage, and the data directory is hidden, unless a run's
    /// sandbox is `danger-full-access`.
    pub files_confined: bool,
    /// The version of Landlock in force, as far as this build uses it; 0 is none.
    pub landlock: u32,
    /// Whether each has a PID namespace: it sees no process but its own.
    pub isolated: bool,
    /// Whether the server runs as root. Its agents then have root's rights to files; a warning.
    pub root: bool,
    /// What holds a run to `network: disabled`. `codex-sandbox`: Codex holds its tools to it, and a run that nothing
    /// would hold to it is refused. The agents themselves must reach their providers.
    pub network: String,
}

impl ConfinementReadiness {
    pub fn of(guarded: bool, landlock: u32, isolated: bool, root: bool) -> Self {
        let landlock = if guarded { landlock } else { 0 };
        let files_confined = landlock > 0;
        Self { guarded, files_confined, landlock, isolated, root, network: "codex-sandbox".into() }
    }
}

/// What workspaces need from the system.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceReadiness {
    /// Whether there is a `git` on the server's PATH. Without it no repository is checked out, and what a turn changes in
    /// its workspace is unknown.
    pub git: bool,
    /// Why not, if not.
    pub reason: Option<String>,
}

/// Secrets are named, never shown.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretRefReadiness {
    pub redacted: bool,
    pub database_url: String,
    /// Where provider profiles' secrets are stored, and whether other servers of the same store see them: `local-files`
    /// of this server alone, `local-files-shared`, or `kubernetes-secrets`.
    pub provider_secrets: String,
}
