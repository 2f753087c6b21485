//! The mesh dialect: identities with certificates, and messages between them, over JSON-RPC on WebSockets (`gateway`) and over
//! HTTP (`http`).

mod capabilities;
pub mod config;
mod gateway;
mod holdings;
mod http;
mod legacy_wakeups;
mod metrics;
pub mod pki;
mod service;
mod shapes;
mod state;
mod topics;

use axum::routing::get;
use ostler_protocol::{
    Failure, Rule,
    mesh::{health::MeshReadiness, pki::GATEWAY_PATH},
};
use serde_json::Value;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};

use self::{
    config::MeshSection,
    gateway::delivery::MessageDelivery,
    pki::Pki,
    service::{identities, messages, pki::is_within, presence},
    state::Mesh,
};
use ostler_server::{
    app::App,
    auth::Access,
    dialect::{Dialect, Opening, States},
    startup::not_started,
};

/// Other paths of two resources, on the domain's own host for keys.
const TRUST_ROOTS_PATH: &str = "/trust-root.json";
const ROOT_PATH: &str = "/root.crt";

pub fn dialect() -> Dialect {
    let dialect = Dialect::new("mesh")
        .routes(http::routes)
        .route(GATEWAY_PATH, Access::Anonymous, get(http::gateway::connect))
        .route(TRUST_ROOTS_PATH, Access::Anonymous, get(http::pki::trust_roots))
        .route(ROOT_PATH, Access::Anonymous, get(http::pki::root))
        .security("mesh", Access::Anonymous, security)
        .section::<MeshSection>()
        .capabilities(capabilities::CAPABILITIES)
        .shapes(shapes::SHAPES)
        .open(open)
        .worker(gateway::delivery::run)
        .chore("deleting expired logins of the mesh", |app| async move { service::sweep(&app).await })
        .chore("renewing the auth service's certificate", |app| async move { identities::renew_auth(&app).await })
        .chore("deleting expired messages", |app| async move { messages::sweep(&app).await })
        .before_listening(|app| async move { presence::store_all(&app).await })
        .readiness::<MeshReadiness>("mesh", readiness)
        .hosts(|app, name| is_within(&Mesh::of(app).config.issuer, name))
        .holdings(holdings::HOLDINGS)
        .retention(messages::retention());
    let dialect = topics::ALL.into_iter().fold(dialect, |dialect, topic| dialect.topic(*topic));
    metrics::ALL.iter().fold(dialect, |dialect, metric| dialect.metric(*metric))
}

fn security() -> SecurityScheme {
    let mut scheme = Http::new(HttpAuthScheme::Bearer);
    scheme.description = Some(
        "Every client may read; a client that writes sends the access token that it received when it logged in to the mesh."
            .into(),
    );
    SecurityScheme::Http(scheme)
}

/// The mesh with the keys of its domain. Without keys, or if another authority certifies the domain, the server starts without
/// the mesh.
async fn open(Opening { db, config, wall }: Opening) -> Result<States, Failure> {
    let opened = match Pki::open(&config, wall) {
        Ok(pki) => {
            let recorded = identities::record(&db, &pki, wall).await;
            recorded.map_err(|error| not_started(Rule::Store, error))?.map(|()| pki)
        }
        Err(failure) => Err(failure.message),
    };
    if let Err(why) = &opened {
        tracing::warn!(why, "the mesh is off");
    }
    let mesh = Mesh::new(opened, config.section(), &config.limits);
    let delivery = MessageDelivery::new(mesh.connections.clone());
    Ok(States::new().with(mesh).with(delivery))
}

/// Identities have no tokens of this server: if every request needs one, the mesh is closed, too.
fn readiness(app: &App) -> Value {
    let mesh = Mesh::of(app);
    let closed = app.config.server.require_auth.then(|| "require_auth closes the mesh, too".to_owned());
    let reason = mesh.pki().err().map(|failure| failure.message).or(closed);
    let readiness = MeshReadiness { open: reason.is_none(), domain: mesh.config.issuer.clone(), reason };
    serde_json::to_value(readiness).unwrap_or_default()
}
