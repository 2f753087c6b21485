//! What the gate does for requests of MCP clients: the headers that pages of allowed origins may send and read. Host and origin
//! are checked by the engine's rules, as for every other route.

use ostler_protocol::mcp_server::revisions::REVISION_HEADER;
use ostler_server::dialect::GateRules;

/// The header with the id of a client's session.
pub(crate) const SESSION_HEADER: &str = "mcp-session-id";

pub(crate) static RULES: GateRules = GateRules {
    names_server: None,
    request_headers: &[SESSION_HEADER, REVISION_HEADER],
    response_headers: &[SESSION_HEADER],
    rates: None,
};
