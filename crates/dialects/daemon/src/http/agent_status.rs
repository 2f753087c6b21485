//! What only the session's coding agent knows: commands, language servers and hooks.

use axum::{Json, extract::State};
use ostler_protocol::daemon::{
    agent_status::{SessionHooks, SessionLsp, SupportedCommands},
    failures::DaemonProblem,
};
use ostler_server::{
    app::App,
    net::{
        api_router::ApiRouter,
        extract::{At, Caller},
        problem::Refusal,
    },
    routes,
};

use crate::service;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new().routes(routes!(supported_commands)).routes(routes!(lsp)).routes(routes!(hooks))
}

/// The slash commands and skills of a session's agent.
#[utoipa::path(get, path = "/session/{sessionId}/supported-commands", tag = "daemon", security(("token" = ["browse"])),
    params(("sessionId" = String, Path)),
    responses((status = 200, body = SupportedCommands), (status = "4XX", body = DaemonProblem)))]
async fn supported_commands(
    State(app): State<App>,
    Caller(caller): Caller,
    At(session_id): At<String>,
) -> Result<Json<SupportedCommands>, Refusal> {
    Ok(Json(service::agent_status::supported_commands(&app, &caller, &session_id).await?))
}

/// The language servers of a session's agent.
#[utoipa::path(get, path = "/session/{sessionId}/lsp", tag = "daemon", security(("token" = ["browse"])),
    params(("sessionId" = String, Path)),
    responses((status = 200, body = SessionLsp), (status = "4XX", body = DaemonProblem)))]
async fn lsp(
    State(app): State<App>,
    Caller(caller): Caller,
    At(session_id): At<String>,
) -> Result<Json<SessionLsp>, Refusal> {
    Ok(Json(service::agent_status::lsp(&app, &caller, &session_id).await?))
}

/// The hooks that run in a session.
#[utoipa::path(get, path = "/session/{sessionId}/hooks", tag = "daemon", security(("token" = ["browse"])),
    params(("sessionId" = String, Path)),
    responses((status = 200, body = SessionHooks), (status = "4XX", body = DaemonProblem)))]
async fn hooks(
    State(app): State<App>,
    Caller(caller): Caller,
    At(session_id): At<String>,
) -> Result<Json<SessionHooks>, Refusal> {
    Ok(Json(service::agent_status::session_hooks(&app, &caller, &session_id).await?))
}
