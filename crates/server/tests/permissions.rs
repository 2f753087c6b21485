//! Permission requests: the agent asks, an authorised caller answers once, naming the digest of what will run.

use ostler_protocol::{FailureKind::*, limits::PERMISSIONS_OPEN_MAX};
use serde_json::{Value, json};

use crate::harness::{Engine, ManualRunner, TestServer, ask_body, both_engines, eventually};

const DIGEST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn permission_id(n: u32) -> String {
    format!("prm_{n:032x}")
}

async fn scene(server: &TestServer) -> (ManualRunner, String) {
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    (runner, command_id)
}

async fn only(server: &TestServer, run_id: &str) -> Value {
    let list = server.permissions(run_id).await;
    assert_eq!(list.len(), 1, "{list:?}");
    list[0].clone()
}

#[both_engines]
async fn a_request_is_listed_and_answered_once(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (runner, command_id) = scene(&server).await;
    assert_eq!(server.permissions(&runner.run_id).await, Vec::<Value>::new());
    runner.ask(&command_id, &permission_id(1), DIGEST).await;
    let request = only(&server, &runner.run_id).await;
    assert_eq!((&request["status"], &request["commandId"]), (&json!("pending"), &json!(command_id)));
    assert_eq!((&request["title"], &request["digest"]), (&json!("Delete it?"), &json!(DIGEST)));
    assert_eq!(request["deadline"], "2026-01-01T00:01:00Z");
    assert_eq!(request["options"][0], json!({"optionId": "yes", "name": "Yes", "kind": "allow_once"}));
    for field in ["optionId", "resolvedBy", "resolvedAt"] {
        assert_eq!(request[field], Value::Null, "{field}");
    }
    let answered = server.answer(&request, "yes", &DIGEST.to_uppercase()).await.with_status(200);
    assert_eq!((&answered["status"], &answered["optionId"]), (&json!("allowed"), &json!("yes")));
    assert_eq!(answered["resolvedBy"], "operator");
    assert_eq!(only(&server, &runner.run_id).await, answered);
    assert_eq!(runner.poll("").await["resolvedPermissions"], json!([answered]));
    let resolved = server.events_of(&runner.run_id, "permission_resolved").await;
    let told = json!({"permissionId": permission_id(1), "status": "allowed", "optionId": "yes", "digest": DIGEST,
        "resolvedBy": "operator"});
    assert_eq!((resolved.len(), &resolved[0]["payload"]), (1, &told));
    assert_eq!(resolved[0]["commandId"], command_id.as_str());
}

#[both_engines]
async fn a_denial_is_an_answer_too(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (runner, command_id) = scene(&server).await;
    runner.ask(&command_id, &permission_id(1), DIGEST).await;
    let answered = server.answer(&only(&server, &runner.run_id).await, "no", DIGEST).await.with_status(200);
    assert_eq!((&answered["status"], &answered["optionId"]), (&json!("denied"), &json!("no")));
}

#[both_engines]
async fn an_answer_must_name_the_digest_and_an_option(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (runner, command_id) = scene(&server).await;
    runner.ask(&command_id, &permission_id(1), DIGEST).await;
    let request = only(&server, &runner.run_id).await;
    let before = server.events(&runner.run_id).await;
    for digest in ["", "0", &DIGEST.replace('0', "1"), &format!("{DIGEST}0")] {
        server.answer(&request, "yes", digest).await.refused_by(StateConflict, "permission-digest");
    }
    for option in ["", "maybe", "Yes"] {
        server.answer(&request, option, DIGEST).await.refused_by(SchemaInvalid, "permission-option");
    }
    let unknown = json!({"runId": runner.run_id, "permissionId": permission_id(2)});
    server.answer(&unknown, "yes", DIGEST).await.refused(NotFound);
    assert_eq!(only(&server, &runner.run_id).await, request);
    assert_eq!(server.events(&runner.run_id).await, before);
}

#[both_engines]
async fn the_same_answer_again_is_fine_and_another_is_refused(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (runner, command_id) = scene(&server).await;
    runner.ask(&command_id, &permission_id(1), DIGEST).await;
    let request = only(&server, &runner.run_id).await;
    let answered = server.answer(&request, "yes", DIGEST).await.with_status(200);
    let before = server.events(&runner.run_id).await;
    assert_eq!(server.answer(&request, "yes", DIGEST).await.with_status(200), answered);
    let refused = server.answer(&request, "no", DIGEST).await.refused_by(StateConflict, "permission-resolved");
    assert_eq!((&refused.details["status"], &refused.details["resolvedBy"]), (&json!("allowed"), &json!("operator")));
    server.answer(&request, "yes", &DIGEST.replace('0', "1")).await.refused(StateConflict);
    assert_eq!(server.events(&runner.run_id).await, before);
}

async fn resolved(server: &TestServer, run_id: &str, by: &str) {
    let request = eventually("the request is resolved", async || {
        Some(only(server, run_id).await).filter(|request| request["status"] != "pending")
    })
    .await;
    assert_eq!((&request["status"], &request["optionId"]), (&json!("cancelled"), &Value::Null));
    assert_eq!(request["resolvedBy"], by);
    server.answer(&request, "yes", DIGEST).await.refused_by(StateConflict, "permission-resolved");
    assert_eq!(server.events_of(run_id, "permission_resolved").await.len(), 1);
}

#[both_engines]
async fn a_deadline_resolves_as_cancelled(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (runner, command_id) = scene(&server).await;
    runner.ask(&command_id, &permission_id(1), DIGEST).await;
    server.clock.advance_ms(59_999);
    runner.heartbeat().await;
    assert_eq!(only(&server, &runner.run_id).await["status"], "pending");
    server.clock.advance_ms(1);
    resolved(&server, &runner.run_id, "deadline").await;
    // The command is the runner's to end.
    assert_eq!(server.command(&runner.run_id, &command_id).await["state"], "running");
}

#[both_engines]
async fn a_cancel_resolves_as_cancelled(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (runner, command_id) = scene(&server).await;
    runner.ask(&command_id, &permission_id(1), DIGEST).await;
    server.cancel_command(&command_id).await;
    resolved(&server, &runner.run_id, "cancelled on request").await;
    // The command itself is the runner's to end.
    assert_eq!(server.command(&runner.run_id, &command_id).await["state"], "running");
}

#[both_engines]
async fn the_end_of_a_command_resolves_its_permission_requests(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (runner, command_id) = scene(&server).await;
    runner.ask(&command_id, &permission_id(1), DIGEST).await;
    runner.end(&command_id, "failed").await;
    resolved(&server, &runner.run_id, "the command ended").await;
    assert_eq!(server.result(&runner.run_id, &command_id).await["openPermissions"], json!([]));
}

#[both_engines]
async fn a_request_that_makes_no_sense_counts_as_denied(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (runner, command_id) = scene(&server).await;
    let good = ask_body(&permission_id(1), DIGEST);
    let with = |field: &str, value: Value| {
        let mut ask = good.clone();
        ask[field] = value;
        ask
    };
    let option = json!({"optionId": "yes", "name": "Yes", "kind": "allow_once"});
    let senseless = [
        json!({}),
        with("permissionId", json!("prm_x")),
        with("title", json!("")),
        with("digest", json!("abc")),
        with("digest", json!("z".repeat(64))),
        with("options", json!([])),
        with("options", json!(vec![option.clone(); 17])),
        with("options", json!([{"optionId": "", "name": "Yes", "kind": "allow_once"}])),
        with("options", json!([{"optionId": "yes", "name": "Yes", "kind": "perhaps"}])),
        with("options", json!([{"optionId": "o".repeat(201), "name": "Yes", "kind": "allow_once"}])),
        with("pad", json!("x".repeat(64 * 1024))),
    ];
    for (number, ask) in senseless.iter().enumerate() {
        let mut ask = ask.clone();
        if ask["permissionId"] == good["permissionId"] {
            ask["permissionId"] = json!(permission_id(number as u32 + 1));
        }
        runner.tell(&command_id, "permission_request", ask).await;
    }
    let denied = server.events_of(&runner.run_id, "permission_resolved").await;
    assert_eq!(denied.len(), senseless.len());
    for event in denied {
        assert_eq!(
            (&event["payload"]["status"], &event["payload"]["resolvedBy"]),
            (&json!("denied"), &json!("manager"))
        );
    }
    // The runner that waits finds its denial, wherever its id could be read.
    let kept = server.permissions(&runner.run_id).await;
    assert_eq!(kept.len(), senseless.len() - 2);
    assert!(kept.iter().all(|request| request["status"] == "denied"));
    assert_eq!(runner.poll("").await["resolvedPermissions"].as_array().unwrap().len(), kept.len());
    assert_eq!(server.result(&runner.run_id, &command_id).await["liveness"]["phase"], "waiting-model");
}

#[both_engines]
async fn a_permission_id_is_used_once(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (runner, command_id) = scene(&server).await;
    runner.ask(&command_id, &permission_id(1), DIGEST).await;
    let ask = |n: u32| json!({"type": "permission_request", "commandId": command_id, "payload": ask_body(&permission_id(n), DIGEST)});
    runner.try_append(None, json!([ask(1)])).await.refused_by(SchemaInvalid, "permission-id-used");
    server.answer(&only(&server, &runner.run_id).await, "yes", DIGEST).await.with_status(200);
    runner.try_append(None, json!([ask(1)])).await.refused_by(SchemaInvalid, "permission-id-used");
    runner.try_append(None, json!([ask(2), ask(2)])).await.refused_by(SchemaInvalid, "permission-id-used");
    assert_eq!(server.permissions(&runner.run_id).await.len(), 1);
    // Another run's ids are its own.
    let (other, other_command) = scene(&server).await;
    other.ask(&other_command, &permission_id(1), DIGEST).await;
    assert_eq!(only(&server, &other.run_id).await["status"], "pending");
    assert_eq!(only(&server, &runner.run_id).await["status"], "allowed");
    assert_eq!(server.result(&runner.run_id, &command_id).await["liveness"]["phase"], "waiting-model");
}

#[both_engines]
async fn open_requests_have_a_bound(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (runner, command_id) = scene(&server).await;
    let ask = |n: usize| json!({"type": "permission_request", "commandId": command_id, "payload": ask_body(&permission_id(n as u32), DIGEST)});
    let most: Value = (0..PERMISSIONS_OPEN_MAX).map(ask).collect();
    runner.try_append(None, most).await.with_status(200);
    runner.try_append(None, json!([ask(99)])).await.refused_by(Overloaded, "permissions-open");
    assert_eq!(server.permissions(&runner.run_id).await.len(), PERMISSIONS_OPEN_MAX);
    server.answer(&server.permissions(&runner.run_id).await[0], "no", DIGEST).await.with_status(200);
    runner.try_append(None, json!([ask(99)])).await.with_status(200);
}
