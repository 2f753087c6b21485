//! Event streams: the frames of a session, replayed from its log and live.

mod attempts;
mod bounds;
mod calls;
mod ends;
mod queued;
mod replies;

use serde_json::{Value, json};

use crate::harness::{Caller, Engine, Follow, PATIENCE, TestServer, both_engines, id};

/// What a scripted backend does in one turn: it streams, calls a tool, and reports what has no frame of its own.
const SCRIPT: &str = r#"{"script": [
    {"say": "first thoughts about it", "pieces": 3, "final": false},
    {"tool": {"name": "shell", "command": "ls", "output": "a\nb\n"}},
    {"usage": {"inputTokens": 3, "outputTokens": 4}},
    {"custom": {"name": "progress", "value": 1}},
    {"say": "done"}]}"#;

pub(super) struct Scene {
    pub session_id: String,
    pub client_id: String,
}

/// A session of one client.
pub(super) async fn session(caller: &Caller) -> Scene {
    let made = caller.post("/session", &json!({"sessionScope": "thread"})).await.with_status(200);
    Scene { session_id: id(&made, "sessionId"), client_id: id(&made, "clientId") }
}

impl Scene {
    fn path(&self) -> String {
        format!("/session/{}/events", self.session_id)
    }

    /// Submits a prompt as the session's client; returns its id.
    async fn prompt(&self, caller: &Caller, text: &str) -> String {
        let body = json!({"prompt": [{"type": "text", "text": text}]});
        let request = caller.request("POST", &format!("/session/{}/prompt", self.session_id));
        let request = request.header("x-qwen-client-id", &self.client_id).header("content-type", "application/json");
        id(&caller.send(request.body(body.to_string())).await.with_status(202), "promptId")
    }

    /// Opens a stream of new frames.
    async fn follow(&self, caller: &Caller) -> Follow {
        Follow::of_daemon(caller.request("GET", &self.path()).send().await.unwrap())
    }

    /// Opens a stream of the frames after this one.
    async fn follow_after(&self, caller: &Caller, last_event_id: impl ToString) -> Follow {
        let request = caller.request("GET", &self.path()).header("last-event-id", last_event_id.to_string());
        Follow::of_daemon(request.send().await.unwrap())
    }

    /// The frames that are replayed after this one, with `replay_complete`.
    async fn replayed(&self, caller: &Caller, last_event_id: i64) -> Vec<Value> {
        until(&mut self.follow_after(caller, last_event_id).await, "replay_complete").await
    }

    /// The number of the session's last event.
    async fn last_seq(&self, caller: &Caller) -> i64 {
        let page = caller.get(&format!("/api/v1/sessions/{}/trace?limit=1000", self.session_id)).await.ok();
        page["events"].as_array().unwrap().last().unwrap()["sessionSeq"].as_i64().unwrap()
    }
}

/// The next frame, without comments.
async fn next(follow: &mut Follow) -> Option<Value> {
    loop {
        // Heartbeats keep the connection alive, so that its own timeout would not end the test.
        let frame = tokio::time::timeout(PATIENCE, follow.frame()).await.expect("a frame comes")?;
        if !frame.event.is_empty() {
            assert_eq!((&frame.data["v"], &frame.data["type"]), (&json!(1), &json!(frame.event)));
            assert_eq!(frame.data.get("id").and_then(Value::as_i64), frame.id);
            assert!(frame.data["_meta"]["serverTimestamp"].is_i64(), "{}", frame.data);
            return Some(frame.data);
        }
    }
}

/// The frames up to the first of this type.
async fn until(follow: &mut Follow, frame_type: &str) -> Vec<Value> {
    let mut frames = vec![];
    loop {
        frames.push(next(follow).await.unwrap_or_else(|| panic!("no {frame_type} in {frames:?}")));
        if frames.last().unwrap()["type"] == frame_type {
            return frames;
        }
    }
}

fn ids(frames: &[Value]) -> Vec<i64> {
    frames.iter().filter_map(|frame| frame["id"].as_i64()).collect()
}

fn types(frames: &[Value]) -> Vec<&str> {
    frames.iter().map(|frame| frame["type"].as_str().unwrap()).collect()
}

/// The kinds of the updates among the frames.
fn updates(frames: &[Value]) -> Vec<&str> {
    frames.iter().filter_map(|frame| frame["data"]["update"]["sessionUpdate"].as_str()).collect()
}

#[both_engines]
async fn a_stream_sends_the_frames_of_a_prompt_as_they_come(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let scene = session(&server).await;
    let mut follow = scene.follow(&server).await;
    assert_eq!(follow.headers["content-type"], "text/event-stream");
    assert_eq!(follow.headers["cache-control"], "no-cache, no-transform");
    assert_eq!(follow.headers["x-accel-buffering"], "no");
    assert_eq!(follow.frame().await.unwrap().retry_ms, Some(3_000));
    let prompt_id = scene.prompt(&server, "hello").await;
    let frames = until(&mut follow, "turn_complete").await;
    assert!(ids(&frames).is_sorted() && ids(&frames).len() == frames.len(), "{frames:?}");
    let echo = frames.iter().find(|frame| frame["data"]["update"]["sessionUpdate"] == "user_message_chunk").unwrap();
    assert_eq!(
        echo["data"],
        json!({"sessionId": scene.session_id, "update": {"sessionUpdate": "user_message_chunk",
        "content": {"type": "text", "text": "hello"}, "_meta": {"source": "bridge-echo"}}})
    );
    assert_eq!((&echo["promptId"], &echo["originatorClientId"]), (&json!(prompt_id), &json!(scene.client_id)));
    let chunks = frames.iter().filter(|frame| frame["data"]["update"]["sessionUpdate"] == "agent_message_chunk");
    let text: String = chunks.map(|frame| frame["data"]["update"]["content"]["text"].as_str().unwrap()).collect();
    assert_eq!(text, "hello", "the whole message repeats nothing");
    assert_eq!(
        frames.last().unwrap()["data"],
        json!({"sessionId": scene.session_id, "stopReason": "end_turn", "promptId": prompt_id})
    );
}

#[both_engines]
async fn frames_are_equal_live_and_replayed_from_anywhere(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let scene = session(&server).await;
    let mut follow = scene.follow_after(&server, 0).await;
    scene.prompt(&server, SCRIPT).await;
    let mut live = until(&mut follow, "turn_complete").await;
    live.retain(|frame| frame["id"].is_i64());
    let last = *ids(&live).last().unwrap();
    let expected = ["tool_call", "tool_call_update", "usage_update", "notice", "agent_message_chunk"];
    assert!(expected.iter().all(|kind| updates(&live).contains(kind)), "{:?}", updates(&live));
    for after in (0..last).step_by(3).chain([last - 2, last - 1]) {
        let mut replayed = scene.replayed(&server, after).await;
        replayed.retain(|frame| frame["id"].as_i64().is_some_and(|id| id <= last));
        let wanted: Vec<_> = live.iter().filter(|frame| frame["id"].as_i64().unwrap() > after).collect();
        assert_eq!(replayed.iter().collect::<Vec<_>>(), wanted, "after {after}");
    }
}

#[both_engines]
async fn an_event_of_another_dialect_has_a_frame(engine: Engine) {
    let server = TestServer::start(engine).await;
    let scene = session(&server).await;
    let mut follow = scene.follow(&server).await;
    let path = format!("/api/v1/sessions/{}", scene.session_id);
    server.patch(&path, &json!({"title": "Ours"})).await.with_status(200);
    let renamed = next(&mut follow).await.unwrap();
    assert_eq!(
        (&renamed["type"], &renamed["data"]),
        (&json!("session_metadata_updated"), &json!({"sessionId": scene.session_id, "displayName": "Ours"}))
    );
}

#[both_engines]
async fn a_client_that_has_everything_gets_an_empty_replay(engine: Engine) {
    let server = TestServer::start(engine).await;
    let scene = session(&server).await;
    let last = 2 * scene.last_seq(&server).await;
    let replayed = scene.replayed(&server, last).await;
    assert_eq!((replayed.len(), &replayed[0]["data"]), (1, &json!({"replayedCount": 0})));
    assert!(replayed[0]["id"].is_null(), "it concerns only this stream");
}

#[both_engines]
async fn a_last_event_id_that_is_no_number_is_ignored(engine: Engine) {
    let server = TestServer::start(engine).await;
    for unreadable in ["", "-1", "1.5", "abc", "0x1", "1 2"] {
        let scene = session(&server).await;
        let mut follow = scene.follow_after(&server, unreadable).await;
        assert_eq!(follow.status, 200);
        scene.prompt(&server, "hi").await;
        assert_eq!(next(&mut follow).await.unwrap()["type"], "session_update", "new frames only: {unreadable:?}");
    }
}

#[both_engines]
async fn a_client_ahead_of_the_log_gets_everything_again(engine: Engine) {
    let server = TestServer::start(engine).await;
    let scene = session(&server).await;
    let last = 2 * scene.last_seq(&server).await;
    for ahead in [(last + 1).to_string(), "99999999999999999999999".to_owned()] {
        let frames = until(&mut scene.follow_after(&server, ahead).await, "replay_complete").await;
        let data = &frames[0]["data"];
        assert_eq!((&frames[0]["type"], &data["reason"]), (&json!("state_resync_required"), &json!("epoch_reset")));
        // Published clients ignore the frame without both numbers.
        assert!(data["lastDeliveredId"].as_i64() > Some(last) && data["earliestAvailableId"] == 1, "{data}");
        assert_eq!(ids(&frames), ids(&scene.replayed(&server, 0).await));
    }
}

#[both_engines]
async fn a_client_beyond_a_configured_replay_must_load_the_session_again(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 4;
        setup.config.change(|daemon: &mut ostler_daemon::config::DaemonSection| daemon.replay_frames_max = Some(5));
    })
    .await;
    let scene = session(&server).await;
    let mut follow = scene.follow(&server).await;
    scene.prompt(&server, SCRIPT).await;
    until(&mut follow, "turn_complete").await;
    let frames = scene.replayed(&server, 1).await;
    let earliest = ids(&frames)[0];
    assert_eq!(
        (&frames[0]["type"], &frames[0]["data"]),
        (
            &json!("state_resync_required"),
            &json!({"reason": "ring_evicted", "lastDeliveredId": 1, "earliestAvailableId": earliest})
        )
    );
    assert!(earliest > 2 && ids(&frames).len() >= 5, "{frames:?}");
    let complete = &frames.last().unwrap()["data"]["replayedCount"];
    assert_eq!(complete.as_u64().unwrap() as usize, ids(&frames).len());
}

#[both_engines]
async fn a_gap_is_found_in_what_retention_has_recorded(engine: Engine) {
    let server = TestServer::start(engine).await;
    let scene = session(&server).await;
    scene.prompt(&server, "hi").await;
    let gap =
        |removed: i64| json!({"reason": "ring_evicted", "lastDeliveredId": 0, "earliestAvailableId": 2 * removed + 1});
    let of_session = "INSERT INTO session_payload_removals (session_id, through_seq, removed_at)
        SELECT session_id, 1, 0 FROM events WHERE session_seq = 1 RETURNING session_id";
    server.store(of_session).await;
    assert_eq!(scene.replayed(&server, 0).await[0]["data"], gap(1));
    let last = "SELECT CAST(MAX(session_seq) AS TEXT) FROM events WHERE run_id IS NOT NULL";
    let removed: i64 = server.store(last).await[0].parse().unwrap();
    let of_run = "INSERT INTO payload_removals (run_id, session_id, through_seq, removed_at)
        SELECT run_id, session_id, MAX(seq), 0 FROM events WHERE run_id IS NOT NULL
        GROUP BY run_id, session_id RETURNING session_id";
    server.store(of_run).await;
    let frames = scene.replayed(&server, 0).await;
    assert_eq!(frames[0]["data"], gap(removed));
    assert!(removed > 1 && ids(&frames).iter().all(|id| *id > 2 * removed), "{frames:?}");
    // The client has all of them.
    let rest = scene.replayed(&server, 2 * removed).await;
    assert!(!types(&rest).contains(&"state_resync_required"), "{rest:?}");
}

#[both_engines]
async fn payloads_that_are_removed_during_a_replay_are_a_gap(engine: Engine) {
    let server = TestServer::start(engine).await;
    let scene = session(&server).await;
    scene.prompt(&server, "hi").await;
    let removed = scene.last_seq(&server).await - 1;
    // As if retention had removed them after the replay was planned.
    let sql = format!("UPDATE events SET payload = NULL WHERE session_seq <= {removed} RETURNING type");
    server.store(&sql).await;
    let frames = scene.replayed(&server, 0).await;
    assert_eq!(
        frames[0]["data"],
        json!({"reason": "ring_evicted", "lastDeliveredId": 0,
        "earliestAvailableId": 2 * removed + 1})
    );
    assert_eq!(ids(&frames), [2 * removed + 1]);
}

#[both_engines]
async fn a_snapshot_comes_after_the_replay(engine: Engine) {
    let server = TestServer::start(engine).await;
    let scene = session(&server).await;
    let request = server.request("GET", &format!("{}?snapshot=1", scene.path())).header("last-event-id", "0");
    let mut follow = Follow::of_daemon(request.send().await.unwrap());
    let frames = until(&mut follow, "session_snapshot").await;
    assert_eq!(types(&frames)[frames.len() - 2..], ["replay_complete", "session_snapshot"]);
    assert_eq!(
        frames.last().unwrap()["data"],
        json!({"sessionId": scene.session_id, "currentModelId": "scripted",
        "currentApprovalMode": "default"})
    );
    let mut plain =
        Follow::of_daemon(server.request("GET", &format!("{}?snapshot=1", scene.path())).send().await.unwrap());
    assert_eq!(next(&mut plain).await.unwrap()["type"], "session_snapshot");
}

#[both_engines]
async fn permission_requests_are_frames(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let scene = session(&server).await;
    let mut follow = scene.follow(&server).await;
    scene.prompt(&server, r#"{"script": [{"ask": {"title": "Delete a?", "command": "rm a"}}, {"say": "done"}]}"#).await;
    let frames = until(&mut follow, "permission_request").await;
    let request = &frames.last().unwrap()["data"];
    assert_eq!(
        (&request["sessionId"], &request["toolCall"]["rawInput"]),
        (&json!(scene.session_id), &json!({"command": "rm a"}))
    );
    assert_eq!(request["options"][0], json!({"optionId": "allow", "name": "Allow", "kind": "allow_once"}));
    // The daemon's 5 minutes, which are less than the agent asks for.
    assert_eq!(request["_meta"]["ostler"]["deadline"], "2026-01-01T00:05:00Z");
    let vote = json!({"outcome": {"outcome": "selected", "optionId": "allow"}});
    let path = format!("/session/{}/permission/{}", scene.session_id, id(request, "requestId"));
    server.post(&path, &vote).await.with_status(200);
    let frames = until(&mut follow, "turn_complete").await;
    let resolved = frames.iter().find(|frame| frame["type"] == "permission_resolved").unwrap();
    assert_eq!(resolved["data"]["outcome"], json!({"outcome": "selected", "optionId": "allow"}));
}

/// The behaviour of the tags of event streams that no toggle changes.
pub(crate) async fn proof(server: &TestServer) {
    let scene = session(server).await;
    let mut follow = scene.follow_after(server, 0).await;
    assert_eq!(follow.status, 200);
    until(&mut follow, "replay_complete").await;
    scene.prompt(server, "hi").await;
    let echoed = until(&mut follow, "session_update").await;
    assert!(echoed.iter().all(|frame| frame["v"] == 1), "{echoed:?}");
    let refused = server.get(&format!("{}?maxQueued=1", scene.path())).await;
    assert_eq!(refused.with_status(400)["code"], "invalid_max_queued");
}

/// Whether a stream to which nothing is written is closed.
pub(crate) async fn evicts_idle_writers(server: &TestServer) -> bool {
    let scene = session(server).await;
    let mut follow = scene.follow(server).await;
    let evicted = tokio::time::timeout(std::time::Duration::from_millis(1_500), next(&mut follow)).await;
    evicted.is_ok_and(|frame| frame.is_some_and(|frame| frame["data"]["reason"] == "writer_idle_timeout"))
}
