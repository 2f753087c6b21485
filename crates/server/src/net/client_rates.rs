//! Rate limits of dialects: how many requests one client of a caller may make, by tier. Callers are limited by the engine's own
//! rates as well, because a client could use a new name for each request.

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    sync::{Arc, atomic::AtomicI64},
};

use http::{HeaderMap, HeaderValue, Method};
use ostler_protocol::{Failure, Timestamp};
use quick_cache::sync::Cache;

use super::rates::{RateOwner, draw};
use crate::{auth::Principal, config::Config, dialect::RateRules};

/// Maximum number of buckets. The ones that were not used for longest make room, which is the same as a full bucket.
const BUCKETS_MAX: usize = 10_000;

/// The owner of a bucket. The caller is part of it, so that no caller can use up the limit of another one's client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct BucketKey {
    caller: Option<String>,
    /// `None` if the server listens on loopback, where all clients have the same address.
    peer: Option<RateOwner>,
    client: Option<String>,
    tier: &'static str,
}

/// A request that is counted.
pub(super) struct ClientRequest {
    rules: &'static RateRules,
    tier: &'static str,
    peer: IpAddr,
    client: Option<String>,
}

impl ClientRequest {
    /// `None` if the rules do not limit the request.
    pub(super) fn of(
        rules: &'static RateRules,
        (method, path): (&Method, &str),
        headers: &HeaderMap,
        peer: IpAddr,
    ) -> Option<Self> {
        let tier = (rules.tier)(method, path)?;
        Some(Self { rules, tier, peer, client: (rules.client)(headers).map(str::to_owned) })
    }
}

/// The state of a client's bucket after a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientRateStatus {
    rules: &'static RateRules,
    tier: &'static str,
    limit: u32,
    remaining: u32,
    wait_ms: Option<i64>,
    now: Timestamp,
}

impl ClientRateStatus {
    pub(super) fn refusal(&self) -> Option<Failure> {
        let failure = |ms: i64| {
            Failure::rule(self.rules.rule, "Rate limit exceeded").detail("tier", self.tier).detail("retryAfterMs", ms)
        };
        self.wait_ms.map(failure)
    }

    /// `x-ratelimit-reset` is the time from which the next request is admitted, in seconds since 1970.
    pub(super) fn add_headers(&self, headers: &mut HeaderMap) {
        let reset_ms = self.now.as_millisecond() + self.wait_ms.unwrap_or(0);
        let reset_s = (reset_ms.max(0) as u64).div_ceil(1_000);
        headers.insert("x-ratelimit-limit", HeaderValue::from(self.limit));
        headers.insert("x-ratelimit-remaining", HeaderValue::from(self.remaining));
        headers.insert("x-ratelimit-reset", HeaderValue::from(reset_s));
    }
}

pub struct ClientLimiter {
    is_on: bool,
    is_on_loopback: bool,
    /// When each bucket is full again, in microseconds since 1970.
    full_at: Cache<BucketKey, Arc<AtomicI64>>,
}

impl ClientLimiter {
    pub fn new(config: &Config) -> Self {
        let address = config.server.listen.parse::<SocketAddr>();
        Self {
            is_on: config.rate_limit.on,
            is_on_loopback: address.is_ok_and(|address| address.ip().is_loopback()),
            full_at: Cache::new(BUCKETS_MAX),
        }
    }

    /// Takes one from the bucket. `None` if rate limits are off.
    pub(super) fn take(
        &self,
        config: &Config,
        request: ClientRequest,
        caller: Option<&Principal>,
        now: Timestamp,
    ) -> Option<ClientRateStatus> {
        if !self.is_on {
            return None;
        }
        let ClientRequest { rules, tier, peer, client } = request;
        let peer = (!self.is_on_loopback).then(|| RateOwner::peer(peer));
        let key = BucketKey { caller: caller.map(Principal::name), peer, client, tier };
        let found = self.full_at.get_or_insert_with(&key, || Ok::<_, Infallible>(Arc::default()));
        let full_at = found.unwrap_or_else(|never| match never {});
        let limit = (rules.limit)(config, tier);
        let interval = (limit.per_ms as i64 * 1_000 / i64::from(limit.requests.max(1))).max(1);
        let (until_full, wait) = draw(interval, i64::from(limit.requests), &full_at, now.as_microsecond());
        Some(ClientRateStatus {
            rules,
            tier,
            limit: limit.requests,
            remaining: ((interval * i64::from(limit.requests) - until_full) / interval).max(0) as u32,
            wait_ms: wait.map(|us| (us + 999) / 1_000),
            now,
        })
    }
}

#[cfg(test)]
mod tests {
    use ostler_protocol::Rule;

    use super::*;
    use crate::dialect::TierLimit;

    static RULES: RateRules = RateRules {
        tier: |method, _| Some(if *method == Method::GET { "read" } else { "write" }),
        limit: |_, tier| TierLimit { requests: if tier == "read" { 3 } else { 1 }, per_ms: 60_000 },
        client: |headers| headers.get("x-client")?.to_str().ok(),
        rule: Rule::RateLimit,
    };

    fn config(listen: &str) -> Config {
        let mut config = Config::default();
        (config.server.listen, config.rate_limit.on) = (listen.into(), true);
        config
    }

    fn request(method: Method, client: &str, peer: &str) -> ClientRequest {
        let mut headers = HeaderMap::new();
        headers.insert("x-client", HeaderValue::from_str(client).unwrap());
        ClientRequest::of(&RULES, (&method, "/"), &headers, peer.parse().unwrap()).unwrap()
    }

    #[test]
    fn each_client_of_a_caller_has_a_bucket_per_tier() {
        let config = config("127.0.0.1:0");
        let limiter = ClientLimiter::new(&config);
        let operator = Some(&Principal::Operator);
        let take = |method: Method, client: &str, caller: Option<&Principal>, ms: i64| {
            let now = Timestamp::from_millisecond(1_000_000 + ms).unwrap();
            let status = limiter.take(&config, request(method, client, "127.0.0.1"), caller, now).unwrap();
            (status.remaining, status.wait_ms)
        };
        assert_eq!([0; 3].map(|_| take(Method::GET, "a", operator, 0).0), [2, 1, 0]);
        assert_eq!(take(Method::GET, "a", operator, 0), (0, Some(20_000)));
        assert_eq!(take(Method::POST, "a", operator, 0), (0, None));
        assert_eq!(take(Method::GET, "b", operator, 0), (2, None));
        assert_eq!(take(Method::GET, "a", None, 0), (2, None), "another caller cannot use it up");
        assert_eq!(take(Method::GET, "a", operator, 20_000), (0, None));
    }

    #[test]
    fn addresses_count_unless_the_server_is_on_loopback() {
        for (listen, expected) in [("127.0.0.1:0", 1), ("0.0.0.0:0", 2)] {
            let config = config(listen);
            let limiter = ClientLimiter::new(&config);
            let take =
                |peer| limiter.take(&config, request(Method::GET, "a", peer), None, Timestamp::UNIX_EPOCH).unwrap();
            take("10.0.0.1");
            assert_eq!(take("10.0.0.2").remaining, expected);
        }
    }

    #[test]
    fn the_number_of_buckets_is_bounded() {
        let config = config("127.0.0.1:0");
        let limiter = ClientLimiter::new(&config);
        for client in 0..2 * BUCKETS_MAX {
            let request = request(Method::GET, &client.to_string(), "127.0.0.1");
            limiter.take(&config, request, None, Timestamp::UNIX_EPOCH);
        }
        assert!(limiter.full_at.len() <= BUCKETS_MAX);
    }

    #[test]
    fn nothing_is_counted_while_rate_limits_are_off() {
        let config = Config::default();
        let limiter = ClientLimiter::new(&config);
        let request = request(Method::GET, "a", "127.0.0.1");
        assert_eq!(limiter.take(&config, request, None, Timestamp::UNIX_EPOCH).map(|status| status.limit), None);
    }
}
