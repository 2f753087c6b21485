//! Session storage: made, reported, expired and evicted; a session that has lost it takes no run, before anything starts. What
//! clients see is the same for directories and for volume claims of a cluster, so the same tests run on both.

mod drivers;

use std::os::unix::fs::PermissionsExt;

use ostler_protocol::FailureKind::*;
use serde_json::{Value, json};

use crate::harness::{Answer, Caller, Engine, TestServer, both_engines, eventually, id, of_program, run_body};

use drivers::{Driver, StorageServer, each_driver};

const SHA256: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn at(session_id: &str, rest: &str) -> String {
    format!("/api/v1/sessions/{session_id}/storage{rest}")
}

async fn make(server: &StorageServer, change: impl FnOnce(&mut Value)) -> String {
    let mut body = json!({"tenantId": "hwlab", "backendProfile": "scripted", "storageKind": server.kind()});
    change(&mut body);
    let session_id = id(&server.post("/api/v1/sessions", &body).await.with_status(201), "sessionId");
    eventually("a volume claim is bound", async || {
        let storage = show(server, &session_id).await;
        (storage["storageKind"] != "pvc" || storage["pvcPhase"] == "Bound").then_some(())
    })
    .await;
    session_id
}

async fn show(server: &TestServer, session_id: &str) -> Value {
    server.get(&at(session_id, "")).await.with_status(200)
}

async fn evict(server: &TestServer, session_id: &str) -> Answer {
    server.send(server.request("DELETE", &at(session_id, ""))).await
}

async fn join(server: &TestServer, session_id: &str) -> String {
    server.create_run_with(|body| body["sessionRef"] = json!({"sessionId": session_id})).await
}

async fn try_join(server: &TestServer, session_id: &str) -> Answer {
    let mut body = run_body();
    body["sessionRef"] = json!({"sessionId": session_id});
    server.post("/api/v1/runs", &body).await
}

async fn report(caller: &Caller, session_id: &str, run_id: &str, bytes: i64) -> Answer {
    let found = json!({"runId": run_id, "sizeBytes": bytes, "filesCount": 2, "sha256": SHA256});
    caller.post(&at(session_id, "/refresh"), &found).await
}

async fn sweep(server: &TestServer, body: Value) -> Value {
    server.post("/api/v1/sessions/storage/gc", &body).await.with_status(200)
}

/// The session's facts about its storage, by their names.
async fn changes(server: &TestServer, session_id: &str) -> Vec<Value> {
    let trace = server.get(&format!("/api/v1/sessions/{session_id}/trace")).await.ok();
    let facts = trace["events"].as_array().unwrap().iter().filter(|event| event["type"] == "session");
    facts.map(|event| event["payload"].clone()).collect()
}

#[both_engines]
async fn a_session_is_made_with_the_storage_that_the_request_names_or_its_agent_needs(engine: Engine) {
    each_driver(
        engine,
        |_| (),
        async |server| {
            let plain = make(&server, |body| body["storageKind"] = json!("none")).await;
            assert_eq!(show(&server, &plain).await["storageKind"], "none");
            assert!(!server.has_storage(&plain));
            // Left out, it is as the profile's agent needs it: a program keeps files, the scripted agent does not.
            let kind = server.kind();
            for (profile, kind) in [("codex", kind), ("my-own", kind), ("scripted", "none"), ("model", "none")] {
                let change = |body: &mut Value| *body = json!({"tenantId": "hwlab", "backendProfile": profile});
                let session_id = make(&server, change).await;
                assert_eq!(show(&server, &session_id).await["storageKind"], kind, "{profile}");
                assert_eq!(server.has_storage(&session_id), kind != "none", "{profile}");
            }
            let stored = make(&server, |body| body["expiresAt"] = json!("2026-02-01T00:00:00Z")).await;
            let storage = show(&server, &stored).await;
            assert_eq!((&storage["storageKind"], &storage["codexRolloutSubdir"]), (&json!(kind), &json!("sessions")));
            assert_eq!(
                (&storage["expiresAt"], &storage["storageSha256"]),
                (&json!("2026-02-01T00:00:00Z"), &Value::Null)
            );
            let session = server.get(&format!("/api/v1/sessions/{stored}")).await.ok();
            assert_eq!(
                (&session["storageKind"], &session["expiresAt"]),
                (&storage["storageKind"], &storage["expiresAt"])
            );
            for unusable in ["evicted", if kind == "pvc" { "local" } else { "pvc" }] {
                let body = json!({"tenantId": "hwlab", "backendProfile": "scripted", "storageKind": unusable});
                server.post("/api/v1/sessions", &body).await.refused_by(SchemaInvalid, "storage-kind");
            }
            server.get(&at("nobody", "")).await.refused(NotFound);
        },
    )
    .await;
}

#[both_engines]
async fn a_directory_is_private_and_no_volume(engine: Engine) {
    let server = StorageServer::start(engine, Driver::Directories, |_| ()).await;
    let stored = make(&server, |_| ()).await;
    assert_eq!(server.directory(&stored).metadata().unwrap().permissions().mode() & 0o777, 0o700);
    let storage = show(&server, &stored).await;
    assert_eq!(storage.get("pvcName").zip(storage.get("pvcPhase")), Some((&Value::Null, &Value::Null)));
}

#[both_engines]
async fn a_run_of_a_program_makes_the_storage_it_needs(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 4;
        setup.config.agents.codex = Some("/nowhere/codex".into());
    })
    .await;
    server.equip().await;
    let (run_id, command_id) = server.start_with("hi", of_program).await;
    server.ended(&run_id, &command_id).await;
    let session_id = id(&server.run(&run_id).await, "sessionId");
    assert_eq!(show(&server, &session_id).await["storageKind"], "local");
    let (run_id, command_id) = server.start("hi").await;
    server.ended(&run_id, &command_id).await;
    let session_id = id(&server.run(&run_id).await, "sessionId");
    assert_eq!(show(&server, &session_id).await["storageKind"], "none");
}

#[both_engines]
async fn the_report_of_a_runner_is_stored_and_is_a_fact(engine: Engine) {
    each_driver(
        engine,
        |_| (),
        async |mut server| {
            let session_id = make(&server, |_| ()).await;
            let run_id = join(&server, &session_id).await;
            server.clock.advance_ms(1_000);
            let first = report(&server, &session_id, &run_id, 7).await.with_status(200);
            assert_eq!((&first["storageSizeBytes"], &first["storageFilesCount"]), (&json!(7), &json!(2)));
            assert_eq!(
                (&first["storageSha256"], &first["storageUpdatedAt"]),
                (&json!(SHA256), &json!("2026-01-01T00:00:01Z"))
            );
            server.clock.advance_ms(1_000);
            // The same again is no news.
            assert_eq!(report(&server, &session_id, &run_id, 7).await.with_status(200), first);
            server.restart().await;
            assert_eq!(show(&server, &session_id).await, first);
            let facts = changes(&server, &session_id).await;
            let names: Vec<_> = facts.iter().map(|fact| &fact["change"]).collect();
            assert_eq!(names, ["created", "storage-measured"]);
            assert_eq!((&facts[1]["sizeBytes"], &facts[1]["sha256"]), (&json!(7), &json!(SHA256)));
            for (field, value, rule) in
                [("sizeBytes", json!(-1), "storage-size"), ("sha256", json!("x".repeat(64)), "storage-sha256")]
            {
                let mut found = json!({"runId": run_id, "sizeBytes": 7, "filesCount": 2, "sha256": SHA256});
                found[field] = value;
                server.post(&at(&session_id, "/refresh"), &found).await.refused_by(SchemaInvalid, rule);
            }
        },
    )
    .await;
}

#[both_engines]
async fn only_the_runs_own_runner_reports(engine: Engine) {
    each_driver(
        engine,
        |setup| {
            setup.token("runner", "runner", &["hwlab"]);
            setup.token("stranger", "runner", &["unidesk"]);
            setup.token("client", "client", &["hwlab"]);
        },
        async |server| {
            let (session_id, other) = (make(&server, |_| ()).await, make(&server, |_| ()).await);
            let run_id = join(&server, &session_id).await;
            report(server.caller("stranger"), &session_id, &run_id, 7).await.refused(NotFound);
            report(server.caller("client"), &session_id, &run_id, 7).await.refused(Forbidden);
            report(server.caller("runner"), &other, &run_id, 7).await.refused(NotFound);
            report(server.caller("runner"), &session_id, "run_unknown", 7).await.refused(NotFound);
            report(server.caller("runner"), &session_id, &run_id, 7).await.with_status(200);
            let plain = join(&server, "plain").await;
            report(&server, "plain", &plain, 7).await.refused_by(StateConflict, "storage-none");
            server.caller("client").post("/api/v1/sessions/storage/gc", &json!({})).await.refused(Forbidden);
        },
    )
    .await;
}

#[both_engines]
async fn evicted_storage_is_gone_and_the_session_takes_no_run(engine: Engine) {
    each_driver(
        engine,
        |_| (),
        async |server| {
            let session_id = make(&server, |_| ()).await;
            let run_id = join(&server, &session_id).await;
            server.fill_storage(&session_id);
            let evicted = evict(&server, &session_id).await.with_status(200);
            assert_eq!(
                (&evicted["storageKind"], &evicted["storageEvictedAt"]),
                (&json!("evicted"), &json!("2026-01-01T00:00:00Z"))
            );
            server.storage_is_removed(&session_id).await;
            assert_eq!(evict(&server, &session_id).await.with_status(200), evicted);
            let facts = changes(&server, &session_id).await;
            assert_eq!(
                facts.last().unwrap(),
                &json!({"change": "storage-evicted", "reason": "deleted", "by": "operator"})
            );
            try_join(&server, &session_id).await.refused_by(SessionStoreEvicted, "storage-evicted");
            let turn = json!({"type": "turn", "payload": {"prompt": "x"}});
            server.submit(&run_id, &turn).await.refused_by(SessionStoreEvicted, "storage-evicted");
            assert_eq!(server.events(&run_id).await.len(), 1, "nothing was started");
            let plain = make(&server, |body| body["storageKind"] = json!("none")).await;
            evict(&server, &plain).await.refused_by(StateConflict, "storage-none");
        },
    )
    .await;
}

#[both_engines]
async fn storage_in_use_is_not_evicted(engine: Engine) {
    each_driver(
        engine,
        |_| (),
        async |server| {
            let session_id = make(&server, |_| ()).await;
            let run_id = join(&server, &session_id).await;
            let turn = server.turn(&run_id, "hi").await;
            assert_eq!(evict(&server, &session_id).await.refused(SessionBusy).details["activeRunId"], run_id.as_str());
            assert!(server.has_storage(&session_id));
            server.cancel_command(&turn).await;
            evict(&server, &session_id).await.with_status(200);
        },
    )
    .await;
}

#[both_engines]
async fn links_that_an_agent_planted_are_not_followed(engine: Engine) {
    let server = StorageServer::start(engine, Driver::Directories, |_| ()).await;
    let session_id = make(&server, |_| ()).await;
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("kept"), "kept").unwrap();
    let storage = server.directory(&session_id);
    std::os::unix::fs::symlink(outside.path(), storage.join("directory")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("kept"), storage.join("file")).unwrap();
    evict(&server, &session_id).await.with_status(200);
    assert!(!storage.exists() && outside.path().join("kept").exists());
}

#[both_engines]
async fn a_sweep_evicts_what_has_expired_and_is_not_in_use(engine: Engine) {
    each_driver(
        engine,
        |_| (),
        async |server| {
            let expires = |time: &'static str| move |body: &mut Value| body["expiresAt"] = json!(time);
            let early = make(&server, expires("2026-01-02T00:00:00Z")).await;
            let busy = make(&server, expires("2026-01-02T00:00:01Z")).await;
            let late = make(&server, expires("2026-01-02T00:00:02Z")).await;
            let never = make(&server, |_| ()).await;
            let run_id = join(&server, &busy).await;
            server.turn(&run_id, "hi").await;
            assert_eq!(sweep(&server, json!({})).await, json!({"evicted": [], "busy": 0, "hasMore": false}));
            // In the body or in the query, as one likes.
            let named = "/api/v1/sessions/storage/gc?now=2026-01-03T00:00:00Z&limit=1";
            server.post(named, &json!({"limit": 2})).await.refused_by(SchemaInvalid, "sweep-twice");
            let first = server.send(server.request("POST", named)).await.with_status(200);
            assert_eq!((&first["evicted"][0]["sessionId"], &first["hasMore"]), (&json!(early), &json!(true)));
            server.clock.advance_ms(48 * 3_600_000);
            let second = sweep(&server, json!({})).await;
            assert_eq!((&second["evicted"][0]["sessionId"], &second["busy"]), (&json!(late), &json!(1)));
            server.storage_is_removed(&early).await;
            server.storage_is_removed(&late).await;
            assert!(server.has_storage(&busy) && server.has_storage(&never));
            let facts = changes(&server, &early).await;
            assert_eq!(
                facts.last().unwrap(),
                &json!({"change": "storage-evicted", "reason": "expired", "by": "manager"})
            );
            for limit in [0, 1_001] {
                let refused = server.post("/api/v1/sessions/storage/gc", &json!({"limit": limit})).await;
                refused.refused_by(SchemaInvalid, "sweep-limit");
            }
        },
    )
    .await;
}

#[both_engines]
async fn the_server_sweeps_by_itself(engine: Engine) {
    each_driver(
        engine,
        |setup| setup.config.sessions.gc_interval_ms = 10,
        async |server| {
            let session_id = make(&server, |body| body["expiresAt"] = json!("2026-01-01T00:00:01Z")).await;
            server.clock.advance_ms(1_000);
            server.storage_is_removed(&session_id).await;
            assert_eq!(show(&server, &session_id).await["storageKind"], "evicted");
        },
    )
    .await;
}

#[both_engines]
async fn each_use_keeps_storage_for_the_configured_time(engine: Engine) {
    each_driver(
        engine,
        |setup| setup.config.sessions.storage_ttl_ms = Some(60_000),
        async |server| {
            let session_id = make(&server, |_| ()).await;
            assert_eq!(show(&server, &session_id).await["expiresAt"], "2026-01-01T00:01:00Z");
            let run_id = join(&server, &session_id).await;
            server.clock.advance_ms(30_000);
            report(&server, &session_id, &run_id, 7).await.with_status(200);
            assert_eq!(show(&server, &session_id).await["expiresAt"], "2026-01-01T00:01:30Z");
        },
    )
    .await;
}

#[both_engines]
async fn storage_that_vanished_counts_as_evicted(engine: Engine) {
    each_driver(
        engine,
        |_| (),
        async |server| {
            let session_id = make(&server, |_| ()).await;
            let run_id = join(&server, &session_id).await;
            // Before anything was in it nothing is lost with it.
            server.lose_storage(&session_id).await;
            join(&server, &session_id).await;
            report(&server, &session_id, &run_id, 7).await.with_status(200);
            try_join(&server, &session_id).await.refused_by(SessionStoreEvicted, "storage-evicted");
            let facts = changes(&server, &session_id).await;
            assert_eq!(facts.last().unwrap()["reason"], "missing");
            assert_eq!(show(&server, &session_id).await["storageKind"], "evicted");
        },
    )
    .await;
}

#[both_engines]
async fn no_turn_and_no_runner_starts_without_the_storage_that_vanished(engine: Engine) {
    each_driver(
        engine,
        |_| (),
        async |server| {
            let session_id = make(&server, |_| ()).await;
            let run_id = join(&server, &session_id).await;
            let turn = server.turn(&run_id, "hi").await;
            report(&server, &session_id, &run_id, 7).await.with_status(200);
            server.lose_storage(&session_id).await;

            // No runner is started for a turn that was submitted before the loss, and no further turn is accepted.
            let jobs = format!("/api/v1/runs/{run_id}/runner-jobs");
            let refused = server.post(&jobs, &json!({"commandId": turn})).await;
            assert_eq!(refused.status, 410);
            refused.refused_by(SessionStoreEvicted, "storage-evicted");
            assert_eq!(server.get(&jobs).await.ok()["runnerJobs"], json!([]));
            let second = json!({"type": "turn", "payload": {"prompt": "again"}});
            server.submit(&run_id, &second).await.refused_by(SessionStoreEvicted, "storage-evicted");
            // The turn that waits keeps the session busy: the loss cannot be recorded yet.
            assert_eq!(show(&server, &session_id).await["storageKind"], server.kind());

            server.cancel_command(&turn).await;
            let events = server.events(&run_id).await.len();
            let refused = server.submit(&run_id, &second).await;
            assert_eq!(refused.status, 410);
            refused.refused_by(SessionStoreEvicted, "storage-evicted");
            assert_eq!(server.events(&run_id).await.len(), events, "no command was stored");
            assert_eq!(show(&server, &session_id).await["storageKind"], "evicted");
            assert_eq!(changes(&server, &session_id).await.last().unwrap()["reason"], "missing");
        },
    )
    .await;
}

#[both_engines]
async fn what_a_crash_left_behind_is_cleared_by_a_sweep(engine: Engine) {
    each_driver(
        engine,
        |setup| setup.config.sessions.gc_interval_ms = 20,
        async |mut server| {
            let (gone, kept) = (make(&server, |_| ()).await, make(&server, |_| ()).await);
            evict(&server, &gone).await.with_status(200);
            server.storage_is_removed(&gone).await;
            server.put_back_storage(&gone);
            server.restart().await;
            server.storage_is_removed(&gone).await;
            assert!(server.has_storage(&kept));
        },
    )
    .await;
}
