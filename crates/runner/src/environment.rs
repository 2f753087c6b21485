//! The environment of a backend: the paths, limits and rules that it works with. The launcher prepares it before the
//! runner starts and removes it afterwards. A runner sees paths only, never where they came from.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
};

use ostler_protocol::{
    Failure, FailureKind, Rule,
    kernel::{
        policy::Sandbox,
        provider_profiles::{AgentConfig, Prices},
    },
    outgoing::OutgoingRules,
    redaction::Redactor,
};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};

use crate::{
    backend::turn::TurnEnd,
    guard::{Guard, Guarded, Order, Reach, TOOL_LANDLOCK_LEVEL_MIN, landlock_level},
    resource_bundle::BundleOrder,
    text_cutter::TextCutter,
    tools::OfferedMcpServer,
};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendEnvironment {
    #[serde(rename = "agent")]
    pub backend: AgentConfig,
    /// The backend's own executable, where the backend is a program that is not on the PATH.
    pub program: Option<PathBuf>,
    /// The directory the backend works in. `None` if it uses no files.
    pub workspace: Option<PathBuf>,
    /// A directory of its own for the backend's settings and credentials, wiped when the runner is gone.
    pub home: Option<PathBuf>,
    /// Where the backend stores its own record of the session. It outlives the runner.
    pub storage: Option<PathBuf>,
    /// Where the runner tracks changes of the workspace. The backend has no access to it.
    pub changes: Option<PathBuf>,
    #[serde(rename = "patience")]
    pub retry_policy: RetryPolicy,
    /// The prices of the models, as far as the profile gives them.
    pub prices: Prices,
    /// Set if the environment could not be prepared: every turn fails with this.
    #[serde(rename = "lacks")]
    pub unavailable: Option<Unavailable>,
    /// The guard of the backend's program. `None` if it runs unguarded.
    pub guard: Option<Guard>,
    /// What a confined backend must not read, except its own directories in there.
    pub hidden: Vec<PathBuf>,
    /// Where the runner may connect to for the backend, if the profile is not the operator's. `None` if it may connect to
    /// any address that the profile names.
    pub outgoing: Option<OutgoingRules>,
    /// MCP servers that the backend may use.
    #[serde(default)]
    pub mcp_servers: Vec<OfferedMcpServer>,
    /// Tools that the backend must not use, by the names under which its model calls them.
    #[serde(default)]
    pub disabled_tools: Vec<String>,
    /// With which a program of this run calls the server's tools. `None` if it gets none of them.
    #[serde(default, serialize_with = "expose_token")]
    pub tool_token: Option<SecretString>,
    /// Short-lived variables of the backend's tools. Their values are removed from everything that the runner reports.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", serialize_with = "expose_values")]
    pub variables: BTreeMap<String, SecretString>,
    /// Files that the runner places into the workspace before the backend starts. `None` if the run names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_bundle: Option<BundleOrder>,
    /// The repository that the runner checks out as the workspace. Its `reference` is the `workspaceRef` of the run. `None` if the
    /// workspace is prepared already, or is to be empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkout: Option<BundleOrder>,
    /// Confine the tools of Codex by Landlock: the system, as in a pod, does not allow the namespaces of its own sandbox.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub landlock_tools: bool,
}

/// The token is serialised in clear: the reader is the runner that it is for.
fn expose_token<S: Serializer>(token: &Option<SecretString>, out: S) -> Result<S::Ok, S::Error> {
    match token {
        Some(token) => out.serialize_some(token.expose_secret()),
        None => out.serialize_none(),
    }
}

/// In clear, for the same reason.
fn expose_values<S: Serializer>(values: &BTreeMap<String, SecretString>, out: S) -> Result<S::Ok, S::Error> {
    out.collect_map(values.iter().map(|(name, value)| (name, value.expose_secret())))
}

/// How long a backend retries a model provider that is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RetryPolicy {
    /// A provider that cannot be reached is given up after this.
    pub unreachable_ms: u64,
    /// The pause before a provider that asked us to come back later is called again. It doubles each time.
    pub later_ms: u64,
}

/// How often a provider that asked us to come back later is called again in one turn.
const LATER_RETRIES_MAX: u32 = 3;

impl RetryPolicy {
    /// The pause before the next call of a provider that asked us to come back later. `None` after the last retry.
    pub(crate) fn later_pause_ms(self, retries: u32) -> Option<u64> {
        (retries < LATER_RETRIES_MAX).then(|| self.later_ms.saturating_mul(1 << retries))
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { unreachable_ms: 120_000, later_ms: 20_000 }
    }
}

/// Why an environment could not be prepared. Its turns fail with this.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Unavailable {
    pub failure_kind: FailureKind,
    #[serde(default, deserialize_with = "Rule::deserialize_known", skip_serializing_if = "Option::is_none")]
    pub rule: Option<Rule>,
    pub message: String,
}

impl Unavailable {
    /// The end of every turn in the environment.
    pub(crate) fn end(&self) -> TurnEnd {
        TurnEnd::failed(self.failure_kind, self.message.clone()).with_rule(self.rule)
    }
}

impl From<Failure> for Unavailable {
    fn from(failure: Failure) -> Self {
        Self { failure_kind: failure.kind, rule: failure.broken_rule(), message: failure.message }
    }
}

impl BackendEnvironment {
    /// An environment for a backend that needs nothing.
    pub fn bare(backend: AgentConfig) -> Self {
        Self {
            backend,
            program: None,
            workspace: None,
            home: None,
            storage: None,
            changes: None,
            retry_policy: RetryPolicy::default(),
            prices: Prices::default(),
            unavailable: None,
            guard: None,
            hidden: vec![],
            outgoing: None,
            mcp_servers: vec![],
            disabled_tools: vec![],
            tool_token: None,
            variables: BTreeMap::new(),
            resource_bundle: None,
            checkout: None,
            landlock_tools: false,
        }
    }

    /// An environment that could not be prepared.
    pub fn unavailable(backend: AgentConfig, failure: Failure) -> Self {
        Self { unavailable: Some(failure.into()), ..Self::bare(backend) }
    }

    /// The short-lived variables, for a program that has no other way to give them to its tools. The server has checked that their
    /// names are those of credentials.
    pub(crate) fn program_variables(&self) -> impl Iterator<Item = (OsString, OsString)> {
        self.variables.iter().map(|(name, value)| (name.into(), value.expose_secret().into()))
    }

    /// The short-lived variables in clear, for a program that takes them in its settings and gives them to its tools only.
    pub(crate) fn tool_variables(&self) -> BTreeMap<&str, &str> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.expose_secret())).collect()
    }

    /// Removes the values of the variables, and the credentials of repositories, from reports. `None` if there are none.
    pub fn redactor(&self) -> Option<Redactor> {
        let credentials =
            self.resource_bundle.iter().chain(&self.checkout).filter_map(|bundle| bundle.credential.as_ref());
        let passwords = credentials.map(|credential| &credential.password);
        let values: Vec<&str> = self.variables.values().chain(passwords).map(ExposeSecret::expose_secret).collect();
        (!values.is_empty()).then(|| Redactor::new(&values))
    }

    /// Cuts what the backend reports, without the values that [`Self::redactor`] removes.
    pub(crate) fn text_cutter(&self) -> TextCutter {
        self.redactor().map(TextCutter::new).unwrap_or_default()
    }

    /// The home that a backend's program needs.
    pub(crate) fn require_home(&self) -> Result<&Path, TurnEnd> {
        let absent = || TurnEnd::failed(FailureKind::SecretUnavailable, "the profile has no home for its agent");
        self.home.as_deref().ok_or_else(absent)
    }

    /// The directory a backend's program works in. Never its home: the program could then change its own settings.
    pub(crate) fn require_workspace(&self) -> Result<&Path, TurnEnd> {
        let absent = || TurnEnd::failed(FailureKind::InfraFailed, "the agent was given no workspace");
        self.workspace.as_deref().ok_or_else(absent)
    }

    /// Links folders of the session's storage, if it has one, into the backend's home, where the backend looks for them.
    pub(crate) fn link_storage<'a>(&self, folders: impl IntoIterator<Item = &'a str>) -> Result<(), TurnEnd> {
        let Some(storage) = &self.storage else { return Ok(()) };
        let home = self.require_home()?;
        let linked = folders.into_iter().try_for_each(|folder| link_folder(&storage.join(folder), &home.join(folder)));
        linked.map_err(|error| {
            let message = format!("the session's storage cannot be used: {}", error.kind());
            TurnEnd::failed(FailureKind::InfraFailed, message)
        })
    }

    /// The guard of the backend's program in a run with this sandbox.
    pub(crate) fn guarded(&self, sandbox: Sandbox) -> Option<Guarded> {
        let guard = self.guard.as_ref()?;
        // Codex confines its tools itself, by namespaces that cannot be created from within Landlock.
        let confined = guard.landlock && !self.backend.has_own_sandbox();
        let reach = self.reach(sandbox).filter(|_| confined);
        let order = Order { limits: guard.limits, reach, runner_pid: std::process::id(), isolation: guard.isolation };
        Some(Guarded { guard: guard.program.clone(), order })
    }

    /// The guard that confines the tools of Codex in place of its own sandbox. `None` if Codex confines them itself, because it can
    /// or because the kernel's Landlock is missing or too old.
    pub(crate) fn tool_guard(&self, sandbox: Sandbox) -> Option<&Guard> {
        let guard = self.guard.as_ref().filter(|guard| self.landlock_tools && guard.landlock)?;
        (sandbox != Sandbox::DangerFullAccess && landlock_level() >= TOOL_LANDLOCK_LEVEL_MIN).then_some(guard)
    }

    fn reach(&self, sandbox: Sandbox) -> Option<Reach> {
        let mut writable: Vec<_> = [&self.home, &self.storage].into_iter().flatten().cloned().collect();
        let mut readable = vec![];
        match sandbox {
            Sandbox::DangerFullAccess => return None,
            Sandbox::WorkspaceWrite => writable.extend(self.workspace.clone()),
            Sandbox::ReadOnly => readable.extend(self.workspace.clone()),
        }
        // A `/tmp` of its own, not the shared one.
        let tmp = self.home.as_ref().map(|home| home.join("tmp"));
        Some(Reach { writable, readable, hidden: self.hidden.clone(), tmp })
    }
}

fn link_folder(stored: &Path, visible: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(stored)?;
    visible.parent().map(std::fs::create_dir_all).transpose()?;
    match std::fs::read_link(visible) {
        Ok(target) if target == stored => Ok(()),
        _ => std::os::unix::fs::symlink(stored, visible),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Isolation;

    fn reach(sandbox: Sandbox) -> Option<Reach> {
        let guard =
            Guard { program: "ostler".into(), limits: Default::default(), landlock: true, isolation: Isolation::None };
        let bare = BackendEnvironment::bare(AgentConfig::Acp { command: vec![], keep: vec![], extensions: None });
        let environment = BackendEnvironment {
            workspace: Some("/project".into()),
            home: Some("/data/home".into()),
            guard: Some(guard),
            hidden: vec!["/data".into()],
            ..bare
        };
        let codex = BackendEnvironment { backend: AgentConfig::Codex, ..environment.clone() };
        assert_eq!(codex.guarded(sandbox).unwrap().order.reach, None, "it confines its tools itself");
        environment.guarded(sandbox).unwrap().order.reach
    }

    #[test]
    fn landlock_takes_the_place_of_codexs_sandbox_only_where_it_is_ordered() {
        let guard = Guard {
            program: "/bin/ostler".into(),
            limits: crate::guard::Limits::default(),
            landlock: true,
            isolation: Isolation::None,
        };
        let host = BackendEnvironment { guard: Some(guard.clone()), ..BackendEnvironment::bare(AgentConfig::Codex) };
        let pod = BackendEnvironment { landlock_tools: true, ..host.clone() };
        assert!(host.tool_guard(Sandbox::ReadOnly).is_none());
        assert_eq!(pod.tool_guard(Sandbox::ReadOnly).is_some(), landlock_level() >= TOOL_LANDLOCK_LEVEL_MIN);
        assert!(pod.tool_guard(Sandbox::DangerFullAccess).is_none(), "such a run is not confined");
        let off = BackendEnvironment { guard: Some(Guard { landlock: false, ..guard }), ..pod };
        assert!(off.tool_guard(Sandbox::ReadOnly).is_none());
    }

    #[test]
    fn backend_without_a_workspace_does_not_get_its_home_to_write_in() {
        let bare = BackendEnvironment::bare(AgentConfig::Codex);
        let with_home = BackendEnvironment { home: Some("/data/home".into()), ..bare };
        assert_eq!(with_home.require_workspace().unwrap_err().failure_kind, Some(FailureKind::InfraFailed));
        let with_workspace = BackendEnvironment { workspace: Some("/project".into()), ..with_home };
        assert_eq!(with_workspace.require_workspace(), Ok(Path::new("/project")));
    }

    #[test]
    fn full_access_is_not_confined_and_read_only_cannot_write_the_workspace() {
        assert_eq!(reach(Sandbox::DangerFullAccess), None);
        let (home, work) = (PathBuf::from("/data/home"), PathBuf::from("/project"));
        let write = reach(Sandbox::WorkspaceWrite).unwrap();
        assert_eq!((write.writable, write.readable), (vec![home.clone(), work.clone()], vec![]));
        let read = reach(Sandbox::ReadOnly).unwrap();
        assert_eq!((read.writable, read.readable), (vec![home], vec![work]));
    }
}
