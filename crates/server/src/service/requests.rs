//! Checks of request fields that operations share.

use ostler_protocol::{
    Failure, Rule,
    ids::{AttemptId, SessionId, prefix_range},
    kernel::runs::Cancel,
    limits::{BLOCKER_CHARS_MAX, IDEMPOTENCY_KEY_BYTES_MAX, REASON_BYTES_MAX},
    text::clip,
};

use crate::app::App;

/// Checks a key that a caller chose for a create.
pub fn check_key<'a>(app: &App, key: &'a str) -> Result<&'a str, Failure> {
    app.name("idempotencyKey", key)?;
    if key.len() > IDEMPOTENCY_KEY_BYTES_MAX {
        return Err(Failure::invalid(Rule::IdempotencyKeySize, "idempotencyKey is too long"));
    }
    Ok(key)
}

/// The range of the ids that begin with `prefix`. `None` if no prefix is given.
pub fn id_range(kind: &str, prefix: Option<&str>) -> Result<Option<(String, String)>, Failure> {
    let Some(prefix) = prefix else { return Ok(None) };
    let range = prefix_range(kind, prefix);
    let message = format!("idPrefix must be {kind} and up to 32 hexadecimal digits");
    range.map(Some).ok_or_else(|| Failure::invalid(Rule::IdPrefix, message))
}

/// A caller's reason, redacted and clipped.
pub fn reason(app: &App, request: Cancel) -> Result<Option<String>, Failure> {
    let Some(text) = request.reason else { return Ok(None) };
    check_reason("reason", &text)?;
    Ok(Some(clip(&app.redactor.redact(&text), BLOCKER_CHARS_MAX)))
}

pub fn check_reason(field: &str, text: &str) -> Result<(), Failure> {
    if text.len() > REASON_BYTES_MAX {
        return Err(Failure::too_large(Rule::ReasonSize, field, text.len(), REASON_BYTES_MAX));
    }
    Ok(())
}

/// The attempt that a runner names. An id that cannot be one is reported like a stale attempt.
pub fn attempt(text: Option<&str>) -> Result<Option<AttemptId>, Failure> {
    let unknown = |_| Failure::rule(Rule::AttemptStale, "no such attempt");
    text.map(|text| text.parse().map_err(unknown)).transpose()
}

/// Checks an id that a caller chooses for a new session.
pub fn check_chosen(id: &str) -> Result<(), Failure> {
    if !id.starts_with(SessionId::PREFIX) {
        return Ok(());
    }
    if id.parse::<SessionId>().is_ok() {
        return Err(Failure::not_found("session"));
    }
    Err(Failure::invalid(Rule::SessionIdReserved, "session ids that begin with ses_ are the server's to give"))
}
