//! Routes of the daemon dialect, for editors and SDKs.

mod callers;
mod details;
mod events;
mod files;
mod prompts;
mod sessions;
mod votes;
mod workspace;

use axum::extract::DefaultBodyLimit;
use ostler_server::app::App;
use utoipa_axum::router::OpenApiRouter;

/// Maximum bytes of a request's body.
const BODY_BYTES_MAX: usize = 10 * 1024 * 1024;

/// The operations of the OpenAPI document.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .merge(sessions::routes())
        .merge(prompts::routes())
        .merge(details::routes())
        .merge(votes::routes())
        .merge(events::routes())
        .merge(files::routes())
        .merge(workspace::routes())
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}
