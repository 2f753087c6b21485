//! The scheduler binds pods to nodes; claims are bound to volumes, and protected while a pod uses them.

use serde_json::{Value, json};

use crate::kube::admission::CLAIM_FINALIZER;
use crate::kube::resources::{CLAIMS, NODES, PODS, STORAGE_CLASSES};
use crate::kube::store::{KubeStore, ObjectKey, items, text};
use crate::kube::verbs::remove_finalizer;

/// Gives every pending pod a node that is ready, or reports that there is none.
pub(super) fn schedule(store: &mut KubeStore) {
    let is_waiting = |pod: &Value| {
        text(pod, "/spec/nodeName").is_empty()
            && text(pod, "/status/phase") == "Pending"
            && pod["metadata"]["deletionTimestamp"].is_null()
    };
    let waiting: Vec<ObjectKey> =
        store.list(&PODS, None).filter(|(_, pod)| is_waiting(pod)).map(|(key, _)| key.clone()).collect();
    for key in waiting {
        let Some(mut pod) = store.get(&key).map(|pod| Value::clone(pod)) else { continue };
        let condition = match choose_node(store, &pod, &key.namespace) {
            Ok(node) => {
                pod["spec"]["nodeName"] = json!(node);
                json!({"type": "PodScheduled", "status": "True"})
            }
            Err(message) => {
                json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message})
            }
        };
        if set_condition(&mut pod, condition, &store.now_text()) {
            store.put(key, pod);
        }
    }
}

fn choose_node(store: &KubeStore, pod: &Value, namespace: &str) -> Result<String, String> {
    for claim in claims_of(pod) {
        let Some(claim) = store.get(&ObjectKey::new(&CLAIMS, namespace, claim)) else {
            return Err(format!("persistentvolumeclaim \"{claim}\" not found"));
        };
        let class = text(claim, "/spec/storageClassName");
        let is_late = store
            .get(&ObjectKey::new(&STORAGE_CLASSES, "", class))
            .is_some_and(|class| text(class, "/volumeBindingMode") == "WaitForFirstConsumer");
        if text(claim, "/status/phase") != "Bound" && !is_late {
            return Err("pod has unbound immediate PersistentVolumeClaims".to_owned());
        }
    }
    let all = store.list(&NODES, None).count();
    if all == 0 {
        return Err("no nodes available to schedule pods".to_owned());
    }
    let wanted = pod["spec"]["nodeSelector"].as_object();
    let fits = |node: &Value| {
        let is_ready = items(node, "/status/conditions")
            .iter()
            .any(|condition| text(condition, "/type") == "Ready" && text(condition, "/status") == "True");
        let has_labels =
            wanted.into_iter().flatten().all(|(label, value)| node["metadata"]["labels"][label.as_str()] == *value);
        is_ready && has_labels && node["spec"]["unschedulable"] != json!(true) && items(node, "/spec/taints").is_empty()
    };
    let found = store.list(&NODES, None).find(|(_, node)| fits(node));
    found
        .map(|(key, _)| key.name.clone())
        .ok_or_else(|| format!("0/{all} nodes are available: {all} node(s) didn't match Pod's node affinity/selector."))
}

/// `false` if the pod already has this condition.
fn set_condition(pod: &mut Value, mut condition: Value, now: &str) -> bool {
    let kind = condition["type"].clone();
    let mut conditions = items(pod, "/status/conditions").to_vec();
    let existing = conditions.iter().position(|one| one["type"] == kind);
    let is_same = existing.is_some_and(|at| {
        ["status", "reason", "message"].iter().all(|field| conditions[at][*field] == condition[*field])
    });
    if is_same {
        return false;
    }
    condition["lastTransitionTime"] = json!(now);
    match existing {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
    pod["status"]["conditions"] = json!(conditions);
    true
}

/// The names of the claims that a pod mounts.
fn claims_of(pod: &Value) -> impl Iterator<Item = &str> {
    let volumes = items(pod, "/spec/volumes").iter();
    volumes.map(|volume| text(volume, "/persistentVolumeClaim/claimName")).filter(|claim| !claim.is_empty())
}

/// Whether a scheduled pod mounts the claim.
fn is_used(store: &KubeStore, key: &ObjectKey) -> bool {
    let mut pods = store.list(&PODS, Some(&key.namespace));
    pods.any(|(_, pod)| !text(pod, "/spec/nodeName").is_empty() && claims_of(pod).any(|claim| claim == key.name))
}

/// Binds claims whose class exists: at once, or with their first pod.
pub(super) fn bind_claims(store: &mut KubeStore) {
    let pending: Vec<ObjectKey> = store
        .list(&CLAIMS, None)
        .filter(|(_, claim)| text(claim, "/status/phase") == "Pending")
        .map(|(key, _)| key.clone())
        .collect();
    for key in pending {
        let Some(mut claim) = store.get(&key).map(|claim| Value::clone(claim)) else { continue };
        let class = ObjectKey::new(&STORAGE_CLASSES, "", text(&claim, "/spec/storageClassName"));
        let Some(class) = store.get(&class) else { continue };
        if text(class, "/volumeBindingMode") == "WaitForFirstConsumer" && !is_used(store, &key) {
            continue;
        }
        claim["spec"]["volumeName"] = json!(format!("pvc-{}", text(&claim, "/metadata/uid")));
        claim["status"] = json!({
            "phase": "Bound", "accessModes": claim["spec"]["accessModes"], "capacity": claim["spec"]["resources"]["requests"]
        });
        store.put(key, claim);
    }
}

/// Lets go of deleted claims that no pod uses.
pub(super) fn release_claims(store: &mut KubeStore) {
    let is_deleted = |claim: &Value| !claim["metadata"]["deletionTimestamp"].is_null();
    let deleted: Vec<ObjectKey> =
        store.list(&CLAIMS, None).filter(|(_, claim)| is_deleted(claim)).map(|(key, _)| key.clone()).collect();
    for key in deleted {
        if !is_used(store, &key) {
            remove_finalizer(store, &key, CLAIM_FINALIZER);
        }
    }
}
