//! What clients read and set of a session beside its prompts.

use ostler_daemon::config::DaemonSection;
use serde_json::{Value, json};

use super::scene::{Attached, attached};
use crate::harness::{Engine, TestServer, both_engines, eventually, one_engine};

async fn server(engine: Engine) -> TestServer {
    TestServer::with_runner(engine).await
}

#[both_engines]
async fn the_context_lists_models_and_the_current_one(engine: Engine) {
    let server = server(engine).await;
    let session = attached(&server).await;
    let context = session.get("context").await.with_status(200);
    assert_eq!((&context["v"], &context["sessionId"]), (&json!(1), &json!(session.id)));
    let models = &context["state"]["models"];
    assert_eq!(models["currentModelId"], "scripted");
    assert!(models["availableModels"].as_array().unwrap().iter().any(|model| model["modelId"] == "scripted"));
    server.get("/session/ses_00000000000000000000000000000000/context").await.with_status(404);
}

#[both_engines]
async fn another_model_handles_the_next_prompt(engine: Engine) {
    let server = server(engine).await;
    let session = attached(&server).await;
    let set = session.post("model", &json!({"modelId": "scripted"})).await.with_status(200);
    assert_eq!(set["modelId"], "scripted");
    let refused = session.post("model", &json!({"modelId": "no-such-model"})).await.with_status(400);
    assert_eq!(refused["code"], "invalid_model");
    assert_eq!(session.post("model", &json!({})).await.with_status(400)["code"], "invalid_model");
    let notes = session.notes(&server).await;
    assert_eq!(notes[0]["note"], "daemon.model_switched");
    assert_eq!(
        (&notes[1]["note"], &notes[1]["data"]["clientId"]),
        (&json!("daemon.model_switch_failed"), &json!(session.client))
    );
    assert_eq!(session.get("context").await.with_status(200)["state"]["models"]["currentModelId"], "scripted");
}

/// A credential that is pasted where a model belongs reaches neither the caller nor the clients that follow.
#[one_engine]
async fn a_credential_in_place_of_a_model_is_not_shown(engine: Engine) {
    const KEY: &str = "pl4nted-key-0123456789abcdef";
    let server = TestServer::with(engine, |setup| drop(setup.bind_workspace())).await;
    let body = json!({"providerId": "deepseek", "apiKey": KEY});
    server.post("/workspace/auth/provider", &body).await.with_status(200);
    let session = attached(&server).await;
    let long = format!("{KEY}{}", "x".repeat(500));
    for model_id in [KEY, &format!("models/{KEY}"), &long] {
        let refused = session.post("model", &json!({"modelId": model_id})).await;
        assert!(!refused.text.contains(KEY), "{}", refused.text);
        assert_eq!(refused.with_status(400)["code"], "invalid_model");
    }
    let body = json!({"sessionScope": "thread", "modelServiceId": KEY});
    let opened = server.post("/session", &body).await.with_status(200);
    let notes = json!([session.notes(&server).await, server.logged(opened["sessionId"].as_str().unwrap()).await]);
    assert_eq!(notes[0].as_array().unwrap().len(), 3);
    assert!(notes.to_string().contains("model_switch_failed") && !notes.to_string().contains(KEY), "{notes}");
}

#[both_engines]
async fn the_language_of_a_session_is_one_of_the_list(engine: Engine) {
    let server = server(engine).await;
    let session = attached(&server).await;
    let set = session.post("language", &json!({"language": "de"})).await.with_status(200);
    assert_eq!(set, json!({"language": "de", "outputLanguage": null, "refreshed": false}));
    let body = json!({"language": "fr", "syncOutputLanguage": true});
    let set = session.post("language", &body).await.with_status(200);
    assert_eq!(set, json!({"language": "fr", "outputLanguage": "fr", "refreshed": true}));
    for unknown in [json!("tlh"), json!({}), json!(["de"]), json!(null)] {
        let refused = session.post("language", &json!({"language": unknown})).await.with_status(400);
        assert_eq!(refused["code"], "invalid_language", "{unknown}");
        assert!(refused["allowed"].as_array().unwrap().contains(&json!("en")));
    }
    let body = json!({"language": "fr", "syncOutputLanguage": "yes"});
    assert_eq!(session.post("language", &body).await.with_status(400)["code"], "invalid_sync_flag");
    let notes = session.notes(&server).await;
    assert_eq!(notes.len(), 2, "a refused change is not recorded");
    let changed = json!({"sessionId": session.id, "language": "fr", "outputLanguage": "fr", "refreshed": true});
    assert_eq!(notes[1]["data"]["data"], changed);
}

#[both_engines]
async fn stats_count_prompts_tokens_and_tools(engine: Engine) {
    let server = server(engine).await;
    let session = attached(&server).await;
    let script = json!({"script": [
        {"tool": {"name": "shell", "command": "ls", "output": "a\n", "exitCode": 0}},
        {"tool": {"name": "shell", "command": "false", "exitCode": 1}},
        {"usage": {"inputTokens": 20, "outputTokens": 10, "cachedInputTokens": 5, "reasoningTokens": 4}},
        {"usage": {"inputTokens": 10, "outputTokens": 2}},
        {"say": "done"},
    ]});
    session.prompt_to_end(&script.to_string()).await;
    session.prompt_to_end("hello").await;
    let stats = session.get("stats").await.with_status(200);
    assert_eq!(stats["promptCount"], 2);
    let tokens = json!({"prompt": 30, "candidates": 12, "total": 42, "cached": 5, "thoughts": 4});
    assert_eq!(stats["models"]["scripted"]["tokens"], tokens);
    let tools = &stats["tools"];
    assert_eq!((&tools["totalCalls"], &tools["totalSuccess"], &tools["totalFail"]), (&json!(2), &json!(1), &json!(1)));
    assert_eq!(tools["byName"]["shell"]["count"], 2);
}

#[both_engines]
async fn a_prompt_that_waits_is_a_task_that_can_be_cancelled(engine: Engine) {
    let server = server(engine).await;
    let session = attached(&server).await;
    let first = session.prompt(r#"{"script": [{"wait": 60000}]}"#).await;
    let second = session.prompt("never").await;
    let tasks = eventually("the first prompt runs", async || {
        let tasks = session.get("tasks").await.with_status(200)["tasks"].clone();
        (tasks[0]["status"] == "running").then_some(tasks)
    })
    .await;
    let ids: Vec<&Value> = tasks.as_array().unwrap().iter().map(|task| &task["id"]).collect();
    assert_eq!(ids, [&json!(first), &json!(second)]);
    assert_eq!((&tasks[1]["status"], &tasks[1]["label"]), (&json!("paused"), &json!("never")));
    let cancel = format!("tasks/{second}/cancel");
    assert_eq!(session.post(&cancel, &json!({"kind": "dream"})).await.with_status(400)["code"], "invalid_task_kind");
    assert_eq!(session.post(&cancel, &json!({"kind": "agent"})).await.with_status(200)["cancelled"], true);
    let left = session.get("tasks").await.with_status(200)["tasks"].clone();
    assert_eq!(left.as_array().unwrap().len(), 1, "{left}");
    assert_eq!(session.post(&cancel, &json!({"kind": "agent"})).await.with_status(200)["cancelled"], false);
    session.post("cancel", &json!({})).await.with_status(204);
}

#[one_engine]
async fn a_client_of_another_session_changes_nothing(engine: Engine) {
    let server = server(engine).await;
    let (session, other) = (attached(&server).await, attached(&server).await);
    let foreign = Attached { client: other.client.clone(), ..session };
    for (what, body) in [("model", json!({"modelId": "scripted"})), ("language", json!({"language": "de"}))] {
        assert_eq!(foreign.post(what, &body).await.with_status(400)["code"], "invalid_client_id");
    }
    assert_eq!(foreign.notes(&server).await, Vec::<Value>::new());
}

/// What the backend gets beside the prompt, as the prompt's command stores it.
#[both_engines]
async fn memory_and_language_reach_the_backend_with_the_prompt(engine: Engine) {
    let mut bound = None;
    let server = TestServer::with(engine, |setup| bound = Some(setup.bind_workspace())).await;
    std::fs::write(bound.unwrap().join("AGENTS.md"), "Never force-push.\n").unwrap();
    let session = attached(&server).await;
    let body = json!({"language": "de", "syncOutputLanguage": true});
    session.post("language", &body).await.with_status(200);
    session.prompt("hi").await;
    let (run_id, command_id) = session.prompted(&server).await;
    let notes = server.command(&run_id, &command_id).await["payload"]["context"]["notes"].clone();
    assert_eq!(notes[0]["value"], "Never force-push.\n", "{notes}");
    assert_eq!(notes[1]["value"], "Reply in German.", "{notes}");
}

/// Proves one of the tags about a session's details.
pub(crate) async fn proof(server: &TestServer, tag: &str) {
    let session = attached(server).await;
    match tag {
        "session_set_model" => {
            let set = session.post("model", &json!({"modelId": "scripted"})).await.with_status(200);
            assert_eq!(set["modelId"], "scripted");
        }
        "session_context" => {
            let context = session.get("context").await.with_status(200);
            let profile = server.config.section::<DaemonSection>().profile;
            assert_eq!(context["state"]["models"]["currentModelId"], profile.as_str());
        }
        "session_stats" => assert_eq!(session.get("stats").await.with_status(200)["promptCount"], 0),
        "session_tasks" => {
            let prompt_id = session.prompt("hi").await;
            let tasks = session.get("tasks").await.with_status(200);
            assert_eq!(tasks["tasks"][0]["id"], prompt_id.as_str());
            let cancel = format!("tasks/{prompt_id}/cancel");
            assert_eq!(session.post(&cancel, &json!({"kind": "agent"})).await.with_status(200)["cancelled"], true);
        }
        "session_language" => {
            let body = json!({"language": "de", "syncOutputLanguage": true});
            assert_eq!(session.post("language", &body).await.with_status(200)["outputLanguage"], "de");
        }
        other => panic!("{other} is not about a session's details"),
    }
    session.close().await;
}
