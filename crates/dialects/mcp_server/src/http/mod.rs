//! The routes of the MCP server.

mod messages;
mod streams;

use ostler_server::{app::App, net::api_router::ApiRouter, routes};

pub(crate) fn routes() -> ApiRouter<App> {
    ApiRouter::new().routes(routes!(messages::post, messages::resume, messages::end_session))
}
