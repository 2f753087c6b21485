//! The HTTP resources of the mesh beside its gateway: certificates, discovery of the gateway, descriptions of identities. These
//! paths are served under every name of the domain, also to callers without a token of this server.

pub(crate) mod agent_md;
pub(crate) mod gateway;
pub(crate) mod identities;
pub(crate) mod pki;

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, header};
use ostler_protocol::{Failure, FailureKind, Rule};

use ostler_server::net::gate::name_of;

/// The host of the request, with its port.
fn host(headers: &HeaderMap) -> Result<&str, Failure> {
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    host.ok_or_else(|| {
        Failure::rule(Rule::HostMissing, "a Host header is required").with_kind(FailureKind::SchemaInvalid)
    })
}

/// The host of the request, without its port.
fn host_name(headers: &HeaderMap) -> Result<&str, Failure> {
    host(headers).map(name_of)
}

fn plain(content_type: &'static str, body: impl IntoResponse) -> Response {
    ([(header::CONTENT_TYPE, content_type)], body).into_response()
}
