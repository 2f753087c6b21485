//! The published SDK of the daemon dialect, unmodified, against a real server that is bound to a directory. The steps and what
//! they expect are in `drive.mjs`.

mod compare;

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use ostler_stand_ins::{IdentityProvider, IdentityReply};
use ostler_testkit::mcp_server::{python, write_script};
use serde_json::json;

use crate::fixtures::test_home::{Engine, TestHome, both_engines, one_engine};

/// A program that `cargo xtask test` installs; `eval "$(cargo xtask agents)"` for a single test.
fn installed(variable: &str) -> PathBuf {
    let path = std::env::var_os(variable).map(PathBuf::from);
    path.unwrap_or_else(|| panic!("{variable} is not set: use `cargo xtask test`, which installs what it names"))
}

/// Runs a scenario of `drive.mjs`. Its failures name the steps.
fn play(engine: Engine, scenario: &str) {
    play_in(TestHome::on_disk(engine), scenario);
}

fn play_in(mut home: TestHome, scenario: &str) {
    let workspace = home.path("workspace");
    std::fs::create_dir(&workspace).unwrap();
    let workspace = workspace.canonicalize().unwrap();
    home.flags = vec!["--workspace".into(), workspace.display().to_string(), "--enable-session-shell".into()];
    let server = home.serve();
    let mcp = json!({"command": python(), "args": [write_script(&home.path(".")), "good"]});
    let request = json!({"sdk": installed("OSTLER_TEST_QWEN_SDK"), "server": server.url(), "token": server.token,
        "workspace": workspace, "scenario": scenario, "mcp": mcp});
    let mut node = Command::new(installed("OSTLER_TEST_NODE"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/interop/qwen_sdk/drive.mjs");
    // In a file: arguments of a process are visible to others.
    let file = home.path("request.json");
    std::fs::write(&file, request.to_string()).unwrap();
    node.env_clear().arg(script).arg(file);
    let played = node.stdin(Stdio::null()).output().unwrap();
    let words = String::from_utf8_lossy(&played.stderr);
    assert!(played.status.success(), "{scenario}: {words}\n{}", home.log());
    let steps: usize = String::from_utf8_lossy(&played.stdout).trim().parse().unwrap();
    assert!(steps > 0, "a scenario has steps");
    server.stop();
    home.assert_verified();
}

#[one_engine]
fn the_sdk_finds_the_server_and_its_capabilities(engine: Engine) {
    play(engine, "foundation");
}

#[both_engines]
fn clients_share_a_session_from_its_creation_to_its_end(engine: Engine) {
    play(engine, "sessions");
}

#[one_engine]
fn a_prompt_is_cancelled_and_a_failed_one_is_an_error(engine: Engine) {
    play(engine, "cancel");
}

#[both_engines]
fn permission_requests_are_decided_by_votes(engine: Engine) {
    play(engine, "permissions");
}

#[both_engines]
fn a_client_whose_connection_breaks_receives_every_frame_once(engine: Engine) {
    play(engine, "reconnect");
}

#[one_engine]
fn the_state_of_sessions_and_of_the_workspace_can_be_read(engine: Engine) {
    play(engine, "reads");
}

#[one_engine]
fn questions_beside_a_session_are_answered(engine: Engine) {
    play(engine, "asides");
}

#[one_engine]
fn files_of_the_workspace_are_read_and_changed(engine: Engine) {
    play(engine, "files");
}

#[one_engine]
fn memory_and_settings_of_the_workspace_are_changed(engine: Engine) {
    play(engine, "workspace");
}

#[one_engine]
fn providers_are_set_up_by_key_and_by_device_flow(engine: Engine) {
    let identity = IdentityProvider::start();
    let section = json!({"example-id": {"device_authorization_url": identity.device_authorization_url(),
        "token_url": identity.token_url(), "client_id": "ostler", "profile": "deepseek-m", "pkce": true}});
    let mut home = TestHome::on_disk(engine);
    home.set("OSTLER_DAEMON__DEVICE_FLOWS", &section.to_string());
    identity.queue_poll(IdentityReply::Token("an-access-token-0123456789", 3_600));
    play_in(home, "auth");
}

#[one_engine]
fn mcp_servers_and_tools_of_the_workspace_are_managed(engine: Engine) {
    play(engine, "mcp");
}

#[both_engines]
fn conversations_are_rewound_and_branched_and_commands_are_confined(engine: Engine) {
    play(engine, "history");
}
