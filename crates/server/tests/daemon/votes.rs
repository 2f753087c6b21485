//! Votes on permission requests, as clients of the daemon cast them.

use ostler_protocol::kernel::permissions::PermissionStrategy;
use serde_json::{Value, json};

use super::{
    configure,
    scene::{Attached, attached},
};
use crate::{
    harness::{Engine, TestServer, both_engines, eventually},
    operations::DIGEST,
};

async fn server(engine: Engine, strategy: PermissionStrategy) -> TestServer {
    TestServer::with(engine, |setup| {
        setup.config.runner.slots = 8;
        setup.config.policy.permission_strategy = strategy;
    })
    .await
}

pub(crate) fn selected(option: &str) -> Value {
    json!({"outcome": {"outcome": "selected", "optionId": option}})
}

/// A permission request of a prompt of this client.
pub(crate) async fn request_of(server: &TestServer, session: &Attached) -> String {
    session.prompt(r#"{"script": [{"ask": {"title": "Delete a?", "command": "rm a"}}, {"say": "done"}]}"#).await;
    eventually("the backend asks", async || {
        let path = format!("/api/v1/sessions/{}/trace?limit=200", session.id);
        let page = server.get(&path).await.with_status(200);
        let mut events = page["events"].as_array().unwrap().iter();
        let asked = events.rfind(|event| event["type"] == "permission_request");
        asked.map(|event| event["payload"]["permissionId"].as_str().unwrap().to_owned())
    })
    .await
}

pub(crate) async fn events_of(server: &TestServer, session: &Attached, kind: &str) -> Vec<Value> {
    let page = server.get(&format!("/api/v1/sessions/{}/trace?limit=200", session.id)).await.with_status(200);
    let events = page["events"].as_array().unwrap().iter().filter(|event| event["type"] == kind);
    events.map(|event| event["payload"].clone()).collect()
}

/// Another client of the same session.
pub(crate) async fn joined(session: &Attached) -> Attached {
    let loaded = session.caller.call("POST", &format!("/session/{}/load", session.id), &json!({})).await;
    let client = loaded.with_status(200)["clientId"].as_str().unwrap().to_owned();
    Attached { caller: session.caller.clone(), id: session.id.clone(), client }
}

#[both_engines]
async fn the_first_valid_vote_decides_and_later_ones_are_reported(engine: Engine) {
    let server = server(engine, PermissionStrategy::FirstResponder).await;
    let session = attached(&server).await;
    let request = request_of(&server, &session).await;
    let vote = format!("permission/{request}");
    assert_eq!(session.post(&vote, &selected("maybe")).await.with_status(400)["code"], "invalid_option_id");
    assert_eq!(session.post(&vote, &json!({"outcome": {}})).await.status, 400);
    assert_eq!(session.post(&vote, &selected("allow")).await.with_status(200), json!({}));
    assert_eq!(session.post(&vote, &selected("allow")).await.with_status(404)["requestId"], json!(request));
    let late = session.post(&vote, &selected("maybe")).await.with_status(404);
    assert_eq!(late["requestId"], json!(request), "a vote on a resolved request is late, whatever it is for");
    let resolved = events_of(&server, &session, "permission_resolved").await;
    assert_eq!((resolved.len(), &resolved[0]["optionId"]), (1, &json!("allow")));
    let notes = session.notes(&server).await;
    let late = notes.iter().filter(|note| note["note"] == "daemon.permission_already_resolved").count();
    assert_eq!(late, 2, "one frame for each late vote: {notes:?}");
}

#[both_engines]
async fn a_late_vote_learns_what_was_really_decided(engine: Engine) {
    let server = server(engine, PermissionStrategy::FirstResponder).await;
    let cancelled = json!({"outcome": {"outcome": "cancelled"}});
    for (first, late) in [("allow", selected("deny")), ("deny", selected("allow")), ("allow", cancelled.clone())] {
        let session = attached(&server).await;
        let vote = format!("permission/{}", request_of(&server, &session).await);
        session.post(&vote, &selected(first)).await.with_status(200);
        session.post(&vote, &late).await.with_status(404);
        let note = session.notes(&server).await.pop().unwrap();
        assert_eq!(note["note"], "daemon.permission_already_resolved");
        assert_eq!(note["data"]["data"]["outcome"], selected(first)["outcome"], "{late}");
    }
    let session = attached(&server).await;
    let vote = format!("permission/{}", request_of(&server, &session).await);
    session.post(&vote, &cancelled).await.with_status(200);
    session.post(&vote, &selected("allow")).await.with_status(404);
    assert_eq!(session.notes(&server).await.pop().unwrap()["data"]["data"]["outcome"], cancelled["outcome"]);
}

#[both_engines]
async fn a_vote_needs_no_session_in_its_path(engine: Engine) {
    let server = server(engine, PermissionStrategy::FirstResponder).await;
    let session = attached(&server).await;
    let request = request_of(&server, &session).await;
    let path = format!("/permission/{request}");
    server.call("POST", &path, &selected("deny")).await.with_status(200);
    server.call("POST", &path, &selected("deny")).await.with_status(404);
    server.call("POST", "/permission/nothing", &selected("deny")).await.with_status(404);
}

#[both_engines]
async fn only_the_client_that_prompted_decides(engine: Engine) {
    let server = server(engine, PermissionStrategy::Designated).await;
    let session = attached(&server).await;
    let other = joined(&session).await;
    let request = request_of(&server, &session).await;
    let vote = format!("permission/{request}");
    let refused = other.post(&vote, &selected("allow")).await.with_status(403);
    assert_eq!((&refused["code"], &refused["reason"]), (&json!("permission_forbidden"), &json!("designated_mismatch")));
    session.post(&vote, &selected("allow")).await.with_status(200);
}

#[both_engines]
async fn a_majority_of_the_attached_clients_decides(engine: Engine) {
    let server = server(engine, PermissionStrategy::Consensus).await;
    let session = attached(&server).await;
    let other = joined(&session).await;
    let request = request_of(&server, &session).await;
    let outsider = joined(&session).await;
    let vote = format!("permission/{request}");
    assert_eq!(outsider.post(&vote, &selected("allow")).await.with_status(403)["reason"], "not_a_voter");
    session.post(&vote, &selected("allow")).await.with_status(200);
    assert_eq!(events_of(&server, &session, "permission_resolved").await, Vec::<Value>::new());
    other.post(&vote, &selected("allow")).await.with_status(200);
    let resolved = events_of(&server, &session, "permission_resolved").await;
    assert_eq!((resolved.len(), &resolved[0]["optionId"]), (1, &json!("allow")));
}

#[both_engines]
async fn every_client_may_cancel_a_request(engine: Engine) {
    let server = server(engine, PermissionStrategy::Designated).await;
    let session = attached(&server).await;
    let other = joined(&session).await;
    let request = request_of(&server, &session).await;
    let vote = format!("permission/{request}");
    other.post(&vote, &json!({"outcome": {"outcome": "cancelled"}})).await.with_status(200);
    let resolved = events_of(&server, &session, "permission_resolved").await;
    assert_eq!(resolved[0]["status"], "cancelled");
}

#[both_engines]
async fn a_request_waits_no_longer_than_the_daemon_allows(engine: Engine) {
    let server =
        TestServer::with(engine, |setup| configure(setup, |daemon| daemon.permission_timeout_ms = 5_000)).await;
    let session = attached(&server).await;
    session.prompt("hi").await;
    let (run_id, command_id) = session.prompted(&server).await;
    let runner = server.claim(&run_id, "runner-votes").await;
    runner.ack(&command_id).await;
    runner.ask(&command_id, &format!("prm_{:032x}", 7), DIGEST).await;
    assert_eq!(server.permissions(&run_id).await[0]["deadline"], "2026-01-01T00:00:05Z");
    let recorded = events_of(&server, &session, "permission_request").await;
    assert_eq!(recorded[0]["deadline"], "2026-01-01T00:00:05Z", "clients show when it expires");
    server.clock.advance_ms(5_000);
    eventually("the request is cancelled", async || {
        (server.permissions(&run_id).await[0]["status"] == "cancelled").then_some(())
    })
    .await;
}

#[both_engines]
async fn the_deadline_of_a_request_does_not_wait_for_the_next_sweep(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 4;
        setup.config.runner.sweep_interval_ms = 3_600_000;
        configure(setup, |daemon| daemon.permission_timeout_ms = 200);
    })
    .await;
    let session = attached(&server).await;
    request_of(&server, &session).await;
    server.clock.advance_ms(200);
    let resolved = eventually("the request is cancelled", async || {
        events_of(&server, &session, "permission_resolved").await.pop()
    })
    .await;
    assert_eq!(resolved["status"], "cancelled");
}

/// Proves one of the tags about votes, without a runner: the test is the runner.
pub(crate) async fn proof(server: &TestServer, tag: &str) {
    let session = attached(server).await;
    session.prompt("hi").await;
    let (run_id, command_id) = session.prompted(server).await;
    let runner = server.claim(&run_id, "runner-votes").await;
    runner.ack(&command_id).await;
    let request = format!("prm_{:032x}", 7);
    runner.ask(&command_id, &request, DIGEST).await;
    match tag {
        "permission_vote" => {
            server.call("POST", &format!("/permission/{request}"), &selected("yes")).await.with_status(200);
        }
        _ => {
            let vote = format!("permission/{request}");
            assert_eq!(session.post(&vote, &selected("perhaps")).await.with_status(400)["code"], "invalid_option_id");
            session.post(&vote, &selected("yes")).await.with_status(200);
            session.post(&vote, &selected("yes")).await.with_status(404);
        }
    }
    assert_eq!(events_of(server, &session, "permission_resolved").await[0]["optionId"], "yes");
    session.close().await;
}
