//! The trust dialect: agents with manifests, the relations in which people grant them scopes, receipts, webhooks, and WebSockets
//! on which people and agents receive notifications. Bodies are flat and in snake_case.

#![warn(unreachable_pub, clippy::allow_attributes, clippy::expect_used, clippy::print_stdout)]

mod capabilities;
pub mod config;
mod deliveries;
mod holdings;
mod http;
mod listeners;
mod manifests;
mod metrics;
mod service;
mod shapes;
mod state;
mod topics;

use axum::routing::get;
use ostler_protocol::{failures::Problem, trust::failures::TrustProblem};
use utoipa_axum::{router::OpenApiRouter, routes};

use self::{
    config::WebhooksSection,
    http::sockets,
    service::{agents, lookup, relations, webhooks},
    state::Trust,
};
use ostler_server::{
    app::App,
    auth::Access,
    dialect::{Dialect, FailureEncoder, States, encoded},
};

pub fn dialect() -> Dialect {
    let dialect = Dialect::new("trust")
        .routes(operations)
        .route(sockets::HUMAN_PATH, Access::Introduce, get(sockets::human))
        .route(sockets::AGENT_PATH, Access::Introduce, get(sockets::agent))
        .failures(FailureEncoder { translate: |failure| failure, encode, schema: "TrustProblem" })
        .token(agents::TOKEN_KIND, agents::find_by_token)
        .section::<WebhooksSection>()
        .capabilities(capabilities::CAPABILITIES)
        .shapes(shapes::SHAPES)
        .open(|opening| async move { Ok(States::new().with(Trust::new(opening.config.section()))) })
        .worker(deliveries::run)
        .chore("deleting ended deliveries", |app| async move { webhooks::delete_ended(&app).await })
        .user_chore("retiring agents of removed users", |app| async move { agents::retire_orphaned(&app).await })
        .user_chore("ending relations of removed users", |app| async move { relations::end_orphaned(&app).await })
        .profile_of_agent(|app, agent_id| async move { Ok(lookup::get(&app, agent_id).await?.backend_profile) })
        .topic(topics::LISTENER)
        .holdings(holdings::HOLDINGS);
    metrics::ALL.iter().fold(dialect, |dialect, metric| dialect.metric(*metric))
}

fn operations() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(http::agents::create, http::agents::list))
        .routes(routes!(http::agents::get, http::agents::update, http::agents::retire))
        .routes(routes!(http::agents::diff))
        .routes(routes!(http::agents::create_token, http::agents::list_tokens))
        .routes(routes!(http::agents::revoke_token))
        .routes(routes!(http::relations::create, http::relations::list))
        .routes(routes!(http::relations::get, http::relations::update, http::relations::revoke))
        .routes(routes!(http::relations::changes))
        .routes(routes!(http::relations::pending))
        .routes(routes!(http::relations::use_scope))
        .routes(routes!(http::receipts::list))
        .routes(routes!(http::receipts::ledger))
        .routes(routes!(http::webhooks::put, http::webhooks::get, http::webhooks::delete))
        .routes(routes!(http::webhooks::test))
        .routes(routes!(http::webhooks::list_deliveries))
        .routes(routes!(http::webhooks::get_delivery))
        .routes(routes!(http::webhooks::replay))
}

fn encode(problem: Problem) -> String {
    encoded(&TrustProblem::from(problem))
}
