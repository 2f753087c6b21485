//! Configuration of the run input dialect.

pub mod attachments;
pub mod automations;
pub mod system_agents;
pub mod transcription;

use ostler_protocol::{
    Failure,
    kernel::{aliases::OnBusy, policy::Approval},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use ostler_server::config::{Config, Section, check_range};

/// The front door for chats: `POST /api/v1/agent/runs`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RunInputSection {
    /// The tenant of threads. The threads of a user who is not in this tenant are in the first of the user's
    /// own tenants.
    pub tenant: String,
    /// The backend profile that handles messages.
    pub backend_profile: String,
    /// What happens to a message for a busy thread: `reject`, `enqueue`, `interrupt` or `rollback`.
    pub busy: OnBusy,
    /// When the backend asks the user for permission: `untrusted`, `on-request` or `never`; limited by
    /// `policy.ceiling.approval`.
    pub approval: Approval,
    /// Maximum number of open event streams of one user.
    pub streams_per_user_max: usize,
}

impl Default for RunInputSection {
    fn default() -> Self {
        Self {
            tenant: "local".into(),
            backend_profile: "scripted".into(),
            busy: OnBusy::default(),
            approval: Approval::OnRequest,
            streams_per_user_max: 64,
        }
    }
}

impl Section for RunInputSection {
    const NAME: &'static str = "run_input";
    const FORMER_NAMES: &'static [&'static str] = &["agent_runs"];

    fn problems(&self, _: &Config) -> Vec<Failure> {
        let check = check_range("run_input.streams_per_user_max", self.streams_per_user_max as u64, 1..=1_000_000);
        check.err().into_iter().collect()
    }
}
