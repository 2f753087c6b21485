//! What only a coding agent has: commands, language servers, hooks, skills and subagents.

use serde_json::{Value, json};

use super::{
    refused,
    scene::{Attached, attached},
    shell_agent::{self, server, server_with},
};
use crate::harness::{Engine, TestServer, both_engines, id, one_engine};

pub(crate) const TAGS: [&str; 9] = [
    "session_supported_commands",
    "session_lsp",
    "session_hooks",
    "session_approval_mode_control",
    "workspace_skills",
    "workspace_hooks",
    "workspace_extensions",
    "workspace_agents",
    "workspace_agent_generate",
];

/// Whether the behaviour behind a tag is there.
pub(crate) async fn is_there(server: &TestServer, tag: &str) -> bool {
    let session = attached(server).await;
    let answer = match tag {
        "session_supported_commands" => session.get("supported-commands").await,
        "session_lsp" => session.get("lsp").await,
        "session_hooks" => session.get("hooks").await,
        "session_approval_mode_control" => session.post("approval-mode", &json!({"mode": "plan"})).await,
        "workspace_skills" => server.get("/workspace/skills").await,
        "workspace_hooks" => server.get("/workspace/hooks").await,
        "workspace_extensions" => server.get("/workspace/extensions").await,
        "workspace_agents" => server.get("/workspace/agents").await,
        "workspace_agent_generate" => {
            server.post("/workspace/agents/generate", &json!({"description": "a tester"})).await
        }
        other => panic!("{other} is not a tag of the agent"),
    };
    session.close().await;
    if answer.status == 501 || answer.body["code"] == "no_workspace" {
        return false;
    }
    let body = answer.with_status(200);
    let list = |name: &str| body[name].as_array().unwrap().len();
    match tag {
        "session_supported_commands" => assert_eq!((list("availableCommands"), list("availableSkills")), (1, 1)),
        "session_lsp" => assert_eq!((&body["enabled"], list("servers")), (&json!(true), 1)),
        "session_hooks" => assert_eq!(list("hooks"), 1),
        "session_approval_mode_control" => assert_eq!(body["mode"], "plan"),
        "workspace_agents" => assert!(list("agents") > 0),
        "workspace_agent_generate" => assert_eq!(body["name"], "tester"),
        _ => assert!(body["initialized"].is_boolean()),
    }
    true
}

fn agent(name: &str, scope: &str) -> Value {
    json!({"name": name, "scope": scope, "description": "Tests", "systemPrompt": "You test.", "tools": ["read_file"]})
}

fn names(list: &Value) -> Vec<(String, String)> {
    let agents = list["agents"].as_array().unwrap().iter();
    agents.filter(|agent| agent["isBuiltin"] == false).map(|agent| (id(agent, "name"), id(agent, "level"))).collect()
}

#[one_engine]
async fn snapshots_do_not_start_the_agent_and_sessions_do(engine: Engine) {
    let server = server(engine).await;
    let skills = server.get("/workspace/skills").await.with_status(200);
    assert_eq!((&skills["initialized"], &skills["skills"]), (&json!(false), &json!([])));
    let session = attached(&server).await;
    let commands = session.get("supported-commands").await.with_status(200);
    assert_eq!((&commands["v"], &commands["sessionId"]), (&json!(1), &json!(session.id)), "the session's own id");
    assert_eq!(commands["availableSkills"], json!(["review"]));
    let skills = server.get("/workspace/skills").await.with_status(200);
    assert_eq!((&skills["initialized"], &skills["skills"][0]["name"]), (&json!(true), &json!("review")));
    let hooks = server.get("/workspace/hooks").await.with_status(200);
    assert_eq!(hooks["events"]["Stop"]["description"], "At the end");
    let lsp = session.get("lsp").await.with_status(200);
    assert_eq!((&lsp["readyServers"], &lsp["notStartedServers"]), (&json!(1), &json!(0)));
    assert_eq!(session.get("hooks").await.with_status(200)["hooks"][0]["eventName"], "Stop");
    server.get("/session/ses_00000000000000000000000000000000/lsp").await.with_status(404);
}

#[one_engine]
async fn checks_and_environment_show_the_agent_while_it_runs(engine: Engine) {
    let server = server(engine).await;
    let read = async |what: &str| server.get(&format!("/workspace/{what}")).await.with_status(200);
    let status = |checks: &Value, kind: &str| {
        let cells = checks["cells"].as_array().unwrap().iter();
        id(cells.clone().find(|cell| cell["kind"] == kind).unwrap(), "status")
    };
    let checks = read("preflight").await;
    assert_eq!((&checks["acpChannelLive"], status(&checks, "skills").as_str()), (&json!(false), "not_started"));
    assert_eq!(read("env").await["acpChannelLive"], false);
    attached(&server).await.get("lsp").await.with_status(200);
    let checks = read("preflight").await;
    assert_eq!((&checks["acpChannelLive"], &read("env").await["acpChannelLive"]), (&json!(true), &json!(true)));
    for kind in ["mcp_discovery", "skills", "tool_registry"] {
        assert_eq!(status(&checks, kind), "ok", "{kind}");
    }
    assert_eq!(status(&checks, "egress"), "not_started");
}

#[one_engine]
async fn a_backend_without_this_behaviour_is_reported_and_not_advertised(engine: Engine) {
    let server = TestServer::with(engine, |setup| drop(setup.bind_workspace())).await;
    let features = server.get("/capabilities").await.with_status(200)["features"].clone();
    assert!(TAGS.iter().all(|tag| !features.as_array().unwrap().contains(&json!(tag))), "{features}");
    let session = attached(&server).await;
    refused(session.get("supported-commands").await, 501, "not_implemented");
    refused(session.post("approval-mode", &json!({"mode": "plan"})).await, 501, "not_implemented");
    refused(server.get("/workspace/skills").await, 501, "not_implemented");
    refused(server.post("/workspace/agents", &agent("tester", "workspace")).await, 501, "not_implemented");
    assert_eq!(session.get("context").await.with_status(200)["state"]["modes"], Value::Null);
}

#[one_engine]
async fn a_session_of_another_profile_has_what_its_own_backend_has(engine: Engine) {
    let server = server(engine).await;
    let session = attached(&server).await;
    session.post("model", &json!({"modelId": "scripted"})).await.with_status(200);
    refused(session.get("lsp").await, 501, "not_implemented");
    assert_eq!(session.get("context").await.with_status(200)["state"]["modes"], Value::Null);
}

#[one_engine]
async fn an_agent_that_dies_is_started_again(engine: Engine) {
    let server = server(engine).await;
    let session = attached(&server).await;
    session.get("lsp").await.with_status(200);
    let died = server.post("/workspace/agents/generate", &json!({"description": "please-die"})).await;
    refused(died, 503, "acp_channel_unavailable");
    session.get("lsp").await.with_status(200);
}

#[one_engine]
async fn an_agent_that_does_not_start_is_reported(engine: Engine) {
    let server = server(engine).await;
    shell_agent::install_command(&server, "[\"/bin/false\"]").await;
    let session = attached(&server).await;
    refused(session.get("lsp").await, 503, "acp_channel_unavailable");
    assert_eq!(server.get("/workspace/hooks").await.with_status(200)["initialized"], false);
}

#[both_engines]
async fn subagents_are_files_of_the_workspace_or_of_the_agents_home(engine: Engine) {
    let server = server(engine).await;
    let session = attached(&server).await;
    for scope in ["workspace", "global"] {
        let created = server.post("/workspace/agents", &agent("tester", scope)).await.with_status(201);
        assert_eq!((&created["ok"], &created["agent"]["systemPrompt"]), (&json!(true), &json!("You test.")));
    }
    let workspace = server.config.server.workspace.clone().unwrap();
    let file = std::fs::read_to_string(workspace.join(".qwen/agents/tester.md")).unwrap();
    assert!(
        file.starts_with("---\n") && file.contains("\nname: tester\n") && file.trim_end().ends_with("\nYou test."),
        "{file}"
    );
    let list = server.get("/workspace/agents").await.with_status(200);
    let expected = [("tester".to_owned(), "project".to_owned()), ("tester".to_owned(), "user".to_owned())];
    assert_eq!(names(&list), expected);
    let own = list["agents"].as_array().unwrap().iter().filter(|agent| agent["name"] == "tester");
    let path = json!(workspace.canonicalize().unwrap().join(".qwen/agents/tester.md"));
    assert_eq!(own.map(|agent| agent.get("filePath")).collect::<Vec<_>>(), [Some(&path), None]);
    let updated = server.post("/workspace/agents/tester", &json!({"description": "Tests all", "tools": []})).await;
    let updated = updated.with_status(200);
    assert_eq!((&updated["changed"], &updated["agent"]["hasTools"]), (&json!(true), &json!(false)));
    assert_eq!(updated["agent"]["filePath"], path);
    let again = server.post("/workspace/agents/tester", &json!({"description": "Tests all"})).await.with_status(200);
    assert_eq!(again["changed"], false);
    let other = server.get("/workspace/agents/tester?scope=global").await.with_status(200);
    assert_eq!((&other["description"], &other["level"]), (&json!("Tests"), &json!("user")));
    server.remove("/workspace/agents/tester?scope=global").await.with_status(204);
    server.remove("/workspace/agents/tester").await.with_status(204);
    refused(server.remove("/workspace/agents/tester").await, 404, "agent_not_found");
    let changes: Vec<_> = session.notes(&server).await.iter().map(|note| note["data"]["data"].clone()).collect();
    let kinds: Vec<_> = changes.iter().map(|change| (id(change, "change"), id(change, "level"))).collect();
    let expected = [
        ("created", "project"),
        ("created", "user"),
        ("updated", "project"),
        ("deleted", "user"),
        ("deleted", "project"),
    ];
    assert_eq!(kinds, expected.map(|(change, level)| (change.to_owned(), level.to_owned())));
}

#[one_engine]
async fn changes_of_subagents_that_cannot_be_made_are_refused(engine: Engine) {
    let server = server(engine).await;
    let create = async |body: Value| server.post("/workspace/agents", &body).await;
    create(agent("tester", "workspace")).await.with_status(201);
    let conflict = refused(create(agent("tester", "workspace")).await, 409, "agent_already_exists");
    assert_eq!((&conflict["name"], &conflict["level"]), (&json!("tester"), &json!("project")));
    refused(create(agent("tester", "here")).await, 400, "invalid_scope");
    refused(create(agent("a/../b", "workspace")).await, 422, "invalid_config");
    refused(create(agent("Explore", "workspace")).await, 422, "invalid_config");
    for scope in ["", "?scope=workspace", "?scope=global"] {
        let path = format!("/workspace/agents/Explore{scope}");
        refused(server.remove(&path).await, 403, "agent_readonly");
        refused(server.post(&path, &json!({"description": "x"})).await, 403, "agent_readonly");
    }
    refused(server.get("/workspace/agents/none").await, 404, "agent_not_found");
    refused(server.get("/workspace/agents/a%20b").await, 400, "invalid_agent_type");
    refused(server.get("/workspace/agents/tester?scope=all").await, 400, "invalid_scope");
    refused(server.post("/workspace/agents/tester", &json!({"maxTurns": 0})).await, 422, "invalid_config");
    refused(server.caller("client").post("/workspace/agents", &agent("mine", "workspace")).await, 403, "role");
    let broken = server.config.server.workspace.clone().unwrap().join(".qwen/agents/broken.md");
    std::fs::write(broken, "no front matter").unwrap();
    let list = server.get("/workspace/agents").await.with_status(200);
    assert_eq!((names(&list).len(), &list["errors"][0]["errorKind"]), (1, &json!("parse_error")));
}

#[one_engine]
async fn a_tenants_token_gives_subagents_programs_only_if_the_operator_allows_it(engine: Engine) {
    for is_allowed in [false, true] {
        let server = server_with(engine, |setup| setup.config.profiles.tenant_commands = is_allowed).await;
        let provider = server.caller("provider");
        provider.post("/workspace/agents", &agent("plain", "workspace")).await.with_status(201);
        let programs =
            [("hooks", json!({"Stop": [{"command": "id"}]})), ("mcpServers", json!({"x": {"command": "id"}}))];
        for (member, value) in programs {
            let (mut body, mut update) = (agent(member, "global"), json!({}));
            body[member] = value.clone();
            update[member] = value;
            let created = provider.post("/workspace/agents", &body).await;
            let updated = provider.post("/workspace/agents/plain", &update).await;
            if is_allowed {
                created.with_status(201);
                updated.with_status(200);
            } else {
                refused(created, 403, "profile_command");
                refused(updated, 403, "profile_command");
            }
        }
        let removed = json!({"hooks": {}, "mcpServers": {}});
        let removed = provider.post("/workspace/agents/plain", &removed).await.with_status(200);
        assert_eq!(removed["changed"], is_allowed, "removing them is always allowed");
    }
}

#[one_engine]
async fn a_tenants_token_adds_no_mcp_server_with_a_command(engine: Engine) {
    let server = server(engine).await;
    let body = json!({"name": "mine", "config": {"command": "/bin/true"}});
    let added = server.caller("provider").post("/workspace/mcp/servers", &body).await;
    refused(added, 403, "profile_command");
}

#[one_engine]
async fn hooks_and_mcp_servers_are_shown_to_callers_that_may_change_them(engine: Engine) {
    let server = server(engine).await;
    for scope in ["workspace", "global"] {
        let mut body = agent("tester", scope);
        body["hooks"] = json!({"Stop": [{"command": "notify --key hidden-value"}]});
        body["mcpServers"] = json!({"x": {"command": "id", "env": {"KEY": "hidden-value"}}});
        server.post("/workspace/agents", &body).await.with_status(201);
        let path = format!("/workspace/agents/tester?scope={scope}");
        let shown = server.get(&path).await.with_status(200);
        assert_eq!((&shown["hooks"], &shown["mcpServers"]), (&body["hooks"], &body["mcpServers"]));
        let shown = server.caller("client").get(&path).await;
        assert!(!shown.text.contains("hidden-value"), "{}", shown.text);
        let shown = shown.with_status(200);
        assert_eq!((&shown["hookEvents"], &shown["mcpServerNames"]), (&json!(["Stop"]), &json!(["x"])));
    }
}

#[one_engine]
async fn the_definitions_of_a_folder_are_read_up_to_a_total_size(engine: Engine) {
    let server = server(engine).await;
    let folder = server.config.server.workspace.clone().unwrap().join(".qwen/agents");
    std::fs::create_dir_all(&folder).unwrap();
    let prompt = "x".repeat(700 * 1024);
    for n in 10..24 {
        let text = format!("---\nname: a{n}\ndescription: d\n---\n{prompt}");
        std::fs::write(folder.join(format!("a{n}.md")), text).unwrap();
    }
    let list = server.get("/workspace/agents").await.with_status(200);
    assert_eq!((names(&list).len(), list["errors"].as_array().unwrap().len()), (11, 3), "8 MiB");
    assert!(list["errors"].to_string().contains("bytes together"), "{}", list["errors"]);
    server.get("/workspace/agents/a20").await.with_status(200);
    refused(server.get("/workspace/agents/a23").await, 404, "agent_not_found");
}

#[one_engine]
async fn a_link_out_of_the_workspace_is_not_followed_to_subagents(engine: Engine) {
    let server = server(engine).await;
    let outside = tempfile::tempdir().unwrap();
    let workspace = server.config.server.workspace.clone().unwrap();
    std::fs::create_dir(workspace.join(".qwen")).unwrap();
    std::os::unix::fs::symlink(outside.path(), workspace.join(".qwen/agents")).unwrap();
    assert!(server.post("/workspace/agents", &agent("tester", "workspace")).await.status >= 400);
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[one_engine]
async fn the_model_writes_a_definition_that_is_stored_nowhere(engine: Engine) {
    let server = server(engine).await;
    let generate = async |body: Value| server.post("/workspace/agents/generate", &body).await;
    let generated = generate(json!({"description": "a tester"})).await.with_status(200);
    assert_eq!(generated, json!({"name": "tester", "description": "Tests", "systemPrompt": "You test."}));
    assert!(names(&server.get("/workspace/agents").await.with_status(200)).is_empty());
    for body in
        [json!({}), json!({"description": " "}), json!({"description": 7}), json!({"description": "x".repeat(4_097)})]
    {
        refused(generate(body).await, 400, "invalid_description");
    }
    refused(generate(json!({"description": "please-fail"})).await, 500, "agent_generate_failed");
}

#[one_engine]
async fn routes_that_change_something_need_a_token(engine: Engine) {
    let server = server_with(engine, |setup| setup.config.server.open_loopback = true).await;
    let anonymous = server.with_token(None);
    let session: Attached = attached(&server).await;
    for (method, path) in [
        ("POST", "/workspace/agents".to_owned()),
        ("POST", "/workspace/agents/generate".to_owned()),
        ("DELETE", "/workspace/agents/tester".to_owned()),
        ("POST", "/workspace/extensions/install".to_owned()),
        ("DELETE", "/workspace/extensions/demo".to_owned()),
        ("POST", format!("/session/{}/approval-mode", session.id)),
    ] {
        refused(anonymous.call(method, &path, &json!({})).await, 401, "token_required");
    }
    anonymous.get("/workspace/skills").await.with_status(200);
}
