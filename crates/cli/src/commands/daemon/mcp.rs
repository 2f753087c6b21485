//! `ostler mcp`: the MCP servers of the server's workspace.

use clap::Subcommand;
use ostler_protocol::{Failure, daemon::mcp::McpServerStatus, json::value_of};

use crate::{
    commands::list::Listing,
    connection::Connection,
    terminal::{list_output::ListOutput, output::line, table::Column, times::Times},
};

/// List the MCP servers of the server's workspace
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler mcp list")]
pub(crate) struct McpArgs {
    #[command(subcommand)]
    verb: McpVerb,
}

#[derive(Subcommand, Debug)]
enum McpVerb {
    List(ListMcpArgs),
}

/// List the MCP servers, and whether they are connected
///
/// Connects to none of them: a server is connected when a session is opened, or tools are listed for a run.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler mcp list\n  ostler mcp list -o json | jq -r '.[] | select(.error) | .name'"
)]
struct ListMcpArgs {
    #[command(flatten)]
    output: ListOutput,
}

pub(crate) async fn mcp(connection: &Connection, args: &McpArgs) -> Result<u8, Failure> {
    let McpVerb::List(args) = &args.verb;
    let status = connection.client()?.mcp_status().await?;
    SERVERS.print(&status.servers, false, Times::default(), &args.output)
}

const SERVERS: Listing<McpServerStatus> = Listing {
    nothing: "no MCP server is configured; docs/daemon.md shows how\n",
    columns: &[
        Column::whole("SERVER"),
        Column::whole("STATE"),
        Column::spare(1, "TRANSPORT"),
        Column::spare(2, "FROM"),
        Column::wrapped(3, "NOTE"),
    ],
    row: |server, _, _| {
        let problems: Vec<_> = [&server.error, &server.hint].into_iter().flatten().map(String::as_str).collect();
        let note = Some(problems.join("; ")).filter(|note| !note.is_empty()).or_else(|| server.description.clone());
        vec![
            line(&server.name, 200),
            state(server),
            word(&server.transport),
            word(&server.config_origin),
            line(&note.unwrap_or_default(), 400),
        ]
    },
};

/// What a person wants to know: switched off, or how the connection is.
fn state(server: &McpServerStatus) -> String {
    match (server.disabled, server.error.is_some() || server.error_kind.is_some()) {
        (true, _) => "disabled".to_owned(),
        (false, true) => "failed".to_owned(),
        (false, false) => word(&server.mcp_status),
    }
}

/// The word that the API has for a value.
fn word(value: &impl serde::Serialize) -> String {
    value_of(value).as_str().unwrap_or_default().replace('_', " ")
}

#[cfg(test)]
mod tests {
    use ostler_protocol::Timestamp;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_server_shows_its_state_and_why_it_failed() {
        let server = |name: &str, changes: serde_json::Value| -> McpServerStatus {
            let mut server = json!({"kind": "mcp_server", "status": "ok", "name": name, "mcpStatus": "connected",
                "transport": "stdio", "disabled": false, "configOrigin": "system_settings", "removable": false});
            changes.as_object().unwrap().iter().for_each(|(key, value)| server[key] = value.clone());
            serde_json::from_value(server).unwrap()
        };
        let all = [
            server("notes", json!({"description": "Notes of the team"})),
            server("off", json!({"disabled": true, "disabledReason": "config", "status": "disabled"})),
            server(
                "tickets",
                json!({"status": "error", "mcpStatus": "disconnected", "transport": "http",
                "error": "the server refuses connections"}),
            ),
        ];
        let text = SERVERS.render(&all, Times::default(), Timestamp::UNIX_EPOCH, None);
        assert_eq!(
            text,
            "SERVER   STATE      TRANSPORT  FROM             NOTE\n\
             notes    connected  stdio      system settings  Notes of the team\n\
             off      disabled   stdio      system settings\n\
             tickets  failed     http       system settings  the server refuses connections\n"
        );
    }
}
