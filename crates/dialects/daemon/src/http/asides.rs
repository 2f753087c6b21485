//! Questions beside a session, and how much of the context window it takes.

use axum::{Json, extract::State};
use ostler_protocol::daemon::{
    asides::{AskBtw, BtwAnswer, SessionRecap},
    context_usage::{ReadContextUsage, SessionContextUsage},
    failures::DaemonProblem,
};
use ostler_server::{
    app::App,
    net::{
        api_router::ApiRouter,
        extract::{At, Body, Caller, Params},
        problem::Refusal,
    },
    routes,
};

use super::callers::SessionRequest;
use crate::service;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new().routes(routes!(recap)).routes(routes!(btw)).routes(routes!(context_usage))
}

/// Where the work of a session is, in a sentence or two.
///
/// The session's model is asked without tools. No event is written. `recap` is null if there is nothing to recap, or if the
/// model does not answer within 60 s.
#[utoipa::path(post, path = "/session/{sessionId}/recap", tag = "daemon", security(("token" = ["submit"])),
    params(("sessionId" = String, Path)),
    responses((status = 200, body = SessionRecap), (status = "4XX", body = DaemonProblem)))]
async fn recap(
    SessionRequest { app, caller, session_id, client }: SessionRequest,
) -> Result<Json<SessionRecap>, Refusal> {
    Ok(Json(service::asides::recap(&app, &caller, &session_id, client.as_deref()).await?))
}

/// Ask something beside the work of a session.
///
/// The session's model answers from the conversation, without tools, within 60 s. No event is written. A request that is
/// dropped ends the question.
#[utoipa::path(post, path = "/session/{sessionId}/btw", tag = "daemon", security(("token" = ["submit"])),
    params(("sessionId" = String, Path)), request_body = AskBtw,
    responses((status = 200, body = BtwAnswer), (status = "4XX", body = DaemonProblem)))]
async fn btw(
    SessionRequest { app, caller, session_id, client }: SessionRequest,
    Body(request): Body<AskBtw>,
) -> Result<Json<BtwAnswer>, Refusal> {
    Ok(Json(service::asides::btw(&app, &caller, &session_id, client.as_deref(), &request).await?))
}

/// How much of its model's context window a session takes.
///
/// The total is the provider's count of the last model call. Parts of it are estimated; what is not known is 0.
#[utoipa::path(get, path = "/session/{sessionId}/context-usage", tag = "daemon", security(("token" = ["browse"])),
    params(("sessionId" = String, Path), ReadContextUsage),
    responses((status = 200, body = SessionContextUsage), (status = "4XX", body = DaemonProblem)))]
async fn context_usage(
    State(app): State<App>,
    Caller(caller): Caller,
    At(session_id): At<String>,
    Params(request): Params<ReadContextUsage>,
) -> Result<Json<SessionContextUsage>, Refusal> {
    Ok(Json(service::context_usage::get(&app, &caller, &session_id, request.has_details()).await?))
}
