//! Routes of the run input dialect (`/api/v1/agent…`), for chat front ends.

mod attachments;
mod history;
mod runs;
mod sessions;

use axum::extract::DefaultBodyLimit;
use ostler_server::app::App;
use utoipa_axum::{router::OpenApiRouter, routes};

use self::attachments::FORM_BYTES_MAX;

/// The operations of the OpenAPI document.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(runs::create))
        .routes(routes!(runs::events))
        .routes(routes!(runs::cancel))
        .routes(routes!(attachments::create))
        .routes(routes!(attachments::sign))
        .routes(routes!(attachments::get))
        .routes(routes!(history::get))
        .routes(routes!(sessions::erase))
        .layer(DefaultBodyLimit::max(FORM_BYTES_MAX))
}
