//! Extensions of the coding agent.

use serde_json::{Value, json};

use super::{
    refused,
    scene::attached,
    shell_agent::{self, ended, server, server_with},
};
use crate::harness::{Engine, TestServer, id, one_engine};

/// Submits a change and waits for its end.
async fn change(server: &TestServer, method: &str, path: &str, body: &Value) -> Value {
    let path = format!("/workspace/extensions/{path}");
    let request = server.request(method, &path);
    let request = if body.is_null() { request } else { server.with_body(request, &path, body) };
    let accepted = server.send(request).await.with_status(202);
    assert_eq!(accepted["accepted"], true);
    ended(server, &id(&accepted, "operationId")).await
}

fn install(source: &str) -> Value {
    json!({"source": source, "consent": true})
}

async fn installed(server: &TestServer) -> Vec<String> {
    let list = server.get("/workspace/extensions").await.with_status(200);
    assert_eq!(list["initialized"], true);
    list["extensions"].as_array().unwrap().iter().map(|extension| id(extension, "name")).collect()
}

#[one_engine]
async fn an_extension_is_installed_for_later_processes_and_uninstalled(engine: Engine) {
    let server = server(engine).await;
    let session = attached(&server).await;
    assert_eq!(server.get("/workspace/extensions").await.with_status(200)["initialized"], false);
    let operation = change(&server, "POST", "install", &install("/tmp")).await;
    assert_eq!(
        (&operation["status"], &operation["operation"]),
        (&json!("succeeded"), &json!("install")),
        "{operation}"
    );
    let expected = json!({"status": "installed", "source": "/tmp", "name": "demo", "version": "1.0.0", "refreshed": 1, "failed": 0});
    assert_eq!(operation["result"], expected);
    assert_eq!(installed(&server).await, ["demo"]);
    let states = server.post("/workspace/extensions/check-updates", &Value::Null).await.with_status(200);
    assert_eq!(states, json!({"states": {"demo": "unknown"}}));
    let disabled = change(&server, "POST", "demo/disable", &json!({"scope": "workspace"})).await;
    assert_eq!(disabled["result"]["status"], "disabled");
    let refreshed = server.post("/workspace/extensions/refresh", &Value::Null).await.with_status(200);
    assert_eq!((refreshed, installed(&server).await.len()), (json!({"refreshed": 1, "failed": 0}), 1));
    let removed = change(&server, "DELETE", "demo", &Value::Null).await;
    assert_eq!((&removed["status"], installed(&server).await.len()), (&json!("succeeded"), 0));
    let frames: Vec<_> = session.notes(&server).await.iter().map(|note| note["data"]["data"].clone()).collect();
    let statuses: Vec<_> = frames.iter().map(|data| data["status"].as_str().unwrap_or("refreshed")).collect();
    assert_eq!(statuses, ["installed", "disabled", "refreshed", "uninstalled"]);
}

#[one_engine]
async fn a_change_that_fails_returns_the_reason_and_leaves_everything_as_it_was(engine: Engine) {
    let server = server(engine).await;
    let session = attached(&server).await;
    let failed = change(&server, "POST", "install", &install("/nowhere")).await;
    assert_eq!(failed["status"], "failed");
    assert!(failed["error"].as_str().unwrap().contains("Install source not found"), "{failed}");
    let failed = change(&server, "POST", "none/enable", &json!({})).await;
    assert_eq!(failed["error"], "Extension with name none does not exist.", "without the usage of the command");
    let failed = change(&server, "POST", "none/update", &Value::Null).await;
    assert_eq!(failed["status"], "failed", "nothing was updated");
    let notes = session.notes(&server).await;
    assert!(notes.iter().all(|note| note["data"]["data"]["status"] == "failed"), "{notes:?}");
}

/// Whether later processes of the agent get this extension.
fn is_stored(server: &TestServer, name: &str) -> bool {
    let homes = server.config.server.data_dir.as_ref().unwrap().join("agent-homes");
    let homes = std::fs::read_dir(homes).into_iter().flatten();
    homes.flatten().any(|home| home.path().join(".qwen/extensions").join(name).is_dir())
}

#[one_engine]
async fn what_a_program_prints_decides_before_anything_is_stored(engine: Engine) {
    let server = server(engine).await;
    let script = r#"mkdir -p "$HOME/.qwen/extensions/$1"
        case $1 in
        install) echo 'Extension "demo" installed; README not found' ;;
        *) echo "Extension \"$2\" is already up to date." ;;
        esac"#;
    shell_agent::install_command(&server, &format!("[\"/bin/sh\", \"-c\", '''{script}''', \"--acp\"]")).await;
    let operation = change(&server, "POST", "demo/update", &Value::Null).await;
    assert_eq!((&operation["status"], is_stored(&server, "update")), (&json!("failed"), false), "{operation}");
    let operation = change(&server, "POST", "install", &install("/tmp")).await;
    let expected = (&json!("succeeded_with_refresh_error"), &json!("demo"));
    assert_eq!((&operation["status"], &operation["result"]["name"]), expected, "the script is no agent: {operation}");
    assert!(is_stored(&server, "install"));
}

#[one_engine]
async fn a_tenants_token_starts_programs_only_if_the_operator_allows_it(engine: Engine) {
    let server = server(engine).await;
    change(&server, "POST", "install", &install("/tmp")).await;
    let provider = server.caller("provider");
    for (path, body) in [("install", install("/tmp")), ("demo/enable", json!({})), ("demo/update", Value::Null)] {
        let path = format!("/workspace/extensions/{path}");
        refused(provider.post(&path, &body).await, 403, "profile_command");
    }
    let accepted = provider.post("/workspace/extensions/demo/disable", &json!({})).await.with_status(202);
    let operation_id = id(&accepted, "operationId");
    assert_eq!(ended(&server, &operation_id).await["status"], "succeeded", "nothing can start because of it");
    let poll = format!("/workspace/extensions/operations/{operation_id}");
    refused(provider.get(&poll).await, 403, "role");

    let server = server_with(engine, |setup| setup.config.profiles.tenant_commands = true).await;
    let provider = server.caller("provider");
    let accepted = provider.post("/workspace/extensions/install", &install("/tmp")).await.with_status(202);
    assert_eq!(ended(&server, &id(&accepted, "operationId")).await["status"], "succeeded");
}

#[one_engine]
async fn changes_run_one_after_another(engine: Engine) {
    let server = server(engine).await;
    let mut operations = vec![];
    for _ in 0..3 {
        let accepted = server.post("/workspace/extensions/install", &install("/tmp")).await.with_status(202);
        operations.push(id(&accepted, "operationId"));
    }
    let mut statuses = vec![];
    for operation in &operations {
        statuses.push(id(&ended(&server, operation).await, "status"));
    }
    assert_eq!(statuses, ["succeeded", "failed", "failed"], "the second finds the first one's extension");
}

#[one_engine]
async fn requests_that_cannot_be_carried_out_are_refused(engine: Engine) {
    let server = server(engine).await;
    let path = "/workspace/extensions/install";
    refused(server.post(path, &json!({"source": "/tmp"})).await, 400, "consent_required");
    refused(server.post(path, &json!({"consent": true})).await, 400, "invalid_extension");
    refused(server.post(path, &install("--scope=user")).await, 400, "invalid_extension");
    for name in ["--all", "..%2Fdemo", "demo%2F..%2F..%2Fx"] {
        let path = format!("/workspace/extensions/{name}/update");
        refused(server.post(&path, &Value::Null).await, 400, "invalid_extension");
    }
    refused(server.post("/workspace/extensions/demo/enable", &json!({"scope": "all"})).await, 400, "invalid_scope");
    refused(server.caller("client").post(path, &install("/tmp")).await, 403, "role");
    let unknown = server.get("/workspace/extensions/operations/none").await;
    refused(unknown, 404, "extension_operation_not_found");
}
