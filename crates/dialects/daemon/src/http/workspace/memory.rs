//! `/workspace/memory`: files with what agents should know.

use axum::{Json, extract::State};
use ostler_protocol::daemon::{
    failures::DaemonProblem,
    memory::{MemoryStatus, MemoryWritten, WriteMemory},
};
use ostler_server::{
    app::App,
    net::{
        extract::{Body, Caller},
        problem::Refusal,
    },
};

use crate::{
    http::callers::{ClientId, Strict},
    service,
};

/// List the memory files, with their sizes.
#[utoipa::path(get, path = "/workspace/memory", tag = "daemon", security(("token" = ["browse"])),
    responses((status = 200, body = MemoryStatus), (status = "4XX", body = DaemonProblem)))]
pub(super) async fn get(State(app): State<App>, Caller(caller): Caller) -> Result<Json<MemoryStatus>, Refusal> {
    Ok(Json(service::memory::get(&app, &caller).await?))
}

/// Append to a memory file, or replace it. The content precedes every later prompt.
#[utoipa::path(post, path = "/workspace/memory", tag = "daemon", security(("token" = ["submit"])),
    request_body = WriteMemory,
    responses((status = 200, body = MemoryWritten), (status = "4XX", body = DaemonProblem)))]
pub(super) async fn write(
    State(app): State<App>,
    Strict(caller): Strict,
    ClientId(client): ClientId,
    Body(request): Body<WriteMemory>,
) -> Result<Json<MemoryWritten>, Refusal> {
    Ok(Json(service::memory::write(&app, &caller, client, request).await?))
}
