//! The front door for chats.

use ostler_protocol::{agent_runs::Busy, policy::Approval};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The front door for chats: `POST /api/v1/agent/runs`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AgentRunsSection {
    /// Where threads belong. A user who is not in this tenant has them in the first of their own.
    pub tenant: String,
    /// The agent that answers: a backend profile.
    pub backend_profile: String,
    /// What becomes of a message for a thread that is busy: `reject`, `enqueue`, `interrupt` or `rollback`.
    pub busy: Busy,
    /// When the agent asks the user before it acts: `untrusted`, `on-request` or `never`; the ceiling where that is narrower.
    pub approval: Approval,
    /// Event streams of runs open at once by one user.
    pub streams_per_user_max: usize,
}

impl Default for AgentRunsSection {
    fn default() -> Self {
        Self {
            tenant: "local".into(),
            backend_profile: "scripted".into(),
            busy: Busy::default(),
            approval: Approval::OnRequest,
            streams_per_user_max: 64,
        }
    }
}
