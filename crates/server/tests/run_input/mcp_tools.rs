//! Tools of MCP servers in chats and automations: only those that the operator names, and never without a word.

use ostler_protocol::{FailureKind::*, kernel::policy::Approval};
use ostler_run_input::config::{RunInputSection, automations::AutomationsSection, system_agents::SystemAgentsSection};
use ostler_stand_ins::{Endpoint, chat};
use serde_json::{Value, json};

use crate::{
    harness::{Engine, Setup, TestServer, both_engines, eventually, id, one_engine},
    mcp::configure_servers,
    run_input::{automations::AUTOMATIONS, runs},
};

/// A server whose chats are runs of a model, with two MCP servers of which one does not exist, and these tools enabled.
async fn server(engine: Engine, endpoint: &Endpoint, enabled: &[&str]) -> TestServer {
    server_with(engine, endpoint, enabled, Approval::Never).await
}

async fn server_with(engine: Engine, endpoint: &Endpoint, enabled: &[&str], approval: Approval) -> TestServer {
    server_that(engine, endpoint, enabled, approval, |_| ()).await
}

async fn server_that(
    engine: Engine,
    endpoint: &Endpoint,
    enabled: &[&str],
    approval: Approval,
    choose: impl FnOnce(&mut Setup),
) -> TestServer {
    let server = TestServer::with(engine, |setup| {
        choose(setup);
        setup.config.runner.slots = 2;
        configure_servers(setup, &[("good", "good"), ("gone", "good")]);
        if let Some(gone) = setup.config.mcp.servers.get_mut("gone") {
            gone.command = Some("no-such-program-of-the-tests".into());
        }
        setup.config.change(|section: &mut RunInputSection| {
            section.backend_profile = "model".into();
            section.approval = approval;
        });
        setup.config.change(|automations: &mut AutomationsSection| automations.poll_ms = 20);
        setup.config.change(|agents: &mut SystemAgentsSection| {
            agents.enabled_tools = enabled.iter().map(|name| (*name).to_owned()).collect();
        });
    })
    .await;
    let config = format!("[ostler]\nagent = \"model\"\nbase_url = \"{}\"\nmodel = \"small\"\n", endpoint.base_url());
    server.call("PUT", "/api/v1/provider-profiles/model/config", &json!({"config": config})).await.with_status(200);
    server
}

fn automation(enabled: &[&str]) -> Value {
    json!({"title": "Digest", "timezone": "UTC", "config": {"input_template": "[[call:mcp__good__echo {\"a\": 1}]]",
        "enabled_tools": enabled, "schedule": {"type": "daily", "run_at": {"hour": 7, "minute": 0}}}})
}

#[one_engine]
async fn a_chat_gets_the_tools_of_mcp_servers_that_the_operator_names(engine: Engine) {
    let endpoint = chat();
    let server = server(engine, &endpoint, &["*", "mcp__good__echo"]).await;
    let ada = runs::user(&server, "ada", &["local"]).await;
    ada.say("run-1", r#"[[call:mcp__good__echo {"a": 1}]]"#).await.with_status(202);
    let received = ada.received("run-1").await;
    let result = received.iter().find(|event| event.kind() == "TOOL_CALL_RESULT").unwrap();
    assert_eq!(result.event["content"], r#"{"a": 1}"#, "{result:?}");
    ada.say("run-2", "[[call:mcp__good__env {}]]").await.with_status(202);
    let received = ada.received("run-2").await;
    let result = received.iter().find(|event| event.kind() == "TOOL_CALL_RESULT").unwrap();
    assert!(result.event["content"].as_str().unwrap().contains("there is no tool"), "{result:?}");
    let listed = ada.get("/api/v1/tools").await.with_status(200);
    let names: Vec<_> = listed["tools"].as_array().unwrap().iter().map(|tool| id(tool, "name")).collect();
    assert_eq!(names, ["calendar_read", "calendar_write", "mcp__good__echo", "time_now"]);
}

/// Without a workspace, the operator's runs outside of threads get the tools of all servers.
#[one_engine]
async fn an_agent_that_a_chat_of_the_operator_starts_has_no_more_tools_than_the_chat(engine: Engine) {
    let endpoint = chat();
    let offers_agents = |setup: &mut Setup| setup.config.tools.run_agent.profiles = vec!["scripted".into()];
    let server = server_that(engine, &endpoint, &["*", "mcp__good__echo"], Approval::Never, offers_agents).await;
    server.say("run-1", CALL_OF_AGENT).await.with_status(202);
    let received = server.received("run-1").await;
    assert!(received.iter().any(|event| event.kind() == "TOOL_CALL_RESULT"), "{received:?}");
    let expected = ["calendar_read", "calendar_write", "mcp__good__echo", "run_agent", "time_now"];
    assert_eq!(tools_of_child(&server).await, json!(expected));
}

#[one_engine]
async fn an_agent_that_an_automation_starts_has_no_tool_that_the_operator_has_removed(engine: Engine) {
    let endpoint = chat();
    let offers_agents = |setup: &mut Setup| setup.config.tools.run_agent.profiles = vec!["scripted".into()];
    let server = server_that(engine, &endpoint, &["*", "mcp__good__echo"], Approval::Never, offers_agents).await;
    let mut body = automation(&["run_agent", "mcp__good__echo"]);
    body["config"]["input_template"] = json!(CALL_OF_AGENT);
    let made = server.post(AUTOMATIONS, &body).await.with_status(201);
    // As if the operator had offered this tool when the automation was created.
    server.store("UPDATE automations SET config = REPLACE(config, 'mcp__good__echo', 'mcp__good__env')").await;
    let path = format!("{AUTOMATIONS}/{}", id(&made, "id"));
    server.post(&format!("{path}/start"), &json!({})).await.with_status(202);
    ended(&server, &path, "completed").await;
    assert_eq!(tools_of_child(&server).await, json!(["run_agent"]));
}

const CALL_OF_AGENT: &str = r#"[[call:run_agent {"profile": "scripted", "prompt": "hello"}]]"#;

/// The tools to which the run is restricted that `run_agent` started.
async fn tools_of_child(server: &TestServer) -> Value {
    let of_child = "SELECT c.payload FROM commands c JOIN runs r ON r.run_id = c.run_id WHERE r.idempotency_key LIKE 'run_agent.%'";
    let mut payload: Value = serde_json::from_str(&server.store(of_child).await[0]).unwrap();
    payload["runtimeConfig"]["enabledTools"].take()
}

/// The attempt that continues the turn requests permission for the same call again.
#[both_engines]
async fn an_approval_from_before_a_restart_permits_no_call_of_a_server_that_was_replaced(engine: Engine) {
    let endpoint = chat();
    let yes = || json!({"approved": true});
    for is_replaced in [false, true] {
        let mut server = server_with(engine, &endpoint, &["mcp__good__env"], Approval::OnRequest).await;
        let body = runs::message("run-1", "[[call:mcp__good__env {}]]");
        let received = runs::received(&server.stream(&body).await.text);
        let mut interrupt = id(&received.last().unwrap().event["outcome"]["interrupts"][0], "id");
        let good = server.config.mcp.servers.get_mut("good").unwrap();
        if is_replaced {
            good.env.clear();
        }
        server.restart().await;
        if is_replaced {
            let refused = server.resume("run-2", &[(&interrupt, yes())]).await.refused(RunInputInvalid);
            assert_eq!(refused.rule, "interrupt-unknown");
            let open = refused.details["interruptIds"].as_array().unwrap().clone();
            assert_eq!(open.len(), 1, "{open:?}");
            let run_id = server.run_of_thread().await;
            assert_eq!(server.events_of(&run_id, "tool_call").await, Vec::<Value>::new(), "nothing was called");
            interrupt = open[0].as_str().unwrap().to_owned();
        }
        server.resume("run-2", &[(&interrupt, yes())]).await.with_status(202);
        let received = server.received("run-2").await;
        let result = received.iter().find(|event| event.kind() == "TOOL_CALL_RESULT").expect("the call is executed");
        assert_eq!(result.event["content"].as_str().unwrap().contains("SECRET"), !is_replaced, "{result:?}");
    }
}

#[both_engines]
async fn an_automation_names_tools_that_exist_or_is_rejected(engine: Engine) {
    let endpoint = chat();
    let server = server(engine, &endpoint, &["*", "mcp__good__echo", "mcp__gone__read"]).await;
    for (enabled, unknown) in [
        (vec!["time_now", "nosuchtool"], "nosuchtool"),
        (vec!["mcp__good__env"], "mcp__good__env"),
        (vec!["mcp__nowhere__read"], "mcp__nowhere__read"),
    ] {
        let refused = server.post(AUTOMATIONS, &automation(&enabled)).await;
        assert!(refused.text.contains(unknown) && !refused.text.contains("time_now"), "{}", refused.text);
        refused.refused_by(RunInputInvalid, "automation-tools");
    }
    let made = server.post(AUTOMATIONS, &automation(&["mcp__good__echo"])).await.with_status(201);
    let path = format!("{AUTOMATIONS}/{}", id(&made, "id"));
    let change = json!({"config": automation(&["nosuchtool"])["config"]});
    server.call("PATCH", &path, &change).await.refused_by(RunInputInvalid, "automation-tools");
    server.post(&format!("{path}/start"), &json!({})).await.with_status(202);
    ended(&server, &path, "completed").await;
    let request = endpoint.seen().pop().unwrap().body;
    assert_eq!(request["tools"][0]["function"]["name"], "mcp__good__echo", "{request}");
    // An outage of its server does not fail the start: the run itself finds out which tools there are.
    let made = server.post(AUTOMATIONS, &automation(&["mcp__gone__read"])).await.with_status(201);
    let path = format!("{AUTOMATIONS}/{}", id(&made, "id"));
    server.post(&format!("{path}/start"), &json!({})).await.with_status(202);
    ended(&server, &path, "completed").await;
    // A tool that the operator no longer offers does.
    let made = server.post(AUTOMATIONS, &automation(&["mcp__gone__read"])).await.with_status(201);
    let path = format!("{AUTOMATIONS}/{}", id(&made, "id"));
    server.store("UPDATE automations SET config = REPLACE(config, 'mcp__gone__read', 'mcp__gone__write')").await;
    server.post(&format!("{path}/start"), &json!({})).await.with_status(202);
    let failed = ended(&server, &path, "failed").await;
    let message = failed["message"].as_str().unwrap();
    assert!(message.contains("none of the automation's tools is available: mcp__gone__write"), "{failed}");
}

/// Waits for the end of an automation's only start.
async fn ended(server: &TestServer, path: &str, status: &str) -> Value {
    eventually(&format!("the start is {status}"), async || {
        let page = server.get(&format!("{path}/runs")).await.with_status(200);
        page["starts"].as_array().unwrap().first().filter(|start| start["status"] == status).cloned()
    })
    .await
}
