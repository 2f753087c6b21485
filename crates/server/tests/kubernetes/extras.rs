//! What an order adds for its one job: an image, short-lived variables, credentials of tools. And what the doctor sees.

use ostler_protocol::FailureKind::{PayloadTooLarge, SchemaInvalid, TenantPolicyDenied};
use ostler_server::{
    config::{Environment, KubernetesSection},
    kubernetes::{Cluster, Right},
};
use ostler_testkit::kube::STORAGE_CLASS;
use serde_json::{Value, json};

use super::cluster::{TestCluster, job_shows, waiting_run};
use crate::harness::{Engine, TestServer, both_engines, eventually, id, one_engine, run_body};

const VALUE: &str = "pl4nted-token-0123456789";

fn pinned(name: &str) -> String {
    format!("{name}@sha256:{}", "0123456789abcdef".repeat(4))
}

/// A cluster whose server takes images of one more repository.
async fn server_of(cluster: &TestCluster, engine: Engine) -> TestServer {
    TestServer::with(engine, |setup| {
        cluster.choose(setup);
        setup.config.kubernetes.image_repositories = vec!["registry.example/agents".into()];
    })
    .await
}

#[both_engines]
async fn a_job_may_name_an_image_that_is_pinned_and_listed(engine: Engine) {
    let cluster = TestCluster::any();
    let server = server_of(&cluster, engine).await;
    let (run_id, command_id) = waiting_run(&server).await;
    let order = |image: &str| json!({"commandId": command_id, "backendImageRef": {"image": image}});
    for tag in ["registry.example/agents", "registry.example/agents:1.2", "registry.example/agents@sha256:12"] {
        server.create_job(&run_id, &order(tag)).await.refused_by(SchemaInvalid, "backend-image-shape");
    }
    let foreign = order(&pinned("registry.example/other"));
    server.create_job(&run_id, &foreign).await.refused_by(TenantPolicyDenied, "backend-image-denied");
    let image = pinned("registry.example/agents:1.2");
    let job = server.create_job(&run_id, &order(&image)).await.with_status(201);
    assert_eq!(job["backendImageRef"], json!({"image": image}));
    let created = cluster.created(&id(&job, "jobName")).await;
    assert_eq!(created["spec"]["template"]["spec"]["containers"][0]["image"], image.as_str());
    // Another image of the configured repository needs no entry.
    let (run_id, command_id) = waiting_run(&server).await;
    let own = json!({"commandId": command_id, "backendImageRef": {"image": pinned("ostler")}});
    server.create_job(&run_id, &own).await.with_status(201);
}

#[both_engines]
async fn short_lived_variables_are_shown_by_hash_and_stored_sealed(engine: Engine) {
    let cluster = TestCluster::any();
    let server = server_of(&cluster, engine).await;
    let (run_id, command_id) = waiting_run(&server).await;
    let order = |variables: Value| json!({"commandId": command_id, "idempotencyKey": "k", "transientEnv": variables});
    server
        .create_job(&run_id, &order(json!({"HTTPS_PROXY": "http://192.0.2.1"})))
        .await
        .refused_by(SchemaInvalid, "transient-env-shape");
    let long = "x".repeat(16 * 1024 + 1);
    server.create_job(&run_id, &order(json!({"A": long}))).await.refused_by(PayloadTooLarge, "transient-env-size");
    let answer = server.create_job(&run_id, &order(json!({"GH_TOKEN": VALUE}))).await;
    assert!(!answer.text.contains("pl4nted"), "{}", answer.text);
    let job = answer.with_status(201);
    let shown = job["transientEnv"].as_array().unwrap();
    assert_eq!((shown.len(), &shown[0]["name"]), (1, &json!("GH_TOKEN")));
    assert_eq!(shown[0]["valueHash"].as_str().unwrap().len(), 16);
    // The same again is the same job; another value under the same key is refused.
    server.create_job(&run_id, &order(json!({"GH_TOKEN": VALUE}))).await.with_status(200);
    server.create_job(&run_id, &order(json!({"GH_TOKEN": "other"}))).await.with_status(409);
    let name = id(&job, "jobName");
    let secret = eventually("the Secret exists", async || cluster.object("secrets", &name)).await;
    assert!(secret["data"]["backend"].is_string());
    assert!(!cluster.created(&name).await.to_string().contains("pl4nted"));
    let stored = server.store("SELECT extras FROM runner_jobs").await.join("\n");
    assert!(stored.contains("sealed") && !stored.contains("pl4nted"), "{stored}");
    assert!(server.everything_kept().iter().all(|(_, bytes)| !bytes.windows(7).any(|part| part == b"pl4nted")));
    // What the backend reports of them is redacted.
    let pod = cluster.pod_of(&name).await;
    let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
    runner.ack(&command_id).await;
    runner.say(&command_id, &format!("the token is {VALUE}")).await;
    runner.end(&command_id, "completed").await;
    runner.release().await;
    let events = server.events(&run_id).await;
    assert!(events.iter().all(|event| !event.to_string().contains("pl4nted")));
    // After the end, the values are gone.
    cluster.report(&pod, "Succeeded", &json!({"terminated": {"exitCode": 0}}));
    let ended = job_shows(&server, &job, "its end", |job| job["phase"] == "succeeded").await;
    assert_eq!(ended["transientEnv"], job["transientEnv"]);
    let stored = server.store("SELECT extras FROM runner_jobs").await.join("\n");
    assert!(!stored.contains("sealed"), "{stored}");
}

/// Codex gives variables to its tools only. A program that speaks ACP gets them itself, with the operator's key.
#[one_engine]
async fn an_agent_that_gets_variables_itself_gets_credentials_only(engine: Engine) {
    let cluster = TestCluster::start();
    let server = server_of(&cluster, engine).await;
    let files = json!({"auth.json": "{\"OPENAI_API_KEY\": \"k-0123456789\"}",
        "config.toml": "[ostler]\nagent = \"acp\"\ncommand = [\"agent\"]\n"});
    let path = "/api/v1/provider-profiles/mine/credential";
    server.call("PUT", path, &json!({"files": files})).await.with_status(200);
    server.equip().await;
    for (profile, is_accepted) in [("mine", false), ("codex", true)] {
        let secret = json!({"name": format!("agentrun-v01-provider-{profile}"), "keys": ["auth.json", "config.toml"]});
        let run_id = server
            .create_run_with(|body| {
                body["backendProfile"] = profile.into();
                body["executionPolicy"] =
                    json!({"secretScope": {"providerCredentials": [{"profile": profile, "secretRef": secret}]}});
            })
            .await;
        let command_id = server.turn(&run_id, "hi").await;
        let order = |name: &str| json!({"commandId": command_id, "transientEnv": {name: VALUE}});
        let answer = server.create_job(&run_id, &order("OPENAI_BASE_URL")).await;
        if is_accepted {
            answer.with_status(201);
            continue;
        }
        answer.refused_by(SchemaInvalid, "transient-env-shape");
        server.create_job(&run_id, &order("GH_TOKEN")).await.with_status(201);
    }
}

#[both_engines]
async fn values_of_one_job_change_nothing_in_other_runs(engine: Engine) {
    let cluster = TestCluster::any();
    let server = server_of(&cluster, engine).await;
    let (run_id, command_id) = waiting_run(&server).await;
    let order = json!({"commandId": command_id, "transientEnv": {"A": "completed", "B": "good morning"}});
    server.create_job(&run_id, &order).await.with_status(201);
    let (other, turn) = waiting_run(&server).await;
    let runner = server.claim(&other, "runner-of-another-run").await;
    runner.ack(&turn).await;
    runner.say(&turn, "good morning").await;
    runner.end(&turn, "completed").await;
    runner.release().await;
    let events = server.events(&other).await;
    assert!(events.iter().any(|event| event["payload"]["text"] == "good morning"), "{events:?}");
    assert!(events.iter().all(|event| !event.to_string().contains("[redacted]")), "{events:?}");
}

#[both_engines]
async fn other_launchers_refuse_what_only_pods_have(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (run_id, command_id) = waiting_run(&server).await;
    for (field, value) in
        [("backendImageRef", json!({"image": pinned("ostler")})), ("transientEnv", json!({"GH_TOKEN": VALUE}))]
    {
        let mut order = json!({"commandId": command_id});
        order[field] = value;
        let refused = server.create_job(&run_id, &order).await.refused_by(SchemaInvalid, "job-field-unsupported");
        assert!(refused.message.starts_with(field), "{}", refused.message);
    }
}

#[both_engines]
async fn credentials_of_tools_are_mounted_if_they_exist(engine: Engine) {
    let cluster = TestCluster::any();
    let server = cluster.server(engine).await;
    let key = json!({"apiKey": "pl4nted-key-0123456789"});
    server.call("PUT", "/api/v1/provider-profiles/codex/credential", &key).await.with_status(200);
    let mut body = run_body();
    body["backendProfile"] = "codex".into();
    body["workspaceRef"] = json!({"kind": "none"});
    let provider = json!({"name": "agentrun-v01-provider-codex", "keys": ["auth.json", "config.toml"]});
    let tool = json!({"name": "agentrun-v01-tool-github", "keys": ["token"]});
    body["executionPolicy"] = json!({"secretScope": {
        "providerCredentials": [{"profile": "codex", "secretRef": provider}],
        "toolCredentials": [{"tool": "github", "secretRef": tool}]}});
    let start = async || {
        let run_id = id(&server.post("/api/v1/runs", &body).await.with_status(201), "runId");
        let command_id = server.turn(&run_id, "hi").await;
        let job = server.create_job(&run_id, &json!({"commandId": command_id})).await.with_status(201);
        let pod = cluster.created(&id(&job, "jobName")).await["spec"]["template"]["spec"].clone();
        let find = |list: &Value| list.as_array().unwrap().iter().find(|one| one["name"] == "tool-0").cloned();
        (find(&pod["volumes"]), find(&pod["containers"][0]["volumeMounts"]))
    };
    // Without the Secret the pod would wait for ever: its turns fail instead, with `secret-unavailable`.
    assert_eq!(start().await, (None, None));
    let github = json!({"metadata": {"name": "agentrun-v01-tool-github"}, "stringData": {"token": VALUE}});
    cluster.create("secrets", github).unwrap();
    let (volume, mount) = start().await;
    assert_eq!(volume.unwrap()["secret"]["secretName"], "agentrun-v01-tool-github");
    assert_eq!(mount.unwrap()["mountPath"], "/var/run/ostler-tools/github");
}

#[tokio::test]
async fn the_doctor_sees_rights_storage_and_images() {
    let cluster = TestCluster::start();
    let section = KubernetesSection { kubeconfig: Some(cluster.api().kubeconfig()), ..KubernetesSection::default() };
    let opened = Cluster::open(&section, &Environment::default()).await.unwrap();
    assert!(opened.missing_rights().await.unwrap().is_empty());
    cluster.api().deny("create", "jobs");
    assert_eq!(opened.missing_rights().await.unwrap(), [Right::CreateJobs]);
    assert_eq!(opened.find_storage_class(None).await.unwrap().as_deref(), Some(STORAGE_CLASS));
    assert_eq!(opened.find_storage_class(Some(STORAGE_CLASS)).await.unwrap().as_deref(), Some(STORAGE_CLASS));
    assert_eq!(opened.find_storage_class(Some("absent")).await.unwrap(), None);
    assert_eq!(opened.image_pulls("ostler:test").await.unwrap().pulled, 0);
    cluster.api().deny("get", "storageclasses");
    assert!(opened.find_storage_class(Some(STORAGE_CLASS)).await.is_err());
}
