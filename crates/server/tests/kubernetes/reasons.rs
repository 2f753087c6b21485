//! Why a pod does not start or ends early, as the cluster shows it, and what follows for the run.

use std::time::Duration;

use ostler_protocol::limits::JOB_ATTEMPTS_MAX;
use serde_json::{Value, json};

use super::cluster::{TestCluster, job_shows, ordered_job};
use crate::harness::{Engine, TestServer, both_engines, eventually, id, one_engine};

/// The time limit of Jobs in these tests, and longer than that.
const LIMIT_S: u32 = 60;
const OVER: Duration = Duration::from_secs(61);

/// A server whose Jobs have a time limit.
async fn limited(cluster: &TestCluster, engine: Engine) -> TestServer {
    TestServer::with(engine, |setup| {
        cluster.choose(setup);
        setup.config.kubernetes.deadline_s = Some(LIMIT_S);
    })
    .await
}

#[both_engines]
async fn a_pod_that_no_node_can_take_is_shown_as_unschedulable_and_fails_its_start_in_time(engine: Engine) {
    const START_MS: u64 = 20_000;
    // It has no node.
    let cluster = TestCluster::any();
    let server = TestServer::with(engine, |setup| {
        cluster.choose(setup);
        setup.config.kubernetes.start_timeout_ms = START_MS;
    })
    .await;
    let (run_id, command_id, job) = ordered_job(&server).await;
    let name = id(&job, "jobName");
    let shown = job_shows(&server, &job, "why it waits", |job| job["observed"]["reason"] == "Unschedulable").await;
    assert_eq!((&shown["phase"], &shown["observed"]["phase"]), (&json!("running"), &json!("pending")));
    assert!(!id(&shown["observed"], "message").is_empty(), "{shown}");
    assert_eq!(server.result(&run_id, &command_id).await["liveness"]["podReason"], "Unschedulable");
    server.clock.advance_ms(START_MS as i64 + 1);
    cluster.created(&format!("{name}-2")).await;
    eventually("the first Job is deleted", async || cluster.job(&name).is_none().then_some(())).await;
    let ends = server.events_of(&run_id, "backend_status").await;
    let end = &ends.iter().find(|event| event["payload"]["phase"] == "runner-ended").unwrap()["payload"]["end"];
    assert_eq!((&end["status"], &end["reason"]), (&json!("not-started"), &json!("Unschedulable")));
}

#[both_engines]
async fn a_job_whose_time_limit_is_over_is_taken_over_when_its_lease_has_expired(engine: Engine) {
    let cluster = TestCluster::start();
    let server = limited(&cluster, engine).await;
    let (run_id, command_id, job) = ordered_job(&server).await;
    let name = id(&job, "jobName");
    let pod = cluster.pod_of(&name).await;
    cluster.report(&pod, "Running", &json!({"running": {}}));
    job_shows(&server, &job, "that it runs", |job| job["observed"]["phase"] == "running").await;
    let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
    runner.ack(&command_id).await;
    cluster.api().advance(OVER);
    // The pod is gone without a sign of its runner, which may still be at work.
    job_shows(&server, &job, "the reason", |job| job["observed"]["reason"] == "DeadlineExceeded").await;
    runner.heartbeat().await;
    assert_eq!(&cluster.job_names()[..], std::slice::from_ref(&name));
    server.clock.advance_ms(60_001);
    cluster.created(&format!("{name}-2")).await;
    let ends = server.events_of(&run_id, "backend_status").await;
    let end = &ends.iter().find(|event| event["payload"]["phase"] == "runner-ended").unwrap()["payload"]["end"];
    assert_eq!((&end["status"], &end["reason"]), (&json!("lost"), &json!("DeadlineExceeded")));
    assert_eq!(server.get(&id(&job["poll"], "job")).await.ok()["attempt"], 2, "the start counts");
}

#[both_engines]
async fn a_start_whose_time_limit_is_over_counts_although_its_runner_released_its_run_and_its_end_was_not_seen(
    engine: Engine,
) {
    let cluster = TestCluster::start();
    let server = limited(&cluster, engine).await;
    let (run_id, command_id, job) = ordered_job(&server).await;
    let name = id(&job, "jobName");
    let pod = cluster.pod_of(&name).await;
    cluster.report(&pod, "Running", &json!({"running": {}}));
    job_shows(&server, &job, "that it runs", |job| job["observed"]["phase"] == "running").await;
    let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
    runner.ack(&command_id).await;
    runner.release().await;
    cluster.api().advance(OVER);
    cluster.created(&format!("{name}-2")).await;
    let ends = server.events_of(&run_id, "backend_status").await;
    let end = &ends.iter().find(|event| event["payload"]["phase"] == "runner-ended").unwrap()["payload"]["end"];
    assert_eq!((&end["status"], &end["reason"]), (&json!("released"), &json!("DeadlineExceeded")));
    assert_eq!(server.get(&id(&job["poll"], "job")).await.ok()["attempt"], 2);
}

#[both_engines]
async fn a_pod_that_was_stopped_before_its_container_started_is_lost_for_the_reason_why_it_waited(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    let (run_id, _, job) = ordered_job(&server).await;
    let name = id(&job, "jobName");
    let pod = cluster.pod_of(&name).await;
    cluster.report(&pod, "Pending", &json!({"waiting": {"reason": "ImagePullBackOff"}}));
    job_shows(&server, &job, "why it waits", |job| job["observed"]["reason"] == "ImagePullBackOff").await;
    // What a kubelet reports of a container that it has never started.
    cluster.report(&pod, "Failed", &json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}));
    cluster.created(&format!("{name}-2")).await;
    let ends = server.events_of(&run_id, "backend_status").await;
    let end = &ends.iter().find(|event| event["payload"]["phase"] == "runner-ended").unwrap()["payload"]["end"];
    let expected = (&json!("lost"), &json!("ImagePullBackOff"), &Value::Null);
    assert_eq!((&end["status"], &end["reason"], &end["exitCode"]), expected, "{end}");
}

/// The longest pause before another start.
const RESTART_PAUSE_MS: i64 = 16_001;

#[one_engine]
async fn work_that_never_fits_the_time_limit_of_a_job_fails(engine: Engine) {
    let cluster = TestCluster::start();
    let server = limited(&cluster, engine).await;
    let (run_id, command_id, job) = ordered_job(&server).await;
    let first = id(&job, "jobName");
    for number in 1..=JOB_ATTEMPTS_MAX {
        let name = if number == 1 { first.clone() } else { format!("{first}-{number}") };
        let pod = cluster.pod_of(&name).await;
        cluster.report(&pod, "Running", &json!({"running": {}}));
        let is_running =
            |job: &Value| job["observed"]["jobName"] == name.as_str() && job["observed"]["phase"] == "running";
        job_shows(&server, &job, "that it runs", is_running).await;
        cluster.api().advance(OVER);
        job_shows(&server, &job, "its end", |job| job["phase"] != "running" || job["attempt"] != number).await;
        server.clock.advance_ms(RESTART_PAUSE_MS);
    }
    let failed = job_shows(&server, &job, "its end", |job| job["phase"] == "failed").await;
    assert_eq!(
        (&failed["attempt"], &failed["terminalSummary"]["reason"]),
        (&json!(JOB_ATTEMPTS_MAX), &json!("DeadlineExceeded"))
    );
    let command = server.command(&run_id, &command_id).await;
    assert_eq!((&command["state"], &command["terminal"]["failureKind"]), (&json!("failed"), &json!("infra-failed")));
    assert_eq!(cluster.job_names().len() as i64, JOB_ATTEMPTS_MAX);
}
