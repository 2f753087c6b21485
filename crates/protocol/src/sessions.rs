//! Sessions: a conversation that outlives runs. The row is a fold of the session's events.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    Timestamp,
    chain::Hash,
    ids::{CommandId, RunId, SessionId},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExecutionState {
    Idle,
    Running,
    Terminal,
}

impl ExecutionState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Running => "running",
            Self::Terminal => "terminal",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Idle, Self::Running, Self::Terminal].into_iter().find(|s| s.as_str() == text)
    }
}

/// A session as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    pub session: SessionId,
    pub tenant_id: String,
    /// The id the caller chose; unique in its tenant.
    pub external_id: Option<String>,
    pub backend_profile: String,
    /// The agent's own thread.
    pub thread_id: Option<String>,
    pub last_seq: i64,
    pub chain_head: Hash,
    /// Rises whenever a command or a run ends; a reader's cursor holds the version it has seen.
    pub version: i64,
    pub execution_state: ExecutionState,
    /// The one run with a live lease or an unfinished command.
    pub active_run_id: Option<RunId>,
    pub active_command_id: Option<CommandId>,
    pub active_unfinished: i64,
    pub active_lease_until: Option<Timestamp>,
    pub last_run_id: Option<RunId>,
    pub last_command_id: Option<CommandId>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl Session {
    pub fn new(
        session: SessionId,
        tenant_id: String,
        external_id: Option<String>,
        profile: String,
        now: Timestamp,
    ) -> Self {
        Self {
            session,
            tenant_id,
            external_id,
            backend_profile: profile,
            thread_id: None,
            last_seq: 0,
            chain_head: crate::chain::GENESIS,
            version: 0,
            execution_state: ExecutionState::Idle,
            active_run_id: None,
            active_command_id: None,
            active_unfinished: 0,
            active_lease_until: None,
            last_run_id: None,
            last_command_id: None,
            created_at: now,
            updated_at: now,
        }
    }

    /// The id callers know it by.
    pub fn public_id(&self) -> String {
        self.external_id.clone().unwrap_or_else(|| self.session.to_string())
    }

    /// The active run, if it is another one than `run`.
    pub fn busy_with_other(&self, run: Option<RunId>, now: Timestamp) -> Option<RunId> {
        let active = self.active_run_id.filter(|active| Some(*active) != run)?;
        let leased = self.active_lease_until.is_some_and(|until| until > now);
        (leased || self.active_unfinished > 0).then_some(active)
    }
}
