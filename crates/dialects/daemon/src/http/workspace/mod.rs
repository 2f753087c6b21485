//! `/workspace…`: documents and snapshots of the workspace that the server is bound to.

mod env;
mod init;
mod memory;
mod preflight;
mod providers;
mod reload;
mod settings;

use ostler_server::app::App;
use utoipa_axum::{router::OpenApiRouter, routes};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(memory::get, memory::write))
        .routes(routes!(settings::get, settings::set))
        .routes(routes!(init::init))
        .routes(routes!(reload::reload))
        .routes(routes!(env::get))
        .routes(routes!(preflight::get))
        .routes(routes!(providers::get))
}
