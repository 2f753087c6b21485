//! What finished Jobs cost in memory: of a server that has watched them finish, and of one that was started after that and has
//! listed them.
//!
//! They are Jobs that want no completion, which the cluster finishes by itself as soon as they exist, and each has a pod that has
//! succeeded. To run 10,000 Jobs would take several times as long, and servers keep the same of them: a few fields of each Job and
//! each pod. No store knows them, as rows of ended runner jobs are not kept in memory either.

use std::time::Duration;

use futures_util::future::try_join_all;
use serde_json::Value;
use tokio::time::sleep;

use super::cluster::{KubeBench, jobs_path, pods_path};
use super::manifests::{finished_job, finished_pod, pod_name, succeeded};
use super::metrics::read_known;
use crate::engine::Engine;
use crate::machine::{anonymous_mib, now, since};
use crate::outcome::Outcome;
use crate::report::Report;
use crate::server::Server;

/// The number that the target is about, also in a quick run.
const JOBS: usize = 10_000;
const CONNECTIONS: usize = 8;
/// Two comparisons with the cluster, and the time after which the allocator returns memory that was freed.
const SETTLE: Duration = Duration::from_secs(12);
const WAIT_TIMEOUT: Duration = Duration::from_secs(900);
const PAUSE: Duration = Duration::from_millis(500);

pub(crate) async fn measure(
    cluster: &KubeBench<'_>,
    namespace: &str,
    manifest: &Value,
    report: &mut Report,
) -> Outcome<()> {
    let watching = cluster.serve(&cluster.bench.place(Engine::Postgres)?, namespace)?;
    sleep(SETTLE).await;
    let none_mib = anonymous_mib(watching.pid())?;

    let started = now();
    let uids = create_jobs(cluster, namespace, manifest).await?;
    wait_until_known(&watching, "finished-job").await?;
    create_pods(cluster, namespace, manifest, &uids).await?;
    wait_until_known(&watching, "pod").await?;
    let seconds = since(started).as_secs_f64();
    sleep(SETTLE).await;
    let watched_mib = anonymous_mib(watching.pid())? - none_mib;
    watching.stop()?;

    let listing = cluster.serve(&cluster.bench.place(Engine::Postgres)?, namespace)?;
    wait_until_known(&listing, "finished-job").await?;
    wait_until_known(&listing, "pod").await?;
    sleep(SETTLE).await;
    let listed_mib = anonymous_mib(listing.pid())? - none_mib;
    listing.stop()?;

    eprintln!(
        "    kubernetes: {JOBS} finished Jobs, made in {seconds:.0} s, add {watched_mib:.1} MiB to {none_mib:.1}, or {listed_mib:.1} \
         after a restart"
    );
    report.figure("kubernetes.no_jobs_anon_mib", none_mib);
    report.figure("kubernetes.finished_jobs_watched_anon_mib", watched_mib);
    report.figure("kubernetes.finished_jobs_listed_anon_mib", listed_mib);
    report.figure("kubernetes.finished_jobs_anon_mib", watched_mib.max(listed_mib));
    report.note(format!(
        "kubernetes.finished_jobs_anon_mib: what {JOBS} finished Jobs, each with its pod, add to the anonymous memory of a server that has \
         seen them finish (watched), or of one that was started afterwards (listed); the larger one"
    ));
    Ok(())
}

/// Creates the Jobs, and returns their uids by number.
async fn create_jobs(cluster: &KubeBench<'_>, namespace: &str, manifest: &Value) -> Outcome<Vec<String>> {
    let path = &jobs_path(namespace);
    let parts = try_join_all((0..CONNECTIONS).map(|first| async move {
        let (mut connection, mut uids) = (cluster.connect().await?, vec![]);
        for number in (first..JOBS).step_by(CONNECTIONS) {
            let body = finished_job(manifest, number).to_string();
            let created = connection.call("POST", path, &body).await?;
            let uid = created["metadata"]["uid"].as_str().ok_or("a Job without a uid")?.to_owned();
            uids.push((number, uid));
        }
        Outcome::Ok(uids)
    }));
    let mut uids: Vec<(usize, String)> = parts.await?.into_iter().flatten().collect();
    uids.sort();
    Ok(uids.into_iter().map(|(_, uid)| uid).collect())
}

/// Creates a pod for each Job, and reports that it has succeeded.
async fn create_pods(cluster: &KubeBench<'_>, namespace: &str, manifest: &Value, uids: &[String]) -> Outcome<()> {
    let (path, ended) = (&pods_path(namespace), &succeeded());
    let parts = try_join_all((0..CONNECTIONS).map(|first| async move {
        let mut connection = cluster.connect().await?;
        for (number, uid) in uids.iter().enumerate().skip(first).step_by(CONNECTIONS) {
            let body = finished_pod(manifest, number, uid).to_string();
            connection.call("POST", path, &body).await?;
            connection.call("PATCH", &format!("{path}/{}/status", pod_name(number)), ended).await?;
        }
        Outcome::Ok(())
    }));
    parts.await?;
    Ok(())
}

/// Waits until the server knows all objects of this kind.
async fn wait_until_known(server: &Server, kind: &str) -> Outcome<()> {
    let started = now();
    loop {
        let known = read_known(server, kind).await?;
        if known == JOBS {
            return Ok(());
        }
        if since(started) > WAIT_TIMEOUT {
            return Err(format!("the server knows {known} objects of the kind {kind}, not {JOBS}").into());
        }
        sleep(PAUSE).await;
    }
}
