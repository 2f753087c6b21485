//! Each noun but events: what a dry run counts is what is then removed, and what a hold covers stays.

use ostler_trust::config::WebhooksSection;
use serde_json::{Value, json};

use super::{DAY_MS, count, hold, release, sweep, total, verify};
use crate::{
    harness::{Behaviour, Engine, HookReceiver, Identity, PNG, TestServer, both_engines, eventually, id},
    run_input::{
        attachments::{files, with_picture},
        runs::{THREAD, user},
    },
};

/// A dry run, the same with a hold, and the removal.
async fn removed(server: &TestServer, noun: &str, tenant: Option<&str>, covering: Value) -> i64 {
    let dry = json!({"dryRun": true, "noun": noun});
    let expected = sweep(server, dry.clone()).await;
    let hold_id = hold(server, covering).await;
    let held = sweep(server, json!({"noun": noun})).await;
    assert_eq!(total(&held), (0, 0), "a hold wins");
    assert_eq!(count(&held, noun, tenant)["held"], count(&expected, noun, tenant)["items"]);
    release(server, &hold_id).await;
    let swept = sweep(server, json!({"noun": noun})).await;
    assert_eq!(swept["counts"], expected["counts"], "a dry run counts what is removed");
    assert_eq!(total(&sweep(server, dry).await), (0, 0));
    count(&swept, noun, tenant)["items"].as_i64().unwrap()
}

/// A thread with a picture and a reply, whose run still waits for more.
async fn thread(server: &TestServer) {
    let picture = server.upload(THREAD, PNG).await.with_status(201);
    let message = with_picture("run-1", &id(&picture, "url"));
    let task = id(&server.post("/api/v1/agent/runs", &message).await.with_status(202), "taskId");
    let runner = server.claim(&server.run_of_thread().await, "runner-a").await;
    runner.ack(&task).await;
    runner.say(&task, "planted-reply").await;
    runner.end(&task, "completed").await;
    // A lease that expires is a change of the thread.
    runner.release().await;
}

#[both_engines]
async fn a_thread_is_erased_after_its_limit(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.retention.threads_ms = Some(3_600_000)).await;
    thread(&server).await;
    assert_eq!(total(&sweep(&server, json!({})).await), (0, 0), "it is not old");
    server.clock.advance_ms(DAY_MS);
    let covering = json!({"sessionId": THREAD, "reason": "case 7"});
    assert_eq!(removed(&server, "threads", Some("local"), covering).await, 1);
    server.get(&format!("/api/v1/sessions/{THREAD}")).await.refused(ostler_protocol::FailureKind::NotFound);
    assert_eq!(files(&server), 0);
    let report = verify(&server, engine).await;
    assert_eq!((report.broken, report.erased), (vec![], report.events));
}

#[both_engines]
async fn a_thread_that_works_is_not_erased(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.retention.threads_ms = Some(3_600_000)).await;
    server.say("run-1", "planted").await.with_status(202);
    server.clock.advance_ms(DAY_MS);
    assert_eq!(total(&sweep(&server, json!({})).await), (0, 0));
    server.get(&format!("/api/v1/sessions/{THREAD}")).await.with_status(200);
}

#[both_engines]
async fn pictures_go_after_their_limit_and_their_thread_stays(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.retention.attachments_ms = Some(3_600_000)).await;
    thread(&server).await;
    assert_eq!(files(&server), 1);
    server.clock.advance_ms(DAY_MS);
    let covering = json!({"sessionId": THREAD, "reason": "case 7"});
    assert_eq!(removed(&server, "attachments", Some("local"), covering).await, 1);
    assert_eq!(files(&server), 0);
    server.get(&format!("/api/v1/sessions/{THREAD}")).await.with_status(200);
    let history = server.get(&format!("/api/v1/agent/history?threadId={THREAD}")).await.with_status(200);
    assert!(!history["messages"].as_array().unwrap().is_empty());
}

#[both_engines]
async fn ended_deliveries_go_after_their_limit(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.retention.webhook_deliveries_ms = Some(3_600_000);
        setup.config.change(|webhooks: &mut WebhooksSection| webhooks.poll_ms = 10);
    })
    .await;
    let receiver = HookReceiver::start((0..3).map(|_| Behaviour::Answer(200, String::new()))).await;
    let ada = user(&server, "ada", &["hwlab"]).await;
    for (caller, tests) in [(&ada, 2), (&*server, 1)] {
        let agent = id(&caller.post("/agents", &json!({"name": "told"})).await.with_status(201), "id");
        let path = format!("/agents/{agent}/webhook");
        caller.call("PUT", &path, &json!({"url": receiver.url()})).await.with_status(200);
        for _ in 0..tests {
            caller.send(caller.request("POST", &format!("{path}/test"))).await.with_status(202);
        }
        eventually("all are delivered", async || {
            let listed = caller.get(&format!("{path}/deliveries")).await.ok()["deliveries"].clone();
            let delivered = listed.as_array().unwrap().iter().filter(|one| one["status"] == "delivered").count();
            (delivered == tests).then_some(())
        })
        .await;
    }
    server.clock.advance_ms(DAY_MS);
    // The operator's own agents belong to no tenant.
    let swept = sweep(&server, json!({"dryRun": true})).await;
    assert_eq!(count(&swept, "webhook_deliveries", None)["items"], 1);
    sweep(&server, json!({"noun": "webhook_deliveries", "tenantId": "local"})).await;
    assert_eq!(total(&sweep(&server, json!({"dryRun": true})).await).0, 3);
    let hold_id = hold(&server, json!({"tenantId": "hwlab", "reason": "case 7"})).await;
    assert_eq!(total(&sweep(&server, json!({})).await).0, 1);
    release(&server, &hold_id).await;
    let covering = json!({"tenantId": "hwlab", "reason": "case 7"});
    assert_eq!(removed(&server, "webhook_deliveries", Some("hwlab"), covering).await, 2);
}

#[both_engines]
async fn messages_go_after_their_limit(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.retention.messages_ms = Some(60_000)).await;
    let (alice, bobby) = (Identity::register(&server, "alice").await, Identity::register(&server, "bobby").await);
    let mut wire = alice.connect(&server, "desk").await;
    for number in 0..3 {
        let text = json!({"to": bobby.aid, "payload": {"type": "text", "text": "planted"}, "message_id": format!("m-{number}")});
        wire.call("message.send", text).await;
    }
    server.clock.advance_ms(600_000);
    let covering = json!({"identity": bobby.aid, "reason": "case 7"});
    assert!(removed(&server, "messages", None, covering).await >= 3);
    let left = server.store("SELECT message_id FROM mesh_messages").await;
    assert_eq!(left, [""; 0]);
}

#[both_engines]
async fn a_message_of_an_identity_under_a_hold_outlives_its_expiry(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.sessions.gc_interval_ms = 20).await;
    let (alice, bobby) = (Identity::register(&server, "alice").await, Identity::register(&server, "bobby").await);
    let mut wire = alice.connect(&server, "desk").await;
    wire.call("message.send", json!({"to": bobby.aid, "payload": {"type": "text", "text": "x"}, "message_id": "m-1"}))
        .await;
    let hold_id = hold(&server, json!({"identity": bobby.aid, "reason": "case 7"})).await;
    server.clock.advance_ms(3 * DAY_MS);
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert!(!server.store("SELECT message_id FROM mesh_messages").await.is_empty());
    release(&server, &hold_id).await;
    eventually("it goes", async || server.store("SELECT message_id FROM mesh_messages").await.is_empty().then_some(()))
        .await;
}

#[both_engines]
async fn a_held_message_is_not_recalled(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (alice, bobby) = (Identity::register(&server, "alice").await, Identity::register(&server, "bobby").await);
    let carol = Identity::register(&server, "carol").await;
    let mut wire = alice.connect(&server, "desk").await;
    for (to, message_id) in [(&bobby, "m-1"), (&carol, "m-2")] {
        let text = json!({"to": to.aid, "payload": {"type": "text", "text": "x"}, "message_id": message_id});
        wire.call("message.send", text).await;
    }
    let hold_id = hold(&server, json!({"identity": bobby.aid, "reason": "case 7"})).await;
    let (_, message) = wire.refused("message.recall", json!({"message_ids": ["m-1", "m-2"]})).await;
    assert!(message.contains("legal hold"), "{message}");
    let recalled = "SELECT DISTINCT message_id FROM mesh_messages WHERE recalled_at IS NOT NULL OR payload IS NULL";
    assert_eq!(server.store(recalled).await, ["m-2"]);
    release(&server, &hold_id).await;
    let result = wire.call("message.recall", json!({"message_ids": ["m-1"]})).await;
    assert_eq!((&result["recalled"], &result["errors"]), (&json!(1), &Value::Null));
}

#[both_engines]
async fn session_storage_goes_after_its_limit(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.retention.storage_ms = Some(3_600_000)).await;
    let body = json!({"tenantId": "hwlab", "backendProfile": "scripted", "storageKind": "local"});
    let session_id = id(&server.post("/api/v1/sessions", &body).await.with_status(201), "sessionId");
    let directory = server.config.data_dir().unwrap().join("sessions").join(&session_id);
    std::fs::write(directory.join("notes"), "planted").unwrap();
    server.clock.advance_ms(DAY_MS);
    let covering = json!({"sessionId": session_id, "reason": "case 7"});
    assert_eq!(removed(&server, "storage", Some("hwlab"), covering).await, 1);
    assert!(!directory.exists());
    let storage = server.get(&format!("/api/v1/sessions/{session_id}/storage")).await.ok();
    assert_eq!(storage["storageKind"], "evicted");
    assert_eq!(verify(&server, engine).await.broken, vec![]);
}
