//! Provider profiles as Secrets of the cluster: their names and keys, the version as a lock, and what a pod gets of them.

use std::time::Duration;

use ostler_protocol::FailureKind::{SecretUnavailable, StateConflict};
use ostler_testkit::kube::KubeFault;
use serde_json::{Value, json};

use super::cluster::TestCluster;
use crate::harness::{Answer, Caller, Engine, both_engines, eventually, id, one_engine, run, run_body};

const KEY: &str = "pl4nted-key-0123456789";
const CODEX: &str = "agentrun-v01-provider-codex";

fn path(profile: &str) -> String {
    format!("/api/v1/provider-profiles/{profile}")
}

async fn put(caller: &Caller, profile: &str, body: Value) -> Answer {
    caller.call("PUT", &format!("{}/credential", path(profile)), &body).await
}

/// A run of Codex that names its credential.
fn run_of_codex() -> Value {
    let mut body = run_body();
    body["backendProfile"] = "codex".into();
    body["workspaceRef"] = json!({"kind": "none"});
    let secret = json!({"name": CODEX, "keys": ["auth.json", "config.toml"]});
    body["executionPolicy"] =
        json!({"secretScope": {"providerCredentials": [{"profile": "codex", "secretRef": secret}]}});
    body
}

#[both_engines]
async fn a_profile_is_one_secret_with_its_files_as_keys(engine: Engine) {
    let cluster = TestCluster::any();
    let server = cluster.server(engine).await;
    let ready = server.get("/health/readiness").await.ok();
    assert_eq!(ready["secretRefs"]["providerSecrets"], "kubernetes-secrets");
    let set = put(&server, "codex", json!({"apiKey": KEY})).await.with_status(200);
    let secret = cluster.object("secrets", CODEX).unwrap();
    let keys: Vec<_> = secret["data"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(keys, ["auth.json", "config.toml"]);
    assert_eq!(set["resourceVersion"], secret["metadata"]["resourceVersion"]);
    assert_eq!(secret["metadata"]["labels"]["app.kubernetes.io/managed-by"], "ostler");
    assert_eq!((&set["configured"], &set["secretRef"]["name"]), (&json!(true), &json!(CODEX)));
    // Another profile is another Secret, and neither is read by listing all.
    let config = "[ostler]\nagent = \"model\"\nbase_url = \"http://127.0.0.1:1/v1\"\nmodel = \"m\"\n";
    server.call("PUT", &format!("{}/config", path("mine")), &json!({"config": config})).await.with_status(200);
    assert!(cluster.object("secrets", "agentrun-v01-provider-mine").is_some());
    let listed = server.get("/api/v1/provider-profiles").await.ok();
    let names: Vec<_> = listed["providerProfiles"].as_array().unwrap().iter().map(|one| id(one, "profile")).collect();
    assert!(names.contains(&"mine".to_owned()) && names.contains(&"dsflash-go".to_owned()), "{names:?}");
    if let Some(api) = cluster.cluster.own() {
        assert_eq!(api.count("list", "secrets") + api.count("watch", "secrets"), 0);
    }
    // Neither the server's disk nor its store contains the credential.
    assert!(server.everything_kept().iter().all(|(_, bytes)| !bytes.windows(7).any(|part| part == b"pl4nted")));
    server.send(server.request("DELETE", &path("mine"))).await.with_status(200);
    assert_eq!(cluster.object("secrets", "agentrun-v01-provider-mine"), None);
    server.get(&path("mine")).await.with_status(404);
}

#[both_engines]
async fn the_version_of_the_secret_is_the_lock(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    let first = put(&server, "codex", json!({"apiKey": KEY})).await.with_status(200);
    let version = id(&first, "resourceVersion");
    // Changed with another tool.
    let change = json!({"metadata": {"annotations": {"theirs": "1"}}});
    assert!(cluster.patch("secrets", CODEX, &change));
    let body = json!({"apiKey": format!("{KEY}-2"), "resourceVersion": version});
    put(&server, "codex", body).await.refused_by(StateConflict, "resource-version");
    put(&server, "codex", json!({"apiKey": format!("{KEY}-2")})).await.with_status(200);
    // A change between the server's read and its write: the server reads again, and neither change is lost.
    cluster.api().reset_calls();
    cluster.api().inject(KubeFault::Delay(Duration::from_millis(300)), "update", "secrets", 1);
    let between = async {
        eventually("the write is on its way", async || (cluster.api().faults_waiting() == 0).then_some(())).await;
        assert!(cluster.patch("secrets", CODEX, &json!({"metadata": {"annotations": {"theirs": "2"}}})));
    };
    let (set, ()) = tokio::join!(put(&server, "codex", json!({"apiKey": format!("{KEY}-3")})), between);
    let set = set.with_status(200);
    assert_eq!(cluster.api().count("update", "secrets"), 2);
    let secret = cluster.object("secrets", CODEX).unwrap();
    assert_eq!(secret["metadata"]["annotations"]["theirs"], "2");
    assert_eq!(secret["metadata"]["resourceVersion"], set["resourceVersion"]);
}

/// Whatever the cluster does first: a profile that exists is listed, so that it can be found and deleted.
#[one_engine]
async fn a_profile_that_is_set_while_it_is_deleted_is_listed(engine: Engine) {
    const NAME: &str = "agentrun-v01-provider-mine";
    let (soon, late) = (Duration::from_millis(200), Duration::from_millis(500));
    let config = json!({"config": "[ostler]\nagent = \"model\"\nbase_url = \"http://127.0.0.1:1\"\nmodel = \"m\"\n"});
    // How long the removal of the name takes, and the creation of the Secret.
    for (removal, creation) in [(late, Duration::ZERO), (soon, late)] {
        let cluster = TestCluster::start();
        let server = cluster.server(engine).await;
        let set = async || server.call("PUT", &format!("{}/config", path("mine")), &config).await.with_status(200);
        set().await;
        cluster.api().inject(KubeFault::Delay(removal), "update", "secrets", 1);
        cluster.api().inject(KubeFault::Delay(creation), "create", "secrets", 1);
        let is_deleted = async || cluster.object("secrets", NAME).is_none().then_some(());
        let set_again = async {
            eventually("the Secret is deleted", is_deleted).await;
            set().await
        };
        let (deleted, _) = tokio::join!(server.send(server.request("DELETE", &path("mine"))), set_again);
        deleted.with_status(200);
        assert_eq!(cluster.api().faults_waiting(), 0);
        assert!(cluster.object("secrets", NAME).is_some());
        let listed = server.get("/api/v1/provider-profiles").await.ok();
        let mut profiles = listed["providerProfiles"].as_array().unwrap().iter();
        assert!(profiles.any(|one| one["profile"] == "mine"), "removal {removal:?}, creation {creation:?}: {listed}");
    }
}

#[both_engines]
async fn a_missing_secret_is_unavailable_and_one_made_by_hand_is_used(engine: Engine) {
    let cluster = TestCluster::any();
    let server = cluster.server(engine).await;
    let run_id = id(&server.post("/api/v1/runs", &run_of_codex()).await.with_status(201), "runId");
    let command_id = server.turn(&run_id, "hi").await;
    let order = json!({"commandId": command_id});
    server.create_job(&run_id, &order).await.refused(SecretUnavailable);
    let made = json!({"metadata": {"name": CODEX}, "stringData": {
        "auth.json": json!({"OPENAI_API_KEY": KEY}).to_string(), "config.toml": "model = \"m\"\n"}});
    cluster.create("secrets", made).unwrap();
    // What was read is used again for a second.
    let job = eventually("the Secret is seen", async || {
        let answer = server.create_job(&run_id, &order).await;
        (answer.status == 201).then(|| answer.with_status(201))
    })
    .await;
    let name = id(&job, "jobName");
    let own = eventually("the Secret of the Job exists", async || cluster.object("secrets", &name)).await;
    // The pod has its files by a read-only projection of the Job's own Secret, from which the runner fills its home.
    let pod = cluster.created(&name).await["spec"]["template"]["spec"].clone();
    let secrets = pod["volumes"].as_array().unwrap().iter().find(|one| one["name"] == "secrets").unwrap();
    let paths: Vec<_> = secrets["secret"]["items"].as_array().unwrap().iter().map(|one| id(one, "path")).collect();
    assert_eq!(paths, ["home/auth.json", "home/config.toml"]);
    assert!(own["data"]["home-0"].is_string() && own["data"]["home-1"].is_string());
    assert!(!pod.to_string().contains("pl4nted"));
}

#[both_engines]
async fn repeated_requests_get_their_first_response_while_the_secret_is_missing(engine: Engine) {
    let cluster = TestCluster::any();
    let server = cluster.server(engine).await;
    put(&server, "codex", json!({"apiKey": KEY})).await.with_status(200);
    let run_id = id(&server.post("/api/v1/runs", &run_of_codex()).await.with_status(201), "runId");
    let turn = |key: &str| json!({"type": "turn", "payload": {"prompt": "hi"}, "idempotencyKey": key});
    let command_id = id(&server.submit(&run_id, &turn("turn-1")).await.with_status(201), "commandId");
    let order = |key: &str| json!({"commandId": command_id, "standing": true, "idempotencyKey": key});
    let job = server.create_job(&run_id, &order("job-1")).await.with_status(201);
    // The Job has its own copy of the files.
    cluster.created(&id(&job, "jobName")).await;
    assert!(cluster.remove("secrets", CODEX));
    // What was read is used again for a second. An order for a command that does not exist creates nothing.
    let absent = json!({"commandId": format!("cmd_{:032x}", 1)});
    eventually("the Secret is seen to be missing", async || {
        let answer = server.create_job(&run_id, &absent).await;
        (answer.body["failureKind"] == "secret-unavailable").then_some(())
    })
    .await;
    server.submit(&run_id, &turn("turn-2")).await.refused(SecretUnavailable);
    server.create_job(&run_id, &order("job-2")).await.refused(SecretUnavailable);
    assert_eq!(server.submit(&run_id, &turn("turn-1")).await.with_status(200)["commandId"], command_id.as_str());
    let again = server.create_job(&run_id, &order("job-1")).await.with_status(200);
    assert_eq!(again["runnerJobId"], job["runnerJobId"]);
}

#[both_engines]
async fn a_refused_call_is_an_unavailable_secret_with_the_reason(engine: Engine) {
    let cluster = TestCluster::start();
    let server = cluster.server(engine).await;
    cluster.api().deny("get", "secrets");
    put(&server, "codex", json!({"apiKey": KEY})).await.refused_by(SecretUnavailable, "secret-denied");
    let shown = server.get(&path("codex")).await;
    shown.refused_by(SecretUnavailable, "secret-denied");
    cluster.api().heal();
    put(&server, "codex", json!({"apiKey": KEY})).await.with_status(200);
}

#[test]
fn servers_of_one_cluster_share_their_profiles() {
    run(async {
        let cluster = TestCluster::any();
        let one = cluster.server(Engine::Postgres).await;
        let keys = one.config.server.data_dir.clone().unwrap();
        let two = one.start_another(|config| config.secrets.key_file = Some(keys.join("secrets-key"))).await;
        let set = put(&one, "codex", json!({"apiKey": KEY})).await.with_status(200);
        let seen = eventually("the other server sees it", async || {
            let seen = two.get(&path("codex")).await.ok();
            (seen["configured"] == true).then_some(seen)
        })
        .await;
        assert_eq!(seen["resourceVersion"], set["resourceVersion"]);
    });
}
