//! Labels: set when a run or session is created, changed at any time, and what lists are narrowed to.

use ostler_protocol::{FailureKind::*, limits::LABELS_MAX};
use serde_json::{Value, json};

use crate::harness::{Caller, Engine, TestServer, both_engines, id, run_body};

async fn labelled(server: &Caller, labels: Value) -> String {
    server.create_run_with(|run| run["labels"] = labels).await
}

async fn found(caller: &Caller, query: &str) -> Vec<String> {
    let page = caller.get(&format!("/api/v1/runs?{query}")).await.ok();
    page["runs"].as_array().unwrap().iter().map(|run| id(run, "runId")).collect()
}

#[both_engines]
async fn a_run_has_the_labels_that_it_was_created_with(engine: Engine) {
    let server = TestServer::start(engine).await;
    let labels = json!({"team": "search", "a.b/c-d_e": "ü = 1", "empty": ""});
    let run_id = labelled(&server, labels.clone()).await;
    assert_eq!(server.run(&run_id).await["labels"], labels);
    assert_eq!(server.run(&server.create_run().await).await["labels"], json!({}));
    // They are part of the request: the same key with others is another request.
    let body = |team: &str| {
        let mut body = run_body();
        (body["labels"], body["idempotencyKey"]) = (json!({"team": team}), json!("once"));
        body
    };
    let first = server.post("/api/v1/runs", &body("search")).await.with_status(201);
    assert_eq!(server.post("/api/v1/runs", &body("search")).await.with_status(200)["runId"], first["runId"]);
    server.post("/api/v1/runs", &body("ads")).await.refused_by(IdempotencyConflict, "payload-hash");
}

#[both_engines]
async fn labels_out_of_their_bounds_are_rejected_and_change_nothing(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = labelled(&server, json!({"team": "search"})).await;
    let path = format!("/api/v1/runs/{run_id}");
    let session = format!("/api/v1/sessions/{}", id(&server.run(&run_id).await, "sessionId"));
    let wrong = [
        (json!({"Team": "x"}), "label-key"),
        (json!({"": "x"}), "label-key"),
        (json!({"k".repeat(64): "x"}), "label-key"),
        (json!({"team": "a,b"}), "label-value"),
        (json!({"team": "a\nb"}), "label-value"),
        (json!({"team": "v".repeat(129)}), "label-value"),
        ((0..=2 * LABELS_MAX).map(|n| (format!("k{n}"), json!(""))).collect(), "labels-count"),
    ];
    for (labels, rule) in wrong {
        let mut body = run_body();
        body["labels"] = labels.clone();
        server.send_text("POST", "/api/v1/runs", body.to_string()).await.refused_by(SchemaInvalid, rule);
        let patch = json!({"labels": labels}).to_string();
        server.send_text("PATCH", &path, patch.clone()).await.refused_by(SchemaInvalid, rule);
        server.send_text("PATCH", &session, patch).await.refused_by(SchemaInvalid, rule);
    }
    // The schema of the body finds the same problem, which is not listed again.
    for labels in [json!({"Team": "x"}), json!({"team": "a,b"})] {
        let answer = server.send_text("PATCH", &path, json!({"labels": labels}).to_string()).await;
        assert_eq!(answer.body["details"]["problems"], Value::Null, "{}", answer.text);
    }
    server.send_text("PATCH", &path, "{}").await.refused_by(SchemaInvalid, "labels-required");
    server.send_text("PATCH", &session, "{}").await.refused_by(SchemaInvalid, "title-required");
    // With one that it has there are as many as there may be; one more is too many.
    let patch = |count: usize| json!({"labels": (0..count).map(|n| (format!("k{n}"), json!(""))).collect::<Value>()});
    server.patch(&path, &patch(LABELS_MAX)).await.refused_by(SchemaInvalid, "labels-count");
    assert_eq!(server.run(&run_id).await["labels"], json!({"team": "search"}));
    server.patch(&path, &patch(LABELS_MAX - 1)).await.with_status(200);
}

#[both_engines]
async fn labels_are_changed_key_by_key_also_after_the_end(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = labelled(&server, json!({"team": "search", "old": "1"})).await;
    server.cancel_run(&run_id).await;
    let path = format!("/api/v1/runs/{run_id}");
    let before = server.run(&run_id).await;
    let changed = server.patch(&path, &json!({"labels": {"verdict": "good", "old": null}})).await.with_status(200);
    assert_eq!(changed["labels"], json!({"team": "search", "verdict": "good"}));
    assert_eq!((&changed["lastSeq"], &changed["terminal"]), (&before["lastSeq"], &before["terminal"]));
    // The change is a fact of the session; the same again is none.
    server.patch(&path, &json!({"labels": {"verdict": "good", "old": null}})).await.with_status(200);
    let session = format!("/api/v1/sessions/{}", id(&changed, "sessionId"));
    let trace = server.get(&format!("{session}/trace")).await.ok();
    let facts: Vec<_> = trace["events"].as_array().unwrap().iter().filter(|e| e["type"] == "session").collect();
    assert_eq!(facts.len(), 1, "{facts:?}");
    assert_eq!(facts[0]["payload"]["change"], "run-labelled");
    assert_eq!(facts[0]["payload"]["labels"], changed["labels"]);
    // A title and labels are changed together or not at all.
    let both = json!({"title": "Both", "labels": {"team": "ads"}});
    let session_view = server.patch(&session, &both).await.with_status(200);
    assert_eq!((&session_view["title"], &session_view["labels"]), (&json!("Both"), &json!({"team": "ads"})));
    server.post(&format!("{session}/control"), &json!({"action": "close"})).await.with_status(200);
    let late = json!({"title": "Late", "labels": {"team": "late"}});
    server.patch(&session, &late).await.refused(StateConflict);
    let closed = server.patch(&session, &json!({"labels": {"closed": "yes"}})).await.with_status(200);
    assert_eq!(closed["labels"], json!({"team": "ads", "closed": "yes"}));
}

#[both_engines]
async fn lists_are_narrowed_to_labels(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut runs = vec![];
    for (team, stage) in [("search", "dev"), ("search", "live"), ("ads", "live")] {
        runs.push(labelled(&server, json!({"team": team, "stage": stage, "odd": "a=b%'\"\\"})).await);
        server.clock.advance_ms(1);
    }
    server.create_run().await;
    assert_eq!(found(&server, "label=team=search").await, [runs[1].clone(), runs[0].clone()]);
    assert_eq!(found(&server, "label=team=search,stage=live").await, [runs[1].clone()]);
    assert_eq!(found(&server, "label=odd=a%3Db%25%27%22%5C").await.len(), 3);
    assert_eq!(found(&server, "label=team=none").await, [""; 0]);
    assert_eq!(found(&server, "label=stage=live&status=pending&sort=tokens").await.len(), 2);
    server.patch(&format!("/api/v1/runs/{}", runs[1]), &json!({"labels": {"team": "ads"}})).await.with_status(200);
    assert_eq!(found(&server, "label=team=search").await, [runs[0].clone()]);
    assert_eq!(found(&server, "label=team=ads").await, [runs[2].clone(), runs[1].clone()]);
    server.get("/api/v1/runs?label=team").await.refused_by(SchemaInvalid, "label-filter");
    server.get("/api/v1/sessions?label=team").await.refused_by(SchemaInvalid, "label-filter");
    // A cursor belongs to its labels.
    let page = server.get("/api/v1/runs?label=stage=live&limit=1").await.ok();
    let cursor = id(&page, "nextCursor");
    let rest = format!("label=stage=live&limit=1&cursor={cursor}");
    assert_eq!(found(&server, &rest).await, [runs[1].clone()]);
    for other in ["label=stage=dev&limit=1", "limit=1", "label=stage=live&sort=cost&limit=1"] {
        let path = format!("/api/v1/runs?{other}&cursor={cursor}");
        server.get(&path).await.refused_by(SchemaInvalid, "cursor-unknown");
    }
    let session = json!({"tenantId": "hwlab", "sessionId": "mine", "backendProfile": "scripted",
        "labels": {"team": "search"}});
    let made = server.post("/api/v1/sessions", &session).await.with_status(201);
    assert_eq!(made["labels"], json!({"team": "search"}));
    let listed = server.get("/api/v1/sessions?state=all&label=team=search").await.ok();
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 1);
    assert_eq!(listed["sessions"][0]["sessionId"], "mine");
}

#[both_engines]
async fn labels_of_another_tenant_are_invisible(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.token("platform", "client", &["unidesk"])).await;
    let platform = server.caller("platform");
    let run_id = labelled(&server, json!({"team": "search"})).await;
    let session = format!("/api/v1/sessions/{}", id(&server.run(&run_id).await, "sessionId"));
    assert_eq!(found(platform, "label=team=search").await, [""; 0]);
    let listed = platform.get("/api/v1/sessions?state=all&label=team=search").await.ok();
    assert_eq!(listed["sessions"], json!([]));
    let patch = json!({"labels": {"team": "theirs"}});
    platform.patch(&format!("/api/v1/runs/{run_id}"), &patch).await.refused(NotFound);
    platform.patch(&session, &patch).await.refused(NotFound);
    assert_eq!(server.run(&run_id).await["labels"], json!({"team": "search"}));
}

#[both_engines]
async fn a_secret_in_a_label_is_redacted_everywhere(engine: Engine) {
    let server = TestServer::start(engine).await;
    let secret = format!("npm_{}", "a1B2".repeat(9));
    let run_id = labelled(&server, json!({"note": secret, "password": "hunter2hunter2"})).await;
    let path = format!("/api/v1/runs/{run_id}");
    server.patch(&path, &json!({"labels": {"later": secret}})).await.with_status(200);
    let session = format!("/api/v1/sessions/{}/trace", id(&server.run(&run_id).await, "sessionId"));
    for path in [&path, &session] {
        let text = server.get(path).await.ok().to_string();
        assert!(!text.contains(&secret) && !text.contains("hunter2hunter2"), "{path}: {text}");
    }
}
