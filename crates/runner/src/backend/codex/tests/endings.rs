//! Turns that are stopped: while text streams, while a tool runs, before anything happens.

use super::{fixture::CodexFixture, *};

#[tokio::test]
async fn an_interrupt_while_text_streams_ends_the_turn_and_keeps_the_process() {
    let mut fixture = CodexFixture::new();
    let played = fixture
        .play_with("[[slow:200]]", |side, event_type, _| {
            if event_type == "assistant_delta" {
                side.stop(StopReason::Interrupt);
            }
        })
        .await;
    assert_eq!(played.result, Err(TurnAbort::Stopped));
    assert!(played.all("assistant_message").is_empty(), "half a message is no reply: {:#?}", played.events);
    let after = fixture.play("and now?").await;
    assert_eq!(after.result, Ok(TurnEnd::completed()), "{:#?}", after.events);
    assert!(!after.phases().contains(&"initialize:completed"), "the same process: {:?}", after.phases());
}

#[tokio::test]
async fn an_interrupt_while_a_tool_runs_ends_the_tool_and_keeps_the_process() {
    let mut fixture = CodexFixture::new();
    let played = fixture
        .play_with("[[tool:sleep 1234]]", |side, event_type, _| {
            if event_type == "tool_call" {
                side.stop(StopReason::Interrupt);
            }
        })
        .await;
    assert_eq!(played.result, Err(TurnAbort::Stopped));
    let tools = played.all("tool_call");
    assert_eq!(tools.len(), 2, "{tools:#?}");
    assert_eq!(tools[1]["status"], "failed", "the shell was ended, and its end is reported");
    fixture.until("the shell is gone", |lines| !lines.iter().any(|line| line.contains("sleep 1234"))).await;
    let after = fixture.play("and now?").await;
    assert_eq!(after.result, Ok(TurnEnd::completed()), "{:#?}", after.events);
    assert!(!after.phases().contains(&"initialize:completed"), "the same process: {:?}", after.phases());
}

#[tokio::test]
async fn a_turn_stopped_before_it_begins_starts_nothing() {
    let mut fixture = CodexFixture::new();
    let played = fixture
        .play_with("[[hold]]", |side, event_type, _| {
            if event_type == "backend_status" {
                side.stop(StopReason::Cancel);
            }
        })
        .await;
    assert_eq!(played.result, Err(TurnAbort::Stopped));
    assert!(played.all("assistant_delta").is_empty());
}
