//! The official TypeScript SDK of the Model Context Protocol, unmodified, as a client of `/mcp`. The steps and what they expect are
//! in `drive.mjs`.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::json;

use crate::fixtures::test_home::{Engine, TestHome, both_engines, one_engine};

/// A program that `cargo xtask test` installs; `eval "$(cargo xtask agents)"` for a single test.
fn installed(variable: &str) -> PathBuf {
    let path = std::env::var_os(variable).map(PathBuf::from);
    path.unwrap_or_else(|| panic!("{variable} is not set: use `cargo xtask test`, which installs what it names"))
}

/// Runs a scenario of `drive.mjs`.
fn play(engine: Engine, scenario: &str) {
    let home = TestHome::new(engine);
    let server = home.serve();
    let request = json!({"sdk": installed("OSTLER_TEST_MCP_SDK"), "server": server.url(), "token": server.token,
        "scenario": scenario});
    // In a file: arguments of a process are visible to others.
    let file = home.path("request.json");
    std::fs::write(&file, request.to_string()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/interop/mcp_sdk/drive.mjs");
    let mut node = Command::new(installed("OSTLER_TEST_NODE"));
    let played = node.env_clear().arg(script).arg(file).stdin(Stdio::null()).output().unwrap();
    let (said, printed) = (String::from_utf8_lossy(&played.stderr), String::from_utf8_lossy(&played.stdout));
    assert!(played.status.success(), "{scenario}: {said}\n{}", home.log());
    assert_eq!(printed.trim(), "done", "{scenario}: {said}");
    server.stop();
    home.assert_verified();
}

#[both_engines]
fn the_sdk_submits_follows_answers_and_reads_a_run(engine: Engine) {
    play(engine, "tools");
}

#[both_engines]
fn the_sdk_resumes_a_call_whose_connection_breaks(engine: Engine) {
    play(engine, "reconnect");
}

#[one_engine]
fn the_sdk_cancels_a_call_and_the_run_continues(engine: Engine) {
    play(engine, "cancel");
}
