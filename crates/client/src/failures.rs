//! Failures of the connection itself, as opposed to failures that a server reports.

use std::{error::Error, io};

use ostler_protocol::{Failure, FailureKind, Rule, text::clip};

use crate::transport::is_loopback;

const MESSAGE_CHARS_MAX: usize = 400;
const REASON_CHARS_MAX: usize = 120;

/// Whether the same call may succeed shortly, because the server is unreachable or overloaded. Whether repeating the call
/// is safe is for the caller to know.
pub fn is_transient(failure: &Failure) -> bool {
    use FailureKind::*;
    is_unreachable(failure) || matches!(failure.kind, Overloaded | RateLimited | Draining | InfraFailed | Internal)
}

/// Whether there was no complete response, so that the outcome of the call is unknown.
pub fn is_unreachable(failure: &Failure) -> bool {
    matches!(
        failure.broken_rule(),
        Some(
            Rule::ServerUnreachable
                | Rule::ServerWithoutTls
                | Rule::ServerCertificate
                | Rule::ServerTimeout
                | Rule::AnswerInterrupted
        )
    )
}

/// Whether no connection was made, or the server accepts no work, so that it cannot have begun with the call.
pub fn was_not_begun(failure: &Failure) -> bool {
    let is_unsent = failure.details.as_ref().and_then(|details| details.get(UNSENT)?.as_bool());
    is_unsent.unwrap_or_default() || failure.kind == FailureKind::Draining
}

/// The detail of a request that was not sent.
const UNSENT: &str = "unsent";

/// The detail with the whole chain of errors, for people who look into a connection.
pub const CAUSES: &str = "causes";

pub(crate) fn unreachable(error: &reqwest::Error) -> Failure {
    let address = error.url().map_or_else(|| "the server".to_owned(), |url| url.origin().ascii_serialization());
    // rustls names the first bytes of a plain HTTP response by the type that they would have in TLS.
    let is_plain = causes(error).contains("corrupt message of type InvalidContentType");
    let (rule, message) = match error.url().and_then(|url| url.host_str()) {
        // Not for other hosts: an attacker who answers in the server's place would receive the token in plain text.
        Some(host) if is_plain && is_loopback(host) => (
            Rule::ServerWithoutTls,
            format!("the server at {address} does not use TLS; use {}", address.replacen("https", "http", 1)),
        ),
        _ if is_plain => (Rule::ServerWithoutTls, format!("the server at {address} does not use TLS")),
        _ => {
            let reason = reason(error);
            // By its words: the errors around that of rustls hide its type.
            let is_untrusted = reason.contains("invalid peer certificate: UnknownIssuer");
            let rule = if is_untrusted { Rule::ServerCertificate } else { Rule::ServerUnreachable };
            (rule, format!("{address} does not answer ({reason})"))
        }
    };
    let failure = Failure::rule(rule, message).detail(CAUSES, causes(error));
    if error.is_connect() { failure.detail(UNSENT, true) } else { failure }
}

pub(crate) fn interrupted(error: &(dyn Error + 'static)) -> Failure {
    let message = "the connection broke off in the middle of a response";
    Failure::rule(Rule::AnswerInterrupted, message).detail(CAUSES, causes(error))
}

/// Why a connection failed, in a few words: the innermost error, without its number.
fn reason(error: &(dyn Error + 'static)) -> String {
    let mut innermost = error;
    let mut next = Some(error);
    while let Some(cause) = next {
        if let Some(io) = cause.downcast_ref::<io::Error>() {
            match io.kind() {
                io::ErrorKind::ConnectionRefused => return "connection refused".to_owned(),
                io::ErrorKind::ConnectionReset => return "connection reset".to_owned(),
                io::ErrorKind::TimedOut => return "no response in time".to_owned(),
                _ => {}
            }
        }
        innermost = cause;
        next = cause.source();
    }
    clip(&innermost.to_string(), REASON_CHARS_MAX)
}

/// Why a connection failed, in fixed words: nothing of what the other side sent or resolved to is repeated, so that everyone who
/// reads the outcome of a run may see it.
pub fn connection_cause(error: &reqwest::Error) -> &'static str {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(cause) = next {
        match cause.downcast_ref::<io::Error>().map(io::Error::kind) {
            Some(io::ErrorKind::ConnectionRefused) => return "connection refused",
            Some(io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => return "connection reset",
            Some(io::ErrorKind::TimedOut) => return "no response in time",
            Some(io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable) => return "no route to it",
            _ => {}
        }
        next = cause.source();
    }
    // The outermost error names the URL, whose words mean nothing here.
    let text = error.source().map(causes).unwrap_or_default().to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    match () {
        () if has(&["dns error", "lookup address"]) => "its name cannot be resolved",
        () if error.is_timeout() => "no response in time",
        () if has(&["certificate", "tls", "handshake", "corrupt message"]) => "TLS failed",
        () => "connection failed",
    }
}

pub(crate) fn timed_out(after_ms: u64) -> Failure {
    let message = format!("the server did not respond within {} s", after_ms / 1_000);
    Failure::rule(Rule::ServerTimeout, message)
}

/// The error and its causes. The outermost error alone ("error sending request") is not helpful.
fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    clip(&text, MESSAGE_CHARS_MAX)
}
