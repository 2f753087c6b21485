//! The page that Prometheus reads. One table names every metric; nothing else is written.

use std::fmt::Write as _;

use super::*;

/// Every metric: its name, type, labels and meaning. `docs/generated/metrics.md` shows it.
pub const NAMES: &[(&str, &str, &str, &str)] = &[
    ("ostler_build_info", "gauge", "version", "Always 1; the version is in the label."),
    ("ostler_draining", "gauge", "", "1 while the server takes no new work because it is stopping."),
    (
        "ostler_http_requests_total",
        "counter",
        "method, path, status",
        "Requests answered, by operation. `other`: no such path.",
    ),
    ("ostler_http_request_seconds", "histogram", "method, path", "Time to an answer's head, by operation."),
    (
        "ostler_refusals_total",
        "counter",
        "kind, rule",
        "Requests and calls refused, by failure kind and the exact rule: every limit, credentials (`unauthenticated`; logins to the mesh: `mesh-login`, `mesh-token`), rate limits (`rate-limited`).",
    ),
    (
        "ostler_connections_dropped_total",
        "counter",
        "reason",
        "Connections dropped because their peer was too slow, or ended early.",
    ),
    ("ostler_lane_waiting_requests", "gauge", "", "Writes that wait for a flush or are in one."),
    ("ostler_lane_waiting_bytes", "gauge", "", "What those weigh."),
    ("ostler_flush_requests", "histogram", "", "Writes in one flush."),
    ("ostler_flush_seconds", "histogram", "", "Time from taking a flush up to its commit."),
    ("ostler_events_total", "counter", "", "Events made durable by this server."),
    ("ostler_store_reachable", "gauge", "", "1 while the store answers within 1.5 s."),
    (
        "ostler_store_writable",
        "gauge",
        "",
        "1 while the store takes writes: the last write or a probe since was written.",
    ),
    (
        "ostler_store_write_failures_total",
        "counter",
        "reason",
        "Flushes and writes of this server that the store failed, by why (`disk-full`, `unreachable`, `silent` …).",
    ),
    (
        "ostler_clock_jumps_total",
        "counter",
        "clock",
        "Jumps of the machine's wall clock or of the database's clock that this server noticed; none of them moves leases or deadlines.",
    ),
    (
        "ostler_clock_lead_seconds",
        "gauge",
        "",
        "How far the server's time is ahead of this machine's wall clock. On Postgres the server's time is the database's.",
    ),
    ("ostler_followers", "gauge", "", "Event streams open on this server."),
    ("ostler_sockets_closed_total", "counter", "reason", "WebSockets that ended, by why."),
    ("ostler_leases", "gauge", "", "Leases held, in the whole store."),
    ("ostler_jobs", "gauge", "phase", "Runner jobs that wait or run, in the whole store."),
    ("ostler_jobs_ended_total", "counter", "end", "Ends of runners that this server has recorded, by how."),
    ("ostler_runs_started_total", "counter", "", "Runs created through this server."),
    ("ostler_runs_ended_total", "counter", "outcome", "Runs that ended through this server, by outcome."),
    ("ostler_commands_ended_total", "counter", "outcome", "Commands that ended through this server, by outcome."),
    ("ostler_side_queries_total", "counter", "end", "Questions beside sessions that ended on this server, by how."),
    (
        "ostler_cluster_calls_total",
        "counter",
        "verb, resource",
        "Calls of the Kubernetes API server by this server, failed ones included. A watch is one call for about a minute.",
    ),
    (
        "ostler_cluster_objects",
        "gauge",
        "kind",
        "Objects of the cluster that this server knows: Jobs that are active or finished, and pods.",
    ),
    (
        "ostler_decisions_repeated_total",
        "counter",
        "",
        "Decisions that were made again because the rows had changed before the write.",
    ),
    (
        "ostler_spans_dropped_total",
        "counter",
        "",
        "Spans that the trace collector did not take, or that came too fast.",
    ),
];

/// Values that are read when the page is written, not counted.
#[derive(Default)]
pub struct Gauges {
    pub draining: bool,
    pub waiting_requests: usize,
    pub waiting_bytes: usize,
    pub followers: usize,
    /// `None` if the store did not respond.
    pub counts: Option<Counts>,
    pub store_reachable: bool,
    pub store_writable: bool,
    pub store_write_failures: Vec<(&'static str, u64)>,
    pub clock_lead_us: i64,
    pub cluster: ClusterGauges,
}

/// What this server did in its cluster and knows of it. Empty without one.
#[derive(Default)]
pub struct ClusterGauges {
    /// By verb and resource.
    pub calls: BTreeMap<(&'static str, &'static str), u64>,
    /// By kind.
    pub objects: Vec<(&'static str, usize)>,
}

/// What the store counts.
#[derive(Default)]
pub struct Counts {
    pub leases: i64,
    pub jobs_pending: i64,
    pub jobs_running: i64,
}

/// The engine's part of the page.
pub fn page(metrics: &Metrics, gauges: &Gauges) -> String {
    let mut out = String::with_capacity(16 * 1024);
    for (name, kind, _, help) in NAMES {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        write_metric(&mut out, name, metrics, gauges);
    }
    out
}

fn write_metric(out: &mut String, name: &str, metrics: &Metrics, gauges: &Gauges) {
    let plain = |out: &mut String, value: i64| {
        let _ = writeln!(out, "{name} {value}");
    };
    let counted = |out: &mut String, count: fn(&Counts) -> i64| {
        gauges.counts.iter().for_each(|counts| plain(out, count(counts)));
    };
    match name {
        "ostler_build_info" => {
            let _ = writeln!(out, "{name}{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
        }
        "ostler_draining" => plain(out, gauges.draining.into()),
        "ostler_http_requests_total" | "ostler_http_request_seconds" => write_operations(out, name, metrics),
        "ostler_refusals_total" => {
            for ((kind, rule), count) in &*metrics.refusals.lock() {
                let _ = writeln!(out, "{name}{{kind=\"{kind}\",rule=\"{rule}\"}} {count}");
            }
        }
        "ostler_connections_dropped_total" => write_labelled(out, name, "reason", DROPS, &metrics.dropped),
        "ostler_lane_waiting_requests" => plain(out, gauges.waiting_requests as i64),
        "ostler_lane_waiting_bytes" => plain(out, gauges.waiting_bytes as i64),
        "ostler_flush_requests" => write_histogram(out, name, "", &metrics.flush_requests, &SIZES, 1.0),
        "ostler_flush_seconds" => write_histogram(out, name, "", &metrics.flush_us, &TIMES_US, 1e-6),
        "ostler_events_total" => plain(out, metrics.events.load(Relaxed) as i64),
        "ostler_followers" => plain(out, gauges.followers as i64),
        "ostler_sockets_closed_total" => {
            write_labelled(out, name, "reason", SOCKET_ENDS.map(|(end, _)| end), &metrics.sockets_closed)
        }
        "ostler_store_reachable" => plain(out, gauges.store_reachable.into()),
        "ostler_store_writable" => plain(out, gauges.store_writable.into()),
        "ostler_store_write_failures_total" => {
            for (reason, count) in &gauges.store_write_failures {
                let _ = writeln!(out, "{name}{{reason=\"{reason}\"}} {count}");
            }
        }
        "ostler_clock_jumps_total" => {
            write_labelled(out, name, "clock", JumpedClock::ALL.map(JumpedClock::as_str), &metrics.clock_jumps);
        }
        "ostler_clock_lead_seconds" => {
            let _ = writeln!(out, "{name} {:.3}", gauges.clock_lead_us as f64 * 1e-6);
        }
        "ostler_leases" => counted(out, |counts| counts.leases),
        "ostler_jobs" => {
            let counts = gauges.counts.iter();
            let phases = counts.flat_map(|c| [("pending", c.jobs_pending), ("running", c.jobs_running)]);
            for (phase, count) in phases {
                let _ = writeln!(out, "{name}{{phase=\"{phase}\"}} {count}");
            }
        }
        "ostler_jobs_ended_total" => {
            write_labelled(out, name, "end", JOB_ENDS.map(|(_, end)| end), &metrics.jobs_ended)
        }
        "ostler_runs_started_total" => plain(out, metrics.runs_started.load(Relaxed) as i64),
        "ostler_runs_ended_total" => {
            write_labelled(out, name, "outcome", OUTCOMES.map(TerminalStatus::as_str), &metrics.runs_ended);
        }
        "ostler_commands_ended_total" => {
            write_labelled(out, name, "outcome", OUTCOMES.map(TerminalStatus::as_str), &metrics.commands_ended);
        }
        "ostler_side_queries_total" => {
            let ends = SideQueryEnd::ALL.map(SideQueryEnd::as_str);
            write_labelled(out, name, "end", ends, &metrics.side_queries_ended);
        }
        "ostler_cluster_calls_total" => {
            for ((verb, resource), count) in &gauges.cluster.calls {
                let _ = writeln!(out, "{name}{{verb=\"{verb}\",resource=\"{resource}\"}} {count}");
            }
        }
        "ostler_cluster_objects" => {
            for (kind, count) in &gauges.cluster.objects {
                let _ = writeln!(out, "{name}{{kind=\"{kind}\"}} {count}");
            }
        }
        "ostler_decisions_repeated_total" => plain(out, metrics.decided_again.load(Relaxed) as i64),
        "ostler_spans_dropped_total" => plain(out, metrics.spans_dropped.load(Relaxed) as i64),
        other => unreachable!("{other} is in the table and is not written"),
    }
}

fn write_labelled<const N: usize>(
    out: &mut String,
    name: &str,
    label: &str,
    values: [&str; N],
    counts: &[AtomicU64; N],
) {
    for (value, count) in values.iter().zip(counts) {
        let _ = writeln!(out, "{name}{{{label}=\"{value}\"}} {}", count.load(Relaxed));
    }
}

fn write_operations(out: &mut String, name: &str, metrics: &Metrics) {
    let operations = metrics.operations.read();
    let all = operations.iter().flat_map(|(path, methods)| methods.iter().map(move |(method, of)| (path, method, of)));
    let mut all: Vec<_> = all.collect();
    all.sort_unstable_by_key(|(path, method, _)| (*path, method.as_str()));
    for (path, method, operation) in all {
        let labels = format!("method=\"{method}\",path=\"{path}\"");
        if name == "ostler_http_request_seconds" {
            write_histogram(out, name, &labels, &operation.took_us, &TIMES_US, 1e-6);
            continue;
        }
        for (status, count) in STATUSES.iter().zip(&operation.statuses) {
            let count = count.load(Relaxed);
            if count > 0 {
                let _ = writeln!(out, "{name}{{{labels},status=\"{status}\"}} {count}");
            }
        }
    }
}

/// Writes cumulative buckets, as Prometheus expects. The count is the last bucket, so that they agree.
fn write_histogram(out: &mut String, name: &str, labels: &str, of: &Histogram, ends: &[u64; 12], unit: f64) {
    let comma = if labels.is_empty() { "" } else { "," };
    let mut total = 0;
    for (at, count) in of.buckets.iter().enumerate() {
        total += count.load(Relaxed);
        let end = ends.get(at).map_or("+Inf".to_owned(), |end| (*end as f64 * unit).to_string());
        let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"{end}\"}} {total}");
    }
    let sum = of.sum.load(Relaxed) as f64 * unit;
    let braces = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
    let _ = writeln!(out, "{name}_sum{braces} {sum}\n{name}_count{braces} {total}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_of_the_table_is_written_and_its_numbers_agree() {
        let metrics = Metrics::default();
        metrics.count_response(&Method::GET, Some("/health"), StatusCode::OK, 150);
        metrics.count_response(&Method::GET, Some("/health"), StatusCode::OK, 99_000_000);
        metrics.flushed(3, 7, 900);
        metrics.ended(TerminalStatus::Blocked, false);
        let text =
            page(&metrics, &Gauges { counts: Some(Counts { leases: 4, ..Counts::default() }), ..Gauges::default() });
        for (name, kind, ..) in NAMES {
            assert_eq!(text.matches(&format!("# TYPE {name} {kind}\n")).count(), 1);
        }
        for line in [
            "ostler_http_requests_total{method=\"GET\",path=\"/health\",status=\"200\"} 2",
            "ostler_http_request_seconds_bucket{method=\"GET\",path=\"/health\",le=\"0.00025\"} 1",
            "ostler_http_request_seconds_bucket{method=\"GET\",path=\"/health\",le=\"+Inf\"} 2",
            "ostler_http_request_seconds_count{method=\"GET\",path=\"/health\"} 2",
            "ostler_flush_requests_bucket{le=\"4\"} 1",
            "ostler_flush_seconds_sum 0.0009",
            "ostler_events_total 7",
            "ostler_commands_ended_total{outcome=\"blocked\"} 1",
            "ostler_leases 4",
        ] {
            assert!(text.lines().any(|have| have.starts_with(line)), "{line} in\n{text}");
        }
    }
}
