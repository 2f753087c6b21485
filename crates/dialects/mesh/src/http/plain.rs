//! What the handlers of plain resources share: the host of a request, and responses with a content type.

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, header};
use ostler_protocol::{Failure, FailureKind, Rule};

use ostler_server::net::gate::name_of;

/// The host of the request, with its port.
pub(super) fn host(headers: &HeaderMap) -> Result<&str, Failure> {
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    host.ok_or_else(|| {
        Failure::rule(Rule::HostMissing, "a Host header is required").with_kind(FailureKind::SchemaInvalid)
    })
}

/// The host of the request, without its port.
pub(super) fn host_name(headers: &HeaderMap) -> Result<&str, Failure> {
    host(headers).map(name_of)
}

pub(super) fn plain(content_type: &'static str, body: impl IntoResponse) -> Response {
    ([(header::CONTENT_TYPE, content_type)], body).into_response()
}
