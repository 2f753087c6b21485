//! An issuer's public keys, from a file or a URL: fetched within bounds, cached for a while, and fetched again when a token
//! names an unknown key. Such fetches are rate-limited, because anyone can send such tokens.

use std::{path::PathBuf, sync::Arc, time::Duration};

use jiff::SignedDuration;
use ostler_client::outgoing;
use ostler_crypto::jwk::{Jwk, VerifyingKey};
use ostler_protocol::{Failure, Timestamp, outgoing::OutgoingRules};
use parking_lot::RwLock;
use serde::Deserialize;
use tokio::sync::Mutex;

use super::issuers::keys_missing;
use crate::config::IssuerSection;

/// Keys are fetched again after this long, so that a key that the issuer has withdrawn is dropped.
const FRESH: SignedDuration = SignedDuration::from_mins(10);
/// If they cannot be fetched, the cached keys are used for this long.
const STALE: SignedDuration = SignedDuration::from_hours(24);
/// Minimum time between two fetches, whatever keys tokens name.
const REFETCH: SignedDuration = SignedDuration::from_secs(30);
const FETCH_MS_MAX: u64 = 5_000;
const SET_BYTES_MAX: usize = 256 * 1024;
const KEYS_MAX: usize = 100;

pub(super) struct CachedKeySet {
    issuer: String,
    source: KeySource,
    held: RwLock<Option<Arc<HeldKeys>>>,
    /// When keys were last fetched. Locked during a fetch.
    tried: Mutex<Option<Timestamp>>,
}

enum KeySource {
    File(PathBuf),
    Url(reqwest::Client, String),
}

struct HeldKeys {
    keys: Vec<VerifyingKey>,
    at: Timestamp,
}

impl HeldKeys {
    fn is_younger_than(&self, age: SignedDuration, now: Timestamp) -> bool {
        is_within(self.at, age, now)
    }

    fn find(&self, kid: &str) -> Option<VerifyingKey> {
        self.keys.iter().find(|key| key.kid == kid).cloned()
    }
}

/// Whether less than `age` has passed since then. A time in the future is not within: the wall clock was set back.
fn is_within(then: Timestamp, age: SignedDuration, now: Timestamp) -> bool {
    (SignedDuration::ZERO..age).contains(&now.duration_since(then))
}

impl CachedKeySet {
    /// `Err` names the problem of the configuration.
    pub(super) fn of(section: &IssuerSection) -> Result<Self, String> {
        let source = match (&section.jwks_url, &section.jwks_file) {
            (Some(url), None) => KeySource::Url(http_client(url)?, url.clone()),
            (None, Some(file)) => {
                // A file that is wrong at the start is a mistake; later it may be in the middle of being replaced.
                std::fs::read_to_string(file)
                    .map_err(|e| format!("{}: {e}", file.display()))
                    .and_then(|t| parse(&t))?;
                KeySource::File(file.clone())
            }
            _ => return Err("give one of `jwks_url` and `jwks_file`".into()),
        };
        Ok(Self { issuer: section.issuer.clone(), source, held: RwLock::default(), tried: Mutex::default() })
    }

    /// `None` if the issuer has no such key. `Err` if its keys are unavailable.
    pub(super) async fn find(self: &Arc<Self>, kid: &str, now: Timestamp) -> Result<Option<VerifyingKey>, Failure> {
        if let Some(key) = self.fresh(kid, now) {
            return Ok(Some(key));
        }
        // In its own task: the fetch must complete for other callers even if this one disconnects.
        let (this, wanted) = (self.clone(), kid.to_owned());
        let looked = tokio::spawn(async move { this.refresh(&wanted, now).await });
        looked.await.map_err(Failure::internal)?;
        let held = self.held().filter(|held| held.is_younger_than(STALE, now));
        held.map(|held| held.find(kid)).ok_or_else(|| keys_missing(&self.issuer))
    }

    fn fresh(&self, kid: &str, now: Timestamp) -> Option<VerifyingKey> {
        self.held().filter(|held| held.is_younger_than(FRESH, now)).and_then(|held| held.find(kid))
    }

    /// Fetches the keys, unless another caller has just done so.
    async fn refresh(&self, kid: &str, now: Timestamp) {
        let mut tried = self.tried.lock().await;
        let too_soon = tried.is_some_and(|at| is_within(at, REFETCH, now));
        if too_soon || self.fresh(kid, now).is_some() {
            return;
        }
        *tried = Some(now);
        match self.fetch().await {
            Ok(keys) => *self.held.write() = Some(Arc::new(HeldKeys { keys, at: now })),
            Err(reason) => tracing::warn!(issuer = self.issuer, reason, "an issuer's keys could not be fetched"),
        }
    }

    fn held(&self) -> Option<Arc<HeldKeys>> {
        self.held.read().clone()
    }

    async fn fetch(&self) -> Result<Vec<VerifyingKey>, String> {
        let fetching = async {
            match &self.source {
                KeySource::File(file) => tokio::fs::read_to_string(file).await.map_err(|e| e.to_string()),
                KeySource::Url(client, url) => download(client, url).await,
            }
        };
        match tokio::time::timeout(Duration::from_millis(FETCH_MS_MAX), fetching).await {
            Ok(text) => parse(&text?),
            Err(_) => Err(format!("no response within {FETCH_MS_MAX} ms")),
        }
    }
}

async fn download(client: &reqwest::Client, url: &str) -> Result<String, String> {
    let mut response = client.get(url).send().await.map_err(|e| e.to_string())?;
    if response.status() != reqwest::StatusCode::OK {
        return Err(format!("the response was {}", response.status()));
    }
    let mut whole = vec![];
    while let Some(chunk) = response.chunk().await.map_err(|e| e.to_string())? {
        if whole.len() + chunk.len() > SET_BYTES_MAX {
            return Err(format!("the response is over {SET_BYTES_MAX} bytes"));
        }
        whole.extend_from_slice(&chunk);
    }
    String::from_utf8(whole).map_err(|e| e.to_string())
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<serde_json::Value>,
}

/// The keys of a set that we can use. Keys of other types are ignored.
fn parse(text: &str) -> Result<Vec<VerifyingKey>, String> {
    if text.len() > SET_BYTES_MAX {
        return Err(format!("the key set is over {SET_BYTES_MAX} bytes"));
    }
    let set: Set = serde_json::from_str(text).map_err(|e| format!("not a key set: {e}"))?;
    if set.keys.len() > KEYS_MAX {
        return Err(format!("the key set has over {KEYS_MAX} keys"));
    }
    let usable = |value| serde_json::from_value::<Jwk>(value).ok().and_then(|jwk| VerifyingKey::of(&jwk));
    Ok(set.keys.into_iter().filter_map(usable).collect())
}

/// Requires TLS except on loopback: keys that are fetched in clear text could come from an attacker.
fn http_client(url: &str) -> Result<reqwest::Client, String> {
    let parsed: http::Uri = url.parse().map_err(|e| format!("jwks_url: {e}"))?;
    let host = parsed.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let is_loopback = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    // The operator named the host, so it may have a private address. Tokens of unauthenticated callers cause the fetch, so a
    // name that resolves to this machine or to a cloud's metadata service is not connected to.
    let rules = OutgoingRules::default().with_host(host);
    let rules = if is_loopback { rules.with_loopback() } else { rules };
    let builder = outgoing::restrict_host(reqwest::Client::builder(), host, &rules);
    // The process may have chosen a provider already; then that one stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = match (parsed.scheme_str(), is_loopback) {
        (Some("https"), false) => builder,
        (Some("https"), true) => builder.no_proxy(),
        (Some("http"), true) => builder.no_proxy().tls_certs_only([]),
        _ => return Err("jwks_url must be https, or http on this machine".into()),
    };
    builder.build().map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[test]
    fn keys_are_fetched_over_tls_or_from_loopback_only() {
        for good in ["https://id.example/jwks", "http://127.0.0.1:9/jwks", "http://localhost/k", "http://[::1]:9/k"] {
            assert!(http_client(good).is_ok(), "{good}");
        }
        for bad in ["http://id.example/jwks", "http://127.0.0.1.evil.test/", "file:///etc/passwd", "ftp://x/", "jwks"] {
            assert!(http_client(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_fetch_completes_although_its_caller_disconnects() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/jwks", listener.local_addr().unwrap());
        let (issuer, audience) = ("https://id.example".to_owned(), "us".to_owned());
        let section = IssuerSection { issuer, audience, jwks_url: Some(url), jwks_file: None };
        let (keys, now) = (Arc::new(CachedKeySet::of(&section).unwrap()), Timestamp::UNIX_EPOCH);
        let hasty = keys.clone();
        let hasty = tokio::spawn(async move { hasty.find("a", now).await.is_ok() });
        let (mut connection, _) = listener.accept().await.unwrap();
        hasty.abort();
        assert!(hasty.await.unwrap_err().is_cancelled());
        connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{\"keys\":[]}").await.unwrap();
        assert!(keys.find("a", now).await.unwrap().is_none(), "the keys were fetched, and this is none of them");
    }

    #[test]
    fn keys_of_unknown_types_are_ignored() {
        assert_eq!(parse(r#"{"keys": []}"#), Ok(vec![]));
        let keys = r#"{"keys": [{"kty": "oct", "k": "AAAA", "kid": "a"}, 7, {"kty": "RSA", "kid": "b"}]}"#;
        assert_eq!(parse(keys), Ok(vec![]));
        assert!(parse("{}").is_err() && parse("[]").is_err() && parse("").is_err());
        let many = format!(r#"{{"keys": [{}]}}"#, vec!["{}"; KEYS_MAX + 1].join(","));
        assert!(parse(&many).unwrap_err().contains("keys"));
    }
}
