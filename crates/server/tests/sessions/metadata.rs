//! What a caller keeps with a session, the profile that a session names, and the fields of a volume claim.

use ostler_protocol::{
    FailureKind::*,
    limits::{NAME_BYTES_MAX, SESSION_METADATA_BYTES_MAX},
};
use serde_json::{Value, json};

use super::{body, join, show};
use crate::harness::{Engine, TestServer, both_engines};

fn with(session_id: &str, field: &str, value: Value) -> Value {
    let mut body = body(session_id);
    body[field] = value;
    body
}

#[both_engines]
async fn a_session_keeps_what_its_caller_gave_it(engine: Engine) {
    let mut server = TestServer::start(engine).await;
    let metadata = json!({"ticket": 7, "tags": ["a", "b"], "nested": {"deep": null, "ratio": 0.5}});
    let mut request = with("mine", "metadata", metadata.clone());
    request["conversationId"] = json!("conversation-1");
    let made = server.post("/api/v1/sessions", &request).await.with_status(201);
    assert_eq!((&made["metadata"], &made["conversationId"]), (&metadata, &json!("conversation-1")));
    assert_eq!(server.post("/api/v1/sessions", &request).await.with_status(200)["metadata"], metadata);
    let other = with("mine", "metadata", json!({"ticket": 8}));
    server.post("/api/v1/sessions", &other).await.refused_by(IdempotencyConflict, "payload-hash");
    server.restart().await;
    let shown = show(&server, "mine").await;
    assert_eq!((&shown["metadata"], &shown["conversationId"]), (&metadata, &json!("conversation-1")));
    let listed = server.get("/api/v1/sessions?state=all").await.ok();
    assert_eq!(listed["sessions"][0]["conversationId"], "conversation-1");
    assert_eq!(listed["sessions"][0]["metadata"], Value::Null, "lists are without it");
    // A session that came with a run has none.
    join(&server, "by-run").await;
    let bare = show(&server, "by-run").await;
    assert_eq!((&bare["metadata"], &bare["conversationId"]), (&Value::Null, &Value::Null));
}

#[both_engines]
async fn metadata_and_conversation_ids_are_bounded_and_hold_no_secret(engine: Engine) {
    let server = TestServer::start(engine).await;
    let padded = |bytes: usize| json!({"pad": "x".repeat(bytes - r#"{"pad":""}"#.len())});
    let create = async |body: Value| server.post("/api/v1/sessions", &body).await;
    create(with("full", "metadata", padded(SESSION_METADATA_BYTES_MAX))).await.with_status(201);
    let refused = create(with("over", "metadata", padded(SESSION_METADATA_BYTES_MAX + 1))).await;
    refused.refused_by(PayloadTooLarge, "session-metadata-size");
    for wrong in [json!("text"), json!([1]), json!(7)] {
        create(with("wrong", "metadata", wrong)).await.refused(SchemaInvalid);
    }
    create(with("long", "conversationId", json!("c".repeat(NAME_BYTES_MAX)))).await.with_status(201);
    let refused = create(with("longer", "conversationId", json!("c".repeat(NAME_BYTES_MAX + 1)))).await;
    refused.refused_by(SchemaInvalid, "name-shape");
    let credential = format!("ghp_{}", "a1B2".repeat(9));
    let refused = create(with("secret", "conversationId", json!(credential))).await;
    refused.refused_by(SchemaInvalid, "name-credential");
    let kept = create(with("secret", "metadata", json!({"note": credential}))).await.with_status(201);
    assert!(!kept.to_string().contains(&credential), "{kept}");
    let stored = server.store("SELECT metadata FROM sessions WHERE external_id = 'secret'").await;
    assert!(stored.len() == 1 && !stored[0].contains(&credential), "{stored:?}");
}

#[both_engines]
async fn a_session_names_its_profile_and_no_volume_that_does_not_exist(engine: Engine) {
    let server = TestServer::start(engine).await;
    let scripted = server.post("/api/v1/sessions", &body("mine")).await.with_status(201);
    assert_eq!(scripted["profileRef"], json!({"profile": "scripted", "secretRef": null}));
    let made = server.post("/api/v1/sessions", &with("codex", "backendProfile", json!("codex"))).await;
    let made = made.with_status(201);
    let secret = json!({"name": "agentrun-v01-provider-codex", "keys": ["auth.json", "config.toml"]});
    assert_eq!(made["profileRef"], json!({"profile": "codex", "secretRef": secret}));
    // Its storage is a directory of the server.
    assert_eq!(made["storageKind"], "local");
    for field in ["storagePvcName", "storageNamespace", "storagePvcPhase"] {
        assert_eq!(made.get(field), Some(&Value::Null), "{field}");
    }
    assert_eq!(made["codexRolloutSubdir"], "sessions");
}
