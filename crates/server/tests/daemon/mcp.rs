//! `/workspace/mcp…` and `/workspace/tools…`.

mod listing;
mod restarts;
mod switches;

use ostler_protocol::mcp::budget::BudgetMode;
use ostler_testkit::mcp_server::{HttpMcpServer, python, write_script};
use serde_json::{Value, json};

use super::refused;
use crate::{
    harness::{Answer, Engine, Setup, TestServer, both_engines, eventually, id, one_engine},
    mcp::{SECRET, configure_servers},
};

const MCP: &str = "/workspace/mcp";
const SERVERS: &str = "/workspace/mcp/servers";

/// The tags of this area.
pub(crate) const TAGS: [&str; 9] = [
    "workspace_mcp",
    "workspace_mcp_restart",
    "workspace_mcp_manage",
    "mcp_guardrails",
    "mcp_guardrail_events",
    "mcp_server_runtime_mutation",
    "mcp_workspace_pool",
    "mcp_pool_restart",
    "workspace_tool_toggle",
];

/// A bound server with MCP servers, and a client that follows a session.
struct Desk {
    server: TestServer,
    session: String,
    client: String,
}

impl Desk {
    async fn start(engine: Engine, choose: impl FnOnce(&mut Setup)) -> Self {
        let server = TestServer::with(engine, |setup| {
            setup.bind_workspace();
            setup.config.mcp.drain_ms = 60_000;
            choose(setup);
        })
        .await;
        let opened = server.open().await;
        Self { session: id(&opened, "sessionId"), client: id(&opened, "clientId"), server }
    }

    async fn post(&self, path: &str, body: &Value) -> Answer {
        self.server.as_client(&self.client, "POST", path, body).await
    }

    async fn act(&self, server: &str, action: &str) -> Answer {
        self.post(&format!("{MCP}/{server}/{action}"), &Value::Null).await
    }

    async fn status(&self) -> Value {
        self.server.get(MCP).await.with_status(200)
    }

    /// A server in the snapshot.
    async fn of(&self, name: &str) -> Value {
        let status = self.status().await;
        status["servers"].as_array().unwrap().iter().find(|server| server["name"] == name).unwrap().clone()
    }

    async fn until(&self, name: &str, state: &str) -> Value {
        eventually(&format!("{name} is {state}"), async || {
            Some(self.of(name).await).filter(|server| server["mcpStatus"] == state)
        })
        .await
    }

    async fn tools(&self, name: &str) -> Value {
        self.server.get(&format!("{MCP}/{name}/tools")).await.with_status(200)
    }

    /// The data of the frames of this type that followers got.
    async fn frames(&self, frame: &str) -> Vec<Value> {
        let noted = self.server.recorded_notes(&self.session).await.into_iter();
        noted.filter(|(name, _)| *name == format!("daemon.{frame}")).map(|(_, data)| data["data"].clone()).collect()
    }

    fn config(&self, behaviour: &str) -> Value {
        let directory = self.server.config.server.data_dir.as_ref().unwrap().parent().unwrap();
        json!({"command": python(), "args": [write_script(directory), behaviour], "env": {"SECRET": SECRET}})
    }

    async fn add(&self, name: &str, config: Value) -> Answer {
        self.post(SERVERS, &json!({"name": name, "config": config})).await
    }
}

#[both_engines]
async fn a_snapshot_lists_servers_and_the_tools_of_those_that_a_session_connected(engine: Engine) {
    let desk = Desk::start(engine, |setup| {
        configure_servers(setup, &[("good", "good"), ("off", "good")]);
        setup.config.mcp.servers.get_mut("off").unwrap().enabled = false;
    })
    .await;
    let server = desk.until("good", "connected").await;
    assert_eq!(
        server,
        json!({"kind": "mcp_server", "status": "ok", "name": "good", "mcpStatus": "connected", "transport": "stdio",
            "disabled": false, "configOrigin": "system_settings", "removable": false})
    );
    let status = desk.status().await;
    assert_eq!(
        (&status["v"], &status["discoveryState"], &status["clientCount"], &status["budgetMode"], &status["budgets"]),
        (&json!(1), &json!("completed"), &json!(1), &json!("off"), &json!([]))
    );
    let off = desk.of("off").await;
    assert_eq!(
        (&off["status"], &off["disabled"], &off["disabledReason"], &off["mcpStatus"]),
        (&json!("disabled"), &json!(true), &json!("config"), &json!("disconnected"))
    );
    let tools = desk.tools("good").await;
    let tool = &tools["tools"][0];
    assert_eq!(
        (&tools["serverName"], &tool["name"], &tool["serverToolName"], &tool["isValid"]),
        (&json!("good"), &json!("mcp__good__echo"), &json!("echo"), &json!(true))
    );
    assert_eq!(tool["annotations"], json!({"readOnlyHint": true}));
    assert_eq!(desk.tools("off").await["tools"], json!([]));
    refused(desk.server.get(&format!("{MCP}/nosuch/tools")).await, 404, "mcp_server_not_found");
    refused(desk.server.get(&format!("{MCP}/{}/tools", "x".repeat(257))).await, 400, "invalid_server_name");
}

#[one_engine]
async fn a_restart_is_announced_and_its_refusals_have_reasons(engine: Engine) {
    let desk = Desk::start(engine, |setup| {
        configure_servers(setup, &[("ends", "good"), ("good", "good"), ("off", "good"), ("silent", "silent")]);
        setup.config.mcp.servers.get_mut("off").unwrap().enabled = false;
        setup.config.mcp.servers.get_mut("ends").unwrap().args.clear();
        setup.config.mcp.servers.get_mut("ends").unwrap().command = Some("true".into());
    })
    .await;
    desk.until("good", "connected").await;
    eventually("ends has ended", async || (desk.of("ends").await["status"] == "error").then_some(())).await;
    let restarted = desk.act("good", "restart").await.with_status(200);
    assert_eq!((&restarted["serverName"], &restarted["restarted"]), (&json!("good"), &json!(true)));
    assert!(restarted["durationMs"].is_u64());
    let done = desk.frames("mcp_server_restarted").await;
    assert_eq!((&done[0]["serverName"], &done[0]["originatorClientId"]), (&json!("good"), &json!(desk.client)));
    let skipped =
        |reason: &str, name: &str| json!({"serverName": name, "restarted": false, "skipped": true, "reason": reason});
    assert_eq!(desk.act("off", "restart").await.with_status(200), skipped("disabled", "off"));
    assert_eq!(desk.act("silent", "restart").await.with_status(200), skipped("in_flight", "silent"));
    refused(desk.act("ends", "restart").await, 502, "restart_failed");
    refused(desk.act("nosuch", "restart").await, 404, "mcp_server_not_found");
    for index in ["x", "-1", "01", "1", ""] {
        let path = format!("restart?entryIndex={index}");
        refused(desk.act("good", &path).await, 400, "invalid_entry_index");
    }
    let one = desk.act("good", "restart?entryIndex=0").await.with_status(200);
    assert_eq!((&one["entries"][0]["entryIndex"], &one["entries"][0]["restarted"]), (&json!(0), &json!(true)));
    assert_eq!(desk.act("good", "restart?entryIndex=*").await.with_status(200)["restarted"], true);
    let reasons: Vec<_> =
        desk.frames("mcp_server_restart_refused").await.into_iter().map(|frame| frame["reason"].clone()).collect();
    assert_eq!(reasons, ["disabled", "in_flight", "restart_failed"]);
    let anonymous = desk.server.as_client("client_nosuch", "POST", &format!("{MCP}/good/restart"), &Value::Null).await;
    refused(anonymous, 400, "invalid_client_id");
}

#[both_engines]
async fn servers_are_switched_on_and_off_and_the_switch_survives_a_restart(engine: Engine) {
    let mut desk = Desk::start(engine, |setup| configure_servers(setup, &[("good", "good")])).await;
    desk.until("good", "connected").await;
    let disabled = desk.act("good", "disable").await.with_status(200);
    assert_eq!(disabled, json!({"serverName": "good", "action": "disable", "ok": true, "changed": true}));
    desk.until("good", "disconnected").await;
    assert_eq!(desk.act("good", "disable").await.with_status(200)["changed"], false);
    desk.server.restart().await;
    assert_eq!(desk.of("good").await["disabledReason"], "config");
    assert_eq!(desk.act("good", "enable").await.with_status(200)["changed"], true);
    assert_eq!(desk.of("good").await["status"], "not_started");
    assert_eq!(desk.act("good", "clear-auth").await.with_status(200)["ok"], true);
    refused(desk.act("good", "authenticate").await, 400, "mcp_auth_unsupported");
    refused(desk.act("nosuch", "enable").await, 404, "mcp_server_not_found");
    let actions: Vec<_> =
        desk.frames("mcp_server_changed").await.into_iter().map(|frame| frame["action"].clone()).collect();
    assert_eq!(actions, ["disable", "disable", "enable", "clear-auth"]);
}

#[one_engine]
async fn a_client_adds_a_server_until_the_process_ends(engine: Engine) {
    let mut desk = Desk::start(engine, |setup| configure_servers(setup, &[("good", "good")])).await;
    desk.until("good", "connected").await;
    let expected = |replaced: bool, shadowed: bool, name: &str| {
        json!({"name": name, "transport": "stdio", "replaced": replaced, "shadowedSettings": shadowed, "toolCount": 2,
            "originatorClientId": desk.client})
    };
    assert_eq!(desk.add("mine", desk.config("good")).await.with_status(200), expected(false, false, "mine"));
    assert_eq!(desk.add("mine", desk.config("garbage")).await.with_status(200), expected(true, false, "mine"));
    assert_eq!(desk.add("good", desk.config("changes")).await.with_status(200), expected(false, true, "good"));
    let mine = desk.of("mine").await;
    assert_eq!((&mine["configOrigin"], &mine["removable"]), (&json!("runtime"), &json!(true)));
    assert_eq!(desk.frames("mcp_server_added").await.len(), 3);
    let remove = async |name: &str| {
        desk.server.as_client(&desk.client, "DELETE", &format!("{SERVERS}/{name}"), &Value::Null).await.with_status(200)
    };
    let removed = remove("good").await;
    assert_eq!((&removed["removed"], &removed["wasShadowingSettings"]), (&json!(true), &json!(true)));
    assert_eq!(remove("good").await, json!({"name": "good", "skipped": true, "reason": "not_present"}));
    let gone = [json!({"name": "good", "wasShadowingSettings": true, "originatorClientId": desk.client})];
    assert_eq!(desk.frames("mcp_server_removed").await, gone);
    assert_eq!(desk.of("good").await["configOrigin"], "system_settings");
    desk.server.restart().await;
    let status = desk.status().await;
    let names: Vec<_> = status["servers"].as_array().unwrap().iter().map(|server| &server["name"]).collect();
    assert_eq!(names, ["good"]);
}

#[one_engine]
async fn a_token_that_cannot_attach_adds_a_server_without_a_client(engine: Engine) {
    let desk = Desk::start(engine, |setup| {
        setup.config.profiles.tenant_commands = true;
        setup.token("provider", "provide", &["local"]);
        setup.token("foreign-provider", "provide", &["hwlab"]);
        setup.token("client", "client", &["local"]);
    })
    .await;
    let provider = desk.server.caller("provider");
    let body = json!({"name": "mine", "config": desk.config("good")});
    let added = provider.post(SERVERS, &body).await.with_status(200);
    assert_eq!((&added["name"], &added["toolCount"]), (&json!("mine"), &json!(2)));
    assert_eq!(added.get("originatorClientId"), None, "it has no client");
    assert_eq!(desk.frames("mcp_server_added").await, [added]);
    // Not with the client of another caller, and not without the right.
    let borrowed = provider.as_client(&desk.client, "POST", SERVERS, &body).await;
    refused(borrowed, 400, "invalid_client_id");
    for stranger in ["foreign-provider", "client"] {
        desk.server.caller(stranger).post(SERVERS, &body).await.with_status(403);
    }
    refused(desk.server.post(SERVERS, &body).await, 400, "missing_client_id");
    let removed = provider.remove(&format!("{SERVERS}/mine")).await.with_status(200);
    assert_eq!((&removed["removed"], removed.get("originatorClientId")), (&json!(true), None));
    assert_eq!(desk.frames("mcp_server_removed").await, [json!({"name": "mine", "wasShadowingSettings": false})]);
}

#[one_engine]
async fn concurrent_additions_of_one_name_do_not_undo_each_other(engine: Engine) {
    let desk = Desk::start(engine, |_| {}).await;
    let absent = json!({"command": "/nowhere/server"});
    let (good, bad) = tokio::join!(desk.add("mine", desk.config("good")), desk.add("mine", absent));
    good.with_status(200);
    refused(bad, 502, "mcp_server_spawn_failed");
    assert_eq!(desk.of("mine").await["configOrigin"], "runtime");
    assert_eq!(desk.act("mine", "restart").await.with_status(200)["restarted"], true, "the good one is in force");
}

/// The configuration of a server that creates a file in the workspace when it is started, and never replies.
fn silent(desk: &Desk, file: &str) -> Value {
    let started = desk.server.config.server.workspace.as_ref().unwrap().join(file);
    json!({"command": "/bin/sh", "args": ["-c", format!("echo > '{}'; while read -r line; do :; done", started.display())]})
}

async fn until_started(desk: &Desk, file: &str) {
    let started = desk.server.config.server.workspace.as_ref().unwrap().join(file);
    eventually("the silent server is started", async || started.exists().then_some(())).await;
}

#[one_engine]
async fn a_server_that_does_not_reply_delays_no_other_addition(engine: Engine) {
    let desk = Desk::start(engine, |_| {}).await;
    let others = async {
        until_started(&desk, "started").await;
        assert_eq!(desk.status().await["servers"], json!([]), "it is not connected yet");
        desk.add("other", desk.config("good")).await.with_status(200);
        let replaced = desk.add("slow", desk.config("good")).await.with_status(200);
        assert_eq!(replaced["replaced"], false, "one of the same name does not wait, either");
    };
    tokio::select! {
        answer = desk.add("slow", silent(&desk, "started")) => panic!("{}", answer.text),
        () = others => {}
    }
    assert_eq!(desk.of("slow").await["mcpStatus"], "connected");
}

#[one_engine]
async fn only_so_many_servers_are_added_at_once(engine: Engine) {
    let desk = Desk::start(engine, |_| {}).await;
    let files: Vec<_> = (0..8).map(|number| format!("started-{number}")).collect();
    let slow = files.iter().map(|file| desk.add(file, silent(&desk, file)));
    let one_more = async {
        for file in &files {
            until_started(&desk, file).await;
        }
        let refusal = desk.add("more", desk.config("good")).await;
        assert_eq!(refusal.headers["retry-after"], "5");
        refused(refusal, 503, "overloaded");
    };
    tokio::select! {
        answers = futures_util::future::join_all(slow) => panic!("{} were answered", answers.len()),
        () = one_more => {}
    }
}

#[one_engine]
async fn a_server_that_is_added_again_is_enabled(engine: Engine) {
    let desk = Desk::start(engine, |_| {}).await;
    desk.add("mine", desk.config("good")).await.with_status(200);
    desk.act("mine", "disable").await.with_status(200);
    let path = format!("{SERVERS}/mine");
    desk.server.as_client(&desk.client, "DELETE", &path, &Value::Null).await.with_status(200);
    desk.add("mine", desk.config("good")).await.with_status(200);
    let mine = desk.of("mine").await;
    assert_eq!((&mine["disabled"], &mine["mcpStatus"]), (&json!(false), &json!("connected")));
}

#[one_engine]
async fn a_server_that_cannot_be_added_is_refused_without_its_values(engine: Engine) {
    let directory = tempfile::tempdir().unwrap();
    let remote = HttpMcpServer::start(directory.path(), None);
    let desk = Desk::start(engine, |setup| setup.token("submitter", "client", &["local"])).await;
    for name in ["", "a b", &"x".repeat(257)] {
        refused(desk.add(name, desk.config("good")).await, 400, "invalid_server_name");
    }
    refused(desk.add("a", json!(7)).await, 400, "missing_required_field");
    let preload = json!({"command": "x", "env": {"LD_PRELOAD": "/tmp/a.so"}});
    for config in [json!({}), json!({"tcp": "x:1"}), json!({"command": "x", "env": {"A": 7}}), preload] {
        refused(desk.add("a", config).await, 400, "invalid_mcp_config");
    }
    let absent = json!({"command": "/nowhere/server", "env": {"A": SECRET}});
    let answer = desk.add("a", absent).await;
    assert!(!answer.text.contains(SECRET));
    refused(answer, 502, "mcp_server_spawn_failed");
    let loopback = desk.add("a", json!({"httpUrl": remote.url})).await;
    assert_eq!(loopback.body["reason"], "blocked_egress", "callers cannot make the server call itself");
    refused(loopback, 502, "mcp_server_spawn_failed");
    assert_eq!(desk.status().await["servers"], json!([]), "what cannot be connected is not added");
    let body = json!({"name": "a", "config": desk.config("good")});
    refused(desk.server.post(SERVERS, &body).await, 400, "missing_client_id");
    let submitter = desk.server.caller("submitter").post(SERVERS, &body).await;
    assert_eq!(submitter.status, 403, "{}", submitter.text);
}

#[one_engine]
async fn the_budget_is_shown_warned_about_and_enforced(engine: Engine) {
    let desk = Desk::start(engine, |setup| {
        configure_servers(setup, &[("a", "good"), ("b", "good"), ("c", "good")]);
        (setup.config.mcp.client_budget, setup.config.mcp.budget_mode) = (Some(2), Some(BudgetMode::Enforce));
    })
    .await;
    desk.until("a", "connected").await;
    desk.until("b", "connected").await;
    let c = desk.of("c").await;
    assert_eq!(
        (&c["status"], &c["disabled"], &c["disabledReason"], &c["errorKind"]),
        (&json!("error"), &json!(false), &json!("budget"), &json!("budget_exhausted"))
    );
    let status = desk.status().await;
    assert_eq!(
        (&status["clientCount"], &status["clientBudget"], &status["budgetMode"]),
        (&json!(2), &json!(2), &json!("enforce"))
    );
    let cell = &status["budgets"][0];
    assert_eq!(
        (&cell["kind"], &cell["status"], &cell["scope"], &cell["refusedCount"]),
        (&json!("mcp_budget"), &json!("error"), &json!("workspace"), &json!(1))
    );
    let refusals = eventually("the refusal is announced", async || {
        Some(desk.frames("mcp_child_refused_batch").await).filter(|frames| !frames.is_empty())
    })
    .await;
    let refused_servers = json!([{"name": "c", "transport": "stdio", "reason": "budget_exhausted"}]);
    assert_eq!((&refusals[0]["refusedServers"], &refusals[0]["mode"]), (&refused_servers, &json!("enforce")));
    let warnings = desk.frames("mcp_budget_warning").await;
    assert_eq!(warnings.len(), 1);
    assert_eq!(
        (&warnings[0]["thresholdRatio"], &warnings[0]["budget"], &warnings[0]["scope"]),
        (&json!(0.75), &json!(2), &json!("workspace"))
    );
    assert_eq!(desk.act("c", "restart").await.with_status(200)["reason"], "budget_would_exceed");
    refused(desk.add("d", desk.config("good")).await, 409, "mcp_budget_would_exceed");
}

#[one_engine]
async fn a_budget_that_only_warns_skips_what_clients_add(engine: Engine) {
    let desk = Desk::start(engine, |setup| {
        configure_servers(setup, &[("a", "good")]);
        setup.config.mcp.client_budget = Some(1);
    })
    .await;
    desk.until("a", "connected").await;
    assert_eq!(desk.status().await["budgets"][0]["status"], "warning");
    let answer = desk.add("d", desk.config("good")).await.with_status(200);
    assert_eq!(answer, json!({"name": "d", "skipped": true, "reason": "budget_warning_only"}));
}

#[both_engines]
async fn a_tool_is_switched_off_and_on(engine: Engine) {
    let desk = Desk::start(engine, |setup| configure_servers(setup, &[("good", "good")])).await;
    desk.until("good", "connected").await;
    let toggle = async |name: &str, body: Value| desk.post(&format!("/workspace/tools/{name}/enable"), &body).await;
    let off = toggle("mcp__good__echo", json!({"enabled": false})).await.with_status(200);
    assert_eq!(off, json!({"toolName": "mcp__good__echo", "enabled": false}));
    toggle("mcp__good__echo", json!({"enabled": false})).await.with_status(200);
    assert_eq!(desk.tools("good").await["tools"][0]["serverToolName"], "env");
    toggle("mcp__good__echo", json!({"enabled": true})).await.with_status(200);
    assert_eq!(desk.tools("good").await["tools"].as_array().unwrap().len(), 2);
    for body in [json!({}), json!({"enabled": "yes"}), json!({"enabled": null})] {
        refused(toggle("shell", body).await, 400, "invalid_enabled_flag");
    }
    for name in ["%20", "a%0Ab", &"x".repeat(257)] {
        refused(toggle(name, json!({"enabled": true})).await, 400, "invalid_tool_name");
    }
    let toggled = desk.frames("tool_toggled").await;
    let frame = |enabled: bool| json!({"toolName": "mcp__good__echo", "enabled": enabled});
    assert_eq!(toggled, [frame(false), frame(true)]);
}

#[one_engine]
async fn tools_that_cannot_be_called_are_named(engine: Engine) {
    let desk = Desk::start(engine, |setup| configure_servers(setup, &[("lying", "lying"), ("good", "good")])).await;
    desk.until("lying", "connected").await;
    desk.until("good", "connected").await;
    let status = desk.status().await;
    let of = |name: &str| status["servers"].as_array().unwrap().iter().find(|server| server["name"] == name).unwrap();
    let hint = of("lying")["hint"].as_str().unwrap();
    assert!(hint.contains("are skipped") && hint.contains("text") && hint.contains("odd"), "{hint}");
    assert_eq!(of("good").get("hint"), None);
}

#[one_engine]
async fn planted_secrets_are_in_no_reply_and_no_event(engine: Engine) {
    let desk = Desk::start(engine, |setup| {
        configure_servers(setup, &[("lying", "lying"), ("ends", "good")]);
        setup.config.mcp.servers.get_mut("ends").unwrap().args =
            vec!["-c".into(), "import sys; sys.exit(SECRET)".into()];
    })
    .await;
    desk.until("lying", "connected").await;
    desk.add("mine", desk.config("lying")).await.with_status(200);
    let mut seen = vec![desk.act("ends", "restart").await.text, desk.act("lying", "restart").await.text];
    for path in [MCP, "/workspace/mcp/lying/tools", "/workspace/mcp/mine/tools"] {
        seen.push(desk.server.get(path).await.text);
    }
    seen.push(format!("{:?}", desk.server.logged(&desk.session).await));
    seen.push(desk.server.config.json().to_string());
    assert!(seen.iter().any(|text| text.contains("my token is")));
    assert!(!seen.iter().any(|text| text.contains(SECRET)), "{seen:?}");
    for (path, bytes) in desk.server.everything_kept() {
        let found = bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
        assert!(!found, "{}", path.display());
    }
}

/// Whether the behaviour behind a tag is there.
pub(crate) async fn is_there(server: &TestServer, tag: &str) -> bool {
    if server.config.server.workspace.is_none() {
        return false;
    }
    let status = server.get(MCP).await.with_status(200);
    let client = id(&server.open().await, "clientId");
    let config = {
        let directory = server.config.server.data_dir.as_ref().unwrap().parent().unwrap();
        json!({"command": python(), "args": [write_script(directory), "good"]})
    };
    let add = async || server.as_client(&client, "POST", SERVERS, &json!({"name": "proof", "config": config})).await;
    let act = async |action: &str| {
        let path = format!("{MCP}/proof/{action}");
        server.as_client(&client, "POST", &path, &Value::Null).await
    };
    match tag {
        "workspace_mcp" => assert!(status["servers"].is_array()),
        "mcp_guardrails" => assert!(status["budgetMode"].is_string() && status["budgets"].is_array()),
        // The tests of the budget prove the frames; here, that a pass without a budget sends none.
        "mcp_guardrail_events" => assert_eq!(status["budgets"], json!([])),
        "mcp_server_runtime_mutation" => assert_eq!(add().await.with_status(200)["toolCount"], 2),
        "workspace_tool_toggle" => {
            let toggled = server.post("/workspace/tools/shell/enable", &json!({"enabled": false})).await;
            assert_eq!(toggled.with_status(200)["toolName"], "shell");
        }
        "workspace_mcp_restart" => {
            add().await.with_status(200);
            assert_eq!(act("restart").await.with_status(200)["restarted"], true);
        }
        "workspace_mcp_manage" => {
            add().await.with_status(200);
            for action in ["disable", "enable"] {
                assert_eq!(act(action).await.with_status(200)["ok"], true);
            }
        }
        "mcp_workspace_pool" | "mcp_pool_restart" => {
            add().await.with_status(200);
            let answer = act("restart?entryIndex=0").await;
            return answer.status == 200;
        }
        other => panic!("{other} is not a tag of MCP servers"),
    }
    true
}
