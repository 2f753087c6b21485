//! Whether the behaviour behind each tag of the workspace's documents and snapshots is there.

use serde_json::{Value, json};

use crate::harness::TestServer;

pub(crate) const TAGS: [&str; 7] = [
    "workspace_memory",
    "workspace_settings",
    "workspace_init",
    "workspace_reload",
    "workspace_env",
    "workspace_preflight",
    "workspace_providers",
];

pub(crate) async fn is_there(server: &TestServer, tag: &str) -> bool {
    match tag {
        "workspace_memory" => memory(server).await,
        "workspace_settings" => settings(server).await,
        "workspace_init" => init(server).await,
        "workspace_reload" => {
            let reloaded = changed(server, "/workspace/reload", &json!({})).await;
            reloaded.is_some_and(|reloaded| reloaded["childReloaded"] == false)
        }
        "workspace_env" => has(server, "/workspace/env", "cells", "name", "ostler").await,
        "workspace_preflight" => has(server, "/workspace/preflight", "cells", "kind", "workspace_dir").await,
        "workspace_providers" => has(server, "/workspace/providers", "providers", "authType", "scripted").await,
        other => panic!("{other} is not a tag of the workspace"),
    }
}

/// The response to a change. `None` if the route is not there.
async fn changed(server: &TestServer, path: &str, body: &Value) -> Option<Value> {
    let answer = server.post(path, body).await;
    match answer.status {
        // Not bound to a workspace, or switched off.
        404 | 409 => None,
        _ => Some(answer.with_status(200)),
    }
}

async fn has(server: &TestServer, path: &str, list: &str, key: &str, wanted: &str) -> bool {
    let answer = server.get(path).await;
    if answer.body["code"] == "no_workspace" {
        return false;
    }
    let status = answer.with_status(200);
    assert!(status[list].as_array().unwrap().iter().any(|item| item[key] == wanted), "{status}");
    true
}

async fn memory(server: &TestServer) -> bool {
    let body = json!({"scope": "workspace", "mode": "replace", "content": "- proved\n"});
    let Some(written) = changed(server, "/workspace/memory", &body).await else { return false };
    let status = server.get("/workspace/memory").await.with_status(200);
    assert_eq!((&status["files"][0]["path"], &status["ruleCount"]), (&written["filePath"], &json!(1)));
    true
}

async fn settings(server: &TestServer) -> bool {
    let body = json!({"scope": "workspace", "key": "general.language", "value": "de"});
    if changed(server, "/workspace/settings", &body).await.is_none() {
        assert!([404, 409].contains(&server.get("/workspace/settings").await.status));
        return false;
    }
    let status = server.get("/workspace/settings").await.with_status(200);
    let rows = status["settings"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["key"] == "general.language" && row["values"]["effective"] == "de"), "{status}");
    true
}

async fn init(server: &TestServer) -> bool {
    let made = changed(server, "/workspace/init", &json!({"force": true})).await;
    made.is_some_and(|made| made["path"].is_string())
}
