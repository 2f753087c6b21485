//! Makes an outfit ready for a job's runner, and clears it away afterwards.

use ostler_protocol::provider_profiles::AgentConfig;
use ostler_runner::Outfit;

use crate::app::RunRef;

pub fn of(run: &RunRef) -> Outfit {
    Outfit::bare(AgentConfig::of_profile(&run.backend_profile))
}
