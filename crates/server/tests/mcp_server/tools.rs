//! The tools, each from its good case to its bounds.

use ostler_protocol::limits::{PROMPT_BYTES_MAX, WAIT_MS_MAX};
use serde_json::{Value, json};

use super::{ask, asking_script, call, done, refused};
use crate::harness::{Engine, TestServer, both_engines, id, one_engine};

#[both_engines]
async fn a_run_is_submitted_followed_answered_and_read(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let arguments = json!({"profile": "scripted", "prompt": asking_script(), "waitMs": WAIT_MS_MAX,
        "labels": {"team": "search"}});
    let submitted = done(&call(&server, "submit_run", arguments).await);
    let run_id = id(&submitted, "runId");
    assert_eq!((&submitted["state"], &submitted["ended"]), (&json!("waiting"), &json!(false)), "{submitted}");
    let asked = submitted["openPermissions"][0].clone();
    let listed = done(&call(&server, "list_permission_requests", json!({"runId": run_id})).await);
    assert_eq!(listed["permissions"], json!([asked]));
    assert_eq!(asked["command"], "rm it");
    let option = asked["options"].as_array().unwrap().iter().find(|option| option["kind"] == "allow_once").unwrap();
    let mut answer = json!({"runId": run_id, "permissionId": asked["permissionId"], "optionId": option["optionId"],
        "digest": "0".repeat(64)});
    let wrong = call(&server, "answer_permission_request", answer.clone()).await;
    assert_eq!(refused(&wrong), ("state-conflict".into(), "permission-digest".into()));
    answer["digest"] = asked["digest"].clone();
    let answered = done(&call(&server, "answer_permission_request", answer.clone()).await);
    assert_eq!(answered["status"], "allowed");
    let follow = json!({"runId": run_id, "until": "end", "waitMs": WAIT_MS_MAX, "limit": 200});
    let followed = done(&call(&server, "follow_run", follow).await);
    assert_eq!((&followed["state"], &followed["ended"]), (&json!("completed"), &json!(true)), "{followed}");
    let types: Vec<_> = followed["events"].as_array().unwrap().iter().map(|event| id(event, "type")).collect();
    assert!(types.contains(&"permission_resolved".into()) && types.contains(&"assistant_message".into()), "{types:?}");
    // As REST shows them.
    assert_eq!(followed["events"].as_array().unwrap()[..], server.events(&run_id).await[..types.len()]);
    let result = done(&call(&server, "run_result", json!({"runId": run_id})).await);
    assert_eq!((&result["reply"], &result["completed"]), (&json!("Done."), &json!(true)));
    let again = call(&server, "answer_permission_request", answer).await;
    assert!(again["isError"] == true || again["structuredContent"]["status"] == "allowed", "{again}");
    assert_eq!(
        done(&call(&server, "list_permission_requests", json!({"runId": run_id})).await)["permissions"],
        json!([])
    );
    let all = done(&call(&server, "list_permission_requests", json!({"runId": run_id, "all": true})).await);
    assert_eq!(all["permissions"][0]["status"], "allowed");
    let runs = done(&call(&server, "list_runs", json!({"label": "team=search", "state": "completed"})).await);
    assert_eq!((&runs["runs"][0]["runId"], &runs["nextCursor"]), (&json!(run_id), &Value::Null));
    let resource = ask(&server, "resources/list", json!({})).await["result"]["resources"][0].clone();
    assert_eq!(resource["uri"], format!("ostler://runs/{run_id}"));
}

#[both_engines]
async fn a_session_is_continued_and_a_key_makes_a_retry_safe(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let turn = |prompt: &str, key: &str| json!({"profile": "scripted", "prompt": prompt, "session": "plan", "idempotencyKey": key, "waitMs": WAIT_MS_MAX});
    let first = done(&call(&server, "submit_run", turn("one", "k1")).await);
    assert_eq!((&first["reply"], &first["sessionId"]), (&json!("one"), &json!("plan")), "{first}");
    let repeated = done(&call(&server, "submit_run", turn("one", "k1")).await);
    assert_eq!((&repeated["runId"], &repeated["commandId"]), (&first["runId"], &first["commandId"]));
    let second = done(&call(&server, "submit_run", turn("two", "k2")).await);
    assert_eq!((&second["reply"], &second["sessionId"]), (&json!("two"), &json!("plan")), "{second}");
    assert_ne!(second["commandId"], first["commandId"]);
    let other = call(&server, "submit_run", turn("three", "k1")).await;
    assert_eq!(refused(&other), ("idempotency-conflict".into(), "payload-hash".into()));
}

#[both_engines]
async fn a_repeated_turn_that_continued_a_run_is_found_after_that_run_has_ended(engine: Engine) {
    let server = TestServer::start(engine).await;
    let turn = |prompt: &str, key: &str| json!({"profile": "scripted", "prompt": prompt, "session": "plan", "idempotencyKey": key});
    let first = done(&call(&server, "submit_run", turn("one", "k1")).await);
    let runner = server.claim(&id(&first, "runId"), "runner-a").await;
    let finish = async |submitted: &Value| {
        let command_id = id(submitted, "commandId");
        runner.ack(&command_id).await;
        runner.say(&command_id, "Done.").await;
        runner.end(&command_id, "completed").await;
    };
    finish(&first).await;
    let second = done(&call(&server, "submit_run", turn("two", "k2")).await);
    assert_eq!(second["runId"], first["runId"], "the run is continued");
    finish(&second).await;
    runner.try_end_run("completed").await.with_status(200);
    let repeated = done(&call(&server, "submit_run", turn("two", "k2")).await);
    assert_eq!((&repeated["runId"], &repeated["commandId"]), (&second["runId"], &second["commandId"]));
    let other = call(&server, "submit_run", turn("three", "k2")).await;
    assert_eq!(refused(&other), ("idempotency-conflict".into(), "payload-hash".into()));
    assert_eq!(server.get("/api/v1/runs").await.ok()["runs"].as_array().unwrap().len(), 1, "no other run was started");
}

#[both_engines]
async fn a_run_is_cancelled_once_and_busy_sessions_are_refused(engine: Engine) {
    let server = TestServer::start(engine).await;
    let arguments = json!({"profile": "scripted", "prompt": "hi", "session": "plan"});
    let run = done(&call(&server, "submit_run", arguments.clone()).await);
    assert_eq!((&run["state"], &run["reply"]), (&json!("waiting"), &Value::Null));
    let busy = call(&server, "submit_run", arguments).await;
    assert_eq!(refused(&busy).0, "session-busy");
    for _ in 0..2 {
        let cancelled = call(&server, "cancel_run", json!({"runId": run["runId"], "reason": "enough"})).await;
        assert_eq!(done(&cancelled)["state"], "cancelled");
    }
    let followed =
        done(&call(&server, "follow_run", json!({"runId": run["runId"], "until": "end", "waitMs": 100})).await);
    assert_eq!(followed["state"], "cancelled");
}

#[both_engines]
async fn events_come_in_pages_without_gap(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (run_id, command_id) = server.start("hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    // More than one result holds.
    for _ in 0..4 {
        runner.tell(&command_id, "custom", json!({"name": "x".repeat(200_000)})).await;
    }
    let (mut after, mut found, mut pages) = (0, vec![], 0);
    loop {
        let page = done(&call(&server, "follow_run", json!({"runId": run_id, "afterSeq": after, "limit": 3})).await);
        let events = page["events"].as_array().unwrap();
        let bytes: usize = events.iter().map(|event| event["payload"].to_string().len()).sum();
        assert!(events.len() <= 3 && (events.len() == 1 || bytes <= 256 * 1024), "{} events, {bytes}", events.len());
        found.extend(events.iter().cloned());
        (after, pages) = (page["nextAfterSeq"].as_i64().unwrap(), pages + 1);
        if page["hasMore"] == false {
            break;
        }
    }
    assert_eq!(found, server.events(&run_id).await);
    assert!(pages >= 4, "{pages}");
    let trace = json!({"uri": format!("ostler://runs/{run_id}/trace?afterSeq={}", after - 1)});
    let trace = ask(&server, "resources/read", trace).await;
    let text = id(&trace["result"]["contents"][0], "text");
    let trace: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(trace["events"], json!([found.last().unwrap()]));
}

#[one_engine]
async fn arguments_are_refused_one_past_their_bounds(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run = done(&call(&server, "submit_run", json!({"profile": "scripted", "prompt": "hi"})).await);
    let run_id = &run["runId"];
    let before = server.get("/api/v1/runs").await.ok();
    let long = "x".repeat(PROMPT_BYTES_MAX + 1);
    for (tool, arguments, rule) in [
        ("submit_run", json!({"profile": "scripted"}), "mcp-arguments"),
        ("submit_run", json!({"prompt": "x"}), "mcp-arguments"),
        ("submit_run", json!({"profile": "scripted", "prompt": "x", "wait": true}), "mcp-arguments"),
        ("submit_run", json!({"profile": "scripted", "prompt": 7}), "mcp-arguments"),
        ("submit_run", json!({"profile": "scripted", "prompt": "x", "approval": "always"}), "mcp-arguments"),
        ("submit_run", json!(["scripted", "x"]), "mcp-arguments"),
        ("submit_run", json!({"profile": "scripted", "prompt": "x", "waitMs": WAIT_MS_MAX + 1}), "wait-limit"),
        ("submit_run", json!({"profile": "scripted", "prompt": "x", "waitMs": -1}), "mcp-arguments"),
        ("submit_run", json!({"profile": "scripted", "prompt": long}), "prompt-size"),
        ("submit_run", json!({"profile": "scripted", "prompt": "x", "session": "y".repeat(201)}), "name-shape"),
        ("submit_run", json!({"profile": "scripted", "prompt": "x", "labels": {"A B": "x"}}), "label-key"),
        ("submit_run", json!({"profile": "scripted", "prompt": "x", "tenantId": "nowhere"}), "tenant-allow-list"),
        ("follow_run", json!({"runId": run_id, "limit": 201}), "page-limit"),
        ("follow_run", json!({"runId": run_id, "limit": 0}), "page-limit"),
        ("follow_run", json!({"runId": run_id, "waitMs": WAIT_MS_MAX + 1}), "wait-limit"),
        ("follow_run", json!({"runId": run_id, "afterSeq": -1}), "after-seq"),
        ("follow_run", json!({"runId": run_id, "afterSeq": 99}), "after-beyond-end"),
        ("follow_run", json!({"runId": run_id, "until": "tomorrow"}), "mcp-arguments"),
        ("list_runs", json!({"limit": 101}), "page-limit"),
        ("list_runs", json!({"state": "asleep"}), "run-status"),
        ("list_runs", json!({"cursor": "zz"}), "cursor-unknown"),
        ("cancel_run", json!({"runId": run_id, "reason": "x".repeat(16 * 1024 + 1)}), "reason-size"),
        ("run_result", json!({}), "mcp-arguments"),
    ] {
        let result = call(&server, tool, arguments.clone()).await;
        let shown: String = arguments.to_string().chars().take(80).collect();
        assert_eq!(refused(&result).1, rule, "{tool} {shown}");
        assert!(result.to_string().len() < 2_000, "{tool} {shown}");
    }
    for unknown in ["x", "run_", "", "%00", &format!("run_{:032X}", 10)] {
        for tool in ["follow_run", "run_result", "cancel_run", "list_permission_requests"] {
            let result = call(&server, tool, json!({"runId": unknown})).await;
            assert_eq!(refused(&result).0, "not-found", "{tool} {unknown}");
        }
    }
    assert_eq!(server.get("/api/v1/runs").await.ok(), before, "nothing was written");
}
