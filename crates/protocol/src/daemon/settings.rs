//! Settings of a workspace: a closed table of keys, with their values in `.ostler/settings.json` of the workspace. They choose
//! how new sessions start. What agents may do is not a setting of the workspace, because agents can write its files.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::{cells::StatusCell, languages::LANGUAGES};
use crate::{Failure, Rule, ids::slug, json::present};

/// The file of the settings in the workspace.
pub const SETTINGS_FILE: &str = ".ostler/settings.json";
/// Most bytes of the file.
pub const SETTINGS_BYTES_MAX: usize = 64 * 1024;
const KEY_BYTES_MAX: usize = 256;

pub const LANGUAGE: &str = "general.language";
pub const OUTPUT_LANGUAGE: &str = "general.outputLanguage";
pub const DEFAULT_MODEL: &str = "model.default";
pub const MEMORY_ENABLED: &str = "memory.enabled";

/// Keys, and groups of keys, that no request may write here: they decide what agents may do and which programs they start.
const DISALLOWED: [&str; 9] =
    ["approvalMode", "auth", "env", "hooks", "mcp", "mcpServers", "permissions", "policy", "security"];
/// The group of the approval mode in published clients.
const DISALLOWED_KEYS: [&str; 3] = ["general.approvalMode", "tools.approvalMode", "tools.permissionStrategy"];

/// A setting that there is.
#[derive(Debug)]
pub struct SettingRow {
    pub key: &'static str,
    pub label: &'static str,
    pub category: &'static str,
    pub description: &'static str,
    pub kind: SettingKind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SettingKind {
    Flag {
        default: bool,
    },
    /// One of the supported languages.
    Language,
    /// The name of a backend profile. By default the server's own.
    Profile,
}

pub const SETTINGS: [SettingRow; 4] = [
    SettingRow {
        key: LANGUAGE,
        label: "Language",
        category: "General",
        description: "The language of new sessions, for clients to show.",
        kind: SettingKind::Language,
    },
    SettingRow {
        key: OUTPUT_LANGUAGE,
        label: "Output language",
        category: "General",
        description: "The language that agents of new sessions reply in.",
        kind: SettingKind::Language,
    },
    SettingRow {
        key: DEFAULT_MODEL,
        label: "Default model",
        category: "Model",
        description: "The backend profile of new sessions.",
        kind: SettingKind::Profile,
    },
    SettingRow {
        key: MEMORY_ENABLED,
        label: "Use memory",
        category: "Memory",
        description: "Whether memory files precede each prompt.",
        kind: SettingKind::Flag { default: true },
    },
];

/// What is in force.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkspaceSettings {
    /// The code of a language; `auto` if none is set.
    pub language: String,
    /// The code of a language; `auto` if none is set.
    pub output_language: String,
    /// The backend profile of new sessions. `None`: the one of the server's configuration.
    pub model: Option<String>,
    /// Whether memory precedes prompts.
    pub memory_enabled: bool,
}

const AUTO: &str = "auto";

impl SettingRow {
    /// The setting of this key. Fails if there is none, or if it cannot be written.
    pub fn find(key: Option<&Value>) -> Result<&'static Self, Failure> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_key = |key: &&str| (1..=KEY_BYTES_MAX).contains(&key.len()) && key.bytes().all(is_plain);
        let Some(key) = key.and_then(Value::as_str).filter(is_key) else {
            let message = format!("key must be 1 to {KEY_BYTES_MAX} letters, digits or ._-");
            return Err(Failure::invalid(Rule::InvalidKey, message));
        };
        if let Some(setting) = SETTINGS.iter().find(|setting| setting.key == key) {
            return Ok(setting);
        }
        let group = key.split('.').next().unwrap_or_default();
        if DISALLOWED.contains(&group) || DISALLOWED_KEYS.contains(&key) {
            let message = format!("{key} cannot be changed in the workspace's settings");
            return Err(Failure::invalid(Rule::DisallowedKey, message).detail("key", key));
        }
        Err(Failure::invalid(Rule::UnknownKey, format!("there is no setting {key}")).detail("key", key))
    }

    /// Checks a value. Whether a profile exists is for the server to check.
    pub fn check(&self, value: &Value) -> Result<(), Failure> {
        let fits = match (self.kind, value) {
            (SettingKind::Flag { .. }, value) => value.is_boolean(),
            (SettingKind::Language, Value::String(code)) => LANGUAGES.iter().any(|(known, _)| known == code),
            (SettingKind::Profile, Value::String(profile)) => slug(self.key, profile).is_ok(),
            _ => false,
        };
        if fits { Ok(()) } else { Err(self.invalid()) }
    }

    pub fn invalid(&self) -> Failure {
        let wanted = match self.kind {
            SettingKind::Flag { .. } => "true or false".to_owned(),
            SettingKind::Language => format!("one of {}", LANGUAGES.map(|(code, _)| code).join(", ")),
            SettingKind::Profile => "a backend profile of this server".to_owned(),
        };
        Failure::invalid(Rule::InvalidValue, format!("{} must be {wanted}", self.key)).detail("key", self.key)
    }

    /// The setting as clients see it. `profile`: the server's own; `profiles`: those that can be chosen.
    pub fn describe(&self, values: &SettingValues, profile: &str, profiles: &[String]) -> SettingStatus {
        let option = |value: &str, label: &str| SettingOption { value: value.to_owned(), label: label.to_owned() };
        let (type_name, default, options) = match self.kind {
            SettingKind::Flag { default } => ("boolean", json!(default), vec![]),
            SettingKind::Language => {
                let named =
                    |(code, name): &(&str, &str)| option(code, if name.is_empty() { "Automatic" } else { name });
                ("enum", json!(AUTO), LANGUAGES.iter().map(named).collect())
            }
            SettingKind::Profile => {
                ("enum", json!(profile), profiles.iter().map(|profile| option(profile, profile)).collect())
            }
        };
        let stored = values.0.get(self.key).cloned();
        SettingStatus {
            key: self.key.to_owned(),
            type_name: type_name.to_owned(),
            label: self.label.to_owned(),
            category: self.category.to_owned(),
            description: self.description.to_owned(),
            requires_restart: false,
            values: SettingLevels { effective: stored.clone().unwrap_or_else(|| default.clone()), workspace: stored },
            default,
            options,
        }
    }
}

/// Valid values of settings, by their keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SettingValues(BTreeMap<&'static str, Value>);

impl SettingValues {
    /// The settings in a file, and the keys whose values cannot be used. Other members of the file are not ours.
    pub fn of(document: &Map<String, Value>) -> (Self, Vec<&'static str>) {
        let (mut values, mut unusable) = (BTreeMap::new(), vec![]);
        for setting in &SETTINGS {
            let Some(value) = member(document, setting.key).filter(|value| !value.is_null()) else { continue };
            match setting.check(value) {
                Ok(()) => drop(values.insert(setting.key, value.clone())),
                Err(_) => unusable.push(setting.key),
            }
        }
        (Self(values), unusable)
    }

    /// Sets a value that was checked. Null removes it.
    pub fn set(&mut self, setting: &SettingRow, value: Value) {
        match value {
            Value::Null => drop(self.0.remove(setting.key)),
            value => drop(self.0.insert(setting.key, value)),
        }
    }

    /// The keys whose values differ.
    pub fn changed_keys(&self, other: &Self) -> Vec<String> {
        let differs = |key: &&str| self.0.get(key) != other.0.get(key);
        SETTINGS.iter().map(|setting| setting.key).filter(differs).map(str::to_owned).collect()
    }

    pub fn effective(&self) -> WorkspaceSettings {
        let text = |key: &str| self.0.get(key).and_then(Value::as_str).map(str::to_owned);
        WorkspaceSettings {
            language: text(LANGUAGE).unwrap_or_else(|| AUTO.to_owned()),
            output_language: text(OUTPUT_LANGUAGE).unwrap_or_else(|| AUTO.to_owned()),
            model: text(DEFAULT_MODEL),
            memory_enabled: self.0.get(MEMORY_ENABLED).and_then(Value::as_bool).unwrap_or(true),
        }
    }
}

/// A dotted key is a path of objects.
fn member<'a>(document: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    let (group, name) = key.split_once('.')?;
    document.get(group)?.as_object()?.get(name)
}

/// Writes a setting into a file's object, or removes it if the value is null. Fails if the file has something else than an
/// object in the key's place.
pub fn set_member(document: &mut Map<String, Value>, setting: &SettingRow, value: Value) -> Result<(), Failure> {
    let (group, name) = setting.key.split_once('.').unwrap_or((setting.key, ""));
    let inner = document.entry(group).or_insert_with(|| json!({})).as_object_mut().ok_or_else(|| {
        let message = format!("{SETTINGS_FILE}: {group} is not an object");
        Failure::rule(Rule::WorkspaceFileInvalid, message).detail("path", SETTINGS_FILE)
    })?;
    match value {
        Value::Null => drop(inner.remove(name)),
        value => drop(inner.insert(name.to_owned(), value)),
    }
    if inner.is_empty() {
        document.remove(group);
    }
    Ok(())
}

/// `POST /workspace/settings`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct SetSetting {
    /// `workspace`.
    #[schema(value_type = String, required)]
    pub scope: Option<Value>,
    #[schema(value_type = String, required)]
    pub key: Option<Value>,
    /// Null: back to the default.
    #[serde(deserialize_with = "present")]
    #[schema(required)]
    pub value: Option<Value>,
}

impl SetSetting {
    /// The setting and its new value; null resets it.
    pub fn read(self) -> Result<(&'static SettingRow, Value), Failure> {
        if self.scope.as_ref().and_then(Value::as_str) != Some("workspace") {
            return Err(Failure::invalid(Rule::InvalidScope, "scope must be workspace"));
        }
        let setting = SettingRow::find(self.key.as_ref())?;
        let missing = || Failure::invalid(Rule::MissingValue, "value is missing; null resets the setting");
        let value = self.value.ok_or_else(missing)?;
        if !value.is_null() {
            setting.check(&value)?;
        }
        Ok((setting, value))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SettingSet {
    pub key: String,
    pub scope: String,
    pub value: Value,
    pub requires_restart: bool,
}

/// `GET /workspace/settings`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SettingsStatus {
    pub v: u32,
    pub settings: Vec<SettingStatus>,
    /// A file that could not be used. Published clients show these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<SettingsWarning>,
    /// What is wrong with the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<StatusCell>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SettingsWarning {
    /// Always `corrupted`.
    #[serde(rename = "type")]
    pub type_name: String,
    pub recovered: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SettingStatus {
    pub key: String,
    #[serde(rename = "type")]
    pub type_name: String,
    pub label: String,
    pub category: String,
    pub description: String,
    pub requires_restart: bool,
    pub default: Value,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<SettingOption>,
    pub values: SettingLevels,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SettingOption {
    pub value: String,
    pub label: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SettingLevels {
    pub effective: Value,
    /// Absent if the workspace does not set it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub workspace: Option<Value>,
}

/// `POST /workspace/reload`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reloaded {
    pub env: ReloadedEnvironment,
    /// The settings whose values have changed.
    pub changed_keys: Vec<String>,
    /// Always false: agents are started for each run, so that there is no process to reload.
    pub child_reloaded: bool,
    /// Why the file could not be used. The previous values are then still in force.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<StatusCell>,
}

/// Variables that a reload has changed. The environment of a server does not change while it runs, so both are empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReloadedEnvironment {
    pub updated_keys: Vec<String>,
    pub removed_keys: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<(&'static str, Value), Option<Rule>> {
        let set: SetSetting = serde_json::from_value(body).unwrap();
        set.read().map(|(setting, value)| (setting.key, value)).map_err(|failure| failure.broken_rule())
    }

    #[test]
    fn each_member_of_a_request_has_its_own_rule() {
        let set = |key: Value, value: Value| read(json!({"scope": "workspace", "key": key, "value": value}));
        assert_eq!(set(json!("memory.enabled"), json!(false)), Ok((MEMORY_ENABLED, json!(false))));
        assert_eq!(set(json!("general.language"), json!(null)), Ok((LANGUAGE, json!(null))), "a reset");
        for scope in [json!(null), json!("user"), json!(1)] {
            let body = json!({"scope": scope, "key": "memory.enabled", "value": true});
            assert_eq!(read(body), Err(Some(Rule::InvalidScope)));
        }
        for key in [json!(null), json!(""), json!("a b"), json!(1), json!("x".repeat(KEY_BYTES_MAX + 1))] {
            assert_eq!(set(key, json!(true)), Err(Some(Rule::InvalidKey)));
        }
        for key in ["tools.approvalMode", "policy.permissionStrategy", "mcpServers", "security.auth.apiKey", "env.PATH"]
        {
            assert_eq!(set(json!(key), json!("yolo")), Err(Some(Rule::DisallowedKey)), "{key}");
        }
        assert_eq!(set(json!("general.vim"), json!(true)), Err(Some(Rule::UnknownKey)));
        assert_eq!(read(json!({"scope": "workspace", "key": "memory.enabled"})), Err(Some(Rule::MissingValue)));
        for (key, value) in [
            (MEMORY_ENABLED, json!("yes")),
            (LANGUAGE, json!("tlh")),
            (OUTPUT_LANGUAGE, json!(7)),
            (DEFAULT_MODEL, json!("No Profile")),
        ] {
            assert_eq!(set(json!(key), value), Err(Some(Rule::InvalidValue)), "{key}");
        }
    }

    #[test]
    fn values_that_cannot_be_used_are_named_and_left_out() {
        let file = json!({"general": {"language": "de", "outputLanguage": 7}, "memory": {"enabled": false},
            "ui": {"theme": "dark"}, "model": "gpt"});
        let (values, unusable) = SettingValues::of(file.as_object().unwrap());
        assert_eq!(unusable, [OUTPUT_LANGUAGE]);
        let expected = WorkspaceSettings {
            language: "de".into(),
            output_language: "auto".into(),
            model: None,
            memory_enabled: false,
        };
        assert_eq!(values.effective(), expected);
        assert_eq!(SettingValues::default().changed_keys(&values), [LANGUAGE, MEMORY_ENABLED]);
    }

    #[test]
    fn other_members_of_the_file_stay() {
        let mut file = json!({"general": {"vim": true}, "ui": {"theme": "dark"}, "memory": 7});
        let document = file.as_object_mut().unwrap();
        let setting = |key: &str| SettingRow::find(Some(&json!(key))).unwrap();
        set_member(document, setting(LANGUAGE), json!("de")).unwrap();
        set_member(document, setting(DEFAULT_MODEL), json!("scripted")).unwrap();
        assert_eq!(document["general"], json!({"vim": true, "language": "de"}));
        set_member(document, setting(DEFAULT_MODEL), Value::Null).unwrap();
        assert!(!document.contains_key("model"));
        let refused = set_member(document, setting(MEMORY_ENABLED), json!(true)).unwrap_err();
        assert_eq!((refused.broken_rule(), &document["memory"]), (Some(Rule::WorkspaceFileInvalid), &json!(7)));
    }
}
