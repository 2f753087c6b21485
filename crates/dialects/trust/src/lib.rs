//! The trust dialect: agents with manifests, the relations in which people grant them scopes, receipts, webhooks, and WebSockets
//! on which people and agents receive notifications. Bodies are flat and in snake_case.

mod capabilities;
pub mod config;
mod deliveries;
mod holdings;
mod http;
mod listeners;
mod manifests;
mod metrics;
mod run_webhooks;
mod service;
mod shapes;
mod state;
mod topics;

use axum::routing::get;
use ostler_protocol::{failures::Problem, trust::failures::TrustProblem};

use self::{
    config::WebhooksSection,
    http::sockets,
    service::{agents, live, lookup, relations, webhooks},
    state::Trust,
};
use ostler_server::{
    auth::Access,
    dialect::{Dialect, FailureEncoder, PROBLEM_JSON, States, encoded},
};

pub fn dialect() -> Dialect {
    let dialect = Dialect::new("trust")
        .routes(http::routes)
        .route(sockets::HUMAN_PATH, Access::Introduce, get(sockets::human))
        .route(sockets::AGENT_PATH, Access::Introduce, get(sockets::agent))
        .failures(FailureEncoder {
            translate: |failure| failure,
            encode,
            content_type: PROBLEM_JSON,
            schema: "TrustProblem",
        })
        .token(agents::TOKEN_KIND, agents::find_by_token)
        .section::<WebhooksSection>()
        .capabilities(capabilities::CAPABILITIES)
        .shapes(shapes::SHAPES)
        .open(|opening| async move { Ok(States::new().with(Trust::new(opening.config.section()))) })
        .worker(deliveries::run)
        .worker(run_webhooks::run)
        .chore("deleting ended deliveries", |app| async move { webhooks::delete_ended(&app).await })
        .chore("deleting deliveries about erased runs", |app| async move { webhooks::delete_erased(&app).await })
        .user_chore("retiring agents of removed users", |app| async move { agents::retire_orphaned(&app).await })
        .user_chore("ending relations of removed users", |app| async move { relations::end_orphaned(&app).await })
        .profile_of_agent(|app, agent_id| async move { Ok(lookup::get(&app, agent_id).await?.backend_profile) })
        .granted_scopes(
            |app, agent_id, user_id| async move { relations::granted_scopes(&app, agent_id, &user_id).await },
        )
        .notify_person(live::notify_person)
        .topic(topics::LISTENER)
        .holdings(holdings::HOLDINGS)
        .retention(webhooks::retention());
    metrics::ALL.iter().fold(dialect, |dialect, metric| dialect.metric(*metric))
}

fn encode(problem: Problem) -> String {
    encoded(&TrustProblem::from(problem))
}
