//! Every key there is, read off the configuration's own types: its name, its default and its meaning. What the environment
//! may set and what the reference page shows both come from here.

use serde_json::Value;
use utoipa::{PartialSchema, ToSchema};

use super::Config;

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
}

/// By section and name; a section's own keys come before the sections in it.
pub fn keys() -> Vec<Key> {
    let mut named = vec![];
    Config::schemas(&mut named);
    let schemas = named.into_iter().map(|(name, schema)| (name, json(&schema))).collect();
    let mut keys = vec![];
    collect(&mut keys, "", &json(&Config::default()), &json(&Config::schema()), &schemas);
    keys
}

fn json(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).expect("our own types serialise")
}

type Schemas = std::collections::HashMap<String, Value>;

/// A section is whatever has fields of its own.
fn collect(keys: &mut Vec<Key>, section: &str, defaults: &Value, schema: &Value, schemas: &Schemas) {
    let fields = defaults.as_object().into_iter().flatten();
    let (inner, own): (Vec<_>, Vec<_>) = fields.partition(|(_, default)| default.is_object());
    for (field, default) in own {
        let (name, schema) = (format!("{section}{field}"), schema["properties"][field].clone());
        keys.push(Key { name, default: default.clone(), schema });
    }
    for (field, defaults) in inner {
        let named = schema["properties"][field]["$ref"].as_str().and_then(|path| schemas.get(path.rsplit('/').next()?));
        collect(keys, &format!("{section}{field}."), defaults, named.expect("a section has a type"), schemas);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Something else than the default that the key takes: as the environment says it, and as it is read.
    fn other(key: &Key) -> (String, Value) {
        let takes = |kind: &str| key.schema["type"] == kind || key.schema["type"][0] == kind;
        match &key.default {
            Value::Bool(on) => ((!on).to_string(), json!(!on)),
            Value::Array(_) if key.name == "auth.issuers" => {
                let issuer = json!([{"issuer": "i", "audience": "a", "jwks_url": "https://x", "jwks_file": null}]);
                (issuer.to_string(), issuer)
            }
            Value::Array(_) => ("one, two".into(), json!(["one", "two"])),
            _ if takes("integer") => ("7".into(), json!(7)),
            _ if takes("number") => ("0.5".into(), json!(0.5)),
            _ if ["store.database_url", "secrets.key"].contains(&key.name.as_str()) => {
                ("postgres://x".into(), json!("(hidden)"))
            }
            // Of the few words such a key takes, one that is not the default.
            _ if key.schema["$ref"].is_string() || key.name == "store.sqlite_synchronous" => {
                let words = ["read-only", "untrusted", "disabled", "off", "process", "json", "enqueue", "invite"];
                let one = words.iter().find(|word| read(key, word).is_ok()).expect("a word that it takes");
                ((*one).into(), json!(one))
            }
            _ => ("words".into(), json!("words")),
        }
    }

    fn read(key: &Key, text: &str) -> Result<Value, ostler_protocol::Failure> {
        let name = key.environment().strip_prefix("OSTLER_").expect("ours").to_lowercase();
        let config = json(&Config::read(None, [(name, text.to_owned())].into_iter())?);
        Ok(key.name.split('.').fold(config, |value, field| value[field].clone()))
    }

    #[test]
    fn every_key_can_be_set_in_the_environment() {
        assert!(keys().len() > 30, "{}", keys().len());
        for key in keys() {
            let (text, value) = other(&key);
            assert_ne!(value, key.default, "{}", key.name);
            assert_eq!(read(&key, &text).unwrap(), value, "{}={text}", key.environment());
        }
    }

    #[test]
    fn a_list_in_the_environment_may_be_json() {
        let tenants = keys().into_iter().find(|key| key.name == "policy.tenants").unwrap();
        for (text, list) in [
            (r#"["a,b", "c"]"#, json!(["a,b", "c"])),
            ("acme", json!(["acme"])),
            ("acme,beta", json!(["acme", "beta"])),
            ("", json!([])),
        ] {
            assert_eq!(read(&tenants, text).unwrap(), list, "{text}");
        }
        assert!(read(&tenants, "[1").is_err());
    }
}
