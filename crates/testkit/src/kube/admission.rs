//! Defaults and checks of objects that are created or changed: the part of the real server's rules that decides what
//! our manifests become, and which mistakes it refuses.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Event, Namespace, Node, PersistentVolumeClaim, Pod, Secret},
    storage::v1::StorageClass,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::failures::ApiFailure;
use super::resources::{ApiResource, CLAIMS, EVENTS, JOBS, NAMESPACES, NODES, PODS, SECRETS, STORAGE_CLASSES};
use super::store::{KubeStore, items, text};

const NAME_CHARS_MAX: usize = 253;
const NAME_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
                         and must start and end with an alphanumeric character (e.g. 'example.com', regex used for \
                         validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
pub(super) const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
const DEFAULT_CLASS: &str = "/metadata/annotations/storageclass.kubernetes.io~1is-default-class";

/// Fills in what the server sets on a new object, and checks it.
pub(super) fn admit_new(store: &KubeStore, resource: &ApiResource, object: &mut Value) -> Result<(), ApiFailure> {
    let name = text(object, "/metadata/name").to_owned();
    if !is_valid_name(&name) {
        let problem = format!("Invalid value: \"{name}\": {NAME_RULE}");
        return Err(ApiFailure::invalid(resource, &name, "metadata.name", &problem));
    }
    check_types(resource, object)?;
    if resource.has_status {
        object["status"] = json!({});
    }
    match resource {
        r if *r == PODS => {
            default_pod_spec(&mut object["spec"]);
            default_to(&mut object["spec"], "enableServiceLinks", json!(true));
            let has_limits = items(object, "/spec/containers").iter().any(|c| c["resources"] != json!({}));
            let class = if has_limits { "Burstable" } else { "BestEffort" };
            object["status"] = json!({"phase": "Pending", "qosClass": class});
        }
        r if *r == JOBS => default_job(object),
        r if *r == SECRETS => default_secret(object),
        r if *r == CLAIMS => default_claim(store, object),
        r if *r == NAMESPACES => object["status"] = json!({"phase": "Active"}),
        r if *r == STORAGE_CLASSES => {
            default_to(object, "reclaimPolicy", json!("Delete"));
            default_to(object, "volumeBindingMode", json!("Immediate"));
        }
        _ => {}
    }
    check(resource, &name, object)
}

/// Checks a changed object against its state before.
pub(super) fn admit_change(resource: &ApiResource, before: &Value, after: &mut Value) -> Result<(), ApiFailure> {
    check_types(resource, after)?;
    if *resource == SECRETS {
        default_secret(after);
    }
    let name = text(after, "/metadata/name").to_owned();
    let forbid = |field: &str, problem: &str| Err(ApiFailure::invalid(resource, &name, field, problem));
    if *resource == PODS && without_images(&before["spec"]) != without_images(&after["spec"]) {
        return forbid("spec", "Forbidden: pod updates may not change fields other than `spec.containers[*].image`");
    }
    if *resource == JOBS {
        for field in ["template", "selector", "completions", "completionMode"] {
            if before["spec"][field] != after["spec"][field] {
                return forbid(&format!("spec.{field}"), "Invalid value: field is immutable");
            }
        }
    }
    if *resource == CLAIMS && without_requests(&before["spec"]) != without_requests(&after["spec"]) {
        return forbid("spec", "Forbidden: spec is immutable after creation except resources.requests");
    }
    if *resource == SECRETS && before["immutable"] == json!(true) && before["data"] != after["data"] {
        return forbid("data", "Forbidden: field is immutable when `immutable` is set");
    }
    if *resource == SECRETS && before["type"] != after["type"] {
        return forbid("type", "Invalid value: field is immutable");
    }
    check(resource, &name, after)
}

fn without_images(spec: &Value) -> Value {
    let mut spec = spec.clone();
    for container in elements(&mut spec, "containers") {
        container["image"] = Value::Null;
    }
    spec["activeDeadlineSeconds"] = Value::Null;
    spec["tolerations"] = Value::Null;
    spec
}

fn without_requests(spec: &Value) -> Value {
    let mut spec = spec.clone();
    spec["resources"]["requests"] = Value::Null;
    spec["volumeName"] = Value::Null;
    spec
}

fn is_valid_name(name: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_label = |label: &str| {
        label.starts_with(is_inner) && label.ends_with(is_inner) && label.chars().all(|c| is_inner(c) || c == '-')
    };
    name.len() <= NAME_CHARS_MAX && name.split('.').all(is_label)
}

/// Whether every field has the type that the published schema gives it.
fn check_types(resource: &ApiResource, object: &Value) -> Result<(), ApiFailure> {
    fn parse<T: DeserializeOwned>(object: &Value) -> Result<(), String> {
        serde_json::from_value::<T>(object.clone()).map(drop).map_err(|error| error.to_string())
    }
    let checked = match resource {
        r if *r == PODS => parse::<Pod>(object),
        r if *r == JOBS => parse::<Job>(object),
        r if *r == SECRETS => parse::<Secret>(object),
        r if *r == CLAIMS => parse::<PersistentVolumeClaim>(object),
        r if *r == NODES => parse::<Node>(object),
        r if *r == EVENTS => parse::<Event>(object),
        r if *r == NAMESPACES => parse::<Namespace>(object),
        r if *r == STORAGE_CLASSES => parse::<StorageClass>(object),
        _ => Ok(()),
    };
    checked.map_err(|error| {
        let (kind, version) = (resource.kind, resource.version);
        ApiFailure::bad_request(format!("{kind} in version \"{version}\" cannot be handled as a {kind}: {error}"))
    })
}

/// The elements of a list field. Indexing would add the field if it is missing.
fn elements<'a>(object: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> + use<'a> {
    object.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten()
}

fn default_to(object: &mut Value, field: &str, value: Value) {
    if object[field].is_null() {
        object[field] = value;
    }
}

fn default_pod_spec(spec: &mut Value) {
    default_to(spec, "restartPolicy", json!("Always"));
    default_to(spec, "terminationGracePeriodSeconds", json!(30));
    default_to(spec, "dnsPolicy", json!("ClusterFirst"));
    default_to(spec, "securityContext", json!({}));
    default_to(spec, "schedulerName", json!("default-scheduler"));
    for container in elements(spec, "containers") {
        default_to(container, "resources", json!({}));
        default_to(container, "terminationMessagePath", json!("/dev/termination-log"));
        default_to(container, "terminationMessagePolicy", json!("File"));
        let image = text(container, "/image");
        let is_pinned = image.contains('@') || image.rsplit('/').next().is_some_and(|name| name.contains(':'));
        let policy = if is_pinned && !image.ends_with(":latest") { "IfNotPresent" } else { "Always" };
        default_to(container, "imagePullPolicy", json!(policy));
    }
    for volume in elements(spec, "volumes") {
        if volume["secret"].is_object() {
            default_to(&mut volume["secret"], "defaultMode", json!(0o644));
        }
    }
}

fn default_job(object: &mut Value) {
    let (name, uid) = (text(object, "/metadata/name").to_owned(), text(object, "/metadata/uid").to_owned());
    let spec = &mut object["spec"];
    for (field, value) in [
        ("parallelism", json!(1)),
        ("completions", json!(1)),
        ("backoffLimit", json!(6)),
        ("completionMode", json!("NonIndexed")),
        ("suspend", json!(false)),
        ("manualSelector", json!(false)),
        ("podReplacementPolicy", json!("TerminatingOrFailed")),
        ("selector", json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}})),
    ] {
        default_to(spec, field, value);
    }
    let labels = &mut spec["template"]["metadata"]["labels"];
    for (label, value) in [
        ("batch.kubernetes.io/controller-uid", &uid),
        ("batch.kubernetes.io/job-name", &name),
        ("controller-uid", &uid),
        ("job-name", &name),
    ] {
        labels[label] = json!(value);
    }
    // A Job without labels of its own gets those of its template.
    let labels = labels.clone();
    default_pod_spec(&mut spec["template"]["spec"]);
    if object["metadata"]["labels"].is_null() {
        object["metadata"]["labels"] = labels;
    }
}

fn default_secret(object: &mut Value) {
    default_to(object, "type", json!("Opaque"));
    if let Some(Value::Object(texts)) = object.as_object_mut().and_then(|fields| fields.remove("stringData")) {
        for (key, value) in texts {
            object["data"][key] = json!(BASE64.encode(value.as_str().unwrap_or_default()));
        }
    }
}

fn default_claim(store: &KubeStore, object: &mut Value) {
    default_to(&mut object["spec"], "volumeMode", json!("Filesystem"));
    if object["spec"]["storageClassName"].is_null() {
        let mut classes = store.list(&STORAGE_CLASSES, None);
        if let Some((key, _)) = classes.find(|(_, class)| text(class, DEFAULT_CLASS) == "true") {
            object["spec"]["storageClassName"] = json!(key.name);
        }
    }
    let mut finalizers = items(object, "/metadata/finalizers").to_vec();
    finalizers.push(json!(CLAIM_FINALIZER));
    object["metadata"]["finalizers"] = json!(finalizers);
    object["status"] = json!({"phase": "Pending"});
}

fn check(resource: &ApiResource, name: &str, object: &Value) -> Result<(), ApiFailure> {
    let refuse = |field: &str, problem: &str| Err(ApiFailure::invalid(resource, name, field, problem));
    if *resource == PODS {
        return check_pod_spec(&object["spec"], "spec", &refuse);
    }
    if *resource == JOBS {
        if !["Never", "OnFailure"].contains(&text(object, "/spec/template/spec/restartPolicy")) {
            let problem = "Required value: valid values: \"OnFailure\", \"Never\"";
            return refuse("spec.template.spec.restartPolicy", problem);
        }
        return check_pod_spec(&object["spec"]["template"]["spec"], "spec.template.spec", &refuse);
    }
    if *resource == CLAIMS {
        if items(object, "/spec/accessModes").is_empty() {
            return refuse("spec.accessModes", "Required value: at least 1 access mode is required");
        }
        if text(object, "/spec/resources/requests/storage").is_empty() {
            return refuse("spec.resources[storage]", "Required value");
        }
    }
    Ok(())
}

fn check_pod_spec(
    spec: &Value,
    at: &str,
    refuse: &dyn Fn(&str, &str) -> Result<(), ApiFailure>,
) -> Result<(), ApiFailure> {
    let containers = items(spec, "/containers");
    if containers.is_empty() {
        return refuse(&format!("{at}.containers"), "Required value");
    }
    let volumes: Vec<&str> = items(spec, "/volumes").iter().map(|volume| text(volume, "/name")).collect();
    for (index, container) in containers.iter().enumerate() {
        for field in ["name", "image"] {
            if text(container, &format!("/{field}")).is_empty() {
                return refuse(&format!("{at}.containers[{index}].{field}"), "Required value");
            }
        }
        for (mount_index, mount) in items(container, "/volumeMounts").iter().enumerate() {
            let name = text(mount, "/name");
            if !volumes.contains(&name) {
                let field = format!("{at}.containers[{index}].volumeMounts[{mount_index}].name");
                return refuse(&field, &format!("Not found: \"{name}\""));
            }
        }
    }
    Ok(())
}
