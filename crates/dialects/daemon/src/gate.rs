//! What the gate does for requests of the daemon's clients: the names of the server, the headers of pages, and rate limits.

use std::net::SocketAddr;

use http::{HeaderMap, Method};
use ostler_protocol::{
    Rule,
    daemon::{
        clients::{CLIENT_HEADER, check_client_id},
        failures::SharedProblem,
    },
};
use ostler_server::{
    config::Config,
    dialect::{FailureEncoder, GateRules, PROBLEM_JSON, RateRules, TierLimit, encoded},
};

use crate::config::DaemonSection;

/// The engine's paths that clients of the daemon call first.
pub(crate) const SHARED_PATHS: &[&str] = &["/health", "/capabilities"];
pub(crate) const SHARED_FAILURES: FailureEncoder = FailureEncoder {
    translate: |failure| failure,
    encode: |problem| encoded(&SharedProblem::from(problem)),
    content_type: PROBLEM_JSON,
    schema: "SharedProblem",
};

pub(crate) static RULES: GateRules = GateRules {
    names_server: Some(names_server),
    request_headers: &[CLIENT_HEADER],
    response_headers: &["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"],
    rates: Some(RateRules { tier, limit, client, rule: Rule::RateLimitExceeded }),
};

/// The names of a server on loopback. `host.docker.internal` is how a container on this machine calls it.
const NAMES: [&str; 4] = ["localhost", "127.0.0.1", "[::1]", "host.docker.internal"];

/// Whether the host is one of the server's names with its real port. A page that was served by another port is another server's.
fn names_server(config: &Config, host: &str) -> bool {
    let Ok(address) = config.server.listen.parse::<SocketAddr>() else { return false };
    let default_port = if config.server.tls_cert.is_some() { 443 } else { 80 };
    let (name, port) = match host.rsplit_once(':') {
        // The last colon of an IPv6 address without a port.
        Some((_, rest)) if rest.ends_with(']') => (host, default_port),
        Some((name, port)) => match port.parse() {
            Ok(port) => (name, port),
            Err(_) => return false,
        },
        None => (host, default_port),
    };
    let is_address = name.trim_matches(['[', ']']) == address.ip().to_string();
    port == address.port() && (is_address || NAMES.iter().any(|own| own.eq_ignore_ascii_case(name)))
}

const PROMPT: &str = "prompt";
const MUTATION: &str = "mutation";
const READ: &str = "read";

/// Health, heartbeats and event streams are not limited: they are how a client stays connected.
fn tier(method: &Method, path: &str) -> Option<&'static str> {
    let reads = [Method::GET, Method::HEAD].contains(method);
    let of_session = |name: &str| path.strip_prefix("/session/").is_some_and(|rest| rest.ends_with(name));
    match () {
        () if *method == Method::OPTIONS || path == "/health" => None,
        () if reads && of_session("/events") => None,
        () if *method == Method::POST && of_session("/heartbeat") => None,
        () if *method == Method::POST && of_session("/prompt") => Some(PROMPT),
        () if reads => Some(READ),
        () => Some(MUTATION),
    }
}

fn limit(config: &Config, tier: &str) -> TierLimit {
    let section = config.section::<DaemonSection>();
    let requests = match tier {
        PROMPT => section.rate_prompts_max,
        MUTATION => section.rate_mutations_max,
        _ => section.rate_reads_max,
    };
    TierLimit { requests, per_ms: section.rate_window_ms }
}

fn client(headers: &HeaderMap) -> Option<&str> {
    check_client_id(headers.get(CLIENT_HEADER)?.to_str().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_has_its_names_with_its_own_port_only() {
        let mut config = Config::default();
        config.server.listen = "127.0.0.1:4747".into();
        for good in ["localhost:4747", "127.0.0.1:4747", "[::1]:4747", "Host.Docker.Internal:4747"] {
            assert!(names_server(&config, good), "{good}");
        }
        for bad in [
            "localhost",
            "localhost:80",
            "[::1]",
            "127.0.0.2:4747",
            "evil.test:4747",
            "localhost:4747x",
            "::1:4747",
            "",
        ] {
            assert!(!names_server(&config, bad), "{bad}");
        }
        config.server.listen = "127.0.0.2:80".into();
        for good in ["localhost", "[::1]", "[::1]:80", "127.0.0.2", "host.docker.internal:80"] {
            assert!(names_server(&config, good), "{good}");
        }
    }

    #[test]
    fn each_request_is_in_the_tier_of_its_kind() {
        let by_name = |method: &str, path| tier(&method.parse().unwrap(), path);
        for (method, path, expected) in [
            ("GET", "/health", None),
            ("OPTIONS", "/session", None),
            ("GET", "/session/{id}/events", None),
            ("POST", "/session/{id}/heartbeat", None),
            ("POST", "/session/{id}/prompt", Some(PROMPT)),
            ("GET", "/capabilities", Some(READ)),
            ("HEAD", "/session/{id}/context", Some(READ)),
            ("POST", "/session", Some(MUTATION)),
            ("DELETE", "/session/{id}", Some(MUTATION)),
            ("POST", "/session/{id}/events", Some(MUTATION)),
        ] {
            assert_eq!(by_name(method, path), expected, "{method} {path}");
        }
    }
}
