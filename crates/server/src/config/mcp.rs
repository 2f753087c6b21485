//! MCP servers whose tools agents can use, and how many may be connected.

use std::collections::BTreeMap;

use ostler_protocol::{
    Failure, Rule,
    mcp::{
        budget::BudgetMode,
        config::{McpServer, SERVERS_MAX},
        names::is_server_name,
    },
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::places::KEY;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct McpSection {
    /// Give each session connections of its own, instead of sharing one for each server.
    pub no_pool: bool,
    /// How many servers may be connected at once; unset: any number.
    pub client_budget: Option<u32>,
    /// What happens when `client_budget` is used up: `off`, `warn` (clients are notified) or `enforce` (further
    /// servers are refused). By default `warn` if there is a budget.
    #[schema(value_type = Option<String>)]
    pub budget_mode: Option<BudgetMode>,
    /// How long a connection stays open after its last user has left.
    pub drain_ms: u64,
    /// How long a connection that has users may be idle. It is made again for the next call.
    pub idle_ms: u64,
    /// How long after a server's first start a list of tools waits for it to connect. One that takes longer connects in the
    /// background, and is left out of the list; a server that was connected before is waited for up to 10 s.
    pub list_wait_ms: u64,
    /// The pause before a server's process that ended is started again, up to three times. After that, and after a first start
    /// that failed, the next start waits for the next use and for a pause that grows from 1 s to 5 min.
    pub reconnect_ms: u64,
    /// The servers: `[mcp.servers.NAME]` with `command`, `args`, `env` and `cwd`, or with `url` and `headers`; in the
    /// environment a JSON object. `timeout_ms`, 60000 by default and 1 to 600000, is how long a server may take to start, and
    /// to answer a request. `trust_hints` lets runs with hard limits rely on what the server states about its tools. A
    /// value of `env` or `headers` is a text, `{ env = "NAME" }` or `{ file = "/path" }`. If the budget is not enough for all,
    /// the first ones by name are connected.
    pub servers: BTreeMap<String, McpServer>,
}

impl Default for McpSection {
    fn default() -> Self {
        Self {
            no_pool: false,
            client_budget: None,
            budget_mode: None,
            drain_ms: 30_000,
            idle_ms: 300_000,
            list_wait_ms: 2_000,
            reconnect_ms: 5_000,
            servers: BTreeMap::new(),
        }
    }
}

impl McpSection {
    /// The mode in force.
    pub fn mode(&self) -> BudgetMode {
        let by_default = if self.client_budget.is_some() { BudgetMode::Warn } else { BudgetMode::Off };
        self.budget_mode.unwrap_or(by_default)
    }

    pub(super) fn problems(&self) -> Vec<Failure> {
        let invalid =
            |key: &str, message: String| Failure::invalid(Rule::Config, format!("{key} {message}")).detail(KEY, key);
        let mut problems = vec![];
        if self.budget_mode == Some(BudgetMode::Enforce) && self.client_budget.is_none() {
            let message = "enforce needs a budget: set mcp.client_budget, or --mcp-client-budget".to_owned();
            problems.push(invalid("mcp.budget_mode", message));
        }
        if self.servers.len() > SERVERS_MAX {
            problems.push(invalid("mcp.servers", format!("has more than {SERVERS_MAX} servers")));
        }
        for (name, server) in &self.servers {
            if !is_server_name(name) {
                let message = format!("{name:?} must be letters, digits, _ or -");
                problems.push(invalid("mcp.servers", message));
            } else if let Err(message) = server.check() {
                problems.push(invalid(&format!("mcp.servers.{name}"), message));
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_budget_warns_unless_it_is_configured_otherwise() {
        let mode = |section: serde_json::Value| serde_json::from_value::<McpSection>(section).unwrap().mode();
        assert_eq!(mode(json!({})), BudgetMode::Off);
        assert_eq!(mode(json!({"client_budget": 2})), BudgetMode::Warn);
        assert_eq!(mode(json!({"client_budget": 2, "budget_mode": "off"})), BudgetMode::Off);
    }

    #[test]
    fn what_cannot_work_is_rejected_by_its_key() {
        for (section, expected) in [
            (json!({"budget_mode": "enforce"}), "mcp.budget_mode enforce needs a budget"),
            (json!({"servers": {"a b": {"command": "x"}}}), "mcp.servers \"a b\" must be"),
            (json!({"servers": {"a": {}}}), "mcp.servers.a has neither"),
        ] {
            let problems = serde_json::from_value::<McpSection>(section).unwrap().problems();
            assert!(problems[0].message.starts_with(expected), "{}", problems[0].message);
        }
    }

    #[test]
    fn servers_of_the_file_keep_their_references_and_hide_their_texts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ostler.toml");
        let file = "[mcp.servers.notes]\ncommand = \"notes-mcp\"\nargs = [\"-v\"]\n\
            env = { NOTES_TOKEN = { env = \"NOTES_TOKEN\" }, Plain = \"pl4nted\" }\n\
            [mcp.servers.tickets]\nurl = \"https://tickets.example/mcp\"\nenabled = false\n\
            headers = { Authorization = { file = \"/run/secrets/tickets\" } }\n";
        std::fs::write(&path, file).unwrap();
        let config = crate::config::Config::read(Some(&path), std::iter::empty(), &[], &[]).unwrap();
        assert!(config.mcp.problems().is_empty());
        let shown = config.json();
        let notes = &shown["mcp"]["servers"]["notes"];
        assert_eq!(notes["env"], json!({"NOTES_TOKEN": {"env": "NOTES_TOKEN"}, "Plain": "(hidden)"}));
        let tickets = &config.mcp.servers["tickets"];
        assert_eq!((tickets.enabled, tickets.url.as_deref()), (false, Some("https://tickets.example/mcp")));
        assert!(!shown.to_string().contains("pl4nted"));
    }
}
