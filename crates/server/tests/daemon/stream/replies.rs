//! The frames of a turn are sent after the response to its prompt. The prompt is submitted inside the process, because only there
//! can a test decide when the response is read: a socket takes it at once.

use std::time::Duration;

use axum::{
    body::{Body, to_bytes},
    http::{Request, StatusCode, header},
};
use ostler_server::{
    app::App,
    net::{self, InProcess},
};
use serde_json::Value;
use tokio::time::Instant;
use tower::ServiceExt;

use super::{Scene, next, session, until};
use crate::harness::{Engine, Follow, TestServer, eventually, id, one_engine};

/// How long the server holds frames back at most if the response to their prompt is not read.
const REPLY_WAIT_MAX: Duration = Duration::from_secs(1);
/// Attempts on a machine that may take longer for a turn than the server holds its frames back.
const ATTEMPTS: usize = 20;

/// A prompt whose response is not read yet.
struct UnreadPrompt {
    submitted_at: Instant,
    body: Body,
}

impl UnreadPrompt {
    async fn submit(server: &TestServer, app: &App, scene: &Scene) -> Self {
        let request = Request::post(format!("/session/{}/prompt", scene.session_id))
            .header(header::HOST, server.address().to_string())
            .header(header::AUTHORIZATION, format!("Bearer {}", server.operator_token()))
            .header(header::CONTENT_TYPE, "application/json");
        let mut request = request.body(Body::from(r#"{"prompt": [{"type": "text", "text": "hello"}]}"#)).unwrap();
        request.extensions_mut().insert(InProcess);
        let submitted_at = Instant::now();
        let response = net::router(app.clone()).oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::ACCEPTED);
        Self { submitted_at, body: response.into_body() }
    }

    /// Reads the response to its end, and returns the prompt's id.
    async fn read(self) -> String {
        let bytes = to_bytes(self.body, usize::MAX).await.unwrap();
        id(&serde_json::from_slice(&bytes).unwrap(), "promptId")
    }
}

/// Waits until the session's turn has ended, as its log shows.
async fn turn_ended(server: &TestServer, scene: &Scene) {
    let path = format!("/api/v1/sessions/{}/trace?limit=1000", scene.session_id);
    eventually("the turn ends", async || {
        let page = server.get(&path).await.ok();
        let ends = |event: &Value| event["type"] == "terminal_status" && event["commandId"].is_string();
        page["events"].as_array().unwrap().iter().any(ends).then_some(())
    })
    .await;
}

/// The next frame of a prompt, and when it arrived.
async fn next_of_prompt(follow: &mut Follow) -> (Instant, Value) {
    loop {
        let frame = next(follow).await.expect("the stream goes on");
        if frame["promptId"].is_string() {
            return (Instant::now(), frame);
        }
    }
}

#[one_engine]
async fn no_frame_of_a_turn_is_sent_before_its_prompt_was_answered(engine: Engine) {
    let (server, app) = TestServer::with_app(engine, |setup| setup.config.runner.slots = 4).await;
    for _ in 0..ATTEMPTS {
        let scene = session(&server).await;
        let mut follow = scene.follow(&server).await;
        assert_eq!(follow.frame().await.unwrap().retry_ms, Some(3_000));
        let following = tokio::spawn(async move { (next_of_prompt(&mut follow).await, follow) });
        let prompt = UnreadPrompt::submit(&server, &app, &scene).await;
        turn_ended(&server, &scene).await;
        let (read_at, held_for) = (Instant::now(), prompt.submitted_at.elapsed());
        let prompt_id = prompt.read().await;
        let ((arrived_at, first), mut follow) = following.await.unwrap();
        // The server may have given up before.
        if held_for < REPLY_WAIT_MAX {
            assert!(arrived_at > read_at, "sent {:?} too early: {first}", read_at - arrived_at);
            assert_eq!(first["promptId"], prompt_id.as_str());
            let frames = until(&mut follow, "turn_complete").await;
            assert_eq!(frames.last().unwrap()["data"]["promptId"], prompt_id.as_str());
            return;
        }
    }
    panic!("no turn of {ATTEMPTS} ended within {REPLY_WAIT_MAX:?}");
}

#[one_engine]
async fn frames_wait_only_for_a_time_if_the_client_does_not_read_the_response(engine: Engine) {
    let (server, app) = TestServer::with_app(engine, |setup| setup.config.runner.slots = 4).await;
    let scene = session(&server).await;
    let mut follow = scene.follow(&server).await;
    let prompt = UnreadPrompt::submit(&server, &app, &scene).await;
    turn_ended(&server, &scene).await;
    let (arrived_at, first) = next_of_prompt(&mut follow).await;
    let waited = arrived_at - prompt.submitted_at;
    assert!(waited >= REPLY_WAIT_MAX, "sent after {waited:?}: {first}");
    until(&mut follow, "turn_complete").await;
}
