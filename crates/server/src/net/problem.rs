//! Encodes failures as responses, with the dialect's own code if it has one, and logs them unless too many are alike.

use std::net::IpAddr;

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use ostler_protocol::{Failure, FailureKind, Rule, failures::Problem, ids::TraceId, redaction::Redactor, text::clip};

use crate::{app::App, dialect::FailureEncoder};

/// Maximum length of a failure's message in the log, because it may quote the caller.
const LOGGED_CHARS_MAX: usize = 500;

/// A failure in handlers' results. The gate gives it a body, because only the gate knows the trace id.
pub struct Refusal(pub Failure);

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self(failure)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        response(self.0)
    }
}

pub fn response(failure: Failure) -> Response {
    let mut response = Response::default();
    *response.status_mut() = status(&failure);
    response.extensions_mut().insert(failure);
    response
}

fn status(failure: &Failure) -> StatusCode {
    StatusCode::from_u16(failure.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// The response to a request with a line that ends with a bare line feed: the rest of it would be ambiguous.
pub fn bare_feed(app: &App, path: &str, peer: IpAddr) -> Response {
    let failure = Failure::invalid(Rule::BareLineFeed, "a line of the head ends without a carriage return");
    close_with(app, failure, path, peer)
}

/// The response to a request for which the listener does not know the length of the body, or the start.
pub fn unknown_length(app: &App, path: &str, peer: IpAddr) -> Response {
    let failure = Failure::invalid(Rule::ContentLength, "the length of a body is not written as a plain number");
    close_with(app, failure, path, peer)
}

/// Rejects a request and closes its connection.
fn close_with(app: &App, failure: Failure, path: &str, peer: IpAddr) -> Response {
    let mut closing =
        encode(app, response(failure), TraceId::new(app.ids.body()), (path, FailureEncoder::PLAIN), Some(peer));
    closing.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    closing
}

/// Writes the failure a response carries, if it carries one, as the dialect of its route does. `peer` is `None` for a request
/// made inside this process.
pub fn encode(
    app: &App,
    mut response: Response,
    trace_id: TraceId,
    (path, encoder): (&str, FailureEncoder),
    peer: Option<IpAddr>,
) -> Response {
    let Some(failure) = response.extensions_mut().remove::<Failure>() else { return response };
    let failure = (encoder.translate)(failure);
    let redactor = &app.redactor;
    app.metrics.refused(&failure);
    if app.refusals.should_log(&failure, peer) {
        log(&failure, trace_id, path, redactor);
    }
    let retry_after_ms = failure.details.as_ref().and_then(|details| details.get("retryAfterMs")?.as_i64());
    let status = status(&failure);
    let message = clip(&redactor.redact(&failure.message), LOGGED_CHARS_MAX);
    let details = redact_details(failure.details.map(|details| *details).unwrap_or_default(), redactor);
    // The encoder gets the redacted problem and nothing else.
    let body = (encoder.encode)(Problem::new(failure.kind, message, trace_id.to_string(), details));
    let mut encoded = (status, body).into_response();
    encoded.extensions_mut().insert(failure.kind);
    encoded.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(encoder.content_type));
    if failure.kind == FailureKind::Unauthenticated {
        encoded.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(ms) = retry_after_ms.filter(|_| failure.kind.row().retry) {
        encoded.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from((ms.max(0) as u64).div_ceil(1_000)));
    }
    encoded
}

/// The failure as a caller on another transport may receive it: counted, logged and redacted, like those encoded here.
pub fn reported(app: &App, mut failure: Failure, trace_id: TraceId, what: &str, peer: IpAddr) -> Failure {
    app.metrics.refused(&failure);
    if app.refusals.should_log(&failure, Some(peer)) {
        log(&failure, trace_id, what, &app.redactor);
    }
    failure.message = clip(&app.redactor.redact(&failure.message), LOGGED_CHARS_MAX);
    failure.details = failure.details.map(|details| Box::new(redact_details(*details, &app.redactor)));
    failure
}

type Details = serde_json::Map<String, serde_json::Value>;

/// Details may quote what the caller sent, but not as a key.
fn redact_details(details: Details, redactor: &Redactor) -> Details {
    let text = serde_json::Value::Object(details).to_string();
    match serde_json::from_str(&redactor.redact_json_values(&text)) {
        Ok(serde_json::Value::Object(clean)) => clean,
        _ => Details::new(),
    }
}

fn log(failure: &Failure, trace_id: TraceId, path: &str, redactor: &Redactor) {
    let (message, path) = (redactor.redact(&failure.message), redactor.redact(path));
    let (message, path) = (clip(&message, LOGGED_CHARS_MAX), clip(&path, LOGGED_CHARS_MAX));
    let cause = failure.cause.as_deref().map(|cause| redactor.redact(cause).into_owned()).unwrap_or_default();
    if failure.kind == FailureKind::Draining {
        tracing::info!(%trace_id, path, kind = %failure.kind, reason = message, "request left to the next server");
    } else if failure.kind == FailureKind::Overloaded {
        // A limit that callers have reached, and no fault of the server.
        tracing::warn!(%trace_id, path, kind = %failure.kind, reason = message, rule = failure.rule_name(), "request refused");
    } else if failure.kind.row().status >= 500 && failure.kind != FailureKind::NotImplemented {
        tracing::error!(%trace_id, path, kind = %failure.kind, reason = message, cause, "request failed");
    } else {
        tracing::info!(%trace_id, path, kind = %failure.kind, reason = message, rule = failure.rule_name(), "request refused");
    }
}
