//! `ostler daemon`: the server that editors start.

use serde_json::Value;

use crate::fixtures::{
    process::{Server, stdout_of},
    test_home::{Engine, TestHome},
};

#[test]
fn it_is_bound_to_the_current_directory_and_prints_the_ready_line() {
    let home = TestHome::new(Engine::Sqlite);
    let directory = home.path("project");
    std::fs::create_dir(&directory).unwrap();
    let mut command = home.command(&["daemon", "--listen", "127.0.0.1:0"]);
    command.current_dir(&directory);
    let server = Server::start(command).unwrap();
    assert!(server.ready["tokenFile"].is_string(), "{}", server.ready);
    let capabilities = stdout_of(home.cli(Some(&server), &["api", "GET", "/capabilities"]));
    let capabilities: Value = serde_json::from_str(&capabilities).unwrap();
    let bound = directory.canonicalize().unwrap();
    assert_eq!(capabilities["workspaceCwd"].as_str(), bound.to_str(), "{capabilities}");
    server.stop();
}

#[test]
fn another_directory_can_be_named() {
    let home = TestHome::new(Engine::Sqlite);
    let directory = home.path("other");
    std::fs::create_dir(&directory).unwrap();
    let args = ["daemon", "--listen", "127.0.0.1:0", "--workspace", directory.to_str().unwrap()];
    let server = Server::start(home.command(&args)).unwrap();
    let capabilities = stdout_of(home.cli(Some(&server), &["api", "GET", "/capabilities"]));
    let capabilities: Value = serde_json::from_str(&capabilities).unwrap();
    assert_eq!(capabilities["workspaceCwd"].as_str(), directory.canonicalize().unwrap().to_str(), "{capabilities}");
    server.stop();
}
