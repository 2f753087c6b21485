//! What webhooks receive about runs: each request and each end once, for owners who may read the run, and nothing of what was
//! before the webhook.

mod access;

use std::collections::BTreeSet;

use ostler_protocol::trust::webhooks::RUN_DELIVERIES_WAITING_MAX;

use super::*;
use crate::{
    harness::{Caller, ManualRunner, run_body},
    run_input::runs::{THREAD, user as user_of},
};

const DIGEST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const PERMISSION: &str = "prm_00000000000000000000000000000001";
/// What takes the store back to before the migration, and all later ones.
pub(crate) const UNDO_RUN_WEBHOOKS: [&str; 50] = [
    "DROP TABLE webhook_runs",
    "DROP INDEX webhook_deliveries_run",
    "ALTER TABLE webhook_deliveries DROP COLUMN run_id",
    "ALTER TABLE webhooks DROP COLUMN runs_since",
    "DROP INDEX runs_agent",
    "DROP INDEX permissions_pending",
    "DROP INDEX permissions_id",
    "ALTER TABLE permissions DROP COLUMN strategy",
    "ALTER TABLE permissions DROP COLUMN voters",
    "ALTER TABLE permissions DROP COLUMN quorum",
    "ALTER TABLE permissions DROP COLUMN votes",
    "ALTER TABLE permissions DROP COLUMN refusals",
    "ALTER TABLE sessions DROP COLUMN participants",
    "ALTER TABLE commands DROP COLUMN origin",
    "ALTER TABLE commands DROP COLUMN submitted_by",
    "DROP TABLE daemon_sessions",
    "DROP TABLE daemon_clients",
    "DROP TABLE daemon_restores",
    "DROP TABLE session_payload_removals",
    "ALTER TABLE runner_jobs DROP COLUMN placement",
    "ALTER TABLE runner_jobs DROP COLUMN extras",
    "DROP INDEX events_of_session",
    "DROP INDEX events_usage",
    "DROP TABLE daemon_workspaces",
    "DROP TABLE workspace_switches",
    "DROP TABLE command_payloads",
    "DROP TABLE automations",
    "DROP TABLE automation_starts",
    "DROP TABLE calendar_events",
    "ALTER TABLE sessions DROP COLUMN parent_id",
    "ALTER TABLE sessions DROP COLUMN parent_seq",
    "ALTER TABLE command_aliases DROP COLUMN parent",
    "ALTER TABLE permissions DROP COLUMN editable",
    "ALTER TABLE permissions DROP COLUMN edited",
    "DROP INDEX commands_target",
    "ALTER TABLE sessions DROP COLUMN conversation_id",
    "ALTER TABLE sessions DROP COLUMN metadata",
    "DROP INDEX tokens_created",
    "DROP INDEX users_created",
    "DROP INDEX IF EXISTS runs_children",
    "ALTER TABLE runner_jobs DROP COLUMN observed",
    "ALTER TABLE runner_jobs DROP COLUMN starts",
    "ALTER TABLE payload_removals DROP COLUMN texts_removed",
    "DROP INDEX sessions_chats",
    "ALTER TABLE sessions DROP COLUMN background",
    "DROP INDEX IF EXISTS sessions_half_erased",
    "ALTER TABLE runs DROP COLUMN resource_bundle_ref",
    "DROP TABLE bundle_commits",
    "ALTER TABLE permissions DROP COLUMN server_digest",
    "DELETE FROM schema_migrations WHERE id >= '0008'",
];
const ALL: &str = "SELECT event_type FROM webhook_deliveries ORDER BY created_at, delivery_id";

/// A run that names the agent, with a turn that a runner has taken up.
async fn working(server: &TestServer, caller: &Caller, agent: &str, tenant: &str) -> (ManualRunner, String) {
    let run_id = caller
        .create_run_with(|run| {
            run["agentId"] = agent.into();
            run["tenantId"] = tenant.into();
        })
        .await;
    take_up(server, &run_id).await
}

async fn take_up(server: &TestServer, run_id: &str) -> (ManualRunner, String) {
    let command_id = server.turn(run_id, "the prompt").await;
    let runner = server.claim(run_id, "runner-a").await;
    runner.ack(&command_id).await;
    (runner, command_id)
}

/// A turn that has ended.
async fn worked(server: &TestServer, caller: &Caller, agent: &str, tenant: &str) -> String {
    let (runner, command_id) = working(server, caller, agent, tenant).await;
    runner.end(&command_id, "completed").await;
    runner.run_id
}

/// A run of the owner's thread that names the agent, and has ended.
async fn ended_in_thread(server: &TestServer, owner: &Caller, agent: &str, tenant: &str) -> String {
    owner.say("run-1", "hi").await.with_status(202);
    let first = server.run_of_thread().await;
    let profile = server.cancel_run(&first).await["backendProfile"].clone();
    let mut body = run_body();
    body["tenantId"] = tenant.into();
    body["agentId"] = agent.into();
    body["backendProfile"] = profile;
    body["sessionRef"] = json!({"sessionId": THREAD});
    let run_id = id(&owner.post("/api/v1/runs", &body).await.with_status(201), "runId");
    server.cancel_run(&run_id).await;
    run_id
}

fn bodies(hook: &HookReceiver) -> Vec<Value> {
    hook.requests().iter().map(|request| serde_json::from_slice(&request.body).unwrap()).collect()
}

/// Waits until the cursor of the run is at its end.
async fn read_to_the_end(server: &TestServer, run_id: &str) {
    let sql = format!(
        "SELECT r.run_id FROM runs r JOIN webhook_runs c ON c.run_id = r.run_id AND c.reported_seq = r.last_seq
         WHERE r.run_id = '{run_id}'"
    );
    eventually("the run is read", async || (!server.store(&sql).await.is_empty()).then_some(())).await;
}

#[both_engines]
async fn a_request_reaches_the_webhook_with_labels_and_is_answered_over_rest(engine: Engine) {
    let (server, hook) = (server(engine).await, HookReceiver::start([]).await);
    let (agent, secret) = hooked(&server, &hook.url()).await;
    let run_id = server
        .create_run_with(|run| {
            run["agentId"] = agent.as_str().into();
            run["labels"] = json!({"team": "search"});
            run["sessionRef"] = json!({"sessionId": "review"});
        })
        .await;
    let labels = json!({"labels": {"ticket": "4711"}});
    server.patch("/api/v1/sessions/review?tenantId=hwlab", &labels).await.with_status(200);
    let (runner, command_id) = take_up(&server, &run_id).await;
    let credential = format!("ghp_{}", "a1B2".repeat(9));
    let request = json!({"permissionId": PERMISSION, "title": "Publish?", "command": format!("publish --token {credential}"),
        "digest": DIGEST, "waitMs": 60_000, "options": [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]});
    runner.tell(&command_id, "permission_request", request).await;

    let received = hook.received(1).await.remove(0);
    assert!(Receiver::new(&secret).unwrap().verify(&received.headers, &received.body, now(&server)).is_ok());
    let body: Value = serde_json::from_slice(&received.body).unwrap();
    let listed = server.permissions(&run_id).await.remove(0);
    assert!(!listed["command"].as_str().unwrap().contains(&credential), "{listed}");
    assert_eq!(body["type"], "run.permission_requested");
    let payload = &body["payload"];
    assert_eq!(
        *payload,
        json!({"run_id": run_id, "session_id": "review", "agent_id": agent, "command_id": command_id,
            "permission_id": PERMISSION, "title": "Publish?", "command": listed["command"], "digest": DIGEST,
            "options": [{"option_id": "yes", "name": "Yes", "kind": "allow_once"}],
            "deadline": "2026-01-01T00:01:00Z", "profile": "scripted",
            "labels": {"team": "search"}, "session_labels": {"ticket": "4711"}})
    );
    let path = format!("/api/v1/runs/{}/permissions/{}/answer", id(payload, "run_id"), id(payload, "permission_id"));
    let answer = json!({"optionId": payload["options"][0]["option_id"], "digest": payload["digest"]});
    assert_eq!(server.post(&path, &answer).await.with_status(200)["status"], "allowed");

    runner.tell(&command_id, "usage", json!({"totalTokens": 12, "costUsd": 0.25})).await;
    runner.say(&command_id, "the reply").await;
    runner.end(&command_id, "completed").await;
    let received = hook.received(2).await.remove(1);
    let body: Value = serde_json::from_slice(&received.body).unwrap();
    assert_eq!(body["type"], "run.ended");
    assert_eq!(
        body["payload"],
        json!({"run_id": run_id, "session_id": "review", "agent_id": agent, "command_id": command_id,
            "state": "completed", "failure_kind": null, "usage": {"tokens": 12, "cost_usd": 0.25},
            "ended_at": "2026-01-01T00:00:00Z", "profile": "scripted",
            "labels": {"team": "search"}, "session_labels": {"ticket": "4711"}})
    );
    read_to_the_end(&server, &run_id).await;
    let sent = format!("{:?}", bodies(&hook));
    assert!(!sent.contains("the prompt") && !sent.contains("the reply"), "{sent}");
}

#[both_engines]
async fn each_outcome_of_a_turn_is_reported_once_and_nothing_else_of_the_run(engine: Engine) {
    let (server, hook) = (server(engine).await, HookReceiver::start([]).await);
    let (agent, _) = hooked(&server, &hook.url()).await;
    let (runner, first) = working(&server, &server, &agent, "hwlab").await;
    server.steer(&runner.run_id, "faster").await;
    let body = runner
        .signed(json!({"status": "failed", "failureKind": "provider-unavailable", "message": "the provider said"}));
    server.patch(&format!("/api/v1/commands/{first}/status"), &body).await.with_status(200);
    let second = server.turn(&runner.run_id, "again").await;
    // Ends the turn, and then the run.
    server.cancel_run(&runner.run_id).await;
    let idle = server.create_run_with(|run| run["agentId"] = agent.as_str().into()).await;
    server.cancel_run(&idle).await;
    read_to_the_end(&server, &runner.run_id).await;
    read_to_the_end(&server, &idle).await;
    hook.received(3).await;
    let payload = |body: &Value| {
        let fields = ["run_id", "command_id", "state", "failure_kind"].map(|field| body["payload"][field].clone());
        json!(fields)
    };
    let mut reported: Vec<_> = bodies(&hook).iter().map(payload).collect();
    reported.sort_by_key(Value::to_string);
    let mut expected = vec![
        json!([runner.run_id, first, "failed", "provider-unavailable"]),
        json!([runner.run_id, second, "cancelled", "cancelled"]),
        json!([idle, null, "cancelled", "cancelled"]),
    ];
    expected.sort_by_key(Value::to_string);
    assert_eq!(reported, expected);
    assert_eq!(server.store(ALL).await, ["run.ended"; 3]);
    assert!(!format!("{:?}", bodies(&hook)).contains("the provider said"));
}

/// As after a kill: the events are committed, and nothing of their report is.
#[both_engines]
async fn events_that_a_dead_server_did_not_report_are_reported_once_by_the_next(engine: Engine) {
    let mut server = server(engine).await;
    let hook = HookReceiver::start([]).await;
    let (agent, _) = hooked(&server, &hook.url()).await;
    let run_id = worked(&server, &server, &agent, "hwlab").await;
    hook.received(1).await;
    read_to_the_end(&server, &run_id).await;
    server.store("ALTER TABLE webhook_runs RENAME TO webhook_runs_gone").await;
    // More than are reported together.
    let mut ended = BTreeSet::new();
    for _ in 0..120 {
        let command_id = server.turn(&run_id, "x").await;
        server.cancel_command(&command_id).await;
        ended.insert(command_id);
    }
    server
        .restart_after(async |config| {
            crate::harness::query(config, "ALTER TABLE webhook_runs_gone RENAME TO webhook_runs").await;
        })
        .await;
    hook.received(121).await;
    read_to_the_end(&server, &run_id).await;
    server.restart().await;
    assert_eq!(server.store(ALL).await.len(), 121);
    let received = hook.requests();
    let ids: BTreeSet<_> =
        received.iter().map(|request| request.headers["x-hashee-delivery-id"].clone().as_bytes().to_vec()).collect();
    let reported: BTreeSet<_> = bodies(&hook).iter().skip(1).map(|body| id(&body["payload"], "command_id")).collect();
    assert_eq!((received.len(), ids.len()), (121, 121));
    assert_eq!(reported, ended);
}

/// Several servers need Postgres.
#[test]
fn two_servers_report_each_event_under_one_delivery_id() {
    crate::harness::run(async {
        let here = server(Engine::Postgres).await;
        let there = here.start_another(|_| ()).await;
        let hook = HookReceiver::start([]).await;
        let (agent, _) = hooked(&here, &hook.url()).await;
        let mut ended = BTreeSet::new();
        for number in 0..10 {
            let (server, other) = if number % 2 == 0 { (&here, &there) } else { (&there, &here) };
            let (runner, command_id) = working(server, other, &agent, "hwlab").await;
            runner.end(&command_id, "completed").await;
            ended.insert(command_id);
            read_to_the_end(&here, &runner.run_id).await;
        }
        hook.received(10).await;
        let waiting = "SELECT delivery_id FROM webhook_deliveries WHERE status <> 'delivered'";
        eventually("everything is delivered", async || here.store(waiting).await.is_empty().then_some(())).await;
        assert_eq!(here.store(ALL).await, ["run.ended"; 10]);
        let reported: BTreeSet<_> = bodies(&hook).iter().map(|body| id(&body["payload"], "command_id")).collect();
        assert_eq!((hook.requests().len(), reported), (10, ended));
    });
}

/// The server that committed the event is gone.
#[test]
fn a_server_reports_runs_of_another_that_has_stopped() {
    crate::harness::run(async {
        let here = server(Engine::Postgres).await;
        let hook = HookReceiver::start([]).await;
        let (agent, _) = hooked(&here, &hook.url()).await;
        here.store("ALTER TABLE webhook_runs RENAME TO webhook_runs_gone").await;
        let there = here.start_another(|_| ()).await;
        let run_id = worked(&there, &there, &agent, "hwlab").await;
        drop(there);
        here.store("ALTER TABLE webhook_runs_gone RENAME TO webhook_runs").await;
        assert_eq!(bodies(&hook).len(), 0);
        hook.received(1).await;
        read_to_the_end(&here, &run_id).await;
        assert_eq!(here.store(ALL).await, ["run.ended"]);
    });
}

#[both_engines]
async fn a_webhook_receives_nothing_of_what_was_before_it(engine: Engine) {
    let (server, hook) = (server(engine).await, HookReceiver::start([]).await);
    let (agent, other) = (new_agent(&server).await, new_agent(&server).await);
    let (runner, first) = working(&server, &server, &agent, "hwlab").await;
    runner.end(&first, "completed").await;
    let elsewhere = worked(&server, &server, &other, "hwlab").await;
    server.clock.advance_ms(1);
    set(&server, &agent, &hook.url()).await;
    let second = server.turn(&runner.run_id, "x").await;
    server.cancel_command(&second).await;
    assert_eq!(id(&hook.received(1).await.iter().map(payload_of).next().unwrap(), "command_id"), second);
    // Between two webhooks.
    server.send(server.request("DELETE", &path(&agent, ""))).await.with_status(200);
    let third = server.turn(&runner.run_id, "x").await;
    server.cancel_command(&third).await;
    server.clock.advance_ms(1);
    set(&server, &agent, &hook.url()).await;
    // A webhook that is replaced continues.
    let fourth = server.turn(&runner.run_id, "x").await;
    server.cancel_command(&fourth).await;
    server.clock.advance_ms(1);
    set(&server, &agent, &hook.url()).await;
    let reported = hook.received(2).await.iter().map(payload_of).map(|one| id(&one, "command_id")).collect::<Vec<_>>();
    assert_eq!(reported, [second, fourth]);
    read_to_the_end(&server, &runner.run_id).await;
    assert_eq!(server.store(ALL).await, ["run.ended"; 2]);
    let read = format!("SELECT run_id FROM webhook_runs WHERE run_id = '{elsewhere}'");
    assert_eq!(server.store(&read).await, [""; 0], "an agent without a webhook has no cursors");
}

/// The store of an earlier version has no cursors.
#[both_engines]
async fn an_existing_webhook_receives_nothing_from_before_the_upgrade(engine: Engine) {
    let mut server = server(engine).await;
    let hook = HookReceiver::start([]).await;
    let (agent, _) = hooked(&server, &hook.url()).await;
    server.store(UNDO_RUN_WEBHOOKS[0]).await;
    let run_id = worked(&server, &server, &agent, "hwlab").await;
    server
        .restart_after(async |config| {
            for statement in &UNDO_RUN_WEBHOOKS[1..] {
                crate::harness::query(config, statement).await;
            }
        })
        .await;
    server.clock.advance_ms(1);
    let later = server.turn(&run_id, "x").await;
    server.cancel_command(&later).await;
    let received = hook.received(1).await;
    assert_eq!(id(&payload_of(&received[0]), "command_id"), later);
    read_to_the_end(&server, &run_id).await;
    assert_eq!(server.store(ALL).await, ["run.ended"]);
}

fn payload_of(request: &crate::harness::Request) -> Value {
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    body["payload"].clone()
}

/// A server of the version before inserts no `runs_since`.
#[both_engines]
async fn a_webhook_that_an_earlier_version_sets_receives_nothing_of_what_was_before_it(engine: Engine) {
    let (server, hook) = (server(engine).await, HookReceiver::start([]).await);
    let (agent, _) = hooked(&server, &hook.url()).await;
    let secret = server.store("SELECT sealed_secret FROM webhooks").await.remove(0);
    server.store("DELETE FROM webhooks").await;
    let run_id = worked(&server, &server, &agent, "hwlab").await;
    server.clock.advance_ms(1);
    let now = now(&server).as_microsecond();
    server
        .store(&format!(
            "INSERT INTO webhooks (agent_id, url, sealed_secret, created_at) VALUES ('{agent}', '{}', '{secret}', {now})",
            hook.url()
        ))
        .await;
    let later = server.turn(&run_id, "x").await;
    server.cancel_command(&later).await;
    assert_eq!(id(&payload_of(&hook.received(1).await[0]), "command_id"), later);
    read_to_the_end(&server, &run_id).await;
    assert_eq!(server.store(ALL).await, ["run.ended"]);
    // Setting it again loses nothing.
    server.clock.advance_ms(1);
    set(&server, &agent, &hook.url()).await;
    assert_eq!(server.store("SELECT CAST(runs_since AS TEXT) FROM webhooks").await, [now.to_string()]);
}

#[both_engines]
async fn a_run_that_cannot_be_read_does_not_delay_the_others(engine: Engine) {
    let choose = |setup: &mut Setup| {
        quick(setup);
        // There is one scan, at the start.
        setup.config.change(|webhooks: &mut WebhooksSection| webhooks.poll_ms = 60_000);
    };
    let (mut server, hook) = (TestServer::with(engine, choose).await, HookReceiver::start([]).await);
    let (agent, _) = hooked(&server, &hook.url()).await;
    // More than are read together.
    for _ in 0..205 {
        let run_id = server.create_run_with(|run| run["agentId"] = agent.as_str().into()).await;
        server.cancel_run(&run_id).await;
    }
    server
        .restart_after(async |config| {
            let spoil = "UPDATE events SET command_id = 'x' WHERE type = 'terminal_status'
                AND run_id = (SELECT MIN(run_id) FROM runs)";
            for sql in ["DELETE FROM webhook_runs", "DELETE FROM webhook_deliveries", spoil] {
                crate::harness::query(config, sql).await;
            }
        })
        .await;
    eventually("all others are reported", async || (server.store(ALL).await.len() == 204).then_some(())).await;
}

#[both_engines]
async fn reports_of_runs_and_of_relations_do_not_crowd_out_each_other(engine: Engine) {
    let choose = |setup: &mut Setup| {
        quick(setup);
        setup.config.sessions.gc_interval_ms = 50;
    };
    let (server, hook) = (TestServer::with(engine, choose).await, HookReceiver::start([]).await);
    let (agent, _) = hooked(&server, &hook.url()).await;
    let run_id = worked(&server, &server, &agent, "hwlab").await;
    hook.received(1).await;
    fill(&server, &agent, RUN_DELIVERIES_WAITING_MAX).await;
    server.store(&format!("UPDATE webhook_deliveries SET run_id = '{run_id}', event_type = 'run.ended'")).await;
    let test = tell(&server, &agent).await;
    hook.received(2).await;
    assert_eq!(attempted(&server, &agent, &test, 1).await["status"], "delivered");
    worked(&server, &server, &agent, "hwlab").await;
    let full = "SELECT event_type FROM webhook_deliveries WHERE last_error = 'too many deliveries wait'";
    eventually("there is no room for runs", async || (server.store(full).await == ["run.ended"]).then_some(())).await;

    // Of those that ended, too, runs do not replace relations that are older.
    server.store("DELETE FROM webhook_deliveries").await;
    fill(&server, &agent, i64::from(ENDED_DELIVERIES_MAX) + 25).await;
    let (now, number) = (now(&server).as_microsecond(), "CAST(SUBSTR(delivery_id, 7) AS BIGINT)");
    server
        .store(&format!(
            "UPDATE webhook_deliveries SET status = 'dead', due_at = NULL, updated_at = {now}, created_at = {number},
                 run_id = CASE WHEN {number} > 20 THEN '{run_id}' END,
                 event_type = CASE WHEN {number} > 20 THEN 'run.ended' ELSE 'relation.revoked' END"
        ))
        .await;
    let relations = "SELECT delivery_id FROM webhook_deliveries WHERE run_id IS NULL";
    let runs = "SELECT delivery_id FROM webhook_deliveries WHERE run_id IS NOT NULL";
    let most = ENDED_DELIVERIES_MAX as usize;
    eventually("the oldest runs are deleted", async || (server.store(runs).await.len() == most).then_some(())).await;
    assert_eq!(server.store(relations).await.len(), 20);
}

#[both_engines]
async fn secrets_that_were_added_since_a_request_are_not_reported(engine: Engine) {
    let (server, hook) = (server(engine).await, HookReceiver::start([]).await);
    let (agent, _) = hooked(&server, &hook.url()).await;
    server.store("ALTER TABLE webhook_runs RENAME TO webhook_runs_gone").await;
    let (runner, command_id) = working(&server, &server, &agent, "hwlab").await;
    runner.ask(&command_id, PERMISSION, DIGEST).await;
    // As it was stored before the server learned the secret.
    let credential = format!("ghp_{}", "a1B2".repeat(9));
    let options = json!([{"optionId": "yes", "name": format!("Use {credential}"), "kind": "allow_once"}]);
    server
        .store(&format!(
            "UPDATE permissions SET title = '{credential}', command = '{credential}', options = '{options}'"
        ))
        .await;
    server.store("ALTER TABLE webhook_runs_gone RENAME TO webhook_runs").await;
    let payload = payload_of(&hook.received(1).await[0]);
    assert_eq!(payload["options"][0]["option_id"], "yes");
    assert!(!payload.to_string().contains(&credential), "{payload}");
}
