//! Listing runs: newest first, by filters, in pages that hold every run exactly once.

use ostler_protocol::{FailureKind::*, Timestamp};
use serde_json::{Value, json};

use crate::harness::{Engine, TestServer, both_engines, id};

fn ids(page: &Value) -> Vec<String> {
    page["runs"].as_array().unwrap().iter().map(|run| id(run, "runId")).collect()
}

/// Every run the query gives, in pages of `limit`.
async fn walk(server: &TestServer, limit: usize, filters: &str) -> Vec<String> {
    let (mut all, mut cursor) = (vec![], String::new());
    loop {
        let page = server.get(&format!("/api/v1/runs?limit={limit}{filters}{cursor}")).await.ok();
        let runs = ids(&page);
        assert!(runs.len() <= limit);
        all.extend(runs);
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return all,
        }
    }
}

#[both_engines]
async fn pages_of_any_size_hold_every_run_once(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut created = vec![];
    for n in 0..9 {
        created.insert(0, server.create_run().await);
        // Some at the very same time.
        server.clock.advance_ms(n % 3);
    }
    let whole = walk(&server, 100, "").await;
    let sorted = |runs: &[String]| {
        let mut runs = runs.to_vec();
        runs.sort();
        runs
    };
    assert_eq!(sorted(&whole), sorted(&created));
    for limit in 1..=10 {
        assert_eq!(walk(&server, limit, "").await, whole, "pages of {limit}");
    }
    let page = server.get("/api/v1/runs").await.ok();
    let time = |run: &Value| -> Timestamp { id(run, "createdAt").parse().unwrap() };
    let times: Vec<_> = page["runs"].as_array().unwrap().iter().map(time).collect();
    assert!(times.is_sorted_by(|a, b| a >= b), "newest first: {times:?}");
}

#[both_engines]
async fn a_walk_is_not_disturbed_by_new_runs(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut created = vec![];
    for _ in 0..4 {
        created.insert(0, server.create_run().await);
        server.clock.advance_ms(1);
    }
    let first = server.get("/api/v1/runs?limit=2").await.ok();
    server.create_run().await;
    server.cancel_run(&created[0]).await;
    let cursor = id(&first, "nextCursor");
    let second = server.get(&format!("/api/v1/runs?limit=2&cursor={cursor}")).await.ok();
    assert_eq!([ids(&first), ids(&second)].concat(), created);
    assert_eq!(second["nextCursor"], Value::Null);
}

#[both_engines]
async fn filters_narrow_the_list(engine: Engine) {
    let server = TestServer::start(engine).await;
    let plain = server.create_run().await;
    server.clock.advance_ms(1);
    let named = server.create_run_with(|body| body["sessionRef"] = json!({"sessionId": "my session/1"})).await;
    server.clock.advance_ms(1);
    let theirs = server
        .create_run_with(|body| {
            body["tenantId"] = "unidesk".into();
            body["projectId"] = "pikasTech/unidesk".into();
        })
        .await;
    server.clock.advance_ms(1);
    let model = server.create_run_with(|body| body["backendProfile"] = "model".into()).await;
    server.cancel_run(&plain).await;
    server.claim(&named, "runner-a").await;
    let own_session = id(&server.run(&model).await, "sessionId");
    for (filters, expected) in [
        ("&tenantId=unidesk".to_owned(), vec![&theirs]),
        ("&tenantId=hwlab".to_owned(), vec![&model, &named, &plain]),
        ("&tenantId=nobody".to_owned(), vec![]),
        ("&projectId=pikasTech%2Funidesk".to_owned(), vec![&theirs]),
        ("&backendProfile=model".to_owned(), vec![&model]),
        ("&sessionId=my%20session%2F1".to_owned(), vec![&named]),
        (format!("&sessionId={own_session}"), vec![&model]),
        ("&status=cancelled".to_owned(), vec![&plain]),
        ("&status=claimed".to_owned(), vec![&named]),
        ("&status=pending".to_owned(), vec![&model, &theirs]),
        ("&status=pending&tenantId=hwlab".to_owned(), vec![&model]),
        ("&status=completed".to_owned(), vec![]),
    ] {
        let expected: Vec<String> = expected.into_iter().cloned().collect();
        assert_eq!(walk(&server, 1, &filters).await, expected, "{filters}");
        assert_eq!(walk(&server, 10, &filters).await, expected, "{filters}");
    }
}

#[both_engines]
async fn the_beginning_of_an_id_narrows_the_list(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut made = vec![];
    for _ in 0..3 {
        made.insert(0, server.create_run().await);
        server.clock.advance_ms(1);
    }
    assert_eq!(walk(&server, 10, "&idPrefix=run_").await, made);
    for (known, cut) in made.iter().zip([36, 35, 34]) {
        assert!(walk(&server, 10, &format!("&idPrefix={}", &known[..cut])).await.contains(known));
        assert!(walk(&server, 10, &format!("&idPrefix={}", &known[4..cut])).await.contains(known), "without its kind");
    }
    assert_eq!(walk(&server, 10, &format!("&idPrefix={}", made[0])).await, made[..1]);
    assert_eq!(walk(&server, 10, "&idPrefix=run_ffffffff").await, Vec::<String>::new());
    for bad in ["cmd_01", "run_zz", "RUN_01", "%25"] {
        server.get(&format!("/api/v1/runs?idPrefix={bad}")).await.refused_by(SchemaInvalid, "id-prefix");
    }
    let session = id(&server.run(&made[0]).await, "sessionId");
    let found = server.get(&format!("/api/v1/sessions?state=all&idPrefix={}", &session[..35])).await.ok();
    let found = found["sessions"].as_array().unwrap();
    assert!(found.iter().any(|one| id(one, "sessionId") == session), "{found:?}");
    assert!(found.iter().all(|one| id(one, "sessionId").starts_with(&session[..35])), "{found:?}");
}

#[both_engines]
async fn a_cursor_of_another_query_is_refused(engine: Engine) {
    let server = TestServer::start(engine).await;
    for _ in 0..3 {
        server.create_run().await;
    }
    let page = server.get("/api/v1/runs?limit=1&tenantId=hwlab").await.ok();
    let cursor = id(&page, "nextCursor");
    // Its page size may change, its filters may not.
    server.get(&format!("/api/v1/runs?limit=2&tenantId=hwlab&cursor={cursor}")).await.with_status(200);
    for filters in ["", "&tenantId=unidesk", "&tenantId=hwlab&status=pending", "&tenantId=hwlab&projectId=x"] {
        let answer = server.get(&format!("/api/v1/runs?limit=1{filters}&cursor={cursor}")).await;
        answer.refused_by(SchemaInvalid, "cursor-unknown");
    }
    let cut = &cursor[..cursor.len() - 1];
    let changed = cursor.replace('3', "4");
    let long = "6".repeat(4_000);
    for broken in [cut, &changed, "00", "zz", &long] {
        let answer = server.get(&format!("/api/v1/runs?limit=1&tenantId=hwlab&cursor={broken}")).await;
        answer.refused_by(SchemaInvalid, "cursor-unknown");
    }
}

/// Every state that a run can be in, each brought about by what leads to it.
#[both_engines]
async fn a_run_is_listed_by_the_state_of_its_latest_turn(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut expected: Vec<(String, &str)> = vec![];
    expected.push((server.create_run().await, "waiting"));
    expected.push((server.start("no runner yet").await.0, "waiting"));
    for end in ["completed", "failed", "blocked", "cancelled"] {
        let (run_id, command_id) = server.start(end).await;
        let runner = server.claim(&run_id, "r1").await;
        runner.ack(&command_id).await;
        runner.end(&command_id, end).await;
        // The run itself waits for another turn, claimed by its runner.
        assert_eq!(server.run(&run_id).await["status"], "claimed");
        expected.push((run_id, end));
    }
    // Its runner has not reported anything yet.
    let (run_id, _) = server.start("is claimed").await;
    server.claim(&run_id, "r1").await;
    assert_eq!(server.run(&run_id).await["status"], "claimed");
    expected.push((run_id, "running"));
    let (run_id, command_id) = server.start("runs").await;
    let runner = server.claim(&run_id, "r1").await;
    runner.ack(&command_id).await;
    runner.say(&command_id, "working").await;
    expected.push((run_id, "running"));
    let (run_id, command_id) = server.start("asks").await;
    let runner = server.claim(&run_id, "r1").await;
    runner.ack(&command_id).await;
    runner.ask(&command_id, &format!("prm_{:032x}", 1), &"ab".repeat(32)).await;
    expected.push((run_id.clone(), "waiting"));
    assert_eq!(server.run(&run_id).await["openPermissions"], 1);
    // A turn stays completed if its run is cancelled later.
    let (run_id, command_id) = server.start("ends, then its run is cancelled").await;
    let runner = server.claim(&run_id, "r1").await;
    runner.ack(&command_id).await;
    runner.end(&command_id, "completed").await;
    runner.release().await;
    assert_eq!(server.cancel_run(&run_id).await["status"], "cancelled");
    expected.push((run_id, "completed"));
    let cancelled = server.create_run().await;
    server.cancel_run(&cancelled).await;
    expected.push((cancelled, "cancelled"));

    for (run_id, state) in &expected {
        assert_eq!(server.run(run_id).await["state"], *state, "{run_id}");
        assert_eq!(server.get(&format!("/api/v1/runs/{run_id}/result")).await.ok()["state"], *state, "{run_id}");
    }
    for states in ["waiting", "running", "completed", "failed", "blocked", "cancelled", "failed,blocked,failed"] {
        let mut found = walk(&server, 2, &format!("&state={states}")).await;
        let wanted = expected.iter().filter(|(_, state)| states.split(',').any(|word| word == *state));
        let mut wanted: Vec<_> = wanted.map(|(id, _)| id.clone()).collect();
        found.sort();
        wanted.sort();
        assert_eq!(found, wanted, "{states}");
    }
    server.get("/api/v1/runs?state=failed,").await.refused_by(SchemaInvalid, "run-status");
    server.get("/api/v1/runs?state=pending").await.refused_by(SchemaInvalid, "run-status");
    server.get("/api/v1/runs?state=").await.refused_by(SchemaInvalid, "run-status");
    // The run's own status is a filter of its own.
    assert_eq!(walk(&server, 10, "&status=running").await.len(), 2);
}

#[both_engines]
async fn a_run_names_the_run_that_it_repeats(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.token("other", "client", &["unidesk"])).await;
    let first = server.create_run().await;
    assert_eq!(server.run(&first).await["retryOf"], Value::Null);
    let second = server.create_run_with(|body| body["retryOf"] = json!(first)).await;
    assert_eq!(server.run(&second).await["retryOf"], json!(first));
    let result = server.get(&format!("/api/v1/runs/{second}/result")).await.ok();
    assert_eq!(result["retryOf"], json!(first));
    let page = server.get("/api/v1/runs?limit=2").await.ok();
    let listed = page["runs"].as_array().unwrap().iter().find(|run| run["runId"] == json!(second)).unwrap();
    assert_eq!(listed["retryOf"], json!(first));
    // A run that the caller cannot read is unknown.
    let mut body = crate::harness::run_body();
    body["tenantId"] = json!("unidesk");
    body["retryOf"] = json!(first);
    server.caller("other").post("/api/v1/runs", &body).await.refused(NotFound);
    body["retryOf"] = json!(format!("run_{:032x}", 5));
    server.post("/api/v1/runs", &body).await.refused(NotFound);
}
