//! Completes the OpenAPI document with what attributes on handlers and types cannot express: nullable fields of responses are
//! always present, any operation can be rejected at the gate or fail in the server, and requests have bounds.

pub mod shapes;

use std::collections::BTreeSet;

use ostler_protocol::json::value_of;
use serde_json::{Map, Value, json};
use utoipa::openapi::OpenApi;

use super::access_table::AccessTable;
use crate::dialect::Dialects;

pub(super) fn complete(document: &OpenApi, dialects: &Dialects, access_table: &AccessTable) -> Value {
    let mut json = value_of(document);
    add_readiness(&mut json, dialects);
    add_deep_health(&mut json, dialects);
    for dialect in dialects.iter() {
        let schemas = &mut json["components"]["schemas"];
        flatten(schemas, dialect.failures.schema);
        if let Some(shared) = dialect.shared_paths {
            schemas[shared.failures.schema] = value_of(&(shared.schema)());
            flatten(schemas, shared.failures.schema);
        }
    }
    let (in_requests, in_responses) = (reachable(&json, "requestBody"), reachable(&json, "responses"));
    for (name, schema) in json["components"]["schemas"].as_object_mut().into_iter().flatten() {
        each_object(schema, &mut drop_null_defaults);
        if in_responses.contains(name) && !in_requests.contains(name) {
            each_object(schema, &mut require_nullable);
        }
    }
    for (path, item) in json["paths"].as_object_mut().into_iter().flatten() {
        let encoder = access_table.failures(Some(path));
        let schema = json!({"$ref": format!("#/components/schemas/{}", encoder.schema)});
        let failure = json!({"description": "", "content": {encoder.content_type: {"schema": schema}}});
        for (method, operation) in item.as_object_mut().into_iter().flatten() {
            operation["operationId"] = operation_id(method, path).into();
            for class in ["4XX", "5XX"] {
                operation["responses"][class] = failure.clone();
            }
            if let Some(encoder) = access_table.rejections(Some(path)) {
                let schema = json!({"$ref": format!("#/components/schemas/{}", encoder.schema)});
                let rejection = json!({"description": "", "content": {encoder.content_type: {"schema": schema}}});
                for status in ["401", "403"] {
                    operation["responses"][status] = rejection.clone();
                }
            }
        }
    }
    let shapes: Vec<_> = dialects.iter().filter_map(|dialect| dialect.shapes).collect();
    shapes::apply(&mut json, &shapes);
    json
}

/// A name that no other operation has, for generators of clients: `getRunsByRunIdEvents`. Handlers' names repeat.
fn operation_id(method: &str, path: &str) -> String {
    let mut id = method.to_owned();
    for segment in path.trim_start_matches("/api/v1").split('/') {
        if segment.starts_with('{') {
            id.push_str("By");
        }
        for word in segment.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()) {
            let (first, rest) = word.split_at(1);
            id.push_str(&first.to_ascii_uppercase());
            id.push_str(rest);
        }
    }
    id
}

/// Merges a failure's schema that extends another one into one object.
fn flatten(schemas: &mut Value, name: &str) {
    let Some(parts) = schemas[name]["allOf"].as_array().cloned() else { return };
    let mut whole = json!({"type": "object", "properties": {}, "required": []});
    for part in parts {
        let part = match part["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
            Some(other) => schemas[other].clone(),
            None => part,
        };
        for (field, schema) in part["properties"].as_object().into_iter().flatten() {
            whole["properties"][field] = schema.clone();
        }
        if part.get("properties").is_none() {
            // An object of members that have no names here.
            whole["additionalProperties"] = json!(true);
        }
        let required = part["required"].as_array().cloned().unwrap_or_default();
        whole["required"].as_array_mut().into_iter().for_each(|all| all.extend(required.iter().cloned()));
    }
    if let Some(description) = schemas[name].get("description") {
        whole["description"] = description.clone();
    }
    schemas[name] = whole;
}

/// The members of the readiness response that belong to dialects.
fn add_readiness(json: &mut Value, dialects: &Dialects) {
    let schemas = &mut json["components"]["schemas"];
    for section in dialects.iter().flat_map(|dialect| &dialect.readiness) {
        let mut named = vec![];
        (section.schemas)(&mut named);
        for (name, schema) in named {
            schemas[name] = value_of(&schema);
        }
        let readiness = &mut schemas["Readiness"];
        let reference = format!("#/components/schemas/{}", (section.schema_name)());
        readiness["properties"][section.name] = json!({"$ref": reference});
        readiness["required"].as_array_mut().into_iter().for_each(|names| names.push(json!(section.name)));
    }
}

/// The members of the deep health response, which are absent from the plain one.
fn add_deep_health(json: &mut Value, dialects: &Dialects) {
    for deep in dialects.iter().filter_map(|dialect| dialect.deep_health.as_ref()) {
        let counts = value_of(&(deep.schema)());
        for (name, schema) in counts["properties"].as_object().into_iter().flatten() {
            json["components"]["schemas"]["Health"]["properties"][name] = schema.clone();
        }
    }
}

/// The schemas that operations use on one of their two sides, and those they are made of.
fn reachable(document: &Value, side: &str) -> BTreeSet<String> {
    let operations = document["paths"].as_object().into_iter().flat_map(Map::values).filter_map(Value::as_object);
    let mut found = BTreeSet::new();
    let mut queue = vec![];
    operations.flat_map(Map::values).for_each(|operation| add_references(&operation[side], &mut queue));
    while let Some(name) = queue.pop() {
        if !found.contains(name) {
            found.insert(name.to_owned());
            add_references(&document["components"]["schemas"][name], &mut queue);
        }
    }
    found
}

/// Adds the names of the schemas that this value refers to.
fn add_references<'a>(value: &'a Value, names: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            let own = fields.get("$ref").and_then(Value::as_str);
            names.extend(own.and_then(|path| path.rsplit('/').next()));
            fields.values().for_each(|inner| add_references(inner, names));
        }
        Value::Array(items) => items.iter().for_each(|inner| add_references(inner, names)),
        _ => {}
    }
}

/// Calls `change` for every schema in this one that has properties.
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

/// A default of null has no meaning, and is wrong for a type that is not nullable.
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
            |of: &Value| of["type"] == "null" || of["type"].as_array().is_some_and(|t| t.iter().any(|t| t == "null"));
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
