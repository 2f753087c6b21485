//! Reads the configuration: one TOML file, then the environment, then flags.

use std::path::{Path, PathBuf};

use ostler_protocol::{Failure, Rule, redaction::Redactor};
use secrecy::SecretString;
use serde::Deserialize;

use super::{Config, Environment, Key, SectionType, Sections, keys};

impl Config {
    /// Reads the file, then the environment, then the overrides.
    pub fn load(
        file: Option<&Path>,
        environment: &Environment,
        overrides: Overrides,
        sections: &[SectionType],
    ) -> Result<Self, Failure> {
        let variables = environment.variables().filter_map(|(name, value)| {
            let name = name.to_str()?.strip_prefix("OSTLER_")?.to_lowercase();
            Some((name, value.into_string().ok()?))
        });
        let mut config = Self::read(file, variables, &overrides.keys, sections)?;
        config.environment = environment.clone();
        if config.store.database_url.is_none() {
            config.store.database_url = environment.text("DATABASE_URL").map(SecretString::from);
        }
        config.server.listen = overrides.listen.unwrap_or(config.server.listen);
        let data_dir = environment.get("OSTLER_DATA_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
        config.server.data_dir = overrides.data_dir.or(data_dir).or(config.server.data_dir);
        config.store.database_url = overrides.database_url.map(SecretString::from).or(config.store.database_url);
        config.server.open_loopback |= overrides.open_loopback;
        config.server.require_auth |= overrides.require_auth;
        config.server.allow_origins.extend(overrides.allow_origins);
        config.rate_limit.on |= overrides.rate_limit;
        config.server.tls_cert = overrides.tls_cert.or(config.server.tls_cert);
        config.server.tls_key = overrides.tls_key.or(config.server.tls_key);
        config.check()?;
        config.store.unsafe_durability |= overrides.unsafe_durability;
        Ok(config)
    }

    /// Reads the file, then these variables, then these flags. Checks only names and types.
    pub fn read(
        file: Option<&Path>,
        environment: impl Iterator<Item = (String, String)>,
        flags: &[(&'static str, String)],
        sections: &[SectionType],
    ) -> Result<Self, Failure> {
        let mut builder = config::Config::builder();
        if let Some(file) = file {
            builder = builder.add_source(config::File::from(file).format(config::FileFormat::Toml));
        }
        let keys = keys(sections);
        let (is_list, is_table) = (names(&keys, Key::is_list), names(&keys, Key::is_table));
        // Only `SECTION__KEY` names a key; `OSTLER_TOKEN` and its like belong to the command line.
        let named = environment.filter(|(name, _)| name.contains("__"));
        let mut variables: Vec<_> = named
            .map(|(name, value)| {
                let name = name.replace("__", ".");
                let current = sections.iter().find_map(|section| section.current_key(&name));
                (current.is_none(), current.unwrap_or(name), value)
            })
            .collect();
        // What is set last takes precedence: former names of sections come first.
        variables.sort_by_key(|(is_current, ..)| *is_current);
        for (_, name, value) in variables {
            let value = match name.as_str() {
                name if is_list(name) => list(name, &value)?.into(),
                name if is_table(name) => table(name, &value)?.into(),
                _ => config::Value::from(value),
            };
            builder = builder.set_override(&name, value).map_err(invalid)?;
        }
        for (name, value) in flags {
            builder = builder.set_override(*name, value.as_str()).map_err(invalid)?;
        }
        let read = || {
            let mut whole: config::Map<String, config::Value> = builder.build()?.try_deserialize()?;
            let sections = Sections::take(sections, &mut whole)?;
            let own = config::Value::new(None, config::ValueKind::Table(whole));
            Ok(Self { sections, ..Self::deserialize(own)? })
        };
        read().map_err(invalid)
    }
}

/// Settings of the command line, which override all others.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    pub listen: Option<String>,
    pub data_dir: Option<PathBuf>,
    pub database_url: Option<String>,
    pub open_loopback: bool,
    pub require_auth: bool,
    pub allow_origins: Vec<String>,
    pub rate_limit: bool,
    pub unsafe_durability: bool,
    /// Keys of dialects' sections, and their values: `mesh.issuer`.
    pub keys: Vec<(&'static str, String)>,
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
}

/// Whether a name is that of a key of this kind.
fn names(keys: &[Key], is_kind: fn(&Key) -> bool) -> impl Fn(&str) -> bool {
    let names: Vec<_> = keys.iter().filter(|key| is_kind(key)).map(|key| key.name.clone()).collect();
    move |name| names.iter().any(|known| known == name)
}

/// A table in the environment: a JSON object.
fn table(name: &str, text: &str) -> Result<config::Map<String, config::Value>, Failure> {
    serde_json::from_str(text).map_err(|_| Failure::invalid(Rule::Config, format!("{name}: not a JSON object")))
}

/// A list in the environment: `a,b`, or a JSON array if items are more than words.
fn list(name: &str, text: &str) -> Result<Vec<config::Value>, Failure> {
    if text.trim_start().starts_with('[') {
        return serde_json::from_str(text)
            .map_err(|_| Failure::invalid(Rule::Config, format!("{name}: not a JSON array")));
    }
    Ok(text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(config::Value::from).collect())
}

pub(crate) fn invalid(error: config::ConfigError) -> Failure {
    // The error may quote the wrong line, and that line may contain the password.
    let message = Redactor::new(&[]).redact(&format!("configuration: {error}")).into_owned();
    Failure::invalid(Rule::Config, message)
}
