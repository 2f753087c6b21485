//! The stages of a run: a router plans, a worker executes the plan, and the stream shows both. The mode of the run decides only where
//! its tools and context come from.

use ostler_protocol::kernel::stages::RouterMode;
use ostler_run_input::config::{RunInputSection, system_agents::SystemAgentsSection};
use ostler_stand_ins::{Endpoint, chat};
use serde_json::{Value, json};

use crate::{
    harness::{Engine, Setup, TestServer, both_engines, eventually, id, one_engine},
    run_input::runs::{
        ReceivedEvent,
        front_end::{answer, pending, result, with_tools},
        message, received,
        resuming::{resume, yes},
        words,
    },
    tools::Notebook,
};

const ROUTER: [&str; 2] = ["STEP_STARTED router", "STEP_FINISHED router"];
/// All tools of the server with the notebook's.
const ALL_TOOLS: [&str; 7] = ["broken", "late_write", "long_read", "slow_read", "slow_write", "time_now", "write_note"];

/// A server whose chats use a model at this endpoint.
async fn server(engine: Engine, endpoint: &Endpoint, change: impl FnOnce(&mut SystemAgentsSection)) -> TestServer {
    server_with(engine, endpoint, change, |_| ()).await
}

async fn server_with(
    engine: Engine,
    endpoint: &Endpoint,
    change: impl FnOnce(&mut SystemAgentsSection),
    choose: impl FnOnce(&mut Setup),
) -> TestServer {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 64;
        setup.config.change(|section: &mut RunInputSection| section.backend_profile = "model".into());
        setup.config.change(|section: &mut SystemAgentsSection| change(section));
        setup.config.tools.enabled = ALL_TOOLS.map(str::to_owned).to_vec();
        Notebook::new().install(setup);
        choose(setup);
    })
    .await;
    let config = format!("[ostler]\nagent = \"model\"\nbase_url = \"{}\"\nmodel = \"small\"\n", endpoint.base_url());
    let path = "/api/v1/provider-profiles/model/config";
    server.call("PUT", path, &json!({"config": config})).await.with_status(200);
    server
}

fn always(agents: &mut SystemAgentsSection) {
    agents.router = RouterMode::Always;
}

/// Sends a message and returns the events of its run.
async fn say(server: &TestServer, run_id: &str, text: &str) -> Vec<ReceivedEvent> {
    received(&server.stream(&message(run_id, text)).await.text)
}

/// The steps of a stream, and where in them messages and tool calls begin.
fn outline(events: &[ReceivedEvent]) -> Vec<String> {
    let line = |event: &ReceivedEvent| {
        let detail = match event.kind() {
            "STEP_STARTED" | "STEP_FINISHED" => &event.event["stepName"],
            "TOOL_CALL_START" => &event.event["toolCallName"],
            "TEXT_MESSAGE_START" | "RUN_FINISHED" | "RUN_ERROR" => &Value::Null,
            _ => return None,
        };
        Some(detail.as_str().map_or_else(|| event.kind().to_owned(), |detail| format!("{} {detail}", event.kind())))
    };
    events.iter().filter_map(line).collect()
}

/// The router's stage, then the worker's with this inside, then the end.
fn both_stages(inside: &[&str]) -> Vec<String> {
    let worker = [&["STEP_STARTED worker"][..], inside, &["STEP_FINISHED worker", "RUN_FINISHED"][..]].concat();
    ROUTER.into_iter().chain(worker).map(str::to_owned).collect()
}

/// The steps of a stream and its end, without what happens in them.
fn steps(events: &[ReceivedEvent]) -> Vec<String> {
    outline(events).into_iter().filter(|line| line.starts_with("STEP_") || line.starts_with("RUN_")).collect()
}

/// The names of the tools that the model was offered with a request.
fn offered(endpoint: &Endpoint, request: usize) -> Vec<String> {
    let body = endpoint.seen()[request].body.clone();
    body["tools"].as_array().into_iter().flatten().map(|tool| id(&tool["function"], "name")).collect()
}

fn sent_messages(endpoint: &Endpoint, request: usize) -> Vec<Value> {
    endpoint.seen()[request].body["messages"].as_array().unwrap().clone()
}

fn last_text(endpoint: &Endpoint, request: usize) -> String {
    id(sent_messages(endpoint, request).last().unwrap(), "content")
}

/// The last phase of this name in the log of the thread's run.
async fn phase(server: &TestServer, name: &str) -> Option<Value> {
    let events = server.events_of(&server.run_of_thread().await, "backend_status").await;
    events.into_iter().map(|event| event["payload"].clone()).rfind(|payload| payload["phase"] == name)
}

#[both_engines]
async fn a_trivial_message_takes_one_request_and_passes_both_stages(engine: Engine) {
    let endpoint = chat();
    let server = server(engine, &endpoint, |agents| assert_eq!(agents.router, RouterMode::Auto)).await;
    let events = say(&server, "run-1", "hello").await;
    assert_eq!(outline(&events), both_stages(&["TEXT_MESSAGE_START"]));
    assert!(words(&events).contains("hello"), "{events:?}");
    assert_eq!(endpoint.seen().len(), 1);
    assert_eq!(offered(&endpoint, 0), [&ALL_TOOLS[..], &["make_plan"][..]].concat());
    assert_eq!(phase(&server, "router:fallback").await, None);
}

#[one_engine]
async fn a_model_that_calls_tools_at_once_needs_no_plan(engine: Engine) {
    let endpoint = chat();
    let server = server(engine, &endpoint, |_| ()).await;
    let events =
        say(&server, "run-1", r#"[[call:time_now {"timezone": "UTC"}||no_such_tool {}||time_now {"timezone": 7}]]"#)
            .await;
    let calls = ["TOOL_CALL_START time_now", "TOOL_CALL_START no_such_tool", "TOOL_CALL_START time_now"];
    let mut seen = outline(&events);
    // The calls are executed at the same time.
    seen[3..6].sort_unstable();
    let mut inside = calls.to_vec();
    inside.sort_unstable();
    inside.push("TEXT_MESSAGE_START");
    assert_eq!(seen, both_stages(&inside));
    assert_eq!(endpoint.seen().len(), 2);
    assert_eq!(offered(&endpoint, 1), ALL_TOOLS, "a plan is made before the work");
    let results: Vec<_> = sent_messages(&endpoint, 1).iter().skip(2).map(|result| id(result, "content")).collect();
    assert!(results[0].contains("2026-01-01"), "{results:?}");
    assert!(results[1].contains("there is no tool") && results[2].contains("invalid arguments"), "{results:?}");
}

#[both_engines]
async fn the_worker_gets_the_tools_and_instructions_of_the_plan(engine: Engine) {
    for (router, first_tools) in [(RouterMode::Auto, ALL_TOOLS.len() + 1), (RouterMode::Always, 1)] {
        let endpoint = chat();
        let server = server(engine, &endpoint, |agents| agents.router = router).await;
        let plan = r#"[[plan:{"tools": ["time_now", "long_read"], "instructions": "Look at the clock."}]]"#;
        let events = say(&server, "run-1", &format!("[[call:time_now {{}}||write_note {{}}]] {plan}")).await;
        let outline = outline(&events);
        assert_eq!(outline[..3], both_stages(&[])[..3], "{router:?}");
        assert!(outline.contains(&"TOOL_CALL_START time_now".to_owned()), "{outline:?}");
        assert!(!outline.contains(&"TOOL_CALL_START make_plan".to_owned()), "a plan is no tool call: {outline:?}");
        assert_eq!(endpoint.seen().len(), 3);
        assert_eq!(offered(&endpoint, 0).len(), first_tools);
        assert_eq!(offered(&endpoint, 1), ["long_read", "time_now"]);
        assert!(last_text(&endpoint, 1).contains("<plan>\nLook at the clock.\n</plan>"));
        assert!(!last_text(&endpoint, 1).contains("<router>"));
        let results = sent_messages(&endpoint, 2);
        assert!(id(results.last().unwrap(), "content").contains("there is no tool"), "write_note is not in the plan");
        let planned = phase(&server, "router:planned").await.unwrap();
        assert_eq!(planned["tools"], json!(["time_now", "long_read"]));
        // The stand-in counts 15 tokens for each request, the router's among them.
        let usage = &events.last().unwrap().event["usage"];
        assert_eq!((usage[0]["totalTokens"].as_u64(), usage[1].is_null()), (Some(45), true), "{usage}");
        // The next message knows nothing of the plan.
        say(&server, "run-2", "hello").await;
        let next = sent_messages(&endpoint, 3);
        assert!(!json!(next).to_string().contains("<plan>"), "{next:?}");
    }
}

#[one_engine]
async fn the_reply_of_a_router_is_not_displayed_and_the_worker_streams(engine: Engine) {
    let endpoint = chat();
    let server = server(engine, &endpoint, always).await;
    let text = r#"[[slow:3]] [[plan-text:{"tools": [], "instructions": "Count."}]]"#;
    let events = say(&server, "run-1", text).await;
    assert_eq!(outline(&events), both_stages(&["TEXT_MESSAGE_START"]));
    assert_eq!(words(&events), "word0 word1 word2 ");
    assert!(last_text(&endpoint, 0).contains("- write_note: A note."));
    assert_eq!((offered(&endpoint, 0), offered(&endpoint, 1)), (vec!["make_plan".to_owned()], vec![]));
    let history = server.get("/api/v1/agent/history").await.ok();
    assert_eq!(history["messages"].as_array().unwrap().len(), 2, "{history}");
}

#[both_engines]
async fn nonsense_of_a_router_falls_back_to_the_whole_worker_and_is_logged(engine: Engine) {
    let endpoint = chat();
    let server = server(engine, &endpoint, always).await;
    let cases = [
        ("[[plan-text:Sure, I will look!]]", "not-json"),
        ("[[plan:{]]", "not-json"),
        ("[[plan-text:{}]]", "shape"),
        (r#"[[plan:{"tools": ["no_such_tool"], "instructions": "x"}]]"#, "unknown-tool"),
        ("[[plan-call:time_now {}]]", "tool-call"),
        ("[[plan-long]]", "too-long"),
        ("[[plan-cut]]", "interrupted"),
    ];
    for (number, (marker, reason)) in cases.into_iter().enumerate() {
        let events = say(&server, &format!("run-{number}"), &format!("[[slow:1]] {marker}")).await;
        assert_eq!(outline(&events), both_stages(&["TEXT_MESSAGE_START"]), "{marker}");
        assert_eq!(words(&events), "word0 ", "{marker}");
        let fallback = phase(&server, "router:fallback").await.unwrap();
        assert_eq!(fallback["reason"], reason, "{marker}");
        assert_eq!(endpoint.seen().len(), 2 * (number + 1), "{marker}");
        assert_eq!(offered(&endpoint, 2 * number + 1), ALL_TOOLS, "{marker}");
    }
}

#[one_engine]
async fn a_router_that_stalls_is_not_waited_for(engine: Engine) {
    let endpoint = chat();
    let server = server(engine, &endpoint, |agents| {
        always(agents);
        agents.router_timeout_ms = 100;
    })
    .await;
    let events = say(&server, "run-1", "[[slow:1]] [[plan-hold]]").await;
    assert_eq!((words(&events).as_str(), endpoint.seen().len()), ("word0 ", 2));
    assert_eq!(phase(&server, "router:fallback").await.unwrap()["reason"], "timed-out");
}

#[one_engine]
async fn nonsense_in_the_first_reply_falls_back_too(engine: Engine) {
    let endpoint = chat();
    let server = server(engine, &endpoint, |_| ()).await;
    let unknown = r#"[[slow:1]] [[plan:{"tools": ["no_such_tool"], "instructions": "x"}]]"#;
    let events = say(&server, "run-1", unknown).await;
    assert_eq!(outline(&events), both_stages(&["TEXT_MESSAGE_START"]));
    assert_eq!(phase(&server, "router:fallback").await.unwrap()["reason"], "unknown-tool");
    assert_eq!(offered(&endpoint, 1), ALL_TOOLS);
    // A model that writes before it plans has begun to work: its words stay, and the plan counts.
    let mixed = r#"[[slow:1]] [[plan-mixed:{"tools": ["time_now"], "instructions": "x"}]]"#;
    let events = say(&server, "run-2", mixed).await;
    assert_eq!(outline(&events), both_stages(&["TEXT_MESSAGE_START", "TEXT_MESSAGE_START"]));
    assert_eq!((words(&events).as_str(), offered(&endpoint, 3)), ("Planning. word0 ", vec!["time_now".to_owned()]));
    // The worker gets these words, so that it does not repeat them.
    let sent = sent_messages(&endpoint, 3);
    let written = &sent[sent.len() - 2];
    assert_eq!((&written["role"], &written["content"]), (&json!("assistant"), &json!("Planning. ")));
    assert!(last_text(&endpoint, 3).starts_with("<plan>"));
}

#[one_engine]
async fn calls_beside_a_plan_are_not_made_and_are_logged(engine: Engine) {
    let endpoint = chat();
    let server = server(engine, &endpoint, |_| ()).await;
    let both = r#"[[slow:1]] [[plan:{"tools": [], "instructions": "x"}||time_now {}]]"#;
    let events = say(&server, "run-1", both).await;
    assert_eq!(outline(&events), both_stages(&["TEXT_MESSAGE_START"]));
    assert_eq!(phase(&server, "router:planned").await.unwrap()["ignoredCalls"], json!(["time_now"]));
}

#[one_engine]
async fn the_worker_gets_the_context_of_the_plan(engine: Engine) {
    let endpoint = chat();
    let server = server(engine, &endpoint, |_| ()).await;
    say(&server, "run-1", "hello").await;
    for (run_id, context, expected) in
        [("run-2", r#"["notes"]"#, (1, true, false)), ("run-3", r#"["conversation", "clock"]"#, (5, false, true))]
    {
        let plan = format!(r#"[[slow:1]] [[plan:{{"tools": [], "context": {context}, "instructions": "x"}}]]"#);
        let mut body = message(run_id, &plan);
        body["context"] = json!([{"description": "Page", "value": "/orders/7"}]);
        server.stream(&body).await;
        let worker = endpoint.seen().len() - 1;
        let text = last_text(&endpoint, worker);
        let found =
            (sent_messages(&endpoint, worker).len(), text.contains("/orders/7"), text.contains("The user's clock"));
        assert_eq!(found, expected, "{run_id}");
        assert!(last_text(&endpoint, worker - 1).contains("/orders/7"), "the router gets all of it");
        assert_eq!(offered(&endpoint, worker), Vec::<String>::new());
    }
}

#[one_engine]
async fn chats_get_the_tools_and_context_of_the_configuration(engine: Engine) {
    let endpoint = chat();
    let server = server(engine, &endpoint, |agents| {
        agents.router = RouterMode::Off;
        agents.enabled_tools = vec!["time_now".into(), "long_read".into()];
        agents.context_messages_max = Some(2);
    })
    .await;
    let events = say(&server, "run-1", r#"[[call:write_note {"text": "x"}]]"#).await;
    let worker = ["STEP_STARTED worker", "TOOL_CALL_START write_note", "TEXT_MESSAGE_START", "STEP_FINISHED worker"];
    assert_eq!(outline(&events), [&worker[..], &["RUN_FINISHED"][..]].concat(), "only the worker's step");
    assert!(words(&events).contains("there is no tool"), "{events:?}");
    assert_eq!(offered(&endpoint, 0), ["long_read", "time_now"]);
    for run_id in ["run-2", "run-3"] {
        say(&server, run_id, "hello").await;
    }
    let last = endpoint.seen().len() - 1;
    assert_eq!(sent_messages(&endpoint, last).len(), 3, "two earlier messages and the prompt");
}

#[both_engines]
async fn automations_get_the_tools_of_their_job_and_the_same_stages(engine: Engine) {
    let endpoint = chat();
    let server = server(engine, &endpoint, |agents| agents.enabled_tools = vec!["long_read".into()]).await;
    let schedule = json!({"type": "daily", "run_at": {"hour": 7, "minute": 0}});
    let job = json!({"title": "Digest", "timezone": "UTC", "config": {"input_template": "[[call:time_now {}]]",
        "enabled_tools": ["time_now"], "schedule": schedule}});
    let job = server.post("/api/v1/automations", &job).await.with_status(201);
    let path = format!("/api/v1/automations/{}/start", id(&job, "id"));
    let start = server.post(&path, &json!({})).await.with_status(202);
    let (thread_id, run_id) = (id(&start, "thread_id"), id(&start, "run_id"));
    let events = server.get(&format!("/api/v1/agent/runs/{thread_id}/events?runId={run_id}")).await;
    let expected = both_stages(&["TOOL_CALL_START time_now", "TEXT_MESSAGE_START"]);
    assert_eq!(outline(&received(&events.text)), expected);
    assert_eq!(offered(&endpoint, 0), ["time_now", "make_plan"]);
    // A chat gets those of the configuration, and is otherwise the same.
    let events = say(&server, "run-1", "[[call:long_read {}]]").await;
    assert_eq!(outline(&events), both_stages(&["TOOL_CALL_START long_read", "TEXT_MESSAGE_START"]));
    assert_eq!(offered(&endpoint, 2), ["long_read", "make_plan"]);
}

#[one_engine]
async fn a_tool_that_is_not_enabled_is_refused_whatever_backend_calls_it(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.change(|agents: &mut SystemAgentsSection| agents.enabled_tools = vec!["time_now".into()]);
        Notebook::new().install(setup);
    })
    .await;
    let command_id = id(&server.say("run-1", "hi").await.with_status(202), "taskId");
    let runner = server.claim(&server.run_of_thread().await, "runner-a").await;
    runner.ack(&command_id).await;
    for (name, arguments, status) in
        [("time_now", "{}", "completed"), ("long_read", "{}", "failed"), ("write_note", r#"{"text": "x"}"#, "failed")]
    {
        let body = runner.signed(json!({"attemptId": runner.attempt_id, "commandId": command_id,
            "callId": format!("call_{name}"), "name": name, "arguments": arguments, "waitMs": 20_000}));
        let called = server.post(&format!("/api/v1/runs/{}/tools/calls", runner.run_id), &body).await.with_status(200);
        assert_eq!(called["status"], status, "{called}");
    }
}

#[one_engine]
async fn the_request_of_a_router_counts_against_the_budget(engine: Engine) {
    let endpoint = chat();
    let plan = r#"[[slow:1]] [[plan:{"tools": [], "instructions": "x"}]]"#;
    // The stand-in counts 15 tokens for each request.
    let limited = |setup: &mut Setup| setup.config.policy.ceiling.max_tokens = Some(15);
    let server = server_with(engine, &endpoint, always, limited).await;
    let events = say(&server, "run-1", plan).await;
    assert_eq!(outline(&events).last().unwrap(), "RUN_ERROR");
    assert_eq!(events.last().unwrap().event["code"], "budget-exceeded");
    assert_eq!(endpoint.seen().len(), 1);
}

#[one_engine]
async fn without_tools_the_first_reply_is_the_workers(engine: Engine) {
    let endpoint = chat();
    let server = server(engine, &endpoint, |agents| agents.enabled_tools = vec![]).await;
    let events = say(&server, "run-1", "hello").await;
    assert_eq!(outline(&events), both_stages(&["TEXT_MESSAGE_START"]));
    assert_eq!((endpoint.seen().len(), offered(&endpoint, 0)), (1, vec![]));
    // A tool that the model invents is the worker's too.
    let events = say(&server, "run-2", "[[call:no_such_tool {}]]").await;
    assert_eq!(outline(&events), both_stages(&["TOOL_CALL_START no_such_tool", "TEXT_MESSAGE_START"]));
    assert_eq!(phase(&server, "router:fallback").await, None);
}

#[one_engine]
async fn a_plan_that_the_worker_makes_is_a_call_of_an_unknown_tool(engine: Engine) {
    let endpoint = chat();
    let server = server(engine, &endpoint, always).await;
    let plan = r#"[[plan:{"tools": ["time_now"], "instructions": "x"}]]"#;
    let events = say(&server, "run-1", &format!("[[call:make_plan {{}}]] {plan}")).await;
    assert!(words(&events).contains("there is no tool"), "{events:?}");
    assert_eq!(endpoint.seen().len(), 3);
}

#[both_engines]
async fn tools_of_the_front_end_are_offered_to_router_and_worker(engine: Engine) {
    for router in [RouterMode::Auto, RouterMode::Always] {
        let endpoint = chat();
        let server = server(engine, &endpoint, |agents| {
            agents.router = router;
            agents.enabled_tools = vec!["time_now".into()];
        })
        .await;
        let plan = r#"[[plan:{"tools": ["get_weather"], "context": ["state"], "instructions": "Look it up."}]]"#;
        let call = r#"[[call:get_weather {"city": "Oslo"}]]"#;
        let mut body = with_tools("run-1", &format!("{call} {plan}"));
        body["state"] = json!({"city": "Oslo"});
        let first = received(&server.stream(&body).await.text);
        let calls = pending(&first);
        assert_eq!(calls.len(), 1, "{router:?}: {first:?}");
        assert_eq!(outline(&first), both_stages(&["TOOL_CALL_START get_weather"]), "{router:?}");
        if router == RouterMode::Auto {
            let all = ["time_now", "get_weather", "confirm", "update_shared_state", "make_plan"];
            assert_eq!(offered(&endpoint, 0), all);
        } else {
            assert!(last_text(&endpoint, 0).contains("- get_weather: Weather of a city\n"));
        }
        assert_eq!(offered(&endpoint, 1), ["get_weather"], "{router:?}");
        let text = last_text(&endpoint, 1);
        assert!(text.contains("that you share with the user's page") && !text.contains("The user's clock"), "{text}");
        // A run that only answers the call goes on with the work: its router takes no request of its own.
        let mut body = answer("run-2", vec![result(&calls[0], "12 °C")]);
        body["tools"] = with_tools("", "")["tools"].clone();
        let second = received(&server.stream(&body).await.text);
        assert_eq!(outline(&second), both_stages(&["TEXT_MESSAGE_START"]), "{router:?}");
        assert_eq!((words(&second).as_str(), endpoint.seen().len()), ("The tool said: 12 °C", 3), "{router:?}");
        assert_eq!(offered(&endpoint, 2), ["time_now", "get_weather", "confirm", "make_plan"]);
        assert_eq!(sent_messages(&endpoint, 2).last().unwrap()["role"], "tool");
    }
}

#[one_engine]
async fn a_tool_of_the_front_end_that_is_not_in_the_plan_is_not_called(engine: Engine) {
    let endpoint = chat();
    let server = server(engine, &endpoint, always).await;
    let plan = r#"[[plan:{"tools": ["confirm"], "instructions": "Ask."}]]"#;
    let body = with_tools("run-1", &format!(r#"[[call:get_weather {{"city": "Oslo"}}]] {plan}"#));
    let events = received(&server.stream(&body).await.text);
    assert_eq!(pending(&events), Vec::<String>::new());
    assert!(words(&events).contains("there is no tool \"get_weather\"; the tools are: confirm"), "{events:?}");
}

#[both_engines]
async fn a_resumed_run_continues_the_workers_step(engine: Engine) {
    let endpoint = chat();
    let server = server(engine, &endpoint, always).await;
    let plan = r#"[[plan:{"tools": ["write_note"], "instructions": "Write it."}]]"#;
    let events = say(&server, "run-1", &format!(r#"[[call:write_note {{"text": "milk"}}]] {plan}"#)).await;
    let outcome = &events.last().unwrap().event["outcome"];
    assert_eq!((&outcome["type"], steps(&events)), (&json!("interrupt"), both_stages(&[])));
    let interrupt = id(&outcome["interrupts"][0], "id");
    let events = received(&server.stream(&resume("run-2", &[(&interrupt, yes())])).await.text);
    assert_eq!(steps(&events), both_stages(&[])[2..]);
    assert!(words(&events).contains("written: milk"), "{events:?}");
    assert_eq!(endpoint.seen().len(), 3, "the plan is not made again");
}

#[one_engine]
async fn the_kernels_log_has_the_steps_of_every_run(engine: Engine) {
    let endpoint = chat();
    let server = server(engine, &endpoint, |_| ()).await;
    for (run_id, text) in [("run-1", "hello"), ("run-2", "[[cut]]")] {
        let events = say(&server, run_id, text).await;
        let end = if run_id == "run-1" { "RUN_FINISHED" } else { "RUN_ERROR" };
        assert_eq!(steps(&events).last().unwrap(), end);
        let logged = server.events_of(&server.run_of_thread().await, "step").await;
        let logged: Vec<_> = logged.iter().map(|event| event["payload"].clone()).collect();
        let step = |name: &str, status: &str| json!({"name": name, "status": status});
        let both = [
            step("router", "started"),
            step("router", "finished"),
            step("worker", "started"),
            step("worker", "finished"),
        ];
        assert!(logged.ends_with(&both), "{run_id}: {logged:?}");
    }
}

#[one_engine]
async fn a_cancelled_router_leaves_no_step_open(engine: Engine) {
    let endpoint = chat();
    let server = server(engine, &endpoint, always).await;
    server.say("run-1", "[[slow:1]] [[plan-hold]]").await.with_status(202);
    eventually("the router stalls", async || (endpoint.seen().len() == 1).then_some(())).await;
    server.cancel_agent_run("run-1").await.with_status(202);
    let events = server.received("run-1").await;
    assert_eq!(outline(&events), ["STEP_STARTED router", "STEP_FINISHED router", "RUN_FINISHED"]);
    assert_eq!(events.last().unwrap().event["outcome"]["type"], "cancelled");
    assert_eq!((endpoint.seen().len(), phase(&server, "router:fallback").await), (1, None));
}

#[one_engine]
async fn a_cancelled_worker_leaves_no_step_open(engine: Engine) {
    let endpoint = chat();
    let server = server(engine, &endpoint, always).await;
    server.say("run-1", r#"[[hold]] [[plan:{"tools": [], "instructions": "x"}]]"#).await.with_status(202);
    eventually("the worker stalls", async || (endpoint.seen().len() == 2).then_some(())).await;
    server.cancel_agent_run("run-1").await.with_status(202);
    let events = server.received("run-1").await;
    let outline = outline(&events);
    assert_eq!(outline[outline.len() - 2..], ["STEP_FINISHED worker", "RUN_FINISHED"]);
    assert_eq!(events.last().unwrap().event["outcome"]["type"], "cancelled");
}
