//! How long sessions and clients last: idle sessions are closed, absent clients do not vote, and sessions of removed users are erased.

use ostler_protocol::kernel::permissions::PermissionStrategy;
use serde_json::{Value, json};

use super::{
    CLIENT, configure,
    scene::{Attached, at_rest, attached},
    votes::{events_of, joined, request_of, selected},
};
use crate::{
    harness::{Caller, Engine, Follow, Setup, TestServer, both_engines, eventually, one_engine},
    operations::DIGEST,
    retention::{DAY_MS, hold, release, sweep, verify},
    run_input::{erasing::rows_with, runs::user},
};

/// Part of every message. No row contains it after an erasure.
const SECRET: &str = "planted-5823";

/// A session is idle after an hour of the test's clock, and a client is absent after a second. The server looks four times a second.
fn short_lived(setup: &mut Setup) {
    setup.config.runner.slots = 4;
    configure(setup, |daemon| {
        daemon.session_idle_ms = Some(3_600_000);
        daemon.client_idle_ms = 1_000;
    });
}

async fn follow(session: &Attached, client: Option<&str>) -> Follow {
    let mut request = session.caller.request("GET", &format!("/session/{}/events", session.id));
    if let Some(client) = client {
        request = request.header(CLIENT, client);
    }
    Follow::of_daemon(request.send().await.unwrap())
}

async fn participants(server: &TestServer, session: &Attached) -> Vec<Value> {
    let sql =
        format!("SELECT CAST(COALESCE(participants, '[]') AS TEXT) FROM sessions WHERE session_id = '{}'", session.id);
    serde_json::from_str(&server.store(&sql).await[0]).unwrap()
}

#[both_engines]
async fn a_session_that_is_not_used_is_closed_and_can_be_loaded_again(engine: Engine) {
    let server = TestServer::with(engine, short_lived).await;
    let (idle, followed, busy) = (attached(&server).await, attached(&server).await, attached(&server).await);
    let mut stream = follow(&followed, None).await;
    idle.prompt_to_end("hi").await;
    at_rest(&server).await;
    busy.prompt(r#"{"script": [{"wait": 60000}]}"#).await;
    server.clock.advance_ms(2 * 3_600_000);
    // A request of its client would be a use of it.
    let closed =
        format!("SELECT session_id FROM daemon_sessions WHERE session_id = '{}' AND closed_at IS NOT NULL", idle.id);
    eventually("the idle session is closed", async || (server.store(&closed).await.len() == 1).then_some(())).await;
    idle.get("context").await.with_status(404);
    let note = eventually("the end is recorded", async || {
        server.recorded_notes(&idle.id).await.pop().filter(|note| note.0 == "daemon.session_closed")
    })
    .await;
    assert_eq!(note.1["data"], json!({"sessionId": idle.id, "reason": "idle_timeout"}));
    for used in [&followed, &busy] {
        used.get("context").await.with_status(200);
    }
    assert_eq!(
        server.post(&format!("/session/{}/load", idle.id), &json!({})).await.with_status(200)["attached"],
        false
    );
    idle.get("context").await.with_status(200);
    busy.post("cancel", &json!({})).await.with_status(204);
    // A follower of a session that is closed learns why.
    followed.close().await;
    while stream.frame().await.is_some() {}
}

#[both_engines]
async fn a_client_that_left_does_not_vote_where_only_some_clients_may(engine: Engine) {
    for (strategy, reason) in
        [(PermissionStrategy::Designated, "designated_mismatch"), (PermissionStrategy::Consensus, "not_a_voter")]
    {
        let server = TestServer::with(engine, |setup| {
            short_lived(setup);
            setup.config.policy.permission_strategy = strategy;
        })
        .await;
        let session = attached(&server).await;
        let vote = format!("permission/{}", request_of(&server, &session).await);
        // Less than the lease of the runner.
        server.clock.advance_ms(2_000);
        let refused = session.post(&vote, &selected("allow")).await.with_status(403);
        assert_eq!((&refused["code"], &refused["reason"]), (&json!("permission_forbidden"), &json!(reason)));
        assert!(events_of(&server, &session, "permission_resolved").await.is_empty());
        // It is there again.
        session.post("heartbeat", &json!({})).await.with_status(200);
        session.post(&vote, &selected("allow")).await.with_status(200);
        assert_eq!(events_of(&server, &session, "permission_resolved").await.len(), 1);
    }
}

#[both_engines]
async fn a_client_with_an_event_stream_stays_attached_and_others_leave(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        short_lived(setup);
        setup.config.policy.permission_strategy = PermissionStrategy::Consensus;
    })
    .await;
    let session = attached(&server).await;
    let absent = joined(&session).await;
    assert_eq!(participants(&server, &session).await.len(), 2);
    let _stream = follow(&session, Some(&session.client)).await;
    server.clock.advance_ms(2_000);
    eventually("the absent client leaves", async || {
        (participants(&server, &session).await == [json!(session.client)]).then_some(())
    })
    .await;
    // The vote of the client that is there is the majority.
    let vote = format!("permission/{}", request_of(&server, &session).await);
    session.post(&vote, &selected("allow")).await.with_status(200);
    assert_eq!(events_of(&server, &session, "permission_resolved").await.len(), 1);
    absent.post("heartbeat", &json!({})).await.with_status(200);
    assert_eq!(participants(&server, &session).await.len(), 2);
}

#[both_engines]
async fn no_other_caller_decides_under_consensus_while_every_client_is_absent(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        short_lived(setup);
        setup.config.runner.slots = 0;
        setup.config.policy.permission_strategy = PermissionStrategy::Consensus;
    })
    .await;
    let session = attached(&server).await;
    joined(&session).await;
    session.prompt("hi").await;
    let (run_id, command_id) = session.prompted(&server).await;
    server.clock.advance_ms(2_000);
    let left = "SELECT client_id FROM daemon_clients WHERE left_at IS NOT NULL";
    eventually("both clients leave", async || (server.store(left).await.len() == 2).then_some(())).await;
    let last = participants(&server, &session).await;
    assert_eq!(last.len(), 1, "the last participant stays the voter");
    let runner = server.claim(&run_id, "runner-votes").await;
    runner.ack(&command_id).await;
    let permission_id = format!("prm_{:032x}", 7);
    runner.ask(&command_id, &permission_id, DIGEST).await;
    let request = server.permissions(&run_id).await.remove(0);
    assert_eq!(request["strategy"], "consensus");
    let refused = server.answer(&request, "yes", DIGEST).await.with_status(403);
    assert_eq!(refused["details"]["reason"], "not_a_voter");
    // The voter comes back, and decides.
    let client = last[0].as_str().unwrap().to_owned();
    let back = Attached { caller: session.caller.clone(), id: session.id.clone(), client };
    back.post("heartbeat", &json!({})).await.with_status(200);
    back.post(&format!("permission/{permission_id}"), &selected("yes")).await.with_status(200);
    assert_eq!(server.permissions(&run_id).await[0]["status"], "allowed");
    // When another client joins, a participant that is absent is none any more.
    server.clock.advance_ms(2_000);
    eventually("both clients are absent", async || (server.store(left).await.len() == 2).then_some(())).await;
    let new = joined(&session).await;
    assert_eq!(participants(&server, &session).await, [json!(new.client)]);
}

#[both_engines]
async fn a_client_is_attached_after_any_request_that_names_it(engine: Engine) {
    let server = TestServer::with(engine, short_lived).await;
    let session = attached(&server).await;
    joined(&session).await;
    server.clock.advance_ms(2_000);
    let left = "SELECT client_id FROM daemon_clients WHERE left_at IS NOT NULL";
    eventually("both clients leave", async || (server.store(left).await.len() == 2).then_some(())).await;
    let path = format!("/session/{}/metadata", session.id);
    let renamed = session.caller.as_client(&session.client, "PATCH", &path, &json!({"displayName": "back"})).await;
    renamed.with_status(200);
    assert_eq!(server.store(left).await.len(), 1);
    assert_eq!(participants(&server, &session).await, [json!(session.client)]);
}

#[both_engines]
async fn clients_that_have_left_count_as_registered(engine: Engine) {
    let server = TestServer::start(engine).await;
    let session = attached(&server).await;
    let digits = (0..16).map(|n| format!("SELECT {n} AS n")).collect::<Vec<_>>().join(" UNION ");
    let insert = format!(
        "INSERT INTO daemon_clients (client_id, session_id, principal, registered_at, last_seen_at, left_at)
         SELECT 'client_' || (a.n * 16 + b.n), c.session_id, c.principal, c.registered_at, c.last_seen_at + 1, 1
         FROM daemon_clients c, ({digits}) a, ({digits}) b RETURNING client_id"
    );
    assert_eq!(server.store(&insert).await.len(), 256);
    joined(&session).await;
    assert_eq!(server.store("SELECT client_id FROM daemon_clients").await.len(), 200);
    session.post("heartbeat", &json!({})).await.with_status(200);
}

#[both_engines]
async fn late_votes_are_recorded_up_to_a_limit(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    for _ in 0..2 {
        let session = attached(&server).await;
        let vote = format!("permission/{}", request_of(&server, &session).await);
        session.post(&vote, &selected("allow")).await.with_status(200);
        let late = async || {
            let notes = session.notes(&server).await;
            notes.iter().filter(|note| note["note"] == "daemon.permission_already_resolved").count()
        };
        for _ in 0..4 {
            session.post(&vote, &selected("deny")).await.with_status(404);
        }
        assert_eq!(late().await, 4, "one for each vote");
        for _ in 0..16 {
            session.post(&vote, &selected("deny")).await.with_status(404);
        }
        assert_eq!(late().await, 16, "a caller cannot fill the log with votes");
    }
}

/// A session of a user, with a conversation.
async fn spoken(server: &TestServer, name: &str) -> (Caller, Attached) {
    let caller = user(server, name, &["local"]).await;
    let session = attached(&caller).await;
    session.prompt_to_end(SECRET).await;
    at_rest(server).await;
    (caller, session)
}

async fn remove_user(server: &TestServer, name: &str) {
    server.send(server.request("DELETE", &format!("/api/v1/users/{name}"))).await.with_status(200);
}

#[both_engines]
async fn sessions_of_a_removed_user_are_erased_unless_they_are_held(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 4;
        setup.config.sessions.gc_interval_ms = 50;
    })
    .await;
    let (_, session) = spoken(&server, "ada").await;
    let (_, other) = spoken(&server, "bob").await;
    let path = format!("/session/{}/metadata", other.id);
    let renamed = other.caller.as_client(&other.client, "PATCH", &path, &json!({"displayName": "kept"})).await;
    renamed.with_status(200);
    let hold_id = hold(&server, json!({"sessionId": session.id, "reason": "case 7"})).await;
    remove_user(&server, "ada").await;
    assert_eq!(server.store("SELECT session_id FROM daemon_sessions").await.len(), 2, "it is held");
    release(&server, &hold_id).await;
    eventually("the session is erased", async || {
        let left = server.store("SELECT session_id FROM daemon_sessions").await;
        (left == [other.id.clone()]).then_some(())
    })
    .await;
    assert_eq!(server.store("SELECT session_id FROM daemon_clients").await, std::slice::from_ref(&other.id));
    assert!(server.get(&format!("/api/v1/sessions/{}", session.id)).await.status >= 400);
    server.get(&format!("/api/v1/sessions/{}", other.id)).await.with_status(200);
    remove_user(&server, "bob").await;
    eventually("nothing is left", async || rows_with(&server, engine, SECRET).await.is_empty().then_some(())).await;
    let report = verify(&server, engine).await;
    assert_eq!((report.broken, report.erased > 0), (vec![], true));
}

#[one_engine]
async fn an_erasure_that_a_stopped_server_began_is_finished(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 4;
        setup.config.sessions.gc_interval_ms = 50;
    })
    .await;
    let (_, session) = spoken(&server, "ada").await;
    let mark = format!("UPDATE sessions SET erased_at = 1 WHERE session_id = '{}' AND erased_at IS NULL", session.id);
    eventually("nothing is left", async || {
        // A write of the server that began before may store the session without the mark once more.
        server.store(&mark).await;
        rows_with(&server, engine, SECRET).await.is_empty().then_some(())
    })
    .await;
}

#[both_engines]
async fn a_user_erases_a_session_as_a_thread_and_retention_does_so_after_its_limit(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 4;
        setup.config.retention.threads_ms = Some(3_600_000);
    })
    .await;
    let (ada, session) = spoken(&server, "ada").await;
    let (_, old) = spoken(&server, "bob").await;
    let thread = uuid::Uuid::parse_str(session.id.trim_start_matches("ses_")).unwrap();
    let path = format!("/api/v1/agent/sessions/{thread}");
    ada.send(ada.request("DELETE", &path)).await.with_status(204);
    assert_eq!(server.store("SELECT session_id FROM daemon_sessions").await, std::slice::from_ref(&old.id));
    server.clock.advance_ms(DAY_MS);
    sweep(&server, json!({"noun": "threads"})).await;
    assert!(rows_with(&server, engine, SECRET).await.is_empty());
}

#[both_engines]
async fn a_note_about_the_workspace_is_no_use_of_its_sessions(engine: Engine) {
    let server = TestServer::with(engine, |setup| drop(setup.bind_workspace())).await;
    let session = attached(&server).await;
    let updated_at = async || {
        let path = format!("/api/v1/sessions/{}", session.id);
        server.get(&path).await.with_status(200)["updatedAt"].clone()
    };
    let opened_at = updated_at().await;
    server.clock.advance_ms(60_000);
    server.post("/workspace/init", &json!({})).await.with_status(200);
    assert_eq!(session.notes(&server).await.len(), 1, "its followers are notified");
    assert_eq!(updated_at().await, opened_at);
    session.post("language", &json!({"language": "de"})).await.with_status(200);
    assert_ne!(updated_at().await, opened_at, "a change of the session itself is a use");
}
