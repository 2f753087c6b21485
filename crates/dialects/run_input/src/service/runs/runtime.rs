//! The runtime config of a run: its stages, tools and context. The mode decides where tools and context come from, and nothing else.

use ostler_protocol::{json::value_of, kernel::stages::RuntimeConfig, run_input::automations::Automation};
use serde_json::{Value, json};

use crate::config::system_agents::SystemAgentsSection;

/// The runtime config as the command's payload has it. The messages of an automation's context are in the context of the turn.
pub(super) fn runtime_config(agents: &SystemAgentsSection, automation: Option<&Automation>) -> Value {
    let (enabled_tools, messages_max) = match automation {
        None => (agents.enabled_tools(), agents.context_messages_max),
        // Without a list of its own, an automation is offered what a chat is offered.
        Some(automation) => (automation.config.enabled_tools.clone().or_else(|| agents.enabled_tools()), None),
    };
    let (router, router_ms) = (Some(agents.router), Some(agents.router_timeout_ms));
    let mut config = value_of(&RuntimeConfig { router, router_ms, enabled_tools, messages_max });
    match automation {
        None => config["mode"] = json!("chat"),
        Some(automation) => {
            config["mode"] = json!("automation");
            config["automationId"] = json!(automation.id);
            if let Some(context) = &automation.config.context {
                config["context"] = json!(context);
            }
        }
    }
    config
}
