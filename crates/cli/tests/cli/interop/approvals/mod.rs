//! The bridge of `examples/approvals`, between a real server and a stand-in for a chat.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::fixtures::{
    process::{eventually, stdout_of},
    test_home::{Engine, TestHome},
};

#[test]
fn people_in_a_chat_answer_an_agents_question() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    let token = stdout_of(home.cli(Some(&server), &["tokens", "create", "chat", "--tenant", "local"]));
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/interop/approvals/chat.py");
    let bridge = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/approvals/bridge.py");
    let chat = Command::new(std::env::var("OSTLER_TEST_PYTHON").unwrap_or_else(|_| "python3".into()))
        .args([folder, bridge])
        .env("OSTLER_SERVER", server.url())
        .env("OSTLER_TOKEN", token.trim())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let script = r#"{"script":[{"ask":{"title":"Delete old logs?","command":"rm -r logs"}},{"say":"Done."}]}"#;
    let submitted = home.cli(Some(&server), &["run", "--detach", "--session", "disk", script]);
    assert!(submitted.status.success(), "{submitted:?}");

    let report: Value = serde_json::from_str(&stdout_of(chat.wait_with_output().unwrap())).unwrap();
    assert_eq!(report["text"], "Delete old logs?\n```rm -r logs```");
    assert_eq!(report["buttons"], json!(["allow", "deny"]));
    for rejected in ["forged", "old"] {
        assert_eq!(report[rejected], json!([401, "bad signature"]), "{rejected}");
    }
    assert_eq!(report["stranger"], json!([200, "U9 may not answer"]));
    assert_eq!(report["allowed"], json!([200, "allow, by U1"]));
    for late in ["other", "again"] {
        assert!(report[late][1].as_str().unwrap().starts_with("not answered: "), "{late}: {report}");
    }
    let completed = eventually("the run has ended", || {
        let result = home.cli(Some(&server), &["result", "disk"]);
        result.status.success().then(|| stdout_of(result))
    });
    assert!(completed.contains("Done."), "{completed}");
    server.stop();
}
