//! `/capabilities`: what a client reads before it calls anything else.

use axum::{Json, extract::State};
use ostler_protocol::{capabilities::Capabilities, failures::Problem};

use super::extract::MaybeCaller;
use crate::{app::App, service};

/// What a client may rely on.
///
/// A feature's tag is there exactly while its behaviour is; new behaviour gets a new tag. `workspaceCwd` is empty for callers
/// without a token.
#[utoipa::path(get, path = "/capabilities", tag = "capabilities", security(()),
    responses((status = 200, body = Capabilities), (status = "4XX", body = Problem)))]
pub(super) async fn capabilities(State(app): State<App>, MaybeCaller(caller): MaybeCaller) -> Json<Capabilities> {
    Json(service::capabilities::capabilities(&app, caller.as_ref()).await)
}
