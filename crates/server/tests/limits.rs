//! Every limit people can hit: at its value it passes, one past it is refused whole and nothing is written.

use ostler_protocol::{
    FailureKind::*,
    limits::{
        APPEND_EVENTS_MAX, BODY_BYTES_MAX, COMMAND_PAYLOAD_BYTES_MAX, EVENT_BYTES_MAX, IDEMPOTENCY_KEY_BYTES_MAX,
        NAME_BYTES_MAX, PAGE_BYTES_MAX, PROMPT_BYTES_MAX, TRACE_SINK_BYTES_MAX, WORK_BODY_BYTES_MAX,
        WORKSPACE_REF_BYTES_MAX,
    },
};
use serde_json::{Value, json};

use crate::harness::{Engine, TestServer, both_engines, id, one_engine, run_body};

/// A run request of exactly this many bytes.
fn padded_run(bytes: usize) -> String {
    let mut body = run_body();
    body["pad"] = "".into();
    let bare = body.to_string().len();
    body["pad"] = "x".repeat(bytes - bare).into();
    body.to_string()
}

#[both_engines]
async fn a_body_that_starts_work_may_be_two_mebibytes(engine: Engine) {
    let server = TestServer::start(engine).await;
    server.send_text("POST", "/api/v1/runs", padded_run(WORK_BODY_BYTES_MAX)).await.with_status(201);
    for bytes in [WORK_BODY_BYTES_MAX + 1, BODY_BYTES_MAX * 2] {
        let answer = server.send_text("POST", "/api/v1/runs", padded_run(bytes)).await;
        answer.refused_by(PayloadTooLarge, "body-size");
    }
    // One that does not say its length.
    let pieces = padded_run(WORK_BODY_BYTES_MAX + 1).into_bytes();
    let pieces: Vec<Result<Vec<u8>, std::io::Error>> =
        pieces.chunks(64 * 1024).map(|piece| Ok(piece.to_vec())).collect();
    let body = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces));
    server.send_text("POST", "/api/v1/runs", body).await.refused_by(PayloadTooLarge, "body-size");
    assert_eq!(server.get("/api/v1/runs").await.ok()["runs"].as_array().unwrap().len(), 1);
}

/// An object of exactly this many bytes.
fn payload(bytes: usize) -> Value {
    json!({"x": "y".repeat(bytes - r#"{"x":""}"#.len())})
}

#[both_engines]
async fn an_event_may_be_256_kibibytes(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    let event = |bytes| json!({"type": "custom", "commandId": command_id, "payload": payload(bytes)});
    runner.try_append(None, json!([event(EVENT_BYTES_MAX)])).await.with_status(200);
    let before = server.events(&run_id).await.len();
    let batch = json!([event(10), event(EVENT_BYTES_MAX + 1)]);
    runner.try_append(None, batch).await.refused_by(PayloadTooLarge, "event-size");
    assert_eq!(server.events(&run_id).await.len(), before);
}

#[both_engines]
async fn a_batch_may_hold_500_events(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    let batch = |count: usize| -> Value {
        (0..count).map(|n| json!({"type": "custom", "commandId": command_id, "payload": {"value": n}})).collect()
    };
    runner.try_append(Some(1), batch(APPEND_EVENTS_MAX)).await.with_status(200);
    let before = server.events(&run_id).await.len();
    runner.try_append(Some(2), batch(APPEND_EVENTS_MAX + 1)).await.refused_by(PayloadTooLarge, "append-events");
    runner.try_append(Some(2), batch(0)).await.refused_by(SchemaInvalid, "events-empty");
    assert_eq!(server.events(&run_id).await.len(), before);
}

#[both_engines]
async fn a_prompt_may_be_256_kibibytes(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let turn = |bytes: usize| json!({"type": "turn", "payload": {"prompt": "x".repeat(bytes)}});
    let command = server.submit(&run_id, &turn(PROMPT_BYTES_MAX)).await.with_status(201);
    assert_eq!(command["payload"]["prompt"].as_str().unwrap().len(), PROMPT_BYTES_MAX);
    let before = server.events(&run_id).await.len();
    server.submit(&run_id, &turn(PROMPT_BYTES_MAX + 1)).await.refused_by(PayloadTooLarge, "prompt-size");
    let mut first = run_body();
    first["command"] = turn(PROMPT_BYTES_MAX + 1);
    server.post("/api/v1/runs", &first).await.refused_by(PayloadTooLarge, "prompt-size");
    assert_eq!(server.events(&run_id).await.len(), before);
}

#[both_engines]
async fn a_batch_may_be_four_mebibytes(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let runner = server.claim(&run_id, "runner-a").await;
    let padded = |bytes: usize| {
        let mut body = json!({"runnerId": "runner-a", "leaseEpoch": runner.epoch, "pad": "",
            "events": [{"type": "custom", "payload": {"value": 1}}]});
        // Several strings: one of this size is rejected, whatever field it is in.
        body["pad"] = json!(["", "", "", ""]);
        let pad = bytes - body.to_string().len();
        body["pad"] = [pad / 4, pad / 4, pad / 4, pad - 3 * (pad / 4)].map(|bytes| "x".repeat(bytes)).to_vec().into();
        body.to_string()
    };
    let path = format!("/api/v1/runs/{run_id}/events");
    server.send_text("POST", &path, padded(BODY_BYTES_MAX)).await.with_status(200);
    let before = server.events(&run_id).await.len();
    let long = json!({"runnerId": "runner-a", "pad": "x".repeat(BODY_BYTES_MAX - 100)}).to_string();
    server.send_text("POST", &path, long).await.refused_by(PayloadTooLarge, "json-string");
    server.send_text("POST", &path, padded(BODY_BYTES_MAX + 1)).await.refused_by(PayloadTooLarge, "body-size");
    assert_eq!(server.events(&run_id).await.len(), before);
}

#[both_engines]
async fn a_payload_may_be_512_kibibytes(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let turn = |bytes: usize| {
        let bare = json!({"prompt": "x", "y": ""}).to_string().len();
        json!({"type": "turn", "payload": {"prompt": "x", "y": "y".repeat(bytes - bare)}})
    };
    server.submit(&run_id, &turn(COMMAND_PAYLOAD_BYTES_MAX)).await.with_status(201);
    let before = server.events(&run_id).await.len();
    let refused = server.submit(&run_id, &turn(COMMAND_PAYLOAD_BYTES_MAX + 1)).await;
    let problem = refused.refused_by(PayloadTooLarge, "payload-size");
    assert_eq!(problem.details["bytesMax"], COMMAND_PAYLOAD_BYTES_MAX);
    let mut first = run_body();
    first["command"] = turn(COMMAND_PAYLOAD_BYTES_MAX + 1);
    server.post("/api/v1/runs", &first).await.refused_by(PayloadTooLarge, "payload-size");
    let interrupt = json!({"type": "interrupt", "payload": turn(COMMAND_PAYLOAD_BYTES_MAX + 1)["payload"]});
    server.submit(&run_id, &interrupt).await.refused_by(PayloadTooLarge, "payload-size");
    assert_eq!(server.events(&run_id).await.len(), before);
}

#[one_engine]
async fn a_body_may_not_hold_values_without_end(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let before = server.events(&run_id).await.len();
    let many: serde_json::Map<_, _> = (0..20_000).map(|n| (format!("k{n}"), json!(1))).collect();
    let turn = json!({"type": "turn", "payload": {"prompt": "x", "many": many}});
    server.submit(&run_id, &turn).await.refused_by(PayloadTooLarge, "json-values");
    let deep = format!(r#"{{"type":"turn","payload":{{"prompt":"x","deep":{}{}}}}}"#, "[".repeat(99), "]".repeat(99));
    let path = format!("/api/v1/runs/{run_id}/commands");
    server.send_text("POST", &path, deep).await.refused_by(SchemaInvalid, "json-depth");
    assert_eq!(server.events(&run_id).await.len(), before);
}

/// JSON as a library writes it that keeps to ASCII.
fn in_ascii(value: &Value) -> String {
    value.to_string().chars().fold(String::new(), |mut text, char| {
        match char.is_ascii() {
            true => text.push(char),
            false => char.encode_utf16(&mut [0; 2]).iter().for_each(|unit| text += &format!("\\u{unit:04x}")),
        }
        text
    })
}

#[both_engines]
async fn a_limit_counts_characters_and_not_their_escapes(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let most = "中".repeat(PROMPT_BYTES_MAX / 3);
    let turn = |prompt: &str| in_ascii(&json!({"type": "turn", "payload": {"prompt": prompt}}));
    let path = format!("/api/v1/runs/{run_id}/commands");
    let command = server.send_text("POST", &path, turn(&most)).await.with_status(201);
    assert_eq!(command["payload"]["prompt"], most);
    let asked = server.events_of(&run_id, "user_message").await;
    assert_eq!(asked[0]["payload"]["content"][0]["text"], most);
    let refused = server.send_text("POST", &path, turn(&format!("{most}中"))).await;
    let problem = refused.refused_by(PayloadTooLarge, "prompt-size");
    assert_eq!(problem.message, "the prompt: 262146 bytes, the limit is 262144");
    assert_eq!((&problem.details["bytes"], &problem.details["bytesMax"]), (&json!(262_146), &json!(262_144)));

    let runner = server.claim(&run_id, "runner-a").await;
    let text = "é".repeat(EVENT_BYTES_MAX / 2 - 50);
    let event = json!({"type": "assistant_message", "payload": {"text": text, "final": true, "replyAuthority": true},
        "commandId": command["commandId"]});
    let batch = json!({"runnerId": "runner-a", "leaseEpoch": runner.epoch, "events": [event]});
    server.send_text("POST", &format!("/api/v1/runs/{run_id}/events"), in_ascii(&batch)).await.with_status(200);
    let result = server.result(&run_id, &id(&command, "commandId")).await;
    assert_eq!(result["finalResponse"]["text"], text);

    let sized = |field: &str, bytes: usize| {
        let bare = json!({"kind": "none", "x": ""}).to_string().len();
        let mut body = run_body();
        body[field] = json!({"kind": "none", "x": "é".repeat((bytes - bare) / 2)});
        in_ascii(&body)
    };
    for (field, most) in [("workspaceRef", WORKSPACE_REF_BYTES_MAX), ("traceSink", TRACE_SINK_BYTES_MAX)] {
        server.send_text("POST", "/api/v1/runs", sized(field, most)).await.with_status(201);
        server.send_text("POST", "/api/v1/runs", sized(field, most + 2)).await.refused(PayloadTooLarge);
    }
}

#[both_engines]
async fn a_page_may_hold_1000_events(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let runner = server.claim(&run_id, "runner-a").await;
    let batch: Value = (0..APPEND_EVENTS_MAX).map(|n| json!({"type": "custom", "payload": {"value": n}})).collect();
    for no in 1..=3 {
        runner.try_append(Some(no), batch.clone()).await.with_status(200);
    }
    let page = server.get(&format!("/api/v1/runs/{run_id}/events?limit=1000")).await.ok();
    assert_eq!((page["events"].as_array().unwrap().len(), &page["hasMore"]), (1_000, &json!(true)));
    let page = server.get(&format!("/api/v1/runs/{run_id}/events")).await.ok();
    assert_eq!(page["events"].as_array().unwrap().len(), 100);
    // The longest wait is allowed too; with something to tell it is not waited for.
    server.get(&format!("/api/v1/runs/{run_id}/events?waitMs=30000")).await.with_status(200);
    // Large events end a page before its number does, and nothing is lost by it.
    let large: Value = (0..13).map(|_| json!({"type": "custom", "payload": payload(EVENT_BYTES_MAX)})).collect();
    for no in 4..=7 {
        runner.try_append(Some(no), large.clone()).await.with_status(200);
    }
    let page = server.get(&format!("/api/v1/runs/{run_id}/events?afterSeq=1502&limit=1000")).await;
    // The envelope of each payload comes on top.
    assert!(page.text.len() < PAGE_BYTES_MAX + 64 * 1024, "{} bytes", page.text.len());
    let page = page.ok();
    assert_eq!(page["hasMore"], true);
    assert_eq!(server.events_by(&run_id, 1_000).await.len(), 2 + 3 * APPEND_EVENTS_MAX + 4 * 13);
}

#[both_engines]
async fn names_and_keys_have_bounds(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.policy.tenants.push("t".repeat(NAME_BYTES_MAX))).await;
    let set = |field: &str, value: Value| {
        let mut body = run_body();
        body[field] = value;
        body
    };
    for field in ["tenantId", "projectId", "providerId", "idempotencyKey"] {
        let long = |bytes: usize| set(field, "t".repeat(bytes).into());
        server.post("/api/v1/runs", &long(NAME_BYTES_MAX)).await.with_status(201);
        server.post("/api/v1/runs", &long(NAME_BYTES_MAX + 1)).await.refused_by(SchemaInvalid, "name-shape");
    }
    let session = |bytes: usize| set("sessionRef", json!({"sessionId": "s".repeat(bytes)}));
    let run = server.post("/api/v1/runs", &session(NAME_BYTES_MAX)).await.with_status(201);
    server.post("/api/v1/runs", &session(NAME_BYTES_MAX + 1)).await.refused_by(SchemaInvalid, "name-shape");
    let profile = |bytes: usize| {
        let name = format!("a{}", "b".repeat(bytes - 1));
        let mut body = set("backendProfile", name.clone().into());
        let secret = format!("agentrun-v01-provider-{name}");
        body["executionPolicy"] = json!({"secretScope": {"providerCredentials": [
            {"profile": name, "secretRef": {"name": secret, "keys": []}}]}});
        body
    };
    server.post("/api/v1/runs", &profile(63)).await.with_status(201);
    server.post("/api/v1/runs", &profile(64)).await.refused_by(SchemaInvalid, "slug-shape");
    let run_id = id(&run, "runId");
    let keyed = |bytes: usize| json!({"type": "turn", "payload": {"prompt": "x"}, "idempotencyKey": "k".repeat(bytes)});
    server.submit(&run_id, &keyed(IDEMPOTENCY_KEY_BYTES_MAX)).await.with_status(201);
    server.submit(&run_id, &keyed(IDEMPOTENCY_KEY_BYTES_MAX + 1)).await.refused(SchemaInvalid);
    let job = |bytes: usize| json!({"idempotencyKey": "k".repeat(bytes)});
    server.create_job(&run_id, &job(IDEMPOTENCY_KEY_BYTES_MAX)).await.with_status(201);
    server.create_job(&run_id, &job(IDEMPOTENCY_KEY_BYTES_MAX + 1)).await.refused(SchemaInvalid);
    let request = server.request("POST", "/api/v1/runs").header("idempotency-key", "k".repeat(201));
    let answer = server.send(request.header("content-type", "application/json").body(run_body().to_string())).await;
    answer.refused(SchemaInvalid);
}

#[both_engines]
async fn references_have_bounds(engine: Engine) {
    let server = TestServer::start(engine).await;
    let sized = |field: &str, bytes: usize| {
        let bare = json!({"kind": "none", "x": ""}).to_string().len();
        let mut body = run_body();
        body[field] = json!({"kind": "none", "x": "y".repeat(bytes - bare)});
        body
    };
    for (field, most, rule) in [
        ("workspaceRef", WORKSPACE_REF_BYTES_MAX, "workspace-ref-size"),
        ("traceSink", TRACE_SINK_BYTES_MAX, "trace-sink-size"),
    ] {
        server.post("/api/v1/runs", &sized(field, most)).await.with_status(201);
        server.post("/api/v1/runs", &sized(field, most + 1)).await.refused_by(PayloadTooLarge, rule);
    }
    server.post("/api/v1/runs", &sized("businessIntents", EVENT_BYTES_MAX + 1)).await.refused(PayloadTooLarge);
    let credentials = |count: usize| -> Value {
        let scope: Value = (0..count).map(|_| json!({"tool": "github"})).collect();
        let mut body = run_body();
        body["executionPolicy"] = json!({"secretScope": {"toolCredentials": scope}});
        body
    };
    server.post("/api/v1/runs", &credentials(16)).await.with_status(201);
    server.post("/api/v1/runs", &credentials(17)).await.refused_by(SchemaInvalid, "secret-scope-size");
}

#[both_engines]
async fn long_words_are_clipped_and_not_refused(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    let long = "w".repeat(10_000);
    runner
        .tell(&command_id, "tool_call", json!({"toolCallId": "t", "name": long, "status": long, "command": long}))
        .await;
    let body = json!({"runnerId": "runner-a", "leaseEpoch": 1, "status": "failed", "message": long});
    server.patch(&format!("/api/v1/commands/{command_id}/status"), &body).await.with_status(200);
    let result = server.result(&run_id, &command_id).await;
    assert!(result["blocker"].as_str().unwrap().chars().count() <= 501);
    let item = &result["toolCallSummary"]["items"][0];
    for field in ["toolName", "status", "command"] {
        assert!(item[field].as_str().unwrap().chars().count() <= 201, "{field}");
    }
    let reason = json!({"reason": long});
    server.post(&format!("/api/v1/runs/{run_id}/cancel"), &reason).await.with_status(200);
    let audit = server.events_of(&run_id, "audit").await;
    assert!(audit.last().unwrap()["payload"]["reason"].as_str().unwrap().chars().count() <= 501);
}
