//! The network: the listener, the gate that every request passes, what handlers of all dialects use (bodies, failures, server-sent
//! events, WebSockets), limits, and the engine's own routes. The router and the OpenAPI document come from the same
//! attributes, so they cannot disagree.

mod access_table;
pub mod api_router;
pub mod body_budget;
mod body_problems;
mod capabilities;
mod client_rates;
mod docs;
mod document;
pub mod extract;
pub mod forwarded;
pub mod gate;
mod guide;
mod health;
pub mod listener;
mod locality;
mod metrics;
mod peers;
pub mod permits;
pub mod problem;
pub mod rates;
pub mod refusals;
pub mod responses;
pub mod sockets;
mod sources;
pub mod sse;
pub mod tls;
pub mod waiting_connections;

use std::sync::{Arc, OnceLock};

use axum::{
    Json, Router, middleware,
    response::{Redirect, Response},
    routing::{any, get},
};
use http::Method;
use ostler_protocol::{Failure, FailureKind};
use serde_json::Value;
use utoipa::openapi::{License, OpenApi};

use self::{
    access_table::AccessTable,
    api_router::{ApiRouter, DescribedRoute},
    body_problems::{BodyValidators, body_schema},
    client_rates::ClientLimiter,
    forwarded::TrustedProxies,
    gate::Gate,
    sources::PageSharing,
};
use crate::{
    app::App,
    auth::Access,
    dialect::{Dialects, FailureEncoder},
    net::rates::Limiter,
    routes,
};

pub use document::shapes;
pub use locality::Locality;
pub use peers::{InProcess, Peer};
pub use problem::{bare_feed, unknown_length};

/// People who open the server in a browser are sent to `/docs`.
const ROOT_PATH: &str = "/";
const DOCUMENT_PATH: &str = "/openapi.json";

/// The engine's own operations.
fn engine_routes() -> ApiRouter<App> {
    ApiRouter::new()
        .routes(routes!(health::health))
        .routes(routes!(health::live))
        .routes(routes!(health::readiness))
        .routes(routes!(capabilities::capabilities))
        .routes(routes!(metrics::metrics))
}

/// The descriptions of the engine's own routes, and of each dialect's.
type Described = Vec<Vec<DescribedRoute>>;

/// The routes of a server, their descriptions and the access that they require.
struct Api {
    router: Router<App>,
    described: Described,
    access_table: AccessTable,
}

impl Api {
    fn new(dialects: &Dialects) -> Self {
        let (mut router, engine) = engine_routes().into_parts();
        let mut access_table = AccessTable::new(dialects);
        access_table.add(&engine, FailureEncoder::PLAIN);
        let mut described = vec![engine];
        for dialect in dialects.iter() {
            let (routes, own) = (dialect.routes)().into_parts();
            router = router.merge(routes);
            access_table.add(&own, dialect.failures);
            if let Some(gate) = dialect.gate {
                access_table.apply(&own, gate);
            }
            for route in &dialect.undocumented {
                router = router.route(route.path, route.handler.clone());
                access_table.add_route(Method::GET, route.path, route.access, dialect.failures);
            }
            for path in dialect.unknown_paths {
                router = router.route(path, any(unknown_path));
                access_table.add_unknown(path, dialect.failures, dialect.gate);
            }
            described.push(own);
        }
        for dialect in dialects.iter() {
            if let Some(shared) = dialect.shared_paths {
                access_table.share(shared, dialect.failures, dialect.gate);
            }
        }
        Self { router, described, access_table }
    }
}

async fn unknown_path() -> Response {
    problem::response(Failure::not_found("path"))
}

/// The OpenAPI document of a server with these dialects.
pub fn openapi(dialects: &Dialects) -> Value {
    let Api { described, access_table, .. } = Api::new(dialects);
    describe(&described, dialects, &access_table)
}

fn merged(mut document: OpenApi, other: OpenApi) -> OpenApi {
    document.merge(other);
    document
}

fn describe(described: &[Vec<DescribedRoute>], dialects: &Dialects, access_table: &AccessTable) -> Value {
    let parts = described.iter().map(|routes| api_router::document(routes));
    let mut document = parts.reduce(merged).unwrap_or_default();
    document.info.title = "Ostler".into();
    document.info.version = env!("CARGO_PKG_VERSION").into();
    document.info.description = Some("An agent control plane: durable runs of other people's agents.".into());
    // A new router's document names the author and the licence of `utoipa-axum`.
    document.info.contact = None;
    let mut license = License::new(env!("CARGO_PKG_LICENSE"));
    license.identifier = Some(license.name.clone());
    document.info.license = Some(license);
    access_table::describe(&mut document, dialects);
    document::complete(&document, dialects, access_table)
}

/// The document, made when it is first read, because that takes longer than the rest of a start.
struct ApiDocument {
    described: Described,
    dialects: Dialects,
    access_table: Arc<AccessTable>,
    made: OnceLock<Value>,
    /// The page for people.
    page: OnceLock<bytes::Bytes>,
}

impl ApiDocument {
    fn get(&self) -> &Value {
        self.made.get_or_init(|| describe(&self.described, &self.dialects, &self.access_table))
    }

    fn page(&self) -> bytes::Bytes {
        self.page.get_or_init(|| docs::page(self.get()).into()).clone()
    }
}

pub fn router(app: App) -> Router {
    let Api { router, described, mut access_table } = Api::new(Dialects::of(&app));
    for path in
        [ROOT_PATH, DOCUMENT_PATH, docs::PATH, docs::STYLE_PATH, guide::PATH, guide::SLASH_PATH, guide::PAGE_PATH]
    {
        access_table.add_route(Method::GET, path, Access::Public, FailureEncoder::PLAIN);
    }
    if app.config.server.open_metrics {
        access_table.add_route(Method::GET, metrics::PATH, Access::Public, FailureEncoder::PLAIN);
    }
    let access_table = Arc::new(access_table);
    let document = Arc::new(ApiDocument {
        described,
        dialects: Dialects::of(&app).clone(),
        access_table: access_table.clone(),
        made: OnceLock::new(),
        page: OnceLock::new(),
    });
    let shown = document.clone();
    let limiter = Arc::new(Limiter::new(app.config.rate_limit));
    let schemas = document.clone();
    let find_schema = move |method: &Method, path: &str| body_schema(schemas.get(), method, path);
    let body_validators = Arc::new(BodyValidators::new(find_schema));
    // A list that cannot be read was rejected when the configuration was; it would name no proxy.
    let proxies = Arc::new(TrustedProxies::read(&app.config.server.trusted_proxies).unwrap_or_default());
    let client_limiter = Arc::new(ClientLimiter::new(&app.config));
    let page_sharing = Arc::new(PageSharing::new(Dialects::of(&app)));
    let gate = Gate { app: app.clone(), access_table, limiter, client_limiter, page_sharing, body_validators, proxies };
    router
        // Relative, so that it also works behind a prefix.
        .route(ROOT_PATH, get(|| async { Redirect::temporary("docs") }))
        .route(docs::PATH, get(|| async move { docs::html(shown.page()) }))
        .route(docs::STYLE_PATH, get(|| async { docs::style() }))
        .route(guide::PATH, get(guide::first))
        .route(guide::SLASH_PATH, get(|| async { Redirect::temporary("../guide") }))
        .route(guide::PAGE_PATH, get(guide::page))
        .route(DOCUMENT_PATH, get(|| async move { Json(document.get().clone()) }))
        .fallback(unknown_path)
        .method_not_allowed_fallback(|| async {
            problem::response(Failure::new(FailureKind::MethodNotAllowed, "this path does not take that method"))
        })
        .layer(middleware::from_fn_with_state(gate, gate::gate))
        .with_state(app)
}
