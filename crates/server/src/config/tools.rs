//! Tools that the server offers to agents.

use ostler_protocol::{Failure, Rule, outgoing::OutgoingRules};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::places::KEY;

/// Means all configured tools except those that the operator has to name.
pub const ALL_TOOLS: &str = "*";

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ToolsSection {
    /// The tools that runs get, by their names; `*`: all that are configured, except `web_fetch`. Tools of MCP servers are
    /// enabled with their servers.
    pub enabled: Vec<String>,
    pub web_fetch: WebFetchSection,
    pub http_request: HttpRequestSection,
    pub run_agent: RunAgentSection,
}

impl Default for ToolsSection {
    fn default() -> Self {
        Self {
            enabled: vec![ALL_TOOLS.to_owned()],
            web_fetch: WebFetchSection::default(),
            http_request: HttpRequestSection::default(),
            run_agent: RunAgentSection::default(),
        }
    }
}

impl ToolsSection {
    /// Whether the operator lists this tool by its own name.
    pub fn names(&self, tool: &str) -> bool {
        self.enabled.iter().any(|name| name == tool)
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WebFetchSection {
    /// Hosts, addresses and networks that `web_fetch` may connect to beside public addresses, as in `outgoing.allow`;
    /// the name `localhost` leads to the loopback addresses.
    pub allow: Vec<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HttpRequestSection {
    /// The hosts that `http_request` may connect to: host names, addresses and networks (`10.1.0.0/16`). A name allows its
    /// public and private addresses, the name `localhost` the loopback ones. No other name leads to a loopback or link-local
    /// address, unless the address is listed. Without any, the tool is not offered.
    pub hosts: Vec<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RunAgentSection {
    /// The backend profiles that `run_agent` may start runs of. Without any, the tool is not offered.
    pub profiles: Vec<String>,
}

impl ToolsSection {
    pub(super) fn problems(&self) -> Vec<Failure> {
        let lists =
            [("tools.web_fetch.allow", &self.web_fetch.allow), ("tools.http_request.hosts", &self.http_request.hosts)];
        let problems = lists.into_iter().filter_map(|(key, entries)| {
            let entry = OutgoingRules::read(entries).err()?;
            let message = format!("{key}: {entry:?} is no host name, address or network");
            Some(Failure::invalid(Rule::Config, message).detail(KEY, key))
        });
        problems.collect()
    }
}
