//! The model backend calls the tools of the server.

use ostler_stand_ins::{Endpoint, chat};
use serde_json::{Value, json};

use super::{Notebook, statuses};
use crate::harness::{Engine, TestServer, both_engines, eventually, one_engine};

async fn with_model(engine: Engine, endpoint: &Endpoint, notebook: &Notebook) -> TestServer {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 64;
        notebook.install(setup);
    })
    .await;
    set_model(&server, endpoint).await;
    server
}

pub(super) async fn set_model(server: &TestServer, endpoint: &Endpoint) {
    let config = format!("[ostler]\nagent = \"model\"\nbase_url = \"{}\"\nmodel = \"small\"\n", endpoint.base_url());
    let path = "/api/v1/provider-profiles/model/config";
    server.call("PUT", path, &json!({"config": config})).await.with_status(200);
}

fn of_model(run: &mut Value) {
    run["backendProfile"] = json!("model");
}

async fn recorded(server: &TestServer, run_id: &str) -> Vec<Value> {
    server.events_of(run_id, "tool_call").await.iter().map(|event| event["payload"].clone()).collect()
}

#[both_engines]
async fn a_model_calls_tools_at_once_and_gets_their_results_and_errors(engine: Engine) {
    let (endpoint, notebook) = (chat(), Notebook::new());
    let server = with_model(engine, &endpoint, &notebook).await;
    let prompt = r#"[[call:time_now {"timezone": "UTC"}||write_note {"text": "milk"}||write_note {"text": 7}||no_such_tool {}]]"#;
    let (run_id, command_id) = server.start_with(prompt, of_model).await;
    let ended = server.ended(&run_id, &command_id).await;
    assert_eq!(ended["terminalStatus"], "completed", "{ended}");
    let reply = ended["reply"].as_str().unwrap();
    for expected in ["2026-01-01", "written: milk", "error: invalid arguments: /text", "there is no tool"] {
        assert!(reply.contains(expected), "{expected}: {reply}");
    }
    assert_eq!(notebook.written(), 1);
    let requests = endpoint.seen();
    let offered: Vec<_> =
        requests[0].body["tools"].as_array().unwrap().iter().map(|tool| &tool["function"]["name"]).collect();
    assert!(offered.contains(&&json!("time_now")) && offered.contains(&&json!("write_note")), "{offered:?}");
    let messages = requests[1].body["messages"].as_array().unwrap();
    let roles: Vec<_> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool", "tool", "tool"]);
    assert_eq!(messages[1]["tool_calls"][1]["function"]["arguments"], r#"{"text": "milk"}"#);
    assert_eq!(messages[3]["tool_call_id"], messages[1]["tool_calls"][1]["id"]);
    let recorded = recorded(&server, &run_id).await;
    let mut ends: Vec<_> = statuses(&recorded).into_iter().filter(|status| *status != "started").collect();
    ends.sort_unstable();
    assert_eq!(ends, ["completed", "completed", "failed", "failed"]);
}

#[both_engines]
async fn results_enter_the_context_of_the_next_turn(engine: Engine) {
    let (endpoint, notebook) = (chat(), Notebook::new());
    let server = with_model(engine, &endpoint, &notebook).await;
    let (run_id, first) = server.start_with(r#"[[call:write_note {"text": "milk"}]]"#, of_model).await;
    server.ended(&run_id, &first).await;
    let second = server.turn(&run_id, "thanks").await;
    server.ended(&run_id, &second).await;
    let request = endpoint.seen().pop().unwrap().body;
    let messages = request["messages"].as_array().unwrap();
    let roles: Vec<_> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant", "user"]);
    assert_eq!(messages[2]["content"], "written: milk");
    assert_eq!(messages[1]["tool_calls"][0]["id"], messages[2]["tool_call_id"]);
}

#[one_engine]
async fn a_model_may_call_tools_in_several_rounds_within_its_budget(engine: Engine) {
    let (endpoint, notebook) = (chat(), Notebook::new());
    let server = with_model(engine, &endpoint, &notebook).await;
    let (run_id, command_id) = server.start_with("[[rounds:3]]", of_model).await;
    assert_eq!(server.ended(&run_id, &command_id).await["terminalStatus"], "completed");
    assert_eq!(statuses(&recorded(&server, &run_id).await), ["started", "completed"].repeat(3));
    let limited = |run: &mut Value| {
        of_model(run);
        run["executionPolicy"] = json!({"maxToolCalls": 2});
    };
    let (run_id, command_id) = server.start_with("[[rounds:3]]", limited).await;
    let ended = server.ended(&run_id, &command_id).await;
    assert_eq!((&ended["terminalStatus"], &ended["failureKind"]), (&json!("blocked"), &json!("budget-exceeded")));
    assert_eq!(statuses(&recorded(&server, &run_id).await), ["started", "completed"].repeat(2));
}

#[one_engine]
async fn a_model_waits_for_the_answer_of_a_person(engine: Engine) {
    let (endpoint, notebook) = (chat(), Notebook::new());
    let server = with_model(engine, &endpoint, &notebook).await;
    let asks = |run: &mut Value| {
        of_model(run);
        run["executionPolicy"] = json!({"approval": "on-request"});
    };
    let (run_id, command_id) = server.start_with(r#"[[call:write_note {"text": "milk"}]]"#, asks).await;
    let request = eventually("permission is asked for", async || server.permissions(&run_id).await.pop()).await;
    assert_eq!(notebook.written(), 0);
    server.answer(&request, "allow", request["digest"].as_str().unwrap()).await.with_status(200);
    let ended = server.ended(&run_id, &command_id).await;
    assert_eq!((&ended["reply"], notebook.written()), (&json!("The tool said: written: milk"), 1));
}

#[one_engine]
async fn a_model_runs_another_agent_within_its_own_budget(engine: Engine) {
    let endpoint = chat();
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 64;
        setup.config.tools.run_agent.profiles = vec!["scripted".into()];
    })
    .await;
    set_model(&server, &endpoint).await;
    let budget = |run: &mut Value| {
        of_model(run);
        run["executionPolicy"] = json!({"maxTokens": 1_000, "sandbox": "read-only"});
    };
    let prompt = r#"[[call:run_agent {"profile": "scripted", "prompt": "hello"}]]"#;
    let (run_id, command_id) = server.start_with(prompt, budget).await;
    let declined = server.ended(&run_id, &command_id).await;
    assert!(declined["reply"].as_str().unwrap().contains("may only read"), "{declined}");
    let budget = |run: &mut Value| {
        of_model(run);
        run["executionPolicy"] = json!({"maxTokens": 1_000});
    };
    let (run_id, command_id) = server.start_with(prompt, budget).await;
    let ended = server.ended(&run_id, &command_id).await;
    assert_eq!(ended["terminalStatus"], "completed");
    assert!(!ended["reply"].as_str().unwrap().contains("error"), "{ended}");
    let runs = server.get("/api/v1/runs?tenantId=hwlab").await.with_status(200);
    let child =
        runs["runs"].as_array().unwrap().iter().find(|run| run["backendProfile"] == "scripted").unwrap().clone();
    assert_eq!(child["executionPolicy"]["maxTokens"], 985, "what the first reply of the model left: {child}");
}

/// Each reply of the model uses 15 tokens, and so does the run that it starts.
#[one_engine]
async fn what_a_started_agent_uses_stops_the_model_that_started_it(engine: Engine) {
    let endpoint = chat();
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 64;
        setup.config.tools.run_agent.profiles = vec!["model".into()];
    })
    .await;
    set_model(&server, &endpoint).await;
    let prompt = r#"[[call:run_agent {"profile": "model", "prompt": "hello"}]]"#;
    for (max_tokens, status, requests) in [(30, "blocked", 2), (40, "blocked", 3), (46, "completed", 3)] {
        let before = endpoint.seen().len();
        let budget = |run: &mut Value| {
            of_model(run);
            run["executionPolicy"] = json!({"maxTokens": max_tokens});
        };
        let (run_id, command_id) = server.start_with(prompt, budget).await;
        let ended = server.ended(&run_id, &command_id).await;
        assert_eq!(ended["terminalStatus"], status, "{max_tokens}: {ended}");
        assert_eq!(endpoint.seen().len() - before, requests, "{max_tokens}: {ended}");
        assert_eq!(ended["usage"]["delegatedTokens"], 15, "{ended}");
        if status == "blocked" {
            assert_eq!(ended["failureKind"], "budget-exceeded", "{ended}");
            let blocker = ended["blocker"].as_str().unwrap();
            assert!(blocker.contains(&format!("maxTokens of {max_tokens}")), "{ended}");
        }
    }
}
