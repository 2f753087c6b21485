//! The kubelet: real processes for pods, and what is reported of them.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, LogParams, PostParams};
use ostler_testkit::kube::kubelet::{Kubelet, client, find_claim_directory};
use ostler_testkit::kube::{KubeApi, NAMESPACE};
use serde_json::{Value, json};

use crate::{eventually, from};

const IMAGE: &str = "example.test/shell:1";

struct Node {
    kubelet: Kubelet,
    pods: Api<Pod>,
    // Dropped last: the kubelet's directory is in it.
    api: KubeApi,
}

async fn start() -> Node {
    let api = KubeApi::start().unwrap();
    let images = [(IMAGE, Path::new("/bin/sh"))];
    let kubelet = Kubelet::start(&api.kubelet_kubeconfig(), api.directory(), "node-a", &images).unwrap();
    let pods = Api::namespaced(client(&api.kubeconfig()).await.unwrap(), NAMESPACE);
    Node { kubelet, pods, api }
}

fn pod(script: &str, more: Value) -> Pod {
    let mut pod = json!({
        "metadata": {"name": "p"},
        "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 10,
            "containers": [{"name": "main", "image": IMAGE, "args": ["-c", script]}]
        }
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        let container =
            ["env", "envFrom", "volumeMounts", "image", "terminationMessagePolicy"].contains(&field.as_str());
        if container {
            pod["spec"]["containers"][0][field] = value.clone();
        } else {
            pod["spec"][field] = value.clone();
        }
    }
    from(pod)
}

impl Node {
    async fn create(&self, script: &str, more: Value) {
        self.pods.create(&PostParams::default(), &pod(script, more)).await.unwrap();
    }

    /// The pod's status as soon as it has this phase.
    async fn phase(&self, phase: &str) -> Value {
        eventually(async || self.status().filter(|status| status["phase"] == phase)).await
    }

    fn status(&self) -> Option<Value> {
        self.api.object("pods", NAMESPACE, "p").map(|pod| pod["status"].clone())
    }

    async fn is_removed(&self) {
        eventually(async || self.api.object("pods", NAMESPACE, "p").is_none().then_some(())).await;
    }
}

#[tokio::test]
async fn a_pod_runs_its_program_with_its_environment_volumes_and_log() {
    let node = start().await;
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"token": "hidden", "USER": "me"}});
    node.api.create("secrets", NAMESPACE, secret).unwrap();
    let claim = json!({
        "metadata": {"name": "c"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    });
    node.api.create("persistentvolumeclaims", NAMESPACE, claim).unwrap();
    let more = json!({
        "env": [{"name": "FILE", "value": "/secrets/token"}, {"name": "DATA", "value": "/data"}],
        "envFrom": [{"secretRef": {"name": "s"}}],
        "volumes": [
            {"name": "s", "secret": {"secretName": "s"}}, {"name": "d", "persistentVolumeClaim": {"claimName": "c"}}
        ],
        "volumeMounts": [{"name": "s", "mountPath": "/secrets"}, {"name": "d", "mountPath": "/data"}]
    });
    node.create("echo \"$USER $(cat $FILE)\"; echo kept > $DATA/file; echo last >&2", more).await;
    let status = node.phase("Succeeded").await;
    let ended = &status["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&ended["exitCode"], &ended["reason"]), (&json!(0), &json!("Completed")));
    assert_eq!(node.pods.logs("p", &LogParams::default()).await.unwrap(), "me hidden\nlast\n");
    let tail = LogParams { tail_lines: Some(1), ..LogParams::default() };
    assert_eq!(node.pods.logs("p", &tail).await.unwrap(), "last\n");
    let volume = find_claim_directory(node.api.directory(), NAMESPACE, "c");
    assert_eq!(std::fs::read_to_string(volume.join("file")).unwrap(), "kept\n");
    let claim = node.api.object("persistentvolumeclaims", NAMESPACE, "c").unwrap();
    assert_eq!(claim["status"]["phase"], "Bound");
}

#[tokio::test]
async fn the_exit_code_and_the_reason_are_reported() {
    let node = start().await;
    node.create("exit 7", json!({})).await;
    let status = node.phase("Failed").await;
    let ended = &status["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&ended["exitCode"], &ended["reason"]), (&json!(7), &json!("Error")));
}

#[tokio::test]
async fn the_message_of_a_process_is_reported_or_the_end_of_its_log() {
    let node = start().await;
    let message = |status: &Value| status["containerStatuses"][0]["state"]["terminated"]["message"].clone();
    let more = json!({"env": [{"name": "REPORT", "value": "/dev/termination-log"}]});
    node.create("echo log; printf done > $REPORT", more).await;
    assert_eq!(message(&node.phase("Succeeded").await), "done");
    node.api.remove("pods", NAMESPACE, "p");
    let more = json!({"terminationMessagePolicy": "FallbackToLogsOnError"});
    node.create("echo first; echo last >&2; exit 3", more).await;
    assert_eq!(message(&node.phase("Failed").await), "first\nlast");
}

#[tokio::test]
async fn a_process_that_is_killed_for_its_memory_or_evicted_has_the_reason() {
    let node = start().await;
    node.create("exec sleep 600", json!({})).await;
    node.phase("Running").await;
    assert!(node.kubelet.process_of("p").is_some() && node.kubelet.running() == ["p"]);
    assert!(node.kubelet.oom_kill("p"));
    let status = node.phase("Failed").await;
    let ended = &status["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&ended["exitCode"], &ended["reason"]), (&json!(137), &json!("OOMKilled")));
    node.pods.delete("p", &DeleteParams::default()).await.unwrap();
    node.is_removed().await;

    node.create("exec sleep 600", json!({})).await;
    node.phase("Running").await;
    assert!(node.kubelet.evict("p", "The node was low on resource: memory."));
    let status = node.phase("Failed").await;
    assert_eq!(status["reason"], "Evicted");
    assert!(node.kubelet.running().is_empty());
}

#[tokio::test]
async fn a_deleted_pod_gets_its_grace_period() {
    let node = start().await;
    let claim = json!({
        "metadata": {"name": "c"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    });
    node.api.create("persistentvolumeclaims", NAMESPACE, claim).unwrap();
    let more = json!({
        "env": [{"name": "DATA", "value": "/data"}],
        "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}],
        "volumeMounts": [{"name": "d", "mountPath": "/data"}]
    });
    let script = "trap 'echo stopped > $DATA/file; exit 0' TERM; echo ready; while true; do sleep 0.02; done";
    node.create(script, more).await;
    node.phase("Running").await;
    eventually(async || node.pods.logs("p", &LogParams::default()).await.ok().filter(|log| log == "ready\n")).await;
    node.pods.delete("p", &DeleteParams::default()).await.unwrap();
    node.is_removed().await;
    let volume = find_claim_directory(node.api.directory(), NAMESPACE, "c");
    assert_eq!(std::fs::read_to_string(volume.join("file")).unwrap(), "stopped\n");
}

#[tokio::test]
async fn a_pod_that_ignores_the_signal_is_killed() {
    let node = start().await;
    node.create("trap '' TERM; echo ready; while true; do sleep 0.02; done", json!({})).await;
    node.phase("Running").await;
    eventually(async || node.pods.logs("p", &LogParams::default()).await.ok().filter(|log| log == "ready\n")).await;
    let process = node.kubelet.process_of("p").and_then(ostler_testkit::process::pid).unwrap();
    node.pods.delete("p", &DeleteParams::default().grace_period(1)).await.unwrap();
    node.is_removed().await;
    assert!(!ostler_testkit::process::is_running(process));
}

#[tokio::test]
async fn a_pod_waits_for_its_image_its_secret_and_a_node() {
    let node = start().await;
    let waiting = async |reason: &str| {
        eventually(async || {
            let status = node.status()?;
            (status["containerStatuses"][0]["state"]["waiting"]["reason"] == reason).then_some(())
        })
        .await;
    };
    node.create("exit 0", json!({"image": "example.test/unknown:1"})).await;
    waiting("ImagePullBackOff").await;
    let log = node.pods.logs("p", &LogParams::default()).await.unwrap_err();
    assert_eq!(crate::code(&log), 400, "a container that waits has no log");
    node.pods.delete("p", &DeleteParams::default()).await.unwrap();
    node.is_removed().await;

    node.create("exit 0", json!({"envFrom": [{"secretRef": {"name": "later"}}]})).await;
    waiting("CreateContainerConfigError").await;
    node.api.create("secrets", NAMESPACE, json!({"metadata": {"name": "later"}})).unwrap();
    node.phase("Succeeded").await;
    node.pods.delete("p", &DeleteParams::default()).await.unwrap();
    node.is_removed().await;

    node.create("exit 0", json!({"nodeSelector": {"disk": "fast"}})).await;
    eventually(async || {
        let status = node.status()?;
        (status["conditions"][0]["reason"] == "Unschedulable").then_some(())
    })
    .await;
    node.api.patch("nodes", "", "node-a", &json!({"metadata": {"labels": {"disk": "fast"}}}));
    node.phase("Succeeded").await;
}

#[tokio::test]
async fn a_node_without_power_reports_nothing_until_it_is_removed() {
    let mut node = start().await;
    node.create("exec sleep 600", json!({})).await;
    node.phase("Running").await;
    let process = node.kubelet.process_of("p").and_then(ostler_testkit::process::pid).unwrap();
    node.kubelet.power_off();
    eventually(async || (!ostler_testkit::process::is_running(process)).then_some(())).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(node.status().unwrap()["phase"], "Running", "the cluster cannot know");
    node.api.remove("nodes", "", "node-a");
    node.is_removed().await;
}

#[tokio::test]
async fn a_kubelet_reports_after_the_api_server_was_away() {
    let mut node = start().await;
    node.create("exec sleep 0.3", json!({})).await;
    node.phase("Running").await;
    node.api.stop();
    eventually(async || node.kubelet.running().is_empty().then_some(())).await;
    node.api.start_again().unwrap();
    node.phase("Succeeded").await;
}
