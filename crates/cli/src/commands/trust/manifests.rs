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
    trust::manifest::{Checked, Warning},
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    errors, exit_codes,
    terminal::output::{self, Output, count, line},
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
/// Prints every problem with its place. The exit code is 1 if a manifest would be rejected.
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
    let mut text = serde_json::to_string_pretty(&minimal(&args.name)).map_err(Failure::internal)?;
    text.push('\n');
    let file = args.file.clone().unwrap_or_else(|| format!("{}.manifest.json", key_segment(&args.name)).into());
    if file.as_os_str() == STANDARD_STREAM {
        output::data(&text);
        return Ok(exit_codes::OK);
    }
    let created = OpenOptions::new().write(true).create_new(true).open(&file);
    created.and_then(|mut created| created.write_all(text.as_bytes())).map_err(|error| not_written(&file, &error))?;
    let file = file.display();
    output::message(&format!(
        "wrote {file}; edit it, then:\n  ostler agents check {file}\n  ostler agents create {} --manifest {file}\n",
        line(&args.name, 200)
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
}

pub(crate) fn check(args: &CheckManifestArgs) -> Result<u8, Failure> {
    let reports: Vec<_> = args.files.iter().map(|file| check_file(file)).collect::<Result<_, _>>()?;
    let is_good = |report: &ManifestReport| report.valid && (!args.strict || report.warnings.is_empty());
    args.output.many(&reports, || reports.iter().map(render).collect());
    Ok(if reports.iter().all(is_good) { exit_codes::OK } else { exit_codes::BROKEN })
}

fn check_file(path: &Path) -> Result<ManifestReport, Failure> {
    let text = read_text(path)?;
    let file = if path.as_os_str() == STANDARD_STREAM { "stdin".to_owned() } else { path.display().to_string() };
    Ok(match Checked::read(&text) {
        Ok(checked) => {
            let (tools, scopes) =
                (checked.manifest.tools.len() as i64, checked.manifest.permission_scopes.len() as i64);
            let summary = format!("ok, {}, {}", count(tools, "tool"), count(scopes, "scope"));
            ManifestReport { file, valid: true, problems: vec![], warnings: checked.warnings, summary }
        }
        Err(failure) => {
            let problems = problems(&failure);
            let more = if problems.len() == ostler_protocol::failures::PROBLEMS_MAX { " or more" } else { "" };
            let summary = format!("{}{more}", count(problems.len() as i64, "problem"));
            ManifestReport { file, valid: false, problems, warnings: vec![], summary }
        }
    })
}

/// Each problem as an object with its pointer, rule and message.
fn problems(failure: &Failure) -> Vec<Value> {
    let details = failure.details.as_deref().cloned().unwrap_or_default();
    if let Some(Value::Array(listed)) = details.get(PROBLEMS) {
        return listed.clone();
    }
    let mut one = Value::Object(details);
    one["message"] = failure.message.clone().into();
    vec![one]
}

fn render(report: &ManifestReport) -> String {
    let file = line(&report.file, 400);
    let mut out = String::new();
    for problem in &report.problems {
        let message = problem["message"].as_str().unwrap_or_default();
        // The server names the field of its request; here the file is named instead.
        let message = message.strip_prefix("capability_manifest").unwrap_or(message).trim_start_matches([':', ' ']);
        out += &format!("{file}: {}\n", line(message, 600));
    }
    for Warning { rule, pointer, message } in &report.warnings {
        out += &format!("{file}: {}: {} (warning {})\n", line(pointer, 200), line(message, 200), line(rule, 60));
    }
    out + &format!("{file}: {}\n", report.summary)
}

/// Reads a manifest to send. The text is sent unchanged: the server rejects errors that a lenient parser here would hide.
pub(crate) fn read(path: &Path) -> Result<RawJson, Failure> {
    RawJson::parse(read_text(path)?).map_err(|error| unreadable(path, &error))
}

fn read_text(path: &Path) -> Result<String, Failure> {
    let read = if path.as_os_str() == STANDARD_STREAM {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    read.map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::rule(Rule::ManifestFile, format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_to_start_from_is_accepted_without_a_warning() {
        for name in ["reader", "My Reader!", "…", ""] {
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
        let report = check_file(&file).unwrap();
        let text = render(&report).replace(&file.display().to_string(), "bad.json");
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
}
