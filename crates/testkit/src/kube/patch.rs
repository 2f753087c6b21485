//! Merges of a change into an object: JSON merge patches, strategic merge patches, and the merge of server-side apply.

use serde_json::{Map, Value};

use super::fields::merge_key;

/// RFC 7386: `null` deletes a field, a list replaces the list.
pub(super) fn merge(target: &mut Value, change: &Value) {
    let Value::Object(change) = change else {
        *target = change.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(fields) = target else { return };
    for (field, value) in change {
        if value.is_null() {
            fields.remove(field);
        } else {
            merge(fields.entry(field.clone()).or_insert(Value::Null), value);
        }
    }
}

/// A strategic merge: lists with keys are merged by element. New elements come first, as the real server puts them.
pub(super) fn merge_strategic(target: &mut Value, change: &Value) {
    merge_by_key(target, change, "", true);
}

/// The merge of server-side apply: like the strategic one, without its directives and with new elements last.
pub(super) fn merge_applied(target: &mut Value, applied: &Value) {
    merge_by_key(target, applied, "", false);
}

fn merge_by_key(target: &mut Value, change: &Value, field: &str, is_strategic: bool) {
    match change {
        Value::Object(change) => {
            let replaces = is_strategic && change.get("$patch").and_then(Value::as_str) == Some("replace");
            if !target.is_object() || replaces {
                *target = Value::Object(Map::new());
            }
            let Value::Object(fields) = target else { return };
            for (field, value) in change.iter().filter(|(field, _)| !(is_strategic && is_directive(field))) {
                if value.is_null() {
                    fields.remove(field);
                } else {
                    merge_by_key(fields.entry(field.clone()).or_insert(Value::Null), value, field, is_strategic);
                }
            }
            for (directive, values) in change.iter().filter(|_| is_strategic) {
                delete_from_list(fields, directive, values);
            }
        }
        Value::Array(change) if merge_key(field).is_some() => {
            merge_list(target, change, merge_key(field).unwrap_or_default(), is_strategic);
        }
        Value::Array(change) if field == "finalizers" => {
            let mut all = target.as_array().cloned().unwrap_or_default();
            all.extend(change.iter().filter(|value| !all.contains(value)).cloned().collect::<Vec<_>>());
            *target = Value::Array(all);
        }
        change => *target = change.clone(),
    }
}

fn is_directive(field: &str) -> bool {
    field.starts_with('$')
}

/// `$deleteFromPrimitiveList/finalizers: [a]` deletes elements of a list of texts.
fn delete_from_list(fields: &mut Map<String, Value>, directive: &str, values: &Value) {
    let Some(field) = directive.strip_prefix("$deleteFromPrimitiveList/") else { return };
    let (Some(Value::Array(elements)), Value::Array(values)) = (fields.get_mut(field), values) else { return };
    elements.retain(|element| !values.contains(element));
}

fn merge_list(target: &mut Value, change: &[Value], key: &str, is_strategic: bool) {
    let mut elements = target.as_array().cloned().unwrap_or_default();
    let mut added = vec![];
    for element in change {
        let existing = elements.iter().position(|existing| existing.get(key) == element.get(key));
        let is_deleted = is_strategic && element.get("$patch").and_then(Value::as_str) == Some("delete");
        match existing {
            Some(at) if is_deleted => drop(elements.remove(at)),
            Some(at) => merge_by_key(&mut elements[at], element, "", is_strategic),
            None if is_deleted => {}
            None => {
                let mut new = Value::Null;
                merge_by_key(&mut new, element, "", is_strategic);
                added.push(new);
            }
        }
    }
    *target = Value::Array(if is_strategic {
        added.into_iter().chain(elements).collect()
    } else {
        elements.into_iter().chain(added).collect()
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_merge_patch_replaces_lists_and_deletes_fields() {
        let mut object = json!({"a": {"b": 1, "c": 2}, "containers": [{"name": "x"}]});
        merge(&mut object, &json!({"a": {"b": null, "d": {"e": null, "f": 3}}, "containers": [{"name": "y"}]}));
        assert_eq!(object, json!({"a": {"c": 2, "d": {"f": 3}}, "containers": [{"name": "y"}]}));
    }

    #[test]
    fn a_strategic_patch_merges_lists_by_their_keys() {
        let mut object =
            json!({"conditions": [{"type": "A", "status": "True"}, {"type": "B"}], "finalizers": ["f", "g"]});
        let change = json!({
            "conditions": [{"type": "C"}, {"type": "A", "reason": "r"}, {"type": "B", "$patch": "delete"}],
            "$deleteFromPrimitiveList/finalizers": ["f"]
        });
        merge_strategic(&mut object, &change);
        assert_eq!(
            object,
            json!({"conditions": [{"type": "C"}, {"type": "A", "status": "True", "reason": "r"}], "finalizers": ["g"]})
        );
    }
}
