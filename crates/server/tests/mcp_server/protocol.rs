//! The transport and the messages: revisions, sessions, batches, and input that is wrong or hostile.

use ostler_protocol::{
    bodies::RequestBody,
    mcp_server::messages::{McpMessage, PROGRESS_TOKEN_BYTES_MAX},
};
use serde_json::{Value, json};

use super::{LATEST, PATH, REVISION, SESSION, ask, initialize, message, notify, open_session, post};
use crate::harness::{Answer, Caller, Engine, TestServer, both_engines, one_engine};

/// A post with headers of the test's own.
async fn send(caller: &Caller, headers: &[(&str, &str)], body: &str) -> Answer {
    let request = caller.request("POST", PATH).header("content-type", "application/json").body(body.to_owned());
    caller.send(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))).await
}

/// The rule of a request that was rejected as a whole.
#[track_caller]
fn rejected(answer: &Answer, status: u16, code: i64) -> String {
    assert_eq!((answer.status, &answer.body["error"]["code"]), (status, &json!(code)), "{}", answer.text);
    assert_eq!((&answer.body["jsonrpc"], &answer.body["id"]), (&json!("2.0"), &Value::Null), "{}", answer.text);
    assert_eq!(answer.headers["content-type"], "application/json");
    answer.body["error"]["data"]["rule"].as_str().unwrap_or_default().to_owned()
}

#[one_engine]
async fn a_client_initialises_and_finds_tools_and_resources(engine: Engine) {
    let server = TestServer::start(engine).await;
    for (proposed, chosen) in [
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", LATEST),
        ("2024-11-05", LATEST),
    ] {
        let answer = send(&server, &[], &initialize(proposed).to_string()).await;
        let result = &answer.body["result"];
        assert_eq!(result["protocolVersion"], chosen, "{proposed}: {}", answer.text);
        assert_eq!(result["serverInfo"]["name"], "ostler");
        assert!(result["capabilities"]["tools"].is_object() && result["capabilities"]["resources"].is_object());
        assert!(answer.headers[SESSION].to_str().unwrap().starts_with("mcp_"));
    }
    let answer = notify(&server, None, "notifications/initialized", json!({})).await;
    assert_eq!((answer.status, answer.text.as_str()), (202, ""));
    assert_eq!(ask(&server, "ping", json!({})).await["result"], json!({}));
    let tools = ask(&server, "tools/list", json!({})).await["result"]["tools"].clone();
    let names: Vec<_> = tools.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    let known = ["submit_run", "follow_run", "run_result", "list_runs", "cancel_run", "list_permission_requests"];
    assert_eq!(names, [&known[..], &["answer_permission_request"]].concat());
    assert_eq!(tools[0]["annotations"]["readOnlyHint"], false);
    assert_eq!(tools[1]["annotations"]["readOnlyHint"], true);
    let templates = ask(&server, "resources/templates/list", json!({})).await["result"]["resourceTemplates"].clone();
    assert_eq!(templates[0]["uriTemplate"], "ostler://runs/{runId}");
    assert_eq!(ask(&server, "resources/list", json!({})).await["result"], json!({"resources": []}));
    // The client may also send what it would reply to a request of ours.
    let response = json!({"jsonrpc": "2.0", "id": 9, "result": {}});
    assert_eq!(server.send(post(&server, &response)).await.status, 202);
}

#[one_engine]
async fn a_request_that_cannot_be_handled_is_an_error_under_its_id(engine: Engine) {
    let server = TestServer::start(engine).await;
    let long_token = "t".repeat(PROGRESS_TOKEN_BYTES_MAX + 1);
    for (method, params, code, rule) in [
        ("prompts/list", json!({}), -32601, "mcp-method"),
        ("x", json!([]), -32601, "mcp-method"),
        ("initialize", json!({}), -32602, "mcp-params"),
        ("initialize", json!({"protocolVersion": 7}), -32602, "mcp-params"),
        ("tools/call", json!({}), -32602, "mcp-params"),
        ("tools/call", json!({"name": "shell"}), -32602, "mcp-tool"),
        ("tools/call", json!({"name": "list_runs", "_meta": {"progressToken": long_token}}), -32602, "mcp-params"),
        ("tools/list", json!({"cursor": "x"}), -32602, "mcp-cursor"),
        ("resources/list", json!({"cursor": "x"}), -32602, "cursor-unknown"),
        ("resources/read", json!({"uri": "file:///etc/passwd"}), -32002, "mcp-resource"),
        ("resources/read", json!({"uri": format!("ostler://runs/run_{:032x}", 7)}), -32002, ""),
    ] {
        let reply = ask(&server, method, params.clone()).await;
        let error = &reply["error"];
        assert_eq!(error["code"], code, "{method} {params}: {reply}");
        assert_eq!(error["data"]["rule"].as_str().unwrap_or_default(), rule, "{method} {params}: {reply}");
    }
}

#[one_engine]
async fn bodies_that_are_no_message_are_rejected(engine: Engine) {
    let server = TestServer::start(engine).await;
    for body in ["", "{", "not json", "{\"a\":}", "{} {}"] {
        let answer = send(&server, &[], body).await;
        assert_eq!(rejected(&answer, 400, -32700), "json-malformed", "{body}");
    }
    for body in ["7", "null", "{}", r#"{"jsonrpc":"2.0","id":1}"#, r#"{"id":1,"method":"ping"}"#] {
        assert_eq!(rejected(&send(&server, &[], body).await, 400, -32600), "mcp-message", "{body}");
    }
    let odd = [
        r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#.into(),
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":"\ud800"}"#.into(),
        format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"ping"}}"#, "x".repeat(201)),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}"}}"#, "x".repeat(201)),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{}{}}}"#, "[".repeat(300), "]".repeat(300)),
    ];
    for body in odd {
        let answer = send(&server, &[], &body).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
    }
    let padded = format!("{}{}", " ".repeat(McpMessage::BYTES_MAX), message("ping", json!({})));
    assert_eq!(rejected(&send(&server, &[], &padded).await, 413, -32600), "body-size");
    let many = message("ping", json!({"x": vec![1; McpMessage::VALUES_MAX + 1]}));
    let answer = send(&server, &[], &many.to_string()).await;
    assert!((400..500).contains(&answer.status), "{}", answer.text);
    let plain = server.request("POST", PATH).header("content-type", "text/plain").body("{}");
    assert_eq!(rejected(&server.send(plain).await, 415, -32600), "content-type");
    // After all that it works.
    ask(&server, "ping", json!({})).await;
}

#[one_engine]
async fn batches_are_for_the_revision_that_has_them(engine: Engine) {
    let server = TestServer::start(engine).await;
    let call = message("tools/call", json!({"name": "list_runs"}));
    let batch = json!([message("ping", json!({})), {"jsonrpc": "2.0", "method": "notifications/initialized"}, call]);
    for headers in [&[][..], &[(REVISION, "2025-03-26")]] {
        let replies = send(&server, headers, &batch.to_string()).await.with_status(200);
        assert_eq!(replies.as_array().unwrap().len(), 2, "{replies}");
        assert_eq!(replies[1]["result"]["structuredContent"]["runs"], json!([]));
    }
    for revision in ["2025-06-18", "2025-11-25"] {
        let answer = send(&server, &[(REVISION, revision)], &batch.to_string()).await;
        assert_eq!(rejected(&answer, 400, -32600), "mcp-batch");
    }
    let only_notified = json!([{"jsonrpc": "2.0", "method": "notifications/initialized"}]);
    assert_eq!(send(&server, &[], &only_notified.to_string()).await.status, 202);
    for refused in [json!([]), json!([initialize(LATEST)]), json!(vec![message("ping", json!({})); 17])] {
        assert_eq!(rejected(&send(&server, &[], &refused.to_string()).await, 400, -32600), "mcp-batch");
    }
}

#[one_engine]
async fn revisions_and_sessions_that_are_not_known_are_rejected(engine: Engine) {
    let server = TestServer::start(engine).await;
    let ping = message("ping", json!({})).to_string();
    for revision in ["2026-07-28", "2024-11-05", "latest", ""] {
        let answer = send(&server, &[(REVISION, revision)], &ping).await;
        assert_eq!(rejected(&answer, 400, -32600), "mcp-revision", "{revision}");
    }
    for session in ["x", "", &format!("mcp_{}", "g".repeat(32)), &"x".repeat(5_000)] {
        let answer = send(&server, &[(SESSION, session)], &ping).await;
        assert_eq!(rejected(&answer, 404, -32600), "mcp-session", "{session}");
    }
    let session = open_session(&server).await;
    let twice = send(&server, &[(SESSION, &session), (SESSION, &session)], &ping).await;
    assert_eq!(rejected(&twice, 400, -32600), "header-repeated");
    send(&server, &[(SESSION, &session)], &ping).await.with_status(200);
    // The id only tells clients apart; a client may do without one.
    send(&server, &[], &ping).await.with_status(200);
}

#[both_engines]
async fn a_session_that_was_ended_is_unknown_and_others_are_not(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.token("other", "client", &["hwlab"])).await;
    let ping = message("ping", json!({})).to_string();
    let (session, another) = (open_session(&server).await, open_session(&server).await);
    // Another caller cannot end it.
    let other = server.caller("other");
    other.send(other.request("DELETE", PATH).header(SESSION, &session)).await.with_status(204);
    send(&server, &[(SESSION, &session)], &ping).await.with_status(200);
    server.send(server.request("DELETE", PATH).header(SESSION, &session)).await.with_status(204);
    for method in ["POST", "GET", "DELETE"] {
        let request = server.request(method, PATH).header(SESSION, &session);
        let request = request.header("content-type", "application/json").body(ping.clone());
        assert_eq!(rejected(&server.send(request).await, 404, -32600), "mcp-session", "{method}");
    }
    send(&server, &[(SESSION, &another)], &ping).await.with_status(200);
    let unnamed = server.send(server.request("DELETE", PATH)).await;
    assert_eq!(rejected(&unnamed, 404, -32600), "mcp-session");
}

#[one_engine]
async fn there_is_no_stream_without_a_call(engine: Engine) {
    let server = TestServer::start(engine).await;
    let listen = |last: Option<&str>| {
        let request = server.request("GET", PATH).header("accept", "text/event-stream");
        server.send(last.into_iter().fold(request, |request, last| request.header("last-event-id", last)))
    };
    for last in [None, Some("ended")] {
        assert_eq!(rejected(&listen(last).await, 405, -32600), "mcp-listen");
    }
    for last in ["7", "", "w1.", &"w1.x".repeat(1_000)] {
        assert_eq!(rejected(&listen(Some(last)).await, 400, -32600), "mcp-event-id", "{last}");
    }
    // An id that the client has made up for a run that does not exist.
    let last = format!("w1.run_{:032x}.-.0.10.end.99999999999999.0.n1.-", 7);
    let answer = listen(Some(&last)).await;
    assert_eq!(answer.status, 200);
    assert!(answer.text.contains("not-found") && answer.text.contains("\"isError\":true"), "{}", answer.text);
}

#[one_engine]
async fn pages_of_other_origins_and_other_hosts_are_rejected(engine: Engine) {
    let server =
        TestServer::with(engine, |setup| setup.config.server.allow_origins = vec!["https://console.test".into()]).await;
    let ping = message("ping", json!({})).to_string();
    let own = format!("http://{}", server.address());
    for origin in ["https://evil.test", "null", "http://localhost:1", &own] {
        assert_eq!(rejected(&send(&server, &[("origin", origin)], &ping).await, 403, -32600), "origin", "{origin}");
    }
    assert_eq!(rejected(&send(&server, &[("host", "evil.test")], &ping).await, 403, -32600), "host");
    let allowed = send(&server, &[("origin", "https://console.test")], &ping).await;
    assert_eq!(allowed.status, 200);
    let preflight = server.request("OPTIONS", PATH).header("origin", "https://console.test");
    let preflight = server.send(preflight.header("access-control-request-method", "POST")).await;
    let headers = preflight.headers["access-control-allow-headers"].to_str().unwrap();
    assert!(headers.contains("mcp-session-id") && headers.contains("mcp-protocol-version"), "{headers}");
    let shown = preflight.headers["access-control-expose-headers"].to_str().unwrap();
    assert!(shown.contains("mcp-session-id"), "{shown}");
}
