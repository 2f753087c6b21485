//! The servers that a backend gets, to connect to them itself: those whose `expose` is `direct`. Tools of the others are part of the
//! toolkit, so that no tool is offered twice.

use ostler_protocol::{
    Failure,
    json::text_of,
    mcp::config::{McpExposure, McpTransport},
};
use ostler_runner::{NamedSecret, OfferedMcpServer, OfferedTransport, backend::acp::program};
use secrecy::SecretString;

use super::{pool::Mcp, problem::McpProblem, registered::RegisteredServer, values};
use crate::app::App;

/// Most bytes of all offers of a job. They reach the runner in one line, with everything else that it needs.
const OFFERS_BYTES_MAX: usize = 32 * 1024;

/// The enabled servers that are exposed directly, in order, as far as the budget allows. One that cannot be used is left out and logged.
pub(crate) async fn for_backend(app: &App) -> Result<Vec<OfferedMcpServer>, Failure> {
    let (mut offers, mut bytes) = (vec![], 0);
    let registered = Mcp::of(app).for_agents(app).await?;
    for registered in registered.into_iter().filter(|registered| registered.server.expose == McpExposure::Direct) {
        match offer(app, &registered).await {
            Ok(offer) => {
                bytes += text_of(&offer).len();
                if bytes > OFFERS_BYTES_MAX {
                    tracing::warn!("the configurations of MCP servers are too large; the last ones are left out");
                    break;
                }
                offers.push(offer);
            }
            Err(problem) => tracing::warn!(server = registered.name, %problem, "an agent does not get an MCP server"),
        }
    }
    Ok(offers)
}

async fn offer(app: &App, registered: &RegisteredServer) -> Result<OfferedMcpServer, McpProblem> {
    let server = &registered.server;
    let transport = match server.transport() {
        McpTransport::Stdio => {
            let command = server.command.clone().unwrap_or_default();
            let search_path = std::env::var_os("PATH");
            let path = program::find(std::slice::from_ref(&command), search_path.as_deref());
            let path = path.map_err(|_| McpProblem::Missing)?;
            let env = named(values::resolve(app, &server.env).await?);
            OfferedTransport::Stdio { command: path.to_string_lossy().into_owned(), args: server.args.clone(), env }
        }
        McpTransport::Http => {
            let headers = named(values::resolve(app, &server.headers).await?);
            OfferedTransport::Http { url: server.url.clone().unwrap_or_default(), headers }
        }
    };
    Ok(OfferedMcpServer { name: registered.name.clone(), transport })
}

fn named(values: Vec<(String, SecretString)>) -> Vec<NamedSecret> {
    values.into_iter().map(|(name, value)| NamedSecret { name, value }).collect()
}
