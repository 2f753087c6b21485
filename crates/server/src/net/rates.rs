//! Rate limits: how many requests one caller may make, by tier. Off by default.
//!
//! Each caller and tier has a bucket that refills steadily; it is stored as one number, the time at which it would be full
//! again (the generic cell rate algorithm). Memory is bounded: a caller that was not seen for long is forgotten, which is
//! the same as a full bucket.

use std::{
    convert::Infallible,
    hash::Hash,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use jiff::SignedDuration;
use ostler_protocol::{Failure, FailureKind, Rule, Timestamp};
use quick_cache::sync::Cache;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::auth::Principal;

const CALLERS_REMEMBERED: usize = 16_384;
const SECOND_US: i64 = 1_000_000;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tier {
    Read,
    /// Opening an event stream; its events are not counted.
    Stream,
    /// Every write except a runner's.
    Submit,
    /// A request of a runner.
    Run,
    /// A request that was not admitted.
    Stranger,
}

impl Tier {
    const ALL: [Self; 5] = [Self::Read, Self::Stream, Self::Submit, Self::Run, Self::Stranger];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Stream => "stream",
            Self::Submit => "submit",
            Self::Run => "run",
            Self::Stranger => "stranger",
        }
    }
}

/// How often one caller may come, by what it comes for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rates {
    /// Limit the request rate of each caller.
    pub on: bool,
    /// Sustained reads per second of one caller.
    pub read_per_second: u32,
    /// Burst of reads of one caller.
    pub read_burst: u32,
    /// Sustained event streams that one caller opens per second.
    pub stream_per_second: u32,
    /// Burst of event streams that one caller opens.
    pub stream_burst: u32,
    /// Sustained writes per second of one caller that is not a runner.
    pub submit_per_second: u32,
    /// Burst of writes of one caller that is not a runner.
    pub submit_burst: u32,
    /// Sustained requests per second of one runner.
    pub run_per_second: u32,
    /// Burst of requests of one runner.
    pub run_burst: u32,
    /// Sustained requests per second from one address that were not admitted.
    pub stranger_per_second: u32,
    /// Burst of requests from one address that were not admitted.
    pub stranger_burst: u32,
}

impl Default for Rates {
    fn default() -> Self {
        Self {
            on: false,
            read_per_second: 50,
            read_burst: 200,
            stream_per_second: 2,
            stream_burst: 20,
            submit_per_second: 5,
            submit_burst: 50,
            // A runner appends once in 20 ms at most, for each run it carries out.
            run_per_second: 500,
            run_burst: 1_000,
            stranger_per_second: 2,
            stranger_burst: 20,
        }
    }
}

impl Rates {
    pub fn check(&self) -> Result<(), Failure> {
        if Tier::ALL.into_iter().all(|tier| self.of(tier).is_possible()) {
            return Ok(());
        }
        let message = format!("rates and bursts of every tier must be 1 to {SECOND_US}");
        Err(Failure::rule(Rule::RateLimit, message).with_kind(FailureKind::SchemaInvalid))
    }

    fn of(&self, tier: Tier) -> Rate {
        let (per_second, burst) = match tier {
            Tier::Read => (self.read_per_second, self.read_burst),
            Tier::Stream => (self.stream_per_second, self.stream_burst),
            Tier::Submit => (self.submit_per_second, self.submit_burst),
            Tier::Run => (self.run_per_second, self.run_burst),
            Tier::Stranger => (self.stranger_per_second, self.stranger_burst),
        };
        Rate { per_second, burst }
    }
}

/// A sustained rate, and the size of a burst.
#[derive(Clone, Copy)]
struct Rate {
    per_second: u32,
    burst: u32,
}

impl Rate {
    fn is_possible(self) -> bool {
        let possible = 1..=SECOND_US as u32;
        possible.contains(&self.per_second) && possible.contains(&self.burst)
    }

    fn interval_us(self) -> i64 {
        SECOND_US / i64::from(self.per_second)
    }
}

/// The owner of a bucket: a caller, or an address if the caller is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RateOwner {
    Caller(String),
    Peer(IpAddr),
}

impl RateOwner {
    pub fn caller(principal: &Principal) -> Self {
        Self::Caller(principal.name())
    }

    /// The caller with this name, or the address if the name is unknown.
    pub fn of(name: Option<&impl ToString>, peer: IpAddr) -> Self {
        name.map_or_else(|| Self::peer(peer), |name| Self::Caller(name.to_string()))
    }

    /// IPv6 addresses are counted by /64, because one subscriber has a whole /64.
    pub fn peer(address: IpAddr) -> Self {
        match address {
            IpAddr::V6(six) if six.to_ipv4_mapped().is_none() => {
                Self::Peer(IpAddr::V6((six.to_bits() & !u128::from(u64::MAX)).into()))
            }
            other => Self::Peer(other.to_canonical()),
        }
    }
}

/// The state of a caller's bucket after a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateStatus {
    tier: Tier,
    pub limit: u32,
    pub remaining: u32,
    /// Until the bucket is full again.
    pub reset_ms: i64,
    /// The request came too early by this much.
    wait_ms: Option<i64>,
}

impl RateStatus {
    pub fn refusal(&self) -> Option<Failure> {
        let message = format!("too many requests of the {} tier", self.tier.as_str());
        let failure = Failure::rule(Rule::RateLimit, message).detail("tier", self.tier.as_str());
        self.wait_ms.map(|ms| failure.detail("retryAfterMs", ms))
    }
}

pub struct Limiter {
    rates: Rates,
    /// When each bucket is full again, in microseconds since 1970.
    full_at: Cache<(RateOwner, Tier), Arc<AtomicI64>>,
}

impl Limiter {
    pub fn new(rates: Rates) -> Self {
        Self { rates, full_at: Cache::new(CALLERS_REMEMBERED) }
    }

    /// Takes one from the bucket. `None` if rate limits are off.
    pub fn take(&self, whose: RateOwner, tier: Tier, now: Timestamp) -> Option<RateStatus> {
        if !self.rates.on {
            return None;
        }
        let found = self.full_at.get_or_insert_with(&(whose, tier), || Ok::<_, Infallible>(Arc::default()));
        let full_at = found.unwrap_or_else(|never| match never {});
        Some(take(tier, self.rates.of(tier), &full_at, now.as_microsecond()))
    }
}

/// Buckets for limits other than the tiers of callers. Their state is not reported to callers.
pub struct Buckets<K> {
    full_at: Cache<K, Arc<AtomicI64>>,
}

impl<K: Clone + Eq + Hash> Buckets<K> {
    pub fn new(remembered: usize) -> Self {
        Self { full_at: Cache::new(remembered) }
    }

    /// Takes one of `count`, all of which may be taken at once and are refilled over the given time. `Err` is the time to wait,
    /// in milliseconds.
    pub fn take(&self, key: K, count: u32, per: SignedDuration, now: Timestamp) -> Result<(), i64> {
        let found = self.full_at.get_or_insert_with(&key, || Ok::<_, Infallible>(Arc::default()));
        let full_at = found.unwrap_or_else(|never| match never {});
        let interval = (per.as_micros() as i64 / i64::from(count.max(1))).max(1);
        match draw(interval, i64::from(count), &full_at, now.as_microsecond()) {
            (_, None) => Ok(()),
            (_, Some(wait_us)) => Err((wait_us + 999) / 1_000),
        }
    }
}

fn take(tier: Tier, rate: Rate, full_at: &AtomicI64, now: i64) -> RateStatus {
    let (interval, burst) = (rate.interval_us(), i64::from(rate.burst));
    let (until_full, wait) = draw(interval, burst, full_at, now);
    RateStatus {
        tier,
        limit: rate.burst,
        remaining: ((interval * burst - until_full) / interval).max(0) as u32,
        reset_ms: (until_full + 999) / 1_000,
        wait_ms: wait.map(|us| (us + 999) / 1_000),
    }
}

/// Takes one from a bucket that holds `burst` and refills one per interval. Returns the time until it is full again, and by
/// how much the request came too early, if it did.
pub(super) fn draw(interval: i64, burst: i64, full_at: &AtomicI64, now: i64) -> (i64, Option<i64>) {
    let depth = interval * burst;
    let mut current = full_at.load(Ordering::Relaxed);
    loop {
        // No bucket can be that empty: the clock was set back since, so the bucket starts full again.
        let full = if current - now > depth { now } else { current.max(now) };
        let next = full + interval;
        if next - now > depth {
            // A rejected request takes nothing from the bucket.
            return (full - now, Some(next - now - depth));
        }
        match full_at.compare_exchange_weak(current, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return (next - now, None),
            Err(other) => current = other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { per_second: 10, burst: 3 };

    #[test]
    fn a_bucket_empties_at_once_and_refills_steadily() {
        let bucket = AtomicI64::default();
        let at = |us: i64| {
            let status = take(Tier::Read, RATE, &bucket, 1_000_000_000 + us);
            (status.remaining, status.wait_ms)
        };
        assert_eq!([at(0), at(0), at(0)], [(2, None), (1, None), (0, None)]);
        assert_eq!([at(0), at(0)], [(0, Some(100)), (0, Some(100))]);
        assert_eq!(at(99_999), (0, Some(1)));
        assert_eq!(at(100_000), (0, None));
        assert_eq!(at(500_000), (2, None));
    }

    #[test]
    fn a_clock_that_is_set_back_locks_no_caller_out() {
        let bucket = AtomicI64::default();
        let at = |us: i64| take(Tier::Read, RATE, &bucket, 1_000_000_000 + us).wait_ms;
        assert_eq!([at(0), at(0), at(0), at(0)], [None, None, None, Some(100)]);
        assert_eq!([at(-600_000_000), at(-600_000_000)], [None, None]);
        assert_eq!([at(-600_000_000), at(-600_000_000)], [None, Some(100)], "nor does it let more in");
    }

    #[test]
    fn each_caller_and_tier_has_a_bucket_of_its_own() {
        let rates = Rates { on: true, read_per_second: 10, read_burst: 3, submit_burst: 3, ..Rates::default() };
        let limiter = Limiter::new(rates);
        let (a, b) = (RateOwner::Caller("a".into()), RateOwner::peer("10.0.0.1".parse().unwrap()));
        let take = |whose: &RateOwner, tier| limiter.take(whose.clone(), tier, Timestamp::UNIX_EPOCH).unwrap();
        for _ in 0..3 {
            assert!(take(&a, Tier::Read).refusal().is_none());
        }
        let refused = take(&a, Tier::Read).refusal().unwrap();
        assert_eq!(refused.details.unwrap()["retryAfterMs"], 100);
        assert_eq!((take(&a, Tier::Submit).remaining, take(&b, Tier::Read).remaining), (2, 2));
    }

    #[test]
    fn thousands_of_unknown_callers_take_no_more_memory() {
        let limiter = Limiter::new(Rates { on: true, ..Rates::default() });
        for address in 0..2 * CALLERS_REMEMBERED as u32 {
            let whose = RateOwner::peer(IpAddr::V4(address.into()));
            limiter.take(whose, Tier::Stranger, Timestamp::UNIX_EPOCH);
        }
        assert!(limiter.full_at.len() <= CALLERS_REMEMBERED);
    }

    #[test]
    fn addresses_of_one_ipv6_network_share_a_bucket() {
        let peer = |text: &str| RateOwner::peer(text.parse().unwrap());
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::ffff:1"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_eq!(peer("::ffff:10.0.0.1"), peer("10.0.0.1"));
        assert_ne!(peer("10.0.0.1"), peer("10.0.0.2"));
    }
}
