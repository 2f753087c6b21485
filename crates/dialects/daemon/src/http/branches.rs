//! `/session/{sessionId}/branch`: continue a conversation in another session.

use axum::Json;
use http::StatusCode;
use ostler_protocol::daemon::{
    branches::{BranchSession, BranchedSession},
    failures::DaemonProblem,
};
use ostler_server::{
    app::App,
    net::{api_router::ApiRouter, extract::OptionalBody, problem::Refusal},
    routes,
};

use super::callers::SessionRequest;
use crate::service;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new().routes(routes!(branch))
}

/// Open a session that continues the conversation of this one.
#[utoipa::path(post, path = "/session/{sessionId}/branch", tag = "daemon", security(("token" = ["submit"])),
    params(("sessionId" = String, Path)), request_body = BranchSession,
    responses((status = 201, body = BranchedSession), (status = "4XX", body = DaemonProblem)))]
async fn branch(
    SessionRequest { app, caller, session_id, client }: SessionRequest,
    OptionalBody(request): OptionalBody<BranchSession>,
) -> Result<(StatusCode, Json<BranchedSession>), Refusal> {
    let branched = service::branches::create(&app, &caller, &session_id, client.as_deref(), &request).await?;
    Ok((StatusCode::CREATED, Json(branched)))
}
