//! Backends: which agent profiles this server can run, and what each needs.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Timestamp;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Backend {
    pub profile: String,
    pub backend_kind: String,
    pub protocol: String,
    pub transport: String,
    /// What is started for it. Empty: nothing, it runs within the runner.
    #[serde(default)]
    pub command: Vec<String>,
    #[serde(default)]
    pub isolation: Isolation,
    /// Keys a matching credential must offer. Empty: the profile needs none.
    pub required_secret_keys: Vec<String>,
    /// Whether this build can run it now.
    pub available: bool,
    pub capabilities: Vec<String>,
    /// The tenant that owns the profile; null if it is the operator's, which every tenant may use.
    #[serde(default)]
    pub tenant_id: Option<String>,
    /// Whether a run of the profile can start: its program works, and its config and credential are complete.
    #[serde(default)]
    pub ready: bool,
    /// Why it is not ready; for an external profile, when a runner last requested a job.
    #[serde(default)]
    pub message: Option<String>,
    /// Set if the server leaves the profile to runners elsewhere (`runner.external_profiles`).
    #[serde(default)]
    pub external: Option<ExternalBackend>,
    /// The runners that this server can run at once, for all its profiles together; null for an external profile, whose
    /// runners it does not know.
    #[serde(default)]
    pub capacity: Option<BackendCapacity>,
    /// Null for an external profile: the server cannot observe it.
    #[serde(default)]
    pub health: Option<BackendHealth>,
}

/// The places for runners, as of the response: those of this server, or of the cluster if runners are Kubernetes Jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackendCapacity {
    /// `runner.slots`; 0 if this server starts no runners. In a cluster `kubernetes.active_jobs_max`.
    pub runners_max: i64,
    /// Runner jobs that this server executes now; in a cluster, those that wait or run, whichever server accepted them.
    pub runners_active: i64,
}

/// Whether a run of a profile can start on this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum BackendHealth {
    /// It can.
    Healthy,
    /// It cannot; `message` gives the reason.
    Unavailable,
}

impl BackendHealth {
    pub fn of(ready: bool) -> Self {
        if ready { Self::Healthy } else { Self::Unavailable }
    }
}

/// A profile whose runs are claimed by runners elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalBackend {
    /// When a runner last requested a job of the profile from this server; null if none has since the server started.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_claim_at: Option<Timestamp>,
}

/// What a backend shares with no other run, whatever its profile. What confines its tools is in the readiness answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Isolation {
    /// The agent's home: `per-run`, made from its own profile and wiped afterwards, or `none`.
    pub home: String,
    /// `own-profile`: no other profile's credential is ever used in its place; `none`: it has none.
    pub credential: String,
    /// `own-group`: the agent and all it starts are stopped together; `in-runner`: there is no process but the runner.
    pub process: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackendList {
    pub backends: Vec<Backend>,
    /// What Codex's profiles run.
    #[serde(default)]
    pub codex: CodexProgram,
}

/// The Codex program of this server, as found when a client first requested it. Of runners in pods nothing is known but their image.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CodexProgram {
    /// The native program; null where there is none.
    pub program: Option<String>,
    /// Null: it does not work.
    pub version: Option<String>,
    /// What is wrong with it.
    pub problem: Option<String>,
    /// The image of the pods in which Codex must be; null if runners use the program of the server's machine.
    #[serde(default)]
    pub image: Option<String>,
}

impl CodexProgram {
    /// Whether nothing is known that keeps it from starting.
    pub fn is_available(&self) -> bool {
        self.version.is_some() || self.image.is_some()
    }
}

/// Profiles that speak Codex over stdio and come with the product; other slugs are dynamic.
const CODEX_PROFILES: [&str; 4] = ["codex", "deepseek", "minimax-m3", "dsflash-go"];

fn isolation(home: &str, credential: &str, process: &str) -> Isolation {
    Isolation { home: home.into(), credential: credential.into(), process: process.into() }
}

/// The built-in profiles, in the order they are listed.
pub fn built_in() -> Vec<Backend> {
    let scripted = Backend {
        profile: "scripted".into(),
        backend_kind: "scripted".into(),
        protocol: "ostler-script".into(),
        transport: "in-process".into(),
        command: vec![],
        isolation: isolation("none", "none", "in-runner"),
        required_secret_keys: vec![],
        available: true,
        capabilities: ["turn", "steer", "interrupt", "permission", "repeat"].map(String::from).to_vec(),
        ..Backend::default()
    };
    let codex = CODEX_PROFILES.map(|profile| Backend {
        profile: profile.into(),
        backend_kind: "codex-app-server-stdio".into(),
        protocol: "codex-app-server-jsonrpc-stdio".into(),
        transport: "stdio".into(),
        command: ["codex", "app-server"].map(String::from).to_vec(),
        isolation: isolation("per-run", "own-profile", "own-group"),
        required_secret_keys: secret_keys(profile).into_iter().map(String::from).collect(),
        available: false,
        capabilities: ["turn", "steer", "interrupt", "permission", "resume"].map(String::from).to_vec(),
        ..Backend::default()
    });
    let model = Backend {
        profile: "model".into(),
        backend_kind: "model".into(),
        protocol: "openai-chat-completions".into(),
        transport: "https".into(),
        command: vec![],
        isolation: isolation("per-run", "own-profile", "in-runner"),
        // A model server of one's own wants none.
        required_secret_keys: vec![],
        available: true,
        capabilities: ["turn", "steer", "interrupt", "repeat"].map(String::from).to_vec(),
        ..Backend::default()
    };
    std::iter::once(scripted).chain(codex).chain([model]).collect()
}

/// The keys a credential of this profile carries.
pub fn secret_keys(profile: &str) -> Vec<&'static str> {
    match profile {
        "dsflash-go" => vec!["auth.json", "config.toml", "model-catalog.json"],
        _ => vec!["auth.json", "config.toml"],
    }
}
