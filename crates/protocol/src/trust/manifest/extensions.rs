//! Fields that the format does not know. They are kept, warned of, and compared; nothing is decided by them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    changes::Change,
    pointer::Pointer,
    rules::{DiffRule, Effect},
};

const MANIFEST_FIELDS: [&str; 5] =
    ["schema_version", "agent_version", "tools", "permission_scopes", "capability_flags"];
const TOOL_FIELDS: [&str; 7] = [
    "name",
    "description_i18n_key",
    "description_fallback",
    "input_schema",
    "permission_scope",
    "required",
    "timeout_ms",
];
const SCOPE_FIELDS: [&str; 6] =
    ["id", "label_i18n_key", "label_fallback", "description_i18n_key", "description_fallback", "sensitivity"];
pub(super) const FLAGS: [&str; 4] =
    ["supports_streaming", "supports_artifacts", "supports_voice", "supports_group_chat"];

/// The unknown fields of a manifest, by the object they are in and by their names.
#[derive(Clone, Debug, Default)]
pub(super) struct Extensions(BTreeMap<(String, String), Extension>);

#[derive(Clone, Debug)]
struct Extension {
    pointer: String,
    value: Value,
}

impl Extensions {
    /// Of a manifest whose names have been checked: they are short.
    pub(super) fn of(manifest: &Value) -> Self {
        let mut found = Self::default();
        let root = Pointer::from("");
        found.add("", manifest, &MANIFEST_FIELDS, &root);
        found.add("capability_flags", &manifest["capability_flags"], &FLAGS, &root.key("capability_flags"));
        for (list, name, fields) in [("tools", "name", &TOOL_FIELDS[..]), ("permission_scopes", "id", &SCOPE_FIELDS)] {
            let at = root.key(list);
            for (index, item) in manifest[list].as_array().into_iter().flatten().enumerate() {
                let owner = format!("{list}/{}", item[name].as_str().unwrap_or_default());
                found.add(&owner, item, fields, &at.index(index));
            }
        }
        found
    }

    fn add(&mut self, owner: &str, object: &Value, fields: &[&str], at: &Pointer<'_>) {
        let Value::Object(object) = object else { return };
        for (key, value) in object.iter().filter(|(key, _)| !fields.contains(&key.as_str())) {
            let extension = Extension { pointer: at.key(key).to_string(), value: value.clone() };
            self.0.insert((owner.to_owned(), key.clone()), extension);
        }
    }

    pub(super) fn pointers(&self) -> impl Iterator<Item = &str> {
        self.0.values().map(|extension| extension.pointer.as_str())
    }

    /// What became of the fields of `self`.
    pub(super) fn changes(&self, new: &Self) -> Vec<Change> {
        let now = new.0.iter().map(|(key, extension)| (extension, self.0.get(key), Some(extension)));
        let gone = self.0.iter().filter(|(key, _)| !new.0.contains_key(*key));
        let all = now.chain(gone.map(|(_, extension)| (extension, Some(extension), None)));
        let value = |extension: Option<&Extension>| extension.map(|it| it.value.clone()).unwrap_or_default();
        all.map(|(shown, old, new)| (&shown.pointer, value(old), value(new)))
            .filter(|(_, old, new)| old != new)
            .map(|(pointer, old, new)| {
                let rule = DiffRule::ExtensionChanged;
                let breaking = rule.row().effect == Effect::Breaks;
                Change { rule, pointer: pointer.clone(), old, new, breaking, scope: None, tool: None }
            })
            .collect()
    }
}
