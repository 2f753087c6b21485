//! Calls that change files: what editors show of them before they are allowed, and after.

use ostler_protocol::kernel::{events::EventType, runs::TerminalStatus};
use serde_json::json;

use super::{Fixture, end};
use crate::kernel::of_type;

const EDITS: &str = r#"begin
    read -r l
    tell '{"sessionUpdate":"tool_call","toolCallId":"c","title":"WriteFile","kind":"edit","status":"pending","rawInput":{},"_meta":{"toolName":"write_file"}}'
    diff='{"type":"diff","path":"/w/a.txt","oldText":"old","newText":"new"}'
    ask 100 session/request_permission '{"sessionId":"s1","toolCall":{"toolCallId":"c","title":"Write a.txt","kind":"edit","locations":[{"path":"/w/a.txt","line":2}],"content":['"$diff"'],"rawInput":{"file_path":"/w/a.txt","content":"new"}},"options":[{"optionId":"forever","name":"Always","kind":"allow_always"},{"optionId":"once","name":"Allow","kind":"allow_once"},{"optionId":"no","name":"No","kind":"reject_once"}]}'
    read -r l
    tell '{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed","content":['"$diff"'],"rawOutput":{"fileName":"a.txt"}}'
    reply 3 '{"stopReason":"end_turn"}'; listen"#;

#[tokio::test]
async fn a_request_and_the_end_of_an_edit_have_its_files_and_changes() {
    let fixture = Fixture::with(EDITS, json!({"approval": "untrusted"}));
    let command_id = fixture.submit("write it");
    let runner = fixture.start();
    fixture.kernel.until(|kernel| !kernel.permissions().is_empty()).await;
    let request = fixture.kernel.permissions().remove(0);
    fixture.kernel.answer_permission(request.permission_id, "once", &request.digest);
    runner.await.unwrap();
    assert_eq!(end(&fixture.kernel.command(command_id)).0, TerminalStatus::Completed);
    let diff = json!({"path": "/w/a.txt", "oldText": "old", "newText": "new"});
    let locations = json!([{"path": "/w/a.txt", "line": 2}]);
    let asked = of_type(&fixture.kernel, EventType::PermissionRequest).remove(0);
    assert_eq!(
        asked["callDetails"],
        json!({"kind": "edit", "name": "write_file", "locations": locations, "diffs": [diff],
            "input": {"file_path": "/w/a.txt", "content": "new"}})
    );
    assert_eq!(asked["command"], "content: new\nfile_path: /w/a.txt", "all of it, for people at a terminal");
    let calls = of_type(&fixture.kernel, EventType::ToolCall);
    let (started, ended) = (&calls[0], &calls[1]);
    assert_eq!(
        (&started["name"], &started["type"], &started["locations"]),
        (&json!("write_file"), &json!("edit"), &locations)
    );
    assert_eq!(
        (&ended["status"], &ended["diffs"], &ended["rawOutput"]),
        (&json!("completed"), &json!([diff]), &json!({"fileName": "a.txt"}))
    );
}
