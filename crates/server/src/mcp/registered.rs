//! A server that there is, and where it comes from.

use ostler_protocol::mcp::config::McpServer;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerOrigin {
    Configured,
    Added {
        /// There is a configured server of the same name.
        shadows: bool,
    },
}

/// A server that there is.
#[derive(Clone, Debug)]
pub struct RegisteredServer {
    pub name: String,
    pub server: McpServer,
    /// Of its configuration.
    pub fingerprint: String,
    pub origin: ServerOrigin,
    pub is_enabled: bool,
}
