//! `ostler webhooks`: set, test, list and replay.

use std::time::Duration;

use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    process::{eventually, stdout_of},
    runner::run_request,
    test_home::{Engine, TestHome, both_engines},
    webhook_receiver::WebhookReceiver,
};

/// A local port without a listener. A development server accepts it as a webhook.
const UNREACHABLE: &str = "https://localhost:9/hook";

#[both_engines]
fn a_webhook_is_set_tested_removed_and_replayed(engine: Engine) {
    let mut home = TestHome::new(engine);
    home.set("OSTLER_WEBHOOKS__ALLOW_LOOPBACK", "true");
    let server = home.serve();
    let ostler = |args: &[&str]| home.cli(Some(&server), args);
    let json = |args: &[&str]| -> Value {
        serde_json::from_str(&stdout_of(ostler(&[args, &["-o", "json"]].concat()))).unwrap()
    };
    let made = stdout_of(ostler(&["agents", "create", "told"]));
    let agent = made.trim();
    let none = ostler(&["webhooks", "show", "told"]);
    let printed = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(
        printed.contains("the agent has no webhook") && printed.contains("ostler webhooks set AGENT URL"),
        "{printed}"
    );
    let set = ostler(&["webhooks", "set", "told", UNREACHABLE]);
    assert!(String::from_utf8_lossy(&set.stderr).contains("it is not shown again"), "{set:?}");
    let secret = stdout_of(set);
    assert_eq!(secret.trim().len(), 44, "base64 of 32 bytes and nothing else: {secret}");
    let shown = stdout_of(ostler(&["webhooks", "show", &agent[..agent.len() - 1]]));
    assert_eq!(shown, format!("{UNREACHABLE}\n"));
    let reported = stdout_of(ostler(&["webhooks", "test", agent]));
    let delivery = reported.trim();
    assert!(stdout_of(ostler(&["webhooks", "show", agent, delivery])).starts_with("webhook.test pending after "));
    assert_eq!(stdout_of(ostler(&["webhooks", "remove", agent, "--yes"])), format!("{UNREACHABLE} removed\n"));
    let dead = json(&["webhooks", "list", agent, "--status", "dead"]);
    assert_eq!(
        (&dead[0]["delivery_id"], &dead[0]["last_error"]),
        (&json!(delivery), &json!("the webhook was removed"))
    );
    let replay = ["webhooks", "replay", agent, "--dead"];
    assert!(!ostler(&replay).status.success(), "there is no webhook to tell it to");
    stdout_of(ostler(&["webhooks", "set", agent, UNREACHABLE]));
    assert_eq!(stdout_of(ostler(&replay)), format!("{delivery} pending\n"));
    assert_eq!(json(&["webhooks", "list", agent, "--status", "dead"]), json!([]));
}

#[both_engines]
fn a_webhook_at_a_forbidden_address_is_rejected(engine: Engine) {
    let home = TestHome::new(engine);
    let server = home.serve();
    let made = stdout_of(home.cli(Some(&server), &["agents", "create", "told"]));
    for url in ["http://agent.example/hook", "https://10.0.0.1/hook", UNREACHABLE] {
        let refused = home.cli(Some(&server), &["webhooks", "set", made.trim(), url]);
        let words = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
        assert!(words.contains("this cannot be a webhook"), "{words}");
    }
}

const THREAD: &str = "550e8400-e29b-41d4-a716-446655440000";

/// Creates a run that names the agent, and ends it.
fn end_run(http: &mut Http, agent: &str, session: Option<&str>) -> String {
    let mut body = run_request();
    body["agentId"] = agent.into();
    if let Some(session) = session {
        body["sessionRef"] = json!({"sessionId": session});
    }
    let run_id = http.post("/api/v1/runs", &body).good()["runId"].as_str().unwrap().to_owned();
    http.post(&format!("/api/v1/runs/{run_id}/cancel"), &json!({})).good();
    run_id
}

#[both_engines]
fn a_dead_delivery_about_an_erased_run_is_not_replayed(engine: Engine) {
    let mut home = TestHome::new(engine).without_runner();
    home.set("OSTLER_WEBHOOKS__ALLOW_LOOPBACK", "true");
    home.set("OSTLER_WEBHOOKS__POLL_MS", "10");
    // The sweep that deletes deliveries about erased runs is not due during the test.
    home.set("OSTLER_SESSIONS__GC_INTERVAL_MS", "3600000");
    let (server, hook) = (home.serve(), WebhookReceiver::start(Duration::ZERO));
    let mut http = Http::new(&server);
    let ostler = |args: &[&str]| home.cli(Some(&server), args);
    let dead = || -> Vec<Value> {
        let listed = stdout_of(ostler(&["webhooks", "list", "told", "--status", "dead", "-o", "json"]));
        serde_json::from_str(&listed).unwrap()
    };
    let made = stdout_of(ostler(&["agents", "create", "told"]));
    let agent = made.trim();
    stdout_of(ostler(&["webhooks", "set", agent, UNREACHABLE]));
    // The first message creates the thread, with a run that does not name the agent.
    let message = json!({"threadId": THREAD, "runId": "run-1", "forwardedProps": {"runtime_mode": "chat"},
        "messages": [{"id": "m-1", "role": "user", "content": "hi"}]});
    assert_eq!(http.post("/api/v1/agent/runs", &message).status, 202);
    let thread = http.get(&format!("/api/v1/sessions/{THREAD}")).good();
    let first = thread["lastRunId"].as_str().unwrap();
    http.post(&format!("/api/v1/runs/{first}/cancel"), &json!({})).good();
    let (erased, other) = (end_run(&mut http, agent, Some(THREAD)), end_run(&mut http, agent, None));
    eventually("both ends wait for the webhook", || {
        let listed = http.get(&format!("/agents/{agent}/webhook/deliveries")).good();
        (listed["deliveries"].as_array().unwrap().len() == 2).then_some(())
    });
    stdout_of(ostler(&["webhooks", "remove", agent, "--yes"]));
    stdout_of(ostler(&["webhooks", "set", agent, &hook.url]));
    let delivery_of = |run_id: &str| {
        let about = |delivery: &&Value| delivery["body"]["payload"]["run_id"] == run_id;
        dead().iter().find(about).unwrap()["delivery_id"].as_str().unwrap().to_owned()
    };
    let (erased_delivery, other_delivery) = (delivery_of(&erased), delivery_of(&other));
    let deleted = http.send("DELETE", &format!("/api/v1/agent/sessions/{THREAD}"), &[], "").unwrap();
    assert_eq!(deleted.status, 204);

    let reason =
        format!("{erased_delivery} is not replayed: the run was erased, or the agent's owner may no longer read it\n");
    for replayed in [format!("{other_delivery} pending\n"), String::new()] {
        let output = ostler(&["webhooks", "replay", agent, "--dead"]);
        assert_eq!(String::from_utf8_lossy(&output.stderr), reason);
        assert_eq!(stdout_of(output), replayed);
        let received =
            eventually("the other run is reported", || Some(hook.received()).filter(|received| !received.is_empty()));
        assert_eq!(received.iter().map(|delivery| delivery.run_id()).collect::<Vec<_>>(), [&other]);
    }
    let output = ostler(&["webhooks", "replay", agent, &erased_delivery]);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(
        printed.starts_with("error: the run was erased, or the agent's owner may no longer read it\n"),
        "{printed}"
    );
    // It stays listed until the sweep deletes it, without a word about the run.
    let left = dead();
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!((&left[0]["delivery_id"], &left[0]["body"]["payload"]), (&json!(erased_delivery), &Value::Null));
    assert_eq!(hook.received().len(), 1);
    server.stop();
}
