//! Lists, whole or in chunks. All chunks of a list show the objects as they were when its first chunk was read.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use serde_json::{Value, json};

use super::failures::ApiFailure;
use super::resources::{ApiResource, ApiTarget};
use super::selectors::ObjectSelector;
use super::store::{KubeStore, ObjectKey};

/// Where the next chunk of a list starts: the revision of the list, and the namespace and name of the last object.
struct ContinueToken {
    revision: u64,
    after: (String, String),
}

impl ContinueToken {
    fn encode(&self) -> String {
        BASE64.encode(json!({"rv": self.revision, "after": [self.after.0, self.after.1]}).to_string())
    }

    fn decode(token: &str) -> Option<Self> {
        let token: Value = serde_json::from_slice(&BASE64.decode(token).ok()?).ok()?;
        let text = |at: usize| Some(token["after"][at].as_str()?.to_owned());
        Some(Self { revision: token["rv"].as_u64()?, after: (text(0)?, text(1)?) })
    }
}

pub(super) fn page(
    store: &KubeStore,
    target: &ApiTarget,
    selector: &ObjectSelector,
    query: &BTreeMap<String, String>,
) -> Result<Value, ApiFailure> {
    let limit: usize =
        query.get("limit").and_then(|limit| limit.parse().ok()).filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    let token = match query.get("continue").filter(|token| !token.is_empty()) {
        None => None,
        Some(token) => {
            let refuse = || ApiFailure::bad_request("invalid continue token: continue key is not valid");
            Some(ContinueToken::decode(token).ok_or_else(refuse)?)
        }
    };
    let revision = token.as_ref().map_or(store.revision(), |token| token.revision);
    if let Some(token) = token.as_ref().filter(|token| token.revision < store.compacted()) {
        let fresh = ContinueToken { revision: store.revision(), after: token.after.clone() };
        return Err(ApiFailure::expired_list(fresh.encode()));
    }
    let is_listed = |key: &ObjectKey, object: &Value| {
        target.namespace.as_ref().is_none_or(|only| key.namespace == *only)
            && token.as_ref().is_none_or(|token| (&key.namespace, &key.name) > (&token.after.0, &token.after.1))
            && selector.matches(object)
    };
    let found: Vec<(ObjectKey, Arc<Value>)> = if token.is_some() {
        let objects = store.list_at(target.resource, revision).into_iter();
        objects.filter(|(key, object)| is_listed(key, object)).collect()
    } else {
        let objects = store.list(target.resource, target.namespace.as_deref());
        let objects = objects.filter(|(key, object)| is_listed(key, object));
        objects.map(|(key, object)| (key.clone(), object.clone())).collect()
    };
    let shown = &found[..limit.min(found.len())];
    let mut list = list_of(target.resource, revision, shown.iter().map(|(_, object)| Value::clone(object)).collect());
    if let Some((last, _)) = shown.last().filter(|_| found.len() > limit) {
        let next = ContinueToken { revision, after: (last.namespace.clone(), last.name.clone()) };
        list["metadata"]["continue"] = json!(next.encode());
        if selector.is_empty() {
            list["metadata"]["remainingItemCount"] = json!(found.len() - limit);
        }
    }
    Ok(list)
}

/// The objects in a list do not repeat their kind.
pub(super) fn list_of(resource: &ApiResource, revision: u64, mut objects: Vec<Value>) -> Value {
    for object in objects.iter_mut().filter_map(Value::as_object_mut) {
        object.remove("kind");
        object.remove("apiVersion");
    }
    json!({
        "kind": format!("{}List", resource.kind), "apiVersion": resource.api_version(),
        "metadata": {"resourceVersion": revision.to_string()}, "items": objects
    })
}
