//! What a dialect changes at the gate for requests to its own routes. The engine's own limits stay in force beside it.

use http::{HeaderMap, Method};
use ostler_protocol::Rule;
use utoipa::openapi::{RefOr, Schema};

use super::FailureEncoder;
use crate::config::Config;

/// How the gate treats requests to the routes of a dialect.
#[derive(Debug)]
pub struct GateRules {
    /// Whether this Host header, with its port, names the server. Called while the server listens on loopback, and in place of
    /// the engine's rule; on shared paths, beside it. A page whose origin is one of these hosts is the server's own. `None`: the engine's rule applies, and
    /// no page is the server's own.
    pub names_server: Option<fn(&Config, &str) -> bool>,
    /// Headers that pages of allowed origins may send, beside those of the engine.
    pub request_headers: &'static [&'static str],
    /// Headers that pages of allowed origins may read, beside those of the engine.
    pub response_headers: &'static [&'static str],
    /// Limits beside those of the engine. They apply while rate limits are on.
    pub rates: Option<RateRules>,
}

/// How many requests one client of a caller may make, by tier. A client names itself, so this only divides what the caller may
/// do: the engine's limit of the caller counts every request as well.
#[derive(Debug)]
pub struct RateRules {
    /// The tier of a request, by its method and the path of its route. `None` if it is not limited.
    pub tier: fn(&Method, &str) -> Option<&'static str>,
    /// The limit of a tier.
    pub limit: fn(&Config, &str) -> TierLimit,
    /// The client that a request names. A malformed name counts as none.
    pub client: fn(&HeaderMap) -> Option<&str>,
    /// The rule that a request over the limit breaks.
    pub rule: Rule,
}

/// So many requests may be made at once, and are made possible again over the given time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierLimit {
    pub requests: u32,
    pub per_ms: u64,
}

/// Paths of the engine that clients of a dialect call too. The dialect's rules apply to them, and requests without a valid token, or
/// from a wrong host or page, are rejected in the dialect's own form. Other failures have what both kinds of clients read.
#[derive(Clone, Copy)]
pub(crate) struct SharedPaths {
    pub paths: &'static [&'static str],
    pub failures: FailureEncoder,
    pub schema: fn() -> RefOr<Schema>,
}
