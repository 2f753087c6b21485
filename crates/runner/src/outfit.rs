//! An outfit: what a runner gives its agent to work with. The launcher makes it ready before the runner starts and clears
//! it away afterwards; a runner only ever sees paths, never where they came from.

use std::path::{Path, PathBuf};

use ostler_protocol::{
    FailureKind,
    outgoing::OutgoingRules,
    policy::Sandbox,
    provider_profiles::{AgentConfig, Prices},
};
use serde::{Deserialize, Serialize};

use crate::{
    agent::TurnEnd,
    guard::{Guard, Guarded, Order, Reach},
};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Outfit {
    pub agent: AgentConfig,
    /// The agent's own executable, where the agent is a program of its own that is not on the PATH.
    pub program: Option<PathBuf>,
    /// Where the agent works. `None`: it has no business with files.
    pub workspace: Option<PathBuf>,
    /// A directory of its own for the agent's settings and credentials, wiped when the runner is gone.
    pub home: Option<PathBuf>,
    /// Where the agent keeps its own account of the session; it outlives the runner.
    pub storage: Option<PathBuf>,
    /// Where the runner keeps track of what changes in the workspace; the agent has no business there.
    pub changes: Option<PathBuf>,
    pub patience: Patience,
    /// What its models cost, as far as the profile says.
    pub prices: Prices,
    /// The outfit could not be made ready: every turn ends with this.
    pub lacks: Option<Lack>,
    /// Who stands guard over the agent's program. `None`: nobody.
    pub guard: Option<Guard>,
    /// What no agent that is confined may read, but for its own directories in there.
    pub hidden: Vec<PathBuf>,
    /// Where the runner may connect to for the agent, if the profile is not the operator's. `None`: wherever it says.
    pub outgoing: Option<OutgoingRules>,
}

/// How long an agent bears with a model provider that does not do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Patience {
    /// A provider that cannot be reached is given up after this.
    pub unreachable_ms: u64,
    /// A provider that says "later" is asked again after this, then after twice as long, and so on.
    pub later_ms: u64,
}

/// How often a provider that says "later" is asked again in one turn.
const LATER_MAX: u32 = 3;

impl Patience {
    /// The pause before a provider that says "later" is asked again. `None`: it was asked often enough.
    pub fn later_pause_ms(self, asked_again: u32) -> Option<u64> {
        (asked_again < LATER_MAX).then(|| self.later_ms.saturating_mul(1 << asked_again))
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self { unreachable_ms: 120_000, later_ms: 20_000 }
    }
}

/// What an outfit lacks, and so what becomes of its turns.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Lack {
    pub failure_kind: FailureKind,
    pub message: String,
}

impl Outfit {
    /// An outfit for an agent that needs nothing.
    pub fn bare(agent: AgentConfig) -> Self {
        Self {
            agent,
            program: None,
            workspace: None,
            home: None,
            storage: None,
            changes: None,
            patience: Patience::default(),
            prices: Prices::default(),
            lacks: None,
            guard: None,
            hidden: vec![],
            outgoing: None,
        }
    }

    /// An outfit that could not be made ready.
    pub fn lacking(agent: AgentConfig, failure_kind: FailureKind, message: String) -> Self {
        Self { lacks: Some(Lack { failure_kind, message }), ..Self::bare(agent) }
    }

    /// The home an agent's program needs.
    pub fn needs_home(&self) -> Result<&Path, TurnEnd> {
        let absent = || TurnEnd::failed(FailureKind::SecretUnavailable, "the profile has no home for its agent");
        self.home.as_deref().ok_or_else(absent)
    }

    /// The directory an agent's program works in. Never its home: what it may write to it could then change for itself.
    pub fn needs_workspace(&self) -> Result<&Path, TurnEnd> {
        let absent = || TurnEnd::failed(FailureKind::InfraFailed, "the agent was given no workspace");
        self.workspace.as_deref().ok_or_else(absent)
    }

    /// Puts folders of the session's storage, if it has one, where the agent looks for them in its home.
    pub fn mount<'a>(&self, folders: impl IntoIterator<Item = &'a str>) -> Result<(), TurnEnd> {
        let Some(storage) = &self.storage else { return Ok(()) };
        let home = self.needs_home()?;
        let mounted = folders.into_iter().try_for_each(|folder| mount(&storage.join(folder), &home.join(folder)));
        mounted.map_err(|error| {
            let message = format!("the session's storage cannot be used: {}", error.kind());
            TurnEnd::failed(FailureKind::InfraFailed, message)
        })
    }

    /// The guard over the agent's program in a run with this sandbox.
    pub fn guarded(&self, sandbox: Sandbox) -> Option<Guarded> {
        let guard = self.guard.as_ref()?;
        // Codex confines its tools itself, by namespaces that cannot be made from within Landlock.
        let confined = guard.landlock && !self.agent.has_own_sandbox();
        let reach = self.reach(sandbox).filter(|_| confined);
        let order = Order { limits: guard.limits, reach, runner_pid: std::process::id(), isolation: guard.isolation };
        Some(Guarded { guard: guard.program.clone(), order })
    }

    fn reach(&self, sandbox: Sandbox) -> Option<Reach> {
        let mut writable: Vec<_> = [&self.home, &self.storage].into_iter().flatten().cloned().collect();
        let mut readable = vec![];
        match sandbox {
            Sandbox::DangerFullAccess => return None,
            Sandbox::WorkspaceWrite => writable.extend(self.workspace.clone()),
            Sandbox::ReadOnly => readable.extend(self.workspace.clone()),
        }
        // Nobody else's /tmp.
        let tmp = self.home.as_ref().map(|home| home.join("tmp"));
        Some(Reach { writable, readable, hidden: self.hidden.clone(), tmp })
    }
}

fn mount(kept: &Path, seen: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(kept)?;
    seen.parent().map(std::fs::create_dir_all).transpose()?;
    match std::fs::read_link(seen) {
        Ok(target) if target == kept => Ok(()),
        _ => std::os::unix::fs::symlink(kept, seen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Isolation;

    fn reach(sandbox: Sandbox) -> Option<Reach> {
        let guard =
            Guard { program: "ostler".into(), limits: Default::default(), landlock: true, isolation: Isolation::None };
        let bare = Outfit::bare(AgentConfig::Acp { command: vec![], keep: Default::default() });
        let outfit = Outfit {
            workspace: Some("/place".into()),
            home: Some("/data/home".into()),
            guard: Some(guard),
            hidden: vec!["/data".into()],
            ..bare
        };
        let codex = Outfit { agent: AgentConfig::Codex, ..outfit.clone() };
        assert_eq!(codex.guarded(sandbox).unwrap().order.reach, None, "it confines its tools itself");
        outfit.guarded(sandbox).unwrap().order.reach
    }

    #[test]
    fn an_agent_without_a_workspace_is_not_given_its_home_to_write_in() {
        let bare = Outfit::bare(AgentConfig::Codex);
        let homely = Outfit { home: Some("/data/home".into()), ..bare };
        assert_eq!(homely.needs_workspace().unwrap_err().failure_kind, Some(FailureKind::InfraFailed));
        let placed = Outfit { workspace: Some("/place".into()), ..homely };
        assert_eq!(placed.needs_workspace(), Ok(Path::new("/place")));
    }

    #[test]
    fn only_the_widest_sandbox_is_not_confined_and_only_the_narrowest_keeps_the_workspace_as_it_is() {
        assert_eq!(reach(Sandbox::DangerFullAccess), None);
        let (home, work) = (PathBuf::from("/data/home"), PathBuf::from("/place"));
        let write = reach(Sandbox::WorkspaceWrite).unwrap();
        assert_eq!((write.writable, write.readable), (vec![home.clone(), work.clone()], vec![]));
        let read = reach(Sandbox::ReadOnly).unwrap();
        assert_eq!((read.writable, read.readable), (vec![home], vec![work]));
    }
}
