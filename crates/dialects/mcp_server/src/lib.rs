//! The MCP server: clients of the Model Context Protocol submit runs, follow them, read their results and answer permission
//! requests, with the rights of their tokens. Every tool is a service of the engine; nothing is stored here.

mod capabilities;
mod gate;
mod http;
mod service;
mod shapes;
mod state;

use ostler_protocol::{failures::Problem, mcp_server::failures::McpFailureBody};
use ostler_server::dialect::{Dialect, FailureEncoder, States, encoded};

use self::{service::calls, state::McpServerState};

pub fn dialect() -> Dialect {
    Dialect::new("mcp_server")
        .routes(http::routes)
        .failures(FailureEncoder {
            translate: |failure| failure,
            encode,
            content_type: "application/json",
            schema: "McpFailureBody",
        })
        .gate(&gate::RULES)
        .shapes(shapes::SHAPES)
        .capabilities(capabilities::CAPABILITIES)
        .open(|_| async move { Ok(States::new().with(McpServerState::default())) })
        .topic(calls::CANCELLED)
        .topic(calls::ENDED)
}

fn encode(problem: Problem) -> String {
    encoded(&McpFailureBody::from(problem))
}
