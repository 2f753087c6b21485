//! Where the server connects to for callers, and what tenants' provider profiles may hold.

use ostler_protocol::{Failure, outgoing::OutgoingRules};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OutgoingSection {
    /// What callers may have the server connect to beside public addresses: for repositories, webhooks and the model servers
    /// of tenants' profiles. Host names (`git.internal`: its private addresses), addresses and networks (`10.1.0.0/16`).
    /// This machine and link-local addresses are reached only if listed as addresses.
    pub allow: Vec<String>,
}

impl OutgoingSection {
    pub fn rules(&self) -> Result<OutgoingRules, Failure> {
        OutgoingRules::read(&self.allow).map_err(|entry| {
            let message = format!("outgoing.allow: {entry:?} is no host name, address or network");
            Failure::invalid("config", message)
        })
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProfilesSection {
    /// Lets the provider profiles of tenants name programs (ACP agents, and all of Codex's settings). They run as the server
    /// does, for that tenant: only for tenants that you would give a shell.
    pub tenant_commands: bool,
}
