//! `/session/{sessionId}/prompt` and `/cancel`: submit a prompt, and cancel the one that runs.

use std::convert::Infallible;

use axum::{
    body::{Body as AxumBody, Bytes},
    response::Response,
};
use futures_util::stream;
use http::{HeaderValue, StatusCode, header};
use ostler_protocol::{
    RawJson,
    daemon::{
        failures::DaemonProblem,
        prompts::{PromptAccepted, SubmitPrompt},
    },
};
use ostler_server::{
    app::App,
    net::{api_router::ApiRouter, extract::Body, problem::Refusal},
    routes,
};

use super::callers::SessionRequest;
use crate::{replies::PendingReply, service};

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new().routes(routes!(submit)).routes(routes!(cancel))
}

/// Submit a prompt. It runs when the earlier ones of the session have ended.
///
/// Responds when the prompt is durable; its result arrives on the event stream, as `turn_complete` or `turn_error`.
#[utoipa::path(post, path = "/session/{sessionId}/prompt", tag = "daemon", security(("token" = ["submit"])),
    params(("sessionId" = String, Path)), request_body = SubmitPrompt,
    responses((status = 202, body = PromptAccepted), (status = "4XX", body = DaemonProblem)))]
async fn submit(
    SessionRequest { app, caller, session_id, client }: SessionRequest,
    Body(request): Body<SubmitPrompt>,
) -> Result<Response, Refusal> {
    let (accepted, pending) = service::prompts::submit(&app, &caller, &session_id, client.as_deref(), &request).await?;
    Ok(accepted_response(&accepted, pending))
}

/// The response, whose body drops `pending` when it was read to its end.
fn accepted_response(accepted: &PromptAccepted, pending: PendingReply) -> Response {
    let text = RawJson::of(accepted).as_str().to_owned();
    let length = HeaderValue::from(text.len());
    let body = stream::unfold((Some(Bytes::from(text)), pending), |(text, pending)| async move {
        text.map(|text| (Ok::<_, Infallible>(text), (None, pending)))
    });
    let mut response = Response::new(AxumBody::from_stream(body));
    *response.status_mut() = StatusCode::ACCEPTED;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CONTENT_LENGTH, length);
    response
}

/// Cancel the prompt that runs. Prompts that wait go on.
#[utoipa::path(post, path = "/session/{sessionId}/cancel", tag = "daemon", security(("token" = ["submit"])),
    params(("sessionId" = String, Path)),
    responses((status = 204), (status = "4XX", body = DaemonProblem)))]
async fn cancel(SessionRequest { app, caller, session_id, client }: SessionRequest) -> Result<StatusCode, Refusal> {
    service::prompts::cancel(&app, &caller, &session_id, client.as_deref()).await?;
    Ok(StatusCode::NO_CONTENT)
}
