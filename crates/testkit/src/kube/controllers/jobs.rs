//! The job controller: one pod at a time until one succeeds, the backoff limit is exceeded or the deadline has passed.
//! A pod has a finalizer until it is counted, so that one that is deleted in between still counts.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::kube::resources::{JOBS, PODS};
use crate::kube::store::{KubeStore, ObjectKey, items, text, time_of, time_text};
use crate::kube::verbs::{DeleteOptions, WriteOptions, create, delete, remove_finalizer};

pub(super) const TRACKING_FINALIZER: &str = "batch.kubernetes.io/job-tracking";

/// When a job completed or failed. `None` while it has not.
pub(super) fn finished_at(job: &Value) -> Option<Timestamp> {
    let conditions = items(job, "/status/conditions").iter();
    let mut ends =
        conditions.filter(|one| ["Complete", "Failed"].contains(&text(one, "/type")) && text(one, "/status") == "True");
    time_of(&ends.next()?["lastTransitionTime"])
}

pub(super) fn reconcile(store: &mut KubeStore) {
    let is_open = |job: &Value| finished_at(job).is_none() && job["metadata"]["deletionTimestamp"].is_null();
    let open: Vec<ObjectKey> =
        store.list(&JOBS, None).filter(|(_, job)| is_open(job)).map(|(key, _)| key.clone()).collect();
    if open.is_empty() {
        return;
    }
    // By owner, so that many jobs do not each look at all pods.
    let mut pods: BTreeMap<String, Vec<ObjectKey>> = BTreeMap::new();
    for (key, pod) in store.list(&PODS, None) {
        for owner in items(pod, "/metadata/ownerReferences") {
            pods.entry(text(owner, "/uid").to_owned()).or_default().push(key.clone());
        }
    }
    for key in open {
        reconcile_job(store, &key, &pods);
    }
}

/// The pods of a job, by what they are to it.
#[derive(Default)]
struct JobPods {
    active: Vec<ObjectKey>,
    terminating: usize,
    ready: usize,
    /// Pods that ended or were deleted and are not counted yet.
    uncounted: Vec<(ObjectKey, bool)>,
}

fn pods_of(store: &KubeStore, keys: &[ObjectKey]) -> JobPods {
    let mut found = JobPods::default();
    for (key, pod) in keys.iter().filter_map(|key| Some((key, store.get(key)?))) {
        let phase = text(pod, "/status/phase");
        let has_ended = ["Succeeded", "Failed"].contains(&phase);
        let is_deleted = pod["metadata"]["deletionTimestamp"].is_string();
        let is_tracked = items(pod, "/metadata/finalizers").iter().any(|one| one == TRACKING_FINALIZER);
        if is_tracked && (has_ended || is_deleted) {
            found.uncounted.push((key.clone(), phase == "Succeeded"));
        }
        if !has_ended && is_deleted {
            found.terminating += 1;
        } else if !has_ended {
            found.active.push(key.clone());
        }
        let is_ready = |one: &&Value| text(one, "/type") == "Ready" && text(one, "/status") == "True";
        found.ready += usize::from(!has_ended && items(pod, "/status/conditions").iter().any(|one| is_ready(&one)));
    }
    found
}

fn reconcile_job(store: &mut KubeStore, key: &ObjectKey, by_owner: &BTreeMap<String, Vec<ObjectKey>>) {
    let Some(before) = store.get(key).cloned() else { return };
    let mut job = Value::clone(&before);
    let mut keys = by_owner.get(text(&job, "/metadata/uid")).cloned().unwrap_or_default();
    let now = store.now();
    let is_suspended = job["spec"]["suspend"] == json!(true);
    if job["status"]["startTime"].is_null() && !is_suspended {
        job["status"]["startTime"] = json!(time_text(now));
    }
    let pods = pods_of(store, &keys);
    for (pod, has_succeeded) in &pods.uncounted {
        let count = &mut job["status"][if *has_succeeded { "succeeded" } else { "failed" }];
        *count = json!(count.as_i64().unwrap_or(0) + 1);
        remove_finalizer(store, pod, TRACKING_FINALIZER);
    }
    let mut pods = pods_of(store, &keys);
    let target = decide(&job, now);
    if let Some((condition, reason, message)) = target {
        for pod in &pods.active {
            let _ = delete(store, &PODS, pod, &DeleteOptions::default());
        }
        pods = pods_of(store, &keys);
        add_condition(&mut job, condition, reason, message, now);
        if pods.active.is_empty() && pods.terminating == 0 && pods.uncounted.is_empty() {
            let is_complete = condition == "SuccessCriteriaMet";
            add_condition(&mut job, if is_complete { "Complete" } else { "Failed" }, reason, message, now);
            if is_complete {
                job["status"]["completionTime"] = json!(time_text(now));
            }
        }
    } else if pods.active.is_empty() && !is_suspended && pods.uncounted.is_empty() {
        keys.extend(start_pod(store, key, &job));
        pods = pods_of(store, &keys);
    }
    write_status(store, key, &before, job, &pods);
}

/// Why the job is to end: the condition that reports it, its reason and its message. `None` while it goes on.
fn decide(job: &Value, now: Timestamp) -> Option<(&'static str, &'static str, &'static str)> {
    let count = |field: &str| job["status"][field].as_i64().unwrap_or(0);
    let has = |kind: &str| items(job, "/status/conditions").iter().find(|one| text(one, "/type") == kind);
    const DEADLINE: (&str, &str, &str) =
        ("FailureTarget", "DeadlineExceeded", "Job was active longer than specified deadline");
    const BACKOFF: (&str, &str, &str) =
        ("FailureTarget", "BackoffLimitExceeded", "Job has reached the specified backoff limit");
    // A job that has begun to fail does not succeed any more.
    if let Some(failing) = has("FailureTarget") {
        return Some(if text(failing, "/reason") == DEADLINE.1 { DEADLINE } else { BACKOFF });
    }
    if count("succeeded") >= job["spec"]["completions"].as_i64().unwrap_or(1) {
        return Some(("SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods"));
    }
    if count("failed") > job["spec"]["backoffLimit"].as_i64().unwrap_or(6) {
        return Some(BACKOFF);
    }
    let deadline_s = job["spec"]["activeDeadlineSeconds"].as_i64()?;
    let until = time_of(&job["status"]["startTime"])?.checked_add(SignedDuration::from_secs(deadline_s)).ok()?;
    (until <= now).then_some(DEADLINE)
}

fn add_condition(job: &mut Value, kind: &str, reason: &str, message: &str, now: Timestamp) {
    let mut conditions = items(job, "/status/conditions").to_vec();
    if conditions.iter().any(|one| text(one, "/type") == kind) {
        return;
    }
    let now = time_text(now);
    conditions.push(json!({
        "type": kind, "status": "True", "lastProbeTime": now, "lastTransitionTime": now,
        "reason": reason, "message": message
    }));
    job["status"]["conditions"] = json!(conditions);
}

/// `None` if the pod cannot be created.
fn start_pod(store: &mut KubeStore, key: &ObjectKey, job: &Value) -> Option<ObjectKey> {
    let template = &job["spec"]["template"];
    let mut metadata = template["metadata"].clone();
    metadata["generateName"] = json!(format!("{}-", key.name));
    metadata["finalizers"] = json!([TRACKING_FINALIZER]);
    metadata["ownerReferences"] = json!([{
        "apiVersion": "batch/v1", "kind": "Job", "name": key.name, "uid": job["metadata"]["uid"],
        "controller": true, "blockOwnerDeletion": true
    }]);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]});
    let mut options = WriteOptions::default();
    "kube-controller-manager".clone_into(&mut options.writer.manager);
    let created = create(store, &PODS, Some(&key.namespace), pod, &options).ok()?;
    Some(ObjectKey::new(&PODS, &key.namespace, text(&created, "/metadata/name")))
}

fn write_status(store: &mut KubeStore, key: &ObjectKey, before: &Value, mut job: Value, pods: &JobPods) {
    let status = &mut job["status"];
    if pods.active.is_empty() {
        status.as_object_mut().map(|status| status.remove("active"));
    } else {
        status["active"] = json!(pods.active.len());
    }
    status["terminating"] = json!(pods.terminating);
    status["ready"] = json!(pods.ready);
    status["uncountedTerminatedPods"] = json!({});
    if *before != job {
        store.put(key.clone(), job);
    }
}
