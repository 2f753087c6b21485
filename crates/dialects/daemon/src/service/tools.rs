//! Tools of the workspace that are switched off. Agents that are started later do not get them.

use ostler_protocol::{
    Failure,
    daemon::mcp::{ToggleTool, ToolToggled, check_tool_name},
};
use ostler_server::{app::App, auth::Principal, mcp};
use serde_json::json;

use super::{notes::Note, workspace};

pub(crate) async fn toggle(
    app: &App,
    caller: &Principal,
    client: Option<String>,
    name: &str,
    request: &ToggleTool,
) -> Result<ToolToggled, Failure> {
    workspace::check_configure(app, caller, client.as_deref()).await?;
    let (name, enabled) = (check_tool_name(name)?.to_owned(), request.read()?);
    let caller = caller.clone();
    app.to_the_end(move |app| async move {
        if mcp::switch_tool(&app, &name, enabled).await? {
            let data = json!({"toolName": name, "enabled": enabled});
            workspace::announce(&app, &caller, &Note { frame: "tool_toggled", data, client }).await;
        }
        Ok(ToolToggled { tool_name: name, enabled })
    })
    .await
}
