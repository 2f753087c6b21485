//! The modes that a turn selects, and what the agent reports of its own session.

use ostler_protocol::kernel::{commands::CommandType, events::EventType};
use serde_json::json;

use super::{Fixture, phases};
use crate::kernel::of_type;

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

#[tokio::test]
async fn the_commands_of_the_agent_are_reported_when_they_change() {
    let fixture = Fixture::new(
        r#"begin
        commands() { tell '{"sessionUpdate":"available_commands_update","availableCommands":['"$1"'],"_meta":{"availableSkills":["review"],"more":1}}'; }
        commands '{"name":"init"}'
        read -r l
        commands '{"name":"init"}'
        commands '{"name":"init"},{"name":"hello"}'
        reply 3 '{"stopReason":"end_turn"}'
        commands '{"name":"init"}'
        read -r l; reply 4 '{"stopReason":"end_turn"}'; listen"#,
    );
    fixture.submit("one");
    fixture.submit("two");
    fixture.start().await.unwrap();
    let reported = phases(&fixture.kernel, "notified");
    let counts: Vec<_> =
        reported.iter().map(|event| event["data"]["availableCommands"].as_array().unwrap().len()).collect();
    assert_eq!(counts, [1, 2, 1], "{reported:?}");
    assert_eq!(reported[0]["notification"], "commands-update");
    assert_eq!(reported[0]["data"]["availableSkills"], json!(["review"]));
}

#[tokio::test]
async fn a_list_of_commands_that_is_too_long_is_reported_without_details_or_not_at_all() {
    let fixture = Fixture::new(
        r#"begin; read -r l
        commands() { tell '{"sessionUpdate":"available_commands_update","availableCommands":[{"name":"a","description":"'"$1"'","_meta":{"more":"'"$2"'"}}]}'; }
        long=$(printf '%070000d' 0)
        commands short "$long"
        commands "$long" short
        reply 3 '{"stopReason":"end_turn"}'; listen"#,
    );
    fixture.turn().await;
    let reported = phases(&fixture.kernel, "notified");
    assert_eq!(reported.len(), 1);
    assert_eq!(reported[0]["data"]["availableCommands"], json!([{"name": "a", "description": "short"}]));
}

#[tokio::test]
async fn at_most_eight_lists_of_commands_of_a_turn_are_reported() {
    let fixture = Fixture::new(
        r#"begin; read -r l
        for n in 1 2 3 4 5 6 7 8 9 10; do
            tell '{"sessionUpdate":"available_commands_update","availableCommands":[{"name":"c'"$n"'"}],"_meta":{"availableSkills":["review",7]}}'
        done
        reply 3 '{"stopReason":"end_turn"}'; listen"#,
    );
    fixture.turn().await;
    let reported = phases(&fixture.kernel, "notified");
    assert_eq!(reported.len(), 8, "{reported:?}");
    assert_eq!(reported[7]["data"]["availableCommands"], json!([{"name": "c8"}]));
    assert_eq!(reported[7]["data"]["availableSkills"], json!(["review"]), "what is no name is left out");
}

#[tokio::test]
async fn usage_has_the_size_of_the_context_once_the_agent_has_reported_it() {
    let fixture = Fixture::new(
        r#"begin
        used() { tell '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":""},"_meta":{"usage":{"totalTokens":15}}}'; }
        read -r l; used; tell '{"sessionUpdate":"usage_update","used":15,"size":1000}'; used
        reply 3 '{"stopReason":"end_turn"}'
        read -r l; used; tell '{"sessionUpdate":"usage_update","size":"large"}'; used
        reply 4 '{"stopReason":"end_turn"}'; listen"#,
    );
    fixture.submit("one");
    fixture.submit("two");
    fixture.start().await.unwrap();
    let usage = of_type(&fixture.kernel, EventType::Usage);
    let sizes: Vec<_> = usage.iter().map(|usage| usage["contextWindow"].as_u64()).collect();
    assert_eq!(sizes, [None, Some(1_000), Some(1_000), Some(1_000)]);
}

#[tokio::test]
async fn usage_has_no_size_of_the_context_of_another_model() {
    let fixture = Fixture::new(
        r#"begin
        model() { say '{"jsonrpc":"2.0","method":"qwen/notify/session/model-update","params":{"v":1,"sessionId":"s1","currentModelId":"'"$1"'"}}'; }
        used() { tell '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":""},"_meta":{"usage":{"totalTokens":15}}}'; }
        size() { tell '{"sessionUpdate":"usage_update","size":'"$1"'}'; }
        read -r l; size 1000; used; model m2; used; size 2000; model m2; used
        reply 3 '{"stopReason":"end_turn"}'
        model m3
        read -r l; used
        reply 4 '{"stopReason":"end_turn"}'; listen"#,
    );
    fixture.submit("one");
    fixture.submit("two");
    fixture.start().await.unwrap();
    let usage = of_type(&fixture.kernel, EventType::Usage);
    let sizes: Vec<_> = usage.iter().map(|usage| usage["contextWindow"].as_u64()).collect();
    assert_eq!(sizes, [Some(1_000), None, Some(2_000), None]);
    let models: Vec<_> = usage[1..].iter().map(|usage| usage["model"].as_str().unwrap()).collect();
    assert_eq!(models, ["m2", "m2", "m3"]);
}
