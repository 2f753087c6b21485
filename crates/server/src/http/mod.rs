//! The HTTP face of the services. The router and the OpenAPI document come from the same attributes, so they cannot
//! disagree. Handlers hold no SQL and no policy.

mod agent;
mod backends;
mod capabilities;
mod commands;
mod conversation;
mod docs;
mod document;
mod doors;
mod events;
mod extract;
mod gate;
mod health;
mod identities;
mod leases;
mod mesh;
mod metrics;
mod permissions;
mod problem;
mod provider_profiles;
mod runner_jobs;
mod runners;
mod runs;
mod session_storage;
mod sessions;
mod tokens;
mod trust;
mod users;

use std::sync::{Arc, LazyLock, OnceLock};

use axum::{Json, Router, extract::DefaultBodyLimit, middleware, routing::get};
use http::Method;
use ostler_protocol::{Failure, FailureKind, mesh::pki::GATEWAY_PATH};
use serde_json::Value;
use utoipa::openapi::OpenApi;
use utoipa_axum::{router::OpenApiRouter, routes};

use self::{
    doors::Doors,
    gate::Gate,
    trust::{sockets, webhooks},
};
use crate::{app::App, auth::Access, rates::Limiter};

pub use gate::{InProcess, Peer};
pub use problem::{bare_feed, told, unknown_length};

const DOCUMENT_PATH: &str = "/openapi.json";
const PKI_TRUST_PATH: &str = "/trust-root.json";
const PKI_ROOT_PATH: &str = "/root.crt";

fn documented() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(health::health))
        .routes(routes!(health::live))
        .routes(routes!(health::readiness))
        .routes(routes!(capabilities::capabilities))
        .routes(routes!(metrics::metrics))
        .routes(routes!(runs::create, runs::list))
        .routes(routes!(runs::get))
        .routes(routes!(runs::result))
        .routes(routes!(runs::cancel))
        .routes(routes!(runs::patch_status))
        .routes(routes!(events::page, events::append))
        .routes(routes!(commands::create, commands::poll))
        .routes(routes!(commands::get))
        .routes(routes!(commands::result))
        .routes(routes!(conversation::get))
        .routes(routes!(commands::diff))
        .routes(routes!(commands::cancel))
        .routes(routes!(commands::ack))
        .routes(routes!(commands::patch_status))
        .routes(routes!(runner_jobs::create, runner_jobs::list))
        .routes(routes!(runner_jobs::get))
        .routes(routes!(permissions::list))
        .routes(routes!(permissions::answer))
        .routes(routes!(leases::claim))
        .routes(routes!(leases::patch))
        .routes(routes!(runners::register))
        .routes(routes!(backends::list))
        .routes(routes!(provider_profiles::list))
        .routes(routes!(provider_profiles::list_changes))
        .routes(routes!(provider_profiles::get, provider_profiles::delete))
        .routes(routes!(provider_profiles::put_credential))
        .routes(routes!(provider_profiles::get_config, provider_profiles::put_config))
        .routes(routes!(provider_profiles::validate))
        .routes(routes!(provider_profiles::get_validation))
        .routes(routes!(sessions::create, sessions::list))
        .routes(routes!(sessions::get, sessions::update))
        .routes(routes!(sessions::trace))
        .routes(routes!(sessions::output))
        .routes(routes!(sessions::read))
        .routes(routes!(sessions::control))
        .routes(routes!(session_storage::get, session_storage::delete))
        .routes(routes!(session_storage::refresh))
        .routes(routes!(session_storage::sweep))
        .routes(routes!(tokens::create, tokens::list))
        .routes(routes!(tokens::revoke))
        .routes(routes!(users::create, users::list))
        .routes(routes!(users::update, users::remove))
        .routes(routes!(users::create_token))
        .routes(routes!(users::key_set))
        .routes(routes!(identities::issue, identities::list))
        .routes(routes!(identities::invite))
        .routes(routes!(identities::get))
        .routes(routes!(identities::revoke))
        .routes(routes!(mesh::gateway::discover))
        .routes(routes!(mesh::pki::chain))
        .routes(routes!(mesh::pki::root))
        .routes(routes!(mesh::pki::certificate))
        .routes(routes!(mesh::pki::revocations))
        .routes(routes!(mesh::pki::revocations_der))
        .routes(routes!(mesh::pki::status))
        .routes(routes!(mesh::pki::ocsp))
        .routes(routes!(mesh::pki::trust_roots))
        .routes(routes!(mesh::agent_md::put, mesh::agent_md::get))
        .routes(routes!(agent::runs::create))
        .routes(routes!(agent::runs::events))
        .routes(routes!(agent::runs::cancel))
        .routes(routes!(agent::attachments::create))
        .routes(routes!(agent::attachments::sign))
        .routes(routes!(agent::attachments::get))
        .routes(routes!(agent::history::get))
        .routes(routes!(agent::sessions::erase))
        .routes(routes!(trust::agents::create, trust::agents::list))
        .routes(routes!(trust::agents::get, trust::agents::update, trust::agents::retire))
        .routes(routes!(trust::agents::diff))
        .routes(routes!(trust::agents::create_token, trust::agents::list_tokens))
        .routes(routes!(trust::agents::revoke_token))
        .routes(routes!(trust::relations::create, trust::relations::list))
        .routes(routes!(trust::relations::get, trust::relations::update, trust::relations::revoke))
        .routes(routes!(trust::relations::changes))
        .routes(routes!(trust::relations::pending))
        .routes(routes!(trust::relations::use_scope))
        .routes(routes!(trust::receipts::list))
        .routes(routes!(trust::receipts::ledger))
        .routes(routes!(webhooks::put, webhooks::get, webhooks::delete))
        .routes(routes!(webhooks::test))
        .routes(routes!(webhooks::list_deliveries))
        .routes(routes!(webhooks::get_delivery))
        .routes(routes!(webhooks::replay))
}

/// What the handlers' attributes say of the API, kept from the first router of this process. Collecting it takes longer
/// than the rest of a start.
static COLLECTED: OnceLock<OpenApi> = OnceLock::new();

/// The OpenAPI document of this build, made when it is first used.
pub fn openapi() -> &'static Value {
    static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
        let mut document = COLLECTED.get_or_init(|| documented().split_for_parts().1).clone();
        document.info.title = "Ostler".into();
        document.info.version = env!("CARGO_PKG_VERSION").into();
        document.info.description = Some("An agent control plane: durable runs of other people's agents.".into());
        doors::describe(&mut document);
        document::complete(&document)
    });
    &DOCUMENT
}

pub fn router(app: App) -> Router {
    let (router, collected) = documented().split_for_parts();
    let mut doors = Doors::of(COLLECTED.get_or_init(|| collected))
        .with(Method::GET, DOCUMENT_PATH, Access::Browse)
        .with(Method::GET, docs::PATH, Access::Public)
        .with(Method::GET, docs::STYLE_PATH, Access::Public)
        .with(Method::GET, sockets::HUMAN_PATH, Access::Introduce)
        .with(Method::GET, sockets::AGENT_PATH, Access::Introduce)
        .with(Method::GET, GATEWAY_PATH, Access::Mesh);
    // Two of the gateway's paths have other names on the domain's own host for keys.
    for path in [PKI_TRUST_PATH, PKI_ROOT_PATH] {
        doors = doors.with(Method::GET, path, Access::Mesh);
    }
    if app.config.server.open_metrics {
        doors = doors.with(Method::GET, metrics::PATH, Access::Public);
    }
    let limiter = Arc::new(Limiter::new(app.config.rate_limit));
    let gate = Gate { app: app.clone(), doors: Arc::new(doors), limiter };
    router
        .route(GATEWAY_PATH, get(mesh::gateway::connect))
        .route(PKI_TRUST_PATH, get(mesh::pki::trust_roots))
        .route(PKI_ROOT_PATH, get(mesh::pki::root))
        .route(docs::PATH, get(|| async { docs::html() }))
        .route(docs::STYLE_PATH, get(|| async { docs::style() }))
        .route(sockets::HUMAN_PATH, get(sockets::human))
        .route(sockets::AGENT_PATH, get(sockets::agent))
        .route(DOCUMENT_PATH, get(|| async { Json(openapi()) }))
        .fallback(|| async { problem::response(Failure::not_found("path")) })
        .method_not_allowed_fallback(|| async {
            problem::response(Failure::new(FailureKind::MethodNotAllowed, "this path does not take that method"))
        })
        .layer(DefaultBodyLimit::max(agent::attachments::FORM_BYTES_MAX))
        .layer(middleware::from_fn_with_state(gate, gate::gate))
        .with_state(app)
}
