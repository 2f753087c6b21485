//! One request: who sends it, which verb on which resource it is, what faults are armed for it, and its response.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Method, header, request::Parts};
use axum::response::Response;
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::access::{SERVER_ACCOUNT, is_granted};
use super::failures::{ApiFailure, json_response};
use super::faults::KubeFault;
use super::lists;
use super::logs;
use super::managers::{FieldWriter, apply};
use super::patch::{merge, merge_strategic};
use super::resources::{ApiTarget, discovery};
use super::selectors::ObjectSelector;
use super::shared::{KubeShared, KubeUser};
use super::store::{KubeStore, ObjectKey};
use super::verbs::{DeleteOptions, WriteOptions, create, delete, replace};
use super::watch::{self, WatchRequest};

/// As much as the real server accepts.
const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;
const CREATED: u16 = 201;
const OK: u16 = 200;

pub(super) const CLIENT_TOKEN: &str = "testkit-client";
pub(super) const SERVER_TOKEN: &str = "testkit-server";
pub(super) const KUBELET_TOKEN: &str = "testkit-kubelet";

/// A request that was read.
pub(super) struct ApiCall {
    pub target: ApiTarget,
    pub query: BTreeMap<String, String>,
    verb: &'static str,
    user: KubeUser,
    headers: HeaderMap,
    body: Vec<u8>,
}

/// Handles a request. An error makes the server cut the connection without a response.
pub(super) async fn handle(shared: Arc<KubeShared>, request: hyper::Request<Incoming>) -> io::Result<Response> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    if ["/healthz", "/livez", "/readyz"].contains(&path) {
        return Ok(Response::new(Body::from("ok")));
    }
    let Some(user) = authenticate(&parts.headers) else { return Ok(ApiFailure::unauthorized().to_response()) };
    if let Some(found) = discovery(path).filter(|_| parts.method == Method::GET) {
        return Ok(json_response(OK, &found));
    }
    let Some(target) = ApiTarget::parse(path) else { return Ok(ApiFailure::no_such_path().to_response()) };
    let query = query_of(&parts);
    let Some(verb) = verb_of(&parts.method, &target, &query) else {
        return Ok(ApiFailure::method_not_allowed().to_response());
    };
    let fault = match admit(&shared, user, verb, &target) {
        Ok(fault) => fault,
        Err(failure) => return Ok(failure.to_response()),
    };
    match &fault {
        Some(KubeFault::TooManyRequests { retry_after_s }) => {
            return Ok(ApiFailure::too_many_requests(*retry_after_s).to_response());
        }
        Some(KubeFault::QuotaExceeded) => {
            let name = target.name.as_deref().unwrap_or_default();
            return Ok(ApiFailure::quota_exceeded(target.resource, name).to_response());
        }
        Some(KubeFault::InternalError) => {
            return Ok(ApiFailure::internal("Internal error occurred: a fault of the test kit").to_response());
        }
        Some(KubeFault::CutBefore) => return Err(io::Error::other("cut before the request was executed")),
        Some(KubeFault::Delay(delay)) => tokio::time::sleep(*delay).await,
        Some(KubeFault::LostAnswer | KubeFault::Expired) | None => {}
    }
    let body = to_bytes(Body::new(body), BODY_BYTES_MAX).await.map_err(io::Error::other)?;
    let call = ApiCall { target, query, verb, user, headers: parts.headers, body: body.to_vec() };
    let response = respond(&shared, call, fault == Some(KubeFault::Expired)).await;
    if fault == Some(KubeFault::LostAnswer) {
        return Err(io::Error::other("cut before the response"));
    }
    Ok(response.unwrap_or_else(|failure| failure.to_response()))
}

fn authenticate(headers: &HeaderMap) -> Option<KubeUser> {
    match headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")? {
        CLIENT_TOKEN => Some(KubeUser::Client),
        SERVER_TOKEN => Some(KubeUser::Server),
        KUBELET_TOKEN => Some(KubeUser::Kubelet),
        _ => None,
    }
}

/// Counts a call that is not the kubelet's, and returns the fault that is armed for it. An error if the caller may not make it.
fn admit(shared: &KubeShared, user: KubeUser, verb: &str, target: &ApiTarget) -> Result<Option<KubeFault>, ApiFailure> {
    if user == KubeUser::Kubelet {
        return Ok(None);
    }
    let resource = target.counted_as();
    let faults = &mut shared.lock().faults;
    faults.count(verb, &resource);
    if let Some(fault) = faults.take(verb, &resource) {
        return Ok(Some(fault));
    }
    let (group, namespace) = (target.resource.group, target.namespace.as_deref());
    // Every account may have its own access reviewed.
    let has_right =
        user != KubeUser::Server || !target.resource.is_stored || is_granted(verb, group, &resource, namespace);
    if faults.is_denied(verb, &resource) || !has_right {
        let account = if user == KubeUser::Server { SERVER_ACCOUNT } else { "client" };
        let name = target.name.as_deref().unwrap_or_default();
        return Err(ApiFailure::forbidden(account, verb, &resource, group, namespace, name));
    }
    Ok(None)
}

fn query_of(parts: &Parts) -> BTreeMap<String, String> {
    let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    let pairs = parts.uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (decode(name), decode(value)))
        .collect()
}

fn is_true(query: &BTreeMap<String, String>, name: &str) -> bool {
    query.get(name).is_some_and(|value| ["true", "1", ""].contains(&value.as_str()))
}

fn verb_of(method: &Method, target: &ApiTarget, query: &BTreeMap<String, String>) -> Option<&'static str> {
    let verb = match (method.as_str(), target.name.is_some()) {
        ("GET", false) if is_true(query, "watch") => "watch",
        ("GET", false) => "list",
        ("GET", true) => "get",
        ("POST", false) => "create",
        ("PUT", true) => "update",
        ("PATCH", true) => "patch",
        ("DELETE", true) => "delete",
        ("DELETE", false) => "deletecollection",
        _ => return None,
    };
    let is_possible = match target.subresource.as_deref() {
        Some("log") => verb == "get",
        Some(_) => ["get", "update", "patch"].contains(&verb),
        None => target.resource.is_stored || verb == "create",
    };
    is_possible.then_some(verb)
}

async fn respond(shared: &Arc<KubeShared>, call: ApiCall, expires_at_once: bool) -> Result<Response, ApiFailure> {
    if call.target.subresource.as_deref() == Some("log") {
        return logs::read(shared, &call.target, &call.query).await;
    }
    if call.verb == "watch" {
        return Ok(watch::response(shared.clone(), watch_request(&call, expires_at_once)?));
    }
    if call.verb == "create" && !call.target.resource.is_stored {
        return review_access(shared, &call);
    }
    if matches!(call.verb, "get" | "list") {
        return read(&shared.lock().store, &call);
    }
    check_secret_name(shared, &call)?;
    let (code, object) = shared.change(|state| write(&mut state.store, &call))?;
    Ok(json_response(code, &object))
}

/// Refuses the server's account what the admission policy of its installation does.
fn check_secret_name(shared: &KubeShared, call: &ApiCall) -> Result<(), ApiFailure> {
    let target = &call.target;
    if call.user != KubeUser::Server || target.resource.plural != "secrets" {
        return Ok(());
    }
    let name = match &target.name {
        Some(name) => name.clone(),
        None => call.json()?["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
    };
    if shared.lock().secret_names.allow(&name) {
        return Ok(());
    }
    Err(ApiFailure::forbidden(SERVER_ACCOUNT, call.verb, "secrets", "", target.namespace.as_deref(), &name))
}

fn read(store: &KubeStore, call: &ApiCall) -> Result<Response, ApiFailure> {
    if call.verb == "list" {
        let selector = call.selector()?;
        return lists::page(store, &call.target, &selector, &call.query).map(|list| json_response(OK, &list));
    }
    let key = call.key();
    let object = store.get(&key).ok_or_else(|| ApiFailure::not_found(call.target.resource, &key.name))?;
    Ok(json_response(OK, object))
}

impl ApiCall {
    fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    fn key(&self) -> ObjectKey {
        let namespace = self.target.namespace.as_deref().unwrap_or_default();
        ObjectKey::new(self.target.resource, namespace, self.target.name.as_deref().unwrap_or_default())
    }

    fn selector(&self) -> Result<ObjectSelector, ApiFailure> {
        let (labels, fields) = (self.parameter("labelSelector"), self.parameter("fieldSelector"));
        ObjectSelector::parse(self.target.resource, labels, fields)
    }

    fn options(&self) -> WriteOptions {
        let agent = self.headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or("unknown");
        let manager = match self.parameter("fieldManager") {
            "" => agent.split('/').next().unwrap_or(agent),
            manager => manager,
        };
        WriteOptions {
            writer: FieldWriter { manager: manager.to_owned(), subresource: self.target.subresource.clone() },
            is_dry_run: !self.parameter("dryRun").is_empty(),
            is_applied: false,
        }
    }

    fn json(&self) -> Result<Value, ApiFailure> {
        serde_json::from_slice(&self.body).map_err(|error| {
            let kind = self.target.resource.kind;
            ApiFailure::bad_request(format!("the object provided is unrecognized (must be of type {kind}): {error}"))
        })
    }
}

fn watch_request(call: &ApiCall, expires_at_once: bool) -> Result<WatchRequest, ApiFailure> {
    let from = match call.parameter("resourceVersion") {
        "" | "0" => None,
        version => Some(version.parse().map_err(|_| {
            ApiFailure::internal(format!("resourceVersion: Invalid value: \"{version}\": invalid syntax"))
        })?),
    };
    Ok(WatchRequest {
        resource: call.target.resource,
        namespace: call.target.namespace.clone(),
        selector: call.selector()?,
        from,
        wants_bookmarks: is_true(&call.query, "allowWatchBookmarks"),
        timeout: call.parameter("timeoutSeconds").parse().ok().map(Duration::from_secs),
        expires_at_once,
    })
}

fn write(store: &mut KubeStore, call: &ApiCall) -> Result<(u16, Value), ApiFailure> {
    let target = &call.target;
    let options = call.options();
    match call.verb {
        "create" => {
            let created = create(store, target.resource, target.namespace.as_deref(), call.json()?, &options)?;
            Ok((CREATED, created))
        }
        "update" => Ok((OK, replace(store, target.resource, &call.key(), call.json()?, &options)?)),
        "patch" => patch(store, call, options),
        "delete" => Ok((OK, delete(store, target.resource, &call.key(), &delete_options(call)?)?)),
        _ => {
            let (selector, options) = (call.selector()?, delete_options(call)?);
            let listed = store.list(target.resource, target.namespace.as_deref());
            let keys: Vec<ObjectKey> =
                listed.filter(|(_, object)| selector.matches(object)).map(|(key, _)| key.clone()).collect();
            let removed = keys.iter().filter_map(|key| store.get(key)).map(|object| Value::clone(object)).collect();
            for key in &keys {
                delete(store, target.resource, key, &options)?;
            }
            Ok((OK, lists::list_of(target.resource, store.revision(), removed)))
        }
    }
}

fn patch(store: &mut KubeStore, call: &ApiCall, options: WriteOptions) -> Result<(u16, Value), ApiFailure> {
    let (target, key) = (&call.target, call.key());
    let kind = call.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let live = store.get(&key).cloned();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if kind == "application/apply-patch+yaml" {
        if call.parameter("fieldManager").is_empty() {
            return Err(ApiFailure::no_field_manager());
        }
        let applied = call.json()?;
        let options = WriteOptions { is_applied: true, ..options };
        let is_new = live.is_none();
        let resource = target.resource;
        let empty =
            json!({"apiVersion": resource.api_version(), "kind": resource.kind, "metadata": {"name": key.name}});
        let live = live.map_or(empty, |live| Value::clone(&live));
        let force = is_true(&call.query, "force");
        let merged = apply(&live, &applied, &options.writer, force, &store.now_text())?;
        if is_new {
            return Ok((CREATED, create(store, resource, target.namespace.as_deref(), merged, &options)?));
        }
        return Ok((OK, replace(store, resource, &key, merged, &options)?));
    }
    let Some(live) = live else { return Err(ApiFailure::not_found(target.resource, &key.name)) };
    let mut object = Value::clone(&live);
    match kind {
        "application/merge-patch+json" => merge(&mut object, &call.json()?),
        "application/strategic-merge-patch+json" => merge_strategic(&mut object, &call.json()?),
        _ => return Err(ApiFailure::unsupported_media_type()),
    }
    Ok((OK, replace(store, target.resource, &key, object, &options)?))
}

/// From the body, as clients send them, or from the query.
fn delete_options(call: &ApiCall) -> Result<DeleteOptions, ApiFailure> {
    let body = if call.body.is_empty() { json!({}) } else { call.json()? };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let of_query = |name: &str| call.query.get(name).filter(|value| !value.is_empty()).cloned();
    let grace = body["gracePeriodSeconds"].as_i64();
    Ok(DeleteOptions {
        grace_period_s: grace.or_else(|| of_query("gracePeriodSeconds").and_then(|value| value.parse().ok())),
        propagation: text(&body["propagationPolicy"]).or_else(|| of_query("propagationPolicy")),
        uid: text(&body["preconditions"]["uid"]),
        resource_version: text(&body["preconditions"]["resourceVersion"]),
        is_dry_run: body["dryRun"].is_array() || of_query("dryRun").is_some(),
    })
}

/// Answers whether the caller has this access.
fn review_access(shared: &KubeShared, call: &ApiCall) -> Result<Response, ApiFailure> {
    let mut review = call.json()?;
    let attributes = &review["spec"]["resourceAttributes"];
    let field = |name: &str| attributes[name].as_str().unwrap_or_default();
    let resource = match field("subresource") {
        "" => field("resource").to_owned(),
        subresource => format!("{}/{subresource}", field("resource")),
    };
    let verb = field("verb");
    let has_right =
        call.user != KubeUser::Server || is_granted(verb, field("group"), &resource, Some(field("namespace")));
    let is_denied = call.user != KubeUser::Kubelet && shared.lock().faults.is_denied(verb, &resource);
    let is_allowed = has_right && !is_denied;
    review["status"] = json!({"allowed": is_allowed});
    review["kind"] = json!(call.target.resource.kind);
    review["apiVersion"] = json!(call.target.resource.api_version());
    Ok(json_response(CREATED, &review))
}
