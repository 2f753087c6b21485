//! `/session…`: open, load, close and rename sessions, and list those of the workspace.

use axum::{Json, extract::State};
use http::StatusCode;
use ostler_protocol::daemon::{
    failures::DaemonProblem,
    sessions::{
        AttachedSession, ListDaemonSessions, ListedSessions, OpenDaemonSession, RestoreSession, RestoredSession,
        SessionHeartbeat, SessionMetadata, UpdateMetadata,
    },
};
use ostler_server::{
    app::App,
    net::{
        api_router::ApiRouter,
        extract::{At, Body, Caller, OptionalBody, Params},
        problem::Refusal,
    },
    routes,
};

use super::callers::{ClientId, SessionRequest};
use crate::service;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .routes(routes!(create))
        .routes(routes!(load))
        .routes(routes!(resume))
        .routes(routes!(list))
        .routes(routes!(update_metadata))
        .routes(routes!(heartbeat))
        .routes(routes!(close))
}

/// Open a session, or attach to the one that the caller's clients share.
#[utoipa::path(post, path = "/session", tag = "daemon", security(("token" = ["submit"])),
    request_body = OpenDaemonSession,
    responses((status = 200, body = AttachedSession), (status = "4XX", body = DaemonProblem)))]
async fn create(
    State(app): State<App>,
    Caller(caller): Caller,
    ClientId(client): ClientId,
    OptionalBody(request): OptionalBody<OpenDaemonSession>,
) -> Result<Json<AttachedSession>, Refusal> {
    Ok(Json(service::sessions::create(&app, &caller, client.as_deref(), &request).await?))
}

/// Attach to a session, and open it again if it was closed.
///
/// A client that follows its events from id 0 receives the whole history.
#[utoipa::path(post, path = "/session/{sessionId}/load", tag = "daemon", security(("token" = ["submit"])),
    params(("sessionId" = String, Path)), request_body = RestoreSession,
    responses((status = 200, body = RestoredSession), (status = "4XX", body = DaemonProblem)))]
async fn load(
    SessionRequest { app, caller, session_id, client }: SessionRequest,
    OptionalBody(request): OptionalBody<RestoreSession>,
) -> Result<Json<RestoredSession>, Refusal> {
    Ok(Json(service::sessions::load(&app, &caller, &session_id, client.as_deref(), &request).await?))
}

/// Attach to a session, and open it again if it was closed, for a client that needs no history.
#[utoipa::path(post, path = "/session/{sessionId}/resume", tag = "daemon", security(("token" = ["submit"])),
    params(("sessionId" = String, Path)), request_body = RestoreSession,
    responses((status = 200, body = RestoredSession), (status = "4XX", body = DaemonProblem)))]
async fn resume(
    SessionRequest { app, caller, session_id, client }: SessionRequest,
    OptionalBody(request): OptionalBody<RestoreSession>,
) -> Result<Json<RestoredSession>, Refusal> {
    Ok(Json(service::sessions::resume(&app, &caller, &session_id, client.as_deref(), &request).await?))
}

/// The sessions of the workspace, open and closed, newest first.
#[utoipa::path(get, path = "/workspace/{cwd}/sessions", tag = "daemon", security(("token" = ["browse"])),
    params(("cwd" = String, Path, description = "The absolute path of the workspace, percent-encoded"), ListDaemonSessions),
    responses((status = 200, body = ListedSessions), (status = "4XX", body = DaemonProblem)))]
async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    At(cwd): At<String>,
    Params(request): Params<ListDaemonSessions>,
) -> Result<Json<ListedSessions>, Refusal> {
    Ok(Json(service::sessions::list(&app, &caller, &cwd, &request).await?))
}

/// Rename a session.
#[utoipa::path(patch, path = "/session/{sessionId}/metadata", tag = "daemon", security(("token" = ["submit"])),
    params(("sessionId" = String, Path)), request_body = UpdateMetadata,
    responses((status = 200, body = SessionMetadata), (status = "4XX", body = DaemonProblem)))]
async fn update_metadata(
    SessionRequest { app, caller, session_id, client }: SessionRequest,
    Body(request): Body<UpdateMetadata>,
) -> Result<Json<SessionMetadata>, Refusal> {
    let updated = service::sessions::update_metadata(&app, &caller, &session_id, client.as_deref(), &request).await?;
    Ok(Json(updated))
}

/// Report that a client is still there.
#[utoipa::path(post, path = "/session/{sessionId}/heartbeat", tag = "daemon", security(("token" = ["submit"])),
    params(("sessionId" = String, Path)),
    responses((status = 200, body = SessionHeartbeat), (status = "4XX", body = DaemonProblem)))]
async fn heartbeat(
    SessionRequest { app, caller, session_id, client }: SessionRequest,
) -> Result<Json<SessionHeartbeat>, Refusal> {
    Ok(Json(service::sessions::heartbeat(&app, &caller, &session_id, client.as_deref()).await?))
}

/// Close a session. Its prompts are cancelled; its conversation stays and can be loaded again.
#[utoipa::path(delete, path = "/session/{sessionId}", tag = "daemon", security(("token" = ["submit"])),
    params(("sessionId" = String, Path)),
    responses((status = 204), (status = "4XX", body = DaemonProblem)))]
async fn close(SessionRequest { app, caller, session_id, client }: SessionRequest) -> Result<StatusCode, Refusal> {
    service::sessions::close(&app, &caller, &session_id, client.as_deref()).await?;
    Ok(StatusCode::NO_CONTENT)
}
