//! Calls of tools: what editors show of them, and of the requests for permission.

use serde_json::json;

use super::{ask, one, update};
use crate::kernel::events::EventType;

#[test]
fn a_request_that_the_server_denies_itself_is_no_outcome_of_an_announced_one() {
    let mut hidden = ask();
    hidden["title"] = "Run\u{1b}it?".into();
    let notice = update(EventType::PermissionRequest, &hidden);
    assert_eq!(notice["sessionUpdate"], "notice");
    let denied = json!({"permissionId": hidden["permissionId"], "status": "denied", "resolvedBy": "manager",
        "reason": "the request could not be read or is over-long"});
    let notice = update(EventType::PermissionResolved, &denied);
    let mut expected = denied;
    expected["type"] = "permission_resolved".into();
    assert_eq!(notice, json!({"sessionUpdate": "notice", "_meta": {"ostler": expected}}));
}

#[test]
fn a_permission_request_has_what_editors_show_of_a_call() {
    let mut payload = ask();
    let input = json!({"file_path": "/w/a", "content": "b"});
    payload["callDetails"] = json!({"kind": "edit", "name": "write_file", "locations": [{"path": "/w/a", "line": 3}],
        "diffs": [{"path": "/w/a", "oldText": null, "newText": "b"},
            {"path": "/w/c", "oldText": "c", "newText": "d", "truncated": true}], "input": input});
    let (_, data) = one(EventType::PermissionRequest, &payload);
    assert_eq!(
        data["toolCall"],
        json!({"toolCallId": "t", "title": "Run it?", "status": "pending", "kind": "edit", "rawInput": input,
        "locations": [{"path": "/w/a", "line": 3}],
        "content": [{"type": "diff", "path": "/w/a", "oldText": null, "newText": "b"},
            {"type": "diff", "path": "/w/c", "oldText": "c", "newText": "d", "_meta": {"ostler": {"truncated": true}}}],
        "_meta": {"toolName": "write_file", "ostler": {"command": "rm x"}}})
    );
    payload["callDetails"] = json!({"kind": "unheard-of"});
    let (_, data) = one(EventType::PermissionRequest, &payload);
    assert_eq!(
        (&data["toolCall"]["kind"], &data["toolCall"]["rawInput"]),
        (&json!("other"), &json!({"command": "rm x"}))
    );
}

#[test]
fn the_end_of_a_call_has_its_changes_and_its_output() {
    let ended = json!({"toolCallId": "t", "name": "edit", "type": "edit", "status": "completed", "files": ["/w/a"],
        "diffs": [{"path": "/w/a", "oldText": "a", "newText": "b"}], "rawOutput": {"fileName": "a"}});
    let ended = update(EventType::ToolCall, &ended);
    assert_eq!(ended["content"], json!([{"type": "diff", "path": "/w/a", "oldText": "a", "newText": "b"}]));
    assert_eq!((&ended["locations"], &ended["rawOutput"]), (&json!([{"path": "/w/a"}]), &json!({"fileName": "a"})));
    let started = json!({"toolCallId": "t", "name": "edit", "type": "edit", "status": "started",
        "locations": [{"path": "/w/b", "line": 2}], "arguments": "{\"file_path\":\"/w/b\"}"});
    let started = update(EventType::ToolCall, &started);
    assert_eq!(
        (&started["locations"], &started["rawInput"]),
        (&json!([{"path": "/w/b", "line": 2}]), &json!({"file_path": "/w/b"}))
    );
    assert_eq!((&started["content"], started.get("rawOutput")), (&json!([]), None), "nothing yet");
    let bare = update(EventType::ToolCall, &json!({"toolCallId": "t", "status": "started"}));
    assert_eq!((&bare["content"], &bare["locations"]), (&json!([]), &json!([])), "lists, as clients expect them");
    let ended = update(EventType::ToolCall, &json!({"toolCallId": "t", "status": "completed"}));
    assert_eq!((ended.get("content"), ended.get("locations")), (None, None), "what was sent before stays");
}
