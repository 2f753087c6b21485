//! An outfit: what a runner gives its agent to work with. The launcher makes it ready before the runner starts and clears
//! it away afterwards; a runner only ever sees paths, never where they came from.

use std::path::PathBuf;

use ostler_protocol::{FailureKind, provider_profiles::AgentConfig};
use serde::{Deserialize, Serialize};

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
    pub patience: Patience,
    /// The outfit could not be made ready: every turn ends with this.
    pub lacks: Option<Lack>,
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
        let (program, workspace, home, storage) = (None, None, None, None);
        Self { agent, program, workspace, home, storage, patience: Patience::default(), lacks: None }
    }

    /// An outfit that could not be made ready.
    pub fn lacking(agent: AgentConfig, failure_kind: FailureKind, message: String) -> Self {
        Self { lacks: Some(Lack { failure_kind, message }), ..Self::bare(agent) }
    }
}
