//! Traces: each request becomes a span that is sent to an OpenTelemetry collector, in the trace of the caller if it has one.

use std::sync::{Arc, Mutex};

use axum::{Router, extract::State, routing::post};
use serde_json::{Value, json};

use crate::harness::{Answer, EXTERNAL, Engine, Identity, TestServer, eventually, fresh, id, one_engine, run_body};

type Received = Arc<Mutex<Vec<Value>>>;

/// Takes OTLP over HTTP as JSON, and keeps the spans.
async fn collector() -> (String, Received) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let received = Received::default();
    let take = async |State(received): State<Received>, axum::Json(body): axum::Json<Value>| {
        for resource in body["resourceSpans"].as_array().unwrap() {
            assert_eq!(attribute(&resource["resource"], "service.name"), json!({"stringValue": "ostler"}));
            for scope in resource["scopeSpans"].as_array().unwrap() {
                received.lock().unwrap().extend(scope["spans"].as_array().unwrap().iter().cloned());
            }
        }
        axum::Json(json!({}))
    };
    let router = Router::new().route("/v1/traces", post(take)).with_state(received.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (address, received)
}

fn attribute(of: &Value, key: &str) -> Value {
    let attributes = of["attributes"].as_array().unwrap();
    attributes.iter().find(|attribute| attribute["key"] == key).map_or(Value::Null, |found| found["value"].clone())
}

#[one_engine]
async fn a_request_is_exported_in_its_callers_trace(engine: Engine) {
    let (address, received) = collector().await;
    let server = TestServer::with(engine, |setup| setup.config.log.otlp_endpoint = Some(address)).await;
    let path = format!("/api/v1/runs/{}", server.create_run().await);
    let of = |flags: &str| format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}");
    server.send(server.request("GET", &path).header("traceparent", of("01"))).await.ok();
    server.send(server.request("GET", &path).header("traceparent", of("00"))).await.ok();
    let refused = server.get("/api/v1/runs/run_none").await;
    let trace_id = refused.headers["x-trace-id"].to_str().unwrap().to_owned();
    let find = |wanted: &dyn Fn(&Value) -> bool| {
        received.lock().unwrap().iter().filter(|span| wanted(span)).cloned().collect::<Vec<_>>()
    };
    let is_refused = |span: &Value| attribute(span, "ostler.trace_id") == json!({"stringValue": trace_id});
    let refusals =
        eventually("the spans arrive", async || Some(find(&is_refused)).filter(|found| !found.is_empty())).await;
    let span = &refusals[0];
    assert_eq!(span["name"], "GET /api/v1/runs/{runId}");
    assert_eq!(span["traceId"].as_str(), trace_id.strip_prefix("trc_"), "the trace of the log");
    assert_eq!(span["spanId"].as_str().unwrap().len(), 16);
    assert_eq!(attribute(span, "http.response.status_code"), json!({"intValue": "404"}));
    assert_eq!(attribute(span, "error.type"), json!({"stringValue": "not-found"}));
    let continued = find(&|span| span["traceId"] == "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(continued.len(), 1, "the one whose caller records it");
    assert_eq!((&continued[0]["parentSpanId"], &continued[0]["kind"]), (&json!("b7ad6b7169203331"), &json!(2)));
    let text = |value: &str| json!({"stringValue": value});
    assert_eq!(continued[0]["name"], "GET /api/v1/runs/{runId}");
    let run = server.get(&path).await.ok();
    assert_eq!(attribute(&continued[0], "ostler.tenant_id"), text(run["tenantId"].as_str().unwrap()));
    assert_eq!(attribute(&continued[0], "ostler.session_id"), text(run["sessionId"].as_str().unwrap()));
    assert_eq!(attribute(&continued[0], "ostler.run_id"), text(run["runId"].as_str().unwrap()));
    assert_eq!(attribute(span, "ostler.session_id"), Value::Null, "a run that does not exist has none");
    let everything = Value::from(find(&|_| true)).to_string();
    assert!(!everything.contains(&server.operator_token()) && !everything.contains(&path), "{everything}");
}

/// The span of an answered request.
async fn span_of(received: &Received, answer: &Answer) -> Value {
    let trace_id = json!({"stringValue": answer.headers["x-trace-id"].to_str().unwrap()});
    let is_of_answer = |span: &&Value| attribute(span, "ostler.trace_id") == trace_id;
    eventually("the span of the request arrives", async || received.lock().unwrap().iter().find(is_of_answer).cloned())
        .await
}

#[one_engine]
async fn a_span_has_the_operation_its_tenant_and_its_session(engine: Engine) {
    let (address, received) = collector().await;
    let server = TestServer::with(engine, |setup| {
        setup.config.log.otlp_endpoint = Some(address);
        setup.token("client", "client", &["hwlab"]);
        setup.token("runner", "runner", &["hwlab"]);
    })
    .await;
    let facts = async |answer: &Answer| {
        assert!((200..300).contains(&answer.status), "{}: {}", answer.status, answer.text);
        let span = span_of(&received, answer).await;
        let fact = |name: &str| attribute(&span, &format!("ostler.{name}"))["stringValue"].clone();
        [fact("tenant_id"), fact("session_id"), fact("run_id"), fact("operation")]
    };
    let none = Value::Null;
    let of_run = |run: &Value| [run["tenantId"].clone(), run["sessionId"].clone(), run["runId"].clone(), Value::Null];

    let of_tenant = [json!("hwlab"), none.clone(), none.clone(), none.clone()];
    let listed = server.get("/api/v1/runs?tenantId=hwlab").await;
    assert_eq!(facts(&listed).await, of_tenant, "the tenant that the request names");
    let listed = server.caller("client").get("/api/v1/runs").await;
    assert_eq!(facts(&listed).await, of_tenant, "the only tenant of the caller");

    let mut body = run_body();
    body["idempotencyKey"] = json!("key-1");
    let run = server.post("/api/v1/runs", &body).await.with_status(201);
    let repeated = server.post("/api/v1/runs", &body).await;
    assert_eq!(facts(&repeated).await, of_run(&run), "the run that exists");
    let mut body = run_body();
    body["retryOf"] = run["runId"].clone();
    let retried = server.post("/api/v1/runs", &body).await;
    assert_eq!(facts(&retried).await, of_run(&retried.body), "the new run, and not the one that it repeats");
    let (session_id, run_id) = (id(&run, "sessionId"), id(&run, "runId"));
    let trace = server.get(&format!("/api/v1/sessions/{session_id}/trace?runId={run_id}")).await;
    assert_eq!(facts(&trace).await, of_run(&run));

    let (external, _) = server.start_with("hi", |body| body["backendProfile"] = json!(EXTERNAL)).await;
    let claim = json!({"runnerId": "mine", "profiles": [EXTERNAL], "waitMs": 0});
    let claimed = server.caller("runner").post("/api/v1/runner-jobs/claim", &claim).await;
    assert_eq!(facts(&claimed).await, of_run(&server.run(&external).await), "the run whose job was claimed");

    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "list_permission_requests", "arguments": {"runId": run_id}}});
    let request = server.request("POST", "/mcp").header("accept", "application/json");
    let request = request.header("content-type", "application/json").body(call.to_string());
    let called = server.send(request).await;
    let [tenant, session, run, _] = of_run(&run);
    assert_eq!(facts(&called).await, [tenant, session, run, json!("list_permission_requests")]);

    let opened = server.post("/session", &json!({})).await;
    let session = server.get(&format!("/api/v1/sessions/{}", id(&opened.body, "sessionId"))).await.ok();
    let of_session = [session["tenantId"].clone(), session["sessionId"].clone(), none.clone(), none.clone()];
    assert_eq!(facts(&opened).await, of_session, "the session that was opened");

    let [tenant, thread, ..] = facts(&server.say("run-1", "hi").await).await;
    assert!(thread.as_str().is_some_and(|thread| thread.starts_with("ses_")), "{thread}");
    let history = server.get("/api/v1/agent/history").await;
    assert_eq!(facts(&history).await, [tenant.clone(), thread, none.clone(), none], "the newest thread");

    // A task submits the run, so that the client may disconnect.
    let automation = json!({"title": "Digest", "timezone": "UTC", "config": {"input_template": "hi",
        "schedule": {"type": "daily", "run_at": {"hour": 7, "minute": 0}}}});
    let automation = id(&server.post("/api/v1/automations", &automation).await.with_status(201), "id");
    let started = server.post(&format!("/api/v1/automations/{automation}/start"), &json!({})).await;
    let [of_start, thread, run, _] = facts(&started).await;
    assert_eq!(of_start, tenant);
    let is_id = |value: &Value, prefix: &str| value.as_str().is_some_and(|id| id.starts_with(prefix));
    assert!(is_id(&thread, "ses_") && is_id(&run, "run_"), "{thread} {run}");
}

#[one_engine]
async fn a_collector_that_is_gone_costs_no_request(engine: Engine) {
    let server =
        TestServer::with(engine, |setup| setup.config.log.otlp_endpoint = Some("http://127.0.0.1:1".into())).await;
    server.create_run().await;
    eventually("the loss is counted", async || {
        let page = server.send(server.request("GET", "/metrics")).await.text;
        page.lines()
            .find_map(|line| line.strip_prefix("ostler_spans_dropped_total ")?.parse().ok())
            .filter(|n: &u64| *n > 0)
    })
    .await;
}

#[one_engine]
async fn a_call_of_the_mesh_is_exported(engine: Engine) {
    let (address, received) = collector().await;
    let server = TestServer::with(engine, |setup| setup.config.log.otlp_endpoint = Some(address)).await;
    Identity::register(&server, "alice").await;
    fresh(&server, "auth.aid_login1", json!({})).await;
    let find = |name: &str| received.lock().unwrap().iter().find(|span| span["name"] == name).cloned();
    let registered = eventually("the span of a call arrives", async || find("auth.create_aid")).await;
    assert_eq!(attribute(&registered, "rpc.method"), json!({"stringValue": "auth.create_aid"}));
    assert_eq!(attribute(&registered, "error.type"), Value::Null);
    let refused = eventually("the span of a refused call arrives", async || find("auth.aid_login1")).await;
    assert_eq!(attribute(&refused, "error.type"), json!({"stringValue": "schema-invalid"}));
}
