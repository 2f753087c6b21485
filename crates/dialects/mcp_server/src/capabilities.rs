//! The capabilities that this dialect promises to clients.

use ostler_protocol::capabilities::{Capability, capability};

pub(crate) const CAPABILITIES: &[Capability] = &[capability(
    "ostler_mcp_server",
    &["POST /mcp", "GET /mcp", "DELETE /mcp"],
    "MCP clients, over streamable HTTP: submit runs, follow them, read results, answer permission requests.",
)];
