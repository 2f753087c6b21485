//! The surface: every operation of the OpenAPI document is called here at least once, with success, and the document
//! that is served and the one that is kept are the one that the handlers make.

mod capabilities;
mod enums;
mod promises;
mod stored_document;

use std::collections::BTreeSet;

use ostler_run_input::config::transcription::TranscriptionSection;
use serde_json::Value;

use crate::{
    harness::{Caller, Engine, TestServer, both_engines, check_request, one_engine, openapi},
    operations::{self, NOT_JSON, OPERATIONS, Scene},
};

/// Every operation the document has.
fn documented() -> BTreeSet<(String, String)> {
    let document = openapi().clone();
    let mut operations = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            if ["get", "put", "post", "delete", "patch", "head", "options"].contains(&method.as_str()) {
                operations.insert((method.to_uppercase(), path.clone()));
            }
        }
    }
    operations
}

#[both_engines]
async fn every_operation_of_the_document_succeeds(engine: Engine) {
    let speech = ostler_stand_ins::speech();
    let server = TestServer::with(engine, |setup| {
        setup.config.change(|section: &mut TranscriptionSection| section.base_url = Some(speech.base_url()));
    })
    .await;
    assert_eq!(documented(), operations::all(), "the table and the document name the same operations");
    let scene = Scene::set(&server, "ada").await;
    for (method, path, body) in OPERATIONS {
        let body = body(&scene);
        if !body.is_null() && !NOT_JSON.contains(path) {
            check_request(method, path, &body);
        }
        let answer = call(&server, method, &scene.path(path), &body).await;
        assert!((200..300).contains(&answer.0), "{method} {path}: {answer:?}");
    }
}

async fn call(caller: &Caller, method: &str, path: &str, body: &Value) -> (u16, String) {
    let answer = caller.send(caller.with_body(caller.request(method, path), path, body)).await;
    let content_type = match path {
        "/metrics" => "text/plain",
        stream if stream.contains("/agent/") && stream.contains("/events") => "text/event-stream",
        picture if picture.contains("/object/") => "image/png",
        "/api/v1/calendar-events/export" => "text/calendar",
        "/pki/crl" => "application/pkix-crl",
        "/pki/ocsp" => "application/ocsp-response",
        "/agent.md" if method == "GET" => "text/markdown",
        pem if pem.starts_with("/pki/c") && !pem.ends_with("json") || pem == "/pki/root.crt" => {
            "application/x-pem-file"
        }
        _ => "application/json",
    };
    let has_body = answer.status != 204;
    assert!(!has_body || answer.headers["content-type"].to_str().unwrap().starts_with(content_type), "{method} {path}");
    assert!(answer.headers["x-trace-id"].to_str().unwrap().starts_with("trc_"));
    (answer.status, answer.text)
}

#[one_engine]
async fn the_served_document_is_the_handlers_own(engine: Engine) {
    let server = TestServer::start(engine).await;
    let own = openapi().clone();
    assert_eq!(server.get("/openapi.json").await.with_status(200), own);
    // Every path parameter is described, and every operation describes its failures.
    for (path, item) in own["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let described = parameters.iter().filter(|parameter| parameter["in"] == "path").count();
            assert_eq!(described, path.matches('{').count(), "{method} {path}");
            let named = |header: &str| parameters.iter().any(|p| p["in"] == "header" && p["name"] == header);
            let streams = operation["responses"]["200"]["content"]["text/event-stream"].is_object();
            assert_eq!(named("Last-Event-ID"), streams, "{method} {path}");
            assert_eq!(named("Idempotency-Key"), takes_key(&own, operation), "{method} {path}");
            let failures = &operation["responses"]["4XX"]["content"];
            let types = ["application/problem+json", "application/json"];
            assert!(
                types.iter().any(|content_type| failures[content_type].is_object()),
                "{method} {path} does not say how it fails"
            );
        }
    }
}

/// Whether an operation's body has an idempotency key.
fn takes_key(document: &Value, operation: &Value) -> bool {
    let body = operation["requestBody"]["content"]["application/json"]["schema"].to_string();
    let schemas = document["components"]["schemas"].as_object().unwrap().iter();
    let mut keyed = schemas.filter(|(_, schema)| schema["properties"]["idempotencyKey"].is_object());
    keyed.any(|(name, _)| body.contains(&format!("/{name}\"")))
}
