//! `/workspace/extensions`: packages that extend the agent.

use axum::{Json, extract::State, http::StatusCode};
use ostler_protocol::daemon::{
    extensions::{
        ExtensionAccepted, ExtensionOperation, ExtensionScope, ExtensionUpdates, ExtensionsRefreshed, InstallExtension,
        WorkspaceExtensions,
    },
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
    http::callers::{ClientId, Strict, StrictRequest},
    service,
};

type Accepted = Result<(StatusCode, Json<ExtensionAccepted>), Refusal>;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(install))
        .routes(routes!(check_updates))
        .routes(routes!(refresh))
        .routes(routes!(enable))
        .routes(routes!(disable))
        .routes(routes!(update))
        .routes(routes!(uninstall))
        .routes(routes!(operation))
}

/// The extensions of the agent. Empty while no process of it runs.
#[utoipa::path(get, path = "/workspace/extensions", tag = "daemon", security(("token" = ["browse"])),
    responses((status = 200, body = WorkspaceExtensions), (status = "4XX", body = DaemonProblem)))]
async fn list(State(app): State<App>, Caller(caller): Caller) -> Result<Json<WorkspaceExtensions>, Refusal> {
    Ok(Json(service::extensions::list(&app, &caller).await?))
}

/// Install an extension. The response names the operation to poll.
#[utoipa::path(post, path = "/workspace/extensions/install", tag = "daemon", security(("token" = ["provide"])),
    request_body = InstallExtension,
    responses((status = 202, body = ExtensionAccepted), (status = "4XX", body = DaemonProblem)))]
async fn install(
    State(app): State<App>,
    Strict(caller): Strict,
    ClientId(client): ClientId,
    Body(request): Body<InstallExtension>,
) -> Accepted {
    Ok((StatusCode::ACCEPTED, Json(service::extensions::install(&app, &caller, client, &request).await?)))
}

/// Whether there are newer versions of the extensions, as far as the agent knows.
#[utoipa::path(post, path = "/workspace/extensions/check-updates", tag = "daemon", security(("token" = ["provide"])),
    responses((status = 200, body = ExtensionUpdates), (status = "4XX", body = DaemonProblem)))]
async fn check_updates(
    State(app): State<App>,
    Strict(caller): Strict,
    ClientId(client): ClientId,
) -> Result<Json<ExtensionUpdates>, Refusal> {
    Ok(Json(service::extensions::check_updates(&app, &caller, client.as_deref()).await?))
}

/// Start the agent beside turns again, with the extensions as they are now.
#[utoipa::path(post, path = "/workspace/extensions/refresh", tag = "daemon", security(("token" = ["provide"])),
    responses((status = 200, body = ExtensionsRefreshed), (status = "4XX", body = DaemonProblem)))]
async fn refresh(
    State(app): State<App>,
    Strict(caller): Strict,
    ClientId(client): ClientId,
) -> Result<Json<ExtensionsRefreshed>, Refusal> {
    Ok(Json(service::extensions::refresh(&app, &caller, client).await?))
}

/// Enable an extension.
#[utoipa::path(post, path = "/workspace/extensions/{name}/enable", tag = "daemon", security(("token" = ["provide"])),
    params(("name" = String, Path)), request_body = ExtensionScope,
    responses((status = 202, body = ExtensionAccepted), (status = "4XX", body = DaemonProblem)))]
async fn enable(
    StrictRequest { app, caller, client, name }: StrictRequest,
    Body(scope): Body<ExtensionScope>,
) -> Accepted {
    let change = ("enable", "enabled");
    let accepted = service::extensions::change(&app, &caller, client, change, &name, Some(&scope)).await?;
    Ok((StatusCode::ACCEPTED, Json(accepted)))
}

/// Disable an extension.
#[utoipa::path(post, path = "/workspace/extensions/{name}/disable", tag = "daemon", security(("token" = ["provide"])),
    params(("name" = String, Path)), request_body = ExtensionScope,
    responses((status = 202, body = ExtensionAccepted), (status = "4XX", body = DaemonProblem)))]
async fn disable(
    StrictRequest { app, caller, client, name }: StrictRequest,
    Body(scope): Body<ExtensionScope>,
) -> Accepted {
    let change = ("disable", "disabled");
    let accepted = service::extensions::change(&app, &caller, client, change, &name, Some(&scope)).await?;
    Ok((StatusCode::ACCEPTED, Json(accepted)))
}

/// Update an extension to its newest version.
#[utoipa::path(post, path = "/workspace/extensions/{name}/update", tag = "daemon", security(("token" = ["provide"])),
    params(("name" = String, Path)),
    responses((status = 202, body = ExtensionAccepted), (status = "4XX", body = DaemonProblem)))]
async fn update(StrictRequest { app, caller, client, name }: StrictRequest) -> Accepted {
    let accepted = service::extensions::change(&app, &caller, client, ("update", "updated"), &name, None).await?;
    Ok((StatusCode::ACCEPTED, Json(accepted)))
}

/// Uninstall an extension.
#[utoipa::path(delete, path = "/workspace/extensions/{name}", tag = "daemon", security(("token" = ["provide"])),
    params(("name" = String, Path)),
    responses((status = 202, body = ExtensionAccepted), (status = "4XX", body = DaemonProblem)))]
async fn uninstall(StrictRequest { app, caller, client, name }: StrictRequest) -> Accepted {
    let change = ("uninstall", "uninstalled");
    let accepted = service::extensions::change(&app, &caller, client, change, &name, None).await?;
    Ok((StatusCode::ACCEPTED, Json(accepted)))
}

/// How far a change of extensions is.
#[utoipa::path(get, path = "/workspace/extensions/operations/{operationId}", tag = "daemon",
    security(("token" = ["browse"])), params(("operationId" = String, Path)),
    responses((status = 200, body = ExtensionOperation), (status = "4XX", body = DaemonProblem)))]
async fn operation(
    State(app): State<App>,
    Caller(caller): Caller,
    At(operation_id): At<String>,
) -> Result<Json<ExtensionOperation>, Refusal> {
    Ok(Json(service::extensions::operation(&app, &caller, &operation_id)?))
}
