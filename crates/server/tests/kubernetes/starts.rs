//! Starts that cannot go on, whose own work is over, or that were cut off; and Jobs that no start needs any more.

use std::time::Duration;

use ostler_testkit::kube::KubeFault;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::cluster::{TestCluster, job_shows, ordered_job, waiting_run};
use crate::harness::{Engine, Recorder, TestServer, both_engines, eventually, id, one_engine};

const CLAIMS: &str = "persistentvolumeclaims";
const MANY: u32 = 1_000_000;
/// More than a server starts at once.
const STUCK_STARTS: usize = 40;
const START_MS: i64 = 600_000;
/// Longer than a start keeps its place while the cluster fails, and than its server gets to create the Job.
const PATIENCE_MS: i64 = 11_000;

/// A job whose session has storage.
async fn job_with_claim(server: &TestServer, session_id: &str) -> Value {
    let body =
        json!({"tenantId": "hwlab", "sessionId": session_id, "backendProfile": "scripted", "storageKind": "pvc"});
    server.post("/api/v1/sessions", &body).await.with_status(201);
    let run_id = server.create_run_with(|body| body["sessionRef"] = json!({"sessionId": session_id})).await;
    let command_id = server.turn(&run_id, "hi").await;
    server.create_job(&run_id, &json!({"commandId": command_id})).await.with_status(201)
}

async fn jobs_with_claims(server: &TestServer) -> Vec<Value> {
    let mut jobs = vec![];
    for number in 0..STUCK_STARTS {
        jobs.push(job_with_claim(server, &format!("s-{number}")).await);
    }
    jobs
}

#[both_engines]
async fn sessions_without_room_in_the_quota_do_not_delay_other_jobs_and_fail_in_time(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    cluster.api().inject(KubeFault::QuotaExceeded, "create", CLAIMS, MANY);
    let stuck = jobs_with_claims(&server).await;
    let (_, _, job) = ordered_job(&server).await;
    cluster.created(&id(&job, "jobName")).await;
    let shown = job_shows(&server, &stuck[0], "why", |job| job["observed"]["reason"] == "QuotaExceeded").await;
    assert!(id(&shown["observed"], "message").contains("exceeded quota"), "{shown}");
    assert_eq!((&shown["phase"], &shown["observed"]["phase"]), (&json!("running"), &json!("pending")));
    let run_id = id(&stuck[0], "runId");
    let result = server.result(&run_id, &id(&stuck[0], "commandId")).await;
    assert_eq!(result["liveness"]["podReason"], "QuotaExceeded");
    server.clock.advance_ms(START_MS + 1);
    let failed = |job: &Value| job["terminalSummary"]["status"] == "not-started";
    let shown = job_shows(&server, &stuck[0], "that the start failed", failed).await;
    assert!(id(&shown["terminalSummary"], "message").contains("exceeded quota"), "{shown}");
}

#[both_engines]
async fn a_quota_that_has_room_again_lets_the_start_continue(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    cluster.api().inject(KubeFault::QuotaExceeded, "create", CLAIMS, MANY);
    let job = job_with_claim(&server, "mine").await;
    job_shows(&server, &job, "why it waits", |job| job["observed"]["reason"] == "QuotaExceeded").await;
    cluster.api().heal();
    cluster.created(&id(&job, "jobName")).await;
    let shown = job_shows(&server, &job, "its Job", |job| job["observed"]["reason"] != "QuotaExceeded").await;
    assert_eq!(shown["attempt"], 1);
}

#[one_engine]
async fn starts_that_have_failed_for_long_do_not_delay_other_jobs(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    cluster.api().inject(KubeFault::InternalError, "create", CLAIMS, MANY);
    let stuck = jobs_with_claims(&server).await;
    let (_, _, job) = ordered_job(&server).await;
    server.clock.advance_ms(PATIENCE_MS);
    cluster.created(&id(&job, "jobName")).await;
    let has_reason = |job: &Value| job["observed"]["reason"] == "ClusterUnavailable";
    job_shows(&server, &stuck[0], "why it waits", has_reason).await;
    // It is no failed start: the cluster may be away for long.
    server.clock.advance_ms(START_MS + 1);
    cluster.api().heal();
    cluster.created(&id(&stuck[0], "jobName")).await;
}

/// A run with two turns that wait, and the job that was ordered for the second one: run, both commands and job.
async fn job_of_second_turn(server: &TestServer) -> (String, [String; 2], Value) {
    let (run_id, first) = waiting_run(server).await;
    let second = server.turn(&run_id, "and this").await;
    let job = server.create_job(&run_id, &json!({"commandId": second})).await.with_status(201);
    (run_id, [first, second], job)
}

#[both_engines]
async fn no_job_is_created_for_a_cancelled_command_although_another_one_of_the_run_waits(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    cluster.api().inject(KubeFault::InternalError, "create", "jobs", MANY);
    let (run_id, [first, second], job) = job_of_second_turn(&server).await;
    eventually("the start has failed", async || (cluster.api().faults_waiting() < MANY).then_some(())).await;
    server.cancel_command(&second).await;
    cluster.api().heal();
    job_shows(&server, &job, "its end", |job| job["phase"] == "succeeded").await;
    assert_eq!(cluster.job_names(), [""; 0]);
    // An order for the other command is another job.
    assert_eq!(server.command(&run_id, &first).await["state"], "pending");
    let job = server.create_job(&run_id, &json!({"commandId": first})).await.with_status(201);
    cluster.created(&id(&job, "jobName")).await;
}

#[both_engines]
async fn the_job_of_a_cancelled_command_is_deleted_before_its_pod_starts_although_another_one_of_the_run_waits(
    engine: Engine,
) {
    let cluster = TestCluster::any();
    let server = cluster.server(engine).await;
    let (_, [_, second], job) = job_of_second_turn(&server).await;
    let name = id(&job, "jobName");
    let pod = cluster.pod_of(&name).await;
    job_shows(&server, &job, "its pod", |job| job["podName"] == pod.as_str()).await;
    server.cancel_command(&second).await;
    server.clock.advance_ms(PATIENCE_MS);
    job_shows(&server, &job, "its end", |job| job["phase"] == "succeeded").await;
    eventually("the Job is deleted", async || cluster.job(&name).is_none().then_some(())).await;
}

#[one_engine]
async fn secrets_of_interrupted_starts_are_looked_up_concurrently(engine: Engine) {
    const JOBS: usize = 12;
    const SLOW: Duration = Duration::from_millis(700);
    let cluster = TestCluster::start();
    let mut server = cluster.server(engine).await;
    cluster.api().inject(KubeFault::InternalError, "create", "secrets", MANY);
    let mut pods = vec![];
    for _ in 0..JOBS {
        let (_, _, job) = ordered_job(&server).await;
        pods.push((cluster.pod_of(&id(&job, "jobName")).await, job));
    }
    server.restart().await;
    cluster.api().heal();
    server.clock.advance_ms(4 * PATIENCE_MS);
    for (pod, job) in &pods {
        job_shows(&server, job, "its pod", |job| job["podName"] == pod.as_str()).await;
    }
    cluster.api().inject(KubeFault::Delay(SLOW), "get", "secrets", MANY);
    for (pod, _) in &pods {
        cluster.report(pod, "Pending", &json!({"waiting": {"reason": "CreateContainerConfigError"}}));
    }
    let began = Instant::now();
    eventually("every Secret exists", async || (cluster.objects("secrets").len() == JOBS).then_some(())).await;
    assert!(began.elapsed() < SLOW * JOBS as u32 / 2, "after {:?}", began.elapsed());
}

/// A finished Job of a runner job that no store has.
fn foreign_job(number: usize) -> Value {
    let labels = json!({"app.kubernetes.io/managed-by": "ostler", "ostler.dev/job": format!("job_{number:032x}")});
    let container = json!({"name": "runner", "image": "ostler:test"});
    json!({
        "metadata": {"name": format!("ostler-run-foreign-{number}"), "labels": labels},
        "spec": {"template": {"spec": {"containers": [container], "restartPolicy": "Never"}}, "suspend": true}
    })
}

/// Runs an ordered job to its end, and waits until the cluster shows its Job as complete.
async fn finished_job(cluster: &TestCluster, server: &TestServer) -> String {
    let (run_id, command_id, job) = ordered_job(server).await;
    let name = id(&job, "jobName");
    let pod = cluster.pod_of(&name).await;
    let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
    runner.end(&command_id, "completed").await;
    runner.release().await;
    cluster.report(&pod, "Succeeded", &json!({"terminated": {"exitCode": 0}}));
    job_shows(server, &job, "its end", |job| job["phase"] == "succeeded").await;
    name
}

#[both_engines]
async fn finished_jobs_are_deleted_beside_new_starts_and_read_together(engine: Engine) {
    const FOREIGN: usize = 20;
    const SLOW: Duration = Duration::from_secs(4);
    let cluster = TestCluster::start();
    let mut recorder = None;
    let server = TestServer::with(engine, |setup| {
        cluster.choose(setup);
        setup.config.kubernetes.finished_jobs_max = 1;
        recorder = Some(Recorder::of(&mut setup.config));
    })
    .await;
    finish_foreign_jobs(&cluster, FOREIGN);
    let first = finished_job(&cluster, &server).await;
    cluster.api().inject(KubeFault::Delay(SLOW), "delete", "jobs", MANY);
    let began = Instant::now();
    let (_, _, job) = ordered_job(&server).await;
    cluster.created(&id(&job, "jobName")).await;
    assert!(began.elapsed() < SLOW, "the new Job has waited for the end of a deletion");
    eventually("the oldest one that is known is deleted", async || cluster.job(&first).is_none().then_some(())).await;
    let foreign = cluster.job_names().iter().filter(|name| name.contains("foreign")).count();
    assert_eq!(foreign, FOREIGN, "another installation may share the namespace");
    let reads = recorder.unwrap().statements();
    assert!(reads.iter().any(|sent| sent.sql.contains("t.runner_job_id IN (SELECT one")), "one query reads them");
}

/// Finished Jobs of another installation in the same namespace.
fn finish_foreign_jobs(cluster: &TestCluster, count: usize) {
    for number in 0..count {
        let created = cluster.create("jobs", foreign_job(number)).unwrap();
        let condition = json!({"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let status = json!({"status": {"conditions": [condition]}});
        assert!(cluster.patch("jobs", &id(&created["metadata"], "name"), &status));
    }
}

#[one_engine]
async fn finished_jobs_above_the_limit_are_deleted_without_a_new_start(engine: Engine) {
    const FOREIGN: usize = 5;
    const SEVERAL_LOOKS: Duration = Duration::from_millis(400);
    let cluster = TestCluster::start();
    let server = TestServer::with(engine, |setup| {
        cluster.choose(setup);
        setup.config.kubernetes.finished_jobs_max = 2;
    })
    .await;
    finish_foreign_jobs(&cluster, FOREIGN);
    // The deletions that the orders themselves lead to fail.
    cluster.api().inject(KubeFault::InternalError, "delete", "jobs", MANY);
    let mut names = vec![];
    for _ in 0..3 {
        names.push(finished_job(&cluster, &server).await);
        // The cluster's times are in seconds.
        cluster.api().advance(Duration::from_secs(2));
    }
    assert_eq!(cluster.job_names().len(), FOREIGN + 3);
    cluster.api().heal();
    eventually("the oldest one is deleted", async || cluster.job(&names[0]).is_none().then_some(())).await;
    tokio::time::sleep(SEVERAL_LOOKS).await;
    assert_eq!(cluster.job_names().len(), FOREIGN + 2, "those of others do not count");
}
