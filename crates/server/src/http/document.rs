//! What the attributes on handlers and types cannot say of the API's document: that what an answer may leave null it never
//! leaves out, that anything can be refused at the gate or fail on our side, and what bounds a request has.

mod shapes;

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use utoipa::openapi::OpenApi;

use super::problem;

pub fn complete(document: &OpenApi) -> Value {
    let mut json = serde_json::to_value(document).expect("the document serialises");
    let (asked, answered) = (reachable(&json, "requestBody"), reachable(&json, "responses"));
    for (name, schema) in json["components"]["schemas"].as_object_mut().into_iter().flatten() {
        each_object(schema, &mut drop_null_defaults);
        if answered.contains(name) && !asked.contains(name) {
            each_object(schema, &mut require_nullable);
        }
    }
    let schema = json!({"$ref": "#/components/schemas/Problem"});
    let failure = json!({"description": "", "content": {problem::CONTENT_TYPE: {"schema": schema}}});
    for item in json["paths"].as_object_mut().into_iter().flat_map(Map::values_mut) {
        for operation in item.as_object_mut().into_iter().flat_map(Map::values_mut) {
            for class in ["4XX", "5XX"] {
                operation["responses"][class] = failure.clone();
            }
        }
    }
    shapes::apply(&mut json);
    json
}

/// The schemas that operations use on one of their two sides, and those they are made of.
fn reachable(document: &Value, side: &str) -> BTreeSet<String> {
    let operations = document["paths"].as_object().into_iter().flat_map(Map::values).filter_map(Value::as_object);
    let mut found = BTreeSet::new();
    let mut queue: Vec<_> =
        operations.flat_map(Map::values).flat_map(|operation| references(&operation[side])).collect();
    while let Some(name) = queue.pop() {
        let schema = &document["components"]["schemas"][&name];
        if found.insert(name) {
            queue.extend(references(schema));
        }
    }
    found
}

fn references(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) => {
            let own = fields.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next());
            own.map(str::to_owned).into_iter().chain(fields.values().flat_map(references)).collect()
        }
        Value::Array(items) => items.iter().flat_map(references).collect(),
        _ => vec![],
    }
}

/// Does something to every schema in this one that has properties.
fn each_object(schema: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
    match schema {
        Value::Object(fields) => {
            if fields.contains_key("properties") {
                change(fields);
            }
            fields.values_mut().for_each(|inner| each_object(inner, change));
        }
        Value::Array(items) => items.iter_mut().for_each(|inner| each_object(inner, change)),
        _ => {}
    }
}

/// A default of null says nothing, and is wrong beside a type that does not take it.
fn drop_null_defaults(schema: &mut Map<String, Value>) {
    for property in schema["properties"].as_object_mut().into_iter().flat_map(Map::values_mut) {
        if let Some(fields) = property.as_object_mut().filter(|fields| fields.get("default") == Some(&Value::Null)) {
            fields.remove("default");
        }
    }
}

fn require_nullable(schema: &mut Map<String, Value>) {
    let nullable = |property: &Value| {
        let is_null =
            |of: &Value| of["type"] == "null" || of["type"].as_array().is_some_and(|t| t.contains(&json!("null")));
        is_null(property) || property["oneOf"].as_array().is_some_and(|some| some.iter().any(is_null))
    };
    let properties = schema["properties"].as_object().into_iter().flatten();
    let mut required: Vec<Value> = properties.filter(|(_, p)| nullable(p)).map(|(name, _)| json!(name)).collect();
    let declared = schema.remove("required");
    required.extend(declared.iter().filter_map(Value::as_array).flatten().cloned());
    required.sort_by_key(Value::to_string);
    required.dedup();
    if !required.is_empty() {
        schema.insert("required".into(), required.into());
    }
}
