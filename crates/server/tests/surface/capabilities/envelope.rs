//! The response of `/capabilities` as a whole.

use std::path::PathBuf;

use ostler_daemon::{config::DaemonSection, toggles::AGENT};
use ostler_stand_ins::chat;
use serde_json::{Value, json};

use super::toggles::{self, switch_off_defaults, switch_on};
use crate::{
    daemon::{scene::attached, shell_agent},
    harness::{Engine, TestServer, one_engine},
};

/// How many tags are those of the protocol. Our own begin with our name.
fn of_protocol(envelope: &Value) -> usize {
    let tags = envelope["features"].as_array().unwrap().iter();
    tags.filter(|tag| !tag.as_str().unwrap().starts_with("ostler_")).count()
}

#[one_engine]
async fn the_envelope_is_what_published_clients_read(engine: Engine) {
    let mut workspace = None;
    let server = TestServer::with(engine, |setup| workspace = Some(setup.bind_workspace())).await;
    let anonymous = server.with_token(None).get("/capabilities").await.with_status(200);
    assert_eq!(anonymous["workspaceCwd"], "", "a path of this machine is for authenticated callers");
    let mut envelope = server.get("/capabilities").await.with_status(200);
    assert_eq!(anonymous["features"], envelope["features"]);
    assert_eq!(envelope["workspaceCwd"].take(), workspace.unwrap().to_str().unwrap());
    let features = envelope["features"].take();
    assert_eq!(features[0], "health");
    let versions = json!({"current": "v1", "supported": ["v1"]});
    let expected = json!({"v": 1, "mode": "http-bridge", "features": null, "workspaceCwd": null, "modelServices": [],
        "transports": ["rest"], "limits": {"maxPendingPromptsPerSession": 5},
        "supportedLanguages": ["auto", "ca", "de", "en", "fr", "ja", "pt", "ru", "zh", "zh-TW"],
        "protocol": versions, "protocolVersions": versions, "policy": {"permission": "first-responder"},
        "eventSchemaVersion": 1, "ostlerVersion": env!("CARGO_PKG_VERSION")});
    assert_eq!(envelope, expected);
}

#[one_engine]
async fn most_tags_do_not_need_a_coding_agent(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        toggles::all().into_iter().filter(|toggle| *toggle != AGENT).for_each(|toggle| switch_on(setup, toggle));
    })
    .await;
    assert_eq!(of_protocol(&server.get("/capabilities").await.with_status(200)), 58);
}

/// The built-in model backend has no coding agent behind it, and the server does the rest.
#[one_engine]
async fn sessions_of_the_model_backend_have_most_tags(engine: Engine) {
    let endpoint = chat();
    let server = TestServer::with(engine, |setup| {
        toggles::all().into_iter().filter(|toggle| *toggle != AGENT).for_each(|toggle| switch_on(setup, toggle));
        setup.config.runner.slots = 64;
        setup.config.change(|daemon: &mut DaemonSection| daemon.profile = "model".into());
    })
    .await;
    let config = format!("[ostler]\nagent = \"model\"\nbase_url = \"{}\"\nmodel = \"small\"\n", endpoint.base_url());
    let path = "/api/v1/provider-profiles/model/config";
    server.call("PUT", path, &json!({"config": config})).await.with_status(200);
    let envelope = server.get("/capabilities").await.with_status(200);
    assert_eq!(of_protocol(&envelope), 58, "{envelope}");
    let features = envelope["features"].as_array().unwrap();
    assert!(!features.contains(&json!("workspace_skills")), "only an agent has skills: {envelope}");
    // The profile is the one that answers.
    let session = attached(&server).await;
    session.prompt_to_end("hello").await;
    let events = server.logged(&session.id).await;
    let replies: Vec<_> = events.iter().filter(|event| event["type"] == "assistant_message").collect();
    assert!(replies.iter().any(|reply| reply["payload"]["text"] == "You said: hello"), "{events:?}");
}

/// The whole envelope with every toggle off, and with every toggle on. `OSTLER_BLESS=1` writes it again.
#[one_engine]
async fn the_stored_envelopes_are_up_to_date(engine: Engine) {
    let mut envelopes = json!({});
    for (name, on) in [("off", vec![]), ("on", toggles::all())] {
        let server = TestServer::with(engine, |setup| {
            switch_off_defaults(setup);
            on.iter().for_each(|toggle| switch_on(setup, *toggle));
        })
        .await;
        if !on.is_empty() {
            shell_agent::install(&server).await;
        }
        let mut envelope: Value = server.get("/capabilities").await.with_status(200);
        assert_eq!(envelope["workspaceCwd"] == "", on.is_empty());
        assert!(on.is_empty() || of_protocol(&envelope) == 67, "all tags of the protocol: {envelope}");
        // What differs between machines and releases.
        (envelope["workspaceCwd"], envelope["ostlerVersion"]) = (json!("(workspace)"), json!("(version)"));
        envelopes[name] = envelope;
    }
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/surface/capabilities/envelopes.json");
    let text = format!("{}\n", serde_json::to_string_pretty(&envelopes).unwrap());
    if std::env::var_os("OSTLER_BLESS").is_some_and(|value| value == "1") {
        std::fs::write(&path, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(kept, text, "what clients rely on has changed; if that is meant, run this with OSTLER_BLESS=1");
}
