//! Routes of the trust dialect. They only translate.

mod agents;
mod receipts;
mod relations;
pub(crate) mod sockets;
mod webhooks;

use ostler_server::{app::App, net::api_router::ApiRouter, routes};

/// The operations of the OpenAPI document.
pub(crate) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .routes(routes!(agents::create, agents::list))
        .routes(routes!(agents::get, agents::update, agents::retire))
        .routes(routes!(agents::diff))
        .routes(routes!(agents::create_token, agents::list_tokens))
        .routes(routes!(agents::revoke_token))
        .routes(routes!(relations::create, relations::list))
        .routes(routes!(relations::get, relations::update, relations::revoke))
        .routes(routes!(relations::changes))
        .routes(routes!(relations::pending))
        .routes(routes!(relations::use_scope))
        .routes(routes!(receipts::list))
        .routes(routes!(receipts::ledger))
        .routes(routes!(webhooks::put, webhooks::get, webhooks::delete))
        .routes(routes!(webhooks::test))
        .routes(routes!(webhooks::list_deliveries))
        .routes(routes!(webhooks::get_delivery))
        .routes(routes!(webhooks::replay))
}
