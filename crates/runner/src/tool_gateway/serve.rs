//! The requests of a backend to the gateway.

use std::{convert::Infallible, sync::Arc};

use axum::{
    Router,
    body::to_bytes,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
    routing::post,
};
use futures_util::stream;
use ostler_protocol::{
    Failure, RawJson,
    json::text_of,
    mcp_server::{
        messages::{CallToolParams, InitializeParams, read_params},
        revisions::McpRevision,
    },
    rpc::{INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, PARSE_ERROR, RpcError, RpcFrame, RpcId, Version},
    tools::wire::{CallStatus, CalledTool},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::OwnedSemaphorePermit, time::Duration};

use super::{
    changes::{list_digest, stream_changes},
    state::{CurrentTurn, GATEWAY, GatewayState, KEEP_ALIVE_MS, PATH, described, digest},
};

/// Most bytes of a request. Arguments of a call are shorter.
pub(super) const REQUEST_BYTES_MAX: usize = 256 * 1024;
/// Most bytes of a result. The server cuts results to fewer.
pub(super) const RESULT_BYTES_MAX: usize = 256 * 1024;
/// Most bytes of edited arguments that a result shows.
pub(super) const EDITED_BYTES_MAX: usize = 16 * 1024;
const SESSION_HEADER: &str = "mcp-session-id";
const BEARER: &str = "Bearer ";
const NO_TURN: &str = "no turn of the run is being worked on";
const LONGER: &str = "\n[The result is longer.]";

type RpcResult = Result<Value, RpcError>;

/// Serves requests until the task is aborted.
pub(super) async fn serve(listener: TcpListener, state: Arc<GatewayState>) {
    let routes = Router::new().route(PATH, post(receive).get(listen)).with_state(state);
    if let Err(error) = axum::serve(listener, routes).await {
        tracing::warn!(%error, "the server's tools cannot be offered any more");
    }
}

impl GatewayState {
    fn admits(&self, headers: &HeaderMap) -> bool {
        let sent = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
        sent.strip_prefix(BEARER).is_some_and(|token| digest(token) == self.token_digest)
    }
}

async fn receive(State(state): State<Arc<GatewayState>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    // Nothing is read from a client without the token.
    if !state.admits(&parts.headers) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let Ok(permit) = state.open_requests.clone().try_acquire_owned() else {
        return StatusCode::TOO_MANY_REQUESTS.into_response();
    };
    let announced =
        parts.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|bytes| bytes > REQUEST_BYTES_MAX) {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    }
    let Ok(bytes) = to_bytes(body, REQUEST_BYTES_MAX).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    match RpcFrame::read_as(&bytes, Version::Two) {
        Ok(RpcFrame::Request { id, method, params }) if method == "tools/call" => {
            stream_call(state, id, params, permit)
        }
        Ok(RpcFrame::Request { id, method, params }) => {
            let response = written(StatusCode::OK, &reply(id, handle(&state, &method, &params).await));
            if method == "initialize" {
                return ([(SESSION_HEADER, state.session_id())], response).into_response();
            }
            response
        }
        // The client is initialized, gives a request up, or replies to nothing.
        Ok(RpcFrame::Notification { .. } | RpcFrame::Answer { .. } | RpcFrame::Error { .. }) => {
            StatusCode::ACCEPTED.into_response()
        }
        Err(fault) => {
            let error = RpcError::new(PARSE_ERROR, format!("not a JSON-RPC 2.0 message: {fault}"));
            written(StatusCode::BAD_REQUEST, &RpcFrame::Error { id: None, error })
        }
    }
}

/// Opens the stream of a client that wants to be notified when the tools change.
async fn listen(State(state): State<Arc<GatewayState>>, headers: HeaderMap) -> Response {
    if !state.admits(&headers) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    match state.open_streams.clone().try_acquire_owned() {
        Ok(permit) => stream_changes(state, permit),
        Err(_) => StatusCode::TOO_MANY_REQUESTS.into_response(),
    }
}

fn reply(id: RpcId, result: RpcResult) -> RpcFrame {
    match result {
        Ok(result) => RpcFrame::Answer { id, result: RawJson::of(&result) },
        Err(error) => RpcFrame::Error { id: Some(id), error },
    }
}

fn written(status: StatusCode, frame: &RpcFrame) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], frame.write(Version::Two)).into_response()
}

/// Replies to a call with a stream of one message.
fn stream_call(state: Arc<GatewayState>, id: RpcId, params: RawJson, permit: OwnedSemaphorePermit) -> Response {
    let message = async move {
        let frame = reply(id, call(&state, &params).await);
        drop(permit);
        Ok::<_, Infallible>(Event::default().event("message").data(frame.write(Version::Two)))
    };
    let keep_alive = KeepAlive::new().interval(Duration::from_millis(KEEP_ALIVE_MS));
    Sse::new(stream::once(message)).keep_alive(keep_alive).into_response()
}

async fn handle(state: &GatewayState, method: &str, params: &RawJson) -> RpcResult {
    match method {
        "initialize" => initialize(params),
        "ping" => Ok(json!({})),
        "tools/list" => list(state).await,
        _ => Err(RpcError::new(METHOD_NOT_FOUND, "there is no such method")),
    }
}

fn initialize(params: &RawJson) -> RpcResult {
    let params: InitializeParams = read_params(params).map_err(|failure| invalid_params(&failure))?;
    let revision = McpRevision::negotiate(&params.protocol_version);
    Ok(json!({"protocolVersion": revision.as_str(), "capabilities": {"tools": {"listChanged": true}},
        "serverInfo": {"name": GATEWAY, "version": env!("CARGO_PKG_VERSION")}}))
}

fn invalid_params(failure: &Failure) -> RpcError {
    RpcError::new(INVALID_PARAMS, failure.message.as_str())
}

async fn list(state: &GatewayState) -> RpcResult {
    let turn = state.current_turn().ok_or_else(|| RpcError::new(INTERNAL_ERROR, NO_TURN))?;
    let listed = turn.tools.list().await.map_err(|failure| RpcError::new(INTERNAL_ERROR, failure.message.as_str()))?;
    let tools: Vec<_> = listed.tools.iter().map(described).collect();
    state.set_listed(list_digest(&tools));
    Ok(json!({ "tools": tools }))
}

async fn call(state: &GatewayState, params: &RawJson) -> RpcResult {
    let params: CallToolParams = read_params(params).map_err(|failure| invalid_params(&failure))?;
    let arguments = params.arguments.filter(|arguments| !arguments.is_null());
    let arguments = arguments.as_ref().map_or("{}", RawJson::as_str);
    let Some(CurrentTurn { tools, mut end }) = state.current_turn() else { return Ok(failed(NO_TURN)) };
    let called = tokio::select! {
        called = tools.call(&params.name, arguments) => called,
        // An error: the sender is dropped with the turn.
        _ = end.changed() => return Ok(failed("the turn has ended")),
    };
    Ok(match called {
        Ok(called) => result_of(&called),
        Err(failure) => failed(&format!("the tool could not be called: {}", failure.message)),
    })
}

/// What the model gets of a call.
fn result_of(called: &CalledTool) -> Value {
    let text = &called.content[..called.content.floor_char_boundary(RESULT_BYTES_MAX)];
    let longer = if called.truncated || text.len() < called.content.len() { LONGER } else { "" };
    let note = format!("{longer}{}", edited_note(called));
    match called.status {
        CallStatus::Completed => content(&format!("{text}{note}"), false),
        CallStatus::Declined => failed(&format!("the call was declined: {text}")),
        CallStatus::Failed | CallStatus::OutcomeUnknown | CallStatus::Running => failed(&format!("{text}{note}")),
    }
}

/// Reports the arguments with which the call was executed, if a person has replaced those that the model sent.
fn edited_note(called: &CalledTool) -> String {
    let Some(edited) = &called.edited_arguments else { return String::new() };
    let whole = text_of(edited);
    let arguments = &whole[..whole.floor_char_boundary(EDITED_BYTES_MAX)];
    let cut = if arguments.len() < whole.len() { "…" } else { "" };
    format!("\n[A person edited the arguments of this call. It was executed with: {arguments}{cut}]")
}

/// A failure that the model reads, and may do better.
fn failed(message: &str) -> Value {
    content(message, true)
}

fn content(text: &str, is_error: bool) -> Value {
    json!({"content": [{"type": "text", "text": text}], "isError": is_error})
}
