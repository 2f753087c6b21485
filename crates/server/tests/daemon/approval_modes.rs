//! Approval modes: how much the agent does without asking.

use ostler_protocol::kernel::policy::Approval;
use serde_json::{Value, json};

use super::{
    refused,
    scene::{Attached, attached},
    shell_agent,
};
use crate::harness::{Engine, Setup, TestServer, both_engines, one_engine};

async fn server(engine: Engine, change: impl FnOnce(&mut Setup)) -> TestServer {
    let server = TestServer::with(engine, |setup| {
        shell_agent::choose(setup);
        setup.token("client", "client", &["local"]);
        change(setup);
    })
    .await;
    shell_agent::install(&server).await;
    server
}

async fn mode(session: &Attached) -> Value {
    session.get("context").await.with_status(200)["state"]["modes"]["currentModeId"].clone()
}

/// The payload and the policy of the session's last prompt.
async fn last_turn(server: &TestServer, session: &Attached) -> (Value, Value) {
    let (run_id, command_id) = session.prompted(server).await;
    let (run, command) = (server.run(&run_id).await, server.command(&run_id, &command_id).await);
    (command["payload"].clone(), run["executionPolicy"].clone())
}

#[both_engines]
async fn a_mode_is_shown_recorded_and_carried_to_the_next_prompt(engine: Engine) {
    let server = server(engine, |_| ()).await;
    let session = attached(&server).await;
    assert_eq!(mode(&session).await, "default");
    session.prompt("one").await;
    let (payload, policy) = last_turn(&server, &session).await;
    assert_eq!((payload.get("mode"), &policy["approval"]), (None, &json!("on-request")));
    session.post("cancel", &json!({})).await.with_status(204);
    let set = session.post("approval-mode", &json!({"mode": "yolo"})).await.with_status(200);
    let expected = json!({"sessionId": session.id, "mode": "yolo", "previous": "default", "persisted": false});
    assert_eq!((set, mode(&session).await), (expected, json!("yolo")));
    let notes = session.notes(&server).await;
    let data = json!({"sessionId": session.id, "previous": "default", "next": "yolo", "persisted": false});
    assert_eq!((&notes[0]["note"], &notes[0]["data"]["data"]), (&json!("daemon.approval_mode_changed"), &data));
    session.prompt("two").await;
    let (payload, policy) = last_turn(&server, &session).await;
    assert_eq!((&payload["mode"], &policy["approval"]), (&json!("yolo"), &json!("never")));
    assert_eq!(mode(&attached(&server).await).await, "default", "another session has its own");
}

#[both_engines]
async fn the_options_of_a_session_are_its_mode_and_its_model(engine: Engine) {
    let server = server(engine, |_| ()).await;
    let session = attached(&server).await;
    session.post("approval-mode", &json!({"mode": "plan"})).await.with_status(200);
    let context = session.get("context").await.with_status(200);
    let loaded = session.post("load", &json!({})).await.with_status(200);
    let resumed = session.post("resume", &json!({})).await.with_status(200);
    let branched = session.post("branch", &json!({})).await.with_status(201);
    for state in [&context["state"], &loaded["state"], &resumed["state"]] {
        let options = state["configOptions"].as_array().unwrap();
        let current: Vec<_> = options.iter().map(|option| [&option["id"], &option["currentValue"]]).collect();
        assert_eq!(current, [[&json!("mode"), &json!("plan")], [&json!("model"), &json!(shell_agent::PROFILE)]]);
        assert_eq!(options[0]["options"].as_array().unwrap().len(), 5);
        let choice = json!({"value": "scripted", "name": "scripted", "description": ""});
        assert!(options[1]["options"].as_array().unwrap().contains(&choice), "{state}");
    }
    assert_eq!(branched["state"]["configOptions"][0]["id"], "mode");
    session.post("model", &json!({"modelId": "scripted"})).await.with_status(200);
    let context = session.get("context").await.with_status(200);
    assert_eq!(context["state"]["configOptions"], Value::Null, "that backend has no modes");
}

#[both_engines]
async fn a_mode_that_is_persisted_is_that_of_new_sessions(engine: Engine) {
    let server = server(engine, |_| ()).await;
    let session = attached(&server).await;
    let set = session.post("approval-mode", &json!({"mode": "plan", "persist": true})).await.with_status(200);
    assert_eq!(set["persisted"], true);
    assert_eq!(mode(&attached(&server).await).await, "plan");
    session.post("approval-mode", &json!({"mode": "auto-edit", "persist": true})).await.with_status(200);
    assert_eq!(mode(&attached(&server).await).await, "auto-edit");
    let client = attached(server.caller("client")).await;
    assert_eq!(client.post("approval-mode", &json!({"mode": "plan", "persist": true})).await.status, 403);
    assert_eq!(mode(&client).await, "auto-edit", "nothing was changed");
    client.post("approval-mode", &json!({"mode": "plan"})).await.with_status(200);
}

#[one_engine]
async fn modes_that_cannot_be_used_are_refused(engine: Engine) {
    let server = server(engine, |setup| setup.config.policy.ceiling.approval = Approval::OnRequest).await;
    let session = attached(&server).await;
    let set = async |body: Value| session.post("approval-mode", &body).await;
    let invalid = refused(set(json!({"mode": "all"})).await, 400, "invalid_approval_mode");
    assert_eq!(invalid["allowed"], json!(["plan", "default", "auto-edit", "auto", "yolo"]));
    refused(set(json!({})).await, 400, "invalid_approval_mode");
    refused(set(json!({"mode": "plan", "persist": "yes"})).await, 400, "invalid_persist_flag");
    refused(set(json!({"mode": "yolo"})).await, 403, "trust_gate");
    set(json!({"mode": "auto"})).await.with_status(200);
    let path = "/session/ses_00000000000000000000000000000000/approval-mode";
    refused(server.post(path, &json!({"mode": "plan"})).await, 404, "session_not_found");
    assert_eq!(session.notes(&server).await.len(), 1, "what is refused is not recorded");
}
