//! How runs are executed: runners, the storage of sessions, workspaces, confinement, and the programs of backends.

use std::path::PathBuf;

use ostler_protocol::{Failure, Rule, ids::slug, kernel::runner_jobs::Launcher, limits::LEASE_MS_DEFAULT};
use ostler_runner::RetryPolicy;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RunnerSection {
    /// How runners are started: `resident` (inside the server's process), `process` (a child process for
    /// each) or `kubernetes` (a Job for each, see `kubernetes`).
    pub launcher: Launcher,
    /// Profiles that runners elsewhere drive: this server starts none for them, and their runs need no credential.
    pub external_profiles: Vec<String>,
    /// Maximum number of concurrent runners; further jobs wait. With 0 this server starts none.
    pub slots: usize,
    /// Let child processes continue when the server stops; the next server recognises them by their leases.
    pub keep_on_stop: bool,
    /// Variables of the server's environment that child processes inherit, in addition to a fixed list of
    /// harmless ones.
    pub pass_environment: Vec<String>,
    /// How long a runner's lease lasts without a heartbeat.
    pub lease_ms: i64,
    /// How long a runner whose backend is a program (Codex, ACP) keeps its run and the program for another
    /// turn.
    pub idle_ms: u64,
    /// How often the server checks for expired leases and deadlines.
    pub sweep_interval_ms: u64,
    /// A job whose launcher sent no heartbeat for this long is taken over by another launcher.
    pub job_silence_ms: i64,
    /// The namespace that is reported for jobs without one.
    pub namespace: String,
    /// The program that guards backends: by default the server's own. Cannot be set in a file.
    #[serde(skip)]
    pub guard: Option<PathBuf>,
}

impl Default for RunnerSection {
    fn default() -> Self {
        Self {
            launcher: Launcher::Resident,
            external_profiles: vec![],
            slots: 64,
            keep_on_stop: false,
            pass_environment: vec![],
            lease_ms: LEASE_MS_DEFAULT,
            idle_ms: 600_000,
            sweep_interval_ms: 500,
            job_silence_ms: 30_000,
            namespace: "local".into(),
            guard: None,
        }
    }
}

impl RunnerSection {
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.launcher == Launcher::External {
            let message = "runner.launcher is resident, process or kubernetes; runner.external_profiles names the profiles of \
                runners elsewhere";
            return Err(Failure::invalid(Rule::Config, message));
        }
        if self.launcher == Launcher::Kubernetes && !cfg!(feature = "kubernetes") {
            let message =
                "this build of the server has no launcher for Kubernetes; build it with `--features kubernetes`";
            return Err(Failure::invalid(Rule::Config, message));
        }
        self.external_profiles.iter().try_for_each(|profile| slug("runner.external_profiles", profile).map(drop))
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SessionsSection {
    /// How long a session's storage is kept after its last use; if unset, it never expires.
    pub storage_ttl_ms: Option<i64>,
    /// How often the server deletes expired session storage and unused workspaces.
    pub gc_interval_ms: u64,
}

impl Default for SessionsSection {
    fn default() -> Self {
        Self { storage_ttl_ms: None, gc_interval_ms: 300_000 }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WorkspacesSection {
    /// Directories below which a run may choose its workspace (`{"kind": "local"}`); none by default.
    pub roots: Vec<String>,
    /// Protocols by which repositories may be fetched (`{"kind": "git"}`): `https`, `http`, `ssh`, `git`,
    /// `file`.
    pub git_protocols: Vec<String>,
    /// Time limit of each git command.
    pub git_timeout_ms: u64,
    /// How long an idle run keeps its checkout. The checkout of a run that has ended is deleted by the next
    /// sweep.
    pub keep_ms: i64,
}

impl Default for WorkspacesSection {
    fn default() -> Self {
        Self { roots: vec![], git_protocols: vec!["https".into()], git_timeout_ms: 120_000, keep_ms: 86_400_000 }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConfinementSection {
    /// Confine programs to their workspace, home and storage, and deny them the files in the data directory, if the kernel
    /// has Landlock. They can still list the names of its files. A run with `danger-full-access` is never confined.
    pub landlock: bool,
    /// Give each program its own PID namespace, if the system allows it, so that it sees only its own
    /// processes.
    pub namespaces: bool,
    /// Address space of each process of a backend; if unset, no limit. Node programs reserve far more than they
    /// use.
    pub memory_bytes: Option<u64>,
    /// CPU time of each process of a backend; if unset, no limit.
    pub cpu_seconds: Option<u64>,
    /// Size of a file that a backend writes; if unset, no limit.
    pub file_bytes: Option<u64>,
    /// Open files of each process of a backend; if unset, the system's limit.
    pub open_files: Option<u64>,
    /// Total processes of the user that backends run as; if unset, the system's limit.
    pub processes: Option<u64>,
}

impl Default for ConfinementSection {
    fn default() -> Self {
        Self {
            landlock: true,
            namespaces: true,
            memory_bytes: None,
            cpu_seconds: None,
            file_bytes: Some(8 * 1024 * 1024 * 1024),
            open_files: Some(4_096),
            processes: None,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AgentsSection {
    /// Codex's native program; by default the one on the PATH, or inside the npm package there.
    #[schema(value_type = Option<String>)]
    pub codex: Option<PathBuf>,
    /// A turn fails when its model provider cannot be reached for this long, or when an ACP program produces
    /// nothing for this long after a prompt.
    pub provider_unreachable_ms: u64,
    /// Delay before a rate-limiting model provider is tried again; it doubles with each of a few retries.
    pub provider_later_ms: u64,
}

impl Default for AgentsSection {
    fn default() -> Self {
        let RetryPolicy { unreachable_ms, later_ms } = RetryPolicy::default();
        Self { codex: None, provider_unreachable_ms: unreachable_ms, provider_later_ms: later_ms }
    }
}

impl AgentsSection {
    pub fn patience(&self) -> RetryPolicy {
        RetryPolicy { unreachable_ms: self.provider_unreachable_ms, later_ms: self.provider_later_ms }
    }
}
