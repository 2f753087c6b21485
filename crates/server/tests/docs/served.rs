//! The API's document as a page: complete, readable without a token or a script, and closed with everything else.

use std::collections::BTreeSet;

use ostler_protocol::FailureKind::Unauthenticated;
use serde_json::{Value, json};

use crate::harness::{Engine, TestServer, one_engine, openapi};

#[one_engine]
async fn the_page_shows_every_operation_and_shape(engine: Engine) {
    let server = TestServer::start(engine).await;
    let page = server.with_token(None).get("/docs").await;
    assert_eq!((page.status, &page.headers["content-type"]), (200, &"text/html; charset=utf-8".parse().unwrap()));
    let document = openapi().clone();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            assert!(page.text.contains(&format!("<details id='{method}-{path}'>")), "{method} {path}");
        }
    }
    for name in document["components"]["schemas"].as_object().unwrap().keys() {
        assert!(page.text.contains(&format!("<h3 id='shape-{name}'>")), "{name}");
    }
    for link in page.text.split("href='#").skip(1).map(|rest| rest.split('\'').next().unwrap()) {
        let there = page.text.contains(&format!("id='{link}'")) || page.text.contains(&format!("id={link}>"));
        assert!(there, "#{link} leads nowhere");
    }
    let closed = TestServer::with(engine, |setup| setup.config.server.require_auth = true).await;
    closed.with_token(None).get("/docs").await.refused(Unauthenticated);
    assert_eq!(closed.get("/docs").await.status, 200);
}

#[one_engine]
async fn a_browser_reaches_the_page_and_the_document_without_a_token(engine: Engine) {
    let server = TestServer::start(engine).await;
    let nobody = server.with_token(None);
    // The client follows the redirect.
    let root = nobody.get("/").await;
    assert_eq!((root.status, &root.text), (200, &nobody.get("/docs").await.text));
    assert_eq!(nobody.get("/openapi.json").await.with_status(200), *openapi());
    let closed = TestServer::with(engine, |setup| setup.config.server.require_auth = true).await;
    closed.with_token(None).get("/").await.refused(Unauthenticated);
}

#[one_engine]
async fn the_page_loads_nothing_from_elsewhere(engine: Engine) {
    let server = TestServer::start(engine).await;
    for path in ["/docs", "/docs/style.css"] {
        let answer = server.with_token(None).get(path).await;
        assert_eq!(answer.status, 200);
        let policy = answer.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; style-src 'self';"), "{policy}");
        for forbidden in ["<script", "://", " src=", " style=", "@import", "url("] {
            assert!(!answer.text.contains(forbidden), "{path} has {forbidden}");
        }
    }
}

/// Generators of clients name functions after them.
#[test]
fn every_operation_has_an_id_of_its_own() {
    let paths = openapi()["paths"].as_object().unwrap().values().flat_map(|item| item.as_object().unwrap().values());
    let ids: Vec<_> = paths.map(|operation| operation["operationId"].as_str().unwrap()).collect();
    let unique: BTreeSet<_> = ids.iter().collect();
    assert_eq!(unique.len(), ids.len(), "{ids:?}");
    assert!(ids.iter().all(|id| id.chars().all(|c| c.is_ascii_alphanumeric())), "{ids:?}");
}

#[test]
fn the_document_names_our_licence_and_no_author_of_a_library() {
    let info = &openapi()["info"];
    assert_eq!(info["contact"], Value::Null);
    assert_eq!(info["license"], json!({"name": "Apache-2.0", "identifier": "Apache-2.0"}));
}
