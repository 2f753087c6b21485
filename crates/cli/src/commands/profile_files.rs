//! The files of provider profiles on this machine: keys and configs are read, and problems of their contents are located.

use std::{
    io::{IsTerminal, Read},
    path::Path,
};

use ostler_protocol::{
    Failure, FailureKind, Rule,
    failures::{PROBLEMS, rule_of},
    limits::API_KEY_BYTES_MAX,
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value};

use crate::{
    errors,
    terminal::{output::line, secret_input, shell_words::quoted},
};

/// The path that means stdin.
pub(crate) const STDIN: &str = "-";

/// Reads the provider's key from a file, a pipe, or the terminal without echo.
pub(crate) fn key(profile: &str, file: Option<&Path>) -> Result<SecretString, Failure> {
    let key = match file {
        Some(path) => read(path, API_KEY_BYTES_MAX)?,
        None if std::io::stdin().is_terminal() => secret_input::ask("key (not echoed): ", API_KEY_BYTES_MAX)?,
        None => read(Path::new(STDIN), API_KEY_BYTES_MAX)?,
    };
    if key.expose_secret().trim().is_empty() {
        let hint = format!("pipe it in: ostler profiles set {} < key.txt", quoted(profile));
        return Err(errors::usage("no key was given", hint));
    }
    Ok(key.expose_secret().trim().to_owned().into())
}

/// Reads a file of at most `bytes_max` bytes; `-` is stdin.
pub(crate) fn read(path: &Path, bytes_max: usize) -> Result<SecretString, Failure> {
    read_unnamed(path, bytes_max).map_err(|failure| Failure {
        message: format!("cannot read {}: {}", path.display(), failure.message),
        ..failure
    })
}

/// As [`read`]. The message of the failure is the reason alone, for a path that may be a secret in the wrong place.
pub(crate) fn read_unnamed(path: &Path, bytes_max: usize) -> Result<SecretString, Failure> {
    let unreadable = |reason: String| errors::usage(reason, "check the file's name");
    let mut bytes = vec![];
    let limit = bytes_max as u64 + 1;
    let read = match path.to_str() {
        Some(STDIN) => std::io::stdin().lock().take(limit).read_to_end(&mut bytes),
        _ => std::fs::File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)),
    };
    read.map_err(|error| unreadable(error.to_string()))?;
    if bytes.len() > bytes_max {
        return Err(Failure::new(FailureKind::PayloadTooLarge, format!("it is over {bytes_max} bytes")));
    }
    String::from_utf8(bytes).map(SecretString::from).map_err(|_| unreadable("it is not UTF-8".into()))
}

/// Names the user's file and the line in every problem of its contents.
pub(crate) fn in_file(mut failure: Failure, file: &Path) -> Failure {
    let file = if file == Path::new(STDIN) { "stdin".to_owned() } else { line(&file.to_string_lossy(), 400) };
    let located = |message: &str, details: &Map<String, Value>| {
        let number = details.get("line")?.as_u64()?;
        let is_broken = rule_of(details) == Some(Rule::ConfigToml);
        let message = if is_broken { "this is not TOML" } else { message };
        Some(format!("{file}, line {number}: {message}"))
    };
    let Some(details) = failure.details.as_deref_mut() else { return failure };
    if let Some(message) = located(&failure.message, details) {
        failure.message = message;
    }
    let problems = details.get_mut(PROBLEMS).and_then(Value::as_array_mut).into_iter().flatten();
    for problem in problems.filter_map(Value::as_object_mut) {
        let message = problem.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
        if let Some(message) = located(&message, problem) {
            problem.insert("message".to_owned(), message.into());
        }
    }
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_of_a_config_names_the_file_and_the_line() {
        let problem = |line: u64, message: &str| Failure::invalid(Rule::ConfigShape, message).detail("line", line);
        let several = Failure::check_all(vec![problem(2, "one"), problem(5, "two")]).unwrap_err();
        let text = errors::render(&in_file(several, Path::new("mine.toml")), crate::terminal::paint::Paint::PLAIN);
        assert!(text.starts_with("error: mine.toml, line 2: one\n       mine.toml, line 5: two\n"), "{text}");
        let broken = Failure::invalid(Rule::ConfigToml, "config.toml is not TOML; see line 3").detail("line", 3);
        let text = errors::render(&in_file(broken, Path::new("-")), crate::terminal::paint::Paint::PLAIN);
        assert!(text.starts_with("error: stdin, line 3: this is not TOML\n"), "{text}");
        assert!(text.contains("hint: correct that line"), "{text}");
        let other = in_file(Failure::not_found("profile"), Path::new("mine.toml"));
        assert_eq!(other.message, "no such profile");
    }
}
