//! Every configuration key, read from the configuration's own types: its name, its default and its meaning. What the environment
//! may set and what the reference page shows both come from here.

use ostler_protocol::json::value_of;
use serde_json::Value;
use utoipa::{PartialSchema, ToSchema};

use super::{Config, SectionType};

#[derive(Clone, Debug)]
pub struct Key {
    /// As in the file, sections first: `policy.ceiling.timeout_ms`.
    pub name: String,
    pub default: Value,
    /// What the key takes, as a JSON schema.
    pub schema: Value,
}

impl Key {
    pub fn environment(&self) -> String {
        format!("OSTLER_{}", self.name.replace('.', "__").to_uppercase())
    }

    pub fn meaning(&self) -> &str {
        self.schema["description"].as_str().unwrap_or_default()
    }

    pub fn is_list(&self) -> bool {
        self.default.is_array()
    }

    /// A table whose names the operator chooses.
    pub fn is_table(&self) -> bool {
        self.default.is_object()
    }
}

/// By section and name; a section's own keys come before the sections in it.
pub fn keys(sections: &[SectionType]) -> Vec<Key> {
    let mut named = vec![];
    Config::schemas(&mut named);
    sections.iter().for_each(|section| (section.schemas)(&mut named));
    let schemas = named.into_iter().map(|(name, schema)| (name, json(&schema))).collect();
    let mut keys = vec![];
    collect(&mut keys, "", &json(&Config::default()), &json(&Config::schema()), &schemas);
    for section in sections {
        let name = format!("{}.", section.name);
        collect(&mut keys, &name, &(section.default)(), &json(&(section.schema)()), &schemas);
    }
    keys.sort_by(|a, b| section(&a.name).cmp(section(&b.name)));
    keys
}

/// The first word of a key.
fn section(key: &str) -> &str {
    key.split('.').next().unwrap_or(key)
}

fn json(value: &impl serde::Serialize) -> Value {
    value_of(value)
}

type Schemas = std::collections::HashMap<String, Value>;

/// A section is whatever has fields of its own.
#[expect(clippy::expect_used, reason = "a section has a type")]
fn collect(keys: &mut Vec<Key>, section: &str, defaults: &Value, schema: &Value, schemas: &Schemas) {
    let fields = defaults.as_object().into_iter().flatten();
    // A table whose names the operator chooses is one key.
    let is_section = |field: &str| !schema["properties"][field]["$ref"].is_null();
    let (inner, own): (Vec<_>, Vec<_>) = fields.partition(|(field, default)| default.is_object() && is_section(field));
    for (field, default) in own {
        let (name, schema) = (format!("{section}{field}"), schema["properties"][field].clone());
        keys.push(Key { name, default: default.clone(), schema });
    }
    for (field, defaults) in inner {
        let named = schema["properties"][field]["$ref"].as_str().and_then(|path| schemas.get(path.rsplit('/').next()?));
        collect(keys, &format!("{section}{field}."), defaults, named.expect("a section has a type"), schemas);
    }
}
