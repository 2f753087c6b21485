//! Jobs and pods like those of the server, made from a Job that a server has created.

use serde_json::{Value, json};

/// An image of a registry that cannot exist.
pub(crate) const IMAGE: &str = "ostler.invalid/bench:1";
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// As long as the server's own value. A server watches objects of its own value only.
const OTHER_MANAGER: &str = "others";
const RUNNER_JOB: &str = "ostler.dev/job";
const JOB_NAME: &str = "batch.kubernetes.io/job-name";
/// Labels that the API server adds to the pods of a Job. It rejects a new Job that has them.
const ADDED_LABELS: [&str; 4] = ["batch.kubernetes.io/controller-uid", JOB_NAME, "controller-uid", "job-name"];
/// Fields that the server does not send and the API server fills in.
const JOB_DEFAULTS: [&str; 4] = ["completionMode", "manualSelector", "selector", "suspend"];
const POD_DEFAULTS: [&str; 2] = ["dnsPolicy", "schedulerName"];
const CONTAINER_DEFAULTS: [&str; 1] = ["imagePullPolicy"];
/// No scheduler of this name exists, so such a pod stays without a node.
const NO_SCHEDULER: &str = "ostler-bench";
const LABELS: [&str; 2] = ["/metadata/labels", "/spec/template/metadata/labels"];
/// The times of containers are not used.
const STARTED_AT: &str = "2026-01-01T00:00:00Z";
const ENDED_AT: &str = "2026-01-01T00:00:01Z";
/// What a runner leaves when it ends.
const RUNNER_REPORT: &str = r#"{"status":"idle","turns":1}"#;

/// The manifest of a Job as the server has sent it, from the object that the API server has made of it.
pub(crate) fn sent_manifest(stored: &Value) -> Value {
    let metadata = json!({"name": stored["metadata"]["name"], "labels": stored["metadata"]["labels"]});
    let mut job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": stored["spec"]});
    remove(&mut job, "/spec", &JOB_DEFAULTS);
    remove(&mut job, "/spec/template/metadata", &["creationTimestamp"]);
    LABELS.into_iter().for_each(|labels| remove(&mut job, labels, &ADDED_LABELS));
    remove(&mut job, "/spec/template/spec", &POD_DEFAULTS);
    remove(&mut job, "/spec/template/spec/containers/0", &CONTAINER_DEFAULTS);
    job
}

/// An equal Job that no server watches.
pub(crate) fn bare_job(manifest: &Value, number: usize) -> Value {
    let mut job = manifest.clone();
    // As long as the name of a Job of the server.
    job["metadata"]["name"] = format!("bench-bare-{number:032x}").into();
    set_label(&mut job, MANAGED_BY, OTHER_MANAGER);
    job
}

/// A Job that the cluster completes at once, because it wants no pod to succeed. It has the labels of the server's Jobs, so servers
/// watch it, and a name of another prefix: servers delete active Jobs of their own prefix that they have not ordered.
pub(crate) fn finished_job(manifest: &Value, number: usize) -> Value {
    let mut job = manifest.clone();
    job["metadata"]["name"] = finished_name(number).into();
    job["spec"]["completions"] = json!(0);
    set_label(&mut job, RUNNER_JOB, &runner_job(number));
    job
}

/// The pod that such a Job would have. No controller counts it, but it is deleted with the Job.
pub(crate) fn finished_pod(manifest: &Value, number: usize, job_uid: &str) -> Value {
    let name = finished_name(number);
    let mut labels = manifest["spec"]["template"]["metadata"]["labels"].clone();
    labels[RUNNER_JOB] = runner_job(number).into();
    labels[JOB_NAME] = name.as_str().into();
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job_uid});
    let mut spec = manifest["spec"]["template"]["spec"].clone();
    spec["schedulerName"] = NO_SCHEDULER.into();
    let metadata = json!({"name": pod_name(number), "labels": labels, "ownerReferences": [owner]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

/// As long as the name of a pod of a Job.
pub(crate) fn pod_name(number: usize) -> String {
    format!("{}-bench", finished_name(number))
}

/// As long as the name of a Job of the server.
fn finished_name(number: usize) -> String {
    format!("bench-done-{number:032x}")
}

/// The id of a runner job that no store has.
fn runner_job(number: usize) -> String {
    format!("job_{:032x}", number + 1)
}

/// What a kubelet reports when the container runs.
pub(crate) fn running() -> String {
    status("Running", &json!({"running": {"startedAt": STARTED_AT}, "terminated": null}))
}

/// What a kubelet reports when the container has ended with 0.
pub(crate) fn succeeded() -> String {
    let terminated = json!({"exitCode": 0, "reason": "Completed", "message": RUNNER_REPORT, "startedAt": STARTED_AT,
        "finishedAt": ENDED_AT});
    status("Succeeded", &json!({"running": null, "terminated": terminated}))
}

fn status(phase: &str, state: &Value) -> String {
    let container = json!({"name": "runner", "image": IMAGE, "imageID": "", "ready": false, "restartCount": 0,
        "state": state});
    let status = json!({"phase": phase, "startTime": STARTED_AT, "containerStatuses": [container]});
    json!({"status": status}).to_string()
}

fn set_label(job: &mut Value, label: &str, value: &str) {
    for labels in LABELS {
        if let Some(labels) = job.pointer_mut(labels).and_then(Value::as_object_mut) {
            labels.insert(label.to_owned(), value.into());
        }
    }
}

fn remove(object: &mut Value, at: &str, fields: &[&str]) {
    if let Some(part) = object.pointer_mut(at).and_then(Value::as_object_mut) {
        for field in fields {
            part.remove(*field);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored() -> Value {
        let labels = json!({MANAGED_BY: "ostler", RUNNER_JOB: "job_0"});
        let mut of_pod = labels.clone();
        of_pod[JOB_NAME] = "ostler-run-0".into();
        json!({
            "metadata": {"name": "ostler-run-0", "uid": "u", "labels": labels},
            "spec": {"completions": 1, "suspend": false, "selector": {}, "template": {"metadata": {"labels": of_pod},
                "spec": {"dnsPolicy": "ClusterFirst", "containers": [{"name": "runner", "imagePullPolicy": "Always"}]}}},
            "status": {"active": 1}
        })
    }

    #[test]
    fn a_manifest_lacks_what_the_api_server_has_added() {
        let labels = json!({MANAGED_BY: "ostler", RUNNER_JOB: "job_0"});
        let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "runner"}]}});
        let expected = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "ostler-run-0",
            "labels": labels}, "spec": {"completions": 1, "template": template}});
        assert_eq!(sent_manifest(&stored()), expected);
    }

    #[test]
    fn a_bare_job_has_the_size_of_the_servers_and_another_manager() {
        let mut manifest = sent_manifest(&stored());
        manifest["metadata"]["name"] = format!("ostler-run-{:032x}", 0).into();
        let bare = bare_job(&manifest, 7);
        assert_eq!(bare.to_string().len(), manifest.to_string().len());
        assert_eq!(bare["spec"]["template"]["metadata"]["labels"][MANAGED_BY], OTHER_MANAGER);
    }

    #[test]
    fn a_finished_job_and_its_pod_have_the_labels_of_the_server() {
        let manifest = sent_manifest(&stored());
        let (job, pod) = (finished_job(&manifest, 7), finished_pod(&manifest, 7, "uid-7"));
        assert_eq!(
            (&job["spec"]["completions"], &job["metadata"]["labels"][MANAGED_BY]),
            (&json!(0), &json!("ostler"))
        );
        assert_eq!(pod["metadata"]["labels"][RUNNER_JOB], job["metadata"]["labels"][RUNNER_JOB]);
        assert_eq!(pod["metadata"]["ownerReferences"][0]["name"], job["metadata"]["name"]);
    }
}
