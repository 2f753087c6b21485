//! What this server counts, and how Prometheus reads it. Counting is a few atomic additions; everything that costs more
//! is done when the page is read. Labels come from closed lists (operations, failure kinds, rules), never from callers.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use http::{Method, StatusCode};
use ostler_protocol::{
    Failure,
    kernel::{runner_jobs::JobEnd, runs::TerminalStatus},
};
use parking_lot::{Mutex, RwLock};

use crate::net::sockets::Close;

mod page;
mod samples;

pub use page::{ClusterGauges, Counts, ENGINE_METRICS, Gauges, page};
pub use samples::Samples;

/// Where the buckets of a time end, in microseconds.
const TIMES_US: [u64; 12] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000, 500_000, 2_500_000, 30_000_000];
/// Where the buckets of a size end.
const SIZES: [u64; 12] = [1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512];
/// Statuses counted apart; the rest is `0`.
const STATUSES: [u16; 22] =
    [0, 101, 200, 201, 204, 304, 400, 401, 403, 404, 405, 409, 410, 413, 415, 422, 429, 500, 501, 502, 503, 504];
/// Rules counted apart. They are names in our code, so there are never more; the bound limits the damage of a mistake.
const RULES_MAX: usize = 512;
/// Why a WebSocket ended: its other end went, was silent, was too slow, was not let in, sent too much at once; the server stops;
/// anything else.
pub const SOCKET_ENDS: [(&str, u16); 7] = [
    ("gone", Close::GONE.code),
    ("dead", Close::DEAD.code),
    ("slow", Close::SLOW.code),
    ("refused", Close::REFUSED_CODE),
    ("too-long", Close::TOO_LONG.code),
    ("stopping", Close::GOING.code),
    ("other", 0),
];
/// Why a connection was dropped: its peer does not read, the head of a request does not come, it was silent and had to make
/// room for another one, anything else.
pub const DROPS: [&str; 4] = ["slow-reader", "slow-head", "crowded-out", "other"];
const OUTCOMES: [TerminalStatus; 4] =
    [TerminalStatus::Completed, TerminalStatus::Failed, TerminalStatus::Blocked, TerminalStatus::Cancelled];
const JOB_ENDS: [(JobEnd, &str); 4] = [
    (JobEnd::Succeeded, "succeeded"),
    (JobEnd::Failed, "failed"),
    (JobEnd::Returned, "returned"),
    (JobEnd::Overdue, "overdue"),
];

/// A clock that can jump.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum JumpedClock {
    Machine,
    Database,
}

impl JumpedClock {
    const ALL: [Self; 2] = [Self::Machine, Self::Database];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Database => "database",
        }
    }
}

/// How a question beside a session ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SideQueryEnd {
    Answered,
    Empty,
    Failed,
    /// Its caller left.
    Dropped,
}

impl SideQueryEnd {
    const ALL: [Self; 4] = [Self::Answered, Self::Empty, Self::Failed, Self::Dropped];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Empty => "empty",
            Self::Failed => "failed",
            Self::Dropped => "dropped",
        }
    }
}

#[derive(Default)]
pub struct Metrics {
    operations: RwLock<HashMap<String, HashMap<Method, Arc<OperationCounts>>>>,
    refusals: Mutex<BTreeMap<(&'static str, String), u64>>,
    flush_us: Histogram,
    flush_requests: Histogram,
    events: AtomicU64,
    runs_started: AtomicU64,
    runs_ended: [AtomicU64; OUTCOMES.len()],
    commands_ended: [AtomicU64; OUTCOMES.len()],
    jobs_ended: [AtomicU64; JOB_ENDS.len()],
    dropped: [AtomicU64; DROPS.len()],
    spans_dropped: AtomicU64,
    sockets_closed: [AtomicU64; SOCKET_ENDS.len()],
    clock_jumps: [AtomicU64; JumpedClock::ALL.len()],
    side_queries_ended: [AtomicU64; SideQueryEnd::ALL.len()],
}

#[derive(Default)]
struct OperationCounts {
    statuses: [AtomicU64; STATUSES.len()],
    took_us: Histogram,
}

/// Counts per bucket, and beyond the last one; the sum of what was counted.
#[derive(Default)]
struct Histogram {
    buckets: [AtomicU64; 13],
    sum: AtomicU64,
}

impl Histogram {
    fn add(&self, value: u64, ends: &[u64; 12]) {
        let bucket = ends.partition_point(|end| *end < value);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }
}

impl Metrics {
    /// Counts a response. For a stream, the time to its head counts, not its length.
    pub fn count_response(&self, method: &Method, path: Option<&str>, status: StatusCode, took_us: i64) {
        let operation = self.operation(method_label(method), path.unwrap_or("other"));
        let at = STATUSES.iter().position(|listed| *listed == status.as_u16()).unwrap_or(0);
        operation.statuses[at].fetch_add(1, Relaxed);
        operation.took_us.add(took_us.max(0).unsigned_abs(), &TIMES_US);
    }

    fn operation(&self, method: &Method, path: &str) -> Arc<OperationCounts> {
        let found = |of: &HashMap<String, HashMap<Method, Arc<OperationCounts>>>| of.get(path)?.get(method).cloned();
        if let Some(operation) = found(&self.operations.read()) {
            return operation;
        }
        let mut operations = self.operations.write();
        operations.entry(path.to_owned()).or_default().entry(method.clone()).or_default().clone()
    }

    /// Counts a rejected request. Every limit rejects with a failure that names its rule, so this counts them all.
    pub fn refused(&self, failure: &Failure) {
        let key = (failure.kind.as_str(), failure.rule_name().unwrap_or_default().to_owned());
        let mut refusals = self.refusals.lock();
        if refusals.len() < RULES_MAX || refusals.contains_key(&key) {
            *refusals.entry(key).or_default() += 1;
        }
    }

    pub fn flushed(&self, requests: usize, events: usize, took_us: i64) {
        self.flush_requests.add(requests as u64, &SIZES);
        self.flush_us.add(took_us.max(0).unsigned_abs(), &TIMES_US);
        self.events.fetch_add(events as u64, Relaxed);
    }

    pub fn run_started(&self) {
        self.runs_started.fetch_add(1, Relaxed);
    }

    pub fn ended(&self, outcome: TerminalStatus, is_run: bool) {
        let counters = if is_run { &self.runs_ended } else { &self.commands_ended };
        if let Some(at) = OUTCOMES.iter().position(|listed| *listed == outcome) {
            counters[at].fetch_add(1, Relaxed);
        }
    }

    pub fn job_ended(&self, end: JobEnd) {
        if let Some(at) = JOB_ENDS.iter().position(|(listed, _)| *listed == end) {
            self.jobs_ended[at].fetch_add(1, Relaxed);
        }
    }

    pub fn spans_dropped(&self, spans: usize) {
        self.spans_dropped.fetch_add(spans as u64, Relaxed);
    }

    pub fn socket_closed(&self, close: Close) {
        let at = SOCKET_ENDS.iter().position(|(_, code)| *code == close.code).unwrap_or(SOCKET_ENDS.len() - 1);
        self.sockets_closed[at].fetch_add(1, Relaxed);
    }

    pub fn clock_jumped(&self, clock: JumpedClock) {
        self.clock_jumps[clock as usize].fetch_add(1, Relaxed);
    }

    pub fn side_query_ended(&self, end: SideQueryEnd) {
        self.side_queries_ended[end as usize].fetch_add(1, Relaxed);
    }

    pub fn connection_dropped(&self, reason: &str) {
        let at = DROPS.iter().position(|listed| *listed == reason).unwrap_or(DROPS.len() - 1);
        self.dropped[at].fetch_add(1, Relaxed);
    }
}

/// The label of a method. Methods that this server does not use share one label, because a caller may send any method.
fn method_label(method: &Method) -> &Method {
    #[expect(clippy::expect_used, reason = "the constant is a valid method name")]
    static OTHER: std::sync::LazyLock<Method> =
        std::sync::LazyLock::new(|| Method::from_bytes(b"OTHER").expect("a token"));
    let ours = [Method::GET, Method::POST, Method::PATCH, Method::PUT, Method::DELETE, Method::HEAD, Method::OPTIONS];
    if ours.contains(method) { method } else { &OTHER }
}

#[cfg(test)]
mod tests {
    use ostler_protocol::Rule;

    use super::*;

    #[test]
    fn a_value_on_a_buckets_end_belongs_to_it() {
        let histogram = Histogram::default();
        for value in [0, 100, 101, 40_000_000] {
            histogram.add(value, &TIMES_US);
        }
        let counts: Vec<_> = histogram.buckets.iter().map(|count| count.load(Relaxed)).collect();
        assert_eq!((counts[0], counts[1], counts[12]), (2, 1, 1));
    }

    #[test]
    fn unknown_methods_share_one_label() {
        let metrics = Metrics::default();
        for n in 0..1_000 {
            let method = Method::from_bytes(format!("M{n}").as_bytes()).unwrap();
            metrics.count_response(&method, None, StatusCode::from_u16(100 + n % 500).unwrap(), 1);
        }
        assert_eq!(metrics.operations.read()["other"].len(), 1);
    }

    #[test]
    fn refusals_are_counted_by_kind_and_rule() {
        let metrics = Metrics::default();
        metrics.refused(&Failure::rule(Rule::Followers, ""));
        metrics.refused(&Failure::rule(Rule::FollowersPerCaller, ""));
        let refusals = metrics.refusals.lock();
        assert_eq!(refusals.keys().map(|(kind, _)| *kind).collect::<Vec<_>>(), ["rate-limited"; 2]);
    }
}
