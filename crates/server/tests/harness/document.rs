//! The API's document as a judge: whatever any test is answered is held against the schema that the document gives for it.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, LazyLock, Mutex},
};

use jsonschema::Validator;
use serde_json::{Map, Value, json};

use super::openapi;

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| strict(openapi().clone()));
static JUDGES: LazyLock<Mutex<HashMap<String, Arc<Validator>>>> = LazyLock::new(Mutex::default);

/// Holds an answer against the document. Paths that are no operation have no schema.
#[track_caller]
pub(crate) fn check_answer(method: &str, path: &str, status: u16, content_type: &str, answer: &Value) {
    let Some((template, operation)) = operation(method, path) else { return };
    let responses = &operation["responses"];
    let (exact, class) = (status.to_string(), format!("{}XX", status / 100));
    let key = [exact, class].into_iter().find(|key| responses[key].is_object());
    let key = key.unwrap_or_else(|| panic!("{method} {template} does not say that it may answer {status}: {answer}"));
    let schema = &responses[&key]["content"][content_type]["schema"];
    judge(&format!("{method} {template} {key}"), schema, answer);
}

/// Compares a body that was accepted with the schema in the document.
#[track_caller]
pub(crate) fn check_request(method: &str, path: &str, body: &Value) {
    let (template, operation) = operation(method, path).expect("an operation");
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    judge(&format!("{method} {template} asked"), schema, body);
}

#[track_caller]
fn judge(name: &str, schema: &Value, value: &Value) {
    assert!(schema.is_object(), "{name} has no schema");
    let known = JUDGES.lock().unwrap().get(name).cloned();
    let judge = known.unwrap_or_else(|| {
        let judge = Arc::new(jsonschema::draft202012::new(&with_components(schema)).unwrap());
        JUDGES.lock().unwrap().insert(name.to_owned(), judge.clone());
        judge
    });
    let wrong: Vec<_> = judge.iter_errors(value).map(|e| format!("{}: {e}", e.instance_path())).collect();
    assert!(wrong.is_empty(), "{name} is not as in the document: {wrong:#?}\n{value}");
}

/// The schema with only those components that it refers to: a validator of the whole document takes many times as long to
/// build.
fn with_components(schema: &Value) -> Value {
    let (mut components, mut names) = (Map::new(), vec![]);
    collect_references(schema, &mut names);
    while let Some(name) = names.pop() {
        if !components.contains_key(name) {
            let component = &DOCUMENT["components"]["schemas"][name];
            collect_references(component, &mut names);
            components.insert(name.to_owned(), component.clone());
        }
    }
    let mut whole = schema.clone();
    whole["components"] = json!({"schemas": components});
    whole
}

fn collect_references<'a>(value: &'a Value, names: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            let reference = fields.get("$ref").and_then(Value::as_str);
            names.extend(reference.and_then(|path| path.strip_prefix("#/components/schemas/")));
            fields.values().for_each(|inner| collect_references(inner, names));
        }
        Value::Array(items) => items.iter().for_each(|inner| collect_references(inner, names)),
        _ => {}
    }
}

fn operation(method: &str, path: &str) -> Option<(&'static str, &'static Value)> {
    let path = path.split('?').next()?;
    let fits = |template: &str| {
        let (wanted, given) = (template.split('/'), path.split('/'));
        wanted.clone().count() == given.clone().count() && wanted.zip(given).all(|(w, g)| w.starts_with('{') || w == g)
    };
    let (template, item) = DOCUMENT["paths"].as_object()?.iter().find(|(template, _)| fits(template))?;
    Some((template, item.get(method.to_lowercase())?))
}

/// The document allows what it does not name, so that servers can grow; here nothing may come that it does not name.
fn strict(mut document: Value) -> Value {
    let schemas = document["components"]["schemas"].as_object_mut().unwrap();
    let parts: BTreeSet<String> = schemas.values().flat_map(parts).collect();
    for (name, schema) in schemas {
        let schema = schema.as_object_mut().unwrap();
        if schema.contains_key("allOf") && !parts.contains(name) {
            schema.insert("unevaluatedProperties".into(), json!(false));
        } else if schema.contains_key("properties")
            && !parts.contains(name)
            && !schema.contains_key("additionalProperties")
        {
            schema.insert("additionalProperties".into(), json!(false));
        }
    }
    document
}

/// The schemas that this one is put together from.
fn parts(schema: &Value) -> Vec<String> {
    let all = schema["allOf"].as_array().into_iter().flatten().filter_map(Value::as_object);
    let named = all.filter_map(|part: &Map<String, Value>| part.get("$ref")?.as_str()?.rsplit('/').next());
    named.map(str::to_owned).collect()
}
