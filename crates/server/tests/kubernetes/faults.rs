//! An API server that fails, forgets and goes away: nothing is started twice, nothing is lost.

use std::time::Duration;

use ostler_testkit::{kube::KubeFault, proxy::Proxy};
use serde_json::json;

use super::cluster::{TestCluster, job_shows, ordered_job, waiting_run};
use crate::{
    harness::{Engine, TestServer, both_engines, eventually, id, one_engine, run},
    metrics::value,
};

/// Several times the interval in which each server compares its jobs with the cluster.
const LATER_LOOKS: Duration = Duration::from_millis(400);
/// Longer than the longest pause between attempts of a start that cannot reach the cluster.
const LATER_ATTEMPTS: Duration = Duration::from_millis(5_500);

#[both_engines]
async fn a_lost_response_makes_no_second_job(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    cluster.api().inject(KubeFault::LostAnswer, "create", "jobs", 1);
    cluster.api().inject(KubeFault::LostAnswer, "create", "secrets", 1);
    cluster.api().inject(KubeFault::TooManyRequests { retry_after_s: 1 }, "create", "jobs", 1);
    let (_, _, job) = ordered_job(&server).await;
    let name = id(&job, "jobName");
    cluster.created(&name).await;
    job_shows(&server, &job, "the Job is known", |job| job["observed"]["jobName"] == name.as_str()).await;
    assert_eq!((cluster.job_names(), cluster.objects("secrets").len()), (vec![name], 1));
    assert_eq!(cluster.api().faults_waiting(), 0);
}

#[both_engines]
async fn a_watch_that_is_forgotten_is_listed_again(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    let (_, _, job) = ordered_job(&server).await;
    let pod = cluster.pod_of(&id(&job, "jobName")).await;
    cluster.api().expire_watches();
    cluster.report(&pod, "Pending", &json!({"waiting": {"reason": "ErrImagePull"}}));
    job_shows(&server, &job, "what it missed", |job| job["observed"]["reason"] == "ErrImagePull").await;
    cluster.api().cut_connections();
    cluster.report(&pod, "Running", &json!({"running": {}}));
    job_shows(&server, &job, "what came later", |job| job["observed"]["phase"] == "running").await;
}

#[both_engines]
async fn an_api_server_that_was_away_finds_its_jobs_and_no_others(engine: Engine) {
    let mut cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    let (_, _, job) = ordered_job(&server).await;
    let pod = cluster.pod_of(&id(&job, "jobName")).await;
    cluster.api_mut().stop();
    let (later_run, later_command) = waiting_run(&server).await;
    let later = server.create_job(&later_run, &json!({"commandId": later_command})).await.with_status(201);
    cluster.report(&pod, "Running", &json!({"running": {}}));
    cluster.api_mut().start_again().unwrap();
    cluster.created(&id(&later, "jobName")).await;
    job_shows(&server, &job, "that it runs", |job| job["observed"]["phase"] == "running").await;
    assert_eq!(cluster.job_names().len(), 2);
}

#[test]
fn two_servers_lose_nothing_and_start_nothing_twice_while_the_api_server_is_away_for_a_minute() {
    run(async {
        let mut cluster = TestCluster::start();
        let one = cluster.server(Engine::Postgres).await;
        let keys = one.config.server.data_dir.clone().unwrap();
        let two: TestServer =
            one.start_another(|config| config.secrets.key_file = Some(keys.join("secrets-key"))).await;
        // Two runners are at work. One of them ends while the API server is away.
        let mut at_work = vec![];
        for server in [&one, &two] {
            let (run_id, command_id, job) = ordered_job(server).await;
            let pod = cluster.pod_of(&id(&job, "jobName")).await;
            cluster.report(&pod, "Running", &json!({"running": {}}));
            let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
            runner.ack(&command_id).await;
            at_work.push((runner, command_id, job, pod));
        }
        let [(working, working_command, _, _), (ending, ending_command, ended_job, ended_pod)] = &at_work[..] else {
            unreachable!()
        };
        cluster.api().cut_off(true);
        let mut expected: Vec<_> = at_work.iter().map(|(_, _, job, _)| id(job, "jobName")).collect();
        for server in [&one, &two, &one, &two] {
            expected.push(id(&ordered_job(server).await.2, "jobName"));
        }
        for _ in 0..6 {
            one.clock.advance_ms(10_000);
            working.heartbeat().await;
            ending.heartbeat().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        ending.end(ending_command, "completed").await;
        ending.release().await;
        cluster.report(ended_pod, "Succeeded", &json!({"terminated": {"exitCode": 0}}));
        assert_eq!(cluster.job_names().len(), at_work.len(), "nothing can be created");
        cluster.api_mut().restart().unwrap();
        cluster.api().cut_off(false);
        for name in &expected {
            cluster.created(name).await;
        }
        job_shows(&one, ended_job, "its end", |job| job["phase"] == "succeeded").await;
        tokio::time::sleep(LATER_LOOKS).await;
        let mut names = cluster.job_names();
        names.sort();
        expected.sort();
        assert_eq!(names, expected);
        working.heartbeat().await;
        assert_eq!(two.command(&working.run_id, working_command).await["state"], "acked");
    });
}

#[both_engines]
async fn a_call_that_the_role_does_not_grant_fails_the_job_with_the_reason(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    cluster.api().deny("create", "jobs");
    let (_, _, job) = ordered_job(&server).await;
    let failed =
        job_shows(&server, &job, "why it failed", |job| job["terminalSummary"]["status"] == "not-started").await;
    assert!(id(&failed["terminalSummary"], "message").contains("refused"), "{failed}");
}

#[one_engine]
async fn an_api_server_that_has_not_read_its_roles_after_a_restart_fails_no_start(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    cluster.api().inject(KubeFault::InternalError, "create", "jobs", 1);
    cluster.api().deny("create", "jobs");
    let (_, _, job) = ordered_job(&server).await;
    eventually("several calls are refused", async || (cluster.api().count("create", "jobs") >= 3).then_some(())).await;
    cluster.api().heal();
    cluster.created(&id(&job, "jobName")).await;
    let shown = server.get(&id(&job["poll"], "job")).await.ok();
    assert_eq!((&shown["phase"], &shown["attempt"]), (&json!("running"), &json!(1)), "{shown}");
}

/// Its start has not met the outage: only the watches have.
#[one_engine]
async fn a_job_that_is_ordered_after_an_outage_is_started_once_although_calls_are_refused_at_first(engine: Engine) {
    let mut cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    // The server has listed the cluster.
    let (_, _, before) = ordered_job(&server).await;
    cluster.created(&id(&before, "jobName")).await;
    cluster.api_mut().stop();
    tokio::time::sleep(LATER_LOOKS).await;
    cluster.api().deny("create", "jobs");
    cluster.api_mut().start_again().unwrap();
    let counted = cluster.api().count("create", "jobs");
    let (_, _, job) = ordered_job(&server).await;
    let refused = || cluster.api().count("create", "jobs") - counted;
    eventually("several calls are refused", async || (refused() >= 3).then_some(())).await;
    cluster.api().heal();
    cluster.created(&id(&job, "jobName")).await;
    let shown = server.get(&id(&job["poll"], "job")).await.ok();
    assert_eq!((&shown["phase"], &shown["attempt"]), (&json!("running"), &json!(1)), "{shown}");
}

#[both_engines]
async fn a_job_that_cannot_be_deleted_does_not_keep_others_from_being_created(engine: Engine) {
    let mut cluster = TestCluster::start();
    let mut server = cluster.server(engine).await;
    let (run_id, command_id, job) = ordered_job(&server).await;
    let name = id(&job, "jobName");
    let pod = cluster.pod_of(&name).await;
    let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
    runner.end(&command_id, "completed").await;
    runner.release().await;
    cluster.report(&pod, "Succeeded", &json!({"terminated": {"exitCode": 0}}));
    job_shows(&server, &job, "its end", |job| job["phase"] == "succeeded").await;
    // The Job begins again although its start has ended, and it cannot be deleted.
    cluster.api().inject(KubeFault::InternalError, "delete", "jobs", 1_000);
    assert!(cluster.patch("jobs", &name, &json!({"status": null})));
    // Shortly after the end of a start, its Job may look active only because the server's watch is late.
    tokio::time::sleep(LATER_LOOKS).await;
    assert_eq!(cluster.api().count("delete", "jobs"), 0);
    server.clock.advance_ms(5_001);
    eventually("it is to be deleted", async || (cluster.api().count("delete", "jobs") > 0).then_some(())).await;
    // Another job is claimed, and its server ends before the Job exists.
    cluster.api_mut().stop();
    let (run_id, command_id) = waiting_run(&server).await;
    let other = server.create_job(&run_id, &json!({"commandId": command_id})).await.with_status(201);
    job_shows(&server, &other, "it is claimed", |job| job["phase"] == "running").await;
    server.restart().await;
    server.clock.advance_ms(10_001);
    cluster.api_mut().start_again().unwrap();
    cluster.created(&id(&other, "jobName")).await;
    assert!(cluster.job(&name).is_some());
}

/// A server that has waited this long shows why, and another one creates the Job.
const PATIENCE_MS: i64 = 11_000;

#[test]
fn a_server_that_cannot_reach_the_cluster_leaves_the_job_that_another_one_created_recorded() {
    run(async {
        let cluster = TestCluster::start();
        let proxy = Proxy::start(cluster.api().address()).unwrap();
        let one = TestServer::with(Engine::Postgres, |setup| {
            cluster.choose(setup);
            setup.config.kubernetes.kubeconfig = Some(cluster.api().kubeconfig_via(proxy.address).unwrap());
        })
        .await;
        cluster.api().inject(KubeFault::InternalError, "create", "jobs", u32::MAX);
        let (_, _, job) = ordered_job(&one).await;
        job_shows(&one, &job, "that it is claimed", |job| job["phase"] == "running").await;
        proxy.refuse(true);
        proxy.cut_all();
        cluster.api().heal();
        one.clock.advance_ms(PATIENCE_MS);
        job_shows(&one, &job, "why it waits", |job| job["observed"]["reason"] == "ClusterUnavailable").await;
        let keys = one.config.server.data_dir.clone().unwrap();
        let direct = cluster.cluster.server_kubeconfig();
        let two: TestServer = one
            .start_another(|config| {
                config.secrets.key_file = Some(keys.join("secrets-key"));
                config.kubernetes.kubeconfig = Some(direct);
                // It does not repair at once what the first server has replaced.
                config.kubernetes.resync_ms = 2_000;
            })
            .await;
        let pod = cluster.pod_of(&id(&job, "jobName")).await;
        cluster.report(&pod, "Running", &json!({"running": {}}));
        let is_running = |job: &serde_json::Value| job["observed"]["phase"] == "running";
        job_shows(&two, &job, "its pod", is_running).await;
        let until = tokio::time::Instant::now() + LATER_ATTEMPTS;
        while tokio::time::Instant::now() < until {
            let shown = two.get(&id(&job["poll"], "job")).await.ok();
            assert!(is_running(&shown) && shown["podName"] == pod.as_str(), "{shown}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
}

#[test]
fn two_servers_make_one_job_and_both_see_its_end() {
    run(async {
        let cluster = TestCluster::any();
        let one = cluster.server(Engine::Postgres).await;
        let keys = one.config.server.data_dir.clone().unwrap();
        let two: TestServer =
            one.start_another(|config| config.secrets.key_file = Some(keys.join("secrets-key"))).await;
        let mut jobs = vec![];
        for _ in 0..5 {
            let (run_id, command_id) = waiting_run(&one).await;
            let body = json!({"commandId": command_id, "idempotencyKey": "k"});
            let (here, there) = tokio::join!(one.create_job(&run_id, &body), two.create_job(&run_id, &body));
            assert_eq!(here.ok()["jobName"], there.ok()["jobName"]);
            jobs.push(id(&one.create_job(&run_id, &body).await.with_status(200), "jobName"));
        }
        eventually("every Job exists", async || (cluster.job_names().len() >= jobs.len()).then_some(())).await;
        for name in &jobs {
            let pod = cluster.pod_of(name).await;
            cluster.report(&pod, "Failed", &json!({"terminated": {"exitCode": 1}}));
        }
        // Each is started once more, by either server, and never twice.
        for name in &jobs {
            cluster.created(&format!("{name}-2")).await;
        }
        assert_eq!(cluster.job_names().len(), 2 * jobs.len());
        // Both servers have seen each end. It is counted by the one whose report was recorded.
        let line = "ostler_jobs_ended_total{end=\"failed\"}";
        let counted = async || value(&one, line).await + value(&two, line).await;
        eventually("each end is counted", async || (counted().await >= jobs.len() as f64).then_some(())).await;
        tokio::time::sleep(LATER_LOOKS).await;
        assert_eq!(counted().await, jobs.len() as f64);
    });
}
