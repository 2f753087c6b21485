//! The published AG-UI client, unmodified, against a real server: both flows, several turns, tools, interrupts, cancels and
//! broken connections. Every event it received is then validated against the official models, in Python.
//! Tests of what is read back from the store run on both engines; those of what an event looks like on one.

mod page;

use std::{
    io::Write,
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

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/chat").join(name)
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/interop/agui").join(name)
}

/// Runs a scenario of `drive.mjs`, and validates the server's events against the official models.
fn play(engine: Engine, scenario: &str) {
    let home = TestHome::new(engine);
    let server = home.serve();
    let request = json!({"client": installed("OSTLER_TEST_AGUI_CLIENT"), "following": example("following.js"),
        "server": server.url(), "token": server.token, "scenario": scenario});
    let mut node = Command::new(installed("OSTLER_TEST_NODE"));
    node.env_clear().arg(source("drive.mjs")).arg(request.to_string());
    let played = node.stdin(Stdio::null()).output().unwrap();
    let words = String::from_utf8_lossy(&played.stderr);
    assert!(played.status.success(), "{scenario}: {words}\n{}", home.log());
    judge(&played.stdout);
    server.stop();
}

fn judge(events: &[u8]) {
    let mut python = Command::new(installed("OSTLER_TEST_PYTHON"));
    python.env_clear().arg(source("judge.py"));
    let mut judge = python.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It reads its small input to the end before it writes.
    let _ = judge.stdin.take().unwrap().write_all(events);
    let judged = judge.wait_with_output().unwrap();
    assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stderr));
    let count: usize = String::from_utf8_lossy(&judged.stdout).trim().parse().unwrap();
    assert!(count >= 2, "a run has a beginning and an end");
    assert_eq!(count, events.iter().filter(|byte| **byte == b'\n').count());
}

#[both_engines]
fn a_stock_client_runs_several_turns_and_sends_its_transcript(engine: Engine) {
    play(engine, "several_turns");
}

#[both_engines]
fn a_run_is_queued_and_followed_by_the_same_client(engine: Engine) {
    play(engine, "queued");
}

#[one_engine]
fn tools_and_their_results_reach_the_clients_messages(engine: Engine) {
    play(engine, "tools");
}

#[one_engine]
fn a_permission_request_interrupts_and_an_answer_resumes_the_run(engine: Engine) {
    play(engine, "interrupt_and_resume");
}

#[one_engine]
fn a_client_continues_after_a_declined_a_dismissed_and_an_expired_interrupt(engine: Engine) {
    play(engine, "interrupt_declined");
}

#[one_engine]
fn a_client_continues_after_an_approved_run_has_failed(engine: Engine) {
    play(engine, "failed_approval");
}

#[one_engine]
fn a_resumed_run_includes_the_open_tool_calls(engine: Engine) {
    play(engine, "open_tool_call");
}

#[one_engine]
fn a_tool_of_the_page_is_called_and_answered(engine: Engine) {
    play(engine, "front_end_tool");
}

#[one_engine]
fn a_page_and_its_agent_share_a_state(engine: Engine) {
    play(engine, "shared_state");
}

#[one_engine]
fn every_field_of_the_stock_types_is_read_back_or_rejected_by_name(engine: Engine) {
    play(engine, "fields");
}

#[one_engine]
fn a_cancelled_run_is_reported_and_the_thread_continues(engine: Engine) {
    play(engine, "cancel");
}

#[one_engine]
fn a_failed_run_ends_with_its_kind_and_message(engine: Engine) {
    play(engine, "failure");
}

#[both_engines]
fn a_client_whose_connection_breaks_receives_every_event_once(engine: Engine) {
    play(engine, "reconnect");
}
