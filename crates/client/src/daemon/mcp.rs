//! MCP servers of the workspace.

use ostler_protocol::{Failure, daemon::mcp::McpStatus};

use crate::{client::Client, path::Path};

impl Client {
    /// The MCP servers of the workspace, and how much of the budget is used. Starts none of them.
    pub async fn mcp_status(&self) -> Result<McpStatus, Failure> {
        self.get(Path::of(&["workspace", "mcp"])).await
    }
}
