//! `/workspace/auth…`: credentials of providers, by key or by device flow.

use axum::{Json, extract::State};
use http::StatusCode;
use ostler_protocol::daemon::{
    auth_providers::{AuthProviderCatalog, InstallProvider, ProviderInstalled},
    device_flows::{AuthStatus, DeviceFlowStarted, DeviceFlowState, StartDeviceFlow},
    failures::DaemonProblem,
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

use crate::{
    http::callers::{ClientId, Strict},
    service,
};

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .routes(routes!(providers))
        .routes(routes!(install))
        .routes(routes!(start))
        .routes(routes!(get, cancel))
        .routes(routes!(status))
}

/// List the providers that a key sets up.
#[utoipa::path(get, path = "/workspace/auth/providers", tag = "daemon", security(("token" = ["browse"])),
    responses((status = 200, body = AuthProviderCatalog), (status = "4XX", body = DaemonProblem)))]
async fn providers(State(app): State<App>, Caller(caller): Caller) -> Result<Json<AuthProviderCatalog>, Refusal> {
    Ok(Json(service::auth_providers::catalog(&app, &caller)?))
}

/// Set up a provider with a key. Each of its models becomes a backend profile, which sessions can use at once.
#[utoipa::path(post, path = "/workspace/auth/provider", tag = "daemon", security(("token" = ["provide"])),
    request_body = InstallProvider,
    responses((status = 200, body = ProviderInstalled), (status = "4XX", body = DaemonProblem)))]
async fn install(
    State(app): State<App>,
    Strict(caller): Strict,
    ClientId(client): ClientId,
    Body(request): Body<InstallProvider>,
) -> Result<Json<ProviderInstalled>, Refusal> {
    Ok(Json(service::auth_providers::install(&app, &caller, client, request).await?))
}

/// Start a device flow, or take over the pending one of the provider. Only the client that started it receives the codes.
#[utoipa::path(post, path = "/workspace/auth/device-flow", tag = "daemon", security(("token" = ["provide"])),
    request_body = StartDeviceFlow,
    responses((status = 200, body = DeviceFlowStarted), (status = 201, body = DeviceFlowStarted),
        (status = "4XX", body = DaemonProblem)))]
async fn start(
    State(app): State<App>,
    Strict(caller): Strict,
    ClientId(client): ClientId,
    Body(request): Body<StartDeviceFlow>,
) -> Result<(StatusCode, Json<DeviceFlowStarted>), Refusal> {
    let started = service::device_flows::start(&app, &caller, client, request).await?;
    let status = if started.attached { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(started)))
}

/// Read a device flow. One that has ended can be read for five minutes.
#[utoipa::path(get, path = "/workspace/auth/device-flow/{deviceFlowId}", tag = "daemon",
    security(("token" = ["provide"])), params(("deviceFlowId" = String, Path)),
    responses((status = 200, body = DeviceFlowState), (status = "4XX", body = DaemonProblem)))]
async fn get(
    State(app): State<App>,
    Strict(caller): Strict,
    At(device_flow_id): At<String>,
    ClientId(client): ClientId,
) -> Result<Json<DeviceFlowState>, Refusal> {
    Ok(Json(service::device_flows::get(&app, &caller, client, &device_flow_id).await?))
}

/// Cancel a device flow. Idempotent: a flow that has ended stays as it is.
#[utoipa::path(delete, path = "/workspace/auth/device-flow/{deviceFlowId}", tag = "daemon",
    security(("token" = ["provide"])), params(("deviceFlowId" = String, Path)),
    responses((status = 204), (status = "4XX", body = DaemonProblem)))]
async fn cancel(
    State(app): State<App>,
    Strict(caller): Strict,
    At(device_flow_id): At<String>,
    ClientId(client): ClientId,
) -> Result<StatusCode, Refusal> {
    service::device_flows::cancel(&app, &caller, client, &device_flow_id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List the providers with device flows, whether their profiles can be used, and the flows that wait.
#[utoipa::path(get, path = "/workspace/auth/status", tag = "daemon", security(("token" = ["browse"])),
    responses((status = 200, body = AuthStatus), (status = "4XX", body = DaemonProblem)))]
async fn status(State(app): State<App>, Caller(caller): Caller) -> Result<Json<AuthStatus>, Refusal> {
    Ok(Json(service::device_flows::status(&app, &caller).await?))
}
