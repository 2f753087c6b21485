//! Reads the configuration: one TOML file, then the environment, then flags.

use std::{
    net::Ipv6Addr,
    path::{Path, PathBuf},
};

use config::{ConfigError, Map, Value, ValueKind};
use ostler_protocol::{Failure, Rule, failures::PROBLEMS_MAX};
use secrecy::SecretString;
use serde::Deserialize;

use super::{
    Config, Environment, SectionType, Sections,
    file_scalars::wrong_types,
    keys,
    names::{unknown_names, variable},
    places::{KEY, KeyPlaces},
};

/// Variables of other managers for keys of the engine. Every other source overrides them, like those of a dialect's section.
const ENGINE_VARIABLES: &[(&str, &str)] = &[
    ("AGENTRUN_SESSION_GC_INTERVAL_MS", "sessions.gc_interval_ms"),
    ("AGENTRUN_SESSION_STORAGE_CLASS", "kubernetes.storage_class"),
];

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
        let foreign = ENGINE_VARIABLES.iter().chain(sections.iter().flat_map(|section| section.variables));
        let foreign: Vec<_> = foreign.filter_map(|(name, key)| Some((*name, *key, environment.text(name)?))).collect();
        let sources = Sources { file, foreign: &foreign, flags: &overrides.keys };
        let (mut config, places, misread) = Self::read_with_places(sources, variables, sections)?;
        config.environment = environment.clone();
        if config.store.database_url.is_none() {
            config.store.database_url = environment.text("DATABASE_URL").map(SecretString::from);
        }
        let listen_problem = listen_problem(&config.server.listen).filter(|_| overrides.listen.is_none());
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
        let problems = listen_problem.into_iter().chain(two_ports_problem(&config.server.listen));
        let problems = problems.chain(config.problems());
        // A value that could not be read has its default here, so problems of several keys together may not be real.
        let problems = problems.filter(|failure| misread.is_empty() || key_of(failure).is_some());
        let problems = problems.map(|failure| places.locate(failure));
        let mut problems: Vec<_> = misread.iter().cloned().chain(problems).collect();
        places.sort(&mut problems);
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
        let (config, _, misread) =
            Self::read_with_places(Sources { file, foreign: &[], flags }, environment, sections)?;
        Failure::check_all(misread).map(|()| config)
    }

    /// The configuration without the values that could not be read, and the problem of each of them.
    fn read_with_places(
        Sources { file, foreign, flags }: Sources<'_>,
        environment: impl Iterator<Item = (String, String)>,
        sections: &[SectionType],
    ) -> Result<(Self, KeyPlaces, Vec<Failure>), Failure> {
        let text = file.map(|file| read_text(file).map(|text| (file, text))).transpose()?;
        let mut places = text.as_ref().map(|(file, text)| KeyPlaces::read(file, text)).transpose()?.unwrap_or_default();
        let mut builder = config::Config::builder();
        for (name, key, value) in foreign {
            if !places.keys_of_file().any(|set| set == *key) {
                places.add_variable(key, (*name).to_owned());
            }
            builder = builder.set_default(*key, value.as_str()).map_err(internal)?;
        }
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
        problems.extend(wrong_types(&places, &keys, sections));
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
            remove(&mut whole, key_of(failure));
        }
        // A value of the wrong type is reported and left out, until the rest can be read.
        loop {
            let error = match Self::from_map(sections, whole.clone()) {
                Ok(config) => {
                    places.sort(&mut problems);
                    return Ok((config, places, problems));
                }
                Err(error) => error,
            };
            let (key, message) = explained(&error);
            problems.push(match &key {
                Some(key) => places.problem(key, &format!("{key}: {message}")),
                None => Failure::invalid(Rule::Config, message),
            });
            if !remove(&mut whole, key.as_deref()) || problems.len() > PROBLEMS_MAX {
                places.sort(&mut problems);
                return Err(Failure::check_all(problems).err().unwrap_or_else(|| internal(error)));
            }
        }
    }

    fn from_map(sections: &[SectionType], mut whole: Map<String, Value>) -> Result<Self, ConfigError> {
        let sections = Sections::take(sections, &mut whole)?;
        let own = Value::new(None, ValueKind::Table(whole));
        Ok(Self { sections, ..Self::deserialize(own)? })
    }
}

/// Where values come from, beside our own variables.
#[derive(Clone, Copy)]
struct Sources<'a> {
    file: Option<&'a Path>,
    /// Variables of other programs: name, key and value. Every other source overrides them.
    foreign: &'a [(&'static str, &'static str, String)],
    flags: &'a [(&'static str, String)],
}

/// A port alone is easily written as a number, which is read as text.
fn listen_problem(listen: &str) -> Option<Failure> {
    let message = format!("server.listen: {listen:?} has no port; write an address and a port: \"127.0.0.1:4747\"");
    (!listen.contains(':')).then(|| Failure::invalid(Rule::Config, message).detail(KEY, "server.listen"))
}

/// A host that has a port already would be looked up as a name. Only an IPv6 address has colons.
fn two_ports_problem(listen: &str) -> Option<Failure> {
    let (host, _) = listen.rsplit_once(':')?;
    let is_one_host = !host.contains(':') || host.starts_with('[') || host.parse::<Ipv6Addr>().is_ok();
    let message = format!("server.listen: {listen:?} has two ports; write an address and a port: \"127.0.0.1:4747\"");
    (!is_one_host).then(|| Failure::invalid(Rule::Config, message).detail(KEY, "server.listen"))
}

/// The key that a problem is about.
fn key_of(failure: &Failure) -> Option<&str> {
    failure.details.as_ref()?.get(KEY)?.as_str()
}

fn read_text(file: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(file).map_err(|error| {
        Failure::invalid(Rule::ConfigFile, format!("cannot read the configuration file {}: {error}", file.display()))
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
            let unexpected = unexpected.to_string();
            let value = value_in(&unexpected);
            (key.as_ref().map(of_list), format!("must be {}, not {value}", plain_type(expected)))
        }
        ConfigError::At { error, key, .. } => (key.as_ref().map(of_list), in_words(&error.to_string())),
        other => (None, other.to_string()),
    }
}

/// The type that a value must have, in words of people who write configurations.
fn plain_type(expected: &str) -> &str {
    match expected {
        _ if expected.contains("unsigned") => "a whole number of 0 or more",
        _ if expected.contains("integer") => "a whole number",
        _ if expected.contains("floating") => "a number",
        _ if expected.contains("boolean") => "true or false",
        _ => expected,
    }
}

/// The value in the description of a value: `-1` of "64-bit integer `-1`", with its quotes if it is text.
fn value_in(unexpected: &str) -> &str {
    let between = |start: usize, end: usize| unexpected.get(start..end).filter(|value| !value.is_empty());
    let in_ticks = || between(unexpected.find('`')? + 1, unexpected.rfind('`')?);
    let in_quotes = || between(unexpected.find('"')?, unexpected.rfind('"')? + 1);
    in_quotes().or_else(in_ticks).unwrap_or(unexpected)
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
                "bad.toml, line 3: server.drain_ms: must be a whole number, not the text \"soon\"",
                "bad.toml, line 6: log.format: \"xml\" is none of its values; docs/configuration.md lists them",
                "OSTLER_RUNNER__SLOTS: runner.slots: must be a whole number, not \"many\"",
                "OSTLER_SERVER__WORKSPCE: server.workspce is no setting; did you mean OSTLER_SERVER__WORKSPACE?",
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
    fn a_listener_without_a_port_is_reported_with_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bad.toml");
        std::fs::write(&path, "[server]\nlisten = 5311\n").unwrap();
        let load = |overrides| Config::load(Some(&path), &Environment::default(), overrides, &[]);
        let message = load(Overrides::default()).unwrap_err().message;
        assert!(message.contains("bad.toml, line 2: server.listen: \"5311\" has no port"), "{message}");
        let listen = Some("127.0.0.1:0".to_owned());
        assert!(load(Overrides { listen, ..Overrides::default() }).is_ok(), "the flag replaces it");
    }

    #[test]
    fn a_listener_with_two_ports_is_reported() {
        let load = |listen: &str| {
            let overrides = Overrides { listen: Some(listen.to_owned()), ..Overrides::default() };
            Config::load(None, &Environment::default(), overrides, &[])
        };
        for good in ["127.0.0.1:0", "localhost:4747", "[::1]:4747", "::1:4747"] {
            assert!(load(good).is_ok(), "{good}");
        }
        for bad in ["127.0.0.1:4170:4170", "localhost:80:90"] {
            let message = load(bad).unwrap_err().message;
            assert!(message.contains("has two ports"), "{message}");
        }
    }

    #[test]
    fn the_interval_of_another_manager_gives_way_to_ours() {
        let load = |variables: &[(&str, &str)]| {
            let taken = variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            let config = Config::load(None, &Environment::with_taken(taken), Overrides::default(), &[]);
            config.map(|config| config.sessions.gc_interval_ms)
        };
        let theirs = ("AGENTRUN_SESSION_GC_INTERVAL_MS", "1500");
        assert_eq!(load(&[theirs]).unwrap(), 1_500);
        assert_eq!(load(&[theirs, ("OSTLER_SESSIONS__GC_INTERVAL_MS", "70")]).unwrap(), 70);
        let message = load(&[(theirs.0, "often")]).unwrap_err().message;
        assert!(message.starts_with("AGENTRUN_SESSION_GC_INTERVAL_MS: sessions.gc_interval_ms"), "{message}");
    }

    #[test]
    fn the_storage_class_of_another_manager_gives_way_to_ours() {
        let load = |variables: &[(&str, &str)]| {
            let taken = variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            let config = Config::load(None, &Environment::with_taken(taken), Overrides::default(), &[]);
            config.map(|config| config.kubernetes.storage_class)
        };
        let theirs = ("AGENTRUN_SESSION_STORAGE_CLASS", "fast");
        assert_eq!(load(&[theirs]).unwrap().as_deref(), Some("fast"));
        let ours = ("OSTLER_KUBERNETES__STORAGE_CLASS", "slow");
        assert_eq!(load(&[theirs, ours]).unwrap().as_deref(), Some("slow"));
        assert_eq!(load(&[]).unwrap(), None);
    }

    #[test]
    fn names_types_and_values_are_reported_together_by_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bad.toml");
        let file =
            "[retention.tenants.hwlb]\nevents_ms = 5\n[server]\ndrain_ms = -1\nlisen = \"x\"\n[runner]\nlease_ms = 5\n";
        std::fs::write(&path, file).unwrap();
        let failure = Config::load(Some(&path), &Environment::default(), Overrides::default(), &[]).unwrap_err();
        let place = |line: usize| format!("{}, line {line}: ", path.display());
        let expected = [
            (1, "retention.tenants.hwlb: there is no such tenant"),
            (4, "server.drain_ms: must be a whole number of 0 or more, not -1"),
            (5, "server.lisen is no setting"),
            (7, "runner.lease_ms must be"),
        ];
        let messages = messages(&failure);
        assert_eq!(messages.len(), expected.len(), "{messages:?}");
        for (message, (line, text)) in messages.iter().zip(expected) {
            assert!(message.starts_with(&format!("{}{text}", place(line))), "{message}");
        }
    }

    #[test]
    fn a_variable_is_named_before_the_line_that_it_overrides() {
        let failure = problems("[runner]\nslots = 3\n", &[("runner__slots", "many")]);
        assert!(failure.message.starts_with("OSTLER_RUNNER__SLOTS: "), "{}", failure.message);
    }
}
