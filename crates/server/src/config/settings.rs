//! The configuration explained: every key with its value and where the value comes from. Secrets are named, never shown.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use ostler_protocol::{Failure, Rule, redaction::Redactor};
use serde_json::Value;

use crate::config::{Config, Environment, Key, Overrides, SectionType, keys};

const DATA_DIR: &str = "server.data_dir";
const DATA_DIR_VARIABLE: &str = "OSTLER_DATA_DIR";
const DATABASE_URL: &str = "store.database_url";
const DATABASE_URL_VARIABLE: &str = "DATABASE_URL";

#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// `section.key`, as in the file.
    pub key: String,
    pub value: Value,
    pub origin: Origin,
}

/// In the order in which one wins over the next.
#[derive(Clone, Debug, PartialEq)]
pub enum Origin {
    Flag,
    Environment(String),
    File(PathBuf),
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("flag"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// Every setting of the server that this file, the environment and these flags would start.
pub fn explain(file: Option<&Path>, overrides: Overrides, sections: &[SectionType]) -> Result<Vec<Setting>, Failure> {
    let environment = Environment::default();
    // A hidden value looks the same whatever its origin.
    let named_url = overrides.database_url.is_some();
    let without_flags = Config::load(file, &environment, Overrides::default(), sections)?.json();
    let config = Config::load(file, &environment, overrides, sections)?;
    let whole = config.json();
    let in_file = file.map(read).transpose()?.unwrap_or_default();
    let explained = keys(sections).into_iter().map(|key| {
        let value = at(&whole, &key.name).cloned().unwrap_or_default();
        let by_flag = at(&without_flags, &key.name) != at(&whole, &key.name) || (named_url && key.name == DATABASE_URL);
        let former = former_keys(&key, sections);
        let in_file = |key: &Key| at(&in_file, &key.name).is_some();
        let by_file = file.filter(|_| in_file(&key) || former.iter().any(in_file));
        let by_variable = variable(&key, by_file.is_some());
        let by_variable = by_variable.or_else(|| former.iter().find_map(|key| variable(key, false)));
        let origin = match (by_flag, by_variable, by_file) {
            (true, ..) => Origin::Flag,
            (false, Some(name), _) => Origin::Environment(name),
            (false, None, Some(file)) => Origin::File(file.to_owned()),
            (false, None, None) => Origin::Default,
        };
        // An unset data directory has a default that depends on the environment.
        let found = || config.data_dir().ok().map(|dir| dir.display().to_string().into());
        let value = if key.name == DATA_DIR { found().unwrap_or(value) } else { redact_value(value) };
        Setting { key: key.name, value, origin }
    });
    Ok(explained.collect())
}

/// The key under the former names of its section.
fn former_keys(key: &Key, sections: &[SectionType]) -> Vec<Key> {
    let names = sections.iter().flat_map(|section| section.former_keys(&key.name));
    names.map(|name| Key { name, ..key.clone() }).collect()
}

/// The variable that sets this key, if one does.
fn variable(key: &Key, by_file: bool) -> Option<String> {
    let is_set = |name: &String| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let own = Some(key.environment()).filter(is_set);
    match key.name.as_str() {
        DATA_DIR => Some(DATA_DIR_VARIABLE.to_owned()).filter(is_set).or(own),
        // `DATABASE_URL` is meant for many programs, so settings for this one take precedence.
        DATABASE_URL => own.or_else(|| Some(DATABASE_URL_VARIABLE.to_owned()).filter(|name| !by_file && is_set(name))),
        _ => own,
    }
}

fn read(file: &Path) -> Result<Value, Failure> {
    let unreadable = |why: String| Failure::invalid(Rule::Config, format!("{}: {why}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| unreadable(error.to_string()))?;
    // A file that cannot be parsed was rejected before; the parser's message may quote a secret.
    let table: toml::Table = text.parse().map_err(|_| unreadable("not TOML".into()))?;
    serde_json::to_value(table).map_err(Failure::internal)
}

fn at<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    key.split('.').try_fold(value, |value, field| value.get(field))
}

/// Redacts the value: it may contain a credential, whatever its key is called.
fn redact_value(value: Value) -> Value {
    match value {
        Value::String(text) => Redactor::new(&[]).redact(&text).into_owned().into(),
        other => {
            let text = Redactor::new(&[]).redact_json(&other.to_string()).into_owned();
            serde_json::from_str(&text).unwrap_or_default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting<'a>(all: &'a [Setting], key: &str) -> &'a Setting {
        all.iter().find(|setting| setting.key == key).unwrap_or_else(|| panic!("{key} is not explained"))
    }

    #[test]
    fn each_value_has_its_origin() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ostler.toml");
        std::fs::write(&file, "[runner]\nlease_ms = 1500\n[policy.ceiling]\nmax_turns = 3\n").unwrap();
        let flags = Overrides { listen: Some("127.0.0.1:0".into()), ..Overrides::default() };
        let all = explain(Some(&file), flags, &[]).unwrap();
        let origin = |key| setting(&all, key).origin.clone();
        assert_eq!(origin("server.listen"), Origin::Flag);
        assert_eq!(origin("runner.lease_ms"), Origin::File(file.clone()));
        assert_eq!(setting(&all, "policy.ceiling.max_turns").value, 3);
        assert_eq!(origin("policy.ceiling.max_turns"), Origin::File(file.clone()));
        assert_eq!(origin("runner.sweep_interval_ms"), Origin::Default);
    }

    #[test]
    fn a_secret_is_named_and_not_shown() {
        let flags =
            Overrides { database_url: Some("postgres://me:planted@localhost/x".into()), ..Overrides::default() };
        let all = explain(None, flags, &[]).unwrap();
        assert_eq!(setting(&all, "store.database_url").value, "(hidden)");
        assert!(!format!("{all:?}").contains("planted"));
    }
}
