//! The metrics page: the counters, and the gauges that are read for each page.

use std::{fmt::Write as _, time::Duration};

use ostler_store::{self as store, StoreError};
use tokio::time::timeout;

use super::health;
#[cfg(feature = "kubernetes")]
use crate::kubernetes::{CachedObjects, Cluster, KubernetesState};
use crate::{
    app::App,
    clock::ServerClock,
    dialect::{Dialects, Metric, MetricRead, Samples},
    metrics::{self, ClusterGauges, Counts, Gauges},
};

/// Scrapers time out after a few seconds and then have no metrics at all.
const COUNT_WITHIN: Duration = Duration::from_secs(1);

/// While the store does not respond, metrics from the store are left out: the page must still report the outage.
pub async fn page(app: &App) -> String {
    let (waiting_requests, waiting_bytes) = app.lanes.waiting();
    let state = health::store_state(app).await;
    let counts = match state.reachable {
        true => timeout(COUNT_WITHIN, counts(app)).await.ok().and_then(Result::ok),
        false => None,
    };
    let gauges = Gauges {
        draining: app.is_draining(),
        waiting_requests,
        waiting_bytes,
        followers: app.followers.count(),
        counts,
        store_reachable: state.reachable,
        store_writable: state.writable,
        store_write_failures: app.db.write_health().failures().map(|(fault, count)| (fault.as_str(), count)).collect(),
        decisions_repeated: app.db.repeated_decisions(),
        clock_lead_us: app.clock.adjustable().map_or(0, ServerClock::lead_us),
        cluster: cluster(app),
    };
    let mut page = metrics::page(&app.metrics, &gauges);
    for metric in Dialects::of(app).iter().flat_map(|dialect| &dialect.metrics) {
        let Metric { name, kind, help, .. } = metric;
        let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
        let mut samples = Samples { name, out: &mut page };
        match metric.read {
            MetricRead::Memory(read) => read(app, &mut samples),
            MetricRead::Store(read) if state.reachable => {
                let counted = timeout(COUNT_WITHIN, read(app.clone())).await.ok().flatten();
                counted.into_iter().for_each(|value| samples.add(value));
            }
            MetricRead::Store(_) => {}
        }
    }
    page
}

async fn counts(app: &App) -> Result<Counts, StoreError> {
    let (jobs_pending, jobs_running) = store::kernel::runner_jobs::count_open(&app.db).await?;
    Ok(Counts { leases: store::kernel::leases::count_held(&app.db).await?, jobs_pending, jobs_running })
}

/// The calls of the launcher and those for the secrets of profiles, which have clients of their own.
#[cfg(feature = "kubernetes")]
fn cluster(app: &App) -> ClusterGauges {
    let kubernetes = app.state::<KubernetesState>().get();
    let clusters = kubernetes.map(|kubernetes| &*kubernetes.cluster).into_iter().chain(app.secrets.cluster());
    let mut gauges = ClusterGauges::default();
    for (call, count) in clusters.flat_map(Cluster::calls) {
        *gauges.calls.entry(call).or_default() += count;
    }
    if let Some(kubernetes) = kubernetes {
        let CachedObjects { active_jobs, finished_jobs, pods } = kubernetes.cache.count();
        gauges.objects = vec![("active-job", active_jobs), ("finished-job", finished_jobs), ("pod", pods)];
    }
    gauges
}

#[cfg(not(feature = "kubernetes"))]
fn cluster(_: &App) -> ClusterGauges {
    ClusterGauges::default()
}
