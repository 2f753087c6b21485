//! The JSON Schema of manifests, made from their types: for editors, and for the API's document. It says what a schema can say;
//! the rest is checked by [`Checked::read`](super::Checked::read).

use serde_json::{Value, json};
use utoipa::{PartialSchema, ToSchema};

use super::Manifest;
use crate::json::value_of;

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";
/// Where the API's document has its schemas, and where this one has them.
const COMPONENTS: &str = "#/components/schemas/";
const DEFINITIONS: &str = "#/$defs/";

/// The schema in one document.
pub fn json_schema() -> Value {
    let mut named = vec![];
    Manifest::schemas(&mut named);
    let mut schema = value_of(&Manifest::schema());
    let definitions: Value = named.into_iter().map(|(name, schema)| (name, value_of(&schema))).collect();
    schema["$schema"] = json!(DIALECT);
    schema["title"] = json!("Capability manifest of an agent");
    schema["$defs"] = definitions;
    rename_references(&mut schema);
    schema
}

fn rename_references(value: &mut Value) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(reference)) = members.get_mut("$ref") {
                *reference = reference.replace(COMPONENTS, DEFINITIONS);
            }
            members.values_mut().for_each(rename_references);
        }
        Value::Array(items) => items.iter_mut().for_each(rename_references),
        _ => {}
    }
}
