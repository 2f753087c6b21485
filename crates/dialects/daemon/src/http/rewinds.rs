//! `/session/{sessionId}/rewind`: go back in a conversation.

use axum::{Json, extract::State};
use ostler_protocol::daemon::{
    failures::DaemonProblem,
    rewinds::{RewindSession, RewindSnapshots, SessionRewound},
};
use ostler_server::{
    app::App,
    net::{
        api_router::ApiRouter,
        extract::{At, Body, Caller},
        problem::Refusal,
    },
    routes,
};

use super::callers::{ClientId, Strict};
use crate::service;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new().routes(routes!(list_snapshots)).routes(routes!(rewind))
}

/// The turns that a session can be rewound to, each with what it and later ones have changed.
#[utoipa::path(get, path = "/session/{sessionId}/rewind/snapshots", tag = "daemon", security(("token" = ["browse"])),
    params(("sessionId" = String, Path)),
    responses((status = 200, body = RewindSnapshots), (status = "4XX", body = DaemonProblem)))]
async fn list_snapshots(
    State(app): State<App>,
    Caller(caller): Caller,
    At(session_id): At<String>,
) -> Result<Json<RewindSnapshots>, Refusal> {
    Ok(Json(service::rewinds::list(&app, &caller, &session_id).await?))
}

/// Continue a session before one of its turns.
///
/// Files that the turn and later ones have changed are restored, unless they have changed since.
#[utoipa::path(post, path = "/session/{sessionId}/rewind", tag = "daemon", security(("token" = ["submit"])),
    params(("sessionId" = String, Path)), request_body = RewindSession,
    responses((status = 200, body = SessionRewound), (status = "4XX", body = DaemonProblem)))]
async fn rewind(
    State(app): State<App>,
    Strict(caller): Strict,
    At(session_id): At<String>,
    ClientId(client): ClientId,
    Body(request): Body<RewindSession>,
) -> Result<Json<SessionRewound>, Refusal> {
    Ok(Json(service::rewinds::rewind(&app, &caller, &session_id, client.as_deref(), &request).await?))
}
