//! The bridge of `examples/approvals`, between a real server and a stand-in for a chat, and the receiver of docs/approvals.md.

use std::{
    fs::{self, File},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    process::{Guarded, eventually, stdout_of},
    runner::run_request,
    test_home::{Engine, TestHome},
};

const GUIDE: &str = include_str!("../../../../../../docs/approvals.md");

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

/// A turn of the agent that asks twice for a command that is not on the receiver's list. The first request cannot be rejected.
/// Returns the path of the run's requests.
fn ask_twice(http: &mut Http, agent_id: &str) -> String {
    let mut body = run_request();
    body["agentId"] = agent_id.into();
    body["command"] = json!({"type": "turn", "payload": {"prompt": "clean up"}});
    let run = http.post("/api/v1/runs", &body).good();
    let path = format!("/api/v1/runs/{}", run["runId"].as_str().unwrap());
    let lease = http.post(&format!("{path}/claim"), &json!({"runnerId": "runner-a", "leaseMs": 60_000})).good();
    let allow = json!({"optionId": "yes", "name": "Yes", "kind": "allow_once"});
    let reject = json!({"optionId": "no", "name": "No", "kind": "reject_once"});
    let ask = |number: u32, options: Value, wait_ms: i64| {
        json!({"type": "permission_request", "commandId": run["command"]["commandId"], "payload": {
            "permissionId": format!("prm_{number:032x}"), "title": "Clean up?", "command": "rm -r build",
            "options": options, "digest": "ab".repeat(32), "waitMs": wait_ms}})
    };
    let events = [ask(1, json!([allow]), 3_000), ask(2, json!([allow, reject]), 60_000)];
    let batch = json!({"runnerId": "runner-a", "leaseEpoch": lease["leaseEpoch"], "batchNo": 1, "events": events});
    http.post(&format!("{path}/events"), &batch).good();
    format!("{path}/permissions")
}

#[test]
fn the_receiver_of_the_guide_leaves_a_request_that_it_cannot_reject_to_the_deadline() {
    let mut home = TestHome::new(Engine::Sqlite).without_runner();
    home.set("OSTLER_WEBHOOKS__ALLOW_LOOPBACK", "true");
    let server = home.serve();
    let mut http = Http::new(&server);
    let (_, receiver) = GUIDE.split_once("<!-- file: receiver.py -->\n```python\n").unwrap();
    fs::write(home.path("receiver.py"), receiver.split_once("```").unwrap().0).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let agent = http.post("/agents", &json!({"name": "builder"})).good();
    let agent_id = agent["id"].as_str().unwrap();
    let url = format!("http://127.0.0.1:{port}/");
    fs::write(home.path("secret"), stdout_of(home.cli(Some(&server), &["webhooks", "set", "builder", &url]))).unwrap();
    let token = stdout_of(home.cli(Some(&server), &["tokens", "create", "receiver", "--tenant", "local"]));
    let _receiver = Guarded(
        Command::new(std::env::var("OSTLER_TEST_PYTHON").unwrap_or_else(|_| "python3".into()))
            .args(["receiver.py", &port.to_string()])
            .current_dir(home.path(""))
            .env("OSTLER_SERVER", server.url())
            .env("OSTLER_TOKEN", token.trim())
            .stderr(File::create(home.path("receiver.log")).unwrap())
            .spawn()
            .unwrap(),
    );
    eventually("the receiver listens", || TcpStream::connect(("127.0.0.1", port)).ok());
    let requests = ask_twice(&mut http, agent_id);
    let answered = eventually("neither request waits any more", || {
        let found = http.get(&requests).good()["permissions"].as_array().unwrap().clone();
        found.iter().all(|request| request["status"] != "pending").then_some(found)
    });
    let by = |number: u32| {
        let id = format!("prm_{number:032x}");
        let request = answered.iter().find(|request| request["permissionId"] == id).unwrap();
        (request["status"].as_str().unwrap(), request["resolvedBy"].as_str().unwrap())
    };
    let (status, person) = by(2);
    assert!(status == "denied" && person.starts_with("service:tok_"), "{answered:?}");
    assert_eq!(by(1).1, "deadline", "{answered:?}");
    assert_ne!(by(1).0, "allowed");
    // Both deliveries were accepted at once: a failed one would be sent again for days.
    let deliveries = http.get(&format!("/agents/{agent_id}/webhook/deliveries")).good();
    let deliveries = deliveries["deliveries"].as_array().unwrap();
    let asked: Vec<_> = deliveries.iter().filter(|one| one["type"] == "run.permission_requested").collect();
    assert_eq!(asked.len(), 2, "{deliveries:?}");
    assert!(asked.iter().all(|one| one["status"] == "delivered" && one["attempts"] == 1), "{asked:?}");
    let log = fs::read_to_string(home.path("receiver.log")).unwrap();
    assert!(!log.contains("Traceback"), "{log}");
    server.stop();
}
