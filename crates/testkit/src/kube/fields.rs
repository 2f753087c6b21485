//! Fields of objects as paths. Elements of some lists have a key (containers have names), so two writers can own
//! different elements; other lists are one value. Server-side apply, strategic merges and `managedFields` share this.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// A path in the form of `fieldsV1`: `f:name` is a field, `k:{"name":"x"}` an element of a list with keys.
pub(super) type FieldPath = Vec<String>;

/// Fields of the metadata that only the server writes, or that name the object.
const SERVER_METADATA: [&str; 10] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
];

/// The field that identifies the elements of a list. `None` if the list is one value.
pub(super) fn merge_key(field: &str) -> Option<&'static str> {
    match field {
        "containers" | "initContainers" | "volumes" | "env" | "containerStatuses" | "imagePullSecrets" => Some("name"),
        "volumeMounts" => Some("mountPath"),
        "conditions" | "addresses" => Some("type"),
        "ownerReferences" => Some("uid"),
        "ports" => Some("containerPort"),
        _ => None,
    }
}

fn element_name(key: &str, element: &Value) -> Option<String> {
    Some(format!("k:{}", json!({key: element.get(key)?})))
}

/// The paths of all values in an object, apart from those that only the server writes.
pub(super) fn paths_of(object: &Value) -> BTreeSet<FieldPath> {
    let mut found = BTreeSet::new();
    for (field, value) in object.as_object().into_iter().flatten() {
        match field.as_str() {
            "apiVersion" | "kind" => {}
            "metadata" => {
                let mut metadata = value.as_object().cloned().unwrap_or_default();
                metadata.retain(|field, _| !SERVER_METADATA.contains(&field.as_str()));
                collect(&Value::Object(metadata), "metadata", &mut vec!["f:metadata".to_owned()], &mut found);
            }
            field => collect(value, field, &mut vec![format!("f:{field}")], &mut found),
        }
    }
    found.retain(|path| path.len() > 1 || path[0] != "f:metadata");
    found
}

fn collect(value: &Value, field: &str, path: &mut FieldPath, found: &mut BTreeSet<FieldPath>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (field, value) in fields {
                path.push(format!("f:{field}"));
                collect(value, field, path, found);
                path.pop();
            }
        }
        Value::Array(elements) if merge_key(field).is_some() && !elements.is_empty() => {
            let key = merge_key(field).unwrap_or_default();
            for element in elements {
                if let Some(name) = element_name(key, element) {
                    path.push(name);
                    collect(element, "", path, found);
                    path.pop();
                }
            }
        }
        _ => {
            found.insert(path.clone());
        }
    }
}

/// The value at a path. `None` if the object has none.
pub(super) fn value_at<'a>(object: &'a Value, path: &[String]) -> Option<&'a Value> {
    let mut value = object;
    for step in path {
        value = match step.split_once(':')? {
            ("f", field) => value.get(field)?,
            (_, key) => value.as_array()?.iter().find(|element| has_key(element, key))?,
        };
    }
    Some(value)
}

/// Removes the value at a path, and objects and elements that this leaves empty.
pub(super) fn remove_at(object: &mut Value, path: &[String]) {
    let Some((first, rest)) = path.split_first() else { return };
    let Some((kind, name)) = first.split_once(':') else { return };
    let is_empty =
        |value: &Value| value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty);
    match (object, kind) {
        (Value::Object(fields), "f") => {
            if let Some(value) = fields.get_mut(name) {
                remove_at(value, rest);
                if rest.is_empty() || is_empty(value) {
                    fields.remove(name);
                }
            }
        }
        (Value::Array(elements), _) => {
            if let Some(at) = elements.iter().position(|element| has_key(element, name)) {
                remove_at(&mut elements[at], rest);
                if rest.is_empty() || is_empty(&elements[at]) {
                    elements.remove(at);
                }
            }
        }
        _ => {}
    }
}

fn has_key(element: &Value, key: &str) -> bool {
    let Ok(Value::Object(key)) = serde_json::from_str(key) else { return false };
    key.iter().all(|(field, value)| element.get(field) == Some(value))
}

/// A path as messages show it: `.data.k`, `.spec.containers[name="m"].image`.
pub(super) fn path_text(path: &[String]) -> String {
    let mut text = String::new();
    for step in path {
        match step.split_once(':') {
            Some(("f", field)) => text.push_str(&format!(".{field}")),
            Some((_, key)) => {
                let key: Map<String, Value> = serde_json::from_str(key).unwrap_or_default();
                let keys: Vec<String> = key.iter().map(|(field, value)| format!("{field}={value}")).collect();
                text.push_str(&format!("[{}]", keys.join(",")));
            }
            None => {}
        }
    }
    text
}

/// The nested form of `fieldsV1`.
pub(super) fn to_fields_v1(paths: &BTreeSet<FieldPath>) -> Value {
    let mut root = json!({});
    for path in paths {
        let mut at = &mut root;
        for step in path {
            at = &mut at[step.as_str()];
            if at.is_null() {
                *at = json!({});
            }
        }
    }
    root
}

/// The paths of `fieldsV1`.
pub(super) fn from_fields_v1(fields: &Value) -> BTreeSet<FieldPath> {
    fn walk(value: &Value, path: &mut FieldPath, found: &mut BTreeSet<FieldPath>) {
        let Some(steps) = value.as_object().filter(|steps| !steps.is_empty()) else {
            found.insert(path.clone());
            return;
        };
        for (step, value) in steps.iter().filter(|(step, _)| *step != ".") {
            path.push(step.clone());
            walk(value, path, found);
            path.pop();
        }
    }
    let mut found = BTreeSet::new();
    walk(fields, &mut vec![], &mut found);
    found.retain(|path| !path.is_empty());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_v1_holds_the_same_paths() {
        let object = json!({
            "kind": "Pod", "metadata": {"name": "a", "labels": {"x": "y"}},
            "spec": {"containers": [{"name": "m", "image": "i", "args": ["a", "b"]}]}
        });
        let paths = paths_of(&object);
        assert_eq!(from_fields_v1(&to_fields_v1(&paths)), paths);
        let shown: Vec<String> = paths.iter().map(|path| path_text(path)).collect();
        assert_eq!(
            shown,
            [
                ".metadata.labels.x",
                ".spec.containers[name=\"m\"].args",
                ".spec.containers[name=\"m\"].image",
                ".spec.containers[name=\"m\"].name"
            ]
        );
        let mut object = object;
        for path in &paths {
            assert!(value_at(&object, path).is_some());
            remove_at(&mut object, path);
        }
        assert_eq!(object, json!({"kind": "Pod", "metadata": {"name": "a"}}));
    }
}
