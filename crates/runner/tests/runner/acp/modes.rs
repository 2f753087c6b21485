//! The modes that a turn selects, and what the agent reports of its own session.

use ostler_protocol::kernel::commands::CommandType;
use serde_json::json;

use super::{Fixture, phases};

/// An agent with modes that records which mode the host selects.
const WITH_MODES: &str = r#"hello; read -r l
    reply 2 '{"sessionId":"s1","modes":{"currentModeId":"yolo","availableModes":[{"id":"plan"},{"id":"default"},{"id":"yolo"}]}}'
    n=3
    while read -r l; do
        case "$l" in
        *session/set_mode*) printf '%s\n' "$l" >> modes; reply $n '{}' ;;
        *session/prompt*) reply $n '{"stopReason":"end_turn"}' ;;
        esac
        n=$((n + 1))
    done"#;

#[tokio::test]
async fn a_turn_gets_the_mode_that_it_names_within_the_policy() {
    let fixture = Fixture::with(WITH_MODES, json!({"approval": "on-request"}));
    for payload in [
        json!({"prompt": "a", "mode": "plan"}),
        json!({"prompt": "b", "mode": "plan"}),
        json!({"prompt": "c", "mode": "yolo"}),
    ] {
        fixture.kernel.submit(CommandType::Turn, payload);
    }
    fixture.start().await.unwrap();
    let selected: Vec<_> = fixture.file("modes").lines().map(|line| line.contains("\"plan\"")).collect();
    assert_eq!(selected, [true, false], "plan once, then the mode that asks: {}", fixture.file("modes"));
    assert!(fixture.file("modes").lines().last().unwrap().contains("\"default\""));
    let free = Fixture::with(WITH_MODES, json!({"approval": "never"}));
    free.kernel.submit(CommandType::Turn, json!({"prompt": "a", "mode": "plan"}));
    free.kernel.submit(CommandType::Turn, json!({"prompt": "b", "mode": "yolo"}));
    free.start().await.unwrap();
    assert!(free.file("modes").lines().last().unwrap().contains("\"yolo\""));
}

#[tokio::test]
async fn notifications_of_the_agent_are_events_of_the_turn() {
    let fixture = Fixture::new(
        r#"begin
        notify() { say '{"jsonrpc":"2.0","method":"qwen/notify/session/'"$1"'","params":'"$2"'}'; }
        read -r l
        notify title-update '{"v":1,"sessionId":"s1","title":"A plan"}'
        notify mode-update '{"v":1,"sessionId":"s1","currentModeId":"yolo"}'
        notify mode-update '{"v":1,"sessionId":"s1","currentModeId":"yolo"}'
        notify title-update '{"v":1,"sessionId":"other","title":"Not ours"}'
        notify unknown '{"v":1,"sessionId":"s1"}'
        notify prompt-suggestion '{"v":1,"sessionId":"s1","suggestion":"run it"}'
        reply 3 '{"stopReason":"end_turn"}'
        notify model-update '{"v":1,"sessionId":"s1","currentModelId":"m2"}'
        read -r l; reply 4 '{"stopReason":"end_turn"}'; listen"#,
    );
    fixture.submit("one");
    fixture.submit("two");
    fixture.start().await.unwrap();
    let notified = phases(&fixture.kernel, "notified");
    let names: Vec<_> = notified.iter().map(|event| event["notification"].as_str().unwrap()).collect();
    assert_eq!(names, ["title-update", "mode-update", "prompt-suggestion", "model-update"], "{notified:?}");
    assert_eq!(notified[0]["data"], json!({"title": "A plan"}));
    assert_eq!(notified[1]["data"], json!({"currentModeId": "yolo", "previousModeId": ""}));
}
