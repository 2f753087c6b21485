//! What callers see of runners in a cluster: how deleted Jobs end, names, waits, capacity, versions and hashes.

use ostler_protocol::FailureKind::StateConflict;
use serde_json::{Value, json};

use super::cluster::{TestCluster, job_shows, ordered_job, waiting_run};
use crate::harness::{Engine, TestServer, both_engines, eventually, id, run_body};

const KEY: &str = "pl4nted-key-0123456789";
const CODEX: &str = "/api/v1/provider-profiles/codex";

/// Waits until the server has recorded that the pod of this Job runs.
async fn runs(cluster: &TestCluster, server: &TestServer, job: &Value, name: &str) {
    let pod = cluster.pod_of(name).await;
    cluster.report(&pod, "Running", &json!({"running": {}}));
    let is_running = |job: &Value| job["observed"]["jobName"] == name && job["observed"]["phase"] == "running";
    job_shows(server, job, "that it runs", is_running).await;
}

#[both_engines]
async fn deleting_a_job_whose_runner_releases_its_run_is_no_failed_start(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    let (run_id, command_id, job) = ordered_job(&server).await;
    let first = id(&job, "jobName");
    let mut name = first.clone();
    for number in 2..=3 {
        runs(&cluster, &server, &job, &name).await;
        let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
        cluster.delete_job(&name);
        runner.release().await;
        server.clock.advance_ms(1);
        name = format!("{first}-{number}");
        cluster.created(&name).await;
    }
    assert_eq!(server.command(&run_id, &command_id).await["state"], "pending");
    let shown = server.get(&id(&job["poll"], "job")).await.ok();
    assert_eq!((&shown["attempt"], &shown["terminalSummary"]["status"]), (&json!(1), &json!("released")));
    assert_eq!(shown["terminalSummary"]["failureKind"], Value::Null);
    assert_eq!(shown["jobName"], name.as_str(), "the name of the current Job");
}

#[both_engines]
async fn a_runner_that_outlives_its_job_ends_well(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    let (run_id, command_id, job) = ordered_job(&server).await;
    let name = id(&job, "jobName");
    runs(&cluster, &server, &job, &name).await;
    let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
    runner.ack(&command_id).await;
    // Without its pod, as `kubectl delete --cascade=orphan` does it.
    cluster.delete_job(&name);
    runner.end(&command_id, "completed").await;
    runner.release().await;
    let ended = job_shows(&server, &job, "its end", |job| job["phase"] == "succeeded").await;
    assert_eq!((&ended["attempt"], &ended["terminalSummary"]["status"]), (&json!(1), &json!("released")));
    let observed = &ended["observed"];
    assert_eq!((&observed["phase"], &observed["reason"]), (&json!("unknown"), &json!("JobDeleted")));
}

#[both_engines]
async fn a_run_shows_why_the_pod_of_its_runner_does_not_start(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    let (run_id, command_id, job) = ordered_job(&server).await;
    let pod = cluster.pod_of(&id(&job, "jobName")).await;
    cluster.report(&pod, "Pending", &json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}));
    job_shows(&server, &job, "why it waits", |job| job["observed"]["reason"] == "ImagePullBackOff").await;
    let result = server.result(&run_id, &command_id).await;
    assert_eq!(result["liveness"]["podReason"], "ImagePullBackOff");
    let summary = id(&result["supervisor"], "summary");
    assert!(summary.contains("waiting for the pod of its runner: ImagePullBackOff"), "{summary}");
}

#[both_engines]
async fn backends_are_judged_by_the_cluster_and_not_by_the_servers_machine(engine: Engine) {
    let cluster = TestCluster::start();
    let server = TestServer::with(engine, |setup| {
        cluster.choose(setup);
        setup.config.agents.codex = Some("/bin/true".into());
        setup.config.kubernetes.active_jobs_max = 7;
    })
    .await;
    let key = json!({"apiKey": KEY});
    let set = server.call("PUT", &format!("{CODEX}/credential"), &key).await.with_status(200);
    assert_eq!((&set["ready"], &set["failureKind"]), (&json!(true), &Value::Null));
    ordered_job(&server).await;
    let list = server.get("/api/v1/backends").await.ok();
    assert_eq!((&list["codex"]["image"], &list["codex"]["problem"]), (&json!("ostler:test"), &Value::Null));
    let codex = list["backends"].as_array().unwrap().iter().find(|backend| backend["profile"] == "codex").unwrap();
    assert_eq!((&codex["available"], &codex["health"]), (&json!(true), &json!("healthy")));
    assert_eq!(codex["capacity"], json!({"runnersMax": 7, "runnersActive": 1}));
}

#[both_engines]
async fn a_rejected_change_is_followed_by_a_read_of_the_current_version(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    let set = server.call("PUT", &format!("{CODEX}/credential"), &json!({"apiKey": KEY})).await.with_status(200);
    let read = server.get(CODEX).await.ok();
    assert_eq!(read["resourceVersion"], set["resourceVersion"]);
    // Changed with another tool, while this server remembers what it has read.
    let change = json!({"metadata": {"annotations": {"theirs": "1"}}});
    assert!(cluster.patch("secrets", "agentrun-v01-provider-codex", &change));
    let body = json!({"apiKey": format!("{KEY}-2"), "resourceVersion": set["resourceVersion"]});
    let rejected = server.call("PUT", &format!("{CODEX}/credential"), &body).await;
    rejected.refused_by(StateConflict, "resource-version");
    let current = server.get(CODEX).await.ok();
    assert_ne!(current["resourceVersion"], set["resourceVersion"]);
    let body = json!({"apiKey": format!("{KEY}-2"), "resourceVersion": current["resourceVersion"]});
    server.call("PUT", &format!("{CODEX}/credential"), &body).await.with_status(200);
}

#[both_engines]
async fn the_hash_of_a_short_lived_variable_cannot_be_computed_by_others(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    let mut hashes = vec![];
    for _ in 0..2 {
        let (run_id, command_id) = waiting_run(&server).await;
        let order = json!({"commandId": command_id, "transientEnv": {"PIN": "1234"}});
        let job = server.create_job(&run_id, &order).await.with_status(201);
        hashes.push(id(&job["transientEnv"][0], "valueHash"));
    }
    // The beginning of the SHA-256 of 1234.
    assert!(!hashes.contains(&"03ac674216f3e15c".to_owned()), "{hashes:?}");
    assert_ne!(hashes[0], hashes[1], "a guess cannot be tried in another run");
}

#[both_engines]
async fn credentials_of_tools_are_mounted_whatever_the_backend_is(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    let mut body = run_body();
    let tool = json!({"name": "agentrun-v01-tool-github", "keys": ["token"]});
    body["executionPolicy"] = json!({"secretScope": {"toolCredentials": [{"tool": "github", "secretRef": tool}]}});
    let github = json!({"metadata": {"name": "agentrun-v01-tool-github"}, "stringData": {"token": KEY}});
    cluster.create("secrets", github).unwrap();
    let run_id = id(&server.post("/api/v1/runs", &body).await.with_status(201), "runId");
    let command_id = server.turn(&run_id, "hi").await;
    let job = server.create_job(&run_id, &json!({"commandId": command_id})).await.with_status(201);
    let created = eventually("the Job exists", async || cluster.job(&id(&job, "jobName"))).await;
    let volumes = created["spec"]["template"]["spec"]["volumes"].clone();
    assert!(volumes.as_array().unwrap().iter().any(|volume| volume["name"] == "tool-0"), "{volumes}");
}
