//! The published SDK of the daemon dialect, unmodified, against a real server that is bound to a directory. The steps and what
//! they expect are in `drive.mjs`. `backends` plays them with every backend; here are those that depend on the store.

mod backends;
mod compare;

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use ostler_stand_ins::{IdentityProvider, IdentityReply};
use ostler_testkit::mcp_server::{python, write_script};
use serde_json::{Value, json};

use crate::fixtures::{
    process::Server,
    test_home::{Engine, TestHome, both_engines, one_engine},
};

/// A program that `cargo xtask test` installs; `eval "$(cargo xtask agents)"` for a single test.
fn installed(variable: &str) -> PathBuf {
    let path = std::env::var_os(variable).map(PathBuf::from);
    path.unwrap_or_else(|| panic!("{variable} is not set: use `cargo xtask test`, which installs what it names"))
}

/// Plays scenarios of `drive.mjs` on servers, each with its policy of votes. Failures name the steps. `home` is that of the first
/// server.
fn drive(home: &TestHome, servers: &[(&str, &Server)], workspace: &Path, mut play: Value) {
    let as_json = |(policy, server): &(&str, &Server)| json!({"policy": policy, "url": server.url(), "token": server.token, "pid": server.process.0.id()});
    play["servers"] = servers.iter().map(as_json).collect();
    play["sdk"] = json!(installed("OSTLER_TEST_QWEN_SDK"));
    play["workspace"] = json!(workspace);
    play["mcp"] = json!({"command": python(), "args": [write_script(&home.path(".")), "good"]});
    let mut node = Command::new(installed("OSTLER_TEST_NODE"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/interop/qwen_sdk/drive.mjs");
    // In a file: arguments of a process are visible to others.
    let file = home.path("request.json");
    std::fs::write(&file, play.to_string()).unwrap();
    node.env_clear().arg(script).arg(file);
    let played = node.stdin(Stdio::null()).output().unwrap();
    let words = String::from_utf8_lossy(&played.stderr);
    assert!(played.status.success(), "{}: {words}\n{}", play["lists"], home.log());
    let steps: usize = String::from_utf8_lossy(&played.stdout).trim().parse().unwrap();
    assert!(steps > 0, "a scenario has steps");
}

/// Plays a scenario with the scripted backend.
fn play(engine: Engine, scenario: &str) {
    play_in(TestHome::on_disk(engine), scenario);
}

fn play_in(mut home: TestHome, scenario: &str) {
    let workspace = bind_workspace(&mut home);
    let server = home.serve();
    let request = json!({"backend": "scripted", "lists": [[scenario]], "last": []});
    drive(&home, &[("first-responder", &server)], &workspace, request);
    server.stop();
    home.assert_verified();
}

/// Makes a directory that the servers of this home are bound to.
fn bind_workspace(home: &mut TestHome) -> PathBuf {
    let workspace = home.path("workspace");
    std::fs::create_dir(&workspace).unwrap();
    let workspace = workspace.canonicalize().unwrap();
    home.flags = vec!["--workspace".into(), workspace.display().to_string(), "--enable-session-shell".into()];
    workspace
}

#[both_engines]
fn clients_share_a_session_from_its_creation_to_its_end(engine: Engine) {
    play(engine, "sessions");
}

#[both_engines]
fn permission_requests_are_decided_by_votes(engine: Engine) {
    play(engine, "permissions");
}

#[both_engines]
fn a_client_whose_connection_breaks_receives_every_frame_once(engine: Engine) {
    play(engine, "reconnect");
}

#[both_engines]
fn a_transcript_keeps_attempts_and_prompts_apart(engine: Engine) {
    play(engine, "transcripts");
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

#[both_engines]
fn conversations_are_rewound_and_branched_and_commands_are_confined(engine: Engine) {
    play(engine, "history");
}

#[test]
fn a_prompt_on_one_server_is_followed_and_decided_on_another() {
    let mut home = TestHome::on_disk(Engine::Postgres);
    let workspace = bind_workspace(&mut home);
    let servers = [home.serve(), home.serve()];
    let named = servers.each_ref().map(|server| ("first-responder", server));
    drive(&home, &named, &workspace, json!({"backend": "scripted", "lists": [["replicas"]], "last": []}));
    servers.into_iter().for_each(Server::stop);
    home.assert_verified();
}
