//! `/workspace/env`, `/workspace/preflight` and `/workspace/providers`.

use ostler_daemon::config::DaemonSection;
use ostler_server::config::Environment;
use serde_json::{Value, json};

use super::Bound;
use crate::harness::{Engine, both_engines, one_engine};

fn cell(status: &Value, key: &str, wanted: &str) -> Value {
    let found = status["cells"].as_array().unwrap().iter().find(|cell| cell[key] == wanted);
    found.unwrap_or_else(|| panic!("{wanted} in {status}")).clone()
}

#[one_engine]
async fn the_environment_is_shown_without_secrets(engine: Engine) {
    let variables = [
        ("OPENAI_API_KEY", "sk-pl4nted-0123456789"),
        ("HTTPS_PROXY", "http://ada:pl4nted@proxy.example:3128/"),
        ("NO_PROXY", "pl4nted.example"),
    ];
    let bound = Bound::with(engine, |setup| {
        let taken = variables.map(|(name, value)| (name.into(), value.into()));
        setup.config.environment = Environment::with_taken(taken);
    })
    .await;
    let answer = bound.server.get("/workspace/env").await;
    assert!(!answer.text.contains("pl4nted"), "{}", answer.text);
    let status = answer.with_status(200);
    assert_eq!((&status["v"], &status["initialized"]), (&json!(1), &json!(true)));
    let key = cell(&status, "name", "OPENAI_API_KEY");
    assert_eq!(key, json!({"kind": "env_var", "name": "OPENAI_API_KEY", "status": "ok", "present": true}));
    assert_eq!(cell(&status, "name", "HTTPS_PROXY")["value"], "proxy.example:3128");
    assert_eq!(cell(&status, "name", "ostler")["value"], env!("CARGO_PKG_VERSION"));
    for kind in ["runtime", "platform", "sandbox", "proxy", "env_var"] {
        cell(&status, "kind", kind);
    }
}

#[both_engines]
async fn checks_cover_the_machine_and_the_backend(engine: Engine) {
    let bound = Bound::start(engine).await;
    let status = bound.server.get("/workspace/preflight").await.with_status(200);
    let directory = cell(&status, "kind", "workspace_dir");
    assert_eq!(directory, json!({"kind": "workspace_dir", "status": "ok", "locality": "daemon"}));
    assert_eq!(cell(&status, "kind", "git")["locality"], "daemon");
    let providers = cell(&status, "kind", "providers");
    assert_eq!((&providers["status"], &providers["locality"]), (&json!("ok"), &json!("acp")));
    assert_eq!(cell(&status, "kind", "auth")["status"], "ok");
    assert_eq!(cell(&status, "kind", "mcp_discovery")["status"], "not_started");
}

#[one_engine]
async fn checks_of_the_machine_are_made_once_in_ten_seconds(engine: Engine) {
    let bound = Bound::start(engine).await;
    let directory = async || {
        let status = bound.server.get("/workspace/preflight").await.with_status(200);
        cell(&status, "kind", "workspace_dir")["status"].clone()
    };
    assert_eq!(directory().await, "ok");
    std::fs::remove_dir(bound.root()).unwrap();
    bound.server.clock.advance_ms(9_999);
    assert_eq!(directory().await, "ok", "still the first check");
    bound.server.clock.advance_ms(1);
    assert_eq!(directory().await, "error");
}

#[one_engine]
async fn a_profile_without_a_credential_fails_the_checks(engine: Engine) {
    let bound = Bound::with(engine, |setup| {
        setup.config.change(|daemon: &mut DaemonSection| daemon.profile = "codex".into());
    })
    .await;
    let status = bound.server.get("/workspace/preflight").await.with_status(200);
    let auth = cell(&status, "kind", "auth");
    assert_eq!((&auth["status"], &auth["errorKind"]), (&json!("error"), &json!("auth_env_error")));
    assert_eq!(cell(&status, "kind", "providers")["status"], "error");
}

#[both_engines]
async fn providers_are_the_profiles_of_the_tenant(engine: Engine) {
    let bound = Bound::start(engine).await;
    let files = json!({"files": {"auth.json": "{}", "config.toml": "model = \"m\""}});
    for (tenant, profile) in [("local", "ours"), ("hwlab", "theirs")] {
        let path = format!("/api/v1/provider-profiles/{profile}/credential?tenantId={tenant}");
        bound.server.call("PUT", &path, &files).await.with_status(200);
    }
    let status = bound.server.get("/workspace/providers").await.with_status(200);
    assert_eq!(status["current"], json!({"authType": "scripted", "modelId": "scripted"}));
    let providers = status["providers"].as_array().unwrap();
    let scripted = providers.iter().find(|provider| provider["authType"] == "scripted").unwrap();
    let model = json!({"modelId": "scripted", "baseModelId": "scripted", "name": "scripted", "isCurrent": true,
        "isRuntime": false});
    let expected = json!({"kind": "model_provider", "status": "ok", "authType": "scripted", "current": true,
        "models": [model]});
    assert_eq!(scripted, &expected);
    let models: Vec<_> = providers.iter().flat_map(|provider| provider["models"].as_array().unwrap()).collect();
    let has = |profile: &str| models.iter().any(|model| model["modelId"] == profile);
    assert!(has("ours") && !has("theirs"), "{status}");
}
