//! Garbage collection: dependents of deleted owners, foreground and orphan deletion, finished jobs after their time to
//! live, pods of nodes that are gone, objects of deleted namespaces.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::kube::resources::{ApiResource, CLAIMS, EVENTS, JOBS, NAMESPACES, NODES, PODS, SECRETS};
use crate::kube::store::{KubeStore, ObjectKey, items, text};
use crate::kube::verbs::{DeleteOptions, FOREGROUND, ORPHAN, delete, remove_finalizer};

use super::jobs::{TRACKING_FINALIZER, finished_at};

/// The resources that can have owners.
static DEPENDENTS: [&ApiResource; 5] = [&PODS, &SECRETS, &CLAIMS, &EVENTS, &JOBS];

pub(super) fn collect(store: &mut KubeStore) {
    expire_finished_jobs(store);
    delete_pods_of_missing_nodes(store);
    delete_orphaned_namespaces(store);
    delete_dependents(store);
}

fn force() -> DeleteOptions {
    DeleteOptions { grace_period_s: Some(0), ..DeleteOptions::default() }
}

/// Deletes finished jobs whose time to live has passed, as the real controller does: in the foreground.
fn expire_finished_jobs(store: &mut KubeStore) {
    let now = store.now();
    let is_expired = |job: &Value| {
        let ttl = job["spec"]["ttlSecondsAfterFinished"].as_i64();
        let until = ttl.zip(finished_at(job)).and_then(|(ttl, at)| at.checked_add(SignedDuration::from_secs(ttl)).ok());
        job["metadata"]["deletionTimestamp"].is_null() && until.is_some_and(|until| until <= now)
    };
    let expired: Vec<ObjectKey> =
        store.list(&JOBS, None).filter(|(_, job)| is_expired(job)).map(|(key, _)| key.clone()).collect();
    let options = DeleteOptions { propagation: Some("Foreground".to_owned()), ..DeleteOptions::default() };
    for key in expired {
        let _ = delete(store, &JOBS, &key, &options);
    }
}

/// A pod whose node no longer exists has failed.
fn delete_pods_of_missing_nodes(store: &mut KubeStore) {
    let nodes: BTreeSet<String> = store.list(&NODES, None).map(|(key, _)| key.name.clone()).collect();
    let is_lost = |pod: &Value| {
        let node = text(pod, "/spec/nodeName");
        !node.is_empty() && !nodes.contains(node)
    };
    let lost: Vec<ObjectKey> =
        store.list(&PODS, None).filter(|(_, pod)| is_lost(pod)).map(|(key, _)| key.clone()).collect();
    for key in lost {
        let Some(mut pod) = store.get(&key).map(|pod| Value::clone(pod)) else { continue };
        if !["Succeeded", "Failed"].contains(&text(&pod, "/status/phase")) {
            let mut conditions = items(&pod, "/status/conditions").to_vec();
            conditions.push(json!({
                "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC",
                "message": "PodGC: node no longer exists", "lastTransitionTime": store.now_text()
            }));
            pod["status"]["phase"] = json!("Failed");
            pod["status"]["conditions"] = json!(conditions);
            store.put(key.clone(), pod);
        }
        let is_marked = store.get(&key).is_some_and(|pod| pod["metadata"]["deletionGracePeriodSeconds"] == json!(0));
        if !is_marked {
            let _ = delete(store, &PODS, &key, &force());
        }
    }
}

/// Removes what is left in namespaces that were deleted.
fn delete_orphaned_namespaces(store: &mut KubeStore) {
    let namespaces: BTreeSet<String> = store.list(&NAMESPACES, None).map(|(key, _)| key.name.clone()).collect();
    for resource in DEPENDENTS {
        let left: Vec<ObjectKey> = store
            .list(resource, None)
            .filter(|(key, _)| !namespaces.contains(&key.namespace))
            .map(|(key, _)| key.clone())
            .collect();
        for key in left {
            store.remove(&key);
        }
    }
}

fn delete_dependents(store: &mut KubeStore) {
    // Owners by id, with the finalizer that decides what becomes of their dependents.
    let mut owners: BTreeSet<String> = BTreeSet::new();
    let mut foreground: Vec<(ObjectKey, String)> = vec![];
    let mut orphaning: Vec<(ObjectKey, String)> = vec![];
    for resource in DEPENDENTS.into_iter().chain([&NODES, &NAMESPACES]) {
        for (key, object) in store.list(resource, None) {
            let uid = text(object, "/metadata/uid").to_owned();
            let is_deleted = !object["metadata"]["deletionTimestamp"].is_null();
            let has = |finalizer: &str| items(object, "/metadata/finalizers").iter().any(|one| one == finalizer);
            if is_deleted && has(FOREGROUND) {
                foreground.push((key.clone(), uid.clone()));
            } else if is_deleted && has(ORPHAN) {
                orphaning.push((key.clone(), uid.clone()));
            }
            owners.insert(uid);
        }
    }
    for (key, uid) in orphaning {
        for (dependent, _) in dependents_of(store, &uid) {
            disown(store, &dependent, &uid);
        }
        remove_finalizer(store, &key, ORPHAN);
    }
    for (key, uid) in foreground {
        let dependents = dependents_of(store, &uid);
        if dependents.is_empty() {
            remove_finalizer(store, &key, FOREGROUND);
        }
        for (dependent, resource) in dependents {
            delete_dependent(store, resource, &dependent);
        }
    }
    for resource in DEPENDENTS {
        let is_orphan = |object: &Value| {
            let references = items(object, "/metadata/ownerReferences");
            !references.is_empty() && references.iter().all(|owner| !owners.contains(text(owner, "/uid")))
        };
        let orphans: Vec<ObjectKey> =
            store.list(resource, None).filter(|(_, object)| is_orphan(object)).map(|(key, _)| key.clone()).collect();
        for key in orphans {
            delete_dependent(store, resource, &key);
        }
    }
}

fn dependents_of(store: &KubeStore, uid: &str) -> Vec<(ObjectKey, &'static ApiResource)> {
    let is_owned =
        |object: &Value| items(object, "/metadata/ownerReferences").iter().any(|owner| text(owner, "/uid") == uid);
    let all = DEPENDENTS.into_iter().flat_map(|resource| store.list(resource, None).map(move |row| (row, resource)));
    all.filter(|((_, object), _)| is_owned(object)).map(|((key, _), resource)| (key.clone(), resource)).collect()
}

/// Deletes a dependent once. The job controller no longer counts pods of a deleted job.
fn delete_dependent(store: &mut KubeStore, resource: &'static ApiResource, key: &ObjectKey) {
    remove_finalizer(store, key, TRACKING_FINALIZER);
    let is_deleted = store.get(key).is_none_or(|object| object["metadata"]["deletionTimestamp"].is_string());
    if !is_deleted {
        let options = DeleteOptions { propagation: Some("Background".to_owned()), ..DeleteOptions::default() };
        let _ = delete(store, resource, key, &options);
    }
}

fn disown(store: &mut KubeStore, key: &ObjectKey, uid: &str) {
    let Some(mut object) = store.get(key).map(|object| Value::clone(object)) else { return };
    let mut references = items(&object, "/metadata/ownerReferences").to_vec();
    references.retain(|owner| text(owner, "/uid") != uid);
    object["metadata"]["ownerReferences"] = json!(references);
    store.put(key.clone(), object);
}
