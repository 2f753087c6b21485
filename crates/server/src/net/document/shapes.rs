//! Bounds, patterns and examples of requests, which the handlers' types cannot express in the document. Each dialect has its own;
//! this module applies them, and has the forms that they share. Two tests hold them to what the server does: requests made at
//! random from the document are not refused for their shape, and what the document forbids is refused.

use ostler_protocol::limits::{CALLER_TENANTS_MAX, NAME_BYTES_MAX, PAGE_ITEMS_MAX};
use serde_json::{Value, json};

const CURSOR_BYTES_MAX: usize = 1_024;
/// No white space at the ends, no control characters.
const NAME_PATTERN: &str =
    r"^[^\s\u0000-\u001f\u007f-\u009f]([^\u0000-\u001f\u007f-\u009f]*[^\s\u0000-\u001f\u007f-\u009f])?$";
pub const PRINTABLE_PATTERN: &str = r"^[^\u0000-\u001f\u007f-\u009f]*$";
const SLUG_PATTERN: &str = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$";

/// What a dialect adds to the schemas of its requests.
#[derive(Clone, Copy)]
pub struct Shapes {
    /// Bounds of bodies' fields, as `Schema.field`.
    pub fields: fn() -> Vec<(&'static str, Value)>,
    /// What holds for a whole body, by the name of its schema.
    pub bodies: fn() -> Vec<(&'static str, Value)>,
    /// Bounds of a parameter, by the operation's path and the parameter's name.
    pub parameter: fn(&str, &str) -> Option<Value>,
    /// Changes that none of these can express.
    pub finish: fn(&mut Value),
}

pub fn name() -> Value {
    json!({"minLength": 1, "maxLength": NAME_BYTES_MAX, "pattern": NAME_PATTERN})
}

/// A name that people tell one agent from another by: without characters that cannot be seen.
pub fn shown_name() -> Value {
    json!({"minLength": 1, "maxLength": NAME_BYTES_MAX, "pattern": NAME_PATTERN, "format": "visible-text"})
}

pub fn slug() -> Value {
    json!({"minLength": 1, "maxLength": 63, "pattern": SLUG_PATTERN})
}

/// An id that is looked up or compared, and is unknown if it is anything else.
pub fn id() -> Value {
    json!({"maxLength": NAME_BYTES_MAX})
}

pub fn text(bytes_max: usize) -> Value {
    json!({"maxLength": bytes_max})
}

pub fn whole(least: i64, most: i64) -> Value {
    json!({"minimum": least, "maximum": most})
}

pub fn words<'a>(words: impl IntoIterator<Item = &'a str>) -> Value {
    json!({"enum": words.into_iter().collect::<Vec<_>>()})
}

/// A JSON value of the caller's own, bounded as a whole.
pub fn free(bytes_max: usize) -> Value {
    json!({"description": format!("At most {bytes_max} bytes of JSON."), "x-bytesMax": bytes_max})
}

pub fn tenants() -> Value {
    json!({"minItems": 1, "maxItems": CALLER_TENANTS_MAX, "uniqueItems": true, "items": name()})
}

/// Parameters that mean the same wherever they are used.
fn common(name: &str) -> Option<Value> {
    Some(match name {
        "limit" => whole(1, i64::from(PAGE_ITEMS_MAX)),
        "cursor" => json!({"maxLength": CURSOR_BYTES_MAX, "format": "cursor"}),
        "Idempotency-Key" => json!({"minLength": 1, "maxLength": NAME_BYTES_MAX, "pattern": "^[!-~]([ -~]*[!-~])?$"}),
        _ => return None,
    })
}

/// Puts the shapes of all dialects into the document.
///
/// # Panics
/// If one is of a schema or field that does not exist.
pub(super) fn apply(document: &mut Value, all: &[Shapes]) {
    for (place, shape) in all.iter().flat_map(|shapes| (shapes.fields)()) {
        narrow(at(document, place), shape);
    }
    for (schema, shape) in all.iter().flat_map(|shapes| (shapes.bodies)()) {
        merge(at(document, schema), shape);
    }
    for (path, item) in document["paths"].as_object_mut().into_iter().flatten() {
        for operation in item.as_object_mut().into_iter().flat_map(|item| item.values_mut()) {
            parameters(path, operation, all);
            body(operation);
        }
    }
    all.iter().for_each(|shapes| (shapes.finish)(document));
}

/// A schema or a `Schema.field` of the document.
fn at<'a>(document: &'a mut Value, place: &str) -> &'a mut Value {
    let pointer = format!("/components/schemas/{}", place.replace('.', "/properties/"));
    document.pointer_mut(&pointer).unwrap_or_else(|| panic!("the document has no {place}"))
}

/// Puts a bound into the schema of a field, which may also be null.
fn narrow(field: &mut Value, shape: Value) {
    if shape["type"] == "null" {
        *field = json!({"type": "null", "description": field["description"].clone()});
        return;
    }
    let mut shape = shape;
    let nullable = field["type"].as_array().is_some_and(|types| types.contains(&json!("null")));
    if let Some(words) = shape.get_mut("enum").and_then(Value::as_array_mut).filter(|_| nullable) {
        words.push(Value::Null);
    }
    // The handlers' own description comes first.
    let own = field["description"].as_str().unwrap_or_default().to_owned();
    merge(field, shape);
    let added = field["description"].as_str().unwrap_or_default();
    if !own.is_empty() && own != added {
        field["description"] = format!("{own} {added}").into();
    }
}

fn parameters(path: &str, operation: &mut Value, all: &[Shapes]) {
    for parameter in operation["parameters"].as_array_mut().into_iter().flatten() {
        let name = parameter["name"].as_str().unwrap_or_default().to_owned();
        // A header or a parameter of the query is there or not; none is null.
        if let Some(types) = parameter["schema"]["type"].as_array() {
            let kind = types.iter().find(|kind| **kind != "null").cloned().unwrap_or_default();
            parameter["schema"]["type"] = kind;
        }
        if parameter["in"] == "path" {
            continue;
        }
        let of_a_dialect = all.iter().find_map(|shapes| (shapes.parameter)(path, &name));
        match of_a_dialect.or_else(|| common(&name)) {
            Some(shape) => merge(&mut parameter["schema"], shape),
            None if parameter["schema"]["type"] == "string" && parameter["schema"]["enum"].is_null() => {
                merge(&mut parameter["schema"], text(CURSOR_BYTES_MAX));
            }
            None => {}
        }
    }
}

/// A body that may be left out is not null either.
fn body(operation: &mut Value) {
    let Some(body) = operation.get_mut("requestBody") else { return };
    let schema = &mut body["content"]["application/json"]["schema"];
    if schema["oneOf"][1]["type"] == "null" {
        *schema = schema["oneOf"][0].take();
        body["required"] = json!(false);
    }
    // Indexing has inserted nulls for missing members.
    let content = body["content"].as_object_mut().into_iter();
    content.for_each(|content| content.retain(|_, media| !media["schema"].is_null()));
}

/// Merges objects deeply; on conflict, `added` wins.
pub fn merge(into: &mut Value, added: Value) {
    match (into, added) {
        (Value::Object(into), Value::Object(added)) => {
            added.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, added) => *into = added,
    }
}
