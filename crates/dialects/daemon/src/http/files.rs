//! `/file…`, `/list`, `/glob`, `/stat`: the files of the workspace.

use axum::{
    Json,
    extract::{FromRequest, FromRequestParts, Request, State},
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header, request::Parts};
use ostler_protocol::{
    Failure, FailureKind,
    bodies::RequestBody,
    daemon::{
        failures::DaemonProblem,
        files::{
            ERROR_KIND, EditWorkspaceFile, EditedWorkspaceFile, FileError, GlobQuery, ListQuery, ReadBytesQuery,
            ReadFileQuery, StatQuery, WorkspaceFile, WorkspaceFileBytes, WorkspaceGlob, WorkspaceListing,
            WorkspaceStat, WriteWorkspaceFile, WrittenWorkspaceFile,
        },
    },
};
use ostler_server::{
    app::App,
    net::{
        api_router::ApiRouter,
        extract::{Body, Caller, Params},
        problem::Refusal,
    },
    routes,
};
use serde::{Serialize, de::DeserializeOwned};

use super::callers::{ClientId, Strict};
use crate::service;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .routes(routes!(read))
        .routes(routes!(read_bytes))
        .routes(routes!(stat))
        .routes(routes!(list))
        .routes(routes!(glob))
        .routes(routes!(write))
        .routes(routes!(edit))
}

/// Read a text file of the workspace, or some lines of it.
#[utoipa::path(get, path = "/file", tag = "daemon", operation_id = "daemon_read_file",
    security(("token" = ["submit"])), params(ReadFileQuery),
    responses((status = 200, body = WorkspaceFile), (status = "4XX", body = DaemonProblem)))]
async fn read(
    State(app): State<App>,
    Caller(caller): Caller,
    _client: ClientId,
    FileParams(query): FileParams<ReadFileQuery>,
) -> Result<Private<WorkspaceFile>, Refusal> {
    Ok(Private::ok(service::files::read(&app, &caller, &query).await?))
}

/// Read bytes of a file of the workspace.
#[utoipa::path(get, path = "/file/bytes", tag = "daemon", operation_id = "daemon_read_file_bytes",
    security(("token" = ["submit"])), params(ReadBytesQuery),
    responses((status = 200, body = WorkspaceFileBytes), (status = "4XX", body = DaemonProblem)))]
async fn read_bytes(
    State(app): State<App>,
    Caller(caller): Caller,
    _client: ClientId,
    FileParams(query): FileParams<ReadBytesQuery>,
) -> Result<Private<WorkspaceFileBytes>, Refusal> {
    Ok(Private::ok(service::files::read_bytes(&app, &caller, &query).await?))
}

/// Get the type, size and time of a file or directory of the workspace.
#[utoipa::path(get, path = "/stat", tag = "daemon", operation_id = "daemon_stat_file",
    security(("token" = ["submit"])), params(StatQuery),
    responses((status = 200, body = WorkspaceStat), (status = "4XX", body = DaemonProblem)))]
async fn stat(
    State(app): State<App>,
    Caller(caller): Caller,
    _client: ClientId,
    FileParams(query): FileParams<StatQuery>,
) -> Result<Private<WorkspaceStat>, Refusal> {
    Ok(Private::ok(service::files::stat(&app, &caller, &query).await?))
}

/// List a directory of the workspace.
#[utoipa::path(get, path = "/list", tag = "daemon", operation_id = "daemon_list_files",
    security(("token" = ["submit"])), params(ListQuery),
    responses((status = 200, body = WorkspaceListing), (status = "4XX", body = DaemonProblem)))]
async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    _client: ClientId,
    FileParams(query): FileParams<ListQuery>,
) -> Result<Private<WorkspaceListing>, Refusal> {
    Ok(Private::ok(service::files::list(&app, &caller, &query).await?))
}

/// Find paths of the workspace by a pattern.
#[utoipa::path(get, path = "/glob", tag = "daemon", operation_id = "daemon_glob_files",
    security(("token" = ["submit"])), params(GlobQuery),
    responses((status = 200, body = WorkspaceGlob), (status = "4XX", body = DaemonProblem)))]
async fn glob(
    State(app): State<App>,
    Caller(caller): Caller,
    _client: ClientId,
    FileParams(query): FileParams<GlobQuery>,
) -> Result<Private<WorkspaceGlob>, Refusal> {
    Ok(Private::ok(service::files::glob(&app, &caller, &query).await?))
}

/// Create a text file of the workspace, or replace the one with the expected hash.
#[utoipa::path(post, path = "/file/write", tag = "daemon", operation_id = "daemon_write_file",
    security(("token" = ["submit"])), request_body = WriteWorkspaceFile,
    responses((status = 200, body = WrittenWorkspaceFile), (status = 201, body = WrittenWorkspaceFile),
        (status = "4XX", body = DaemonProblem)))]
async fn write(
    State(app): State<App>,
    Strict(caller): Strict,
    ClientId(client): ClientId,
    FileBody(body): FileBody<WriteWorkspaceFile>,
) -> Result<Private<WrittenWorkspaceFile>, Refusal> {
    let written = service::files::write(&app, &caller, client.as_deref(), body).await?;
    let status = if written.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(Private(status, written))
}

/// Replace the only occurrence of a text in a file of the workspace.
#[utoipa::path(post, path = "/file/edit", tag = "daemon", operation_id = "daemon_edit_file",
    security(("token" = ["submit"])), request_body = EditWorkspaceFile,
    responses((status = 200, body = EditedWorkspaceFile), (status = "4XX", body = DaemonProblem)))]
async fn edit(
    State(app): State<App>,
    Strict(caller): Strict,
    ClientId(client): ClientId,
    FileBody(body): FileBody<EditWorkspaceFile>,
) -> Result<Private<EditedWorkspaceFile>, Refusal> {
    Ok(Private::ok(service::files::edit(&app, &caller, client.as_deref(), body).await?))
}

/// A response that no cache stores and no browser takes for another type.
struct Private<T>(StatusCode, T);

impl<T> Private<T> {
    fn ok(body: T) -> Self {
        Self(StatusCode::OK, body)
    }
}

impl<T: Serialize> IntoResponse for Private<T> {
    fn into_response(self) -> Response {
        let headers = [
            (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
            (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        ];
        (self.0, headers, Json(self.1)).into_response()
    }
}

/// The query of a request about files.
struct FileParams<T>(T);

impl<T: DeserializeOwned> FromRequestParts<App> for FileParams<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        Params::from_request_parts(parts, app).await.map(|Params(query)| Self(query)).map_err(as_file_error)
    }
}

/// The body of a request about files.
struct FileBody<T>(T);

impl<T: RequestBody> FromRequest<App> for FileBody<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &App) -> Result<Self, Refusal> {
        Body::from_request(request, app).await.map(|Body(body)| Self(body)).map_err(as_file_error)
    }
}

/// The same failure in the form that all failures about files have.
fn as_file_error(Refusal(failure): Refusal) -> Refusal {
    let kind = match failure.kind {
        FailureKind::SchemaInvalid => FileError::Parse,
        FailureKind::PayloadTooLarge => FileError::TooLarge,
        _ => return Refusal(failure),
    };
    let failure: Failure = failure.detail(ERROR_KIND, kind.as_str());
    Refusal(failure)
}
