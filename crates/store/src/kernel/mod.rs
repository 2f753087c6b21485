//! Sessions, runs, commands, events and what belongs to them.

pub mod aliases;
pub mod backends;
pub mod bundle_commits;
pub mod commands;
pub(crate) mod conditions;
pub mod erasures;
pub mod events;
pub(crate) mod labels;
pub mod leases;
pub mod payload_removals;
pub mod permissions;
pub mod provider_profiles;
pub mod readers;
mod removed_texts;
pub mod results;
pub mod runner_jobs;
pub mod runners;
pub mod runs;
pub mod session_payloads;
pub mod sessions;
pub mod turns;
pub mod usage;
pub mod whole_payloads;
pub mod workspace_switches;

use ostler_protocol::ids::{RunId, SessionId};

use crate::{error::StoreError, record::Reader};

/// A run and its session.
fn session_and_run(row: &mut Reader<'_>) -> Result<(SessionId, RunId), StoreError> {
    Ok((row.at("session_id")?.id()?, row.at("run_id")?.id()?))
}
