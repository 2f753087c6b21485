//! The calls of a server and the rights of its role are the same. In all other tests of this folder, too, the API server refuses
//! what the role does not grant.

use std::collections::BTreeSet;

use ostler_server::{
    config::{Environment, KubernetesSection},
    kubernetes::{Cluster, Right},
};
use ostler_testkit::manifests::rendered;
use serde_json::{Value, json};

use super::cluster::{TestCluster, job_shows, ordered_job};
use crate::deployment::manifests::root;
use crate::harness::{Engine, TestServer, eventually, id, one_engine};

const PROFILE: &str = "/api/v1/provider-profiles/mine";
const MODEL: &str = "[ostler]\nagent = \"model\"\nbase_url = \"http://127.0.0.1:1\"\nmodel = \"one\"\n";

#[one_engine]
async fn a_server_uses_every_right_of_its_role_and_needs_no_other(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    // Secrets: a profile is created, read, changed and deleted.
    for model in ["one", "two"] {
        let config = format!("[ostler]\nagent = \"model\"\nbase_url = \"http://127.0.0.1:1\"\nmodel = \"{model}\"\n");
        server.call("PUT", &format!("{PROFILE}/config"), &json!({"config": config})).await.with_status(200);
    }
    server.send(server.request("DELETE", PROFILE)).await.with_status(200);
    // Claims: a session with storage that an agent has used, then a pod for it, then its eviction.
    let session = json!({"tenantId": "hwlab", "sessionId": "s", "backendProfile": "scripted", "storageKind": "pvc"});
    server.post("/api/v1/sessions", &session).await.with_status(201);
    let run_id = server.create_run_with(|body| body["sessionRef"] = json!({"sessionId": "s"})).await;
    let command_id = server.turn(&run_id, "hi").await;
    let found = json!({"runId": run_id, "sizeBytes": 7, "filesCount": 1, "sha256": null});
    server.post("/api/v1/sessions/s/storage/refresh", &found).await.with_status(200);
    let job = server.create_job(&run_id, &json!({"commandId": command_id})).await.with_status(201);
    let name = id(&job, "jobName");
    let pod = cluster.pod_of(&name).await;
    cluster.report(&pod, "Running", &json!({"running": {}}));
    let shown = job_shows(&server, &job, "that it runs", |job| job["observed"]["phase"] == "running").await;
    server.get(&id(&shown, "logPath")).await.ok();
    let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
    runner.end(&command_id, "completed").await;
    runner.release().await;
    // Its Job is deleted by another program, which a read confirms.
    cluster.delete_job(&name);
    job_shows(&server, &job, "its end", |job| job["phase"] == "succeeded").await;
    server.send(server.request("DELETE", "/api/v1/sessions/s/storage")).await.with_status(200);
    // The Job of a cancelled command is deleted before its pod has started.
    let (_, command_id, job) = ordered_job(&server).await;
    let name = id(&job, "jobName");
    cluster.created(&name).await;
    server.cancel_command(&command_id).await;
    server.clock.advance_ms(11_000);
    eventually("the Job is deleted", async || cluster.job(&name).is_none().then_some(())).await;

    let pair = |right: &Right| (right.verb().to_owned(), right.resource().to_owned());
    let rights: BTreeSet<_> = Right::ALL.iter().map(pair).collect();
    let calls: BTreeSet<_> = cluster.api().calls().into_keys().collect();
    assert_eq!(calls, rights);
}

/// Only the prefix decides, so a server whose prefix is not that of the policy starts no runner.
#[one_engine]
async fn a_server_writes_secrets_of_its_own_job_prefix_under_the_policy_of_its_overlay(engine: Engine) {
    let cluster = TestCluster::start();
    let overlay = rendered(&root(), "agentrun");
    cluster.api().limit_secret_names(&std::fs::read_to_string(overlay).unwrap());
    let server = TestServer::with(engine, |setup| {
        cluster.choose(setup);
        setup.config.kubernetes.job_prefix = "agentrun-v01-run".into();
    })
    .await;
    let (_, _, job) = ordered_job(&server).await;
    let name = id(&job, "jobName");
    assert!(name.starts_with("agentrun-v01-run-"), "{name}");
    eventually("the Secret of the Job exists", async || cluster.object("secrets", &name)).await;
    server.call("PUT", &format!("{PROFILE}/config"), &json!({"config": MODEL})).await.with_status(200);
    server.send(server.request("DELETE", PROFILE)).await.with_status(200);

    let other = cluster.server(engine).await;
    let (_, _, job) = ordered_job(&other).await;
    assert!(id(&job, "jobName").starts_with("ostler-run-"));
    let is_refused = |job: &Value| job["terminalSummary"]["failureKind"] == "infra-failed";
    job_shows(&other, &job, "that its Secret was refused", is_refused).await;
    assert_eq!(cluster.object("secrets", &id(&job, "jobName")), None);
}

#[tokio::test]
async fn the_doctor_checks_each_right_of_the_server_and_no_other() {
    let cluster = TestCluster::start();
    let api = cluster.api();
    let section = KubernetesSection { kubeconfig: Some(api.server_kubeconfig()), ..KubernetesSection::default() };
    let opened = Cluster::open(&section, &Environment::default()).await.unwrap();
    assert!(opened.missing_rights().await.unwrap().is_empty());
    assert_eq!(api.count("create", "selfsubjectaccessreviews"), Right::ALL.len() as u64);
    for right in Right::ALL {
        api.deny(right.verb(), right.resource());
        assert_eq!(opened.missing_rights().await.unwrap(), [*right]);
        api.heal();
    }
}

#[tokio::test]
async fn the_doctor_needs_no_more_than_the_role_of_the_server() {
    let cluster = TestCluster::start();
    let kubeconfig = Some(cluster.api().server_kubeconfig());
    let section = KubernetesSection { kubeconfig, ..KubernetesSection::default() };
    let opened = Cluster::open(&section, &Environment::default()).await.unwrap();
    assert!(opened.find_storage_class(None).await.is_err(), "storage classes are outside of the namespace");
    assert!(opened.claim_class(&section).await.unwrap().assigned.is_some());
    assert_eq!(opened.image_pulls("ostler:test").await.unwrap().pulled, 0);
}
