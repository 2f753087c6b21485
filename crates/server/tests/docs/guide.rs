//! The guides as pages of the server.

use ostler_protocol::FailureKind::{NotFound, Unauthenticated};

use crate::harness::{Engine, TestServer, one_engine};

#[one_engine]
async fn the_guide_is_readable_without_a_token_and_a_script(engine: Engine) {
    let server = TestServer::start(engine).await;
    let server = server.with_token(None);
    // The client follows the redirection.
    for path in ["/guide", "/guide/"] {
        let first = server.get(path).await;
        assert!(
            first.status == 200 && first.text.contains("<title>Getting started · Ostler</title>"),
            "{}",
            first.text
        );
    }
    for path in ["/guide/getting-started", "/guide/cli.md", "/guide/generated/rules"] {
        let page = server.get(path).await;
        assert_eq!((page.status, page.headers["content-type"].to_str().unwrap()), (200, "text/html; charset=utf-8"));
        let policy = page.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; style-src 'self';"), "{policy}");
        for forbidden in ["<script", " src=", " style=", "<!--"] {
            assert!(!page.text.contains(forbidden), "{path} has {forbidden}");
        }
    }
    let page = server.get("/guide/benchmarks").await;
    assert!(page.text.contains("<img src=\"benchmarks.svg\""), "{}", page.text);
    let chart = server.get("/guide/benchmarks.svg").await;
    assert_eq!((chart.status, chart.headers["content-type"].to_str().unwrap()), (200, "image/svg+xml"));
    assert!(chart.text.starts_with("<svg ") && !chart.text.contains("<script"));
    server.get("/guide/nothing").await.refused(NotFound);
    let closed = TestServer::with(engine, |setup| setup.config.server.require_auth = true).await;
    closed.with_token(None).get("/guide/cli").await.refused(Unauthenticated);
}

#[one_engine]
async fn the_pages_that_are_listed_as_public_are_readable_without_a_token(engine: Engine) {
    let callers = std::fs::read_to_string(super::page("callers.md")).unwrap();
    let (_, list) = callers.split_once("Public operations are ").unwrap();
    let (list, _) = list.split_once(", `GET /agents`").unwrap();
    let paths: Vec<_> = list.split('`').skip(1).step_by(2).collect();
    assert!(paths.contains(&"/guide") && paths.contains(&"/docs"), "{paths:?}");
    let server = TestServer::start(engine).await;
    let server = server.with_token(None);
    for path in paths {
        let page = server.get(path.trim_end_matches('*')).await;
        assert_eq!(page.status, 200, "{path}: {}", page.text);
    }
    assert!(callers.contains("| 403 `forbidden`, rule `user-unknown` |"), "as `crates/server/tests/users.rs` shows");
}
