//! Failures of a start.

use ostler_protocol::{Failure, Rule, redaction::Redactor};

/// The failure of a start. Its reason is printed to the operator and never sent to callers; a connection string in it is
/// redacted.
pub fn not_started(rule: Rule, error: impl std::fmt::Display) -> Failure {
    let text = error.to_string();
    Failure::rule(rule, Redactor::new(&[]).redact(&text).into_owned())
}
