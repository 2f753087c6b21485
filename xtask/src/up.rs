//! `cargo xtask up`: a newcomer's first command. It builds the release binary, serves in the foreground on the
//! embedded store, and tells what to type next. Where the data lives is the binary's own decision.

use std::io::{BufRead, BufReader, Write, stdout};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::process::{Running, cargo, in_workspace, run, workspace_root};

pub(crate) fn up(arguments: &[String]) -> Result<(), String> {
    eprintln!("==> building the release binary (the first time takes some minutes)");
    let mut build = cargo()?;
    build.args(["build", "--release", "--package", "ostler-cli", "--bin", "ostler"]);
    if let Some(commit) = source_commit() {
        build.env("OSTLER_SOURCE_COMMIT", commit);
    }
    run(&mut build)?;

    let binary = release_binary()?;
    let mut serve = in_workspace(&binary)?;
    serve.arg("serve").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut server = Running::start(&mut serve)?;
    let passed_on = pass_on(&mut server.0, &binary, !arguments.is_empty());
    let status = server.wait()?;
    passed_on?;
    if status.success() { Ok(()) } else { Err(format!("the server ended with {status}")) }
}

/// The current commit, which `/health` of the built server reports. `None` without git.
fn source_commit() -> Option<String> {
    let head = in_workspace(Path::new("git")).ok()?.args(["rev-parse", "HEAD"]).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(head.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|commit| head.status.success() && !commit.is_empty())
}

fn release_binary() -> Result<PathBuf, String> {
    let root = workspace_root()?;
    // Joining an absolute path replaces the root, which is also what cargo does with this variable.
    let target = root.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()));
    Ok(target.join("release").join("ostler"))
}

/// Copies the server's stdout to ours until it ends, and explains the ready line when it comes by.
fn pass_on(server: &mut Child, binary: &Path, customised: bool) -> Result<(), String> {
    let output = server.stdout.take().ok_or("the server has no stdout")?;
    for line in BufReader::new(output).lines() {
        let line = line.map_err(|e| format!("cannot read from the server: {e}"))?;
        // The reader of our stdout may close it early; the server continues.
        let _ = writeln!(stdout(), "{line}");
        if let Some(ready) = Ready::parse(&line) {
            eprint!("{}", ready.explain(binary, customised));
        }
    }
    Ok(())
}

struct Ready {
    address: String,
    token_file: Option<String>,
}

impl Ready {
    fn parse(line: &str) -> Option<Ready> {
        let value: Value = serde_json::from_str(line).ok()?;
        let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        Some(Ready { address: text("address")?, token_file: text("tokenFile") })
    }

    fn base_url(&self) -> String {
        if self.address.contains("://") { self.address.clone() } else { format!("http://{}", self.address) }
    }

    fn explain(&self, binary: &Path, customised: bool) -> String {
        let directory = std::env::current_dir().unwrap_or_default();
        let ostler = binary.strip_prefix(directory).unwrap_or(binary).display();
        let mut text = format!("\n==> Ostler listens on {}\n\n    In another terminal:\n\n", self.base_url());
        // With settings of your own, the defaults by which the other commands find the server may not hold.
        if customised {
            text += &format!("      export OSTLER_SERVER={}\n", self.base_url());
            if let Some(file) = &self.token_file {
                text += &format!("      export OSTLER_TOKEN=\"$(cat '{file}')\"\n");
            }
        }
        let next = [
            ("run \"hello\"", "submit a run and follow it"),
            ("ps", "what is there, and how it is doing"),
            ("trace RUN_ID", "every event of a run"),
            ("result RUN_ID", "how a run ended"),
        ];
        for (command, what) in next {
            text += &format!("      {ostler} {command:<13} # {what}\n");
        }
        text + "\n    Ctrl-C stops the server.\n\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_ready_line_is_explained() {
        assert!(Ready::parse("starting").is_none());
        assert!(Ready::parse(r#"{"level":"info"}"#).is_none());
        let ready = Ready::parse(r#"{"address":"127.0.0.1:1","tokenFile":"/d/token"}"#).unwrap();
        assert_eq!(ready.base_url(), "http://127.0.0.1:1");
        let text = ready.explain(Path::new("target/release/ostler"), true);
        assert!(text.contains("target/release/ostler run \"hello\"") && text.contains("cat '/d/token'"), "{text}");
    }
}
