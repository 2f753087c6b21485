//! Turns that are stopped: while text streams, while a tool runs, before anything happened.

use super::{stage::Stage, *};

#[tokio::test]
async fn an_interrupt_while_text_streams_ends_the_turn_and_the_process_goes_on() {
    let mut stage = Stage::new();
    let played = stage
        .play_with("[[slow:200]]", |end, event_type, _| {
            if event_type == "assistant_delta" {
                end.stop(Stop::Interrupt);
            }
        })
        .await;
    assert_eq!(played.result, Err(Left::Stopped));
    assert!(played.all("assistant_message").is_empty(), "half a message is no reply: {:#?}", played.events);
    let after = stage.play("and now?").await;
    assert_eq!(after.result, Ok(TurnEnd::completed()), "{:#?}", after.events);
    assert!(!after.phases().contains(&"initialize:completed"), "the same process: {:?}", after.phases());
}

#[tokio::test]
async fn an_interrupt_while_a_tool_runs_leaves_no_tool_behind_and_the_process_goes_on() {
    let mut stage = Stage::new();
    let played = stage
        .play_with("[[tool:sleep 1234]]", |end, event_type, _| {
            if event_type == "tool_call" {
                end.stop(Stop::Interrupt);
            }
        })
        .await;
    assert_eq!(played.result, Err(Left::Stopped));
    let tools = played.all("tool_call");
    assert_eq!(tools.len(), 2, "{tools:#?}");
    assert_eq!(tools[1]["status"], "failed", "the shell was ended, and its end is told");
    stage.until("the shell is gone", |left| !left.iter().any(|line| line.contains("sleep 1234"))).await;
    let after = stage.play("and now?").await;
    assert_eq!(after.result, Ok(TurnEnd::completed()), "{:#?}", after.events);
    assert!(!after.phases().contains(&"initialize:completed"), "the same process: {:?}", after.phases());
}

#[tokio::test]
async fn a_turn_that_is_stopped_before_it_began_starts_nothing() {
    let mut stage = Stage::new();
    let played = stage
        .play_with("[[hold]]", |end, event_type, _| {
            if event_type == "backend_status" {
                end.stop(Stop::Cancel);
            }
        })
        .await;
    assert_eq!(played.result, Err(Left::Stopped));
    assert!(played.all("assistant_delta").is_empty());
}
