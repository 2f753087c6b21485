//! `/mcp`: post messages, resume a call, end a session.

use std::net::{IpAddr, Ipv4Addr};

use axum::{
    extract::{ConnectInfo, Request, State},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts};
use ostler_protocol::{
    Failure, Rule,
    bodies::RequestBody,
    ids::{McpSessionId, TraceId},
    mcp_server::{
        event_ids::{ENDED, WaitPoint},
        failures::McpFailureBody,
        messages::{McpMessage, McpReply, Posted},
        results::tool_result,
        revisions::{McpRevision, REVISION_HEADER},
    },
    rpc::{RpcFrame, Version},
};
use ostler_server::{
    app::App,
    auth::Principal,
    net::{
        Locality, Peer,
        extract::{BodyBounds, Caller, read_body},
        problem::Refusal,
        sse::wants_stream,
    },
};

use super::streams;
use crate::{
    gate::SESSION_HEADER,
    service::{
        calls::{self, RegisteredCall},
        context::RequestContext,
        dispatch::{HandledMessage, INITIALIZE, handle},
        runs::result_of,
        waits::{WaitStart, WaitStep, Waiter},
    },
};

const BOUNDS: BodyBounds = BodyBounds { bytes_max: McpMessage::BYTES_MAX, values_max: McpMessage::VALUES_MAX };

/// Post a message of the Model Context Protocol.
///
/// A request gets its response as JSON; a call that waits gets it as a stream of events, with notifications of its progress before
/// it. Everything else gets 202.
#[utoipa::path(post, path = "/mcp", tag = "mcp", security(("token" = ["browse"])), request_body = McpMessage,
    params(("Mcp-Session-Id" = Option<String>, Header, description = "As the response to `initialize` has it; optional"),
        ("MCP-Protocol-Version" = Option<String>, Header, description = "The revision that `initialize` returned"),
        ("Last-Event-ID" = Option<String>, Header, description = "Ignored here: GET resumes a stream")),
    responses((status = 200, content((McpReply = "application/json"), (String = "text/event-stream"))), (status = 202),
        (status = "4XX", body = McpFailureBody)))]
pub(crate) async fn post(
    State(app): State<App>,
    Caller(caller): Caller,
    locality: Locality,
    request: Request,
) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    let context = context(&app, caller, locality, &parts)?;
    let headers = parts.headers.clone();
    let body = read_body(Request::from_parts(parts, body), &app, BOUNDS).await?;
    let posted = app.compute(body.len(), || Posted::read(&body, context.revision)).await?;
    match posted {
        Posted::One(message) => Ok(one(&context, &headers, message).await),
        Posted::Batch(messages) => Ok(batch(&context, messages).await?),
    }
}

/// Resume the stream of a call that was interrupted.
///
/// The stream continues behind the event that `Last-Event-ID` names, on any server of the same store, and ends with the response to the
/// call. The server sends nothing of its own accord, so without `Last-Event-ID` there is no stream: 405.
#[utoipa::path(get, path = "/mcp", tag = "mcp", security(("token" = ["browse"])),
    params(("Last-Event-ID" = Option<String>, Header, description = "The last event that the client has received"),
        ("Mcp-Session-Id" = Option<String>, Header, description = "As the response to `initialize` has it; optional"),
        ("MCP-Protocol-Version" = Option<String>, Header, description = "The revision that `initialize` returned")),
    responses((status = 200, content((String = "text/event-stream"))), (status = "4XX", body = McpFailureBody)))]
pub(crate) async fn resume(
    State(app): State<App>,
    Caller(caller): Caller,
    locality: Locality,
    request: Request,
) -> Result<Response, Refusal> {
    let (parts, _) = request.into_parts();
    let context = context(&app, caller, locality, &parts)?;
    let last = parts.headers.get("last-event-id").map(|value| value.to_str().unwrap_or_default());
    let Some(last) = last.filter(|last| *last != ENDED) else {
        let message = "there is no stream to listen to: this server sends nothing of its own accord";
        return Err(Failure::rule(Rule::McpListen, message).into());
    };
    let mut point = WaitPoint::decode(last)?;
    match Waiter::open(&context, &mut point, WaitStart::Resumed).await {
        Ok(Some(waiter)) => Ok(streams::respond(context, &parts.headers, point, waiter)),
        Ok(None) => Ok(streams::single(&finish(&context, &point).await)),
        Err(failure) => Ok(streams::single(&failed(&context, &point, failure))),
    }
}

/// End a session: its calls stop to wait, and its id is unknown from then on. Runs continue.
#[utoipa::path(delete, path = "/mcp", tag = "mcp", security(("token" = ["browse"])),
    params(("Mcp-Session-Id" = Option<String>, Header, description = "The session to end"),
        ("MCP-Protocol-Version" = Option<String>, Header, description = "The revision that `initialize` returned")),
    responses((status = 204), (status = "4XX", body = McpFailureBody)))]
pub(crate) async fn end_session(
    State(app): State<App>,
    Caller(caller): Caller,
    locality: Locality,
    request: Request,
) -> Result<StatusCode, Refusal> {
    let (parts, _) = request.into_parts();
    let context = context(&app, caller, locality, &parts)?;
    let Some(session) = context.session else {
        return Err(Failure::rule(Rule::McpSession, "the Mcp-Session-Id header names the session to end").into());
    };
    calls::end(&app, &context.caller, session);
    Ok(StatusCode::NO_CONTENT)
}

fn context(app: &App, caller: Principal, locality: Locality, parts: &Parts) -> Result<RequestContext, Failure> {
    let peer = parts.extensions.get::<ConnectInfo<Peer>>();
    let peer = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |ConnectInfo(Peer(address))| address.ip());
    let trace_id = parts.extensions.get::<TraceId>().copied();
    let revision = McpRevision::of_header(single_header(&parts.headers, REVISION_HEADER)?.map(HeaderValue::as_bytes))?;
    let session = session(app, &caller, &parts.headers)?;
    Ok(RequestContext {
        app: app.clone(),
        caller,
        locality,
        peer,
        trace_id: trace_id.unwrap_or_else(|| TraceId::new(app.ids.body())),
        revision,
        session,
    })
}

fn single_header<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a HeaderValue>, Failure> {
    let mut values = headers.get_all(name).iter();
    let value = values.next();
    match values.next() {
        None => Ok(value),
        Some(_) => Err(Failure::invalid(Rule::HeaderRepeated, format!("the header {name} is given twice"))),
    }
}

/// The session that a request names. An id that this server did not give out is unknown, and so is one that was ended: the client then
/// initialises again.
fn session(app: &App, caller: &Principal, headers: &HeaderMap) -> Result<Option<McpSessionId>, Failure> {
    let unknown = || Failure::rule(Rule::McpSession, "no such session, or it was ended");
    let Some(value) = single_header(headers, SESSION_HEADER)? else { return Ok(None) };
    let session = value.to_str().ok().and_then(|text| text.parse().ok()).ok_or_else(unknown)?;
    if calls::is_ended(app, caller, session) {
        return Err(unknown());
    }
    Ok(Some(session))
}

async fn one(context: &RequestContext, headers: &HeaderMap, message: RpcFrame) -> Response {
    let starts = matches!(&message, RpcFrame::Request { method, .. } if method == INITIALIZE);
    let mut point = match handle(context, message).await {
        HandledMessage::Accepted => return StatusCode::ACCEPTED.into_response(),
        HandledMessage::Reply(reply) => {
            let mut response = replied(headers, &reply);
            if starts && matches!(*reply, RpcFrame::Answer { .. }) {
                name_session(&context.app, response.headers_mut());
            }
            return response;
        }
        HandledMessage::Waits(point) => point,
    };
    match Waiter::open(context, &mut point, WaitStart::Fresh).await {
        Ok(Some(waiter)) if wants_stream(headers) => streams::respond(context.clone(), headers, *point, waiter),
        Ok(Some(waiter)) => {
            let waited = wait(context, &point, waiter).await;
            replied(headers, &waited)
        }
        Ok(None) => replied(headers, &finish(context, &point).await),
        // The turn is submitted: its caller gets its ids even if there are too many streams to wait on.
        Err(_) if point.wait.command_id.is_some() => replied(headers, &finish(context, &point).await),
        Err(failure) => replied(headers, &failed(context, &point, failure)),
    }
}

/// Handles the messages of a batch one after another. Their calls do not wait: each would prolong the response.
async fn batch(context: &RequestContext, messages: Vec<RpcFrame>) -> Result<Response, Failure> {
    let initializes = |message: &RpcFrame| matches!(message, RpcFrame::Request { method, .. } if method == INITIALIZE);
    if messages.iter().any(initializes) {
        return Err(Failure::invalid(Rule::McpBatch, "initialize must not be part of a batch"));
    }
    let mut replies = vec![];
    for message in messages {
        match handle(context, message).await {
            HandledMessage::Accepted => {}
            HandledMessage::Reply(reply) => replies.push(reply.write(Version::Two)),
            HandledMessage::Waits(point) => replies.push(finish(context, &point).await.write(Version::Two)),
        }
    }
    if replies.is_empty() {
        return Ok(StatusCode::ACCEPTED.into_response());
    }
    Ok(json(format!("[{}]", replies.join(","))))
}

/// Waits without a stream.
async fn wait(context: &RequestContext, point: &WaitPoint, mut waiter: Waiter) -> RpcFrame {
    let registered = RegisteredCall::new(context, &point.request_id);
    loop {
        let step = tokio::select! {
            () = calls::cancelled(registered.as_ref()) => break,
            step = waiter.next() => step,
        };
        match step {
            Ok(WaitStep::Progress { .. }) => {}
            Ok(WaitStep::Over | WaitStep::Cut) => break,
            Err(failure) => return failed(context, point, failure),
        }
    }
    finish(context, point).await
}

/// The response to a call whose wait is over.
pub(super) async fn finish(context: &RequestContext, point: &WaitPoint) -> RpcFrame {
    match result_of(context, &point.wait).await {
        Ok(value) => RpcFrame::Answer { id: point.request_id.clone(), result: tool_result(&value) },
        Err(failure) => failed(context, point, failure),
    }
}

pub(super) fn failed(context: &RequestContext, point: &WaitPoint, failure: Failure) -> RpcFrame {
    let tool = if point.wait.command_id.is_some() { "submit_run" } else { "follow_run" };
    context.failed_call(point.request_id.clone(), failure, tool)
}

/// A reply as the client accepts it: as JSON, unless it accepts only a stream.
fn replied(headers: &HeaderMap, reply: &RpcFrame) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("*/*");
    let takes_json = ["application/json", "application/*", "*/*"].iter().any(|range| accept.contains(range));
    if !takes_json && wants_stream(headers) {
        return streams::single(reply);
    }
    json(reply.write(Version::Two))
}

fn json(text: String) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}

/// Gives the client an id for its session. It has no state, so any server knows it.
fn name_session(app: &App, headers: &mut HeaderMap) {
    if let Ok(value) = HeaderValue::from_str(&McpSessionId::new(app.ids.body()).to_string()) {
        headers.insert(SESSION_HEADER, value);
    }
}
