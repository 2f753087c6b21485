//! How long the server takes to accept a runner job request, beside the bare call that creates an equal Job on the same API server.
//! Both are made in short slices that alternate. The server answers when the order is on disk, and creates the Job after that, so the
//! time until the Job exists is measured as well.

use std::time::Duration;

use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::api::ApiConnection;
use super::cluster::{KubeBench, jobs_path};
use super::manifests::{bare_job, sent_manifest};
use super::orders::{OrderedRunner, order, prepare};
use crate::engine::Engine;
use crate::http::Connection;
use crate::machine::{now, since};
use crate::outcome::Outcome;
use crate::report::{Report, median, percentile};
use crate::server::Server;

/// How long the cluster may take to create pods for the Jobs of a slice.
const POD_TIMEOUT: Duration = Duration::from_secs(60);
const POD_PAUSE: Duration = Duration::from_millis(20);

/// The two sides of the comparison.
struct Slices<'a> {
    server: &'a Server,
    namespace: &'a str,
    connection: Connection,
    api: ApiConnection,
    /// What the server sends to create a Job.
    manifest: Value,
    /// Bare Jobs so far.
    created: usize,
}

/// Returns the ratio, and the manifest of a Job.
pub(crate) async fn measure(
    cluster: &KubeBench<'_>,
    engine: Engine,
    namespace: &str,
    report: &mut Report,
) -> Outcome<(f64, Value)> {
    let server = cluster.serve(&cluster.bench.place(engine)?, namespace)?;
    let mut slices = Slices::open(cluster, &server, namespace).await?;
    let size = cluster.bench.sizes.kubernetes;
    let mut exists_ratios = vec![];
    let (mut ratios, mut ordered_ms, mut bare_ms, mut created_ms) = (vec![], vec![], vec![], vec![]);
    // The first round warms up and is not counted.
    for round in 0..=size.rounds {
        let (ordered, bare) = if round.is_multiple_of(2) {
            let ordered = slices.order_runners(size.requests).await?;
            (ordered, slices.create_bare(size.requests).await?)
        } else {
            let bare = slices.create_bare(size.requests).await?;
            (slices.order_runners(size.requests).await?, bare)
        };
        let created = slices.order_and_find(size.requests.div_ceil(2)).await?;
        if round == 0 {
            continue;
        }
        // Times of neighbouring slices, so that a change of the machine's speed between rounds does not matter.
        ratios.push(median(ordered.iter().copied()) / median(bare.iter().copied()));
        exists_ratios.push(median(created.iter().copied()) / median(bare.iter().copied()));
        ordered_ms.extend(ordered);
        bare_ms.extend(bare);
        created_ms.extend(created);
    }
    let manifest = slices.manifest.clone();
    drop(slices);
    // Before its Jobs are deleted: it would take them for lost, and create them again.
    server.stop()?;
    ratios.sort_by(f64::total_cmp);
    let (name, ratio) = (engine.name(), median(ratios.iter().copied()));
    let [request_ms, bare_ms, created_ms] = [ordered_ms, bare_ms, created_ms].map(median);
    eprintln!(
        "    kubernetes.{name}: {request_ms:.2} ms for an order, {created_ms:.2} ms until its Job exists, {bare_ms:.2} ms for a bare Job"
    );
    report.figure(format!("kubernetes.{name}.request_ratio"), ratio);
    report.figure(format!("kubernetes.{name}.request_ratio_q1"), percentile(&ratios, 25));
    report.figure(format!("kubernetes.{name}.request_ratio_q3"), percentile(&ratios, 75));
    report.figure(format!("kubernetes.{name}.request_p50_ms"), request_ms);
    report.figure(format!("kubernetes.{name}.job_exists_p50_ms"), created_ms);
    report.rounds(format!("kubernetes.{name}.job_exists_ratio"), exists_ratios);
    report.figure(format!("kubernetes.{name}.bare_create_p50_ms"), bare_ms);
    report.note(format!(
        "kubernetes.request_ratio: {} pairs of slices of {} requests, one after the other over a kept connection, that alternate with \
         bare calls that create an equal Job; the median of the pairs' ratios (q1, q3: quartiles), on the engine where it is worse. The \
         server answers before the Job exists: job_exists is the time until the API server returns it",
        size.rounds, size.requests
    ));
    Ok((ratio, manifest))
}

impl<'a> Slices<'a> {
    async fn open(cluster: &KubeBench<'_>, server: &'a Server, namespace: &'a str) -> Outcome<Self> {
        let (mut connection, mut api) = (Connection::open(server).await?, cluster.connect().await?);
        let first = prepare(&mut connection, server).await?;
        let first = order(&mut connection, &first).await?;
        first.wait_for_pod(&mut connection, server).await?;
        let path = format!("{}/{}", jobs_path(namespace), first.job_name);
        let stored = api.get(&path).await?.ok_or("the Job of the first runner is gone")?;
        let manifest = sent_manifest(&stored);
        Ok(Self { server, namespace, connection, api, manifest, created: 0 })
    }

    /// Requests runner jobs one after the other, and returns the time of each request, in ms. Waits until all Jobs have pods: the
    /// cluster must not still be at work on them during the next slice.
    async fn order_runners(&mut self, count: usize) -> Outcome<Vec<f64>> {
        let mut orders = vec![];
        for _ in 0..count {
            orders.push(prepare(&mut self.connection, self.server).await?);
        }
        let (mut times, mut runners) = (vec![], vec![]);
        for order in &orders {
            let started = now();
            let response = self.connection.call(&order.request).await?;
            times.push(ms_since(started));
            runners.push(OrderedRunner::read(response)?);
        }
        for runner in &runners {
            runner.wait_for_pod(&mut self.connection, self.server).await?;
        }
        Ok(times)
    }

    /// Creates Jobs by bare calls one after the other: the time of each call, in ms. Returns when all of them have pods.
    async fn create_bare(&mut self, count: usize) -> Outcome<Vec<f64>> {
        let path = jobs_path(self.namespace);
        let mut requests = vec![];
        for _ in 0..count {
            let body = bare_job(&self.manifest, self.created);
            self.created += 1;
            let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            requests.push((name, self.api.request("POST", &path, &body.to_string())));
        }
        let mut times = vec![];
        for (_, request) in &requests {
            let started = now();
            self.api.send(request).await?;
            times.push(ms_since(started));
        }
        for (name, _) in &requests {
            timeout(POD_TIMEOUT, self.wait_for_pod(&format!("{path}/{name}"))).await??;
        }
        Ok(times)
    }

    /// Orders runners, each after the Job of the one before exists: the time until the API server returns the Job, in ms.
    async fn order_and_find(&mut self, count: usize) -> Outcome<Vec<f64>> {
        let mut times = vec![];
        for _ in 0..count {
            let prepared = prepare(&mut self.connection, self.server).await?;
            let started = now();
            let runner = order(&mut self.connection, &prepared).await?;
            let path = format!("{}/{}", jobs_path(self.namespace), runner.job_name);
            let found = async {
                while !self.api.exists_timed(&path).await? {}
                Outcome::Ok(())
            };
            timeout(POD_TIMEOUT, found).await??;
            times.push(ms_since(started));
            runner.wait_for_pod(&mut self.connection, self.server).await?;
        }
        Ok(times)
    }

    async fn wait_for_pod(&mut self, job_path: &str) -> Outcome<()> {
        loop {
            let job = self.api.get(job_path).await?.ok_or("a bare Job is gone")?;
            if job["status"]["active"] == 1 {
                return Ok(());
            }
            sleep(POD_PAUSE).await;
        }
    }
}

fn ms_since(started: std::time::Instant) -> f64 {
    since(started).as_secs_f64() * 1e3
}
