//! How much a session's agent does without asking.

use axum::{Json, extract::State};
use ostler_protocol::daemon::{
    approval_modes::{ApprovalModeSet, SetApprovalMode},
    failures::DaemonProblem,
};
use ostler_server::{
    app::App,
    net::{
        api_router::ApiRouter,
        extract::{At, Body},
        problem::Refusal,
    },
    routes,
};

use super::callers::{ClientId, Strict};
use crate::service;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new().routes(routes!(set))
}

/// Set how much the agent does without asking. With `persist`, new sessions of the workspace start so, too.
#[utoipa::path(post, path = "/session/{sessionId}/approval-mode", tag = "daemon", security(("token" = ["submit"])),
    params(("sessionId" = String, Path)), request_body = SetApprovalMode,
    responses((status = 200, body = ApprovalModeSet), (status = "4XX", body = DaemonProblem)))]
async fn set(
    State(app): State<App>,
    Strict(caller): Strict,
    ClientId(client): ClientId,
    At(session_id): At<String>,
    Body(request): Body<SetApprovalMode>,
) -> Result<Json<ApprovalModeSet>, Refusal> {
    Ok(Json(service::approval_modes::set(&app, &caller, &session_id, client.as_deref(), &request).await?))
}
