//! How a backend that is a program gets the server's tools: by the gateway, which lives as long as the backend.

use std::sync::Arc;

use ostler_protocol::kernel::events::EventType;
use serde_json::json;

use crate::{
    environment::BackendEnvironment,
    tool_gateway::{AttachedTurn, ToolGateway},
    turn_sink::TurnSink,
};

/// Opens the server's tools to a backend for the time of a turn, and starts the gateway if it does not run yet. `None` if the run gets
/// none of these tools, or if they cannot be offered.
pub(super) async fn attach(
    gateway: &mut Option<ToolGateway>,
    environment: &BackendEnvironment,
    sink: &TurnSink,
) -> Option<AttachedTurn> {
    let (token, tools) = (environment.tool_token.as_ref()?, sink.turn_tools()?);
    if gateway.is_none() {
        match ToolGateway::start(token).await {
            Ok(started) => *gateway = Some(started),
            Err(error) => {
                let message = format!("the server's tools cannot be offered: {}", error.kind());
                sink.emit(EventType::BackendStatus, &json!({"phase": "tools:unavailable", "message": message})).await;
            }
        }
    }
    Some(gateway.as_ref()?.attach(Arc::new(tools)))
}
