//! `/workspace…`: documents and snapshots of the workspace that the server is bound to.

mod agents;
mod auth;
mod env;
mod extensions;
mod hooks;
mod init;
mod memory;
mod preflight;
mod providers;
mod reload;
mod settings;
mod skills;

use ostler_server::{app::App, net::api_router::ApiRouter, routes};

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .routes(routes!(memory::get, memory::write))
        .routes(routes!(settings::get, settings::set))
        .routes(routes!(init::init))
        .routes(routes!(reload::reload))
        .routes(routes!(env::get))
        .routes(routes!(preflight::get))
        .routes(routes!(providers::get))
        .merge(auth::routes())
        .routes(routes!(skills::get))
        .routes(routes!(hooks::get))
        .merge(agents::routes())
        .merge(extensions::routes())
}
