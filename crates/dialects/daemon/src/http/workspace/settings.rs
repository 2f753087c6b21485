//! `/workspace/settings`: how new sessions of the workspace start.

use axum::{Json, extract::State};
use ostler_protocol::daemon::{
    failures::DaemonProblem,
    settings::{SetSetting, SettingSet, SettingsStatus},
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

/// List the settings, with their defaults and the values in force.
#[utoipa::path(get, path = "/workspace/settings", tag = "daemon", security(("token" = ["browse"])),
    responses((status = 200, body = SettingsStatus), (status = "4XX", body = DaemonProblem)))]
pub(super) async fn get(State(app): State<App>, Caller(caller): Caller) -> Result<Json<SettingsStatus>, Refusal> {
    Ok(Json(service::settings::get(&app, &caller).await?))
}

/// Change a setting. It is stored in `.ostler/settings.json` of the workspace.
#[utoipa::path(post, path = "/workspace/settings", tag = "daemon", security(("token" = ["provide"])),
    request_body = SetSetting,
    responses((status = 200, body = SettingSet), (status = "4XX", body = DaemonProblem)))]
pub(super) async fn set(
    State(app): State<App>,
    Strict(caller): Strict,
    ClientId(client): ClientId,
    Body(request): Body<SetSetting>,
) -> Result<Json<SettingSet>, Refusal> {
    Ok(Json(service::settings::set(&app, &caller, client, request).await?))
}
