//! Runners as Kubernetes Jobs, on a real API server: how long a runner job request takes beside the bare call that creates an equal
//! Job, how many calls of the API server a Job costs, and what finished Jobs cost in memory.

mod api;
mod cluster;
mod finished;
mod life;
mod manifests;
mod metrics;
mod orders;
mod request;

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::timeout;

use crate::engine::{Bench, Engine};
use crate::outcome::Outcome;
use crate::report::Report;
use cluster::KubeBench;

/// A kubeconfig in JSON, with all keys and certificates in it. `cargo xtask bench` makes it.
const KUBECONFIG_VARIABLE: &str = "OSTLER_BENCH_KUBECONFIG";
/// A server that was built with the launcher `kubernetes`. The program of the other groups lacks it.
const OSTLER_VARIABLE: &str = "OSTLER_BENCH_KUBERNETES_OSTLER";
/// Why there is no cluster.
const REASON_VARIABLE: &str = "OSTLER_BENCH_KUBERNETES_REASON";
const TIMEOUT: Duration = Duration::from_secs(1_800);

/// If there is no cluster, reports that the group did not run, with the reason.
pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let path = |variable: &str| std::env::var_os(variable).map(PathBuf::from);
    let Some((kubeconfig, ostler)) = path(KUBECONFIG_VARIABLE).zip(path(OSTLER_VARIABLE)) else {
        let reason = std::env::var(REASON_VARIABLE)
            .unwrap_or_else(|_| "no cluster was given; `cargo xtask bench kubernetes` gives one".to_owned());
        eprintln!("    kubernetes: not run: {reason}");
        report.note(format!("kubernetes: not run: {reason}"));
        return Ok(());
    };
    let cluster = KubeBench::open(bench, ostler, kubeconfig)?;
    timeout(TIMEOUT, measure_on(&cluster, report)).await?
}

async fn measure_on(cluster: &KubeBench<'_>, report: &mut Report) -> Outcome<()> {
    let (mut worst, mut manifest) = (0.0_f64, None);
    for engine in Engine::BOTH {
        let namespace = cluster.create_namespace(&format!("request-{}", engine.name())).await?;
        let measured = request::measure(cluster, engine, &namespace, report).await;
        cluster.delete_namespace_and_wait(&namespace, report).await?;
        let (ratio, job) = measured?;
        worst = worst.max(ratio);
        manifest = Some(job);
    }
    report.figure("kubernetes.request_ratio", worst);

    let namespace = cluster.create_namespace("life").await?;
    let measured = life::measure(cluster, &namespace, report).await;
    cluster.delete_namespace_and_wait(&namespace, report).await?;
    measured?;

    let manifest = manifest.ok_or("no Job was created")?;
    let namespace = cluster.create_namespace("finished").await?;
    let measured = finished::measure(cluster, &namespace, &manifest, report).await;
    // Nothing is measured after this, so the cluster deletes the objects when it can.
    cluster.delete_namespace(&namespace).await?;
    measured
}
