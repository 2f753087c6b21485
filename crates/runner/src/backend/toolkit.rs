//! How a backend that is a program gets the server's tools and those of the front end: by the gateway, which lives as long as the
//! backend.

use std::sync::Arc;

use ostler_protocol::{
    json::canonical_hash,
    kernel::{context::Context, events::EventType},
};
use serde_json::json;

use super::turn::Turn;
use crate::{
    environment::BackendEnvironment,
    tool_gateway::{AttachedTurn, ToolGateway},
    turn_sink::TurnSink,
};

/// Names the tools of the front end that a program is offered in a turn. Programs list the tools once, when their session is opened:
/// one that is to be offered others has to open its session again.
pub(super) fn front_end_digest(turn: &Turn) -> String {
    let context = Context::of(&turn.command.payload);
    canonical_hash(&json!([context.tools, context.state.is_some()]))
}

/// Opens the server's tools to a backend for the time of a turn, and starts the gateway if it does not run yet. `None` if the run gets
/// none of these tools, or if they cannot be offered.
pub(super) async fn attach(
    gateway: &mut Option<ToolGateway>,
    environment: &BackendEnvironment,
    turn: &Turn,
    sink: &TurnSink,
) -> Option<AttachedTurn> {
    let (token, tools) = (environment.tool_token.as_ref()?, sink.turn_tools(Context::of(&turn.command.payload))?);
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
