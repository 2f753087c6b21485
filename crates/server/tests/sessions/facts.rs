//! A session's own facts: made, renamed, closed. They are numbered in the session, belong to no run, and come on its
//! stream and its pages like everything else.

use ostler_protocol::{FailureKind::*, limits::SESSION_TITLE_BYTES_MAX};
use serde_json::{Value, json};

use super::{at, body, join, show};
use crate::harness::{Answer, Caller, Engine, Follow, TestServer, both_engines, id};

async fn rename(caller: &Caller, session_id: &str, title: &str) -> Answer {
    caller.patch(&at(session_id, ""), &json!({"title": title})).await
}

async fn close(caller: &Caller, session_id: &str) -> Answer {
    caller.post(&at(session_id, "/control"), &json!({"action": "close"})).await
}

async fn trace(caller: &Caller, session_id: &str) -> Vec<Value> {
    caller.get(&at(session_id, "/trace")).await.ok()["events"].as_array().unwrap().clone()
}

#[both_engines]
async fn a_sessions_facts_stand_between_its_runs_events(engine: Engine) {
    let server = TestServer::start(engine).await;
    let made = server.post("/api/v1/sessions", &body("mine")).await.with_status(201);
    assert_eq!((&made["title"], &made["closedAt"], &made["lastSeq"]), (&Value::Null, &Value::Null, &json!(1)));
    let request = server.request("GET", &at("mine", "/trace")).header("accept", "text/event-stream");
    let mut stream = Follow::new(request.send().await.unwrap());
    let run_id = join(&server, "mine").await;
    assert_eq!(rename(&server, "mine", "  Ours ").await.with_status(200)["title"], "Ours");
    let turn = server.turn(&run_id, "hi").await;
    // The same title again is no news.
    rename(&server, "mine", "Ours").await.with_status(200);
    let log = trace(&server, "mine").await;
    let places: Vec<_> = log.iter().map(|event| (&event["sessionSeq"], &event["seq"], &event["type"])).collect();
    let (audit, session, message) = (json!("audit"), json!("session"), json!("user_message"));
    let (one, two, three, four) = (json!(1), json!(2), json!(3), json!(4));
    let null = Value::Null;
    assert_eq!(
        places,
        [(&one, &null, &session), (&two, &one, &audit), (&three, &null, &session), (&four, &two, &message)]
    );
    assert_eq!(log[0]["payload"]["change"], "created");
    assert_eq!(log[2]["payload"], json!({"change": "renamed", "title": "Ours", "by": "operator"}));
    assert_eq!((&log[2]["runId"], &log[2]["commandId"]), (&null, &null));
    for event in &log {
        let frame = loop {
            let frame = stream.frame().await.unwrap();
            if frame.id.is_some() {
                break frame;
            }
        };
        assert_eq!((json!(frame.id), &frame.data), (event["sessionSeq"].clone(), event));
    }
    // The run has its own numbers, and nothing of the session's in between.
    let of_run = server.events(&run_id).await;
    assert_eq!(of_run, [log[1].clone(), log[3].clone()]);
    let session = show(&server, "mine").await;
    assert_eq!(
        (&session["lastSeq"], &session["activeCommandId"], &session["version"]),
        (&four, &json!(turn), &json!(0))
    );
}

#[both_engines]
async fn a_title_has_bounds_and_can_be_taken_away(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut named = body("mine");
    named["title"] = json!("Named at once");
    assert_eq!(server.post("/api/v1/sessions", &named).await.with_status(201)["title"], "Named at once");
    let longest = "x".repeat(SESSION_TITLE_BYTES_MAX);
    assert_eq!(rename(&server, "mine", &longest).await.with_status(200)["title"], longest.as_str());
    rename(&server, "mine", &format!("{longest}x")).await.refused_by(SchemaInvalid, "title-size");
    rename(&server, "mine", "two\nlines").await.refused_by(SchemaInvalid, "title-shape");
    server.patch(&at("mine", ""), &json!({})).await.refused_by(SchemaInvalid, "title-required");
    assert_eq!(show(&server, "mine").await["title"], longest.as_str());
    assert_eq!(rename(&server, "mine", " ").await.with_status(200)["title"], Value::Null);
    let secret = "sk-abcdefghijklmnop0123456789";
    let kept = rename(&server, "mine", &format!("key {secret}")).await.with_status(200);
    assert_eq!(kept["title"], "key [redacted]");
    assert!(!json!(trace(&server, "mine").await).to_string().contains(secret));
    rename(&server, "nobody", "x").await.refused(NotFound);
}

#[both_engines]
async fn a_closed_session_can_be_read_and_takes_no_more_work(engine: Engine) {
    let mut server = TestServer::start(engine).await;
    let run_id = join(&server, "mine").await;
    let turn = server.turn(&run_id, "hi").await;
    assert_eq!(close(&server, "mine").await.refused(SessionBusy).details["activeRunId"], run_id.as_str());
    server.cancel_command(&turn).await;
    let closed = close(&server, "mine").await.with_status(200);
    assert_eq!(closed["closedAt"], closed["updatedAt"]);
    server.clock.advance_ms(1_000);
    assert_eq!(close(&server, "mine").await.with_status(200)["closedAt"], closed["closedAt"]);
    server.restart().await;
    let refused = server.submit(&run_id, &json!({"type": "turn", "payload": {"prompt": "x"}})).await;
    refused.refused_by(StateConflict, "session-closed");
    let mut run = crate::harness::run_body();
    run["sessionRef"] = json!({"sessionId": "mine"});
    server.post("/api/v1/runs", &run).await.refused_by(StateConflict, "session-closed");
    rename(&server, "mine", "late").await.refused_by(StateConflict, "session-closed");
    let log = trace(&server, "mine").await;
    assert_eq!(log.last().unwrap()["payload"], json!({"change": "closed", "by": "operator"}));
    assert_eq!(show(&server, "mine").await["lastSeq"], log.len());
}

#[both_engines]
async fn a_create_is_recognized_by_its_key_and_by_its_id(engine: Engine) {
    let server = TestServer::start(engine).await;
    let keyed = json!({"tenantId": "hwlab", "backendProfile": "scripted", "idempotencyKey": "k"});
    let first = id(&server.post("/api/v1/sessions", &keyed).await.with_status(201), "sessionId");
    assert_eq!(id(&server.post("/api/v1/sessions", &keyed).await.with_status(200), "sessionId"), first);
    let mut other = keyed.clone();
    other["backendProfile"] = json!("model");
    let conflict = server.post("/api/v1/sessions", &other).await.refused_by(IdempotencyConflict, "payload-hash");
    assert_eq!(conflict.details["sessionId"], first.as_str());
    server.post("/api/v1/sessions", &body("mine")).await.with_status(201);
    rename(&server, "mine", "renamed since").await.with_status(200);
    server.post("/api/v1/sessions", &body("mine")).await.with_status(200);
    let mut other = body("mine");
    other["backendProfile"] = json!("model");
    server.post("/api/v1/sessions", &other).await.refused_by(IdempotencyConflict, "payload-hash");
    // One that came with a run is simply there.
    join(&server, "by-run").await;
    server.post("/api/v1/sessions", &body("by-run")).await.with_status(200);
    assert_eq!(trace(&server, "mine").await.len(), 2);
    // Many at once make one.
    let creates = (0..6).map(|_| {
        let caller = server.with_token(Some(&server.operator_token()));
        tokio::spawn(async move { caller.post("/api/v1/sessions", &body("raced")).await.status })
    });
    let mut statuses = vec![];
    for create in creates.collect::<Vec<_>>() {
        statuses.push(create.await.unwrap());
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 201]);
}

#[both_engines]
async fn a_session_keeps_to_the_profiles_that_are_allowed(engine: Engine) {
    let allowed = |setup: &mut crate::harness::Setup| setup.config.policy.backend_profiles = vec!["model".into()];
    let server = TestServer::with(engine, allowed).await;
    let refused = server.post("/api/v1/sessions", &body("mine")).await;
    refused.refused_by(TenantPolicyDenied, "backend-profile-allow-list");
    server.get(&at("mine", "")).await.refused(NotFound);
}
