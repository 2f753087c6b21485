//! `/workspace/mcp…` and `/workspace/tools…`: MCP servers and tools of the workspace.

use axum::{Json, extract::State};
use ostler_protocol::daemon::{
    failures::DaemonProblem,
    mcp::{
        AddMcpServer, McpManageAction, McpManaged, McpRestarted, McpServerAdded, McpServerRemoved, McpStatus,
        McpToolsStatus, RestartQuery, ToggleTool, ToolToggled,
    },
};
use ostler_server::{
    app::App,
    net::{
        api_router::ApiRouter,
        extract::{At, Body, Caller, Params},
        problem::Refusal,
    },
    routes,
};

use super::callers::{ClientId, Strict, StrictRequest};
use crate::service;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .routes(routes!(status))
        .routes(routes!(tools))
        .routes(routes!(restart))
        .routes(routes!(enable))
        .routes(routes!(disable))
        .routes(routes!(authenticate))
        .routes(routes!(clear_auth))
        .routes(routes!(add))
        .routes(routes!(remove))
        .routes(routes!(toggle_tool))
}

/// List the MCP servers of the workspace, and how much of the budget is used. Starts none of them.
#[utoipa::path(get, path = "/workspace/mcp", tag = "daemon", security(("token" = ["browse"])),
    responses((status = 200, body = McpStatus), (status = "4XX", body = DaemonProblem)))]
async fn status(State(app): State<App>, Caller(caller): Caller) -> Result<Json<McpStatus>, Refusal> {
    Ok(Json(service::mcp::status(&app, &caller).await?))
}

/// List the tools that an MCP server listed last, without those that are switched off.
#[utoipa::path(get, path = "/workspace/mcp/{server}/tools", tag = "daemon", security(("token" = ["browse"])),
    params(("server" = String, Path)),
    responses((status = 200, body = McpToolsStatus), (status = "4XX", body = DaemonProblem)))]
async fn tools(
    State(app): State<App>,
    Caller(caller): Caller,
    At(server): At<String>,
) -> Result<Json<McpToolsStatus>, Refusal> {
    Ok(Json(service::mcp::tools(&app, &caller, &server).await?))
}

/// Connect to an MCP server again.
#[utoipa::path(post, path = "/workspace/mcp/{server}/restart", tag = "daemon", security(("token" = ["submit"])),
    params(("server" = String, Path), ("entryIndex" = Option<String>, Query, description = "The index of one connection, or `*` for all.")),
    responses((status = 200, body = McpRestarted), (status = "4XX", body = DaemonProblem), (status = 502, body = DaemonProblem)))]
async fn restart(
    StrictRequest { app, caller, client, name: server }: StrictRequest,
    Params(query): Params<RestartQuery>,
) -> Result<Json<McpRestarted>, Refusal> {
    Ok(Json(service::mcp_changes::restart(&app, &caller, client, &server, &query).await?))
}

/// Switch an MCP server on.
#[utoipa::path(post, path = "/workspace/mcp/{server}/enable", tag = "daemon", security(("token" = ["provide"])),
    params(("server" = String, Path)),
    responses((status = 200, body = McpManaged), (status = "4XX", body = DaemonProblem)))]
async fn enable(
    StrictRequest { app, caller, client, name: server }: StrictRequest,
) -> Result<Json<McpManaged>, Refusal> {
    let action = McpManageAction::Enable;
    Ok(Json(service::mcp_changes::manage(&app, &caller, client, &server, action).await?))
}

/// Switch an MCP server off. Its connections end.
#[utoipa::path(post, path = "/workspace/mcp/{server}/disable", tag = "daemon", security(("token" = ["provide"])),
    params(("server" = String, Path)),
    responses((status = 200, body = McpManaged), (status = "4XX", body = DaemonProblem)))]
async fn disable(
    StrictRequest { app, caller, client, name: server }: StrictRequest,
) -> Result<Json<McpManaged>, Refusal> {
    let action = McpManageAction::Disable;
    Ok(Json(service::mcp_changes::manage(&app, &caller, client, &server, action).await?))
}

/// Log in to an MCP server. No server of this build has a login: credentials are configured.
#[utoipa::path(post, path = "/workspace/mcp/{server}/authenticate", tag = "daemon", security(("token" = ["provide"])),
    params(("server" = String, Path)),
    responses((status = 200, body = McpManaged), (status = "4XX", body = DaemonProblem)))]
async fn authenticate(
    StrictRequest { app, caller, client, name: server }: StrictRequest,
) -> Result<Json<McpManaged>, Refusal> {
    let action = McpManageAction::Authenticate;
    Ok(Json(service::mcp_changes::manage(&app, &caller, client, &server, action).await?))
}

/// Forget the login to an MCP server. There is none, so that its connections only end.
#[utoipa::path(post, path = "/workspace/mcp/{server}/clear-auth", tag = "daemon", security(("token" = ["provide"])),
    params(("server" = String, Path)),
    responses((status = 200, body = McpManaged), (status = "4XX", body = DaemonProblem)))]
async fn clear_auth(
    StrictRequest { app, caller, client, name: server }: StrictRequest,
) -> Result<Json<McpManaged>, Refusal> {
    let action = McpManageAction::ClearAuth;
    Ok(Json(service::mcp_changes::manage(&app, &caller, client, &server, action).await?))
}

/// Add an MCP server until this server ends. It is connected before the response.
#[utoipa::path(post, path = "/workspace/mcp/servers", tag = "daemon", security(("token" = ["provide"])),
    request_body = AddMcpServer,
    responses((status = 200, body = McpServerAdded), (status = "4XX", body = DaemonProblem), (status = 502, body = DaemonProblem)))]
async fn add(
    State(app): State<App>,
    Strict(caller): Strict,
    ClientId(client): ClientId,
    Body(request): Body<AddMcpServer>,
) -> Result<Json<McpServerAdded>, Refusal> {
    Ok(Json(service::mcp_runtime::add(&app, &caller, client, request).await?))
}

/// Remove an MCP server that a client has added.
#[utoipa::path(delete, path = "/workspace/mcp/servers/{name}", tag = "daemon", security(("token" = ["provide"])),
    params(("name" = String, Path)),
    responses((status = 200, body = McpServerRemoved), (status = "4XX", body = DaemonProblem)))]
async fn remove(StrictRequest { app, caller, client, name }: StrictRequest) -> Result<Json<McpServerRemoved>, Refusal> {
    Ok(Json(service::mcp_runtime::remove(&app, &caller, client, &name).await?))
}

/// Switch a tool off or on, for agents that are started later.
#[utoipa::path(post, path = "/workspace/tools/{name}/enable", tag = "daemon", security(("token" = ["provide"])),
    params(("name" = String, Path)), request_body = ToggleTool,
    responses((status = 200, body = ToolToggled), (status = "4XX", body = DaemonProblem)))]
async fn toggle_tool(
    StrictRequest { app, caller, client, name }: StrictRequest,
    Body(request): Body<ToggleTool>,
) -> Result<Json<ToolToggled>, Refusal> {
    Ok(Json(service::tools::toggle(&app, &caller, client, &name, &request).await?))
}
