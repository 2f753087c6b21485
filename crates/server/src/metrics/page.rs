//! The engine's part of the page that Prometheus reads. One table names every metric and writes it.

use std::fmt::Write as _;

use super::*;

/// A metric of the engine, and how its samples are written.
pub struct EngineMetric {
    pub name: &'static str,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// The names of its labels, separated by commas.
    pub labels: &'static str,
    pub help: &'static str,
    write: fn(&mut Samples, &Metrics, &Gauges),
}

impl EngineMetric {
    const fn new(
        name: &'static str,
        kind: &'static str,
        labels: &'static str,
        help: &'static str,
        write: fn(&mut Samples, &Metrics, &Gauges),
    ) -> Self {
        Self { name, kind, labels, help, write }
    }
}

/// Every metric of the engine. `docs/generated/metrics.md` shows it.
pub const ENGINE_METRICS: &[EngineMetric] = &[
    EngineMetric::new(
        "ostler_build_info",
        "gauge",
        "version",
        "Always 1; the version is in the label.",
        |samples, _, _| samples.add_labelled("version", env!("CARGO_PKG_VERSION"), 1),
    ),
    EngineMetric::new(
        "ostler_draining",
        "gauge",
        "",
        "1 while the server takes no new work because it is stopping.",
        |samples, _, gauges| samples.add(gauges.draining.into()),
    ),
    EngineMetric::new(
        "ostler_http_requests_total",
        "counter",
        "method, path, status",
        "Requests answered, by operation. `other`: no such path.",
        |samples, metrics, _| write_requests(samples, metrics),
    ),
    EngineMetric::new(
        "ostler_http_request_seconds",
        "histogram",
        "method, path",
        "Time to the head of the response, by operation.",
        |samples, metrics, _| write_request_times(samples, metrics),
    ),
    EngineMetric::new(
        "ostler_refusals_total",
        "counter",
        "kind, rule",
        "Requests and calls refused, by failure kind and the exact rule: every limit, credentials (`unauthenticated`, or the rule of a dialect's own logins), rate limits (`rate-limited`).",
        |samples, metrics, _| {
            for ((kind, rule), count) in &*metrics.refusals.lock() {
                samples.add_with_labels(&format!("kind=\"{kind}\",rule=\"{rule}\""), count);
            }
        },
    ),
    EngineMetric::new(
        "ostler_connections_dropped_total",
        "counter",
        "reason",
        "Connections dropped because their peer was too slow, or ended early.",
        |samples, metrics, _| write_labelled(samples, "reason", DROPS, &metrics.dropped),
    ),
    EngineMetric::new(
        "ostler_lane_waiting_requests",
        "gauge",
        "",
        "Writes that wait for a flush or are in one.",
        |samples, _, gauges| samples.add(gauges.waiting_requests as i64),
    ),
    EngineMetric::new(
        "ostler_lane_waiting_bytes",
        "gauge",
        "",
        "Bytes of the waiting writes.",
        |samples, _, gauges| samples.add(gauges.waiting_bytes as i64),
    ),
    EngineMetric::new("ostler_flush_requests", "histogram", "", "Writes in one flush.", |samples, metrics, _| {
        write_histogram(samples, "", &metrics.flush_requests, &SIZES, 1.0)
    }),
    EngineMetric::new(
        "ostler_flush_seconds",
        "histogram",
        "",
        "Time from taking a flush up to its commit.",
        |samples, metrics, _| write_histogram(samples, "", &metrics.flush_us, &TIMES_US, 1e-6),
    ),
    EngineMetric::new(
        "ostler_events_total",
        "counter",
        "",
        "Events made durable by this server.",
        |samples, metrics, _| samples.add(metrics.events.load(Relaxed) as i64),
    ),
    EngineMetric::new(
        "ostler_store_reachable",
        "gauge",
        "",
        "1 while the store answers within 1.5 s.",
        |samples, _, gauges| samples.add(gauges.store_reachable.into()),
    ),
    EngineMetric::new(
        "ostler_store_writable",
        "gauge",
        "",
        "1 while the store takes writes: the last write or a probe since was written.",
        |samples, _, gauges| samples.add(gauges.store_writable.into()),
    ),
    EngineMetric::new(
        "ostler_store_write_failures_total",
        "counter",
        "reason",
        "Flushes and writes of this server that the store failed, by reason (`disk-full`, `unreachable`, `silent` …).",
        |samples, _, gauges| {
            for (reason, count) in &gauges.store_write_failures {
                samples.add_labelled("reason", reason, *count);
            }
        },
    ),
    EngineMetric::new(
        "ostler_clock_jumps_total",
        "counter",
        "clock",
        "Jumps of the machine's wall clock or of the database's clock that this server noticed; none of them moves leases or deadlines.",
        |samples, metrics, _| {
            write_labelled(samples, "clock", JumpedClock::ALL.map(JumpedClock::as_str), &metrics.clock_jumps)
        },
    ),
    EngineMetric::new(
        "ostler_clock_lead_seconds",
        "gauge",
        "",
        "How far the server's time is ahead of this machine's wall clock. On Postgres the server's time is the database's.",
        |samples, _, gauges| {
            let _ = writeln!(samples.out, "{} {:.3}", samples.name, gauges.clock_lead_us as f64 * 1e-6);
        },
    ),
    EngineMetric::new("ostler_followers", "gauge", "", "Event streams open on this server.", |samples, _, gauges| {
        samples.add(gauges.followers as i64)
    }),
    EngineMetric::new(
        "ostler_sockets_closed_total",
        "counter",
        "reason",
        "WebSockets that ended, by reason.",
        |samples, metrics, _| {
            write_labelled(samples, "reason", SOCKET_ENDS.map(|(end, _)| end), &metrics.sockets_closed)
        },
    ),
    EngineMetric::new("ostler_leases", "gauge", "", "Leases held, in the whole store.", |samples, _, gauges| {
        if let Some(counts) = &gauges.counts {
            samples.add(counts.leases);
        }
    }),
    EngineMetric::new(
        "ostler_jobs",
        "gauge",
        "phase",
        "Runner jobs that wait or run, in the whole store.",
        |samples, _, gauges| {
            if let Some(counts) = &gauges.counts {
                samples.add_labelled("phase", "pending", counts.jobs_pending);
                samples.add_labelled("phase", "running", counts.jobs_running);
            }
        },
    ),
    EngineMetric::new(
        "ostler_jobs_ended_total",
        "counter",
        "end",
        "Ends of runners that this server has recorded, by outcome.",
        |samples, metrics, _| write_labelled(samples, "end", JOB_ENDS.map(|(_, end)| end), &metrics.jobs_ended),
    ),
    EngineMetric::new(
        "ostler_runs_started_total",
        "counter",
        "",
        "Runs created through this server.",
        |samples, metrics, _| samples.add(metrics.runs_started.load(Relaxed) as i64),
    ),
    EngineMetric::new(
        "ostler_runs_ended_total",
        "counter",
        "outcome",
        "Runs that ended through this server, by outcome.",
        |samples, metrics, _| {
            write_labelled(samples, "outcome", OUTCOMES.map(TerminalStatus::as_str), &metrics.runs_ended)
        },
    ),
    EngineMetric::new(
        "ostler_commands_ended_total",
        "counter",
        "outcome",
        "Commands that ended through this server, by outcome.",
        |samples, metrics, _| {
            write_labelled(samples, "outcome", OUTCOMES.map(TerminalStatus::as_str), &metrics.commands_ended)
        },
    ),
    EngineMetric::new(
        "ostler_side_queries_total",
        "counter",
        "end",
        "Side queries that ended on this server, by outcome.",
        |samples, metrics, _| {
            let ends = SideQueryEnd::ALL.map(SideQueryEnd::as_str);
            write_labelled(samples, "end", ends, &metrics.side_queries_ended);
        },
    ),
    EngineMetric::new(
        "ostler_cluster_calls_total",
        "counter",
        "verb, resource",
        "Calls of the Kubernetes API server by this server, failed ones included. A watch is one call for about a minute.",
        |samples, _, gauges| {
            for ((verb, resource), count) in &gauges.cluster.calls {
                samples.add_with_labels(&format!("verb=\"{verb}\",resource=\"{resource}\""), count);
            }
        },
    ),
    EngineMetric::new(
        "ostler_cluster_objects",
        "gauge",
        "kind",
        "Objects of the cluster that this server knows: Jobs that are active or finished, and pods.",
        |samples, _, gauges| {
            for (kind, count) in &gauges.cluster.objects {
                samples.add_labelled("kind", kind, *count);
            }
        },
    ),
    EngineMetric::new(
        "ostler_decisions_repeated_total",
        "counter",
        "",
        "Decisions that were made again because the rows had changed before the write.",
        |samples, _, gauges| samples.add(gauges.decisions_repeated as i64),
    ),
    EngineMetric::new(
        "ostler_spans_dropped_total",
        "counter",
        "",
        "Spans dropped because the trace collector rejected them or its queue was full.",
        |samples, metrics, _| samples.add(metrics.spans_dropped.load(Relaxed) as i64),
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
    pub decisions_repeated: u64,
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
    for EngineMetric { name, kind, help, write, .. } in ENGINE_METRICS {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        write(&mut Samples { name, out: &mut out }, metrics, gauges);
    }
    out
}

fn write_labelled<const N: usize>(samples: &mut Samples, label: &str, values: [&str; N], counts: &[AtomicU64; N]) {
    for (value, count) in values.iter().zip(counts) {
        samples.add_labelled(label, value, count.load(Relaxed));
    }
}

fn write_requests(samples: &mut Samples, metrics: &Metrics) {
    for (labels, operation) in operations(metrics) {
        for (status, count) in STATUSES.iter().zip(&operation.statuses) {
            let count = count.load(Relaxed);
            if count > 0 {
                samples.add_with_labels(&format!("{labels},status=\"{status}\""), count);
            }
        }
    }
}

fn write_request_times(samples: &mut Samples, metrics: &Metrics) {
    for (labels, operation) in operations(metrics) {
        write_histogram(samples, &labels, &operation.took_us, &TIMES_US, 1e-6);
    }
}

/// The operations that were requested, with their labels, sorted by path and method.
fn operations(metrics: &Metrics) -> Vec<(String, Arc<OperationCounts>)> {
    let operations = metrics.operations.read();
    let all = operations.iter().flat_map(|(path, methods)| methods.iter().map(move |(method, of)| (path, method, of)));
    let mut all: Vec<_> = all.collect();
    all.sort_unstable_by_key(|(path, method, _)| (*path, method.as_str()));
    let labelled = |(path, method, of): (&String, &Method, &Arc<OperationCounts>)| {
        (format!("method=\"{method}\",path=\"{path}\""), of.clone())
    };
    all.into_iter().map(labelled).collect()
}

/// Writes cumulative buckets, as Prometheus expects. The count is the last bucket, so that they agree.
fn write_histogram(samples: &mut Samples, labels: &str, of: &Histogram, ends: &[u64; 12], unit: f64) {
    let name = samples.name;
    let comma = if labels.is_empty() { "" } else { "," };
    let mut total = 0;
    for (at, count) in of.buckets.iter().enumerate() {
        total += count.load(Relaxed);
        let end = ends.get(at).map_or("+Inf".to_owned(), |end| (*end as f64 * unit).to_string());
        let _ = writeln!(samples.out, "{name}_bucket{{{labels}{comma}le=\"{end}\"}} {total}");
    }
    let sum = of.sum.load(Relaxed) as f64 * unit;
    let braces = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
    let _ = writeln!(samples.out, "{name}_sum{braces} {sum}\n{name}_count{braces} {total}");
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
        for EngineMetric { name, kind, .. } in ENGINE_METRICS {
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
