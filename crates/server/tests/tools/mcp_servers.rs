//! Tools of MCP servers, also of hostile ones.

use std::sync::atomic::AtomicUsize;

use ostler_protocol::{
    FailureKind::{Forbidden, NotFound, Overloaded},
    mcp::config::{McpExposure, McpServer},
};
use serde_json::{Value, json};

use super::Work;
use crate::{
    harness::{Engine, Setup, TestServer, eventually, id, one_engine},
    mcp::{SECRET, configure_servers},
};

/// A server with MCP servers, and a run in its workspace.
async fn scene(engine: Engine, servers: &[(&str, &str)]) -> (TestServer, Work) {
    scene_with(engine, servers, json!({})).await
}

/// As [`scene`], with a policy of the run.
async fn scene_with(engine: Engine, servers: &[(&str, &str)], policy: Value) -> (TestServer, Work) {
    let mut workspace = None;
    let server = TestServer::with(engine, |setup| {
        workspace = Some(setup.bind_workspace());
        configure_servers(setup, servers);
        if let Some(good) = setup.config.mcp.servers.get("good").cloned() {
            setup.config.mcp.servers.insert("direct".into(), McpServer { expose: McpExposure::Direct, ..good });
        }
        for (name, server) in &mut setup.config.mcp.servers {
            server.timeout_ms = match name.as_str() {
                "silent" => 300,
                // It has to start, too.
                "slow" => 1_500,
                _ => server.timeout_ms,
            };
        }
    })
    .await;
    let path = workspace.unwrap();
    let work = Work::begin(&server, |run| {
        in_workspace(run, &path);
        run["executionPolicy"] = policy;
    })
    .await;
    (server, work)
}

fn in_workspace(run: &mut Value, path: &std::path::Path) {
    run["tenantId"] = json!("local");
    run["workspaceRef"] = json!({"kind": "local", "path": path});
}

async fn names(server: &TestServer, work: &Work) -> Vec<String> {
    let path = format!("/api/v1/runs/{}/tools?commandId={}", work.run_id(), work.command_id);
    let listed = server.get(&path).await.with_status(200);
    listed["tools"].as_array().unwrap().iter().map(|tool| id(tool, "name")).collect()
}

#[one_engine]
async fn runs_in_the_workspace_get_the_tools_of_mcp_servers(engine: Engine) {
    let (server, work) = scene(engine, &[("good", "good")]).await;
    let offered = ["calendar_read", "calendar_write", "mcp__good__echo", "mcp__good__env", "time_now"];
    assert_eq!(names(&server, &work).await, offered);
    let called = work.call(&server, "mcp__good__echo", r#"{"a": 1}"#).await;
    assert_eq!((&called["status"], &called["content"]), (&json!("completed"), &json!(r#"{"a": 1}"#)));
    let recorded = work.recorded(&server).await;
    assert_eq!((&recorded[0]["source"], &recorded[0]["changes"]), (&json!("mcp:good"), &json!(false)));
    let called = work.call(&server, "mcp__direct__echo", "{}").await;
    assert_eq!(called["status"], "failed", "agents connect to it themselves");
    let elsewhere = Work::begin(&server, |_| ()).await;
    assert_eq!(names(&server, &elsewhere).await, ["calendar_read", "calendar_write", "time_now"]);
    let called = elsewhere.call(&server, "mcp__good__echo", "{}").await;
    assert_eq!(called["status"], "failed", "it has the operator's credentials");
}

#[one_engine]
async fn callers_whose_runs_may_work_in_the_workspace_list_the_tools_of_mcp_servers(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.bind_workspace();
        configure_servers(setup, &[("good", "good")]);
        setup.token("own", "client", &["local"]);
        setup.token("other", "client", &["hwlab"]);
    })
    .await;
    for (caller, count) in [("own", 2), ("other", 0)] {
        let listed = server.caller(caller).get("/api/v1/tools").await.with_status(200);
        let tools = listed["tools"].as_array().unwrap().iter();
        let of_mcp = tools.filter(|tool| tool["source"] == "mcp:good").count();
        assert_eq!(of_mcp, count, "{caller}: {listed}");
    }
}

#[one_engine]
async fn a_hostile_server_harms_only_its_own_calls(engine: Engine) {
    let servers = [("dies", "dies"), ("good", "good"), ("leaks", "leaks"), ("lying", "lying"), ("silent", "silent")];
    let (server, work) = scene(engine, &servers).await;
    let offered = names(&server, &work).await;
    assert!(!offered.iter().any(|name| name.starts_with("mcp__silent__")), "{offered:?}");
    assert!(offered.contains(&"mcp__lying__leak".to_owned()) && !offered.contains(&"mcp__lying__text".to_owned()));
    let died = work.call(&server, "mcp__dies__die", "{}").await;
    assert_eq!(died["status"], "outcome-unknown", "{died}");
    assert_eq!(work.call(&server, "mcp__good__echo", "{}").await["status"], "completed");
    let response = work.call(&server, "mcp__leaks__tell", "{}").await;
    assert_eq!(response["status"], "completed");
    let listed = server.get("/api/v1/tools").await.text;
    for text in [response.to_string(), listed, Value::from(server.events(work.run_id()).await).to_string()] {
        assert!(!text.contains(SECRET), "{text}");
    }
}

#[one_engine]
async fn a_schema_that_takes_long_to_check_harms_only_calls_of_its_tool(engine: Engine) {
    let (server, work) = scene(engine, &[("bombs", "bombs")]).await;
    let offered = names(&server, &work).await;
    assert!(!offered.contains(&"mcp__bombs__doubles".to_owned()), "it refers to 2^40 schemas: {offered:?}");
    let numbers = json!({"list": vec![1; 20_000]}).to_string();
    for (tool, arguments) in [("repeats", numbers.as_str()), ("nests", r#"{"a": {"b": 1}}"#)] {
        let called = work.call(&server, &format!("mcp__bombs__{tool}"), arguments).await;
        assert_eq!(called["status"], "failed", "{tool}: {called}");
        assert!(called["content"].as_str().unwrap().contains("too large to be checked"), "{tool}: {called}");
    }
    assert_eq!(work.call(&server, "mcp__bombs__wide", &numbers).await["status"], "completed");
    let wrong = work.call(&server, "mcp__bombs__wide", r#"{"list": ["x"]}"#).await;
    assert!(wrong["content"].as_str().unwrap().contains("is not of type"), "{wrong}");
}

#[one_engine]
async fn the_model_learns_why_a_server_refused_a_call(engine: Engine) {
    let (server, work) = scene(engine, &[("refuses", "refuses")]).await;
    let refused = work.call(&server, "mcp__refuses__refuse", "{}").await;
    assert_eq!(refused["status"], "failed", "{refused}");
    let text = refused["content"].as_str().unwrap();
    assert!(text.contains("refuses refused the call: the folder is not shared"), "{text}");
    assert!(!text.contains(SECRET) && text.chars().count() < 1_200, "{text}");
}

async fn pending_request(server: &TestServer, work: &Work) -> Value {
    eventually("permission is asked for", async || server.permissions(work.run_id()).await.pop()).await
}

#[one_engine]
async fn a_server_that_was_disabled_while_a_person_decided_is_not_called(engine: Engine) {
    let policy = json!({"approval": "on-request"});
    let (server, work) = scene_with(engine, &[("good", "good")], policy).await;
    let (called, ()) = tokio::join!(work.call(&server, "mcp__good__env", "{}"), async {
        let request = pending_request(&server, &work).await;
        server.post("/workspace/mcp/good/disable", &Value::Null).await.with_status(200);
        server.answer(&request, "allow", request["digest"].as_str().unwrap()).await.with_status(200);
    });
    assert_eq!(called["status"], "declined", "{called}");
    assert!(called["content"].as_str().unwrap().contains("no longer available"), "{called}");
    let again = work.call(&server, "mcp__good__echo", "{}").await;
    assert_eq!(again["status"], "failed", "{again}");
    assert!(names(&server, &work).await.iter().all(|name| !name.starts_with("mcp__good__")));
}

#[one_engine]
async fn a_server_that_was_replaced_while_a_person_decided_is_not_called(engine: Engine) {
    let policy = json!({"approval": "on-request"});
    let (server, work) = scene_with(engine, &[("good", "good")], policy).await;
    let configured = &server.config.mcp.servers["good"];
    // Without its variables: another server under the same name, with the same tools.
    let config = json!({"command": configured.command, "args": configured.args});
    let (called, ()) = tokio::join!(work.call(&server, "mcp__good__env", "{}"), async {
        let request = pending_request(&server, &work).await;
        let client = server.post("/session", &json!({})).await.ok()["clientId"].as_str().unwrap().to_owned();
        let body = json!({"name": "good", "config": config});
        let change = server.request("POST", "/workspace/mcp/servers").header("x-qwen-client-id", client).json(&body);
        server.send(change).await.with_status(200);
        server.answer(&request, "allow", request["digest"].as_str().unwrap()).await.with_status(200);
    });
    assert_eq!(called["status"], "declined", "{called}");
    assert!(called["content"].as_str().unwrap().contains("no longer available"), "{called}");
}

#[one_engine]
async fn a_tool_is_called_as_its_server_lists_it_now(engine: Engine) {
    let policy = json!({"approval": "on-request"});
    let (server, work) = scene_with(engine, &[("fickle", "withdraws")], policy).await;
    let offered = names(&server, &work).await;
    assert!(offered.contains(&"mcp__fickle__gone".to_owned()), "{offered:?}");
    assert_eq!(work.call(&server, "mcp__fickle__strict", "{}").await["status"], "completed");
    let (called, ()) = tokio::join!(work.call(&server, "mcp__fickle__gone", "{}"), async {
        let request = pending_request(&server, &work).await;
        assert_eq!(work.call(&server, "mcp__fickle__withdraw", "{}").await["status"], "completed");
        eventually("the list has changed", async || {
            (!names(&server, &work).await.contains(&"mcp__fickle__gone".to_owned())).then_some(())
        })
        .await;
        server.answer(&request, "allow", request["digest"].as_str().unwrap()).await.with_status(200);
    });
    assert_eq!(called["status"], "declined", "it was withdrawn while a person decided: {called}");
    let gone = work.call(&server, "mcp__fickle__gone", "{}").await;
    assert!(gone["content"].as_str().unwrap().contains("there is no tool"), "{gone}");
    let strict = work.call(&server, "mcp__fickle__strict", "{}").await;
    assert!(strict["content"].as_str().unwrap().contains("invalid arguments"), "{strict}");
    assert_eq!(work.call(&server, "mcp__fickle__strict", r#"{"b": 1}"#).await["status"], "completed");
}

#[one_engine]
async fn a_server_that_is_slow_huge_or_asks_for_samples_harms_only_its_own_calls(engine: Engine) {
    let (server, work) = scene(engine, &[("asks", "asks"), ("large", "large"), ("slow", "slow")]).await;
    assert_eq!(names(&server, &work).await.iter().filter(|name| name.starts_with("mcp__")).count(), 8);
    let (slow, sampled, large) = tokio::join!(
        work.call(&server, "mcp__slow__sleep", "{}"),
        work.call(&server, "mcp__asks__echo", r#"{"a": 1}"#),
        work.call(&server, "mcp__large__large", r#"{"bytes": 500000}"#)
    );
    assert_eq!(slow["status"], "outcome-unknown", "{slow}");
    assert_eq!((&sampled["status"], &sampled["content"]), (&json!("completed"), &json!(r#"{"a": 1}"#)));
    assert_eq!((&large["status"], &large["truncated"]), (&json!("completed"), &json!(true)));
    assert!(large["content"].as_str().unwrap().len() < 300_000);
}

#[one_engine]
async fn a_result_that_is_too_large_fails_its_call_at_once(engine: Engine) {
    let (server, work) = scene(engine, &[("large", "large")]).await;
    assert!(names(&server, &work).await.contains(&"mcp__large__large".to_owned()));
    let began = tokio::time::Instant::now();
    let called = work.call(&server, "mcp__large__large", r#"{"bytes": 5000000}"#).await;
    assert_eq!(called["status"], "failed", "{called}");
    assert!(called["content"].as_str().unwrap().contains("its result is too large"), "{called}");
    assert!(began.elapsed().as_secs() < 10, "the server's deadline is 20 s");
    assert_eq!(work.call(&server, "mcp__large__echo", "{}").await["status"], "completed", "it can still be used");
}

/// The names of the tools of MCP servers that the operator lists.
async fn listed(server: &TestServer) -> Vec<String> {
    let listed = server.get("/api/v1/tools").await.with_status(200);
    let names = listed["tools"].as_array().unwrap().iter().map(|tool| id(tool, "name"));
    names.filter(|name| name.starts_with("mcp__")).collect()
}

#[one_engine]
async fn a_server_that_never_answers_delays_lists_only_while_it_is_new(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.bind_workspace();
        configure_servers(setup, &[("hang", "silent")]);
        setup.config.mcp.list_wait_ms = 1_000;
    })
    .await;
    let began = tokio::time::Instant::now();
    assert_eq!(listed(&server).await, Vec::<String>::new());
    assert!(began.elapsed().as_secs() < 5, "its deadline is 20 s");
    let began = tokio::time::Instant::now();
    for _ in 0..3 {
        listed(&server).await;
    }
    assert!(began.elapsed().as_millis() < 2_000, "it still connects, in the background");
    let status = server.get("/workspace/mcp").await.with_status(200);
    assert_eq!(status["servers"][0]["mcpStatus"], "connecting");
}

/// A server that notes its start in the workspace and ends.
fn ends_at_once(setup: &mut Setup) {
    let args = vec!["-c".into(), "echo x >> starts; exit 1".into()];
    let server = McpServer { command: Some("sh".into()), args, ..McpServer::default() };
    setup.config.mcp.servers.insert("ends".into(), server);
}

#[one_engine]
async fn a_server_that_fails_is_started_again_after_pauses_that_grow(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.bind_workspace();
        ends_at_once(setup);
    })
    .await;
    let starts = || {
        let file = server.config.server.workspace.as_ref().unwrap().join("starts");
        std::fs::read_to_string(file).unwrap_or_default().lines().count()
    };
    // The milliseconds that pass before three lists, and how often the server was started after them.
    for (pause_ms, expected) in [(0, 1), (999, 1), (1, 2), (1_999, 2), (1, 3), (3_999, 3), (1, 4)] {
        server.clock.advance_ms(pause_ms);
        for _ in 0..3 {
            assert_eq!(listed(&server).await, Vec::<String>::new());
        }
        assert_eq!(starts(), expected, "after {pause_ms} ms");
    }
    let status = server.get("/workspace/mcp").await.with_status(200);
    let ends = &status["servers"][0];
    assert_eq!((&ends["status"], &ends["mcpStatus"]), (&json!("error"), &json!("disconnected")));
    assert!(ends["hint"].as_str().unwrap().contains("skipped for"), "{ends}");
    let restart = server.post("/workspace/mcp/ends/restart", &Value::Null).await;
    assert_eq!((restart.status, starts()), (502, 5), "a restart does not wait: {}", restart.text);
    server.clock.advance_ms(1_000);
    listed(&server).await;
    assert_eq!(starts(), 6, "a restart begins the pauses again");
}

#[one_engine]
async fn a_call_of_a_server_that_is_not_connected_fails_with_that_reason(engine: Engine) {
    let mut workspace = None;
    let server = TestServer::with(engine, |setup| {
        workspace = Some(setup.bind_workspace());
        ends_at_once(setup);
    })
    .await;
    let path = workspace.unwrap();
    let work = Work::begin(&server, |run| in_workspace(run, &path)).await;
    for attempt in ["it is started", "it pauses"] {
        let called = work.call(&server, "mcp__ends__read", "{}").await;
        let reason = "the MCP server ends is not connected; retry in 1 s";
        assert_eq!((&called["status"], &called["content"]), (&json!("failed"), &json!(reason)), "{attempt}");
    }
    // The operator who tries the tool gets the same reason.
    let tried = server.post("/api/v1/tools/mcp__ends__read/calls", &json!({"arguments": {}})).await;
    assert!(tried.text.contains("the MCP server ends is not connected; retry in"), "{}", tried.text);
    tried.refused_by(Overloaded, "tool-unavailable");
    let other = server.post("/api/v1/tools/mcp__other__read/calls", &json!({"arguments": {}})).await;
    other.refused_by(NotFound, "tool-unknown");
}

#[one_engine]
async fn without_a_workspace_the_operators_own_runs_get_the_tools_of_mcp_servers(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        configure_servers(setup, &[("good", "good")]);
        setup.token("service", "client", &["local", "hwlab"]);
    })
    .await;
    let work = Work::begin(&server, |_| ()).await;
    let offered = names(&server, &work).await;
    assert!(offered.contains(&"mcp__good__echo".to_owned()), "{offered:?}");
    assert_eq!(work.call(&server, "mcp__good__echo", r#"{"a": 1}"#).await["status"], "completed");
    let listed_without_command = server.get(&format!("/api/v1/runs/{}/tools", work.run_id())).await.with_status(200);
    assert!(!listed_without_command.to_string().contains("mcp__"), "nothing shows who submitted the turn");
    assert_eq!(listed(&server).await, ["mcp__good__echo", "mcp__good__env"]);
    let others = server.caller("service").get("/api/v1/tools").await.with_status(200);
    assert!(!others.to_string().contains("mcp__"), "runs of others do not get them: {others}");
}

#[one_engine]
async fn another_callers_turn_in_the_operators_run_gets_no_tools_of_mcp_servers(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        configure_servers(setup, &[("good", "good")]);
        setup.config.tools.run_agent.profiles = vec!["scripted".into()];
        setup.token("client", "client", &["hwlab"]);
    })
    .await;
    let run_id = server.create_run().await;
    let command_id = server.caller("client").turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    let work = Work { runner, command_id, calls: AtomicUsize::new(0) };
    assert!(names(&server, &work).await.iter().all(|name| !name.starts_with("mcp__")));
    let called = work.call(&server, "mcp__good__echo", "{}").await;
    assert_eq!(called["status"], "failed", "{called}");
    assert!(called["content"].as_str().unwrap().contains("there is no tool"), "{called}");
    let child = work.call(&server, "run_agent", r#"{"profile": "scripted", "prompt": "hello"}"#).await;
    assert_eq!(child["status"], "failed", "a child would be the operator's: {child}");
}

#[one_engine]
async fn another_caller_does_not_steer_a_turn_that_has_the_operators_tools(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.token("client", "client", &["hwlab"])).await;
    let work = Work::begin(&server, |_| ()).await;
    let steer = json!({"type": "steer", "payload": {"text": "left"}});
    server.caller("client").submit(work.run_id(), &steer).await.refused_by(Forbidden, "owner");
    let interrupt = json!({"type": "interrupt"});
    server.caller("client").submit(work.run_id(), &interrupt).await.with_status(201);
    server.steer(work.run_id(), "right").await;
    let run_id = server.create_run().await;
    server.caller("client").turn(&run_id, "hi").await;
    server.caller("client").submit(&run_id, &steer).await.with_status(201);
}
