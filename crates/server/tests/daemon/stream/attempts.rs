//! A turn whose runner dies in the middle of a message is taken over by another runner. Clients can tell the two attempts apart.

use serde_json::{Value, json};

use super::{Scene, next, session, until};
use crate::harness::{Engine, TestServer, both_engines, id};

/// How long the leases of the harness last.
const LEASE_MS: i64 = 60_000;

/// The run and the command of the session's prompt.
async fn prompted(server: &TestServer, scene: &Scene) -> (String, String) {
    let page = server.get(&format!("/api/v1/sessions/{}/trace?limit=100", scene.session_id)).await.ok();
    let prompt = page["events"].as_array().unwrap().iter().find(|event| event["type"] == "user_message").unwrap();
    (id(prompt, "runId"), id(prompt, "commandId"))
}

/// A turn whose first attempt ends in the middle of a message, and whose second one sends the whole message. `message_id` names the
/// message of an attempt.
async fn repeated(server: &TestServer, scene: &Scene, message_id: impl Fn(u32) -> Value) {
    let piece = |attempt, text: &str| json!({"messageId": message_id(attempt), "delta": text});
    scene.prompt(server, "hi").await;
    let (run_id, command_id) = prompted(server, scene).await;
    let dead = server.claim(&run_id, "runner-a").await;
    dead.ack(&command_id).await;
    dead.tell(&command_id, "assistant_delta", piece(1, "Half a")).await;
    server.clock.advance_ms(LEASE_MS);
    let next = server.claim(&run_id, "runner-b").await;
    next.ack(&command_id).await;
    next.tell(&command_id, "assistant_delta", piece(2, "A whole")).await;
    let whole = json!({"messageId": message_id(2), "text": "A whole", "final": true});
    next.tell(&command_id, "assistant_message", whole).await;
    next.end(&command_id, "completed").await;
}

/// The texts of the messages, as published clients separate them: by segment, and around a separate message.
fn messages(frames: &[Value]) -> Vec<String> {
    let mut messages: Vec<(Value, bool, String)> = vec![];
    for update in frames.iter().map(|frame| &frame["data"]["update"]) {
        let text = update["content"]["text"].as_str().unwrap_or_default();
        if update["sessionUpdate"] != "agent_message_chunk" || text.is_empty() {
            continue;
        }
        let segment = update["_meta"]["qwenTranscript"]["segmentId"].clone();
        let is_alone = update["_meta"]["qwenDiscreteMessage"] == true;
        match messages.last_mut() {
            Some((last, false, whole)) if *last == segment && !is_alone => whole.push_str(text),
            _ => messages.push((segment, is_alone, text.to_owned())),
        }
    }
    messages.into_iter().map(|(_, _, text)| text).collect()
}

#[both_engines]
async fn a_repeated_message_is_not_joined_with_the_lost_one(engine: Engine) {
    let server = TestServer::start(engine).await;
    // An agent that names its messages, one that does not, and one that uses a name again.
    let names: [fn(u32) -> Value; 3] =
        [|attempt| format!("msg_{attempt}").into(), |_| Value::Null, |_| "msg_same".into()];
    for message_id in names {
        let scene = session(&server).await;
        let mut follow = scene.follow(&server).await;
        repeated(&server, &scene, message_id).await;
        let live = messages(&until(&mut follow, "turn_complete").await);
        let [lost, notice, whole] = &live[..] else { panic!("{live:?}") };
        assert_eq!((lost.as_str(), whole.as_str()), ("Half a", "A whole"));
        assert!(notice.contains("starts again") && notice.contains("does not count"), "{notice}");
        // A client that loads the session gets the same.
        server.post(&format!("/session/{}/load", scene.session_id), &json!({})).await.with_status(200);
        let replayed = scene.replayed(&server, 0).await;
        assert_eq!(messages(&replayed), live);
    }
}

#[both_engines]
async fn a_whole_message_after_a_lost_piece_is_sent_in_full(engine: Engine) {
    let server = TestServer::start(engine).await;
    let scene = session(&server).await;
    scene.prompt(&server, "hi").await;
    let (run_id, command_id) = prompted(&server, &scene).await;
    let dead = server.claim(&run_id, "runner-a").await;
    dead.ack(&command_id).await;
    dead.tell(&command_id, "assistant_delta", json!({"delta": "Half a"})).await;
    server.clock.advance_ms(LEASE_MS);
    let runner = server.claim(&run_id, "runner-b").await;
    runner.ack(&command_id).await;
    // This stream has not seen the lost piece, so the server reads the log.
    let mut late = scene.follow(&server).await;
    assert_eq!(late.frame().await.unwrap().retry_ms, Some(3_000));
    runner.tell(&command_id, "assistant_message", json!({"text": "A whole", "final": true})).await;
    assert_eq!(next(&mut late).await.unwrap()["data"]["update"]["content"]["text"], "A whole");
    let replayed = scene.replayed(&server, 0).await;
    assert_eq!(messages(&replayed).last().map(String::as_str), Some("A whole"));
}
