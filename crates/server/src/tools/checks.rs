//! Checks of arguments against schemas that may come from elsewhere.

use ostler_protocol::tools::{ToolDefinition, ToolOrigin};
use serde_json::{Map, Value};

use crate::app::App;

/// Checks the arguments of a call. The error is for the model. The schema of an MCP server's tool may take seconds, whatever the size
/// of the arguments, so that the check does not block the threads of the async runtime.
pub(super) async fn check_arguments(
    app: &App,
    tool: &ToolDefinition,
    arguments: &str,
) -> Result<Map<String, Value>, String> {
    let is_foreign = matches!(tool.origin, ToolOrigin::Mcp(_));
    let bytes = if is_foreign { usize::MAX } else { arguments.len() };
    app.compute(bytes, || tool.check_arguments(arguments)).await
}
