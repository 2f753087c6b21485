//! The operations of the MCP server: each succeeds, and callers who are wrong for it get nowhere.

use serde_json::json;

use super::{PATH, SESSION, Stream, call, done, initialize, open_session, post};
use crate::harness::{Engine, TestServer, both_engines, check_request};

/// Method and path of each.
pub(crate) const OPERATIONS: [(&str, &str); 3] = [("POST", PATH), ("GET", PATH), ("DELETE", PATH)];

#[both_engines]
async fn every_operation_of_the_mcp_server_succeeds(engine: Engine) {
    let server = TestServer::start(engine).await;
    check_request("POST", PATH, &initialize("2025-11-25"));
    let session = open_session(&server).await;
    let arguments = json!({"profile": "scripted", "prompt": "hi", "waitMs": 30_000});
    let mut first = Stream::call(&server, Some(&session), "submit_run", arguments).await;
    let last = first.primed().await;
    drop(first);
    Stream::resume(&server, &last).await;
    server.send(server.request("DELETE", PATH).header(SESSION, &session)).await.with_status(204);
}

#[both_engines]
async fn callers_who_are_wrong_for_the_mcp_server_get_nowhere(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.token("provider", "provide", &["hwlab"]);
        setup.token("client", "client", &["hwlab"]);
    })
    .await;
    let submitted = call(server.caller("client"), "submit_run", json!({"profile": "scripted", "prompt": "hi"})).await;
    done(&submitted);
    let runs = server.get("/api/v1/runs").await.ok();
    for (caller, status, rule) in [
        (&server.with_token(None), 401, json!(null)),
        (&server.with_token(Some("garbage")), 401, json!(null)),
        (server.caller("provider"), 403, json!("role")),
    ] {
        let requests =
            [post(caller, &initialize("2025-11-25")), caller.request("GET", PATH), caller.request("DELETE", PATH)];
        for request in requests {
            let answer = caller.send(request).await;
            assert_eq!(answer.status, status, "{}", answer.text);
            assert_eq!(answer.body["error"]["data"]["rule"], rule, "{}", answer.text);
            assert_eq!(answer.headers["x-trace-id"], answer.body["error"]["data"]["traceId"].as_str().unwrap());
        }
    }
    assert_eq!(server.get("/api/v1/runs").await.ok(), runs, "nothing was written");
}
