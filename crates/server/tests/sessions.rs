//! Sessions: made or joined, listed by what runs and what a reader has not read, paged, followed over several runs, and
//! kept apart by tenant.

mod events;
mod facts;
mod metadata;
mod reach;
mod readers;

use ostler_protocol::FailureKind::*;
use serde_json::{Value, json};

use crate::harness::{Answer, Caller, Engine, TestServer, both_engines, id};

fn body(session_id: &str) -> Value {
    json!({"tenantId": "hwlab", "sessionId": session_id, "backendProfile": "scripted"})
}

/// The session's path, whatever its id is written with.
fn at(session_id: &str, rest: &str) -> String {
    let letter = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    format!("/api/v1/sessions/{}{rest}", session_id.bytes().map(letter).collect::<String>())
}

async fn make(caller: &Caller, session_id: &str) -> Value {
    caller.post("/api/v1/sessions", &body(session_id)).await.with_status(201)
}

async fn show(caller: &Caller, session_id: &str) -> Value {
    caller.get(&at(session_id, "")).await.with_status(200)
}

async fn read(caller: &Caller, session_id: &str, body: Value) -> Answer {
    caller.post(&at(session_id, "/read"), &body).await
}

async fn cancel(caller: &Caller, session_id: &str) -> Value {
    caller.post(&at(session_id, "/control"), &json!({"action": "cancel"})).await.with_status(200)
}

/// A run in the session, without a command.
async fn join(caller: &Caller, session_id: &str) -> String {
    caller.create_run_with(|run| run["sessionRef"] = json!({"sessionId": session_id})).await
}

/// A turn in the session that runs from its beginning to its end, and its run's end.
async fn play(caller: &Caller, session_id: &str) -> (String, String) {
    let run_id = join(caller, session_id).await;
    let command_id = caller.turn(&run_id, "hi").await;
    let runner = caller.claim(&run_id, "runner-a").await;
    runner.say(&command_id, "done").await;
    runner.end(&command_id, "completed").await;
    runner.try_end_run("completed").await.with_status(200);
    (run_id, command_id)
}

fn ids(page: &Value) -> Vec<String> {
    page["sessions"].as_array().unwrap().iter().map(|session| id(session, "sessionId")).collect()
}

async fn list(caller: &Caller, query: &str) -> Vec<String> {
    ids(&caller.get(&format!("/api/v1/sessions?{query}")).await.with_status(200))
}

async fn walk(caller: &Caller, limit: usize, query: &str) -> Vec<String> {
    let (mut all, mut cursor) = (vec![], String::new());
    loop {
        let page = caller.get(&format!("/api/v1/sessions?limit={limit}&{query}{cursor}")).await.ok();
        assert!(ids(&page).len() <= limit);
        all.extend(ids(&page));
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return all,
        }
    }
}

#[both_engines]
async fn a_session_is_made_once(engine: Engine) {
    let server = TestServer::start(engine).await;
    let made = make(&server, "mine").await;
    for (field, value) in [
        ("sessionId", json!("mine")),
        ("tenantId", json!("hwlab")),
        ("backendProfile", json!("scripted")),
        ("executionState", json!("idle")),
        ("version", json!(0)),
        ("unread", json!(false)),
        ("lastSeq", json!(1)),
        ("activeRunId", Value::Null),
        ("liveness", Value::Null),
    ] {
        assert_eq!(made[field], value, "{field}");
    }
    server.clock.advance_ms(5);
    assert_eq!(server.post("/api/v1/sessions", &body("mine")).await.with_status(200), made);
    assert_eq!(show(&server, "mine").await, made);
    let (run_id, _) = play(&server, "mine").await;
    let again = server.post("/api/v1/sessions", &body("mine")).await.with_status(200);
    assert_eq!((&again["lastRunId"], &again["createdAt"]), (&json!(run_id), &made["createdAt"]));
    assert_eq!(again, show(&server, "mine").await);
    // Without an id each is a new one, under an id of ours.
    let nameless = json!({"tenantId": "hwlab", "backendProfile": "scripted"});
    let first = id(&server.post("/api/v1/sessions", &nameless).await.with_status(201), "sessionId");
    let second = id(&server.post("/api/v1/sessions", &nameless).await.with_status(201), "sessionId");
    assert!(first.starts_with("ses_") && second.starts_with("ses_") && first != second);
    assert_eq!(show(&server, &first).await["sessionId"], first.as_str());
    // Many at once make one.
    let calls = (0..8).map(|_| {
        let caller = (*server).clone();
        tokio::spawn(async move { caller.post("/api/v1/sessions", &body("raced")).await.status })
    });
    let mut statuses = vec![];
    for call in calls.collect::<Vec<_>>() {
        statuses.push(call.await.unwrap());
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 200, 200, 201]);
}

#[both_engines]
async fn what_cannot_be_made_is_refused(engine: Engine) {
    let server = TestServer::start(engine).await;
    let long = "x".repeat(2_000);
    for (field, value, rule) in [
        ("sessionId", json!("ses_mine"), "session-id-reserved"),
        ("sessionId", json!(""), "name-shape"),
        ("sessionId", json!(" mine"), "name-shape"),
        ("sessionId", json!("mi\nne"), "name-shape"),
        ("sessionId", json!(long), "name-shape"),
        ("tenantId", Value::Null, "tenant-id-required"),
        ("backendProfile", Value::Null, "backend-profile-required"),
        ("backendProfile", json!("Not A Slug"), "slug-shape"),
    ] {
        let mut wrong = body("mine");
        wrong[field] = value;
        server.post("/api/v1/sessions", &wrong).await.refused_by(SchemaInvalid, rule);
    }
    let mut stranger = body("mine");
    stranger["tenantId"] = "nobody".into();
    server.post("/api/v1/sessions", &stranger).await.refused_by(TenantPolicyDenied, "tenant-allow-list");
    assert_eq!(list(&server, "state=all").await, Vec::<String>::new());
    server.get(&at("mine", "")).await.refused(NotFound);
}

#[both_engines]
async fn a_run_joins_the_session_it_names(engine: Engine) {
    let server = TestServer::start(engine).await;
    make(&server, "mine").await;
    let run_id = join(&server, "mine").await;
    assert_eq!(server.run(&run_id).await["sessionId"], "mine");
    let idle = show(&server, "mine").await;
    assert_eq!((&idle["executionState"], &idle["lastRunId"]), (&json!("idle"), &json!(run_id)));
    let command_id = server.turn(&run_id, "hi").await;
    let running = show(&server, "mine").await;
    assert_eq!(running["executionState"], "running");
    assert_eq!((&running["activeRunId"], &running["activeCommandId"]), (&json!(run_id), &json!(command_id)));
    assert_eq!(running["lastSeq"], 1 + server.events(&run_id).await.len(), "and that it was made");
    assert_eq!(running["chainHead"]["sessionSeq"], running["lastSeq"]);
    let mut second = crate::harness::run_body();
    second["sessionRef"] = json!({"sessionId": "mine"});
    second["command"] = json!({"type": "turn", "payload": {"prompt": "x"}});
    server.post("/api/v1/runs", &second).await.refused(SessionBusy);
    cancel(&server, "mine").await;
    server.post("/api/v1/runs", &second).await.with_status(201);
    // An unused id makes its session; one of ours is joined like any other.
    join(&server, "new").await;
    assert_eq!(show(&server, "new").await["tenantId"], "hwlab");
    server.post("/api/v1/sessions", &body("new")).await.with_status(200);
    let first = server.create_run().await;
    let ours = id(&server.run(&first).await, "sessionId");
    let joined = join(&server, &ours).await;
    assert_eq!(server.run(&joined).await["sessionId"], ours.as_str());
    assert_eq!(show(&server, &ours).await["lastRunId"], joined.as_str());
}

#[both_engines]
async fn the_default_list_is_what_runs_and_what_the_reader_has_not_read(engine: Engine) {
    let server = TestServer::start(engine).await;
    for name in ["quiet", "running", "ended"] {
        make(&server, name).await;
        server.clock.advance_ms(1);
    }
    let run_id = join(&server, "running").await;
    server.turn(&run_id, "hi").await;
    play(&server, "ended").await;
    let everything = ["ended", "running", "quiet"];
    assert_eq!(list(&server, "").await, ["ended", "running"]);
    assert_eq!(list(&server, "state=default&readerId=console").await, ["ended", "running"]);
    assert_eq!(list(&server, "state=all").await, everything);
    // Read by one reader: hidden from that reader only.
    let marked = read(&server, "ended", json!({"readerId": "console"})).await.with_status(200);
    assert_eq!((&marked["unread"], &marked["readVersion"]), (&json!(false), &marked["version"]));
    assert_eq!(list(&server, "readerId=console").await, ["running"]);
    assert_eq!(list(&server, "").await, ["ended", "running"]);
    assert_eq!(list(&server, "readerId=cli").await, ["ended", "running"]);
    assert_eq!(list(&server, "state=all&readerId=console").await, everything);
    // A caller that names no reader is `cli`, and needs no body.
    server.send(server.request("POST", &at("ended", "/read"))).await.with_status(200);
    assert_eq!(list(&server, "readerId=cli").await, ["running"]);
    assert_eq!(list(&server, "readerId=third").await, ["ended", "running"]);
    // What runs is shown even to those who have read it.
    read(&server, "running", json!({})).await.with_status(200);
    assert_eq!(list(&server, "").await, ["running"]);
    let page = server.get("/api/v1/sessions?state=all&readerId=third").await.ok();
    assert_eq!((&page["sessions"][0]["unread"], &page["sessions"][0]["readVersion"]), (&json!(true), &json!(0)));
}

#[both_engines]
async fn every_end_raises_the_version_and_makes_it_unread_again(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = join(&server, "mine").await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.say(&command_id, "still at it").await;
    assert_eq!(show(&server, "mine").await["version"], 0);
    let mut version = 0;
    let mut ended = async || {
        let now = show(&server, "mine").await;
        version += 1;
        assert_eq!((&now["version"], &now["unread"]), (&json!(version), &json!(true)));
        assert_eq!(now["executionState"], "terminal");
        assert_eq!(list(&server, "").await, ["mine"]);
        read(&server, "mine", json!({})).await.with_status(200);
        assert_eq!(show(&server, "mine").await["unread"], false);
        assert_eq!(list(&server, "").await, Vec::<String>::new());
    };
    runner.end(&command_id, "completed").await;
    ended().await;
    // The same end again is no news.
    runner.end(&command_id, "completed").await;
    assert_eq!(list(&server, "").await, Vec::<String>::new());
    let second = server.turn(&run_id, "more").await;
    assert_eq!(list(&server, "").await, ["mine"]);
    runner.end(&second, "failed").await;
    ended().await;
    runner.try_end_run("completed").await.with_status(200);
    ended().await;
}

#[both_engines]
async fn a_mark_never_goes_back(engine: Engine) {
    let server = TestServer::start(engine).await;
    play(&server, "mine").await;
    assert_eq!(show(&server, "mine").await["version"], 2);
    for (version, seen) in [(0, 0), (1, 1), (2, 2), (1, 2), (0, 2)] {
        let marked = read(&server, "mine", json!({"version": version})).await.with_status(200);
        assert_eq!((&marked["readVersion"], &marked["unread"]), (&json!(seen), &json!(seen < 2)), "{version}");
    }
    for never in [3, -1, i64::MAX, i64::MIN] {
        read(&server, "mine", json!({"version": never})).await.refused_by(SchemaInvalid, "read-version");
    }
    for reader in ["", " x", "a\u{0}b"] {
        read(&server, "mine", json!({"readerId": reader})).await.refused_by(SchemaInvalid, "name-shape");
    }
    assert_eq!(show(&server, "mine").await["readVersion"], 2);
}

#[both_engines]
async fn pages_of_any_size_hold_every_session_once(engine: Engine) {
    let server = TestServer::start(engine).await;
    for n in 0..7 {
        make(&server, &format!("s{n}")).await;
        // Some at the very same time.
        server.clock.advance_ms(n % 3);
    }
    for name in ["s1", "s4", "s6"] {
        let run_id = join(&server, name).await;
        server.turn(&run_id, "hi").await;
    }
    for (query, expected) in [("state=all", 7), ("", 3), ("state=all&tenantId=hwlab", 7)] {
        let whole = walk(&server, 100, query).await;
        let mut sorted = whole.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!((whole.len(), sorted.len()), (expected, expected), "{query}");
        for limit in 1..=expected + 1 {
            assert_eq!(walk(&server, limit, query).await, whole, "{query}, pages of {limit}");
        }
    }
    // A session made during the walk does not disturb it.
    let whole = walk(&server, 100, "state=all").await;
    let first = server.get("/api/v1/sessions?state=all&limit=3").await.ok();
    server.clock.advance_ms(1);
    make(&server, "late").await;
    let path = format!("/api/v1/sessions?state=all&limit=100&cursor={}", id(&first, "nextCursor"));
    assert_eq!([ids(&first), ids(&server.get(&path).await.ok())].concat(), whole);
    assert_eq!(walk(&server, 2, "state=all").await[0], "late");
}

#[both_engines]
async fn a_cursor_of_another_query_or_reader_is_refused(engine: Engine) {
    let server = TestServer::with(engine, reach::tokens).await;
    for name in ["a", "b", "c"] {
        make(&server, name).await;
    }
    let query = "state=all&tenantId=hwlab&readerId=me";
    let cursor = id(&server.get(&format!("/api/v1/sessions?limit=1&{query}")).await.ok(), "nextCursor");
    assert_eq!(list(&server, &format!("limit=2&{query}&cursor={cursor}")).await.len(), 2);
    for other in [
        "tenantId=hwlab&readerId=me",
        "state=all&readerId=me",
        "state=all&tenantId=unidesk&readerId=me",
        "state=all&tenantId=hwlab&readerId=you",
        "state=all&tenantId=hwlab",
        "state=all&tenantId=hwlab&readerId=me&backendProfile=model",
    ] {
        let answer = server.get(&format!("/api/v1/sessions?limit=1&{other}&cursor={cursor}")).await;
        answer.refused_by(SchemaInvalid, "cursor-unknown");
    }
    server.create_run().await;
    server.create_run().await;
    let of_runs = id(&server.get("/api/v1/runs?limit=1").await.ok(), "nextCursor");
    let answer = server.get(&format!("/api/v1/sessions?cursor={of_runs}")).await;
    answer.refused_by(SchemaInvalid, "cursor-unknown");
    // The operator's view of everything is not a service's.
    let all = id(&server.get("/api/v1/sessions?limit=1&state=all").await.ok(), "nextCursor");
    let stolen = server.caller("hwlab").get(&format!("/api/v1/sessions?state=all&cursor={all}")).await;
    stolen.refused_by(SchemaInvalid, "cursor-unknown");
}

#[both_engines]
async fn filters_narrow_the_list(engine: Engine) {
    let server = TestServer::start(engine).await;
    for (name, tenant, profile) in
        [("a", "hwlab", "scripted"), ("b", "hwlab", "model"), ("c", "unidesk", "scripted"), ("d", "unidesk", "model")]
    {
        let made = json!({"tenantId": tenant, "sessionId": name, "backendProfile": profile});
        server.post("/api/v1/sessions", &made).await.with_status(201);
        server.clock.advance_ms(1);
    }
    let run_id = join(&server, "a").await;
    server.turn(&run_id, "hi").await;
    for (query, expected) in [
        ("state=all&tenantId=hwlab", vec!["b", "a"]),
        ("state=all&tenantId=unidesk", vec!["d", "c"]),
        ("state=all&backendProfile=model", vec!["d", "b"]),
        ("state=all&tenantId=unidesk&backendProfile=scripted", vec!["c"]),
        ("state=all&tenantId=nobody", vec![]),
        ("state=all&backendProfile=none", vec![]),
        ("tenantId=hwlab", vec!["a"]),
        ("backendProfile=model", vec![]),
    ] {
        assert_eq!(walk(&server, 100, query).await, expected, "{query}");
        assert_eq!(walk(&server, 1, query).await, expected, "{query}");
    }
}

#[both_engines]
async fn a_session_has_the_state_of_its_run(engine: Engine) {
    let server = TestServer::start(engine).await;
    make(&server, "mine").await;
    let run_id = join(&server, "mine").await;
    let mut seen = vec![];
    let mut same = async || {
        let session = show(&server, "mine").await;
        let result = server.get(&format!("/api/v1/runs/{run_id}/result")).await.ok();
        assert_eq!(session["liveness"], result["liveness"]);
        assert_eq!(session["supervisor"], result["supervisor"]);
        assert!(!session["supervisor"]["suggestedAction"].as_str().unwrap().is_empty());
        seen.push(id(&session["liveness"], "phase"));
    };
    same().await;
    let command_id = server.turn(&run_id, "hi").await;
    same().await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    runner.tell(&command_id, "backend_status", json!({"phase": "turn-started"})).await;
    same().await;
    let call = json!({"toolCallId": "t", "name": "ls", "status": "started"});
    runner.tell(&command_id, "tool_call", call).await;
    same().await;
    runner.end(&command_id, "completed").await;
    runner.try_end_run("completed").await.with_status(200);
    same().await;
    assert_eq!(seen, ["idle", "waiting-runner", "waiting-model", "waiting-tool", "terminal"]);
    // Lists are light.
    let page = server.get("/api/v1/sessions").await.ok();
    assert_eq!((&page["sessions"][0]["liveness"], &page["sessions"][0]["supervisor"]), (&Value::Null, &Value::Null));
}

#[both_engines]
async fn a_cancel_ends_what_is_active_and_else_does_nothing(engine: Engine) {
    let server = TestServer::start(engine).await;
    let made = make(&server, "mine").await;
    assert_eq!(cancel(&server, "mine").await, made);
    let run_id = join(&server, "mine").await;
    assert_eq!(cancel(&server, "mine").await["version"], 0);
    // A command that waits is ended at once, and its run can go on.
    let command_id = server.turn(&run_id, "hi").await;
    let reason = json!({"action": "cancel", "reason": "enough"});
    let cancelled = server.post(&at("mine", "/control"), &reason).await.with_status(200);
    assert_eq!((&cancelled["executionState"], &cancelled["activeCommandId"]), (&json!("terminal"), &Value::Null));
    assert_eq!(server.command(&run_id, &command_id).await["state"], "cancelled");
    assert_eq!(server.run(&run_id).await["status"], "pending");
    assert_eq!(cancel(&server, "mine").await, show(&server, "mine").await);
    assert_eq!(show(&server, "mine").await["version"], 1);
    // The runner of one that runs is notified.
    let second = server.turn(&run_id, "more").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&second).await;
    assert_eq!(cancel(&server, "mine").await["executionState"], "running");
    assert_eq!(runner.poll("afterSeq=2").await["cancelRequested"], json!([second]));
    runner.end(&second, "cancelled").await;
    assert_eq!(server.run(&run_id).await["cancelRequestedAt"], Value::Null);
    // A run that is held but does nothing is the active run.
    cancel(&server, "mine").await;
    assert_ne!(server.run(&run_id).await["cancelRequestedAt"], Value::Null);
    let before = server.events(&run_id).await;
    for action in ["", "Cancel", "pause", "delete"] {
        let asked = server.post(&at("mine", "/control"), &json!({"action": action})).await;
        asked.refused_by(SchemaInvalid, "session-action");
    }
    server.post(&at("nobody", "/control"), &json!({"action": "cancel"})).await.refused(NotFound);
    assert_eq!(server.events(&run_id).await, before);
}

#[both_engines]
async fn the_state_of_the_latest_run_is_shown_and_filters_whole_pages(engine: Engine) {
    let server = TestServer::start(engine).await;
    assert_eq!(make(&server, "empty").await["state"], "waiting", "for its first run");
    let mut expected = vec![("empty".to_owned(), "waiting")];
    for n in 0..9 {
        server.clock.advance_ms(1);
        let (name, state) = (format!("s{n}"), ["completed", "failed", "blocked"][n % 3]);
        let run_id = join(&server, &name).await;
        let command_id = server.turn(&run_id, "hi").await;
        let runner = server.claim(&run_id, "runner-a").await;
        runner.ack(&command_id).await;
        runner.end(&command_id, state).await;
        runner.release().await;
        expected.push((name, state));
    }
    for (name, state) in [("w", "waiting"), ("r", "running"), ("p", "waiting"), ("c", "cancelled")] {
        server.clock.advance_ms(1);
        let run_id = join(&server, name).await;
        let command_id = server.turn(&run_id, "hi").await;
        match name {
            "w" => {}
            "c" => drop(server.cancel_run(&run_id).await),
            _ => {
                let runner = server.claim(&run_id, "runner-a").await;
                runner.ack(&command_id).await;
                runner.say(&command_id, "…").await;
                if name == "p" {
                    runner.ask(&command_id, &format!("prm_{:032x}", 7), &"ab".repeat(32)).await;
                }
            }
        }
        expected.push((name.to_owned(), state));
    }
    for (name, state) in &expected {
        assert_eq!(show(&server, name).await["state"], *state, "{name}");
    }
    let page = server.get("/api/v1/sessions?state=all").await.ok();
    for session in page["sessions"].as_array().unwrap() {
        let found = expected.iter().find(|(name, _)| session["sessionId"] == name.as_str());
        assert_eq!(session["state"], found.unwrap().1, "{session}");
    }
    for state in ["waiting", "running", "completed", "failed", "blocked", "cancelled", "failed,waiting"] {
        let wanted = expected.iter().rev().filter(|(_, of)| state.split(',').any(|word| word == *of));
        let wanted: Vec<_> = wanted.map(|(name, _)| name.clone()).collect();
        assert_eq!(walk(&server, 2, &format!("state={state}")).await, wanted, "newest first: {state}");
    }
    // A session that was closed before its first run waits for nothing.
    server.post(&at("empty", "/control"), &json!({"action": "close"})).await.ok();
    assert_eq!(show(&server, "empty").await["state"], Value::Null);
    assert!(!walk(&server, 2, "state=waiting").await.contains(&"empty".to_owned()));
    // A cursor belongs to its filter.
    let first = server.get("/api/v1/sessions?state=failed&limit=1").await.ok();
    let cursor = first["nextCursor"].as_str().unwrap();
    server.get(&format!("/api/v1/sessions?state=blocked&limit=1&cursor={cursor}")).await.refused(SchemaInvalid);
    server.get("/api/v1/sessions?state=pending").await.refused_by(SchemaInvalid, "session-state");
}
