//! What an MCP server whose program this server starts can open: its own home and the workspace, and nothing else of the data
//! directory. It is confined by Landlock, like the programs of agents.

use std::path::Path;

use ostler_runner::guard::landlock_level;
use ostler_testkit::mcp_server::{python, write_script};
use serde_json::json;

use crate::fixtures::{
    process::{Server, stdout_of},
    shell_agent,
    test_home::{Engine, TestHome},
};

/// A home with an MCP server `files`, and the workspace that the server is bound to.
fn home() -> (TestHome, String) {
    let mut home = TestHome::on_disk(Engine::Sqlite);
    let workspace = home.path("work");
    std::fs::create_dir(&workspace).unwrap();
    let workspace = workspace.canonicalize().unwrap().to_str().unwrap().to_owned();
    let args = json!([write_script(&home.path("")), "files"]);
    let servers = json!({"files": {"command": python(), "args": args}}).to_string();
    for (name, value) in [
        ("OSTLER_SERVER__WORKSPACE", workspace.as_str()),
        ("OSTLER_MCP__SERVERS", &servers),
        ("OSTLER_MCP__LIST_WAIT_MS", "20000"),
        ("OSTLER_SERVER__DRAIN_MS", "100"),
        ("PATH", &std::env::var("PATH").unwrap()),
    ] {
        home.set(name, value);
    }
    (home, workspace)
}

/// Opens each path in the MCP server, and checks which of them it could open.
#[track_caller]
fn assert_opens(home: &TestHome, server: &Server, mode: &str, expected: &[(String, bool)]) {
    let paths: Vec<_> = expected.iter().map(|(path, _)| path).collect();
    let arguments = json!({"paths": paths, "mode": mode}).to_string();
    let called = home.cli(Some(server), &["tools", "call", "mcp__files__open", "--arguments", &arguments]);
    let opened: Vec<bool> = serde_json::from_str(&stdout_of(called)).unwrap();
    let opened: Vec<_> = expected.iter().map(|(path, _)| path.clone()).zip(opened).collect();
    assert_eq!(opened, expected, "mode {mode} with Landlock {}", landlock_level());
}

#[test]
fn an_mcp_server_opens_its_home_and_the_workspace_and_nothing_else_of_the_data_directory() {
    let (home, workspace) = home();
    std::fs::write(format!("{workspace}/shared"), "text").unwrap();
    let server = home.serve();
    // The workspace of another session, with a file of its agent. The profile's credential needs the key for secrets.
    shell_agent::set_profile(&home, &server, "echo text >notes; reply=$(pwd)/notes");
    let (_, result) = shell_agent::turn(&home, &server, "workspace-write", &json!({}));
    let notes = result["reply"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned();
    let data = home.data_dir.canonicalize().unwrap();
    let in_data = |name: &str| data.join(name).to_str().unwrap().to_owned();
    let files = [in_data("token"), in_data("signing-key"), in_data("secrets-key"), in_data("ostler.db"), notes];
    for file in &files {
        assert!(Path::new(file).is_file() && Path::new(file).starts_with(&data), "{file}");
    }
    // As the guard of agents: without Landlock in the kernel, files are not confined.
    let is_open = landlock_level() == 0;
    assert_opens(
        &home,
        &server,
        "ab",
        &[
            ("~/own".into(), true),
            (format!("{workspace}/new"), true),
            ("~/../of-another-server".into(), is_open),
            (in_data("new"), is_open),
            (files[4].clone(), is_open),
            (home.path("outside").to_str().unwrap().into(), is_open),
        ],
    );
    let mut readable: Vec<_> = files.into_iter().map(|file| (file, is_open)).collect();
    readable.extend([
        ("~/own".into(), true),
        (format!("{workspace}/shared"), true),
        (format!("/proc/{}/environ", server.process.0.id()), false),
    ]);
    assert_opens(&home, &server, "rb", &readable);
    server.stop();
}
