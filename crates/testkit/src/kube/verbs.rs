//! What the verbs do to the store: create, replace, delete. Reads and patches end here too. Everything is synchronous:
//! a request holds the store while it is executed, as one transaction of etcd does.

use std::sync::Arc;

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::admission::{admit_change, admit_new};
use super::failures::ApiFailure;
use super::managers::{FieldWriter, record_update};
use super::resources::{ApiResource, JOBS, NAMESPACES, PODS};
use super::store::{KubeStore, ObjectKey, items, text, time_text};

pub(super) const FOREGROUND: &str = "foregroundDeletion";
pub(super) const ORPHAN: &str = "orphan";
const POD_GRACE_S: i64 = 30;

/// Options of a create or a change.
#[derive(Clone, Debug, Default)]
pub(super) struct WriteOptions {
    pub writer: FieldWriter,
    pub is_dry_run: bool,
    /// The object comes from server-side apply, which has already recorded who owns what.
    pub is_applied: bool,
}

/// Options of a deletion, from the body or the query.
#[derive(Clone, Debug, Default)]
pub(super) struct DeleteOptions {
    pub grace_period_s: Option<i64>,
    pub propagation: Option<String>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub is_dry_run: bool,
}

pub(super) fn create(
    store: &mut KubeStore,
    resource: &'static ApiResource,
    namespace: Option<&str>,
    mut object: Value,
    options: &WriteOptions,
) -> Result<Value, ApiFailure> {
    if !object.is_object() || !object["metadata"].is_object() {
        return Err(ApiFailure::bad_request("the object provided is unrecognized: it has no metadata"));
    }
    check_kind(resource, &object)?;
    if let Some(namespace) = namespace {
        let given = text(&object, "/metadata/namespace");
        if !given.is_empty() && given != namespace {
            let message = "the namespace of the provided object does not match the namespace sent on the request";
            return Err(ApiFailure::bad_request(message));
        }
        object["metadata"]["namespace"] = json!(namespace);
        if store.get(&ObjectKey::new(&NAMESPACES, "", namespace)).is_none() {
            return Err(ApiFailure::not_found(&NAMESPACES, namespace));
        }
    } else if resource.is_namespaced {
        return Err(ApiFailure::method_not_allowed());
    }
    if !text(&object, "/metadata/resourceVersion").is_empty() {
        return Err(ApiFailure::internal("resourceVersion should not be set on objects to be created"));
    }
    if text(&object, "/metadata/name").is_empty() {
        let prefix = text(&object, "/metadata/generateName").to_owned();
        if prefix.is_empty() {
            return Err(ApiFailure::invalid(
                resource,
                "",
                "metadata.name",
                "Required value: name or generateName is required",
            ));
        }
        object["metadata"]["name"] = json!(format!("{prefix}{}", store.next_suffix()));
    }
    let name = text(&object, "/metadata/name").to_owned();
    let key = ObjectKey::new(resource, namespace.unwrap_or_default(), &name);
    if store.get(&key).is_some() {
        return Err(ApiFailure::already_exists(resource, &name));
    }
    object["apiVersion"] = json!(resource.api_version());
    object["kind"] = json!(resource.kind);
    let now = store.now_text();
    if !options.is_applied {
        record_update(&json!({}), &mut object, &options.writer, &now);
    }
    object["metadata"]["uid"] = json!(store.next_uid());
    object["metadata"]["creationTimestamp"] = json!(now);
    if resource.has_generation {
        object["metadata"]["generation"] = json!(1);
    }
    admit_new(store, resource, &mut object)?;
    Ok(if options.is_dry_run { object } else { Value::clone(&store.put(key, object)) })
}

fn check_kind(resource: &ApiResource, object: &Value) -> Result<(), ApiFailure> {
    let (kind, version) = (text(object, "/kind"), text(object, "/apiVersion"));
    let api_version = resource.api_version();
    if (kind.is_empty() || kind == resource.kind) && (version.is_empty() || version == api_version) {
        return Ok(());
    }
    Err(ApiFailure::bad_request(format!(
        "{kind} in version \"{version}\" cannot be handled as a {}: no kind \"{kind}\" is registered for version \"{version}\"",
        resource.kind
    )))
}

/// Replaces an object. A state that differs in nothing is not written, so its version stays.
pub(super) fn replace(
    store: &mut KubeStore,
    resource: &'static ApiResource,
    key: &ObjectKey,
    mut object: Value,
    options: &WriteOptions,
) -> Result<Value, ApiFailure> {
    let Some(before) = store.get(key).cloned() else { return Err(ApiFailure::not_found(resource, &key.name)) };
    check_kind(resource, &object)?;
    let name = text(&object, "/metadata/name");
    if name != key.name {
        let message = format!("the name of the object ({name}) does not match the name on the URL ({})", key.name);
        return Err(ApiFailure::bad_request(message));
    }
    let version = text(&object, "/metadata/resourceVersion");
    let uid = text(&object, "/metadata/uid");
    if (!version.is_empty() && version != text(&before, "/metadata/resourceVersion"))
        || (!uid.is_empty() && uid != text(&before, "/metadata/uid"))
    {
        return Err(ApiFailure::conflict(resource, &key.name));
    }
    keep_server_fields(resource, &before, &mut object, options.writer.subresource.as_deref());
    admit_change(resource, &before, &mut object)?;
    if resource.has_generation && before["spec"] != object["spec"] {
        object["metadata"]["generation"] = json!(before["metadata"]["generation"].as_i64().unwrap_or(0) + 1);
    }
    if is_same(&before, &object) {
        return Ok(Value::clone(&before));
    }
    if !options.is_applied {
        record_update(&before, &mut object, &options.writer, &store.now_text());
    }
    if options.is_dry_run {
        return Ok(object);
    }
    if is_finished_deleting(&object) {
        // It waited for its last finalizer.
        return Ok(store.remove(key).map_or(Value::Null, |last| Value::clone(&last)));
    }
    Ok(Value::clone(&store.put(key.clone(), object)))
}

/// Restores what a client cannot change: the identity, the status (or everything else, for the status subresource).
fn keep_server_fields(resource: &ApiResource, before: &Value, object: &mut Value, subresource: Option<&str>) {
    object["apiVersion"] = before["apiVersion"].clone();
    object["kind"] = before["kind"].clone();
    let is_status = subresource == Some("status");
    if is_status {
        let (status, metadata) = (object["status"].take(), object["metadata"].take());
        *object = before.clone();
        set_or_remove(object, "status", &status);
        object["metadata"] = metadata;
    } else if resource.has_status {
        set_or_remove(object, "status", &before["status"]);
    }
    for field in [
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "generateName",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        set_or_remove(&mut object["metadata"], field, &before["metadata"][field]);
    }
    if object["metadata"]["managedFields"].is_null() {
        set_or_remove(&mut object["metadata"], "managedFields", &before["metadata"]["managedFields"]);
    }
}

fn set_or_remove(object: &mut Value, field: &str, value: &Value) {
    if !value.is_null() {
        object[field] = value.clone();
    } else if let Some(fields) = object.as_object_mut() {
        fields.remove(field);
    }
}

fn is_same(before: &Value, after: &Value) -> bool {
    let stripped = |object: &Value| {
        let mut object = object.clone();
        let rows = object.pointer_mut("/metadata/managedFields").and_then(Value::as_array_mut);
        for row in rows.into_iter().flatten() {
            row["time"] = Value::Null;
        }
        object
    };
    before == after || stripped(before) == stripped(after)
}

/// Whether a deleted object no longer waits: neither for finalizers nor for its grace period.
fn is_finished_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
        && object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && items(object, "/metadata/finalizers").is_empty()
}

/// Deletes an object, or marks it as deleted while finalizers or the kubelet still have to act. Returns the response.
pub(super) fn delete(
    store: &mut KubeStore,
    resource: &'static ApiResource,
    key: &ObjectKey,
    options: &DeleteOptions,
) -> Result<Value, ApiFailure> {
    let Some(before) = store.get(key).cloned() else { return Err(ApiFailure::not_found(resource, &key.name)) };
    let uid = text(&before, "/metadata/uid");
    if let Some(expected) = options.uid.as_deref().filter(|expected| *expected != uid) {
        return Err(ApiFailure::wrong_uid(resource, &key.name, expected, uid));
    }
    if options.resource_version.as_deref().is_some_and(|version| version != text(&before, "/metadata/resourceVersion"))
    {
        return Err(ApiFailure::conflict(resource, &key.name));
    }
    let mut object = Value::clone(&before);
    let mut finalizers = items(&object, "/metadata/finalizers").to_vec();
    let added = match options.propagation.as_deref() {
        Some("Foreground") => Some(FOREGROUND),
        Some("Orphan") => Some(ORPHAN),
        _ => None,
    };
    if let Some(added) = added.filter(|added| !finalizers.contains(&json!(added))) {
        finalizers.push(json!(added));
    }
    if !finalizers.is_empty() {
        object["metadata"]["finalizers"] = json!(finalizers);
    }
    let grace_s = if *resource == PODS { pod_grace_s(&object, options.grace_period_s) } else { 0 };
    let marked = object["metadata"]["deletionGracePeriodSeconds"].as_i64();
    if object["metadata"]["deletionTimestamp"].is_null() {
        if resource.has_generation {
            object["metadata"]["generation"] = json!(object["metadata"]["generation"].as_i64().unwrap_or(0) + 1);
        }
        mark(store, &mut object, grace_s);
    } else if marked.is_some_and(|marked| grace_s < marked) {
        mark(store, &mut object, grace_s);
    }
    if options.is_dry_run {
        return Ok(object);
    }
    if !is_finished_deleting(&object) {
        let stored = if is_same(&before, &object) { before } else { store.put(key.clone(), object) };
        return Ok(Value::clone(&stored));
    }
    let is_pod = *resource == PODS;
    if is_pod {
        store.put(key.clone(), object);
    }
    let last = store.remove(key).unwrap_or(before);
    Ok(if is_pod { Value::clone(&last) } else { deleted(resource, &last) })
}

fn mark(store: &KubeStore, object: &mut Value, grace_s: i64) {
    let until = store.now().checked_add(SignedDuration::from_secs(grace_s)).unwrap_or_else(|_| store.now());
    object["metadata"]["deletionTimestamp"] = json!(time_text(until));
    object["metadata"]["deletionGracePeriodSeconds"] = json!(grace_s);
}

/// Without a node or after its end, nothing of a pod is left to be stopped.
fn pod_grace_s(pod: &Value, requested: Option<i64>) -> i64 {
    let has_ended = ["Succeeded", "Failed"].contains(&text(pod, "/status/phase"));
    if has_ended || text(pod, "/spec/nodeName").is_empty() {
        return 0;
    }
    requested.unwrap_or_else(|| pod["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(POD_GRACE_S))
}

fn deleted(resource: &ApiResource, object: &Arc<Value>) -> Value {
    let mut details = json!({
        "name": object["metadata"]["name"], "kind": resource.plural, "uid": object["metadata"]["uid"]
    });
    if *resource == JOBS {
        details["group"] = json!(resource.group);
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

/// Removes a finalizer, and the object if it was deleted and this was its last one.
pub(super) fn remove_finalizer(store: &mut KubeStore, key: &ObjectKey, finalizer: &str) {
    let Some(mut object) = store.get(key).map(|object| Value::clone(object)) else { return };
    let mut finalizers = items(&object, "/metadata/finalizers").to_vec();
    let before = finalizers.len();
    finalizers.retain(|one| one != finalizer);
    if finalizers.len() == before {
        return;
    }
    let is_deleted = object["metadata"]["deletionTimestamp"].is_string()
        && object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0;
    if finalizers.is_empty() && is_deleted {
        store.remove(key);
        return;
    }
    if finalizers.is_empty() {
        object["metadata"].as_object_mut().map(|metadata| metadata.remove("finalizers"));
    } else {
        object["metadata"]["finalizers"] = json!(finalizers);
    }
    store.put(key.clone(), object);
}
