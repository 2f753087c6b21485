//! The front end's tools and the state it shares: offered to the agent, called by ending the run, answered by the next one.

use ostler_protocol::FailureKind::*;
use ostler_stand_ins::chat;
use serde_json::{Value, json};

use super::{RUNS, ReceivedEvent, THREAD, kinds, message, received, words};
use crate::{
    harness::{Caller, Engine, TestServer, both_engines, id, one_engine},
    mcp::configure_servers,
    run_input::calendar_tools::with_model,
};

pub(crate) fn weather() -> Value {
    json!({"name": "get_weather", "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}})
}

fn script(steps: Value) -> String {
    json!({"script": steps}).to_string()
}

/// A message whose run has the tools of the front end.
pub(crate) fn with_tools(run_id: &str, text: &str) -> Value {
    let mut body = message(run_id, text);
    body["tools"] = json!([weather(), {"name": "confirm", "description": "Asks the user"}]);
    body
}

pub(crate) fn result(call: &str, content: &str) -> Value {
    json!({"id": format!("r-{call}"), "role": "tool", "toolCallId": call, "content": content})
}

pub(crate) fn answer(run_id: &str, results: Vec<Value>) -> Value {
    json!({"threadId": THREAD, "runId": run_id, "messages": results, "forwardedProps": {"runtime_mode": "chat"}})
}

fn calling() -> String {
    script(json!([{"say": "Looking it up."}, {"call": {"name": "get_weather", "arguments": {"city": "Oslo"}}}]))
}

/// The pending calls with which a run ended.
pub(crate) fn pending(received: &[ReceivedEvent]) -> Vec<String> {
    let outcome = &received.last().unwrap().event["outcome"];
    assert_eq!(outcome["type"], "success", "{outcome}");
    let ids = outcome["pendingToolCallIds"].as_array().cloned().unwrap_or_default();
    ids.iter().map(|id| id.as_str().unwrap().to_owned()).collect()
}

async fn run(caller: &Caller, body: &Value) -> Vec<ReceivedEvent> {
    received(&caller.stream(body).await.text)
}

#[both_engines]
async fn a_call_ends_the_run_and_the_next_run_answers_it(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let first = run(&server, &with_tools("run-1", &calling())).await;
    let calls = pending(&first);
    let all = kinds(&first);
    assert!(all.ends_with(&["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "RUN_FINISHED"]), "{all:?}");
    let start = &first[first.len() - 4].event;
    assert_eq!((&start["toolCallName"], &start["toolCallId"]), (&json!("get_weather"), &json!(calls[0])));
    let arguments: Value = serde_json::from_str(first[first.len() - 3].event["delta"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"city": "Oslo"}));
    assert_eq!(server.received("run-1").await, first, "each reader of a run gets the same events");
    // The results alone, without a message of the user.
    server.post(RUNS, &answer("run-2", vec![result(&calls[0], "12 °C")])).await.with_status(202);
    let second = server.received("run-2").await;
    assert_eq!((words(&second).as_str(), pending(&second)), ("[Result of the tool get_weather] 12 °C", vec![]));
    // History has no tools.
    let history = server.get(&format!("/api/v1/agent/history?threadId={THREAD}")).await.ok();
    let roles: Vec<_> = history["messages"].as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "assistant"]);
    // The thread goes on, and an answered call cannot be answered again.
    let again = server.post(RUNS, &answer("run-3", vec![result(&calls[0], "13 °C")])).await;
    assert!(again.text.contains("no pending tool call"), "{}", again.text);
    again.refused_as(RunInputInvalid, "AGENT_RUN_MESSAGES_INVALID");
    server.say("run-4", "thanks").await.with_status(202);
    assert_eq!(words(&server.received("run-4").await), "thanks");
}

#[both_engines]
async fn the_start_of_a_run_repeats_the_answers_that_it_brought(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let call = pending(&run(&server, &with_tools("run-1", &calling())).await).remove(0);
    let mut sent = result(&call, "12 °C");
    (sent["error"], sent["encryptedValue"], sent["metadata"]) = (json!("late"), json!("c2VjcmV0"), json!({"k": 1}));
    let received = run(&server, &answer("run-2", vec![sent.clone()])).await;
    let repeated = &received[0].event["input"]["messages"][0];
    for field in ["id", "role", "toolCallId", "content", "error", "encryptedValue", "metadata"] {
        assert_eq!(repeated[field], sent[field], "{field}: {}", received[0].event);
    }
}

#[both_engines]
async fn a_client_without_a_state_of_its_own_shares_that_of_the_thread(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let mut body = message("run-1", &script(json!([{"state": {"snapshot": {"count": 1}}}, {"say": "ok"}])));
    for (run_id, state, shared) in [
        ("run-1", Some(json!({})), json!({})),
        ("run-2", Some(json!({})), json!({"count": 1})),
        ("run-3", None, Value::Null),
    ] {
        body["runId"] = json!(run_id);
        match state {
            Some(state) => body["state"] = state,
            None => drop(body.as_object_mut().unwrap().remove("state")),
        }
        let command_id = id(&server.post(RUNS, &body).await.with_status(202), "taskId");
        server.received(run_id).await;
        let sql = format!("SELECT payload FROM commands WHERE command_id = '{command_id}'");
        let payload: Value = serde_json::from_str(&server.store(&sql).await[0]).unwrap();
        assert_eq!(payload["context"]["state"], shared, "{run_id}");
    }
}

#[both_engines]
async fn a_stock_client_answers_with_its_transcript(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let first = run(&server, &with_tools("run-1", &calling())).await;
    let call = pending(&first).remove(0);
    let said = json!({"id": "m-run-1", "role": "user", "content": calling()});
    let called = called(&call);
    let text = json!({"id": "a", "role": "assistant", "content": "Looking it up."});
    let mut failed = result(&call, "");
    failed["error"] = json!("no network");
    let second = run(&server, &answer("run-2", vec![said.clone(), text.clone(), called.clone(), failed])).await;
    assert_eq!(words(&second), "[The tool get_weather failed: no network] ");
    // A message that comes instead of a result is a message; results in the transcript answer beside it.
    let third = run(&server, &with_tools("run-3", &calling())).await;
    let next = pending(&third).remove(0);
    let mut body = answer("run-4", vec![said, text, called, result(&next, "9 °C")]);
    let asked = json!({"id": "u", "role": "user", "content": "and tomorrow?"});
    body["messages"].as_array_mut().unwrap().push(asked);
    assert_eq!(words(&run(&server, &body).await), "[Result of the tool get_weather] 9 °C\n\nand tomorrow?");
}

#[both_engines]
async fn a_new_thread_may_begin_with_calls_and_results_in_both_forms(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let call = json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let mut body = message("run-1", "hello");
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"id": "a1", "role": "assistant", "toolCalls": [call]}));
    messages.push(result("c1", "12 °C"));
    server.post(RUNS, &body).await.with_status(202);
    let queued = server.received("run-1").await;
    body["threadId"] = json!("550e8400-e29b-41d4-a716-446655440009");
    let streamed = run(&server, &body).await;
    assert_eq!((words(&streamed), pending(&streamed)), (words(&queued), vec![]), "{streamed:?}");
    let again = run(&server, &body).await;
    assert_eq!(again, streamed, "the same run again is the same");
    // The client sends them again with its transcript.
    let mut next = body.clone();
    next["runId"] = json!("run-2");
    let reply = json!({"id": "a2", "role": "assistant", "content": words(&streamed)});
    let user = json!({"id": "u2", "role": "user", "content": "thanks"});
    next["messages"].as_array_mut().unwrap().extend([reply, user]);
    assert_eq!(words(&run(&server, &next).await), "thanks");
    // A transcript with earlier messages is one of a thread that exists.
    body["threadId"] = json!("550e8400-e29b-41d4-a716-446655440010");
    let earlier = json!({"id": "m0", "role": "user", "content": "before"});
    body["messages"].as_array_mut().unwrap().insert(0, earlier);
    let refused = server.stream(&body).await.refused_as(RunInputInvalid, "AGENT_RUN_MESSAGES_INVALID");
    assert_eq!(refused.message, "RunAgentInput.messages contains earlier messages that the thread does not have");
}

/// A transcript is dropped once it was compared with the thread.
#[both_engines]
async fn calls_in_a_transcript_that_the_thread_does_not_have_are_rejected_by_name(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let call = json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let called = json!({"id": "a1", "role": "assistant", "toolCalls": [call]});
    let transcript = |run_id: &str, earlier: &[&Value]| {
        let mut body = message(run_id, "hello");
        let user = body["messages"][0].take();
        body["messages"] = earlier.iter().copied().cloned().chain([user]).collect();
        body
    };
    let rejected = async |body: &Value, field: &str| {
        let refused = server.stream(body).await.refused_as(RunInputInvalid, "AGENT_RUN_MESSAGES_INVALID");
        let expected = format!("RunAgentInput.{field} is \"c1\", and the thread has no such tool call");
        assert_eq!(refused.message, expected);
    };
    let new = transcript("run-1", &[&called, &result("c1", "12 °C")]);
    rejected(&new, "messages[0].toolCalls[0].id").await;
    rejected(&transcript("run-1", &[&result("c1", "12 °C")]), "messages[0].toolCallId").await;
    let first = run(&server, &with_tools("run-1", &calling())).await;
    let pending = pending(&first).remove(0);
    let own = json!({"id": pending, "role": "assistant", "toolCalls": [{"id": pending, "type": "function",
        "function": {"name": "get_weather", "arguments": "{\"city\":\"Oslo\"}"}}]});
    let known = [&own, &result(&pending, "12 °C")];
    rejected(&transcript("run-2", &[known[0], known[1], &called]), "messages[2].toolCalls[0].id").await;
    let received = run(&server, &transcript("run-2", &known)).await;
    assert_eq!(words(&received), "[Result of the tool get_weather] 12 °C\n\nhello");
}

#[both_engines]
async fn every_pending_call_is_answered_once(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let both = script(
        json!([{"call": {"name": "get_weather", "arguments": {"city": "Oslo"}}}, {"call": {"name": "confirm"}}]),
    );
    let calls = pending(&run(&server, &with_tools("run-1", &both)).await);
    assert_eq!(calls.len(), 2);
    for (results, words) in [
        (vec![result(&calls[0], "1")], calls[1].as_str()),
        (vec![result("tool_x", "1")], "tool_x"),
        (vec![result(&calls[0], "1"), result(&calls[1], "2"), result("tool_x", "3")], "tool_x"),
        (vec![result(&calls[0], "1"), result(&calls[0], "2")], "another one answers"),
        (vec![result(&calls[0], &"x".repeat(65_537)), result(&calls[1], "2")], "65536 bytes"),
    ] {
        let refused = server.post(RUNS, &answer("run-2", results)).await;
        assert!(refused.text.contains(words), "{words}: {}", refused.text);
        refused.refused_as(RunInputInvalid, "AGENT_RUN_MESSAGES_INVALID");
    }
    let results = vec![result(&calls[1], "yes"), result(&calls[0], "12")];
    server.post(RUNS, &answer("run-2", results)).await.with_status(202);
    let words = words(&server.received("run-2").await);
    assert_eq!(words, "[Result of the tool get_weather] 12\n\n[Result of the tool confirm] yes");
}

/// A call as a client's transcript has it.
fn called(call: &str) -> Value {
    json!({"id": call, "role": "assistant", "toolCalls": [{"id": call, "type": "function",
        "function": {"name": "get_weather", "arguments": "{\"city\":\"Oslo\"}"}}]})
}

#[both_engines]
async fn a_late_result_of_a_call_that_a_message_passed_over_is_passed_on_once(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let call = pending(&run(&server, &with_tools("run-1", &calling())).await).remove(0);
    server.say("run-2", "never mind").await.with_status(202);
    server.received("run-2").await;
    // The agent does not wait for it, so that a run needs more than that.
    let alone = server.post(RUNS, &answer("run-3", vec![result(&call, "12 °C")])).await;
    assert!(alone.text.contains(&call) && alone.text.contains("no pending tool call"), "{}", alone.text);
    alone.refused_as(RunInputInvalid, "AGENT_RUN_MESSAGES_INVALID");
    // A stock client repeats it in each of its transcripts.
    let said = |role: &str, text: &str| json!({"id": format!("{role}-{text}"), "role": role, "content": text});
    let mut transcript = vec![said("user", &calling()), said("assistant", "Looking it up."), called(&call)];
    transcript.extend([said("user", "never mind"), said("assistant", "never mind"), result(&call, "12 °C")]);
    transcript.push(said("user", "thanks"));
    let received = run(&server, &answer("run-3", transcript.clone())).await;
    assert_eq!(words(&received), "[Result of the tool get_weather] 12 °C\n\nthanks");
    assert_eq!(received[0].event["input"]["messages"][0]["toolCallId"], json!(call), "{}", received[0].event);
    let thread = server.run_of_thread().await;
    let logged = server.events_of(&thread, "user_message").await.pop().unwrap()["payload"]["content"][0].take();
    assert_eq!((&logged["type"], &logged["toolCallId"]), (&json!("tool_result"), &json!(call)), "{logged}");
    transcript.extend([said("assistant", &words(&received)), said("user", "again")]);
    assert_eq!(words(&run(&server, &answer("run-4", transcript)).await), "again");
}

#[both_engines]
async fn a_run_that_answers_pending_calls_may_bring_late_results(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let late = pending(&run(&server, &with_tools("run-1", &calling())).await).remove(0);
    let call = pending(&run(&server, &with_tools("run-2", &calling())).await).remove(0);
    let missing = server.post(RUNS, &answer("run-3", vec![result("tool_x", "0"), result(&call, "2")])).await;
    assert!(missing.text.contains("tool_x"), "{}", missing.text);
    missing.refused_as(RunInputInvalid, "AGENT_RUN_MESSAGES_INVALID");
    let results = vec![result(&call, "2"), result(&late, "1")];
    server.post(RUNS, &answer("run-3", results)).await.with_status(202);
    let words = words(&server.received("run-3").await);
    assert_eq!(words, "[Result of the tool get_weather] 1\n\n[Result of the tool get_weather] 2");
}

#[both_engines]
async fn late_results_that_do_not_fit_come_with_the_next_message(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let mut late = vec![];
    for run_id in ["run-1", "run-2"] {
        late.push(pending(&run(&server, &with_tools(run_id, &calling())).await).remove(0));
    }
    server.say("run-3", "never mind").await.with_status(202);
    server.received("run-3").await;
    for (run_id, expected) in [("run-4", [true, false]), ("run-5", [false, true]), ("run-6", [false, false])] {
        let mut body = message(run_id, "thanks");
        let mut messages: Vec<_> = late.iter().map(|call| called(call)).collect();
        messages.extend(late.iter().map(|call| result(call, &format!("{call} {}", "x".repeat(40_000)))));
        messages.push(body["messages"][0].take());
        body["messages"] = messages.into();
        let received = words(&run(&server, &body).await);
        assert_eq!([received.contains(&late[0]), received.contains(&late[1])], expected, "{run_id}");
    }
}

#[both_engines]
async fn a_model_may_call_tools_of_the_server_and_of_the_front_end_at_once(engine: Engine) {
    let endpoint = chat();
    let server = with_model(engine, &endpoint).await;
    let prompt = r#"[[call:time_now {"timezone":"UTC"}||get_weather {"city":"Oslo"}||no_such_tool]]"#;
    let first = run(&server, &with_tools("run-1", prompt)).await;
    let calls = pending(&first);
    assert_eq!(calls.len(), 1, "{first:?}");
    let results: Vec<_> = first.iter().filter_map(|event| event.event["content"].as_str()).collect();
    for expected in ["2026-01-01", "there is no tool \"no_such_tool\""] {
        assert!(results.iter().any(|result| result.contains(expected)), "{expected}: {results:?}");
    }
    assert_eq!(endpoint.seen().len(), 1, "the call of the front end's tool ends the turn");
    server.post(RUNS, &answer("run-2", vec![result(&calls[0], "12 °C")])).await.with_status(202);
    let second = server.received("run-2").await;
    assert_eq!((words(&second).as_str(), pending(&second)), ("The tool said: 12 °C", vec![]));
    let request = endpoint.seen().pop().unwrap().body;
    let messages = request["messages"].as_array().unwrap();
    let roles: Vec<_> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant", "tool"]);
    assert_eq!(messages[1]["tool_calls"][0]["function"]["name"], "time_now");
    assert_eq!(messages[3]["tool_calls"][0]["id"], json!(calls[0]));
    // Results of the server's tools are in the context of the next turn, and never in history.
    assert!(messages[2]["content"].as_str().unwrap().contains("2026-01-01"), "{}", messages[2]);
    let history = server.get(&format!("/api/v1/agent/history?threadId={THREAD}")).await.ok();
    let shown = history["messages"].as_array().unwrap();
    assert!(shown.iter().all(|message| message["role"] != "tool"), "{history}");
    assert!(shown.iter().all(|message| message["role"] == "user" || !message.to_string().contains("timezone")));
}

#[both_engines]
async fn an_agent_calls_only_what_is_offered_and_as_it_is_offered(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    for (number, call) in [json!({"name": "format_disk"}), json!({"name": "get_weather", "arguments": {"city": 7}})]
        .into_iter()
        .enumerate()
    {
        let received = run(&server, &with_tools(&format!("run-{number}"), &script(json!([{"call": call}])))).await;
        assert_eq!(kinds(&received).last(), Some(&"RUN_ERROR"), "{received:?}");
    }
}

#[both_engines]
async fn tools_are_bounded_and_have_names_of_their_own(engine: Engine) {
    let server = TestServer::start(engine).await;
    let tool = |field: &str, value: Value| {
        let mut tool = weather();
        tool[field] = value;
        json!([tool])
    };
    let many: Vec<_> = (0..65).map(|n| json!({"name": format!("t{n}"), "description": ""})).collect();
    let large = json!({"type": "object", "description": "x".repeat(16 * 1024)});
    for (tools, words) in [
        (tool("name", json!("no spaces")), "tools[0].name"),
        (tool("name", json!("")), "tools[0].name"),
        (tool("name", json!("x".repeat(65))), "tools[0].name"),
        (tool("name", json!("update_shared_state")), "is the name of a tool of this server"),
        (tool("name", json!("make_plan")), "is the name of a tool of this server"),
        (tool("name", json!("time_now")), "is the name of a tool of this server"),
        (tool("name", json!("calendar_write")), "is the name of a tool of this server"),
        (json!([weather(), weather()]), "given twice"),
        (tool("description", json!("x".repeat(4_097))), "tools[0].description"),
        (tool("parameters", json!("text")), "tools[0].parameters"),
        (tool("parameters", json!({"type": "array"})), "tools[0].parameters"),
        (tool("parameters", json!({"type": "object", "properties": {"a": {"type": "no such type"}}})), "JSON Schema"),
        (tool("parameters", large), "16384 bytes"),
        (many.into(), "more than 64"),
        (json!([{"name": "x"}]), "tools[0].description must be a string"),
        (json!([{"name": "x", "description": "d", "strict": true}]), "tools[0].strict is not a member"),
        (json!({}), "tools must be an array"),
    ] {
        let mut body = message("run-1", "hello");
        body["tools"] = tools;
        let refused = server.post(RUNS, &body).await;
        assert!(refused.text.contains(words), "{words}: {}", refused.text);
        refused.refused_as(RunInputInvalid, "AGENT_RUN_INPUT_INVALID");
    }
}

#[one_engine]
async fn a_tool_may_not_have_the_name_of_one_of_an_mcp_server(engine: Engine) {
    let server = TestServer::with(engine, |setup| configure_servers(setup, &[("good", "good")])).await;
    let named = |run_id: &str, name: &str| {
        let mut body = message(run_id, "hello");
        body["tools"] = json!([weather()]);
        body["tools"][0]["name"] = json!(name);
        body
    };
    // Runs of threads do not get these tools. The names are reserved all the same, also those that the server does not have yet.
    for name in ["mcp__good__echo", "mcp__good__later"] {
        let refused = server.post(RUNS, &named("run-1", name)).await;
        assert!(refused.text.contains("is the name of a tool of this server"), "{}", refused.text);
        refused.refused_as(RunInputInvalid, "AGENT_RUN_INPUT_INVALID");
    }
    server.post(RUNS, &named("run-1", "mcp__other__echo")).await.with_status(202);
}

#[both_engines]
async fn the_shared_state_reaches_the_agent_and_its_changes_come_back(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let stated = |run_id: &str, state: Value, steps: Value| {
        let mut body = message(run_id, &script(steps));
        body["state"] = state;
        body
    };
    let patch = json!([{"op": "replace", "path": "/count", "value": 2}]);
    let steps = json!([{"state": {"patch": patch}}, {"say": "Counted."}]);
    let first = run(&server, &stated("run-1", json!({"count": 1}), steps)).await;
    let state: Vec<_> =
        first.iter().filter(|event| event.kind().starts_with("STATE_")).map(|event| &event.event).collect();
    assert_eq!((&state[0]["snapshot"], &state[1]["delta"]), (&json!({"count": 1}), &patch));
    // The same state as the thread has is not repeated, and what a client does not send stays as it is.
    let steps = json!([{"state": {"patch": [{"op": "test", "path": "/count", "value": 2}]}}, {"say": "Same."}]);
    for (run_id, state) in [("run-2", json!({"count": 2})), ("run-3", json!({}))] {
        let received = run(&server, &stated(run_id, state, steps.clone())).await;
        assert_eq!(received.iter().filter(|event| event.kind() == "STATE_SNAPSHOT").count(), 0, "{run_id}");
        assert_eq!(received.iter().filter(|event| event.kind() == "STATE_DELTA").count(), 1, "{run_id}");
    }
    // A change of the client's own begins the run.
    let received = run(&server, &stated("run-4", json!({"count": 7}), json!([{"say": "ok"}]))).await;
    assert_eq!(&kinds(&received)[..2], ["RUN_STARTED", "STATE_SNAPSHOT"]);
    assert_eq!(received[1].event["snapshot"], json!({"count": 7}));
    assert_eq!(server.received("run-4").await, received);
}
