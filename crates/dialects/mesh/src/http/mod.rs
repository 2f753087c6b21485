//! The HTTP resources of the mesh beside its gateway: certificates, discovery of the gateway, descriptions of identities. These
//! paths are served under every name of the domain, also to callers without a token of this server.

mod agent_md;
pub(crate) mod gateway;
mod identities;
pub(crate) mod pki;
mod plain;

use ostler_server::{app::App, net::api_router::ApiRouter, routes};

/// The operations of the OpenAPI document.
pub(crate) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .routes(routes!(identities::issue, identities::list))
        .routes(routes!(identities::invite))
        .routes(routes!(identities::get))
        .routes(routes!(identities::revoke))
        .routes(routes!(gateway::discover))
        .routes(routes!(pki::chain))
        .routes(routes!(pki::root))
        .routes(routes!(pki::certificate))
        .routes(routes!(pki::revocations))
        .routes(routes!(pki::revocations_der))
        .routes(routes!(pki::status))
        .routes(routes!(pki::ocsp))
        .routes(routes!(pki::trust_roots))
        .routes(routes!(agent_md::put, agent_md::get))
}
