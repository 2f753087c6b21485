//! What a token may do over REST it may do here, and no more.

use serde_json::{Value, json};

use super::{Stream, ask, call, done, message, post, refused};
use crate::harness::{Caller, Engine, TestServer, both_engines, id, one_engine};

async fn tools_of(caller: &Caller) -> Vec<String> {
    let tools = ask(caller, "tools/list", json!({})).await["result"]["tools"].clone();
    tools.as_array().unwrap().iter().map(|tool| id(tool, "name")).collect()
}

#[both_engines]
async fn a_token_that_may_not_submit_sees_no_tool_that_does(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.token("client", "client", &["hwlab"]);
        setup.token("runner", "runner", &["hwlab"]);
    })
    .await;
    let (client, runner) = (server.caller("client"), server.caller("runner"));
    assert_eq!(tools_of(client).await.len(), 7);
    let reads = ["follow_run", "run_result", "list_runs", "list_permission_requests"];
    assert_eq!(tools_of(runner).await, reads);
    let run = done(&call(client, "submit_run", json!({"profile": "scripted", "prompt": "hi"})).await);
    let run_id = &run["runId"];
    let before = server.events(run_id.as_str().unwrap()).await;
    let answer = json!({"runId": run_id, "permissionId": "prm_1", "optionId": "yes", "digest": "0".repeat(64)});
    for (tool, arguments) in [
        ("submit_run", json!({"profile": "scripted", "prompt": "hi"})),
        ("cancel_run", json!({"runId": run_id})),
        ("answer_permission_request", answer),
    ] {
        assert_eq!(refused(&call(runner, tool, arguments).await), ("forbidden".into(), "role".into()), "{tool}");
    }
    for tool in ["follow_run", "run_result", "list_permission_requests"] {
        done(&call(runner, tool, json!({"runId": run_id})).await);
    }
    assert_eq!(server.events(run_id.as_str().unwrap()).await, before, "nothing was written");
}

#[both_engines]
async fn what_belongs_to_another_tenant_is_not_there(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.token("here", "client", &["hwlab"]);
        setup.token("there", "client", &["unidesk"]);
    })
    .await;
    let (here, there) = (server.caller("here"), server.caller("there"));
    let submitted = json!({"profile": "scripted", "prompt": "hi", "waitMs": 30_000});
    let mut stream = Stream::call(here, None, "submit_run", submitted).await;
    let last = stream.primed().await;
    let (run_id, _) = super::named(&last);
    let permission = format!("prm_{:032x}", 1);
    let answer = json!({"runId": run_id, "permissionId": permission, "optionId": "yes", "digest": "0".repeat(64)});
    let before = server.events(&run_id).await;
    for (tool, arguments) in [
        ("follow_run", json!({"runId": run_id, "waitMs": 30_000})),
        ("run_result", json!({"runId": run_id})),
        ("cancel_run", json!({"runId": run_id})),
        ("list_permission_requests", json!({"runId": run_id})),
        ("answer_permission_request", answer),
    ] {
        let foreign = call(there, tool, arguments.clone()).await;
        assert_eq!(refused(&foreign).0, "not-found", "{tool}");
        let mut absent = arguments;
        absent["runId"] = json!(format!("run_{:032x}", 7));
        let absent = call(there, tool, absent).await;
        assert_eq!(foreign["content"], absent["content"], "{tool}");
    }
    let listed = done(&call(there, "list_runs", json!({})).await);
    assert_eq!(listed["runs"], json!([]));
    let named = call(there, "list_runs", json!({"tenantId": "hwlab"})).await;
    assert_eq!(refused(&named), ("forbidden".into(), "tenant".into()));
    let submitted = call(there, "submit_run", json!({"profile": "scripted", "prompt": "x", "tenantId": "hwlab"})).await;
    assert_eq!(refused(&submitted), ("forbidden".into(), "tenant".into()));
    for uri in [format!("ostler://runs/{run_id}"), format!("ostler://runs/{run_id}/trace")] {
        assert_eq!(ask(there, "resources/read", json!({"uri": uri})).await["error"]["code"], -32002);
        assert!(ask(here, "resources/read", json!({"uri": uri})).await["result"]["contents"][0]["text"].is_string());
    }
    assert_eq!(ask(there, "resources/list", json!({})).await["result"]["resources"], json!([]));
    // An event's id grants nothing.
    let (_, stolen) = Stream::resume(there, &last).await.result().await;
    assert_eq!(refused(&stolen).0, "not-found");
    assert_eq!(server.events(&run_id).await, before, "nothing was written");
}

#[one_engine]
async fn a_token_that_was_revoked_ends_its_streams(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.limits.readmit_ms = 20).await;
    let body = json!({"name": "ci", "role": "client", "tenants": ["hwlab"]});
    let made = server.post("/api/v1/tokens", &body).await.with_status(201);
    let caller = server.with_token(Some(&id(&made, "token")));
    let submitted = json!({"profile": "scripted", "prompt": "hi", "waitMs": 30_000});
    let mut stream = Stream::call(&caller, None, "submit_run", submitted).await;
    stream.primed().await;
    server.send(server.request("DELETE", &format!("/api/v1/tokens/{}", id(&made, "tokenId")))).await.with_status(200);
    assert!(stream.next().await.is_none(), "without a response");
    assert_eq!(caller.send(post(&caller, &message("ping", json!({})))).await.status, 401);
}

#[one_engine]
async fn a_failure_quotes_no_credential(engine: Engine) {
    let server = TestServer::start(engine).await;
    let secret = "ghp_0123456789abcdefABCDEF";
    for arguments in [
        json!({"profile": "scripted", "prompt": "x", "projectId": secret}),
        json!({"profile": "scripted", "prompt": "x", "idempotencyKey": secret}),
        json!({"profile": "scripted", "prompt": "x", "session": secret}),
    ] {
        let result: Value = call(&server, "submit_run", arguments).await;
        assert_eq!(refused(&result), ("schema-invalid".into(), "name-credential".into()));
        assert!(!result.to_string().contains(secret), "{result}");
    }
}

/// The response to a client without a token names the scheme, `Bearer`, and no authorization server: this server issues no tokens by
/// OAuth.
#[one_engine]
async fn a_request_without_a_token_is_challenged_without_a_login(engine: Engine) {
    let server = TestServer::start(engine).await;
    let stranger = server.with_token(None);
    let answer = stranger.send(post(&stranger, &message("tools/list", json!({})))).await;
    assert_eq!((answer.status, answer.headers["www-authenticate"].to_str().unwrap()), (401, "Bearer"));
    for path in ["/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"] {
        assert_eq!(server.get(path).await.status, 404, "{path}");
    }
}
