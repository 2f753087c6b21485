//! Traces: each request becomes a span that is sent to an OpenTelemetry collector, in the trace of the caller if it has one.

use std::sync::{Arc, Mutex};

use axum::{Router, extract::State, routing::post};
use serde_json::{Value, json};

use crate::harness::{Engine, Identity, TestServer, eventually, fresh, one_engine};

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
