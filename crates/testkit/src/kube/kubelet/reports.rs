//! What the kubelet reports to the API server: the node, and the phases of its pods.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ::kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use ::kube::{Client, Error};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

use super::container::{pod_directory, termination_log};
use crate::kube::store::{items, text, time_text};

const RETRY: Duration = Duration::from_millis(100);
const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;
/// A message of a container has at most this many bytes. The rest is cut off.
const MESSAGE_BYTES_MAX: usize = 4096;
/// If the log replaces the message, it is its end: at most so many bytes and lines.
const LOG_BYTES_MAX: usize = 2048;
const LOG_LINES_MAX: usize = 80;
/// The exit code of a container that was killed, or that does not exist any more.
const KILLED_CODE: i32 = 137;

/// Registers a ready node whose kubelet listens on this port of loopback.
pub(super) async fn register_node(client: &Client, name: &str, port: u16) -> Result<(), Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    let mut node = Node::default();
    node.metadata.name = Some(name.to_owned());
    node.metadata.labels = Some([("kubernetes.io/hostname".to_owned(), name.to_owned())].into());
    match nodes.create(&PostParams::default(), &node).await {
        Err(error) if code(&error) == Some(CONFLICT) => {}
        created => drop(created?),
    }
    // The real API server taints new nodes until their controller sees them ready.
    nodes.patch(name, &PatchParams::default(), &Patch::Merge(json!({"spec": {"taints": null}}))).await?;
    let room = json!({"cpu": "64", "memory": "64Gi", "pods": "1000", "ephemeral-storage": "100Gi"});
    let status = json!({"status": {
        "capacity": room, "allocatable": room,
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is ready"}]
    }});
    nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await?;
    Ok(())
}

/// The HTTP status of a refusal. `None` if there was no response.
fn code(error: &Error) -> Option<u16> {
    match error {
        Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// The pod of the reports, and when its container started.
pub(super) struct Reporter {
    pods: Api<Pod>,
    name: String,
    uid: String,
    container: Value,
    started: Timestamp,
    termination_log: PathBuf,
    log: PathBuf,
}

impl Reporter {
    pub(super) fn new(client: &Client, pod: &Value, node_directory: &Path) -> Self {
        Self {
            pods: Api::namespaced(client.clone(), text(pod, "/metadata/namespace")),
            name: text(pod, "/metadata/name").to_owned(),
            uid: text(pod, "/metadata/uid").to_owned(),
            container: items(pod, "/spec/containers").first().cloned().unwrap_or_default(),
            started: now(),
            termination_log: termination_log(node_directory, pod),
            log: pod_directory(node_directory, pod).join("log"),
        }
    }

    pub(super) async fn waiting(&self, reason: &str, message: &str) {
        let state = json!({"waiting": {"reason": reason, "message": message}});
        self.report("Pending", &state, json!({})).await;
    }

    pub(super) async fn running(&mut self) {
        self.started = now();
        let state = json!({"running": {"startedAt": time_text(self.started)}});
        self.report("Running", &state, json!({})).await;
    }

    /// `reason` is `Completed`, `Error` or `OOMKilled`.
    pub(super) async fn terminated(&self, exit_code: i32, reason: &str) {
        let phase = if exit_code == 0 { "Succeeded" } else { "Failed" };
        self.report(phase, &self.terminated_state(exit_code, reason), json!({})).await;
    }

    pub(super) async fn evicted(&self, exit_code: i32, message: &str) {
        self.report("Failed", &self.terminated_state(exit_code, "Error"), eviction_status(message)).await;
    }

    /// Reports the end of a pod whose container never started, as a kubelet does: with an exit code that nothing returned.
    pub(super) async fn stopped_before_start(&self, eviction: Option<&str>) {
        let state = json!({"terminated": {
            "exitCode": KILLED_CODE, "reason": "ContainerStatusUnknown",
            "message": "The container could not be located when the pod was terminated"
        }});
        self.report("Failed", &state, eviction.map_or_else(|| json!({}), eviction_status)).await;
    }

    fn terminated_state(&self, exit_code: i32, reason: &str) -> Value {
        let mut state = json!({"terminated": {
            "exitCode": exit_code, "reason": reason, "startedAt": time_text(self.started), "finishedAt": time_text(now()),
            "containerID": format!("testkit://{}", self.uid)
        }});
        if let Some(message) = self.message(exit_code) {
            state["terminated"]["message"] = json!(message);
        }
        state
    }

    /// What the process has left as its message, or the end of its log where the specification wants that.
    fn message(&self, exit_code: i32) -> Option<String> {
        let left = std::fs::read(&self.termination_log).unwrap_or_default();
        if !left.is_empty() {
            return Some(String::from_utf8_lossy(&left[..left.len().min(MESSAGE_BYTES_MAX)]).into_owned());
        }
        if exit_code == 0 || text(&self.container, "/terminationMessagePolicy") != "FallbackToLogsOnError" {
            return None;
        }
        let log = std::fs::read(&self.log).unwrap_or_default();
        let end = String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_BYTES_MAX)..]).into_owned();
        let lines: Vec<&str> = end.lines().collect();
        let end = lines[lines.len().saturating_sub(LOG_LINES_MAX)..].join("\n");
        (!end.is_empty()).then_some(end)
    }

    async fn report(&self, phase: &str, state: &Value, more: Value) {
        let is_running = !state["running"].is_null();
        let state = with_nulls(state);
        let container = json!({
            "name": self.container["name"], "image": self.container["image"], "imageID": self.container["image"],
            "ready": is_running, "started": is_running, "restartCount": 0, "state": state, "lastState": {},
            "containerID": format!("testkit://{}", self.uid)
        });
        let ready = json!({
            "type": "Ready", "status": if is_running { "True" } else { "False" }, "lastTransitionTime": time_text(now())
        });
        let mut status = json!({
            "phase": phase, "podIP": "127.0.0.1", "hostIP": "127.0.0.1", "startTime": time_text(self.started),
            "conditions": [ready], "containerStatuses": [container]
        });
        for (field, value) in more.as_object().into_iter().flatten() {
            match (status[field].as_array_mut(), value.as_array()) {
                (Some(list), Some(added)) => list.extend(added.iter().cloned()),
                _ => status[field] = value.clone(),
            }
        }
        let patch = Patch::Strategic(json!({"metadata": {"uid": self.uid}, "status": status}));
        loop {
            match self.pods.patch_status(&self.name, &PatchParams::default(), &patch).await {
                Ok(_) => return,
                // The pod is gone, or is another one of the same name.
                Err(error) if matches!(code(&error), Some(NOT_FOUND | CONFLICT)) => return,
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        }
    }

    /// Removes a pod whose process has ended after it was deleted.
    pub(super) async fn delete(&self) {
        let mut params = DeleteParams::default().grace_period(0);
        params.preconditions = Some(Preconditions { uid: Some(self.uid.clone()), ..Preconditions::default() });
        loop {
            match self.pods.delete(&self.name, &params).await {
                Ok(_) => return,
                Err(error) if matches!(code(&error), Some(NOT_FOUND | CONFLICT)) => return,
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        }
    }
}

/// The part of a pod's status that shows its eviction.
fn eviction_status(message: &str) -> Value {
    let disruption = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": message,
        "lastTransitionTime": time_text(now())
    });
    json!({"reason": "Evicted", "message": message, "conditions": [disruption]})
}

/// A container is in one state: the merge must delete the others.
fn with_nulls(state: &Value) -> Value {
    let mut all = json!({"waiting": null, "running": null, "terminated": null});
    for (field, value) in state.as_object().into_iter().flatten() {
        all[field] = value.clone();
    }
    all
}

#[expect(clippy::disallowed_methods, reason = "processes run in real time; there is no clock to inject")]
fn now() -> Timestamp {
    Timestamp::now()
}
