//! Prompts that are sent while a turn runs: they are announced at once, and echoed when their own turn begins.

use serde_json::{Value, json};

use super::{Scene, ids, next, session, types, until, updates};
use crate::harness::{Engine, TestServer, both_engines, id};

/// Streams a text slowly enough for another prompt to come in between.
const SLOW: &str = r#"{"script": [{"say": "one two three four", "pieces": 4, "everyMs": 300, "final": true}]}"#;

fn is_echo(frame: &Value) -> bool {
    frame["data"]["update"]["sessionUpdate"] == "user_message_chunk"
}

fn place(frames: &[Value], fits: impl Fn(&Value) -> bool) -> usize {
    frames.iter().position(fits).unwrap_or_else(|| panic!("no such frame in {frames:?}"))
}

/// The frames of a slow turn and of a prompt that was sent during it, with the id of that prompt.
async fn two_turns(server: &TestServer, scene: &Scene) -> (String, Vec<Value>) {
    let mut follow = scene.follow_after(server, 0).await;
    scene.prompt(server, SLOW).await;
    let mut frames = vec![];
    while frames.last().is_none_or(|frame: &Value| frame["data"]["update"]["sessionUpdate"] != "agent_message_chunk") {
        frames.push(next(&mut follow).await.unwrap());
    }
    let second = scene.prompt(server, "next").await;
    frames.extend(until(&mut follow, "turn_complete").await);
    frames.extend(until(&mut follow, "turn_complete").await);
    frames.retain(|frame| frame["id"].is_i64());
    (second, frames)
}

#[both_engines]
async fn a_prompt_that_waits_is_echoed_after_the_turn_before_it(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let scene = session(&server).await;
    let (second, frames) = two_turns(&server, &scene).await;
    let added = place(&frames, |frame| frame["type"] == "pending_prompt_added");
    let first_end = place(&frames, |frame| frame["type"] == "turn_complete");
    let echo = place(&frames, |frame| is_echo(frame) && frame["promptId"] == second.as_str());
    assert!(added < first_end && first_end < echo, "{:?} {:?}", types(&frames), updates(&frames));
    let data = &frames[added]["data"];
    assert_eq!(
        (&data["sessionId"], &data["promptId"], &data["text"]),
        (&json!(scene.session_id), &json!(second), &json!("next"))
    );
    assert!(data["queuedAt"].is_i64(), "{data}");
    assert_eq!(frames[echo]["data"]["update"]["content"], json!({"type": "text", "text": "next"}));
    for frame in [&frames[added], &frames[echo]] {
        assert_eq!(frame["originatorClientId"], scene.client_id.as_str());
    }
    assert_eq!(frames.iter().filter(|frame| is_echo(frame)).count(), 2, "each prompt is echoed once");
    // The echo comes before everything else of its turn.
    let first_of_turn = frames.iter().skip(added + 1).position(|frame| frame["promptId"] == second.as_str()).unwrap();
    assert_eq!(first_of_turn + added + 1, echo);
    assert!(ids(&frames).is_sorted());
}

#[both_engines]
async fn the_echo_is_at_the_same_place_for_a_client_that_reconnects(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let scene = session(&server).await;
    let (_, live) = two_turns(&server, &scene).await;
    let last = *ids(&live).last().unwrap();
    for after in 0..last {
        let mut replayed = scene.replayed(&server, after).await;
        replayed.retain(|frame| frame["id"].as_i64().is_some_and(|id| id <= last));
        let wanted: Vec<_> = live.iter().filter(|frame| frame["id"].as_i64().unwrap() > after).collect();
        assert_eq!(replayed.iter().collect::<Vec<_>>(), wanted, "after {after}");
    }
}

#[both_engines]
async fn a_prompt_behind_many_events_is_echoed_when_its_turn_begins(engine: Engine) {
    let server = TestServer::start(engine).await;
    let scene = session(&server).await;
    scene.prompt(&server, "one").await;
    let second = scene.prompt(&server, "two").await;
    let (run_id, first_id, second_id) = commands(&server, &scene).await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&first_id).await;
    for _ in 0..20 {
        runner.tell(&first_id, "assistant_delta", json!({"messageId": "m", "delta": "x"})).await;
    }
    runner.end(&first_id, "completed").await;
    runner.ack(&second_id).await;
    // None of these shows that the turn has begun.
    for n in 0..20 {
        runner.tell(&second_id, "state", json!({"snapshot": {"n": n}})).await;
    }
    runner.tell(&second_id, "assistant_delta", json!({"messageId": "n", "delta": "y"})).await;
    runner.end(&second_id, "completed").await;
    let frames = scene.replayed(&server, 0).await;
    let echo = place(&frames, |frame| is_echo(frame) && frame["promptId"] == second.as_str());
    assert_eq!(frames[echo + 1]["data"]["update"]["sessionUpdate"], "agent_message_chunk");
    let last = *ids(&frames).last().unwrap();
    for after in [frames[echo - 1]["id"].as_i64().unwrap(), last - 2] {
        let replayed = scene.replayed(&server, after).await;
        let wanted: Vec<_> = frames.iter().filter(|frame| frame["id"].as_i64().is_some_and(|id| id > after)).collect();
        let replayed: Vec<_> = replayed.iter().filter(|frame| frame["id"].is_i64()).collect();
        assert_eq!(replayed, wanted, "after {after}");
    }
}

#[both_engines]
async fn a_prompt_that_fails_while_it_waits_is_not_echoed(engine: Engine) {
    let server = TestServer::start(engine).await;
    let scene = session(&server).await;
    scene.prompt(&server, "one").await;
    let second = scene.prompt(&server, "two").await;
    let (run_id, first_id, second_id) = commands(&server, &scene).await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&first_id).await;
    runner.end(&second_id, "failed").await;
    let mut follow = scene.follow_after(&server, 0).await;
    let frames = until(&mut follow, "turn_error").await;
    assert_eq!(frames.last().unwrap()["data"]["promptId"], second.as_str());
    assert_eq!(frames.iter().filter(|frame| is_echo(frame)).count(), 1, "only the first prompt");
}

/// The run of the session's prompts, and the commands of the first two.
async fn commands(server: &TestServer, scene: &Scene) -> (String, String, String) {
    let page = server.get(&format!("/api/v1/sessions/{}/trace?limit=100", scene.session_id)).await.ok();
    let events = page["events"].as_array().unwrap();
    let mut messages = events.iter().filter(|event| event["type"] == "user_message");
    let (first, second) = (messages.next().unwrap(), messages.next().unwrap());
    (id(first, "runId"), id(first, "commandId"), id(second, "commandId"))
}

#[both_engines]
async fn a_prompt_that_is_cancelled_while_it_waits_is_not_echoed(engine: Engine) {
    let server = TestServer::start(engine).await;
    let scene = session(&server).await;
    let mut follow = scene.follow(&server).await;
    scene.prompt(&server, "one").await;
    let second = scene.prompt(&server, "two").await;
    let (_, _, command_id) = commands(&server, &scene).await;
    server.cancel_command(&command_id).await;
    let frames = until(&mut follow, "turn_complete").await;
    assert_eq!(frames.last().unwrap()["data"]["promptId"], second.as_str());
    assert!(types(&frames).contains(&"pending_prompt_added"));
    let echoes: Vec<_> = frames.iter().filter(|frame| is_echo(frame)).collect();
    assert!(echoes.iter().all(|frame| frame["promptId"] != second.as_str()), "{echoes:?}");
}
