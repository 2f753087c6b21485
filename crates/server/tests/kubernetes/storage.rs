//! Storage of sessions on volume claims: their names and settings, how pods get them, and a cluster that fails at the same time.
//! `session_storage` has what clients see of it.

use ostler_protocol::FailureKind::*;
use ostler_testkit::kube::KubeFault;
use serde_json::{Value, json};

use super::cluster::{TestCluster, job_shows};
use crate::harness::{Engine, TestServer, both_engines, eventually, id, of_program};

const CLAIMS: &str = "persistentvolumeclaims";

fn body(session_id: &str) -> Value {
    json!({"tenantId": "hwlab", "sessionId": session_id, "backendProfile": "scripted", "storageKind": "pvc"})
}

async fn session(server: &TestServer, session_id: &str) -> Value {
    server.post("/api/v1/sessions", &body(session_id)).await.with_status(201)
}

async fn storage(server: &TestServer, session_id: &str) -> Value {
    server.get(&format!("/api/v1/sessions/{session_id}/storage")).await.ok()
}

/// A run of the session with a command that waits.
async fn waiting(server: &TestServer, session_id: &str) -> (String, String) {
    let run_id = server.create_run_with(|body| body["sessionRef"] = json!({"sessionId": session_id})).await;
    let command_id = server.turn(&run_id, "hi").await;
    (run_id, command_id)
}

/// An agent has left something in the storage.
async fn used(server: &TestServer, session_id: &str, run_id: &str) {
    let found = json!({"runId": run_id, "sizeBytes": 7, "filesCount": 1, "sha256": null});
    server.post(&format!("/api/v1/sessions/{session_id}/storage/refresh"), &found).await.with_status(200);
}

fn claim_names(cluster: &TestCluster) -> Vec<String> {
    cluster.objects(CLAIMS).iter().map(|claim| id(&claim["metadata"], "name")).collect()
}

fn variable(pod: &Value, name: &str) -> Value {
    let all = pod["containers"][0]["env"].as_array().unwrap();
    all.iter().find(|variable| variable["name"] == name).map(|found| found["value"].clone()).unwrap_or_default()
}

/// What a pod of the Job mounts as its storage.
fn mounted(job: &Value) -> Option<String> {
    let pod = &job["spec"]["template"]["spec"];
    let volume = pod["volumes"].as_array()?.iter().find(|volume| volume["name"] == "storage")?;
    Some(id(&volume["persistentVolumeClaim"], "claimName"))
}

#[both_engines]
async fn a_session_is_created_with_a_claim_of_the_configured_name_size_and_class(engine: Engine) {
    let cluster = TestCluster::start();
    let fast = json!({"metadata": {"name": "fast"}, "provisioner": "testkit"});
    cluster.api().create("storageclasses", "", fast).unwrap();
    let server = TestServer::with(engine, |setup| {
        cluster.choose(setup);
        setup.config.kubernetes.storage_prefix = "agentrun-v01-session".into();
        setup.config.kubernetes.storage_class = Some("fast".into());
    })
    .await;
    let created = session(&server, "mine").await;
    let name = id(&created, "storagePvcName");
    assert!(name.starts_with("agentrun-v01-session-") && name.len() == 53, "{name}");
    assert_eq!(
        (&created["storageKind"], &created["storageNamespace"]),
        (&json!("pvc"), &json!(cluster.cluster.namespace()))
    );
    let claim = cluster.object(CLAIMS, &name).unwrap();
    let spec = &claim["spec"];
    assert_eq!((&spec["accessModes"], &spec["storageClassName"]), (&json!(["ReadWriteOnce"]), &json!("fast")));
    assert_eq!(spec["resources"]["requests"]["storage"], "1Gi");
    assert_eq!(claim["metadata"]["labels"]["app.kubernetes.io/managed-by"], "ostler");
    eventually("it is bound", async || (storage(&server, "mine").await["pvcPhase"] == "Bound").then_some(())).await;
    let shown = server.get("/api/v1/sessions/mine").await.ok();
    assert_eq!((&shown["storagePvcName"], &shown["storagePvcPhase"]), (&json!(name), &json!("Bound")));
    let listed = server.get("/api/v1/sessions?state=all").await.ok();
    assert_eq!(listed["sessions"][0]["storagePvcPhase"], "Bound");
    assert_eq!(storage(&server, "mine").await["pvcName"], name.as_str());
    let trace = server.get("/api/v1/sessions/mine/trace").await.ok();
    let fact = &trace["events"][0]["payload"];
    assert_eq!((&fact["pvcName"], &fact["pvcNamespace"]), (&json!(name), &json!(cluster.cluster.namespace())));
    // The same request again makes no second one.
    server.post("/api/v1/sessions", &body("mine")).await.with_status(200);
    assert_eq!(claim_names(&cluster), [name]);
}

#[both_engines]
async fn a_lost_response_makes_no_second_claim(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    cluster.api().inject(KubeFault::LostAnswer, "create", CLAIMS, 1);
    let name = id(&session(&server, "mine").await, "storagePvcName");
    let (run_id, command_id) = waiting(&server, "mine").await;
    let job = server.create_job(&run_id, &json!({"commandId": command_id})).await.with_status(201);
    assert_eq!(mounted(&cluster.created(&id(&job, "jobName")).await).as_ref(), Some(&name));
    assert_eq!((claim_names(&cluster), cluster.api().faults_waiting()), (vec![name], 0));
}

#[both_engines]
async fn the_first_runner_creates_the_claim_that_an_absent_cluster_could_not(engine: Engine) {
    let mut cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    eventually("the cluster was listed", async || (cluster.api().count("list", "pods") > 0).then_some(())).await;
    cluster.api_mut().stop();
    let created = session(&server, "mine").await;
    assert_eq!((&created["storageKind"], &created["storagePvcPhase"]), (&json!("pvc"), &Value::Null));
    let (run_id, command_id) = waiting(&server, "mine").await;
    let job = server.create_job(&run_id, &json!({"commandId": command_id})).await.with_status(201);
    assert_eq!(claim_names(&cluster), [""; 0]);
    cluster.api_mut().start_again().unwrap();
    let created_job = cluster.created(&id(&job, "jobName")).await;
    assert_eq!(claim_names(&cluster), [mounted(&created_job).unwrap()]);
}

#[both_engines]
async fn a_refusal_of_a_claim_by_the_cluster_is_returned_and_the_same_request_can_be_repeated(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    cluster.api().deny("create", CLAIMS);
    let refused = server.post("/api/v1/sessions", &body("mine")).await.refused_by(InfraFailed, "cluster-call");
    assert!(refused.message.contains("refused"), "{}", refused.message);
    cluster.api().heal();
    let name = id(&server.post("/api/v1/sessions", &body("mine")).await.with_status(200), "storagePvcName");
    assert_eq!(claim_names(&cluster), [name]);
}

#[both_engines]
async fn a_pod_gets_the_claim_of_its_session_and_the_next_one_the_same(engine: Engine) {
    let cluster = TestCluster::any();
    let server = cluster.server(engine).await;
    let name = id(&session(&server, "mine").await, "storagePvcName");
    for number in 1..=2 {
        let (run_id, command_id) = waiting(&server, "mine").await;
        let job = server.create_job(&run_id, &json!({"commandId": command_id})).await.with_status(201);
        let created = cluster.created(&id(&job, "jobName")).await;
        assert_eq!(mounted(&created).as_ref(), Some(&name), "run {number}");
        let pod = &created["spec"]["template"]["spec"];
        for (variable_name, value) in [
            ("AGENTRUN_SESSION_PVC_NAME", name.as_str()),
            ("AGENTRUN_SESSION_PVC_NAMESPACE", cluster.cluster.namespace()),
            ("AGENTRUN_SESSION_PVC_MOUNT_PATH", "/storage"),
            ("AGENTRUN_CODEX_ROLLOUT_SUBDIR", "sessions"),
        ] {
            assert_eq!(variable(pod, variable_name), value, "{variable_name}");
        }
        let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
        used(&server, "mine", &run_id).await;
        runner.end(&command_id, "completed").await;
        runner.release().await;
        let pod = cluster.pod_of(&id(&job, "jobName")).await;
        cluster.report(&pod, "Succeeded", &json!({"terminated": {"exitCode": 0}}));
        job_shows(&server, &job, "its end", |job| job["phase"] == "succeeded").await;
    }
    assert_eq!(claim_names(&cluster), [name]);
}

#[both_engines]
async fn a_run_of_a_program_gets_a_claim_and_one_without_files_gets_none(engine: Engine) {
    let cluster = TestCluster::any();
    let server = cluster.server(engine).await;
    server.equip().await;
    let (run_id, _) = server.start_with("hi", of_program).await;
    let session_id = id(&server.run(&run_id).await, "sessionId");
    eventually("the claim exists", async || (claim_names(&cluster).len() == 1).then_some(())).await;
    let job = eventually("the Job exists", async || cluster.objects("jobs").pop()).await;
    assert_eq!(mounted(&job), Some(claim_names(&cluster).remove(0)));
    assert_eq!(storage(&server, &session_id).await["storageKind"], "pvc");
    let (run_id, command_id) = super::cluster::waiting_run(&server).await;
    let plain = server.create_job(&run_id, &json!({"commandId": command_id})).await.with_status(201);
    assert_eq!(mounted(&cluster.created(&id(&plain, "jobName")).await), None);
    assert_eq!(claim_names(&cluster).len(), 1);
}

#[both_engines]
async fn no_job_is_created_for_a_claim_that_vanished_after_the_order(engine: Engine) {
    let mut cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    let name = id(&session(&server, "mine").await, "storagePvcName");
    let (run_id, command_id) = waiting(&server, "mine").await;
    used(&server, "mine", &run_id).await;
    eventually("the claim is seen", async || (storage(&server, "mine").await["pvcPhase"] == "Bound").then_some(()))
        .await;
    eventually("the cluster was listed", async || (cluster.api().count("list", "pods") > 0).then_some(())).await;
    cluster.api_mut().stop();
    let job = server.create_job(&run_id, &json!({"commandId": command_id})).await.with_status(201);
    assert!(cluster.remove(CLAIMS, &name));
    cluster.api_mut().start_again().unwrap();
    let failed = job_shows(&server, &job, "that it failed", |job| job["phase"] == "failed").await;
    assert_eq!(failed["terminalSummary"]["failureKind"], "session-store-evicted");
    let command = server.command(&run_id, &command_id).await;
    let failure = &command["terminal"]["failureKind"];
    assert_eq!((&command["state"], failure), (&json!("failed"), &json!("session-store-evicted")));
    assert_eq!(cluster.job_names(), [""; 0]);
    let turn = json!({"type": "turn", "payload": {"prompt": "again"}});
    server.submit(&run_id, &turn).await.refused_by(SessionStoreEvicted, "storage-evicted");
    assert_eq!(storage(&server, "mine").await["storageKind"], "evicted");
}

#[both_engines]
async fn a_claim_that_was_restored_without_its_label_ends_no_session(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    let name = id(&session(&server, "mine").await, "storagePvcName");
    let (run_id, command_id) = waiting(&server, "mine").await;
    used(&server, "mine", &run_id).await;
    let labels = cluster.object(CLAIMS, &name).unwrap()["metadata"]["labels"].clone();
    assert!(cluster.remove(CLAIMS, &name));
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    cluster.create(CLAIMS, json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    eventually("its removal is seen", async || storage(&server, "mine").await["pvcPhase"].is_null().then_some(()))
        .await;
    let order = json!({"commandId": command_id});
    let refused = server.create_job(&run_id, &order).await.refused_by(InfraFailed, "cluster-call");
    let missing = format!("the label ostler.dev/session={}", labels["ostler.dev/session"].as_str().unwrap());
    assert!(refused.message.contains(&missing), "{}", refused.message);
    assert_eq!(storage(&server, "mine").await["storageKind"], "pvc");
    assert!(cluster.patch(CLAIMS, &name, &json!({"metadata": {"labels": labels}})));
    let job = server.create_job(&run_id, &order).await.with_status(201);
    assert_eq!(mounted(&cluster.created(&id(&job, "jobName")).await), Some(name));
}

#[both_engines]
async fn the_claim_of_a_session_at_work_is_not_deleted(engine: Engine) {
    let cluster = TestCluster::any();
    let server = cluster.server(engine).await;
    let name = id(&session(&server, "mine").await, "storagePvcName");
    let (run_id, command_id) = waiting(&server, "mine").await;
    let job = server.create_job(&run_id, &json!({"commandId": command_id})).await.with_status(201);
    let job_name = id(&job, "jobName");
    let pod = cluster.pod_of(&job_name).await;
    let evict = || server.request("DELETE", "/api/v1/sessions/mine/storage");
    server.send(evict()).await.refused(SessionBusy);
    let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
    runner.end(&command_id, "completed").await;
    runner.release().await;
    cluster.report(&pod, "Succeeded", &json!({"terminated": {"exitCode": 0}}));
    let evicted = server.send(evict()).await.with_status(200);
    assert_eq!((&evicted["storageKind"], &evicted["pvcName"]), (&json!("evicted"), &json!(name)));
    eventually("it is deleted", async || cluster.object(CLAIMS, &name).is_none().then_some(())).await;
}

#[both_engines]
async fn the_sweep_finds_claims_that_could_not_be_deleted_and_leaves_those_of_others(engine: Engine) {
    let cluster = TestCluster::start();
    let server = TestServer::with(engine, |setup| {
        cluster.choose(setup);
        setup.config.sessions.gc_interval_ms = 20;
    })
    .await;
    let name = id(&session(&server, "mine").await, "storagePvcName");
    let labels = json!({"app.kubernetes.io/managed-by": "ostler", "ostler.dev/session": format!("ses_{:032x}", 7)});
    let foreign = json!({
        "metadata": {"name": "ostler-session-of-others", "labels": labels},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    });
    cluster.create(CLAIMS, foreign).unwrap();
    cluster.api().inject(KubeFault::InternalError, "delete", CLAIMS, 2);
    let evict = server.request("DELETE", "/api/v1/sessions/mine/storage");
    assert_eq!(server.send(evict).await.with_status(200)["storageKind"], "evicted");
    eventually("it is deleted", async || cluster.object(CLAIMS, &name).is_none().then_some(())).await;
    assert_eq!(claim_names(&cluster), ["ostler-session-of-others"], "another installation may share the namespace");
    assert_eq!(cluster.api().faults_waiting(), 0);
}
