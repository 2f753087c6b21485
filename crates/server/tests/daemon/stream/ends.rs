//! How prompts and streams end.

use ostler_daemon::config::DaemonSection;
use serde_json::{Value, json};

use super::{Scene, ids, next, session, types, until};
use crate::{
    daemon::scene::attached,
    harness::{Caller, Engine, Follow, TestServer, both_engines},
};

const LONG: &str = r#"{"script": [{"say": "working", "final": false}, {"wait": 60000}]}"#;

/// Waits until the runner works on the prompt.
async fn started(follow: &mut Follow) {
    while next(follow).await.unwrap()["data"]["update"]["sessionUpdate"] != "agent_message_chunk" {}
}

impl Scene {
    async fn close(&self, caller: &Caller) {
        let request = caller.request("DELETE", &format!("/session/{}", self.session_id));
        caller.send(request.header("x-qwen-client-id", &self.client_id)).await.with_status(204);
    }

    async fn prompt_anonymously(&self, caller: &Caller, text: &str) {
        let body = json!({"prompt": [{"type": "text", "text": text}]});
        caller.post(&format!("/session/{}/prompt", self.session_id), &body).await.with_status(202);
    }
}

#[both_engines]
async fn a_closed_session_ends_its_streams(engine: Engine) {
    let server = TestServer::start(engine).await;
    let scene = session(&server).await;
    let mut follow = scene.follow(&server).await;
    scene.close(&server).await;
    let frames = until(&mut follow, "session_closed").await;
    let closed = frames.last().unwrap();
    assert_eq!(
        (&closed["data"]["reason"], &closed["originatorClientId"]),
        (&json!("client_close"), &json!(scene.client_id))
    );
    assert!(closed["id"].is_i64());
    assert!(next(&mut follow).await.is_none(), "it is the last frame");
    assert_eq!(server.get(&scene.path()).await.status, 404);
}

#[both_engines]
async fn a_session_that_was_loaded_again_replays_without_its_closing(engine: Engine) {
    let server = TestServer::start(engine).await;
    let scene = session(&server).await;
    scene.close(&server).await;
    server.post(&format!("/session/{}/load", scene.session_id), &json!({})).await.with_status(200);
    let mut follow = scene.follow_after(&server, 0).await;
    let frames = until(&mut follow, "replay_complete").await;
    assert!(!types(&frames).contains(&"session_closed"), "{frames:?}");
    scene.prompt_anonymously(&server, "hi").await;
    assert_eq!(next(&mut follow).await.unwrap()["type"], "session_update", "the stream goes on");
}

#[both_engines]
async fn a_cancelled_prompt_is_reported_at_once_and_when_it_has_ended(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let scene = session(&server).await;
    let mut follow = scene.follow(&server).await;
    let prompt_id = scene.prompt(&server, LONG).await;
    started(&mut follow).await;
    server.send(server.request("POST", &format!("/session/{}/cancel", scene.session_id))).await.with_status(204);
    let frames = until(&mut follow, "turn_complete").await;
    let cancelled = frames.iter().find(|frame| frame["type"] == "prompt_cancelled").expect("it comes before the end");
    assert_eq!(cancelled["promptId"], prompt_id.as_str());
    assert_eq!(frames.last().unwrap()["data"]["stopReason"], "cancelled");
}

#[both_engines]
async fn a_prompt_past_its_deadline_fails_and_then_is_cancelled(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 4;
        setup.config.change(|daemon: &mut DaemonSection| daemon.prompt_deadline_ms = Some(1_000));
    })
    .await;
    let scene = session(&server).await;
    let mut follow = scene.follow(&server).await;
    let prompt_id = scene.prompt(&server, LONG).await;
    started(&mut follow).await;
    server.clock.advance_ms(1_001);
    let frames = until(&mut follow, "prompt_cancelled").await;
    let ends: Vec<&Value> = frames.iter().filter(|frame| frame["type"] != "session_update").collect();
    assert_eq!(ends.len(), 2, "{ends:?}");
    assert_eq!(
        (&ends[0]["type"], &ends[0]["data"]["code"]),
        (&json!("turn_error"), &json!("prompt_deadline_exceeded"))
    );
    assert_eq!(ends[0]["data"]["promptId"], prompt_id.as_str());
    assert_eq!(ids(&frames)[frames.len() - 1], ids(&frames)[frames.len() - 2] + 1, "two frames of one event");
}

#[both_engines]
async fn a_deadline_does_not_wait_for_the_next_sweep(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 4;
        setup.config.runner.sweep_interval_ms = 3_600_000;
        setup.config.change(|daemon: &mut DaemonSection| daemon.prompt_deadline_ms = Some(300));
    })
    .await;
    let scene = session(&server).await;
    let mut follow = scene.follow(&server).await;
    scene.prompt(&server, LONG).await;
    started(&mut follow).await;
    server.clock.advance_ms(300);
    let frames = until(&mut follow, "prompt_cancelled").await;
    assert_eq!(frames[frames.len() - 2]["data"]["code"], "prompt_deadline_exceeded");
}

#[both_engines]
async fn the_error_of_a_late_prompt_does_not_wait_for_its_agent_to_stop(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.change(|daemon: &mut DaemonSection| daemon.prompt_deadline_ms = Some(1_000));
    })
    .await;
    let session = attached(&server).await;
    let scene = Scene { session_id: session.id.clone(), client_id: session.client.clone() };
    let mut follow = scene.follow(&server).await;
    let prompt_id = session.prompt("hi").await;
    let (run_id, command_id) = session.prompted(&server).await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    server.clock.advance_ms(1_001);
    let frames = until(&mut follow, "prompt_cancelled").await;
    let error = &frames[frames.len() - 2];
    assert_eq!((&error["type"], &error["data"]["code"]), (&json!("turn_error"), &json!("prompt_deadline_exceeded")));
    assert_eq!(error["promptId"], prompt_id.as_str());
    let tasks = session.get("tasks").await.with_status(200);
    assert_eq!(tasks["tasks"].as_array().unwrap().len(), 1, "its runner has not stopped");
    runner.end(&command_id, "cancelled").await;
    let replayed = scene.replayed(&server, 0).await;
    let ends = types(&replayed).into_iter().filter(|one| ["turn_error", "turn_complete"].contains(one)).count();
    assert_eq!(ends, 1, "{replayed:?}");
}

#[both_engines]
async fn a_failed_prompt_ends_with_an_error(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let scene = session(&server).await;
    let mut follow = scene.follow(&server).await;
    scene.prompt(&server, r#"{"script": [{"fail": {"kind": "provider-unavailable", "message": "later"}}]}"#).await;
    let frames = until(&mut follow, "turn_error").await;
    let error = &frames.last().unwrap()["data"];
    assert_eq!((&error["code"], &error["message"]), (&json!("provider_unavailable"), &json!("later")));
}

#[both_engines]
async fn a_stopping_server_sends_a_last_frame(engine: Engine) {
    let mut server = TestServer::start(engine).await;
    let scene = session(&server).await;
    let mut follow = scene.follow(&server).await;
    let reading = tokio::spawn(async move {
        let died = next(&mut follow).await.unwrap();
        (died, next(&mut follow).await)
    });
    server.restart().await;
    let (died, after) = reading.await.unwrap();
    assert_eq!((&died["type"], &died["data"]["reason"]), (&json!("session_died"), &json!("daemon_shutdown")));
    assert!(after.is_none());
    let replayed = scene.replayed(&server, 0).await;
    assert!(!types(&replayed).contains(&"session_died"), "the session goes on: {replayed:?}");
}

#[both_engines]
async fn a_stream_ends_with_its_callers_token(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.limits.readmit_ms = 20;
        setup.token("leaving", "client", &["local"]);
    })
    .await;
    let scene = session(&server).await;
    let mut leaving = scene.follow_after(server.caller("leaving"), 0).await;
    let mut staying = scene.follow(&server).await;
    until(&mut leaving, "replay_complete").await;
    server.store("UPDATE tokens SET revoked_at = 1 RETURNING name").await;
    // What was remembered of the token is forgotten.
    server.clock.advance_ms(5_001);
    assert!(next(&mut leaving).await.is_none());
    scene.prompt(&server, "hi").await;
    assert!(next(&mut staying).await.is_some());
}

mod postgres {
    #[test]
    fn servers_of_one_store_send_the_same_frames() {
        crate::harness::run(super::servers_of_one_store_send_the_same_frames());
    }
}

async fn servers_of_one_store_send_the_same_frames() {
    let first = TestServer::with_runner(Engine::Postgres).await;
    let second = first.start_another(|config| config.runner.slots = 0).await;
    let scene = session(&first).await;
    let (mut here, mut there) = (scene.follow(&first).await, scene.follow(&second).await);
    scene.prompt(&second, super::SCRIPT).await;
    let (here, there) = tokio::join!(until(&mut here, "turn_complete"), until(&mut there, "turn_complete"));
    assert_eq!(here, there);
    let ended = *ids(&here).last().unwrap();
    let replayed = scene.replayed(&second, 0).await;
    assert!(ids(&replayed).contains(&ended));
}
