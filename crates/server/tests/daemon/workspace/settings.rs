//! `/workspace/settings` and `/workspace/reload`.

use ostler_daemon::config::DaemonSection;
use serde_json::{Value, json};

use super::{Bound, refused};
use crate::{
    daemon::scene::attached,
    harness::{Engine, both_engines, one_engine},
};

const SETTINGS: &str = "/workspace/settings";
const RELOAD: &str = "/workspace/reload";
const FILE: &str = ".ostler/settings.json";

fn set(key: &str, value: Value) -> Value {
    json!({"scope": "workspace", "key": key, "value": value})
}

/// A setting as it is listed.
async fn listed(bound: &Bound, key: &str) -> Value {
    let status = bound.server.get(SETTINGS).await.with_status(200);
    status["settings"].as_array().unwrap().iter().find(|row| row["key"] == key).unwrap().clone()
}

#[both_engines]
async fn a_setting_is_stored_listed_and_announced(engine: Engine) {
    let bound = Bound::start(engine).await;
    let session = bound.open_session("client_a").await;
    bound.put(FILE, r#"{"ui": {"theme": "dark"}}"#);
    let row = listed(&bound, "general.language").await;
    assert_eq!(
        (&row["type"], &row["default"], &row["values"]),
        (&json!("enum"), &json!("auto"), &json!({"effective": "auto"}))
    );
    assert!(row["options"].as_array().unwrap().contains(&json!({"value": "de", "label": "German"})));
    let answer = bound.post_as("client_a", SETTINGS, &set("general.language", json!("de"))).await.with_status(200);
    let expected = json!({"key": "general.language", "scope": "workspace", "value": "de", "requiresRestart": false});
    assert_eq!(answer, expected);
    // The same value again changes nothing.
    bound.server.post(SETTINGS, &set("general.language", json!("de"))).await.with_status(200);
    let row = listed(&bound, "general.language").await;
    assert_eq!(row["values"], json!({"effective": "de", "workspace": "de"}));
    let stored: Value = serde_json::from_str(&bound.text(FILE)).unwrap();
    assert_eq!(stored, json!({"ui": {"theme": "dark"}, "general": {"language": "de"}}));
    bound.server.post(SETTINGS, &set("general.language", Value::Null)).await.with_status(200);
    assert_eq!(listed(&bound, "general.language").await["values"], json!({"effective": "auto"}));
    let frame = |value: Value, client: Value| {
        let data = json!({"key": "general.language", "value": value, "scope": "workspace"});
        ("settings_changed".to_owned(), data, client)
    };
    let expected = [frame(json!("de"), json!("client_a")), frame(Value::Null, Value::Null)];
    assert_eq!(bound.frames(&session).await, expected);
}

#[both_engines]
async fn the_default_model_is_a_profile_that_can_be_used(engine: Engine) {
    let bound = Bound::with(engine, |setup| {
        setup.config.change(|daemon: &mut DaemonSection| daemon.profile = "model".into());
    })
    .await;
    let row = listed(&bound, "model.default").await;
    assert_eq!((&row["default"], &row["values"]["effective"]), (&json!("model"), &json!("model")));
    for profile in ["codex", "no-such-profile"] {
        refused(bound.server.post(SETTINGS, &set("model.default", json!(profile))).await, 400, "invalid_value");
    }
    bound.server.post(SETTINGS, &set("model.default", json!("scripted"))).await.with_status(200);
    let providers = bound.server.get("/workspace/providers").await.with_status(200);
    assert_eq!(providers["current"], json!({"authType": "scripted", "modelId": "scripted"}));
}

/// What a setting changes in sessions that are opened after it, and in none that were open before.
#[both_engines]
async fn new_sessions_start_with_the_default_model_and_language(engine: Engine) {
    let bound = Bound::start(engine).await;
    let before = attached(&bound.server).await;
    let install = json!({"providerId": "deepseek", "apiKey": "a-key-0123456789", "modelIds": ["m"]});
    bound.server.post("/workspace/auth/provider", &install).await.with_status(200);
    bound.server.post(SETTINGS, &set("model.default", json!("deepseek-m"))).await.with_status(200);
    bound.server.post(SETTINGS, &set("general.outputLanguage", json!("de"))).await.with_status(200);
    let after = attached(&bound.server).await;
    for (session, model, instruction) in
        [(&before, "scripted", Value::Null), (&after, "deepseek-m", json!("Reply in German."))]
    {
        let context = session.get("context").await.with_status(200);
        assert_eq!(context["state"]["models"]["currentModelId"], model);
        session.prompt("hi").await;
        let (run_id, command_id) = session.prompted(&bound.server).await;
        assert_eq!(bound.server.run(&run_id).await["backendProfile"], model);
        let command = bound.server.command(&run_id, &command_id).await;
        assert_eq!(command["payload"]["context"]["notes"][0]["value"], instruction, "{command}");
    }
}

#[one_engine]
async fn each_mistake_in_a_setting_has_its_code(engine: Engine) {
    let bound = Bound::start(engine).await;
    for (body, code) in [
        (json!({"scope": "user", "key": "memory.enabled", "value": true}), "invalid_scope"),
        (json!({"key": "memory.enabled", "value": true}), "invalid_scope"),
        (json!({"scope": "workspace", "value": true}), "invalid_key"),
        (json!({"scope": "workspace", "key": "a b", "value": true}), "invalid_key"),
        (set("tools.approvalMode", json!("yolo")), "disallowed_key"),
        (set("policy.permissionStrategy", json!("consensus")), "disallowed_key"),
        (set("ui.theme", json!("dark")), "unknown_key"),
        (json!({"scope": "workspace", "key": "memory.enabled"}), "missing_value"),
        (set("memory.enabled", json!("yes")), "invalid_value"),
        (set("general.language", json!("tlh")), "invalid_value"),
    ] {
        refused(bound.server.post(SETTINGS, &body).await, 400, code);
    }
    assert!(!bound.root().join(".ostler").exists());
}

#[one_engine]
async fn a_broken_file_is_reported_and_not_overwritten(engine: Engine) {
    let bound = Bound::start(engine).await;
    bound.put(FILE, "{ pl4nted");
    let answer = bound.server.get(SETTINGS).await;
    assert!(!answer.text.contains("pl4nted"), "{}", answer.text);
    let status = answer.with_status(200);
    assert_eq!(status["warnings"], json!([{"type": "corrupted", "recovered": false}]));
    let cell = &status["errors"][0];
    assert_eq!(
        (&cell["kind"], &cell["status"], &cell["errorKind"]),
        (&json!("settings_file"), &json!("error"), &json!("parse_error"))
    );
    assert_eq!(listed(&bound, "memory.enabled").await["values"]["effective"], true);
    let answer = bound.server.post(SETTINGS, &set("memory.enabled", json!(false))).await;
    assert!(!answer.text.contains("pl4nted"), "{}", answer.text);
    let failure = refused(answer, 409, "workspace_file_invalid");
    assert_eq!((&failure["path"], &failure["line"]), (&json!(FILE), &json!(1)), "{failure}");
    assert!(failure["column"].is_u64() && failure["error"].as_str().unwrap().contains(FILE), "{failure}");
    assert_eq!(bound.text(FILE), "{ pl4nted");
    for broken in [&b"{\"memory\": 7}"[..], b"[]", b"{\"a\": \"\xff\"}"] {
        bound.put(FILE, broken);
        let answer = bound.server.post(SETTINGS, &set("memory.enabled", json!(false))).await;
        assert_eq!(refused(answer, 409, "workspace_file_invalid")["path"], FILE);
        assert_eq!(std::fs::read(bound.root().join(FILE)).unwrap(), broken);
    }
}

#[both_engines]
async fn a_changed_file_is_in_force_after_a_reload(engine: Engine) {
    let bound = Bound::start(engine).await;
    let session = bound.open_session("client_a").await;
    let none = json!({"env": {"updatedKeys": [], "removedKeys": []}, "changedKeys": [], "childReloaded": false});
    assert_eq!(bound.server.post(RELOAD, &json!({})).await.with_status(200), none);
    bound.put(FILE, r#"{"memory": {"enabled": false}, "general": {"language": "de", "outputLanguage": 7}}"#);
    assert_eq!(listed(&bound, "memory.enabled").await["values"]["effective"], true);
    let reloaded = bound.post_as("client_a", RELOAD, &json!({})).await.with_status(200);
    assert_eq!(reloaded["changedKeys"], json!(["general.language", "memory.enabled"]));
    assert_eq!(reloaded["errors"][0]["errorKind"], "invalid_config", "one value cannot be used");
    assert_eq!(listed(&bound, "memory.enabled").await["values"]["effective"], false);
    let frames = bound.frames(&session).await;
    assert_eq!(frames, [("settings_reloaded".to_owned(), reloaded, json!("client_a"))]);
    bound.put(FILE, "broken");
    let kept = bound.server.post(RELOAD, &json!({})).await.with_status(200);
    assert_eq!((&kept["changedKeys"], &kept["errors"][0]["errorKind"]), (&json!([]), &json!("parse_error")));
    assert_eq!(listed(&bound, "memory.enabled").await["values"]["effective"], false, "the previous value is in force");
    assert_eq!(bound.frames(&session).await.len(), 1);
}

#[one_engine]
async fn routes_that_are_switched_off_are_not_there(engine: Engine) {
    let bound = Bound::with(engine, |setup| {
        setup.config.change(|daemon: &mut DaemonSection| (daemon.settings, daemon.reload) = (false, false));
    })
    .await;
    bound.server.get(SETTINGS).await.with_status(404);
    bound.server.post(SETTINGS, &set("memory.enabled", json!(false))).await.with_status(404);
    bound.server.post(RELOAD, &json!({})).await.with_status(404);
    assert!(!bound.root().join(".ostler").exists());
}
