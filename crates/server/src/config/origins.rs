//! The origins of web pages that may call the server.

use ostler_protocol::{Failure, Rule};

use super::places::KEY;

/// An allowed origin that matches every one, except for pages that have none.
pub(crate) const EVERY_ORIGIN: &str = "*";

/// An origin is compared letter by letter with what a browser sends: scheme, host and port, no path, and no pattern except
/// `*`. Pages of every origin may call only where each call needs a token, because no page has one by itself.
pub(super) fn check_origin(origin: &str, requires_tokens: bool) -> Result<(), Failure> {
    let refused =
        |message: String| Err(Failure::invalid(Rule::AllowOrigin, message).detail(KEY, "server.allow_origins"));
    if origin == EVERY_ORIGIN && !requires_tokens {
        return refused(
            "\"*\" allows pages of every origin; that needs a token for every request: add --require-auth, or name the origins"
                .into(),
        );
    }
    if origin == EVERY_ORIGIN || is_origin(origin) {
        return Ok(());
    }
    refused(format!(
        "{origin:?} is no origin as browsers send it; one looks like https://console.example or http://localhost:3000"
    ))
}

/// Whether a browser sends this text as the origin of a page. It never sends the port that the scheme has by default, so an entry
/// with that port would allow nothing.
fn is_origin(text: &str) -> bool {
    let (host, default_port) = match text.split_once("://") {
        Some(("http", host)) => (host, 80),
        Some(("https", host)) => (host, 443),
        _ => return false,
    };
    let is_plain = !host.contains(['/', '\\', '*', '?', '#', '@', ' ']) && *host == *host.to_lowercase();
    // The colons of an IPv6 address are in brackets.
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    let is_port = |text: &str| text.parse::<u16>().is_ok_and(|port| port != default_port && port.to_string() == text);
    !name.is_empty() && is_plain && port.is_none_or(is_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        for good in [
            "https://console.example",
            "http://localhost:3000",
            "http://[::1]:8080",
            "http://[::1]",
            "https://a.example:80",
        ] {
            assert!(check_origin(good, false).is_ok(), "{good}");
        }
        for bad in [
            "null",
            "console.example",
            "ftp://a.example",
            "https://*.example",
            "https://a.example/",
            "https://A.example",
            "https://user:secret@a.example",
            "https://a.example:443",
            "http://[::1]:80",
            "http://a.example:",
            "http://a.example:65536",
            "http://a.example:080",
            "http://:3000",
            "https://",
        ] {
            assert!(check_origin(bad, true).is_err(), "{bad}");
        }
    }
}
