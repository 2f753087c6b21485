//! Configuration of the agents that answer chats.

use ostler_protocol::{
    Failure, Rule,
    kernel::stages::{ROUTER_MS_DEFAULT, ROUTER_MS_MAX, RouterMode},
    mcp::names::TOOL_PREFIX,
    run_input::automations::ENABLED_TOOLS_MAX,
    tools::is_offered_name,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use ostler_server::config::{ALL_TOOLS, Config, Section, check_range};

/// Earlier messages of a thread that an agent may get.
const CONTEXT_MESSAGES_MAX: u64 = 10_000;

/// The stages of runs, and the tools and context of chats. An automation has its own context, and may have its own tools.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SystemAgentsSection {
    /// Whether a router plans a message before it is worked on: `off`, `auto` (the model decides in its first reply) or
    /// `always` (in a request of its own). For profiles of the agent `model`.
    pub router: RouterMode,
    /// Time limit of a router with a request of its own. Without its plan, the message is worked on with all tools and context.
    pub router_timeout_ms: u64,
    /// The tools that runs in chats may use, by their names; `*`: all that the server offers, except those of MCP servers. A tool of
    /// an MCP server is offered to chats and automations if it is named, such as `mcp__notes__add`.
    pub enabled_tools: Vec<String>,
    /// Maximum number of a thread's earlier messages that the agent `model` gets with a message; unset: as many as fit.
    pub context_messages_max: Option<u32>,
}

impl Default for SystemAgentsSection {
    fn default() -> Self {
        Self {
            router: RouterMode::Auto,
            router_timeout_ms: ROUTER_MS_DEFAULT,
            enabled_tools: vec![ALL_TOOLS.to_owned()],
            context_messages_max: None,
        }
    }
}

impl Section for SystemAgentsSection {
    const NAME: &'static str = "system_agents";

    fn problems(&self, _: &Config) -> Vec<Failure> {
        let messages_max = u64::from(self.context_messages_max.unwrap_or(0));
        let checks = [
            check_range("system_agents.router_timeout_ms", self.router_timeout_ms, 1..=ROUTER_MS_MAX),
            check_range("system_agents.context_messages_max", messages_max, 0..=CONTEXT_MESSAGES_MAX),
            self.check_tools(),
        ];
        checks.into_iter().filter_map(Result::err).collect()
    }
}

impl SystemAgentsSection {
    /// The tools that runs in chats may use. `None`: all.
    pub(crate) fn enabled_tools(&self) -> Option<Vec<String>> {
        let has_all = self.enabled_tools.iter().any(|name| name == ALL_TOOLS);
        (!has_all).then(|| self.enabled_tools.clone())
    }

    /// The tools of MCP servers that users' runs get: those that are named. `*` does not stand for them, because they have the
    /// operator's credentials.
    pub(crate) fn mcp_tools(&self) -> Vec<String> {
        self.enabled_tools.iter().filter(|name| name.starts_with(TOOL_PREFIX)).cloned().collect()
    }

    fn check_tools(&self) -> Result<(), Failure> {
        let tools = &self.enabled_tools;
        let is_name = |name: &String| name == ALL_TOOLS || is_offered_name(name);
        if tools.len() <= ENABLED_TOOLS_MAX && tools.iter().all(is_name) {
            return Ok(());
        }
        let key = "system_agents.enabled_tools";
        let message = format!("{key} must be at most {ENABLED_TOOLS_MAX} names of tools");
        Err(Failure::invalid(Rule::Config, message).detail("key", key))
    }
}
