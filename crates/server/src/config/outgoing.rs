//! Destinations that the server connects to for callers, and what tenants' provider profiles may contain.

use ostler_protocol::{Failure, Rule, outgoing::OutgoingRules};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OutgoingSection {
    /// Destinations other than public addresses to which the server may connect for callers: repositories,
    /// webhooks and model servers of tenants' profiles. Host names (`git.internal` allows its private
    /// addresses), addresses and networks (`10.1.0.0/16`). Loopback and link-local addresses must be listed as
    /// addresses.
    pub allow: Vec<String>,
}

impl OutgoingSection {
    pub fn rules(&self) -> Result<OutgoingRules, Failure> {
        OutgoingRules::read(&self.allow).map_err(|entry| {
            let message = format!("outgoing.allow: {entry:?} is no host name, address or network");
            Failure::invalid(Rule::Config, message).detail("key", "outgoing.allow")
        })
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProfilesSection {
    /// Allow provider profiles of tenants to name programs (ACP, and all of Codex's settings). They run as the
    /// server's user, so set this only if you would give your tenants a shell.
    pub tenant_commands: bool,
}
