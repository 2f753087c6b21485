//! Permission requests on the stream: with what editors show of a call, and without those that cannot be answered.

use serde_json::{Value, json};

use super::{super::scene::attached, Scene, types};
use crate::{
    harness::{Engine, TestServer, both_engines},
    operations::DIGEST,
};

fn ask(number: u32, title: &str) -> Value {
    json!({"permissionId": format!("prm_{number:032x}"), "title": title, "command": "content: b\nfile_path: /w/a",
        "digest": DIGEST, "options": [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}],
        "callDetails": {"kind": "edit", "name": "write_file", "locations": [{"path": "/w/a"}],
            "diffs": [{"path": "/w/a", "oldText": "a", "newText": "b"}], "input": {"file_path": "/w/a", "content": "b"}}})
}

#[both_engines]
async fn a_request_has_what_editors_show_and_one_that_is_denied_at_once_is_not_announced(engine: Engine) {
    let server = TestServer::start(engine).await;
    let session = attached(&server).await;
    session.prompt("hi").await;
    let (run_id, command_id) = session.prompted(&server).await;
    let runner = server.claim(&run_id, "runner-calls").await;
    runner.ack(&command_id).await;
    runner.tell(&command_id, "permission_request", ask(1, "Write\u{1b}it?")).await;
    runner.tell(&command_id, "permission_request", ask(2, "Write it?")).await;
    let scene = Scene { session_id: session.id.clone(), client_id: session.client.clone() };
    let frames = scene.replayed(&server, 0).await;
    assert!(!types(&frames).contains(&"permission_resolved"), "{frames:?}");
    let mut notices = frames.iter().map(|frame| &frame["data"]["update"]["_meta"]["ostler"]);
    let denied = notices.find(|notice| notice["type"] == "permission_resolved").unwrap();
    assert_eq!((&denied["status"], denied["reason"].is_string()), (&json!("denied"), true));
    let asked: Vec<_> = frames.iter().filter(|frame| frame["type"] == "permission_request").collect();
    assert_eq!(asked.len(), 1, "{asked:?}");
    let call = &asked[0]["data"]["toolCall"];
    assert_eq!((&call["kind"], &call["_meta"]["toolName"]), (&json!("edit"), &json!("write_file")));
    assert_eq!(call["rawInput"], json!({"file_path": "/w/a", "content": "b"}));
    assert_eq!(call["content"], json!([{"type": "diff", "path": "/w/a", "oldText": "a", "newText": "b"}]));
    assert_eq!(call["locations"], json!([{"path": "/w/a"}]));
}
