//! Tools of the server: calls are checked, authorised, recorded and executed once.

mod agents;
mod approval;
mod children;
mod crashes;
mod ended_commands;
mod mcp_servers;
mod models;
mod redaction;
mod time;
mod two_servers;
mod web;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use futures_util::future::BoxFuture;
use ostler_protocol::{
    Failure,
    FailureKind::*,
    tools::{ToolDefinition, ToolOrigin},
};
use ostler_server::{
    app::App,
    dialect::Dialect,
    tools::{Invocation, ToolContext, ToolError, ToolSource},
};
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use crate::{
    harness::{Engine, ManualRunner, Setup, TestServer, both_engines, eventually, id, one_engine},
    metrics::value,
};

/// Tools of a dialect that the tests control.
#[derive(Clone)]
pub(crate) struct Notebook {
    tools: Vec<Arc<ToolDefinition>>,
    /// How often `write_note` was executed.
    written: Arc<AtomicUsize>,
    /// How often `slow_read` was executed.
    read: Arc<AtomicUsize>,
    /// Lets one call that waits go on.
    release: Arc<Notify>,
    /// Whether the arguments of calls are found invalid when they are checked before a person is asked.
    is_full: Arc<AtomicBool>,
}

impl Notebook {
    pub(crate) fn new() -> Self {
        let define = |name: &str, schema: Value| {
            let schema = schema.as_object().cloned().unwrap();
            ToolDefinition::new(ToolOrigin::Dialect("notebook"), name, "A note.", schema).unwrap()
        };
        let text = json!({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]});
        let tools = vec![
            define("write_note", text.clone()).scope("notes:read"),
            define("slow_write", text).deadline_ms(20_000),
            define("late_write", json!({})).deadline_ms(20),
            define("slow_read", json!({})).reads_only(),
            define("long_read", json!({})).reads_only().output_bytes_max(8),
            define("broken", json!({})),
        ];
        let tools = tools.into_iter().map(Arc::new).collect();
        let (written, read, release, is_full) = Default::default();
        Self { tools, written, read, release, is_full }
    }

    /// Adds the tools to a server.
    pub(crate) fn install(&self, setup: &mut Setup) {
        let dialect = Dialect::new("notebook").tool_source(self.clone());
        setup.dialects = std::mem::take(&mut setup.dialects).with(dialect);
    }

    fn written(&self) -> usize {
        self.written.load(Ordering::SeqCst)
    }
}

impl ToolSource for Notebook {
    fn list<'a>(&'a self, _: &'a App, _: &'a ToolContext) -> BoxFuture<'a, Result<Vec<Arc<ToolDefinition>>, Failure>> {
        Box::pin(async { Ok(self.tools.clone()) })
    }

    fn check<'a>(
        &'a self,
        _: &'a App,
        _: &'a ToolContext,
        _: &'a ToolDefinition,
        _: &'a Map<String, Value>,
    ) -> BoxFuture<'a, Result<Result<(), String>, Failure>> {
        let is_full = self.is_full.load(Ordering::SeqCst);
        Box::pin(async move { Ok(if is_full { Err("the notebook is full".into()) } else { Ok(()) }) })
    }

    fn call<'a>(&'a self, _: &'a App, invocation: &'a Invocation) -> BoxFuture<'a, Result<String, ToolError>> {
        Box::pin(async move {
            match invocation.tool.name.as_str() {
                "write_note" => {
                    self.written.fetch_add(1, Ordering::SeqCst);
                    Ok(format!("written: {}", invocation.arguments["text"].as_str().unwrap_or_default()))
                }
                "slow_write" => {
                    self.written.fetch_add(1, Ordering::SeqCst);
                    self.release.notified().await;
                    Ok("written".into())
                }
                "late_write" => std::future::pending().await,
                "slow_read" => {
                    self.read.fetch_add(1, Ordering::SeqCst);
                    self.release.notified().await;
                    Ok("read".into())
                }
                "long_read" => Ok("ünicode and more".into()),
                _ => panic!("this tool is broken"),
            }
        })
    }
}

/// A run with a command that a runner works on.
pub(crate) struct Work {
    runner: ManualRunner,
    command_id: String,
    calls: AtomicUsize,
}

impl Work {
    pub(crate) async fn begin(server: &TestServer, change: impl FnOnce(&mut Value)) -> Self {
        Self::of(server, server.create_run_with(change).await).await
    }

    /// Of a run that exists.
    pub(crate) async fn of(server: &TestServer, run_id: String) -> Self {
        let command_id = server.turn(&run_id, "hi").await;
        let runner = server.claim(&run_id, "runner-a").await;
        runner.ack(&command_id).await;
        Self { runner, command_id, calls: AtomicUsize::new(0) }
    }

    fn run_id(&self) -> &str {
        &self.runner.run_id
    }

    fn body(&self, call_id: &str, name: &str, arguments: &str) -> Value {
        self.runner.signed(json!({"attemptId": self.runner.attempt_id, "commandId": self.command_id, "callId": call_id,
            "name": name, "arguments": arguments, "waitMs": 20_000}))
    }

    fn path(&self) -> String {
        format!("/api/v1/runs/{}/tools/calls", self.run_id())
    }

    async fn send(&self, server: &TestServer, body: &Value) -> crate::harness::Answer {
        server.post(&self.path(), body).await
    }

    /// A call with an id of its own, to its end.
    async fn call(&self, server: &TestServer, name: &str, arguments: &str) -> Value {
        let number = self.calls.fetch_add(1, Ordering::SeqCst);
        let body = self.body(&format!("call_{number}"), name, arguments);
        self.send(server, &body).await.with_status(200)
    }

    /// The payloads of the run's `tool_call` events.
    async fn recorded(&self, server: &TestServer) -> Vec<Value> {
        server.events_of(self.run_id(), "tool_call").await.iter().map(|event| event["payload"].clone()).collect()
    }
}

fn statuses(recorded: &[Value]) -> Vec<&str> {
    recorded.iter().map(|payload| payload["status"].as_str().unwrap()).collect()
}

#[both_engines]
async fn a_call_is_recorded_with_its_arguments_and_its_result(engine: Engine) {
    let server = TestServer::start(engine).await;
    let work = Work::begin(&server, |_| ()).await;
    let called = work.call(&server, "time_now", r#"{"timezone": "Asia/Tokyo"}"#).await;
    assert_eq!((&called["status"], &called["truncated"]), (&json!("completed"), &json!(false)));
    let time: Value = serde_json::from_str(called["content"].as_str().unwrap()).unwrap();
    assert_eq!((&time["now"], &time["weekday"]), (&json!("2026-01-01T09:00:00+09:00"), &json!("Thursday")));
    let recorded = work.recorded(&server).await;
    assert_eq!(statuses(&recorded), ["started", "completed"]);
    assert_eq!(recorded[0]["arguments"], json!({"timezone": "Asia/Tokyo"}));
    assert_eq!((&recorded[0]["source"], &recorded[0]["type"]), (&json!("built-in"), &json!("toolkit")));
    assert_eq!(recorded[0]["digest"].as_str().unwrap().len(), 64);
    assert_eq!(recorded[1]["result"], called["content"]);
    let result = server.result(work.run_id(), &work.command_id).await;
    assert_eq!(result["toolCallSummary"]["count"], 1);
}

/// Requests to the write lane so far, all of which are events of calls here.
async fn lane_requests(server: &TestServer) -> f64 {
    value(server, "ostler_flush_requests_sum").await
}

#[both_engines]
async fn a_call_without_an_effect_is_recorded_by_one_request_and_others_by_two(engine: Engine) {
    const CALLS: usize = 10;
    let notebook = Notebook::new();
    let server = TestServer::with(engine, |setup| notebook.install(setup)).await;
    let work = Work::begin(&server, |_| ()).await;
    for (tool, arguments, expected) in [("time_now", "{}", 1.0), ("write_note", r#"{"text": "x"}"#, 2.0)] {
        let before = lane_requests(&server).await;
        for _ in 0..CALLS {
            assert_eq!(work.call(&server, tool, arguments).await["status"], "completed");
        }
        // The server may write by itself at the same time.
        let per_call = (lane_requests(&server).await - before) / CALLS as f64;
        assert!((expected..expected + 0.5).contains(&per_call), "{tool}: {per_call}");
    }
    let recorded = work.recorded(&server).await;
    assert_eq!(statuses(&recorded), ["started", "completed"].repeat(2 * CALLS));
}

#[both_engines]
async fn the_start_of_a_call_without_an_effect_is_recorded_if_the_call_takes_long(engine: Engine) {
    let notebook = Notebook::new();
    let server = TestServer::with(engine, |setup| notebook.install(setup)).await;
    let work = Work::begin(&server, |_| ()).await;
    let mut body = work.body("call_a", "slow_read", "{}");
    body["waitMs"] = json!(0);
    work.send(&server, &body).await.with_status(200);
    eventually("its start is recorded", async || {
        (statuses(&work.recorded(&server).await) == ["started"]).then_some(())
    })
    .await;
    notebook.release.notify_one();
    body["waitMs"] = json!(20_000);
    assert_eq!(work.send(&server, &body).await.with_status(200)["content"], "read");
    assert_eq!(statuses(&work.recorded(&server).await), ["started", "completed"]);
    assert_eq!(notebook.read.load(Ordering::SeqCst), 1);
}

#[both_engines]
async fn a_runner_that_was_replaced_records_no_call_without_an_effect(engine: Engine) {
    let server = TestServer::start(engine).await;
    let work = Work::begin(&server, |_| ()).await;
    server.clock.advance_ms(120_000);
    eventually("another runner claims the run", async || {
        let claimed = server.try_claim(work.run_id(), "runner-b", 600_000).await;
        (claimed.status == 200).then_some(())
    })
    .await;
    let body = work.body("call_a", "time_now", "{}");
    work.send(&server, &body).await.with_status(409);
    assert!(work.recorded(&server).await.is_empty());
}

#[both_engines]
async fn the_same_call_again_is_not_executed_again(engine: Engine) {
    let notebook = Notebook::new();
    let server = TestServer::with(engine, |setup| notebook.install(setup)).await;
    let work = Work::begin(&server, |_| ()).await;
    let body = work.body("call_a", "write_note", r#"{"text": "x"}"#);
    let first = work.send(&server, &body).await.with_status(200);
    let mut again = body.clone();
    again["repeated"] = json!(true);
    for body in [&body, &again] {
        assert_eq!(work.send(&server, body).await.with_status(200), first);
    }
    assert_eq!((notebook.written(), work.recorded(&server).await.len()), (1, 2));
    let other = work.body("call_a", "write_note", r#"{"text": "y"}"#);
    work.send(&server, &other).await.refused_by(StateConflict, "tool-call-reused");
    assert_eq!(notebook.written(), 1);
}

/// The server relies on the calls that it knows. Calls that it does not know are found in the log, however many there are.
#[both_engines]
async fn a_call_that_the_runner_has_recorded_is_not_executed_among_many(engine: Engine) {
    let notebook = Notebook::new();
    let server = TestServer::with(engine, |setup| notebook.install(setup)).await;
    let work = Work::begin(&server, |_| ()).await;
    work.call(&server, "time_now", "{}").await;
    for status in ["started", "completed"] {
        let payload = json!({"toolCallId": "earlier", "name": "write_note", "type": "toolkit", "status": status,
            "result": "earlier"});
        work.runner.tell(&work.command_id, "tool_call", payload).await;
    }
    // More than the command's fold has.
    for number in 0..12 {
        let called = work.call(&server, "write_note", &json!({"text": number.to_string()}).to_string()).await;
        assert_eq!(called["content"], format!("written: {number}"));
    }
    let body = work.body("earlier", "write_note", r#"{"text": "x"}"#);
    let called = work.send(&server, &body).await.with_status(200);
    assert_eq!((&called["status"], &called["content"]), (&json!("completed"), &json!("earlier")));
    assert_eq!(notebook.written(), 12);
    let recorded = work.recorded(&server).await;
    assert_eq!(recorded.len(), 2 * 14);
    // The calls of the agent's own tools are known, too.
    let own = json!({"toolCallId": "own", "name": "shell", "type": "command", "status": "completed"});
    work.runner.tell(&work.command_id, "tool_call", own).await;
    work.call(&server, "write_note", r#"{"text": "last"}"#).await;
    assert_eq!(notebook.written(), 13);
    let result = server.result(work.run_id(), &work.command_id).await;
    assert_eq!(result["toolCallSummary"]["count"], 1 + 1 + 12 + 1 + 1);
}

#[both_engines]
async fn calls_of_the_same_command_at_the_same_time_are_each_executed_once(engine: Engine) {
    let notebook = Notebook::new();
    let server = TestServer::with(engine, |setup| notebook.install(setup)).await;
    let work = Work::begin(&server, |_| ()).await;
    for _ in 0..3 {
        let calls = (0..12).map(|_| work.call(&server, "write_note", r#"{"text": "x"}"#));
        for called in futures_util::future::join_all(calls).await {
            assert_eq!(called["status"], "completed", "{called}");
        }
    }
    assert_eq!(notebook.written(), 36);
    let recorded = work.recorded(&server).await;
    let count = |status: &str| statuses(&recorded).iter().filter(|found| **found == status).count();
    assert_eq!((count("started"), count("completed")), (36, 36));
}

#[both_engines]
async fn a_call_goes_on_while_no_client_waits_for_it(engine: Engine) {
    let notebook = Notebook::new();
    let server = TestServer::with(engine, |setup| notebook.install(setup)).await;
    let work = Work::begin(&server, |_| ()).await;
    let mut body = work.body("call_a", "slow_write", r#"{"text": "x"}"#);
    body["waitMs"] = json!(0);
    let running = work.send(&server, &body).await.with_status(200);
    assert_eq!((&running["status"], &running["content"]), (&json!("running"), &json!("")));
    notebook.release.notify_one();
    body["waitMs"] = json!(20_000);
    assert_eq!(work.send(&server, &body).await.with_status(200)["status"], "completed");
    assert_eq!(notebook.written(), 1);
}

#[both_engines]
async fn a_call_that_cannot_be_executed_is_reported_to_the_model_and_recorded(engine: Engine) {
    let notebook = Notebook::new();
    let server = TestServer::with(engine, |setup| notebook.install(setup)).await;
    let work = Work::begin(&server, |_| ()).await;
    for (name, arguments, expected) in [
        ("no_such_tool", "{}", "there is no tool"),
        ("write_note", r#"{"text": 7}"#, "invalid arguments: /text: 7 is not of type"),
        ("write_note", "{", "not JSON"),
        ("time_now", r#"{"timezone": "Mars/Olympus"}"#, "no time zone"),
    ] {
        let called = work.call(&server, name, arguments).await;
        assert_eq!(called["status"], "failed", "{called}");
        assert!(called["content"].as_str().unwrap().contains(expected), "{called}");
    }
    assert_eq!(statuses(&work.recorded(&server).await), ["started", "failed"].repeat(4));
    assert_eq!(notebook.written(), 0);
    let late = work.call(&server, "late_write", "{}").await;
    assert_eq!(late["status"], "outcome-unknown", "what it did before its deadline is not known");
    let long = work.call(&server, "long_read", "{}").await;
    assert_eq!((&long["content"], &long["truncated"]), (&json!("ünicode"), &json!(true)));
    let broken = work.call(&server, "broken", "{}").await;
    assert_eq!(broken["status"], "outcome-unknown", "a tool that panics fails its own call only");
}

#[one_engine]
async fn only_the_holder_of_the_lease_calls_tools(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.token("client", "client", &["hwlab"])).await;
    let work = Work::begin(&server, |_| ()).await;
    let body = work.body("call_a", "time_now", "{}");
    server.caller("client").post(&work.path(), &body).await.refused(Forbidden);
    server.with_token(None).post(&work.path(), &body).await.refused(Unauthenticated);
    let mut stale = body.clone();
    stale["leaseEpoch"] = json!(work.runner.epoch - 1);
    work.send(&server, &stale).await.refused(RunnerLeaseConflict);
    let mut foreign = body.clone();
    foreign["commandId"] = json!(Work::begin(&server, |_| ()).await.command_id);
    work.send(&server, &foreign).await.refused(NotFound);
    assert_eq!(work.recorded(&server).await, Vec::<Value>::new());
    assert_eq!(work.send(&server, &body).await.with_status(200)["status"], "completed");
}

#[both_engines]
async fn a_command_restricts_the_tools_of_its_run(engine: Engine) {
    let notebook = Notebook::new();
    let server = TestServer::with(engine, |setup| notebook.install(setup)).await;
    let run_id = server.create_run().await;
    let payload = json!({"prompt": "hi", "runtimeConfig": {"enabledTools": ["slow_read", "time_now"]}});
    let submitted = server.submit(&run_id, &json!({"type": "turn", "payload": payload})).await.with_status(201);
    let runner = server.claim(&run_id, "runner-a").await;
    let work = Work { runner, command_id: id(&submitted, "commandId"), calls: AtomicUsize::new(0) };
    work.runner.ack(&work.command_id).await;
    let path = format!("/api/v1/runs/{run_id}/tools?commandId={}", work.command_id);
    let listed = server.get(&path).await.with_status(200);
    let names: Vec<_> = listed["tools"].as_array().unwrap().iter().map(|tool| id(tool, "name")).collect();
    assert_eq!(names, ["slow_read", "time_now"]);
    assert_eq!(work.call(&server, "time_now", "{}").await["status"], "completed");
    let again = server.get(&path).await.with_status(200);
    assert_eq!(again["earlierCalls"].as_array().unwrap().len(), 1);
    let without = server.get(&format!("{path}&withoutCalls=true")).await.with_status(200);
    assert_eq!((&without["tools"], &without["earlierCalls"]), (&again["tools"], &json!([])));
    let refused = work.call(&server, "write_note", r#"{"text": "x"}"#).await;
    assert_eq!((&refused["status"], notebook.written()), (&json!("failed"), 0));
    assert!(refused["content"].as_str().unwrap().contains("there is no tool"), "{refused}");
    let other = Work::begin(&server, |_| ()).await;
    let foreign = format!("/api/v1/runs/{run_id}/tools?commandId={}", other.command_id);
    server.get(&foreign).await.refused(NotFound);
}

#[one_engine]
async fn tools_are_listed_and_the_operator_can_try_one(engine: Engine) {
    let notebook = Notebook::new();
    let server = TestServer::with(engine, |setup| {
        notebook.install(setup);
        setup.token("client", "client", &["hwlab"]);
        setup.config.tools.enabled = vec!["time_now".into(), "write_note".into()];
    })
    .await;
    let listed = server.get("/api/v1/tools").await.with_status(200);
    let names: Vec<_> = listed["tools"].as_array().unwrap().iter().map(|tool| id(tool, "name")).collect();
    assert_eq!(names, ["time_now", "write_note"]);
    assert_eq!(
        (&listed["tools"][1]["source"], &listed["tools"][1]["changes"]),
        (&json!("dialect:notebook"), &json!(true))
    );
    server.caller("client").get("/api/v1/tools").await.with_status(200);
    let try_note = "/api/v1/tools/write_note/calls";
    let tried = server.post(try_note, &json!({"arguments": {"text": "x"}})).await.with_status(200);
    assert_eq!((&tried["status"], &tried["content"]), (&json!("completed"), &json!("written: x")));
    server.post(try_note, &json!({"arguments": {}})).await.refused_by(SchemaInvalid, "tool-arguments");
    let nowhere = json!({"arguments": {"timezone": "Mars/Olympus"}});
    server.post("/api/v1/tools/time_now/calls", &nowhere).await.refused_by(SchemaInvalid, "tool-arguments");
    server.post("/api/v1/tools/slow_read/calls", &json!({"arguments": {}})).await.refused_by(NotFound, "tool-unknown");
    server.caller("client").post(try_note, &json!({"arguments": {"text": "x"}})).await.refused(Forbidden);
    assert_eq!(notebook.written(), 1);
}
