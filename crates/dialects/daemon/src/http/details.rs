//! What a client reads and sets of a session beside its prompts: models, language, usage, tasks.

use axum::{Json, extract::State};
use ostler_protocol::daemon::{
    failures::DaemonProblem,
    languages::{LanguageSet, SetLanguage},
    models::{ModelSet, SessionContext, SetModel},
    stats::SessionStats,
    tasks::{CancelTask, SessionTasks, TaskCancelled},
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

use super::callers::{ClientId, SessionRequest, Strict};
use crate::service;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .routes(routes!(context))
        .routes(routes!(stats))
        .routes(routes!(tasks))
        .routes(routes!(cancel_task))
        .routes(routes!(set_model))
        .routes(routes!(set_language))
}

/// The models of a session, and the current one.
#[utoipa::path(get, path = "/session/{sessionId}/context", tag = "daemon", security(("token" = ["browse"])),
    params(("sessionId" = String, Path)),
    responses((status = 200, body = SessionContext), (status = "4XX", body = DaemonProblem)))]
async fn context(
    State(app): State<App>,
    Caller(caller): Caller,
    At(session_id): At<String>,
) -> Result<Json<SessionContext>, Refusal> {
    Ok(Json(service::models::context(&app, &caller, &session_id).await?))
}

/// What a session has used: turns, tokens, tool calls.
#[utoipa::path(get, path = "/session/{sessionId}/stats", tag = "daemon", security(("token" = ["browse"])),
    params(("sessionId" = String, Path)),
    responses((status = 200, body = SessionStats), (status = "4XX", body = DaemonProblem)))]
async fn stats(
    State(app): State<App>,
    Caller(caller): Caller,
    At(session_id): At<String>,
) -> Result<Json<SessionStats>, Refusal> {
    Ok(Json(service::stats::get(&app, &caller, &session_id).await?))
}

/// The prompts of a session that wait or run.
#[utoipa::path(get, path = "/session/{sessionId}/tasks", tag = "daemon", security(("token" = ["browse"])),
    params(("sessionId" = String, Path)),
    responses((status = 200, body = SessionTasks), (status = "4XX", body = DaemonProblem)))]
async fn tasks(
    State(app): State<App>,
    Caller(caller): Caller,
    At(session_id): At<String>,
) -> Result<Json<SessionTasks>, Refusal> {
    Ok(Json(service::tasks::list(&app, &caller, &session_id).await?))
}

/// Cancel one prompt, also one that waits behind others.
#[utoipa::path(post, path = "/session/{sessionId}/tasks/{taskId}/cancel", tag = "daemon",
    security(("token" = ["submit"])), params(("sessionId" = String, Path), ("taskId" = String, Path)),
    request_body = CancelTask,
    responses((status = 200, body = TaskCancelled), (status = "4XX", body = DaemonProblem)))]
async fn cancel_task(
    State(app): State<App>,
    Strict(caller): Strict,
    ClientId(client): ClientId,
    At((session_id, task_id)): At<(String, String)>,
    Body(request): Body<CancelTask>,
) -> Result<Json<TaskCancelled>, Refusal> {
    let (client, kind) = (client.as_deref(), request.kind.as_deref());
    Ok(Json(service::tasks::cancel(&app, &caller, &session_id, client, &task_id, kind).await?))
}

/// Let another model handle the session's next prompt.
#[utoipa::path(post, path = "/session/{sessionId}/model", tag = "daemon", security(("token" = ["submit"])),
    params(("sessionId" = String, Path)), request_body = SetModel,
    responses((status = 200, body = ModelSet), (status = "4XX", body = DaemonProblem)))]
async fn set_model(
    SessionRequest { app, caller, session_id, client }: SessionRequest,
    Body(request): Body<SetModel>,
) -> Result<Json<ModelSet>, Refusal> {
    let (client, model_id) = (client.as_deref(), request.model_id.as_deref());
    Ok(Json(service::models::set(&app, &caller, &session_id, client, model_id).await?))
}

/// Set the language that clients show and, with `syncOutputLanguage`, the one that the agent replies in.
#[utoipa::path(post, path = "/session/{sessionId}/language", tag = "daemon", security(("token" = ["submit"])),
    params(("sessionId" = String, Path)), request_body = SetLanguage,
    responses((status = 200, body = LanguageSet), (status = "4XX", body = DaemonProblem)))]
async fn set_language(
    SessionRequest { app, caller, session_id, client }: SessionRequest,
    Body(request): Body<SetLanguage>,
) -> Result<Json<LanguageSet>, Refusal> {
    Ok(Json(service::languages::set(&app, &caller, &session_id, client.as_deref(), &request).await?))
}
