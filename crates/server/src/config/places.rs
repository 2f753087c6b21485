//! Where the keys of the configuration are set: the lines of the file and the variables of the environment. Messages about a
//! key name its place, because a reader cannot see which of the sources was meant.

use std::{collections::BTreeMap, ops::Range, path::Path};

use ostler_protocol::{Failure, Rule, redaction::Redactor};
use toml::de::{DeTable, DeValue};

/// The detail of a failure that names the key it is about.
pub(super) const KEY: &str = "key";

/// A value of the file, as far as its type matters.
pub(super) enum FileScalar {
    Text(String),
    Integer,
    Float,
    Boolean,
}

impl FileScalar {
    fn of(value: &DeValue<'_>) -> Option<Self> {
        match value {
            DeValue::String(text) => Some(Self::Text(text.to_string())),
            DeValue::Integer(_) => Some(Self::Integer),
            DeValue::Float(_) => Some(Self::Float),
            DeValue::Boolean(_) => Some(Self::Boolean),
            _ => None,
        }
    }
}

#[derive(Default)]
pub(super) struct KeyPlaces {
    file: String,
    /// The line of each key and section of the file.
    lines: BTreeMap<String, usize>,
    /// The value of each key of the file that is text, a number or a Boolean.
    scalars: BTreeMap<String, FileScalar>,
    /// The variable of each key that the environment sets.
    variables: BTreeMap<String, String>,
}

impl KeyPlaces {
    /// Finds the keys of a file. The text must be TOML.
    pub(super) fn read(file: &Path, text: &str) -> Result<Self, Failure> {
        let mut places = Self { file: file.display().to_string(), ..Self::default() };
        let table = DeTable::parse(text).map_err(|error| places.not_toml(text, &error))?;
        places.collect("", table.get_ref(), text);
        Ok(places)
    }

    fn collect(&mut self, section: &str, table: &DeTable<'_>, text: &str) {
        for (key, value) in table {
            let name = format!("{section}{}", key.get_ref());
            self.lines.insert(name.clone(), line_of(text, key.span()));
            if let Some(scalar) = FileScalar::of(value.get_ref()) {
                self.scalars.insert(name.clone(), scalar);
            }
            if let Some(inner) = value.get_ref().as_table() {
                self.collect(&format!("{name}."), inner, text);
            }
        }
    }

    pub(super) fn add_variable(&mut self, key: &str, variable: String) {
        self.variables.insert(key.to_owned(), variable);
    }

    /// The keys and sections of the file.
    pub(super) fn keys_of_file(&self) -> impl Iterator<Item = &str> {
        self.lines.keys().map(String::as_str)
    }

    /// The keys of the file whose value is text, a number or a Boolean.
    pub(super) fn scalars_of_file(&self) -> impl Iterator<Item = (&str, &FileScalar)> {
        self.scalars.iter().map(|(key, scalar)| (key.as_str(), scalar))
    }

    /// Sorts problems: those of the file by line, then those of the environment by variable, then others.
    pub(super) fn sort(&self, problems: &mut [Failure]) {
        problems.sort_by_cached_key(|failure| {
            let key = failure.details.as_ref().and_then(|details| details.get(KEY)?.as_str());
            let variable = key.and_then(|key| self.variables.get(key));
            match variable.filter(|variable| failure.message.starts_with(variable.as_str())) {
                Some(variable) => (1, 0, variable.clone()),
                None => match key.and_then(|key| self.lines.get(key)) {
                    Some(line) => (0, *line, String::new()),
                    None => (2, 0, String::new()),
                },
            }
        });
    }

    /// The keys that the environment sets.
    pub(super) fn keys_of_environment(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(key, variable)| (key.as_str(), variable.as_str()))
    }

    /// A problem with a key, at the place that sets it. A variable overrides the file.
    pub(super) fn problem(&self, key: &str, message: &str) -> Failure {
        let place = self.variables.get(key).cloned().or_else(|| self.in_file(key));
        invalid(key, &place.map_or_else(|| message.to_owned(), |place| format!("{place}: {message}")))
    }

    /// A problem with a key of the file, whatever the environment sets.
    pub(super) fn problem_in_file(&self, key: &str, message: &str) -> Failure {
        let place = self.in_file(key).unwrap_or_else(|| self.file.clone());
        invalid(key, &format!("{place}: {message}"))
    }

    /// Adds the place to the message of a failure that names its key.
    pub(super) fn locate(&self, mut failure: Failure) -> Failure {
        let key = failure.details.as_ref().and_then(|details| details.get(KEY)).and_then(|key| key.as_str());
        let Some(key) = key.map(str::to_owned) else { return failure };
        failure.message = self.problem(&key, &failure.message).message;
        failure
    }

    fn in_file(&self, key: &str) -> Option<String> {
        self.lines.get(key).map(|line| format!("{}, line {line}", self.file))
    }

    fn not_toml(&self, text: &str, error: &toml::de::Error) -> Failure {
        let line = error.span().map(|span| format!(", line {}", line_of(text, span))).unwrap_or_default();
        Failure::invalid(Rule::Config, redacted(&format!("{}{line}: {}", self.file, error.message().trim_end())))
    }
}

fn invalid(key: &str, message: &str) -> Failure {
    Failure::invalid(Rule::Config, redacted(message)).detail(KEY, key)
}

/// A message may quote a value, and the value may be a password.
fn redacted(message: &str) -> String {
    Redactor::new(&[]).redact(message).into_owned()
}

/// Lines are counted from one.
fn line_of(text: &str, span: Range<usize>) -> usize {
    text.bytes().take(span.start).filter(|byte| *byte == b'\n').count() + 1
}
