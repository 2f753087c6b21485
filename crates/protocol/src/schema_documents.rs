//! JSON Schemas in one document each, made from the types of what they describe: for editors, and for readers of a format.

use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::json::value_of;

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";
/// Where the API's document has its schemas, and where these have them.
const COMPONENTS: &str = "#/components/schemas/";
const DEFINITIONS: &str = "#/$defs/";

/// The schema of a type, with those that it refers to.
pub fn schema_document<T: ToSchema>(title: &str) -> Value {
    let mut named = vec![];
    T::schemas(&mut named);
    let mut schema = value_of(&T::schema());
    let definitions: Value = named.into_iter().map(|(name, schema)| (name, value_of(&schema))).collect();
    schema["$schema"] = json!(DIALECT);
    schema["title"] = json!(title);
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
