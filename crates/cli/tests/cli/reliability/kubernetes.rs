//! Whole runs in a cluster: the server creates Jobs, a node starts the real runner for each pod, and pods are killed, deleted and
//! lost in the middle of a turn. They run on the cluster that `OSTLER_TEST_KUBECONFIG` names, if it is set.

mod cancel;
mod codex;
mod lost_node;
mod time_limit;
mod tls;
mod two_servers;

use std::path::Path;

use ostler_testkit::kube::{
    KubeApi, KubeCluster,
    kubelet::{Kubelet, find_claim_directory},
};
use serde_json::{Value, json};

use crate::{
    commands::resource_bundles::{bundle, commit},
    fixtures::{
        http::Http,
        process::{Server, eventually, stdout_of},
        runner::run_request,
        shell_agent,
        test_home::{Engine, TestHome, both_engines, one_engine},
    },
};

const IMAGE: &str = "ostler:test";
const PROGRAM: &str = env!("CARGO_BIN_EXE_ostler");

/// Fields go in this order: the node and the server first, then the cluster.
struct ClusterServer {
    node: Kubelet,
    /// `None` while it is being restarted.
    server: Option<Server>,
    home: TestHome,
    cluster: KubeCluster,
}

impl ClusterServer {
    fn launch(engine: Engine) -> Self {
        Self::launch_image(engine, Path::new(PROGRAM))
    }

    /// As [`ClusterServer::launch`], with this program for pods.
    fn launch_image(engine: Engine, program: &Path) -> Self {
        Self::launch_in(KubeCluster::start().unwrap(), engine, program, &[])
    }

    /// As [`ClusterServer::launch`], in a cluster of the test kit, which the test can disturb, and with more settings.
    fn launch_alone(engine: Engine, settings: &[(&str, &str)]) -> Self {
        Self::launch_in(KubeCluster::Own(KubeApi::start().unwrap()), engine, Path::new(PROGRAM), settings)
    }

    fn launch_in(cluster: KubeCluster, engine: Engine, program: &Path, settings: &[(&str, &str)]) -> Self {
        Self::launch_home(cluster, TestHome::on_disk(engine).without_runner(), program, settings)
    }

    fn launch_home(cluster: KubeCluster, mut home: TestHome, program: &Path, settings: &[(&str, &str)]) -> Self {
        let node = cluster.start_node(&[(IMAGE, program)]).unwrap();
        // Pods must know the address of the server before it starts.
        let first = home.serve();
        let (address, url) = (first.address.clone(), first.url());
        first.stop();
        let kubeconfig = cluster.server_kubeconfig();
        let selector = json!({"kubernetes.io/hostname": cluster.node()});
        for (name, value) in [
            ("OSTLER_RUNNER__LAUNCHER", "kubernetes"),
            ("OSTLER_RUNNER__SLOTS", "8"),
            ("OSTLER_RUNNER__LEASE_MS", "2000"),
            ("OSTLER_KUBERNETES__RESYNC_MS", "200"),
            ("OSTLER_KUBERNETES__KUBECONFIG", kubeconfig.to_str().unwrap()),
            ("OSTLER_KUBERNETES__NAMESPACE", cluster.namespace()),
            ("OSTLER_KUBERNETES__NODE_SELECTOR", &selector.to_string()),
            ("OSTLER_KUBERNETES__IMAGE", IMAGE),
            ("OSTLER_KUBERNETES__GRACE_S", "10"),
            ("OSTLER_WORKSPACES__GIT_PROTOCOLS", "file"),
            ("OSTLER_KUBERNETES__SERVER_URL", &url),
        ] {
            home.set(name, value);
        }
        settings.iter().for_each(|(name, value)| home.set(name, value));
        // The server looks for Codex on its own machine too.
        if let Ok(codex) = std::env::var("OSTLER_TEST_CODEX") {
            home.set("OSTLER_AGENTS__CODEX", &codex);
        }
        let server = home.serve_at(&address);
        Self { node, server: Some(server), home, cluster }
    }

    fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    /// A run with this prompt, and the job that starts its runner: run, command and job.
    fn start_run(&self, http: &mut Http, prompt: &str) -> (String, String, Value) {
        self.start(http, &run_request(), prompt)
    }

    /// As [`ClusterServer::start_run`], with this request for the run.
    fn start(&self, http: &mut Http, request: &Value, prompt: &str) -> (String, String, Value) {
        let run = http.post("/api/v1/runs", request).good();
        let run_id = text(&run["runId"]);
        let turn = json!({"type": "turn", "payload": {"prompt": prompt}});
        let command = http.post(&format!("/api/v1/runs/{run_id}/commands"), &turn).good();
        let command_id = text(&command["commandId"]);
        let order = json!({"commandId": command_id, "idempotencyKey": "k"});
        let job = http.post(&format!("/api/v1/runs/{run_id}/runner-jobs"), &order).good();
        (run_id, command_id, job)
    }

    /// The pod of a Job, once its process runs.
    fn running_pod(&self, job_name: &str) -> String {
        eventually("the pod runs", || self.node.running().into_iter().find(|pod| pod.starts_with(job_name)))
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn result(http: &mut Http, run_id: &str, command_id: &str) -> Value {
    let path = format!("/api/v1/runs/{run_id}/commands/{command_id}/result");
    eventually("the turn ends", || Some(http.get(&path).good()).filter(|result| !result["terminalStatus"].is_null()))
}

fn has_said(http: &mut Http, run_id: &str, word: &str) {
    eventually("the turn has begun", || {
        let events = http.events(run_id);
        events.iter().any(|event| event["payload"]["text"] == word).then_some(())
    });
}

/// A turn that sends a word, and then takes its time.
fn slow(word: &str) -> String {
    json!({"script": [{"say": word}, {"wait": 1_500}, {"say": "done"}]}).to_string()
}

#[both_engines]
fn a_run_is_executed_by_a_pod(engine: Engine) {
    let setup = ClusterServer::launch(engine);
    let mut http = Http::new(setup.server());
    let (run_id, command_id, job) = setup.start_run(&mut http, "hello, cluster");
    let ended = result(&mut http, &run_id, &command_id);
    assert_eq!((&ended["status"], &ended["reply"]), (&json!("completed"), &json!("hello, cluster")));
    let path = text(&job["poll"]["job"]);
    let job = eventually("the job ends", || Some(http.get(&path).good()).filter(|job| job["phase"] == "succeeded"));
    assert_eq!((&job["observed"]["exitCode"], &job["observed"]["nodeName"]), (&json!(0), &json!(setup.cluster.node())));
    // The runner's own report.
    let summary = &job["terminalSummary"];
    assert_eq!(
        (&summary["status"], &summary["turnStatus"], &summary["turns"]),
        (&json!("idle"), &json!("completed"), &json!(1))
    );
    let job_id = text(&job["runnerJobId"]);
    let log = stdout_of(setup.home.cli(Some(setup.server()), &["jobs", "log", "-f", &run_id, &job_id]));
    assert!(log.contains("\"status\":\"idle\""), "{log}");
    let names: Vec<_> = setup.cluster.objects("jobs").iter().map(|job| text(&job["metadata"]["name"])).collect();
    assert_eq!(names, [text(&job["jobName"])]);
    if let Some(api) = setup.cluster.own() {
        let calls: u64 = ["create", "get", "delete"].iter().map(|verb| api.count(verb, "jobs")).sum();
        assert!(calls + api.count("create", "secrets") <= 3, "{:?}", api.calls());
    }
}

#[both_engines]
fn a_pod_that_is_killed_in_a_turn_is_replaced(engine: Engine) {
    let setup = ClusterServer::launch(engine);
    let mut http = Http::new(setup.server());
    let (run_id, command_id, job) = setup.start_run(&mut http, &slow("first"));
    let pod = setup.running_pod(&text(&job["jobName"]));
    has_said(&mut http, &run_id, "first");
    assert!(setup.node.oom_kill(&pod));
    let ended = result(&mut http, &run_id, &command_id);
    assert_eq!((&ended["status"], &ended["reply"]), (&json!("completed"), &json!("done")));
    let phases: Vec<_> = http.events(&run_id).iter().map(|event| event["payload"]["phase"].clone()).collect();
    assert!(phases.contains(&json!("runner-ended")), "{phases:?}");
    assert_eq!(setup.cluster.objects("jobs").len(), 2);
}

/// A turn that begins a tool call without an end, and then takes its time.
fn with_open_call() -> String {
    let call = json!({"name": "deploy", "leaveOpen": true});
    json!({"script": [{"say": "first"}, {"tool": call}, {"wait": 1_500}, {"say": "done"}]}).to_string()
}

fn has_begun_call(http: &mut Http, run_id: &str) {
    eventually("the call has begun", || {
        http.events(run_id).iter().any(|event| event["type"] == "tool_call").then_some(())
    });
}

/// The statuses of the tool calls of a run, in order.
fn calls(http: &mut Http, run_id: &str) -> Vec<String> {
    let events = http.events(run_id);
    events.iter().filter(|event| event["type"] == "tool_call").map(|event| text(&event["payload"]["status"])).collect()
}

#[one_engine]
fn a_pod_that_is_evicted_in_a_turn_is_replaced(engine: Engine) {
    let setup = ClusterServer::launch(engine);
    let mut http = Http::new(setup.server());
    let (run_id, command_id, job) = setup.start_run(&mut http, &with_open_call());
    let pod = setup.running_pod(&text(&job["jobName"]));
    has_begun_call(&mut http, &run_id);
    assert!(setup.node.evict(&pod, "The node was low on resource: memory."));
    let ended = result(&mut http, &run_id, &command_id);
    assert_eq!((&ended["status"], &ended["reply"]), (&json!("completed"), &json!("done")));
    let events = http.events(&run_id);
    let end = events.iter().find(|event| event["payload"]["phase"] == "runner-ended").unwrap();
    assert_eq!(end["payload"]["end"]["reason"], "Evicted", "{end}");
    assert_eq!(calls(&mut http, &run_id)[..2], ["started", "outcome-unknown"]);
}

#[both_engines]
fn a_turn_on_a_node_that_is_gone_is_continued_after_its_lease(engine: Engine) {
    let mut setup = ClusterServer::launch(engine);
    let mut http = Http::new(setup.server());
    let (run_id, command_id, job) = setup.start_run(&mut http, &with_open_call());
    let name = text(&job["jobName"]);
    let pod = setup.running_pod(&name);
    has_begun_call(&mut http, &run_id);
    setup.node.power_off();
    // The cluster has noticed: it removes the node, and then the pods of the node.
    match setup.cluster.own() {
        Some(api) => assert!(api.remove("nodes", "", setup.cluster.node())),
        None => assert!(setup.cluster.remove("pods", &pod)),
    }
    setup.node = setup.cluster.start_node(&[(IMAGE, Path::new(PROGRAM))]).unwrap();
    let ended = result(&mut http, &run_id, &command_id);
    assert_eq!((&ended["status"], &ended["reply"]), (&json!("completed"), &json!("done")));
    assert_eq!(calls(&mut http, &run_id)[..2], ["started", "outcome-unknown"]);
    // The first runner was gone without a sign, so only the end of its lease let another one continue.
    let path = text(&job["poll"]["job"]);
    let job = eventually("the job ends", || Some(http.get(&path).good()).filter(|job| job["phase"] == "succeeded"));
    assert_eq!((&job["attempt"], &job["jobName"]), (&json!(2), &json!(format!("{name}-2"))));
    let events = http.events(&run_id);
    let end = events.iter().find(|event| event["payload"]["phase"] == "runner-ended").unwrap();
    let end = &end["payload"]["end"];
    match setup.cluster.own() {
        Some(_) => assert_eq!(end["category"], "runner-job-observe-failed", "{end}"),
        // A real cluster keeps the pod of such a node for a while, as if it ran.
        None => assert!(["lost", "stuck"].contains(&end["status"].as_str().unwrap()), "{end}"),
    }
}

#[both_engines]
fn a_pod_that_is_drained_hands_back_its_run_and_uses_no_attempt(engine: Engine) {
    let setup = ClusterServer::launch(engine);
    let mut http = Http::new(setup.server());
    let (run_id, command_id, job) = setup.start_run(&mut http, &slow("first"));
    let pod = setup.running_pod(&text(&job["jobName"]));
    has_said(&mut http, &run_id, "first");
    assert!(setup.node.terminate(&pod, 10));
    let ended = result(&mut http, &run_id, &command_id);
    assert_eq!((&ended["status"], &ended["reply"]), (&json!("completed"), &json!("done")));
    let path = text(&job["poll"]["job"]);
    let job = eventually("the job ends", || Some(http.get(&path).good()).filter(|job| job["phase"] == "succeeded"));
    assert_eq!(job["attempt"], 1, "the start that the drain has ended does not count");
    assert!(text(&job["observed"]["jobName"]).ends_with("-2"), "{job}");
}

#[both_engines]
fn the_log_and_the_report_of_a_pod_have_no_values_of_its_variables(engine: Engine) {
    const VALUE: &str = "pl4nted-token-0123456789";
    let setup = ClusterServer::launch(engine);
    let mut http = Http::new(setup.server());
    let run_id = text(&http.post("/api/v1/runs", &run_request()).good()["runId"]);
    let fail = json!({"kind": "backend-failed", "message": format!("the token {VALUE} was rejected")});
    let prompt = json!({"script": [{"fail": fail}]}).to_string();
    let turn = json!({"type": "turn", "payload": {"prompt": prompt}});
    let command_id = text(&http.post(&format!("/api/v1/runs/{run_id}/commands"), &turn).good()["commandId"]);
    let order = json!({"commandId": command_id, "idempotencyKey": "k", "transientEnv": {"GH_TOKEN": VALUE}});
    let job = http.post(&format!("/api/v1/runs/{run_id}/runner-jobs"), &order).good();
    let path = text(&job["poll"]["job"]);
    eventually("the job ends", || (http.get(&path).good()["phase"] == "succeeded").then_some(()));
    // As the cluster has them: a server that does not know the value may serve them.
    let pods = setup.cluster.objects("pods");
    let report = text(&pods[0]["status"]["containerStatuses"][0]["state"]["terminated"]["message"]);
    let uid = text(&pods[0]["metadata"]["uid"]);
    let log = std::fs::read_to_string(setup.cluster.directory().join("pods").join(uid).join("log")).unwrap();
    for (what, content) in [("report", report), ("log", log)] {
        assert!(content.contains("was rejected") && !content.contains("pl4nted"), "{what}: {content}");
    }
}

#[both_engines]
fn a_job_that_is_deleted_hands_back_its_run(engine: Engine) {
    let setup = ClusterServer::launch(engine);
    let mut http = Http::new(setup.server());
    let (run_id, command_id, job) = setup.start_run(&mut http, &slow("first"));
    let name = text(&job["jobName"]);
    setup.running_pod(&name);
    has_said(&mut http, &run_id, "first");
    assert!(setup.cluster.remove("jobs", &name));
    let ended = result(&mut http, &run_id, &command_id);
    assert_eq!((&ended["status"], &ended["reply"]), (&json!("completed"), &json!("done")));
    let second = format!("{name}-2");
    assert!(setup.cluster.object("jobs", &second).is_some());
    let run = http.get(&format!("/api/v1/runs/{run_id}")).good();
    assert_eq!(run["cancelRequestedAt"], Value::Null, "deleting a Job cancels nothing");
    let is_cancel = |event: &Value| event["payload"]["action"].as_str().is_some_and(|one| one.ends_with(".cancel"));
    assert!(!http.events(&run_id).iter().any(is_cancel));
}

#[both_engines]
fn a_pod_works_on_while_its_server_is_restarted(engine: Engine) {
    let mut setup = ClusterServer::launch(engine);
    let mut http = Http::new(setup.server());
    let (run_id, command_id, job) = setup.start_run(&mut http, &slow("first"));
    setup.running_pod(&text(&job["jobName"]));
    has_said(&mut http, &run_id, "first");
    let address = setup.server().address.clone();
    setup.server.take().unwrap().kill();
    setup.server = Some(setup.home.serve_at(&address));
    let mut http = Http::new(setup.server());
    let ended = result(&mut http, &run_id, &command_id);
    assert_eq!((&ended["status"], &ended["reply"]), (&json!("completed"), &json!("done")));
    assert_eq!(setup.cluster.objects("jobs").len(), 1, "nothing was started twice");
}

#[both_engines]
fn what_a_pod_leaves_in_its_sessions_volume_is_there_for_the_next_pod(engine: Engine) {
    let setup = ClusterServer::launch(engine);
    let mut http = Http::new(setup.server());
    let session = json!({"tenantId": "local", "sessionId": "mine", "backendProfile": "scripted", "storageKind": "pvc"});
    let claim = text(&http.post("/api/v1/sessions", &session).good()["storagePvcName"]);
    let mut request = run_request();
    request["sessionRef"] = json!({"sessionId": "mine"});
    for files in 0..2 {
        let (run_id, command_id, job) = setup.start(&mut http, &request, "hello");
        assert_eq!(result(&mut http, &run_id, &command_id)["status"], "completed");
        let events = http.events(&run_id);
        let mounted: Vec<_> =
            events.iter().filter(|event| event["payload"]["phase"] == "codex-rollout-storage-mounted").collect();
        let [mounted] = mounted[..] else { panic!("{mounted:#?}") };
        assert_eq!(mounted["commandId"], json!(command_id));
        let payload = &mounted["payload"];
        assert_eq!((&payload["pvcName"], &payload["pvcNamespace"]), (&json!(claim), &json!(setup.cluster.namespace())));
        assert_eq!((&payload["codexRolloutSubdir"], &payload["valuesPrinted"]), (&json!("sessions"), &json!(false)));
        let storage = eventually("the storage was measured", || {
            let storage = http.get("/api/v1/sessions/mine/storage").good();
            Some(storage).filter(|storage| storage["storageFilesCount"] == files)
        });
        assert_eq!((&storage["storageKind"], &storage["pvcPhase"]), (&json!("pvc"), &json!("Bound")));
        let path = text(&job["poll"]["job"]);
        eventually("the job ends", || (http.get(&path).good()["phase"] == "succeeded").then_some(()));
        let volume = find_claim_directory(setup.cluster.directory(), setup.cluster.namespace(), &claim);
        std::fs::write(volume.join("rollout"), "what was said").unwrap();
    }
    assert_eq!(setup.cluster.objects("persistentvolumeclaims").len(), 1);
}

#[both_engines]
fn an_agent_in_a_pod_finds_the_files_of_the_runs_bundle(engine: Engine) {
    let setup = ClusterServer::launch(engine);
    let repository = setup.home.path("repository");
    let commit_id = commit(&repository, "skills/word", "hello from the bundle");
    shell_agent::set_profile(&setup.home, setup.server(), "reply=$(cat .agents/skills/word)");
    let (run_id, ended) = shell_agent::turn(&setup.home, setup.server(), "workspace-write", &bundle(&repository));
    assert_eq!((&ended["terminalStatus"], &ended["reply"]), (&json!("completed"), &json!("hello from the bundle")));
    let mut http = Http::new(setup.server());
    let events = http.events(&run_id);
    let ready = events.iter().find(|event| event["payload"]["phase"] == "resource-bundle-ready").unwrap();
    assert_eq!(ready["payload"]["commitId"], json!(commit_id));
}

#[both_engines]
fn an_agent_in_a_pod_works_in_a_checkout_of_the_runs_repository(engine: Engine) {
    let setup = ClusterServer::launch(engine);
    let repository = setup.home.path("repository");
    let commit_id = commit(&repository, "skills/word", "hello from the repository");
    let work = "reply=$(cat skills/word) && git status --short && reply=$reply:$(git rev-parse HEAD)";
    shell_agent::set_profile(&setup.home, setup.server(), work);
    let url = format!("file://{}", repository.display());
    for sandbox in ["workspace-write", "read-only"] {
        let workspace = json!({"workspaceRef": {"kind": "git", "repoUrl": url, "ref": "main"}});
        let (_, ended) = shell_agent::turn(&setup.home, setup.server(), sandbox, &workspace);
        let reply = format!("hello from the repository:{commit_id}");
        assert_eq!((&ended["terminalStatus"], &ended["reply"]), (&json!("completed"), &json!(reply)), "{sandbox}");
    }
    let workspace = json!({"workspaceRef": {"kind": "git", "repoUrl": url, "ref": "absent"}});
    let (_, ended) = shell_agent::turn(&setup.home, setup.server(), "workspace-write", &workspace);
    assert_eq!(ended["terminalStatus"], "failed", "{ended}");
    assert!(text(&ended["blocker"]).contains("no such commit, branch or tag"), "{ended}");
}
