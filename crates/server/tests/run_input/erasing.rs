//! Erasing a thread: its runs end, only digests of its events remain, requests do not find it, and a runner that was working in
//! it cannot write to it any more.

use ostler_protocol::FailureKind::*;
use ostler_server::clock::Clock;
use serde_json::{Value, json};

use crate::{
    harness::{Caller, Engine, PNG, TestServer, both_engines, eventually, id},
    run_input::{
        attachments::{files, with_picture},
        runs::{THREAD, user},
    },
};

/// Part of every message; after erasing it is nowhere.
const SECRET: &str = "planted-4711";

async fn erase(caller: &Caller, thread_id: &str) {
    let request = caller.request("DELETE", &format!("/api/v1/agent/sessions/{thread_id}"));
    assert_eq!(caller.send(request).await.with_status(204), Value::Null);
}

/// A thread with a picture, an answer, an open question and a turn at work.
async fn lively(server: &TestServer) -> (crate::harness::ManualRunner, String, Value) {
    let picture = server.upload(THREAD, &[PNG, SECRET.as_bytes()].concat()).await.with_status(201);
    let message = with_picture("run-1", &id(&picture, "url")).to_string().replace("what is this?", SECRET);
    let message: Value = serde_json::from_str(&message).unwrap();
    let task = id(&server.post("/api/v1/agent/runs", &message).await.with_status(202), "taskId");
    let runner = server.claim(&server.run_of_thread().await, "runner-a").await;
    runner.ack(&task).await;
    runner.say(&task, SECRET).await;
    runner.tell(&task, "tool_call", json!({"toolCallId": "t", "name": SECRET, "status": "started"})).await;
    let ask = json!({"permissionId": format!("prm_{:032x}", 7), "title": SECRET, "digest": crate::operations::DIGEST,
        "options": [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]});
    runner.tell(&task, "permission_request", ask).await;
    (runner, task, picture)
}

/// SQLite combines up to 500 selects.
const COLUMNS_PER_STATEMENT: usize = 100;

/// The columns of all tables in which a row contains the text, once per row.
pub(crate) async fn rows_with(server: &TestServer, engine: Engine, text: &str) -> Vec<String> {
    let columns = match engine {
        Engine::Sqlite => {
            "SELECT m.name || '.' || p.name FROM sqlite_master m JOIN pragma_table_info(m.name) p WHERE m.type = 'table'"
        }
        Engine::Postgres => {
            "SELECT table_name || '.' || column_name FROM information_schema.columns WHERE table_schema = 'public'"
        }
    };
    let select = |place: &String| {
        let (table, column) = place.split_once('.').unwrap();
        format!("SELECT '{place}' FROM {table} WHERE CAST({column} AS TEXT) LIKE '%{text}%'")
    };
    let mut found = vec![];
    for places in server.store(columns).await.chunks(COLUMNS_PER_STATEMENT) {
        let selects: Vec<_> = places.iter().map(select).collect();
        found.extend(server.store(&selects.join(" UNION ALL ")).await);
    }
    found
}

#[both_engines]
async fn an_erased_thread_leaves_digests_and_nothing_else(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (_, task, picture) = lively(&server).await;
    let session =
        server.store(&format!("SELECT session_id FROM sessions WHERE external_id = '{THREAD}'")).await.remove(0);
    assert!(rows_with(&server, engine, SECRET).await.len() > 3);
    let numbers = format!("SELECT CAST(MAX(session_seq) AS TEXT) FROM events WHERE session_id = '{session}'");
    let before: i64 = server.store(&numbers).await[0].parse().unwrap();
    erase(&server, THREAD).await;
    for gone in [SECRET, THREAD, &task, "agent-inputs"] {
        let left = rows_with(&server, engine, gone).await;
        let digests_only = left.iter().all(|place| place == "events.command_id");
        assert!(digests_only, "{gone} is left in {left:?}");
    }
    assert_eq!(files(&server), 0);
    let url = id(&picture, "url");
    server.with_token(None).get(&url[url.find("/api/").unwrap()..]).await.refused(NotFound);
    // The log is longer by its end, and still whole.
    let after: i64 = server.store(&numbers).await[0].parse().unwrap();
    assert!(after > before);
    let report = verify(&server, engine, &session).await;
    assert_eq!((report.broken, report.events as i64, report.erased as i64), (vec![], after, after));
}

#[both_engines]
async fn a_row_of_an_erased_thread_that_was_changed_is_found(engine: Engine) {
    let server = TestServer::start(engine).await;
    lively(&server).await;
    let session =
        server.store(&format!("SELECT session_id FROM sessions WHERE external_id = '{THREAD}'")).await.remove(0);
    erase(&server, THREAD).await;
    let of_session = format!("WHERE session_id = '{session}'");
    server.store(&format!("CREATE TABLE as_it_was AS SELECT * FROM sessions {of_session}")).await;
    for (change, words) in [
        ("erased_at = NULL", "the payload is missing, and neither erasure nor retention removed it"),
        ("erased_at = erased_at + 1", "session: erased_at"),
        ("version = version + 1", "session: version"),
        ("ended_at = NULL", "session: ended_at"),
        ("execution_state = 'running'", "session: execution_state"),
        ("title = 'mallory'", "session: title"),
    ] {
        server.store(&format!("UPDATE sessions SET {change} {of_session}")).await;
        let broken = verify(&server, engine, &session).await.broken;
        assert!(broken.iter().any(|broken| broken.reason.contains(words)), "{change}: {words:?} is not in {broken:?}");
        server.store(&format!("DELETE FROM sessions {of_session}")).await;
        server.store("INSERT INTO sessions SELECT * FROM as_it_was").await;
    }
    assert_eq!(verify(&server, engine, &session).await.broken, vec![]);
    let last = format!("{of_session} AND session_seq = (SELECT MAX(session_seq) FROM events {of_session})");
    let words = "a payload left after its erasure";
    server.store(&format!("UPDATE events SET payload = '{{\"change\":\"erased\"}}' {last}")).await;
    let broken = verify(&server, engine, &session).await.broken;
    assert!(broken.iter().any(|broken| broken.reason.contains(words)), "{broken:?}");
    // While the session has its name, its erasure is unfinished, and a payload may be left.
    server.store(&format!("UPDATE sessions SET external_id = '{THREAD}' {of_session}")).await;
    assert_eq!(verify(&server, engine, &session).await.broken, vec![]);
}

async fn verify(server: &TestServer, engine: Engine, session: &str) -> ostler_server::verify::Report {
    let mut config = server.config.clone();
    if engine == Engine::Sqlite {
        // A store in use has one owner; a copy has none.
        let (from, to) = (config.data_dir().unwrap(), tempfile::tempdir().unwrap().keep());
        for file in ["ostler.db", "ostler.db-wal"] {
            std::fs::copy(from.join(file), to.join(file)).unwrap();
        }
        config.server.data_dir = Some(to);
    }
    ostler_server::verify(&config, Some(session)).await.unwrap()
}

#[both_engines]
async fn an_erased_thread_is_unknown_in_every_dialect(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (runner, task, _) = lively(&server).await;
    let session =
        server.store(&format!("SELECT session_id FROM sessions WHERE external_id = '{THREAD}'")).await.remove(0);
    let run = runner.run_id.clone();
    erase(&server, THREAD).await;
    for path in [
        format!("/api/v1/agent/runs/{THREAD}/events?runId=run-1"),
        format!("/api/v1/sessions/{THREAD}"),
        format!("/api/v1/sessions/{session}"),
        format!("/api/v1/sessions/{session}/trace"),
        format!("/api/v1/sessions/{session}/output"),
        format!("/api/v1/sessions/{session}/storage"),
        format!("/api/v1/runs/{run}"),
        format!("/api/v1/runs/{run}/events"),
        format!("/api/v1/runs/{run}/result"),
        format!("/api/v1/runs/{run}/permissions"),
        format!("/api/v1/runs/{run}/runner-jobs"),
        format!("/api/v1/runs/{run}/commands/{task}"),
        format!("/api/v1/runs/{run}/commands/{task}/result"),
        format!("/api/v1/runs/{run}/commands/{task}/conversation"),
    ] {
        server.get(&path).await.refused(NotFound);
    }
    let cancel = server.request("POST", &format!("/api/v1/agent/runs/{THREAD}/cancel?runId=run-1"));
    server.send(cancel).await.refused_as(NotFound, "AGENT_SESSION_NOT_FOUND");
    server.post(&format!("/api/v1/runs/{run}/cancel"), &json!({})).await.refused(NotFound);
    server.post(&format!("/api/v1/commands/{task}/cancel"), &json!({})).await.refused(NotFound);
    server.patch(&format!("/api/v1/sessions/{THREAD}"), &json!({"title": "x"})).await.refused(NotFound);
    assert_eq!(server.get("/api/v1/sessions?state=all").await.ok()["sessions"], json!([]));
    assert_eq!(server.get("/api/v1/runs").await.ok()["runs"], json!([]));
    let history = server.get(&format!("/api/v1/agent/history?threadId={THREAD}")).await.with_status(200);
    assert_eq!((&history["threadId"], &history["messages"]), (&Value::Null, &json!([])));
}

#[both_engines]
async fn erasing_is_for_the_owner_and_idempotent(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (ada, eve) = (user(&server, "ada", &["local"]).await, user(&server, "eve", &["local"]).await);
    ada.say("run-1", "mine").await.with_status(202);
    let by = |caller: &Caller| caller.request("DELETE", &format!("/api/v1/agent/sessions/{THREAD}"));
    eve.send(by(&eve)).await.refused_as(Forbidden, "AGENT_FORBIDDEN");
    server.send(by(&server)).await.refused_as(Forbidden, "AGENT_FORBIDDEN");
    let made = server.get("/api/v1/sessions?state=all").await.ok()["sessions"].clone();
    assert_eq!(made.as_array().unwrap().len(), 1, "nothing was erased");
    erase(&ada, THREAD).await;
    erase(&ada, THREAD).await;
    erase(&ada, "650e8400-e29b-41d4-a716-446655440000").await;
    let bad = ada.request("DELETE", "/api/v1/agent/sessions/mine");
    ada.send(bad).await.refused_as(RunInputInvalid, "AGENT_SESSION_ID_INVALID");
    // A session of the manager dialect is no thread.
    let uuid = "750e8400-e29b-41d4-a716-446655440000";
    let body = json!({"tenantId": "local", "sessionId": uuid, "backendProfile": "scripted"});
    server.post("/api/v1/sessions", &body).await.with_status(201);
    let theirs = server.request("DELETE", &format!("/api/v1/agent/sessions/{uuid}"));
    server.send(theirs).await.refused(Forbidden);
}

#[both_engines]
async fn a_runner_at_work_cannot_write_after_erasing(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (runner, task, _) = lively(&server).await;
    // Appends go on while the thread is erased; each is whole before it, or refused.
    let writing = {
        let (runner, task) = (runner.clone(), task.clone());
        tokio::spawn(async move {
            for number in 0.. {
                let event = json!({"type": "custom", "commandId": task, "payload": {"name": SECRET, "value": number}});
                let answer = runner.try_append(None, json!([event])).await;
                if answer.status != 200 {
                    return answer.status;
                }
            }
            unreachable!()
        })
    };
    erase(&server, THREAD).await;
    assert_eq!(writing.await.unwrap(), 404);
    for (event_type, payload) in [
        ("assistant_message", json!({"messageId": "x", "text": SECRET})),
        ("terminal_status", json!({"status": "completed"})),
    ] {
        let event = json!({"type": event_type, "commandId": task, "payload": payload});
        runner.try_append(Some(99), json!([event])).await.refused(NotFound);
    }
    runner.try_end(&task, "completed").await.refused(NotFound);
    runner.try_ack(&task).await.refused(NotFound);
    runner.try_patch_lease(json!({})).await.refused(NotFound);
    assert_eq!(rows_with(&server, engine, SECRET).await, Vec::<String>::new());
}

#[both_engines]
async fn the_id_is_free_again_and_what_comes_knows_nothing_of_what_was(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    server.say("run-1", SECRET).await.with_status(202);
    server.received("run-1").await;
    erase(&server, THREAD).await;
    let again = server.say("run-1", "hello again").await.with_status(202);
    assert_eq!(again["created"], true);
    let received = server.received("run-1").await;
    assert_eq!(crate::run_input::runs::words(&received), "hello again");
    let history = server.get("/api/v1/agent/history").await.with_status(200);
    assert_eq!(history["messages"].as_array().unwrap().len(), 2);
    assert!(!history.to_string().contains(SECRET));
}

#[both_engines]
async fn erasing_that_was_cut_off_is_finished_by_the_next_server(engine: Engine) {
    let mut server = TestServer::with(engine, |setup| setup.config.sessions.gc_interval_ms = 20).await;
    lively(&server).await;
    // As a server leaves it that stops right after the mark.
    let marked = format!(
        "UPDATE sessions SET erased_at = {} WHERE external_id IS NOT NULL",
        server.clock.now().as_microsecond()
    );
    server.store(&marked).await;
    server.restart().await;
    eventually("the next server finishes it", async || {
        rows_with(&server, engine, SECRET).await.is_empty().then_some(())
    })
    .await;
    server.get(&format!("/api/v1/sessions/{THREAD}")).await.refused(NotFound);
}

#[both_engines]
async fn followers_of_a_turn_at_work_receive_its_end(engine: Engine) {
    let server = TestServer::start(engine).await;
    lively(&server).await;
    let following = {
        let caller = server.with_token(server.token());
        let path = format!("/api/v1/sessions/{THREAD}/trace");
        let request = caller.request("GET", &path).header("accept", "text/event-stream");
        let mut response = request.send().await.unwrap();
        tokio::spawn(async move {
            let mut text = String::new();
            while !text.contains("the session was erased") {
                text += &String::from_utf8_lossy(&response.chunk().await.unwrap().expect("the stream goes on"));
            }
        })
    };
    erase(&server, THREAD).await;
    following.await.unwrap();
}

#[both_engines]
async fn what_was_uploaded_after_erasing_is_for_the_next_thread(engine: Engine) {
    let mut server = TestServer::with(engine, |setup| setup.config.sessions.gc_interval_ms = 20).await;
    lively(&server).await;
    let marked = server.clock.now().as_microsecond();
    server.clock.advance_ms(1);
    // Another server has marked it and is still at it.
    let later = server.upload(THREAD, PNG).await.with_status(201);
    server.store(&format!("UPDATE sessions SET erased_at = {marked} WHERE external_id IS NOT NULL")).await;
    server.restart().await;
    eventually("it is finished", async || rows_with(&server, engine, SECRET).await.is_empty().then_some(())).await;
    assert_eq!(server.store("SELECT path FROM attachments").await, [id(&later, "path")]);
    assert_eq!(files(&server), 1);
    server.post("/api/v1/agent/runs", &with_picture("run-1", &id(&later, "url"))).await.with_status(202);
}

#[both_engines]
async fn storage_that_is_made_again_after_erasing_goes_with_the_next_sweep(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.sessions.gc_interval_ms = 20).await;
    lively(&server).await;
    let session =
        server.store(&format!("SELECT session_id FROM sessions WHERE external_id = '{THREAD}'")).await.remove(0);
    erase(&server, THREAD).await;
    // An agent that writes its last words late, or one of another server whose disk was not read.
    let storage = server.config.server.data_dir.clone().unwrap().join("sessions").join(session);
    std::fs::create_dir_all(&storage).unwrap();
    std::fs::write(storage.join("memory"), SECRET).unwrap();
    eventually("it goes", async || (!storage.exists()).then_some(())).await;
}
