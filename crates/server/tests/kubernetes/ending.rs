//! How runners end, as the cluster shows it, and who takes over.

use std::time::Duration;

use ostler_testkit::kube::KubeFault;
use serde_json::json;

use super::cluster::{TestCluster, job_shows, ordered_job};
use crate::harness::{Engine, TestServer, both_engines, eventually, id, one_engine, run};

/// How long a watch is late. Many comparisons with the cluster fall into it.
const LATE: Duration = Duration::from_millis(800);

#[both_engines]
async fn a_pod_is_shown_from_its_image_to_its_exit_code(engine: Engine) {
    let cluster = TestCluster::any();
    let server = cluster.server(engine).await;
    let (run_id, command_id, job) = ordered_job(&server).await;
    let pod = cluster.pod_of(&id(&job, "jobName")).await;
    cluster.report(&pod, "Pending", &json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}));
    let shown = job_shows(&server, &job, "why it waits", |job| job["observed"]["reason"] == "ImagePullBackOff").await;
    assert_eq!((&shown["phase"], &shown["observed"]["phase"]), (&json!("running"), &json!("pending")));
    cluster.report(&pod, "Running", &json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}));
    job_shows(&server, &job, "that it runs", |job| job["observed"]["phase"] == "running").await;
    let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
    runner.end(&command_id, "completed").await;
    runner.release().await;
    let report = json!({"status": "idle", "turns": 1}).to_string();
    cluster.report(
        &pod,
        "Succeeded",
        &json!({"terminated": {"exitCode": 0, "reason": "Completed", "message": report}}),
    );
    let ended = job_shows(&server, &job, "its end", |job| job["phase"] == "succeeded").await;
    let summary = &ended["terminalSummary"];
    assert_eq!((&summary["status"], &summary["turns"], &summary["exitCode"]), (&json!("idle"), &json!(1), &json!(0)));
    assert_eq!((&summary["podName"], &ended["observed"]["exitCode"]), (&json!(pod), &json!(0)));
}

#[both_engines]
async fn a_pod_that_is_killed_in_a_turn_loses_its_lease_at_once_and_another_job_is_started(engine: Engine) {
    let cluster = TestCluster::any();
    let server = cluster.server(engine).await;
    let (run_id, command_id, job) = ordered_job(&server).await;
    let name = id(&job, "jobName");
    let pod = cluster.pod_of(&name).await;
    cluster.report(&pod, "Running", &json!({"running": {}}));
    let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
    runner.ack(&command_id).await;
    let started = json!({"toolCallId": "t", "name": "shell", "status": "started"});
    runner.tell(&command_id, "tool_call", started).await;
    cluster.report(&pod, "Failed", &json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}));
    let second = format!("{name}-2");
    cluster.created(&second).await;
    let leases = server.events_of(&run_id, "lease").await;
    assert_eq!(leases.last().unwrap()["payload"]["orphaned"], true);
    let ends = server.events_of(&run_id, "backend_status").await;
    let end = ends.iter().find(|event| event["payload"]["phase"] == "runner-ended").unwrap();
    assert_eq!(
        (&end["payload"]["end"]["reason"], &end["payload"]["end"]["exitCode"]),
        (&json!("OOMKilled"), &json!(137))
    );
    assert_eq!(cluster.job_names().len(), 2);
}

#[both_engines]
async fn a_job_that_vanished_is_replaced_only_after_its_lease_has_expired(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    let (run_id, command_id, job) = ordered_job(&server).await;
    let name = id(&job, "jobName");
    let pod = cluster.pod_of(&name).await;
    cluster.report(&pod, "Running", &json!({"running": {}}));
    job_shows(&server, &job, "that it runs", |job| job["observed"]["phase"] == "running").await;
    let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
    runner.ack(&command_id).await;
    let asked = cluster.api().count("get", "jobs");
    cluster.delete_job(&name);
    eventually("its absence was confirmed", async || (cluster.api().count("get", "jobs") > asked).then_some(())).await;
    // The runner may still be at work: nothing is started beside it.
    runner.heartbeat().await;
    assert_eq!(cluster.job_names(), [""; 0]);
    server.clock.advance_ms(60_001);
    cluster.created(&format!("{name}-2")).await;
    assert_eq!(cluster.job_names().len(), 1);
    assert_eq!(server.get(&id(&job["poll"], "job")).await.ok()["jobName"], format!("{name}-2"));
}

#[both_engines]
async fn a_runner_whose_lease_has_expired_gets_a_grace_period_before_its_job_is_deleted(engine: Engine) {
    const GRACE: Duration = Duration::from_secs(1);
    let cluster = TestCluster::start();
    let server = TestServer::with(engine, |setup| {
        cluster.choose(setup);
        setup.config.kubernetes.grace_s = GRACE.as_secs() as u32;
    })
    .await;
    let (run_id, command_id, job) = ordered_job(&server).await;
    let name = id(&job, "jobName");
    let pod = cluster.pod_of(&name).await;
    cluster.report(&pod, "Running", &json!({"running": {}}));
    let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
    runner.ack(&command_id).await;
    // Long enough that a server which forgets the lease would have deleted the Job.
    tokio::time::sleep(LATE).await;
    runner.heartbeat().await;
    let expired = tokio::time::Instant::now();
    server.clock.advance_ms(60_001);
    eventually("the Job is deleted", async || cluster.job(&name).is_none().then_some(())).await;
    assert!(expired.elapsed() >= GRACE, "deleted after {:?}", expired.elapsed());
    cluster.created(&format!("{name}-2")).await;
    let ends = server.events_of(&run_id, "backend_status").await;
    let end = ends.iter().find(|event| event["payload"]["phase"] == "runner-ended").unwrap();
    assert_eq!(end["payload"]["end"]["status"], "stuck", "{end}");
}

/// As after an outage of the cluster in which the runner ended.
#[one_engine]
async fn a_job_whose_runner_has_released_its_run_is_not_stuck_although_its_pod_seems_to_run(engine: Engine) {
    let cluster = TestCluster::start();
    let server = TestServer::with(engine, |setup| {
        cluster.choose(setup);
        setup.config.kubernetes.grace_s = 1;
    })
    .await;
    let (run_id, command_id, job) = ordered_job(&server).await;
    let name = id(&job, "jobName");
    let pod = cluster.pod_of(&name).await;
    cluster.report(&pod, "Running", &json!({"running": {}}));
    let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
    runner.ack(&command_id).await;
    tokio::time::sleep(LATE).await;
    runner.end(&command_id, "completed").await;
    runner.release().await;
    let ended = job_shows(&server, &job, "its end", |job| job["phase"] != "running").await;
    let (phase, summary) = (&ended["phase"], &ended["terminalSummary"]);
    assert_eq!(
        (phase, &summary["status"], &summary["failureKind"]),
        (&json!("succeeded"), &json!("released"), &json!(null)),
        "{ended}"
    );
    eventually("the Job is deleted", async || cluster.job(&name).is_none().then_some(())).await;
}

#[both_engines]
async fn a_pod_outlives_the_server_that_started_it(engine: Engine) {
    let cluster = TestCluster::any();
    let mut server = cluster.server(engine).await;
    let (run_id, command_id, job) = ordered_job(&server).await;
    let name = id(&job, "jobName");
    let pod = cluster.pod_of(&name).await;
    cluster.report(&pod, "Running", &json!({"running": {}}));
    let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
    runner.ack(&command_id).await;
    server.restart().await;
    assert_eq!(server.command(&run_id, &command_id).await["state"], "acked");
    cluster.report(&pod, "Failed", &json!({"terminated": {"exitCode": 1, "reason": "Error"}}));
    cluster.created(&format!("{name}-2")).await;
    assert_eq!(cluster.job_names().len(), 2);
}

/// Ends the server's watches. The next one of this resource starts late.
async fn delay_watch(cluster: &TestCluster, resource: &str) {
    cluster.api().inject(KubeFault::Delay(LATE), "watch", resource, 1);
    cluster.api().end_watches();
    eventually("the watch is late", async || (cluster.api().faults_waiting() == 0).then_some(())).await;
}

#[test]
fn a_pod_that_only_another_server_has_seen_is_not_taken_for_deleted() {
    run(async {
        let cluster = TestCluster::start();
        let one = cluster.server(Engine::Postgres).await;
        let keys = one.config.server.data_dir.clone().unwrap();
        let two: TestServer =
            one.start_another(|config| config.secrets.key_file = Some(keys.join("secrets-key"))).await;
        // The watch of one of them.
        delay_watch(&cluster, "pods").await;
        let delayed = tokio::time::Instant::now();
        let (_, _, job) = ordered_job(&one).await;
        job_shows(&two, &job, "its pod", |job| job["observed"]["podName"].is_string()).await;
        eventually("the watch is there again", async || (delayed.elapsed() > LATE).then_some(())).await;
        assert_eq!(cluster.job_names(), [id(&job, "jobName")]);
        assert_eq!(one.get(&id(&job["poll"], "job")).await.ok()["attempt"], 1);
    });
}

#[both_engines]
async fn a_finished_job_stays_while_its_condition_is_late(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    let (run_id, command_id, job) = ordered_job(&server).await;
    let name = id(&job, "jobName");
    let pod = cluster.pod_of(&name).await;
    cluster.report(&pod, "Running", &json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}));
    job_shows(&server, &job, "that it runs", |job| job["observed"]["phase"] == "running").await;
    let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
    runner.end(&command_id, "completed").await;
    runner.release().await;
    delay_watch(&cluster, "jobs").await;
    let delayed = tokio::time::Instant::now();
    cluster.report(&pod, "Succeeded", &json!({"terminated": {"exitCode": 0}}));
    job_shows(&server, &job, "its end", |job| job["phase"] == "succeeded").await;
    eventually("the watch is there again", async || (delayed.elapsed() > LATE).then_some(())).await;
    assert_eq!((cluster.api().count("delete", "jobs"), cluster.job_names()), (0, vec![name]));
}

#[both_engines]
async fn the_end_of_a_job_waits_for_the_report_of_its_runner(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    let (run_id, command_id, job) = ordered_job(&server).await;
    let pod = cluster.pod_of(&id(&job, "jobName")).await;
    cluster.report(&pod, "Running", &json!({"running": {}}));
    job_shows(&server, &job, "that it runs", |job| job["observed"]["phase"] == "running").await;
    let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
    runner.end(&command_id, "completed").await;
    runner.release().await;
    delay_watch(&cluster, "pods").await;
    let report = json!({"status": "idle", "turns": 1}).to_string();
    cluster.report(&pod, "Succeeded", &json!({"terminated": {"exitCode": 0, "message": report}}));
    let ended = job_shows(&server, &job, "its end", |job| job["phase"] == "succeeded").await;
    let summary = &ended["terminalSummary"];
    assert_eq!((&summary["status"], &summary["turns"]), (&json!("idle"), &json!(1)), "{summary}");
}

#[both_engines]
async fn a_runner_that_is_stopped_uses_no_attempt(engine: Engine) {
    let cluster = TestCluster::any();
    let server = cluster.server(engine).await;
    let (run_id, command_id, job) = ordered_job(&server).await;
    let name = id(&job, "jobName");
    // More often than a job is tried.
    for number in 1..=6 {
        let name = if number == 1 { name.clone() } else { format!("{name}-{number}") };
        let pod = cluster.pod_of(&name).await;
        let report = json!({"status": "stopped", "turns": 0}).to_string();
        cluster.report(&pod, "Failed", &json!({"terminated": {"exitCode": 130, "message": report}}));
    }
    cluster.created(&format!("{name}-7")).await;
    assert_eq!(server.command(&run_id, &command_id).await["state"], "pending");
}

#[both_engines]
async fn a_runner_without_a_report_leaves_the_end_of_its_log(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    let (_, _, job) = ordered_job(&server).await;
    let pod = cluster.pod_of(&id(&job, "jobName")).await;
    let tail = "cannot connect with ost_run_0123456789abcdef0123456789abcdef";
    cluster.report(&pod, "Failed", &json!({"terminated": {"exitCode": 1, "reason": "Error", "message": tail}}));
    let ended = job_shows(&server, &job, "its end", |job| job["terminalSummary"]["exitCode"] == 1).await;
    let tail = id(&ended["terminalSummary"], "logTail");
    assert!(tail.starts_with("cannot connect with") && !tail.contains("0123456789abcdef"), "{tail}");
}
