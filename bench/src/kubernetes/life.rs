//! How many calls of the API server a Job costs from its order to its observed end, counted by the server itself. This program simulates
//! the kubelet and the runners: it reports that a pod runs, does the runner's turn, and reports that the pod has ended.

use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::sleep;

use super::api::ApiConnection;
use super::cluster::{KubeBench, pods_path};
use super::manifests::{running, succeeded};
use super::metrics::read_calls;
use super::orders::{order, prepare};
use crate::engine::Engine;
use crate::http::{Connection, number, request};
use crate::machine::{now, since};
use crate::outcome::Outcome;
use crate::report::Report;
use crate::server::Server;

/// Clients that each do one run after the other. Their number is a divisor of the numbers of Jobs.
const CLIENTS: usize = 20;
/// Finished Jobs that stay: those of the warm-up, one of each client. So each counted Job also costs the deletion of one, as in a
/// cluster that has been in use for long.
const FINISHED_JOBS_MAX: usize = CLIENTS;
/// For the calls of the next comparison with the cluster, which is every 5 s.
const TAIL: Duration = Duration::from_secs(7);
const WATCH: &str = "watch";
const LEASE_MS: u64 = 600_000;

/// A node whose kubelet and runners are simulated by this program.
struct SimulatedNode<'a> {
    server: &'a Server,
    namespace: &'a str,
    connection: Connection,
    api: ApiConnection,
}

pub(crate) async fn measure(cluster: &KubeBench<'_>, namespace: &str, report: &mut Report) -> Outcome<()> {
    let jobs = cluster.bench.sizes.kubernetes.jobs;
    let finished_max = FINISHED_JOBS_MAX.to_string();
    let settings = [("OSTLER_KUBERNETES__FINISHED_JOBS_MAX", finished_max.as_str())];
    let server = cluster.serve_with(&cluster.bench.place(Engine::Postgres)?, namespace, &settings)?;
    let mut nodes = vec![];
    for _ in 0..CLIENTS {
        let (connection, api) = (Connection::open(&server).await?, cluster.connect().await?);
        nodes.push(SimulatedNode { server: &server, namespace, connection, api });
    }
    // By then the watches have begun, whose first lists are not those of a Job, and as many finished Jobs exist as may stay.
    try_join_all(nodes.iter_mut().map(|node| node.run_jobs(1))).await?;
    let before = read_calls(&server).await?;
    let started = now();
    try_join_all(nodes.iter_mut().map(|node| node.run_jobs(jobs / CLIENTS))).await?;
    let seconds = since(started).as_secs_f64();
    sleep(TAIL).await;
    let after = read_calls(&server).await?;
    drop(nodes);
    server.stop()?;

    let mut all = 0;
    for (verb, count) in &after {
        let made = count - before.get(verb).copied().unwrap_or(0);
        if verb == WATCH {
            report.figure("kubernetes.watch_calls", made as f64);
            continue;
        }
        all += made;
        report.figure(format!("kubernetes.{verb}_calls_per_job"), made as f64 / jobs as f64);
    }
    report.figure("kubernetes.api_calls_per_job", all as f64 / jobs as f64);
    report.figure("kubernetes.jobs_per_s", jobs as f64 / seconds);
    report.note(format!(
        "kubernetes.api_calls_per_job: {jobs} Jobs from the order to the stored end, {CLIENTS} at once, and the clean-up of finished ones \
         ({FINISHED_JOBS_MAX} stay, so each new one costs a deletion). All calls of the server's own count (ostler_cluster_calls_total) except those of the verb `watch`: three \
         watches serve all Jobs, each is one call for about a minute, and watch_calls is their number. Lists count"
    ));
    Ok(())
}

impl SimulatedNode<'_> {
    async fn run_jobs(&mut self, count: usize) -> Outcome<()> {
        for _ in 0..count {
            self.run_job().await?;
        }
        Ok(())
    }

    async fn run_job(&mut self) -> Outcome<()> {
        let prepared = prepare(&mut self.connection, self.server).await?;
        let runner = order(&mut self.connection, &prepared).await?;
        let pod = runner.wait_for_pod(&mut self.connection, self.server).await?;
        let status = format!("{}/{pod}/status", pods_path(self.namespace));
        self.api.call("PATCH", &status, &running()).await?;
        self.do_turn(&prepared.run_id, &prepared.command_id, &runner.runner_id).await?;
        self.api.call("PATCH", &status, &succeeded()).await?;
        runner.wait_for_end(&mut self.connection, self.server).await
    }

    /// What the runner of a pod does: claims the run, completes the command, and hands the run back.
    async fn do_turn(&mut self, run_id: &str, command_id: &str, runner_id: &str) -> Outcome<()> {
        let claim = format!(r#"{{"runnerId":"{runner_id}","leaseMs":{LEASE_MS}}}"#);
        let claim = request(self.server, "POST", &format!("/api/v1/runs/{run_id}/claim"), &claim);
        let epoch = number(self.connection.call(&claim).await?, "leaseEpoch")?;
        let signature = format!(r#""runnerId":"{runner_id}","leaseEpoch":{epoch}"#);
        for (path, field) in [
            (format!("/api/v1/commands/{command_id}/status"), r#""status":"completed""#),
            (format!("/api/v1/runs/{run_id}/lease"), r#""release":true"#),
        ] {
            let body = format!("{{{field},{signature}}}");
            self.connection.call(&request(self.server, "PATCH", &path, &body)).await?;
        }
        Ok(())
    }
}
