//! `/session/{sessionId}/shell`: run a command in the workspace.

use axum::{Json, extract::State};
use ostler_protocol::daemon::{
    failures::DaemonProblem,
    shell::{RunShell, ShellResult},
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
    ApiRouter::new().routes(routes!(run))
}

/// Run a shell command in the workspace of a session.
///
/// It is confined as the tools of agents are, and killed after 120 s or if the client hangs up. The agent gets the beginning of its
/// output with the next prompt.
#[utoipa::path(post, path = "/session/{sessionId}/shell", tag = "daemon", security(("token" = ["submit"])),
    params(("sessionId" = String, Path)), request_body = RunShell,
    responses((status = 200, body = ShellResult), (status = "4XX", body = DaemonProblem)))]
async fn run(
    State(app): State<App>,
    Strict(caller): Strict,
    At(session_id): At<String>,
    ClientId(client): ClientId,
    Body(request): Body<RunShell>,
) -> Result<Json<ShellResult>, Refusal> {
    Ok(Json(service::shell::run(&app, &caller, &session_id, client.as_deref(), &request).await?))
}
