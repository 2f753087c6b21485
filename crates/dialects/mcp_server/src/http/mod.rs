//! The routes of the MCP server.

mod messages;
mod streams;

use ostler_server::app::App;
use utoipa_axum::{router::OpenApiRouter, routes};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(messages::post, messages::resume, messages::end_session))
}
