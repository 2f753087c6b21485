//! Runs that `run_agent` starts.

use std::sync::atomic::AtomicUsize;

use ostler_protocol::{FailureKind::*, kernel::runs::CHILD_RUN_KEY};
use ostler_stand_ins::chat;
use serde_json::{Value, json};
use sqlx::Executor;

use super::{Notebook, Work, crashes::take_over, models::set_model};
use crate::harness::{Engine, ManualRunner, TestServer, both_engines, eventually, id, one_engine, run};

const CALL: &str = r#"{"profile": "scripted", "prompt": "hello"}"#;

/// A server without runners of its own, so that children wait.
async fn scene(engine: Engine) -> TestServer {
    TestServer::with(engine, |setup| {
        setup.config.runner.slots = 0;
        setup.config.tools.run_agent.profiles = vec!["scripted".into()];
    })
    .await
}

async fn children_of(server: &TestServer, work: &Work) -> Vec<Value> {
    let listed = server.get("/api/v1/runs?tenantId=hwlab").await.with_status(200);
    let runs = listed["runs"].as_array().unwrap().iter();
    runs.filter(|run| run["runId"] != work.run_id()).cloned().collect()
}

async fn child_of(server: &TestServer, work: &Work) -> Value {
    eventually("the child is created", async || children_of(server, work).await.pop()).await
}

async fn cancel_run(server: &TestServer, run: &Value) {
    server.post(&format!("/api/v1/runs/{}/cancel", id(run, "runId")), &json!({})).await.with_status(200);
}

fn text(called: &Value) -> &str {
    called["content"].as_str().unwrap()
}

/// An agent that a user has granted the right to run agents. `profile`: the only one that runs it.
async fn delegating_agent(server: &TestServer, profile: Option<&str>) -> Value {
    let scope = json!({"id": "agents:run", "label_i18n_key": "a.b", "label_fallback": "Run agents",
        "description_fallback": "Runs other agents.", "sensitivity": "low"});
    let manifest =
        json!({"schema_version": "1.0", "agent_version": "1.0.0", "tools": [], "permission_scopes": [scope]});
    let mut agent = json!({"name": "delegates", "capability_manifest": manifest});
    if let Some(profile) = profile {
        agent["backend_profile"] = json!(profile);
    }
    let agent = server.post("/agents", &agent).await.with_status(201);
    let grant = json!({"agent_id": agent["id"], "granted_scopes": ["agents:run"], "denied_scopes": [],
        "manifest_hash": agent["capability_manifest_hash"]});
    server.post("/h2a/relations", &grant).await.with_status(201);
    agent
}

#[one_engine]
async fn a_child_is_cancelled_with_the_command_that_started_it(engine: Engine) {
    let server = scene(engine).await;
    let work = Work::begin(&server, |_| ()).await;
    let (called, child) = tokio::join!(work.call(&server, "run_agent", CALL), async {
        let child = child_of(&server, &work).await;
        server.cancel_command(&work.command_id).await;
        child
    });
    assert_eq!(called["status"], "failed", "{called}");
    assert!(called["content"].as_str().unwrap().contains("the command has ended"), "{called}");
    eventually("the child is cancelled", async || {
        (server.run(&id(&child, "runId")).await["status"] == "cancelled").then_some(())
    })
    .await;
}

#[one_engine]
async fn a_child_of_an_agents_run_is_a_run_of_the_same_agent(engine: Engine) {
    let server = scene(engine).await;
    let agent = delegating_agent(&server, None).await;
    let work = Work::begin(&server, |run| run["agentId"] = agent["id"].clone()).await;
    let (_, child) = tokio::join!(work.call(&server, "run_agent", CALL), async {
        let child = child_of(&server, &work).await;
        server.cancel_command(&work.command_id).await;
        child
    });
    let parent = server.run(work.run_id()).await;
    assert!(parent["agentId"].is_string(), "{parent}");
    assert_eq!(child["agentId"], parent["agentId"]);
}

#[one_engine]
async fn a_child_that_its_agent_cannot_have_gets_the_tools_of_the_scopes_that_the_agent_has(engine: Engine) {
    let (endpoint, notebook) = (chat(), Notebook::new());
    let server = TestServer::with(engine, |setup| {
        notebook.install(setup);
        setup.config.runner.slots = 0;
        setup.config.tools.run_agent.profiles = vec!["model".into()];
    })
    .await;
    set_model(&server, &endpoint).await;
    let agent = delegating_agent(&server, Some("scripted")).await;
    let work = Work::begin(&server, |run| run["agentId"] = agent["id"].clone()).await;
    let prompt = r#"{"profile": "model", "prompt": "hello"}"#;
    let (_, (child, offered)) = tokio::join!(work.call(&server, "run_agent", prompt), async {
        let child = child_of(&server, &work).await;
        let child_id = id(&child, "runId");
        let commands = server.store(&format!("SELECT command_id FROM commands WHERE run_id = '{child_id}'")).await;
        let listed = server.get(&format!("/api/v1/runs/{child_id}/tools?commandId={}", commands[0])).await;
        server.cancel_command(&work.command_id).await;
        (child, listed.with_status(200))
    });
    assert!(child["agentId"].is_null(), "{child}");
    let names: Vec<_> = offered["tools"].as_array().unwrap().iter().map(|tool| id(tool, "name")).collect();
    let has = |name: &str| names.iter().any(|offered| offered == name);
    assert!(has("time_now") && has("run_agent"), "those without a scope and of granted ones: {names:?}");
    assert!(!has("write_note") && !has("calendar_write") && !has("calendar_read"), "{names:?}");
}

#[one_engine]
async fn agents_start_others_three_levels_deep_at_most(engine: Engine) {
    let server = scene(engine).await;
    let mut work = Work::begin(&server, |_| ()).await;
    let mut levels = vec![work.run_id().to_owned()];
    for level in 1..=3 {
        let mut body = work.body("call_child", "run_agent", CALL);
        body["waitMs"] = json!(0);
        work.send(&server, &body).await.with_status(200);
        let run_id = eventually("the child is created", async || {
            let children = children_of(&server, &work).await;
            children.iter().map(|run| id(run, "runId")).find(|run_id| !levels.contains(run_id))
        })
        .await;
        let commands = server.store(&format!("SELECT command_id FROM commands WHERE run_id = '{run_id}'")).await;
        let runner = server.claim(&run_id, &format!("runner-{level}")).await;
        runner.ack(&commands[0]).await;
        levels.push(run_id);
        work = Work { runner, command_id: commands[0].clone(), calls: AtomicUsize::new(0) };
    }
    let called = work.call(&server, "run_agent", CALL).await;
    assert_eq!(called["status"], "failed", "{called}");
    assert_eq!(text(&called), "agents may start others 3 levels deep at most");
    assert_eq!(children_of(&server, &work).await.len(), 3, "no run was created");
}

#[both_engines]
async fn a_second_child_waits_for_the_budget_that_the_first_has_reserved(engine: Engine) {
    let server = scene(engine).await;
    let work = Work::begin(&server, |run| run["executionPolicy"] = json!({"maxTokens": 1_000})).await;
    let calls = async { tokio::join!(work.call(&server, "run_agent", CALL), work.call(&server, "run_agent", CALL)) };
    let ((first, second), ()) = tokio::join!(calls, async {
        let child = child_of(&server, &work).await;
        assert_eq!(child["executionPolicy"]["maxTokens"], 1_000);
        eventually("both calls are recorded", async || (work.recorded(&server).await.len() == 2).then_some(())).await;
        server.clock.advance_ms(1_000);
        assert_eq!(children_of(&server, &work).await.len(), 1);
        cancel_run(&server, &child).await;
        let next = eventually("the second child is created", async || {
            children_of(&server, &work).await.into_iter().find(|run| run["runId"] != child["runId"])
        })
        .await;
        assert_eq!(next["executionPolicy"]["maxTokens"], 1_000, "the first has used nothing");
        assert_ne!(next["createdAt"], child["createdAt"], "it was not started with the first");
        server.cancel_command(&work.command_id).await;
    });
    let mut texts = [text(&first), text(&second)];
    texts.sort_unstable();
    assert!(texts[0].contains("the agent's run ended: cancelled"), "{texts:?}");
    assert!(texts[1].contains("the command has ended"), "{texts:?}");
}

/// Children are stored only when a lock of the test is free, so that both servers have read the children of the run before either
/// stores its own.
#[test]
fn of_two_children_that_two_servers_start_at_the_same_moment_one_keeps_the_budget() {
    run(async {
        let first = scene(Engine::Postgres).await;
        let second = first.start_another(|_| ()).await;
        let work = Work::begin(&first, |run| run["executionPolicy"] = json!({"maxTokens": 1_000})).await;
        let wait = "CREATE FUNCTION wait_for_test() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_advisory_xact_lock_shared(42); RETURN NEW; END $$";
        first.store(wait).await;
        let trigger = format!(
            "CREATE TRIGGER wait_for_test BEFORE INSERT ON runs FOR EACH ROW
             WHEN (starts_with(NEW.idempotency_key, '{CHILD_RUN_KEY}')) EXECUTE FUNCTION wait_for_test()"
        );
        first.store(&trigger).await;
        let mut gate = first.connection().await;
        gate.execute("SELECT pg_advisory_lock(42)").await.unwrap();
        let calls = async { tokio::join!(work.call(&first, "run_agent", CALL), work.call(&second, "run_agent", CALL)) };
        let ((one, other), ()) = tokio::join!(calls, async {
            let waiting = "SELECT 'x' FROM pg_stat_activity
                WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = 'advisory'";
            eventually("both children are about to be stored", async || {
                (first.store(waiting).await.len() == 2).then_some(())
            })
            .await;
            gate.execute("SELECT pg_advisory_unlock(42)").await.unwrap();
            let kept = eventually("one of the two is cancelled", async || {
                let children = children_of(&first, &work).await;
                let (cancelled, mut kept): (Vec<_>, Vec<_>) =
                    children.into_iter().partition(|child| child["status"] == "cancelled");
                kept.pop().filter(|_| cancelled.len() == 1 && kept.is_empty())
            })
            .await;
            assert_eq!(kept["executionPolicy"]["maxTokens"], 1_000);
            cancel_run(&first, &kept).await;
        });
        for called in [one, other] {
            assert_eq!(called["status"], "failed", "{called}");
        }
        let granted = children_of(&first, &work).await;
        assert_eq!(granted.len(), 2, "neither call was tried again: {granted:?}");
    });
}

/// A runner that claims a child, and the child's command. Its lease outlives that of the parent's runner.
async fn play_child(server: &TestServer, child: &Value) -> (ManualRunner, String) {
    let run_id = id(child, "runId");
    let commands = server.store(&format!("SELECT command_id FROM commands WHERE run_id = '{run_id}'")).await;
    let claimed = server.try_claim(&run_id, "runner-b", 600_000).await.with_status(200);
    let runner = ManualRunner::new(server.with_token(server.token()), &run_id, "runner-b", &claimed);
    runner.ack(&commands[0]).await;
    (runner, commands[0].clone())
}

/// A call of the agent's own tools.
async fn call_own_tool(runner: &ManualRunner, command_id: &str, call_id: &str) {
    let call = json!({"toolCallId": call_id, "name": "shell", "status": "completed"});
    runner.tell(command_id, "tool_call", call).await;
}

#[both_engines]
async fn the_tool_calls_of_a_child_count_against_the_budget_of_its_parent(engine: Engine) {
    let server = scene(engine).await;
    let work = Work::begin(&server, |run| run["executionPolicy"] = json!({"maxToolCalls": 4})).await;
    let (called, ()) = tokio::join!(work.call(&server, "run_agent", CALL), async {
        let child = child_of(&server, &work).await;
        assert_eq!(child["executionPolicy"]["maxToolCalls"], 3, "the call that starts it is one of the four");
        let (runner, command_id) = play_child(&server, &child).await;
        call_own_tool(&runner, &command_id, "a").await;
        call_own_tool(&runner, &command_id, "b").await;
        runner.end(&command_id, "completed").await;
    });
    assert_eq!((&called["status"], &called["delegatedToolCalls"]), (&json!("completed"), &json!(2)), "{called}");
    let result = server.result(work.run_id(), &work.command_id).await;
    assert_eq!(result["usage"]["delegatedToolCalls"], 2, "{result}");
    assert_eq!(result["toolCallSummary"]["count"], 1, "{result}");
    // This is the fourth call, so that none is left for the run that it would start.
    let again = work.call(&server, "run_agent", CALL).await;
    assert_eq!(text(&again), "the run's budget is used up", "{again}");
    assert_eq!(children_of(&server, &work).await.len(), 1);
}

#[both_engines]
async fn a_child_gets_no_tool_calls_that_the_rest_of_the_reply_needs(engine: Engine) {
    let server = scene(engine).await;
    let work = Work::begin(&server, |run| run["executionPolicy"] = json!({"maxToolCalls": 20})).await;
    let of_reply = |call_id: &str, tool: &str, arguments: &str| {
        let mut body = work.body(call_id, tool, arguments);
        body["replyCalls"] = json!(["call_child", "call_time", "call_later"]);
        body
    };
    work.send(&server, &of_reply("call_time", "time_now", "{}")).await.with_status(200);
    // So many that the command's fold does not list the call before.
    for number in 0..12 {
        call_own_tool(&work.runner, &work.command_id, &format!("own_{number}")).await;
    }
    let body = of_reply("call_child", "run_agent", CALL);
    let (_, child) = tokio::join!(work.send(&server, &body), async {
        let child = child_of(&server, &work).await;
        server.cancel_command(&work.command_id).await;
        child
    });
    assert_eq!(child["executionPolicy"]["maxToolCalls"], 5, "14 calls were made, and one is to come: {child}");
}

/// A child whose parent has another runner since, so that the call which started it cannot record anything.
struct LostChild {
    server: TestServer,
    work: Work,
    run: Value,
    /// The child's own runner, which outlives the one of its parent.
    runner: ManualRunner,
    command_id: String,
}

/// A lost child that has used 300 tokens and has called a tool.
async fn lose_child(engine: Engine) -> LostChild {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 0;
        setup.config.tools.run_agent.profiles = vec!["scripted".into()];
        setup.config.limits.recheck_ms = 50;
    })
    .await;
    let work = Work::begin(&server, |run| run["executionPolicy"] = json!({"maxTokens": 1_000})).await;
    let mut body = work.body("call_lost", "run_agent", CALL);
    body["waitMs"] = json!(0);
    work.send(&server, &body).await.with_status(200);
    let run = child_of(&server, &work).await;
    let (runner, command_id) = play_child(&server, &run).await;
    runner.tell(&command_id, "usage", json!({"totalTokens": 300, "costUsd": 0.25})).await;
    call_own_tool(&runner, &command_id, "a").await;
    let work = take_over(&server, work).await;
    LostChild { server, work, run, runner, command_id }
}

/// Another call is charged for what the lost child has used.
#[both_engines]
async fn a_child_of_a_runner_that_was_replaced_is_cancelled_and_keeps_its_budget_until_it_ends(engine: Engine) {
    let LostChild { server, work, run: lost, runner, command_id } = lose_child(engine).await;
    eventually("the child is being cancelled", async || {
        (!server.run(&id(&lost, "runId")).await["cancelRequestedAt"].is_null()).then_some(())
    })
    .await;
    let other = CALL.replace("\"prompt\": \"", "\"prompt\": \"other: ");
    let (called, next) = tokio::join!(work.call(&server, "run_agent", &other), async {
        eventually("the second call is recorded", async || (work.recorded(&server).await.len() == 2).then_some(()))
            .await;
        assert_eq!(children_of(&server, &work).await.len(), 1, "the first may still use what it was given");
        runner.end(&command_id, "cancelled").await;
        let next = eventually("the second child is created", async || {
            children_of(&server, &work).await.into_iter().find(|run| run["runId"] != lost["runId"])
        })
        .await;
        cancel_run(&server, &next).await;
        next
    });
    assert_eq!(next["executionPolicy"]["maxTokens"], 700, "{next}");
    assert!(text(&called).contains("the agent's run ended: cancelled"), "{called}");
    let recorded = work.recorded(&server).await;
    assert_eq!(recorded.last().unwrap()["totalTokens"], 300, "{recorded:?}");
    // A runner that takes a command over records that the open calls have no known outcome.
    let lost_call = json!({"toolCallId": "call_lost", "status": "outcome-unknown"});
    work.runner.tell(&work.command_id, "tool_call", lost_call).await;
    let again = work.call(&server, "run_agent", CALL).await;
    assert_eq!(again["status"], "declined", "the lost child may have done the same already: {again}");
    assert_eq!(children_of(&server, &work).await.len(), 2);
}

#[one_engine]
async fn children_of_a_run_without_such_a_budget_run_at_once(engine: Engine) {
    let server = scene(engine).await;
    let work = Work::begin(&server, |_| ()).await;
    let calls = async { tokio::join!(work.call(&server, "run_agent", CALL), work.call(&server, "run_agent", CALL)) };
    tokio::join!(calls, async {
        eventually("both children are created", async || (children_of(&server, &work).await.len() == 2).then_some(()))
            .await;
        server.cancel_command(&work.command_id).await;
    });
}

#[both_engines]
async fn a_run_whose_token_was_revoked_starts_no_agent_and_waits_for_the_one_that_it_has(engine: Engine) {
    let server = scene(engine).await;
    let token = json!({"name": "ci", "role": "client", "tenants": ["hwlab"]});
    let token = server.post("/api/v1/tokens", &token).await.with_status(201);
    let client = server.with_token(Some(&id(&token, "token")));
    let work = Work::of(&server, client.create_run_with(|_| ()).await).await;
    let (called, ()) = tokio::join!(work.call(&server, "run_agent", CALL), async {
        let child = child_of(&server, &work).await;
        let path = format!("/api/v1/tokens/{}", id(&token, "tokenId"));
        server.send(server.request("DELETE", &path)).await.with_status(200);
        cancel_run(&server, &child).await;
    });
    assert!(text(&called).contains("the agent's run ended: cancelled"), "{called}");
    let refused = work.call(&server, "run_agent", CALL).await;
    assert!(text(&refused).contains("may not start runs any more"), "{refused}");
    assert_eq!(children_of(&server, &work).await.len(), 1);
}

#[both_engines]
async fn a_child_of_a_users_run_is_the_same_users_and_no_wider(engine: Engine) {
    let server = scene(engine).await;
    let (mut callers, mut user_ids) = (vec![], vec![]);
    for (name, tenant) in [("ada", "hwlab"), ("bob", "local")] {
        let user = json!({"name": name, "timezone": "UTC", "tenants": [tenant]});
        user_ids.push(id(&server.post("/api/v1/users", &user).await.with_status(201), "userId"));
        let token = server.post(&format!("/api/v1/users/{name}/token"), &json!({})).await.with_status(201);
        callers.push(server.with_token(Some(&id(&token, "token"))));
    }
    let policy = json!({"network": "disabled", "timeoutMs": 60_000, "maxToolCalls": 5});
    let run_id = callers[0].create_run_with(|run| run["executionPolicy"] = policy.clone()).await;
    let work = Work::of(&server, run_id).await;
    let mut calling = std::pin::pin!(work.call(&server, "run_agent", CALL));
    let child = tokio::select! {
        called = &mut calling => panic!("the call ended: {called}"),
        child = child_of(&server, &work) => child,
    };
    server.cancel_command(&work.command_id).await;
    calling.await;
    let creators = server.store("SELECT created_by FROM runs").await;
    assert_eq!(creators, [user_ids[0].as_str(); 2]);
    let given = &child["executionPolicy"];
    assert_eq!((&given["network"], &given["maxToolCalls"]), (&json!("disabled"), &json!(4)));
    assert!(given["timeoutMs"].as_i64().unwrap() <= 60_000, "{child}");
    let path = format!("/api/v1/runs/{}", id(&child, "runId"));
    callers[0].get(&path).await.with_status(200);
    callers[1].get(&path).await.refused(NotFound);
}

#[both_engines]
async fn the_outcome_of_a_child_is_never_unread(engine: Engine) {
    let server = scene(engine).await;
    let work = Work::begin(&server, |_| ()).await;
    let listed = async |query: &str| {
        let page = server.get(&format!("/api/v1/sessions?{query}")).await.with_status(200);
        let sessions = page["sessions"].as_array().unwrap().iter();
        sessions.map(|session| (id(session, "sessionId"), session["unread"] == true)).collect::<Vec<_>>()
    };
    let (_, child) = tokio::join!(work.call(&server, "run_agent", CALL), async {
        let child = child_of(&server, &work).await;
        let session_id = id(&child, "sessionId");
        assert!(listed("readerId=me").await.contains(&(session_id.clone(), false)), "it is listed while it runs");
        cancel_run(&server, &child).await;
        session_id
    });
    work.runner.end(&work.command_id, "completed").await;
    let own = id(&server.run(work.run_id()).await, "sessionId");
    let read = json!({"readerId": "me", "version": 0});
    for session_id in [&own, &child] {
        // A reader that has marked anything is read from its marks.
        let unread = listed("readerId=me").await;
        assert!(unread.contains(&(own.clone(), true)), "{unread:?}");
        assert!(unread.iter().all(|(session_id, _)| *session_id != child), "{unread:?}");
        server.post(&format!("/api/v1/sessions/{session_id}/read"), &read).await.with_status(200);
        server.clock.advance_ms(120_000);
    }
    let unread = listed("readerId=me").await;
    assert!(unread.iter().all(|(session_id, _)| *session_id != child), "{unread:?}");
    assert!(listed("state=all&readerId=me").await.contains(&(child, false)));
}

/// The agent makes no other such call.
#[both_engines]
async fn the_use_of_a_lost_child_is_charged_when_it_has_ended(engine: Engine) {
    let LostChild { server, work, run: lost, runner, command_id } = lose_child(engine).await;
    let lost_call = json!({"toolCallId": "call_lost", "status": "outcome-unknown"});
    work.runner.tell(&work.command_id, "tool_call", lost_call).await;
    eventually("the child is being cancelled", async || {
        (!server.run(&id(&lost, "runId")).await["cancelRequestedAt"].is_null()).then_some(())
    })
    .await;
    runner.end(&command_id, "cancelled").await;
    let usage = eventually("its use is charged", async || {
        let usage = server.result(work.run_id(), &work.command_id).await["usage"].take();
        (usage["delegatedTokens"] != 0).then_some(usage)
    })
    .await;
    assert_eq!((&usage["delegatedTokens"], &usage["delegatedCostUsd"]), (&json!(300), &json!(0.25)));
    assert_eq!(usage["delegatedToolCalls"], 1, "{usage}");
    // It is charged once, also if the runner is replaced again.
    let work = take_over(&server, work).await;
    work.runner.tell(&work.command_id, "usage", json!({"totalTokens": 700})).await;
    let usage = server.result(work.run_id(), &work.command_id).await["usage"].take();
    assert_eq!((&usage["totalTokens"], &usage["delegatedTokens"]), (&json!(700), &json!(300)));
    let reported = server.events_of(work.run_id(), "backend_status").await;
    assert_eq!(reported.iter().filter(|event| event["payload"]["phase"] == "runs:charged").count(), 1, "{reported:?}");
}
