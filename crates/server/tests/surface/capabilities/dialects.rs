//! The behaviour behind the tags of run input, trust and mesh.

use super::*;

pub(crate) async fn attachments(server: &TestServer) {
    let picture =
        crate::operations::Picture::upload(server, &crate::operations::uuid(&server.create_run().await)).await;
    assert_eq!(server.with_token(None).get(&picture.url).await.headers["content-type"], "image/png");
    let query = format!("bucket={}&path={}", picture.bucket, picture.path);
    server.get(&format!("/api/v1/agent/attachments/signed-url?{query}")).await.with_status(200);
}

pub(crate) async fn transcription(server: &TestServer) {
    let refused = server.send_form("/api/v1/agent/transcribe", &[("file", b"")]).await;
    assert_eq!((refused.status, &refused.body["code"]), (400, &json!("AGENT_AUDIO_EMPTY")));
}

pub(crate) async fn history(server: &TestServer) {
    let thread_id = crate::operations::uuid(&server.create_run().await);
    server.post("/api/v1/agent/runs", &crate::operations::agent_run(&thread_id, "r")).await.with_status(202);
    let path = format!("/api/v1/agent/history?threadId={thread_id}");
    assert_eq!(server.get(&path).await.with_status(200)["messages"][0]["content"], "hi");
    let erasing = server.request("DELETE", &format!("/api/v1/agent/sessions/{thread_id}"));
    server.send(erasing).await.with_status(204);
    assert_eq!(server.get(&path).await.with_status(200)["messages"], json!([]));
}

pub(crate) async fn automations(server: &TestServer) {
    let made = server.post("/api/v1/automations", &crate::operations::automation()).await.with_status(201);
    let path = format!("/api/v1/automations/{}", id(&made, "id"));
    assert_eq!(server.get(&format!("{path}/next")).await.with_status(200)["times"].as_array().unwrap().len(), 5);
    let started = server.post(&format!("{path}/start"), &json!({})).await.with_status(202);
    assert_eq!(server.get(&format!("{path}/runs")).await.with_status(200)["starts"], json!([started]));
    server.send(server.request("DELETE", &path)).await.with_status(204);
}

pub(crate) async fn calendar(server: &TestServer) {
    let made = server.post("/api/v1/calendar-events", &crate::operations::calendar_event()).await.with_status(201);
    let window = "from=2026-03-01T00:00:00Z&to=2026-03-31T00:00:00Z";
    let found = server.get(&format!("/api/v1/calendar-events/occurrences?{window}")).await.with_status(200);
    assert_eq!(found["occurrences"][0]["event_id"], made["id"]);
    let exported = server.send(server.request("GET", "/api/v1/calendar-events/export")).await.text;
    assert!(exported.starts_with("BEGIN:VCALENDAR\r\n"), "{exported}");
}

pub(crate) async fn run_input(server: &TestServer) {
    let thread_id = crate::operations::uuid(&server.create_run().await);
    let accepted =
        server.post("/api/v1/agent/runs", &crate::operations::agent_run(&thread_id, "r")).await.with_status(202);
    assert_eq!((&accepted["threadId"], &accepted["created"]), (&json!(thread_id), &json!(true)));
    let path = format!("/api/v1/agent/runs/{thread_id}");
    let cancelled = server.send(server.request("POST", &format!("{path}/cancel?runId=r"))).await.with_status(202);
    assert_eq!(cancelled["accepted"], true);
    let told = server.get(&format!("{path}/events?runId=r")).await.text;
    assert!(told.contains("RUN_STARTED") && told.contains(r#"{"type":"cancelled"}"#), "{told}");
    let streamed = server.request("POST", "/api/v1/agent/runs").header("accept", "text/event-stream");
    let streamed = streamed.header("content-type", "application/json");
    let streamed = streamed.body(crate::operations::agent_run(&thread_id, "r").to_string());
    assert_eq!(server.send(streamed).await.text, told, "the same run, told again");
}

/// Something is put down for a webhook, tried, and kept for another attempt; the name leads nowhere it may reach.
pub(crate) async fn webhooks(server: &TestServer) {
    let agent = id(&server.post("/agents", &json!({"name": "told"})).await.with_status(201), "id");
    let path = &format!("/agents/{agent}/webhook");
    let set = server.call("PUT", path, &json!({"url": "https://localhost:9/hook"})).await.with_status(200);
    assert!(set["secret"].is_string() && server.get(path).await.ok()["secret"].is_null());
    let told = server.send(server.request("POST", &format!("{path}/test"))).await.with_status(202);
    let told = format!("{path}/deliveries/{}", id(&told, "delivery_id"));
    eventually("an attempt is made", async || {
        let found = server.get(&told).await.ok();
        (found["attempts"] == 1 && found["last_error"].is_string()).then_some(())
    })
    .await;
    server.send(server.request("DELETE", path)).await.with_status(200);
    assert_eq!(server.get(&told).await.ok()["status"], "dead");
}

pub(crate) async fn agents(server: &TestServer) {
    let made = server.post("/agents", &json!({"name": "a", "capability_manifest": sample_manifest()})).await;
    let id = id(&made.with_status(201), "id");
    let tried = json!({"capability_manifest": sample_manifest()});
    let tried = server.post(&format!("/agents/{id}/manifest/diff"), &tried).await.with_status(200);
    assert_eq!(tried["breaking"], false);
}

pub(crate) async fn agent_tokens(server: &TestServer) {
    let id = id(&server.post("/agents", &json!({"name": "a"})).await.with_status(201), "id");
    let made = server.post(&format!("/agents/{id}/tokens"), &json!({"name": "t"})).await.with_status(201);
    assert!(made["token"].as_str().unwrap().starts_with("ost_agt_"));
}

pub(crate) async fn consent(server: &TestServer) {
    let (agent_id, hash) = server.agent().await;
    let body = json!({"agent_id": agent_id, "granted_scopes": ["notes:read"], "manifest_hash": hash});
    let made = server.post("/h2a/relations", &body).await.with_status(201);
    assert_eq!(made["granted_scopes"], json!(["notes:read"]));
    let path = format!("/h2a/relations/{}", id(&made, "id"));
    let less = server.patch(&path, &json!({"granted_scopes": []})).await.with_status(200);
    assert_eq!(less["granted_scopes"], json!([]));
    let receipts = server.get(&format!("{path}/receipts")).await.with_status(200);
    assert_eq!(receipts["receipts"].as_array().unwrap().len(), 2);
    server.send(server.request("DELETE", &path)).await.with_status(200);
}

pub(crate) async fn identities(server: &TestServer) {
    let identity = Identity::stranger("proof");
    let body = json!({"aid": identity.aid, "publicKey": identity.key.public_key().to_base64()});
    server.post("/api/v1/identities", &body).await.with_status(201);
    assert!(lists(server, "/api/v1/identities", "identities", "aid", &identity.aid).await);
    let path = format!("/api/v1/identities/{}/revoke", identity.aid);
    let revoked = server.post(&path, &json!({})).await.with_status(200);
    assert!(revoked["revokedAt"].is_string());
    server.post("/api/v1/identities/invites", &json!({})).await.with_status(201);
}
