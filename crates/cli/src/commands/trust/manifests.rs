//! `ostler agents init` and `ostler agents check`: capability manifests on this machine. Both work without a server; `check` applies
//! the rules of this program's own server.

use std::{
    fs::OpenOptions,
    io::{ErrorKind, Read, Write},
    path::{Path, PathBuf},
};

use ostler_protocol::{
    Failure, FailureKind, RawJson, Rule,
    failures::PROBLEMS,
    trust::{
        agents::CreateAgent,
        manifest::{Checked, Warning},
    },
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    errors, exit_codes,
    terminal::{
        output::{self, Output, count, line},
        shell_words::{flag, positional, quoted},
    },
};

/// The path that means stdin, or stdout.
const STANDARD_STREAM: &str = "-";

/// Write a small manifest to start from
///
/// An existing file is not overwritten.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler agents init reader\n  ostler agents init reader --file - | jq .tools")]
pub(crate) struct InitManifestArgs {
    #[arg(help = "The agent's name, which the keys of its texts begin with")]
    name: String,
    /// The file to write; `-` writes to stdout [default: NAME.manifest.json]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Check manifests without a server, by the server's rules
///
/// Prints every problem with its place. The exit code is 1 if a manifest would be rejected, and 2 if a file cannot be read.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler agents check manifest.json\n  ostler agents check --strict agents/*.json\n  \
    ostler agents check manifest.json -o jsonl | jq .problems"
)]
pub(crate) struct CheckManifestArgs {
    /// Files with manifests; `-` reads stdin
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Fail on warnings, too
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn init(args: &InitManifestArgs) -> Result<u8, Failure> {
    // A name that the server would reject is rejected before a file is written for it.
    CreateAgent { name: args.name.clone(), backend_profile: None, capability_manifest: None }.check()?;
    let mut text = serde_json::to_string_pretty(&minimal(&args.name)).map_err(Failure::internal)?;
    text.push('\n');
    let file = args.file.clone().unwrap_or_else(|| format!("{}.manifest.json", key_segment(&args.name)).into());
    if file.as_os_str() == STANDARD_STREAM {
        output::data(&text);
        return Ok(exit_codes::OK);
    }
    let created = OpenOptions::new().write(true).create_new(true).open(&file);
    created.and_then(|mut created| created.write_all(text.as_bytes())).map_err(|error| not_written(&file, &error))?;
    let (path, name) = (file.to_string_lossy(), quoted(&args.name));
    let (checked, manifest) = (positional(&path), flag("--manifest", &path));
    output::message(&format!(
        "wrote {}; edit it, then:\n  ostler agents check {checked}\n  ostler agents create {name} {manifest}\n",
        file.display()
    ));
    Ok(exit_codes::OK)
}

fn not_written(file: &Path, error: &std::io::Error) -> Failure {
    let shown = file.display();
    match error.kind() {
        ErrorKind::AlreadyExists => errors::hinted(
            FailureKind::StateConflict,
            format!("{shown} already exists"),
            "name another file with `--file`, or remove this one",
        ),
        _ => Failure::invalid(Rule::File, format!("{shown}: {error}")),
    }
}

/// A manifest with one tool under a preset scope. The server accepts it without a warning.
fn minimal(name: &str) -> Value {
    let key = key_segment(name);
    json!({
        "schema_version": "1.0",
        "agent_version": "1.0.0",
        "tools": [{
            "name": "read_file",
            "description_i18n_key": format!("{key}.tools.read_file"),
            "description_fallback": "Reads a file that you name",
            "permission_scope": "filesystem:read",
            "input_schema": {
                "type": "object",
                "properties": {"path": {"type": "string"}},
                "required": ["path"],
                "additionalProperties": false,
            },
        }],
        "permission_scopes": [{
            "id": "filesystem:read",
            "label_i18n_key": format!("{key}.scopes.filesystem_read"),
            "sensitivity": "medium",
        }],
    })
}

/// The name in the characters that keys of texts may have.
fn key_segment(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c) { c } else { '-' };
    let key: String = name.to_lowercase().chars().map(plain).take(40).collect();
    if key.is_empty() { "agent".to_owned() } else { key }
}

/// What `check` found in one file.
#[derive(Debug, Serialize)]
struct ManifestReport {
    file: String,
    valid: bool,
    problems: Vec<Value>,
    warnings: Vec<Warning>,
    #[serde(skip)]
    summary: String,
    #[serde(skip)]
    is_readable: bool,
}

pub(crate) fn check(args: &CheckManifestArgs) -> Result<u8, Failure> {
    let reports: Vec<_> = args.files.iter().map(|file| check_file(file)).collect();
    let is_good = |report: &ManifestReport| report.valid && (!args.strict || report.warnings.is_empty());
    let text = || reports.iter().map(|report| render(report, args.strict)).collect::<String>();
    args.output.many(&reports, || output::folded(&text(), output::width()));
    Ok(match reports.iter().all(is_good) {
        true => exit_codes::OK,
        false if reports.iter().all(|report| report.is_readable) => exit_codes::BROKEN,
        false => FailureKind::SchemaInvalid.row().exit_code,
    })
}

/// A file that cannot be read is a problem like any other, so that the other files are checked, too.
fn check_file(path: &Path) -> ManifestReport {
    let file = if path.as_os_str() == STANDARD_STREAM { "stdin".to_owned() } else { path.display().to_string() };
    let text = text_of(path);
    let is_readable = text.is_ok();
    let unreadable = |error| Failure::rule(Rule::ManifestFile, format!("cannot be read: {error}"));
    let unknown_fields = text.as_deref().map(Checked::unknown_fields).unwrap_or_default();
    match text.map_err(unreadable).and_then(|text| Checked::read(&text)) {
        Ok(checked) => {
            let (tools, scopes) =
                (checked.manifest.tools.len() as i64, checked.manifest.permission_scopes.len() as i64);
            let summary = format!("ok, {}, {}", count(tools, "tool"), count(scopes, "scope"));
            ManifestReport { file, valid: true, problems: vec![], warnings: checked.warnings, summary, is_readable }
        }
        Err(failure) => {
            let problems = problems(&failure);
            let more = if problems.len() == ostler_protocol::failures::PROBLEMS_MAX { " or more" } else { "" };
            let summary = format!("{}{more}", count(problems.len() as i64, "problem"));
            ManifestReport { file, valid: false, problems, warnings: unknown_fields, summary, is_readable }
        }
    }
}

/// Each problem as an object with its details and its message.
pub(crate) fn problems(failure: &Failure) -> Vec<Value> {
    let details = failure.details.as_deref().cloned().unwrap_or_default();
    if let Some(Value::Array(listed)) = details.get(PROBLEMS) {
        return listed.clone();
    }
    let mut one = Value::Object(details);
    one["message"] = failure.message.clone().into();
    vec![one]
}

fn render(report: &ManifestReport, is_strict: bool) -> String {
    let file = line(&report.file, 400);
    let mut out = String::new();
    for problem in &report.problems {
        out += &format!("{file}: {}\n", line(problem_text(problem), 600));
    }
    for Warning { rule, pointer, message } in &report.warnings {
        out += &format!("{file}: {}: {} (warning {})\n", line(pointer, 200), line(message, 200), line(rule, 60));
    }
    let warnings = report.warnings.len() as i64;
    match is_strict && report.valid && warnings > 0 {
        true => out + &format!("{file}: {}; --strict fails on warnings\n", count(warnings, "warning")),
        false => out + &format!("{file}: {}\n", report.summary),
    }
}

/// The message of a problem, without the name of the field of a request: the file is named instead.
pub(crate) fn problem_text(problem: &Value) -> &str {
    let message = problem["message"].as_str().unwrap_or_default();
    message.strip_prefix("capability_manifest").unwrap_or(message).trim_start_matches([':', ' '])
}

/// Reads a manifest to send. The text is sent unchanged: the server rejects errors that a lenient parser here would hide.
pub(crate) fn read(path: &Path) -> Result<RawJson, Failure> {
    let text = text_of(path).map_err(|error| unreadable(path, &error))?;
    RawJson::parse(text).map_err(|error| unreadable(path, &error))
}

fn text_of(path: &Path) -> std::io::Result<String> {
    if path.as_os_str() == STANDARD_STREAM {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    }
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::rule(Rule::ManifestFile, format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_to_start_from_is_accepted_without_a_warning() {
        for name in ["reader", "My Reader!", "…"] {
            let checked = Checked::read(&minimal(name).to_string()).unwrap();
            assert_eq!(checked.warnings, [], "{name}");
        }
    }

    #[test]
    fn every_problem_is_printed_with_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("bad.json");
        let mut manifest = minimal("reader");
        manifest["agent_version"] = json!(1);
        manifest["tools"][0]["name"] = json!("Read");
        manifest["permission_scopes"][0].as_object_mut().unwrap().remove("sensitivity");
        std::fs::write(&file, manifest.to_string()).unwrap();
        let report = check_file(&file);
        let text = render(&report, false).replace(&file.display().to_string(), "bad.json");
        assert_eq!(
            text,
            "bad.json: /agent_version: must be a string\n\
             bad.json: /permission_scopes/0/sensitivity: is missing\n\
             bad.json: /tools/0/name: must match ^[a-z][a-z0-9_]{1,31}$\n\
             bad.json: 3 problems\n"
        );
        assert!(!report.valid);
        assert_eq!(report.problems[0]["pointer"], "/agent_version");
    }

    fn checked(text: &str, is_strict: bool) -> String {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.json");
        std::fs::write(&file, text).unwrap();
        render(&check_file(&file), is_strict).replace(&file.display().to_string(), "a.json")
    }

    #[test]
    fn a_misspelt_field_is_listed_beside_the_missing_one() {
        let mut manifest = minimal("reader");
        let scope = manifest["permission_scopes"][0].as_object_mut().unwrap();
        let level = scope.remove("sensitivity").unwrap();
        scope.insert("sensitivty".into(), level);
        assert_eq!(
            checked(&manifest.to_string(), false),
            "a.json: /permission_scopes/0/sensitivity: is missing\n\
             a.json: /permission_scopes/0/sensitivty: this format has no such field (warning field-unknown)\n\
             a.json: 1 problem\n"
        );
        let mut manifest = minimal("reader");
        manifest["permission_scopes"][0]["sensitivity"] = json!("huge");
        let text = checked(&manifest.to_string(), false);
        assert_eq!(
            text,
            "a.json: /permission_scopes/0/sensitivity: must be one of low, medium, high\na.json: 1 problem\n"
        );
        assert!(checked("{\"tools\": [", false).starts_with("a.json: is not valid JSON: EOF while parsing"));
    }

    #[test]
    fn strict_reports_that_warnings_fail() {
        let mut manifest = minimal("reader");
        manifest["note"] = json!("ours");
        let warning = "a.json: /note: this format has no such field (warning field-unknown)\n";
        let text = manifest.to_string();
        assert_eq!(checked(&text, false), format!("{warning}a.json: ok, 1 tool, 1 scope\n"));
        assert_eq!(checked(&text, true), format!("{warning}a.json: 1 warning; --strict fails on warnings\n"));
    }

    #[test]
    fn a_missing_file_is_a_problem_of_that_file() {
        let report = check_file(Path::new("/nonexistent/manifest.json"));
        let text = render(&report, false);
        assert!(text.starts_with("/nonexistent/manifest.json: cannot be read: No such file"), "{text}");
        assert!(!report.valid);
    }
}
