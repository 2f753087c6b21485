//! `/api/v1/agent/runs…`: post a message, follow the run, cancel it.

use std::{io, time::Duration};

use axum::{
    Json,
    body::{Body as AxumBody, Bytes},
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use http::{HeaderMap, StatusCode};
use ostler_protocol::{
    Failure, FailureKind, Rule,
    run_input::{
        agui::{
            events::{AgUiEvent, EventBody},
            input::{Form, RunInput},
            translate::SentEvent,
        },
        failures::RunInputProblem,
        failures::{failure_code, is_of_interrupts},
        runs::{CancelAccepted, CancelRunQuery, RunAgentInput, RunEventsQuery, TaskAccepted},
    },
};
use serde_json::Map;
use tokio::time::Instant;

use crate::service::{
    self,
    runs::{NextEvent, Position, RunStream},
};
use ostler_server::{
    app::App,
    auth::Principal,
    net::{
        Locality,
        extract::{At, Caller, LARGEST, Params, read_body},
        problem::Refusal,
        sse::{KEEP_ALIVE, as_events, next_within, turned_away, wants_stream},
    },
};

/// Start an agent's run: one user message, or the answers to a run's interrupts.
///
/// Responds when the message is durable; follow the run at `GET …/events`. With `Accept: text/event-stream` the run's events
/// come in the same response. Idempotent by `runId`: the same body again gets the same response.
#[utoipa::path(post, path = "/api/v1/agent/runs", tag = "agent", security(("token" = ["own"])),
    params(("Last-Event-ID" = Option<String>, Header, description = "On a stream: only events after this one")),
    request_body = RunAgentInput,
    responses((status = 202, body = TaskAccepted), (status = 200, content((String = "text/event-stream"))),
        (status = "4XX", body = RunInputProblem)))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(caller): Caller,
    locality: Locality,
    request: Request,
) -> Result<Response, Refusal> {
    let headers = request.headers().clone();
    let streams = wants_stream(&headers);
    let form = if streams { Form::Streamed } else { Form::Queued };
    let body = read_body(request, &app, LARGEST).await.map_err(as_payload_error)?;
    let input = match app.compute(body.len(), || RunInput::read(&body, form)).await.map_err(Failure::from) {
        Ok(input) => input,
        Err(failure) if streams && is_of_interrupts(&failure) => return Ok(error_response(&app, &failure)),
        Err(failure) => return Err(failure.into()),
    };
    // A thread that does not exist has called no tools: results at the end belong to the message, as in the other form.
    let input = match streams && service::runs::only_answers_new_thread(&app, &caller, &input).await? {
        true => match app.compute(body.len(), || RunInput::read(&body, Form::Opening)).await.map_err(Failure::from) {
            Ok(opening) => opening,
            // The thread has no message either. The answers are rejected below, because no call waits for them.
            Err(failure) => {
                tracing::debug!(%failure, "the answers to a thread that does not exist cannot be read as its message");
                input
            }
        },
        false => input,
    };
    if !streams {
        let accepted = service::runs::accept(&app, &caller, locality, &input).await?;
        return Ok((StatusCode::ACCEPTED, Json(accepted.task())).into_response());
    }
    let after = last_event_id(&headers)?;
    match service::runs::accept_and_follow(&app, &caller, locality, &input, after).await {
        Ok(stream) => Ok(stream_response(&app, caller, &headers, stream, None)),
        // A client whose answers to interrupts are wrong or missing receives the event that its protocol has for that.
        Err(failure) if is_of_interrupts(&failure) => Ok(error_response(&app, &failure)),
        Err(failure) => Err(failure.into()),
    }
}

/// Follow a run: a stream of AG-UI events that ends after the run's terminal event.
///
/// Reconnect with `Last-Event-ID` and no event is missed or repeated.
#[utoipa::path(get, path = "/api/v1/agent/runs/{threadId}/events", tag = "agent", security(("token" = ["own"])),
    params(("threadId" = String, Path), RunEventsQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "Only events after this one")),
    responses((status = 200, content((String = "text/event-stream"))), (status = "4XX", body = RunInputProblem)))]
pub(crate) async fn events(
    State(app): State<App>,
    Caller(caller): Caller,
    At(thread_id): At<String>,
    Params(query): Params<RunEventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let (idle, after) = (query.idle()?, last_event_id(&headers)?);
    let stream = service::runs::follow(&app, &caller, &thread_id, query.run_id(), after).await?;
    Ok(stream_response(&app, caller, &headers, stream, Some(idle)))
}

/// Request the cancellation of a run. The run's events report when it has ended.
#[utoipa::path(post, path = "/api/v1/agent/runs/{threadId}/cancel", tag = "agent", security(("token" = ["own"])),
    params(("threadId" = String, Path), CancelRunQuery),
    responses((status = 202, body = CancelAccepted), (status = "4XX", body = RunInputProblem)))]
pub(crate) async fn cancel(
    State(app): State<App>,
    Caller(caller): Caller,
    At(thread_id): At<String>,
    Params(query): Params<CancelRunQuery>,
) -> Result<(StatusCode, Json<CancelAccepted>), Refusal> {
    let accepted = service::runs::cancel(&app, &caller, &thread_id, query.run_id()).await?;
    Ok((StatusCode::ACCEPTED, Json(accepted)))
}

/// Reports a body that is too large for any request like one that is too large for this request.
fn as_payload_error(failure: Failure) -> Failure {
    match failure.kind {
        FailureKind::PayloadTooLarge => {
            Failure::rule(Rule::AgentPayloadInvalid, "RunAgentInput payload exceeds size limit")
        }
        _ => failure,
    }
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<Position>, Failure> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let id = value.to_str().ok().and_then(|text| text.parse().ok());
    id.map(Some)
        .ok_or_else(|| Failure::invalid(Rule::AgentInvalidLastEventId, "Last-Event-ID must be the id of an event"))
}

/// Streams the run's events, each under its id. A stream that ends without its terminal event looks like a success to stock
/// clients, so a stream that cannot continue is aborted, not ended.
fn stream_response(
    app: &App,
    caller: Principal,
    headers: &HeaderMap,
    stream: RunStream,
    idle: Option<Duration>,
) -> Response {
    let heartbeat = Duration::from_millis(app.config.limits.heartbeat_ms);
    let gone = Box::pin(turned_away(app, caller, headers));
    let events = stream::unfold(Some(stream), |stream| async move {
        let mut stream = stream?;
        match stream.next().await {
            Ok(NextEvent::Events(sent)) => Some((Ok(frames(&sent)), Some(stream))),
            Ok(NextEvent::Over) => None,
            Ok(NextEvent::Cut) => Some((Err(io::Error::other("the server stops")), None)),
            Err(failure) => {
                tracing::warn!(%failure, "a run's stream was aborted");
                Some((Err(io::Error::other("the store did not answer")), None))
            }
        }
    });
    let state = (Box::pin(events), Instant::now(), gone);
    let frames = stream::unfold(Some(state), move |state| async move {
        let (mut events, since, mut gone) = state?;
        let left = idle.map(|limit| limit.saturating_sub(since.elapsed()));
        let wait = left.map_or(heartbeat, |left| left.min(heartbeat));
        let next = tokio::select! {
            () = &mut gone => return Some((Err(io::Error::other("the caller is not let in any more")), None)),
            next = next_within(&mut events, wait) => next,
        };
        match next {
            None if left.is_some_and(|left| left <= heartbeat) => None,
            None => Some((Ok(KEEP_ALIVE), Some((events, since, gone)))),
            Some(frame) => frame.map(|frame| (frame, Some((events, Instant::now(), gone)))),
        }
    });
    as_events(AxumBody::from_stream(frames))
}

fn frames(sent: &[SentEvent]) -> Bytes {
    let frames = sent.iter().map(|SentEvent { id, event }| format!("id: {id}\n{}", frame(event)));
    frames.collect::<String>().into()
}

fn frame(event: &AgUiEvent) -> String {
    format!("event: {}\ndata: {}\n\n", event.body.type_name(), event.to_json())
}

/// A stream of one event with the error. The run was not stored, so the event has no id.
fn error_response(app: &App, failure: &Failure) -> Response {
    let body = EventBody::RunError {
        message: app.redactor.redact(&failure.message).into_owned(),
        code: failure_code(failure).into_owned(),
        usage: vec![],
    };
    let event = AgUiEvent { body, timestamp: app.now().as_millisecond(), metadata: Map::new() };
    as_events(AxumBody::from(frame(&event)))
}
