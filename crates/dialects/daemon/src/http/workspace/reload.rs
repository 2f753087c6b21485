//! `/workspace/reload`: settings that were changed in their file.

use axum::{Json, extract::State};
use ostler_protocol::daemon::{failures::DaemonProblem, settings::Reloaded};
use ostler_server::{app::App, net::problem::Refusal};

use crate::{
    http::callers::{ClientId, Strict},
    service,
};

/// Read the settings of the workspace again. If their file cannot be used, the previous values stay in force.
#[utoipa::path(post, path = "/workspace/reload", tag = "daemon", security(("token" = ["provide"])),
    responses((status = 200, body = Reloaded), (status = "4XX", body = DaemonProblem)))]
pub(super) async fn reload(
    State(app): State<App>,
    Strict(caller): Strict,
    ClientId(client): ClientId,
) -> Result<Json<Reloaded>, Refusal> {
    Ok(Json(service::settings::reload(&app, &caller, client).await?))
}
