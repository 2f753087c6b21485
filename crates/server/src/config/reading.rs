//! Reads the configuration: one TOML file, then the environment, then flags.

use std::path::{Path, PathBuf};

use config::{ConfigError, Map, Value, ValueKind};
use ostler_protocol::{Failure, Rule, failures::PROBLEMS_MAX};
use secrecy::SecretString;
use serde::Deserialize;

use super::{
    Config, Environment, SectionType, Sections, keys,
    names::{unknown_names, variable},
    places::{KEY, KeyPlaces},
};

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
        let (mut config, places) = Self::read_with_places(file, variables, &overrides.keys, sections)?;
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
        let problems = config.problems().into_iter().map(|failure| places.locate(failure)).collect();
        Failure::check_all(problems)?;
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
        Self::read_with_places(file, environment, flags, sections).map(|(config, _)| config)
    }

    fn read_with_places(
        file: Option<&Path>,
        environment: impl Iterator<Item = (String, String)>,
        flags: &[(&'static str, String)],
        sections: &[SectionType],
    ) -> Result<(Self, KeyPlaces), Failure> {
        let text = file.map(|file| read_text(file).map(|text| (file, text))).transpose()?;
        let mut places = text.as_ref().map(|(file, text)| KeyPlaces::read(file, text)).transpose()?.unwrap_or_default();
        let mut builder = config::Config::builder();
        if let Some((_, text)) = &text {
            builder = builder.add_source(config::File::from_str(text, config::FileFormat::Toml));
        }
        let keys = keys(sections);
        // Only `SECTION__KEY` names a key; `OSTLER_TOKEN` and its like belong to the command line.
        let named = environment.filter(|(name, _)| name.contains("__"));
        let mut variables: Vec<_> = named
            .map(|(name, value)| {
                let name = name.replace("__", ".");
                let current = sections.iter().find_map(|section| section.current_key(&name));
                places.add_variable(current.as_ref().unwrap_or(&name), variable(&name));
                (current.is_none(), current.unwrap_or(name), value)
            })
            .collect();
        let mut problems = unknown_names(&places, &keys, sections);
        // What is set last takes precedence: former names of sections come first.
        variables.sort_by_key(|(is_current, ..)| *is_current);
        for (_, name, value) in variables {
            builder = match keys.iter().find(|key| key.name == name) {
                Some(key) if key.is_list() => match list(&value) {
                    Ok(items) => builder.set_override(&name, items),
                    Err(message) => {
                        problems.push(places.problem(&name, &format!("{name}: {message}")));
                        continue;
                    }
                },
                Some(key) if key.is_table() => match table(&value) {
                    Ok(fields) => builder.set_override(&name, fields),
                    Err(message) => {
                        problems.push(places.problem(&name, &format!("{name}: {message}")));
                        continue;
                    }
                },
                Some(_) => builder.set_override(&name, value),
                // An unknown name was reported.
                None => continue,
            }
            .map_err(internal)?;
        }
        for (name, value) in flags {
            builder = builder.set_override(*name, value.as_str()).map_err(internal)?;
        }
        let mut whole: Map<String, Value> =
            builder.build().and_then(config::Config::try_deserialize).map_err(internal)?;
        for failure in &problems {
            remove(&mut whole, failure.details.as_ref().and_then(|details| details.get(KEY)?.as_str()));
        }
        // A value of the wrong type is reported and left out, until the rest can be read.
        let mut misfits = vec![];
        loop {
            match Self::from_map(sections, whole.clone()) {
                Ok(config) => {
                    Failure::check_all(in_order(problems, misfits))?;
                    return Ok((config, places));
                }
                Err(error) => {
                    let (key, message) = explained(&error);
                    misfits.push(match &key {
                        Some(key) => places.problem(key, &format!("{key}: {message}")),
                        None => Failure::invalid(Rule::Config, message),
                    });
                    if !remove(&mut whole, key.as_deref()) || misfits.len() > PROBLEMS_MAX {
                        let problems = in_order(problems, misfits);
                        return Err(Failure::check_all(problems).err().unwrap_or_else(|| internal(error)));
                    }
                }
            }
        }
    }

    fn from_map(sections: &[SectionType], mut whole: Map<String, Value>) -> Result<Self, ConfigError> {
        let sections = Sections::take(sections, &mut whole)?;
        let own = Value::new(None, ValueKind::Table(whole));
        Ok(Self { sections, ..Self::deserialize(own)? })
    }
}

/// Unknown names first, then misfits by their keys: they are found in no particular order.
fn in_order(mut problems: Vec<Failure>, mut misfits: Vec<Failure>) -> Vec<Failure> {
    let key = |failure: &Failure| failure.details.as_ref().and_then(|details| Some(details.get(KEY)?.to_string()));
    misfits.sort_by_cached_key(key);
    problems.extend(misfits);
    problems
}

fn read_text(file: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(file).map_err(|error| {
        Failure::invalid(Rule::Config, format!("cannot read the configuration file {}: {error}", file.display()))
    })
}

/// Removes a key, or the section of this name. Returns whether it was there.
fn remove(table: &mut Map<String, Value>, key: Option<&str>) -> bool {
    let Some(key) = key else { return false };
    match key.split_once('.') {
        None => table.remove(key).is_some(),
        Some((section, rest)) => match table.get_mut(section).map(|value| &mut value.kind) {
            Some(ValueKind::Table(inner)) => remove(inner, Some(rest)),
            Some(_) => table.remove(section).is_some(),
            None => false,
        },
    }
}

/// The key that the error is about, and what is wrong with its value. In a list the key is that of the list.
fn explained(error: &ConfigError) -> (Option<String>, String) {
    let of_list = |key: &String| key.split('[').next().unwrap_or(key).to_owned();
    match error {
        ConfigError::Type { unexpected, expected, key, .. } => {
            (key.as_ref().map(of_list), format!("it must be {expected}, not {unexpected}"))
        }
        ConfigError::At { error, key, .. } => (key.as_ref().map(of_list), in_words(&error.to_string())),
        other => (None, other.to_string()),
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

/// A table in the environment: a JSON object.
fn table(text: &str) -> Result<Map<String, Value>, &'static str> {
    serde_json::from_str(text).map_err(|_| "not a JSON object")
}

/// A word that is none of those that a key takes, without the name of our type.
fn in_words(message: &str) -> String {
    match message.split_once("does not have variant constructor ") {
        Some((_, word)) => format!("{word:?} is none of its values; docs/configuration.md lists them"),
        None => message.to_owned(),
    }
}

/// A list in the environment: `a,b`, or a JSON array if items are more than words.
fn list(text: &str) -> Result<Vec<Value>, &'static str> {
    if text.trim_start().starts_with('[') {
        return serde_json::from_str(text).map_err(|_| "not a JSON array");
    }
    Ok(text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(Value::from).collect())
}

fn internal(error: ConfigError) -> Failure {
    Failure::internal(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(file: &str, variables: &[(&str, &str)]) -> Failure {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bad.toml");
        std::fs::write(&path, file).unwrap();
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let mut failure = Config::read(Some(&path), variables, &[], &[]).unwrap_err();
        let directory = format!("{}/", directory.path().display());
        failure.message = failure.message.replace(&directory, "");
        for problem in failure.details.iter_mut().flat_map(|details| details.get_mut("problems")) {
            for problem in problem.as_array_mut().unwrap() {
                problem["message"] = problem["message"].as_str().unwrap().replace(&directory, "").into();
            }
        }
        failure
    }

    fn messages(failure: &Failure) -> Vec<String> {
        let problems = failure.details.as_ref().and_then(|details| details.get("problems"));
        let problems = problems.and_then(|problems| problems.as_array()).cloned().unwrap_or_default();
        problems.iter().map(|problem| problem["message"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn every_problem_is_reported_at_once_with_its_place() {
        let file = "[server]\nlisen = \"127.0.0.1:0\"\ndrain_ms = \"soon\"\n\n[log]\nformat = \"xml\"\n";
        let failure = problems(file, &[("runner__slots", "many"), ("server__workspce", "/x")]);
        assert_eq!(
            messages(&failure),
            [
                "bad.toml, line 2: server.lisen is no setting; did you mean server.listen?",
                "OSTLER_SERVER__WORKSPCE: server.workspce is no setting; did you mean OSTLER_SERVER__WORKSPACE?",
                "bad.toml, line 6: log.format: \"xml\" is none of its values; docs/configuration.md lists them",
                "OSTLER_RUNNER__SLOTS: runner.slots: it must be an integer, not string \"many\"",
                "bad.toml, line 3: server.drain_ms: it must be an integer, not string \"soon\"",
            ]
        );
        assert_eq!(failure.message, messages(&failure)[0]);
        assert_eq!(failure.rule_name(), Some("config"));
    }

    #[test]
    fn a_file_that_is_not_toml_is_reported_with_the_line() {
        let failure = problems("[server]\nlisten = \n", &[]);
        assert!(failure.message.starts_with("bad.toml, line 2: "), "{}", failure.message);
    }

    #[test]
    fn a_variable_is_named_before_the_line_that_it_overrides() {
        let failure = problems("[runner]\nslots = 3\n", &[("runner__slots", "many")]);
        assert!(failure.message.starts_with("OSTLER_RUNNER__SLOTS: "), "{}", failure.message);
    }
}
