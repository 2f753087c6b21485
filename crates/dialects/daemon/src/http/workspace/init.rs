//! `/workspace/init`: a memory file for a workspace that has none.

use axum::{Json, extract::State};
use ostler_protocol::daemon::{
    failures::DaemonProblem,
    workspace::{InitWorkspace, WorkspaceInitialized},
};
use ostler_server::{
    app::App,
    net::{extract::OptionalBody, problem::Refusal},
};

use crate::{
    http::callers::{ClientId, Strict},
    service,
};

/// Create a memory file from a template. A file with content is only overwritten with `force`.
#[utoipa::path(post, path = "/workspace/init", tag = "daemon", security(("token" = ["submit"])),
    request_body = InitWorkspace,
    responses((status = 200, body = WorkspaceInitialized), (status = "4XX", body = DaemonProblem)))]
pub(super) async fn init(
    State(app): State<App>,
    Strict(caller): Strict,
    ClientId(client): ClientId,
    OptionalBody(request): OptionalBody<InitWorkspace>,
) -> Result<Json<WorkspaceInitialized>, Refusal> {
    Ok(Json(service::workspace_init::init(&app, &caller, client, request).await?))
}
