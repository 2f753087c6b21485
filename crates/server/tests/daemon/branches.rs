//! Branches: sessions that continue the conversation of another one.

use serde_json::{Value, json};

use super::{
    configure, refused,
    rewinds::conversation,
    scene::{Attached, at_rest, attached},
};
use crate::{
    harness::{Engine, TestServer, both_engines, id},
    retention::{DAY_MS, hold, release, sweep},
};

async fn branch(session: &Attached, body: &Value) -> (Attached, Value) {
    let branched = session.post("branch", body).await.with_status(201);
    let (id, client) = (id(&branched, "sessionId"), id(&branched, "clientId"));
    (Attached { caller: session.caller.clone(), id, client }, branched)
}

#[both_engines]
async fn a_branch_continues_the_conversation_and_neither_session_sees_the_others_turns(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let session = attached(&server).await;
    session.prompt_to_end("one").await;
    let (branch, branched) = branch(&session, &json!({"name": " Try\u{7} it "})).await;
    assert_ne!(branch.id, session.id);
    assert_eq!((&branched["displayName"], &branched["attached"]), (&json!("Try it(1)"), &json!(false)));
    assert_eq!(branched["forkedFrom"], json!({"sessionId": session.id, "displayName": &session.id[..8]}));
    assert!(branched["state"]["models"].is_object() && branched["workspaceCwd"].is_string());
    let replay = branched["compactedReplay"].as_array().unwrap();
    let texts: Vec<_> = replay.iter().map(|frame| &frame["data"]["update"]["content"]["text"]).collect();
    assert_eq!(texts, ["one", "one"]);
    session.prompt_to_end("only there").await;
    branch.prompt_to_end("two").await;
    assert_eq!(conversation(&server, &branch).await, ["one", "one"]);
    session.prompt_to_end("three").await;
    assert_eq!(conversation(&server, &session).await, ["one", "one", "only there", "only there"]);
    let notes = branch.notes(&server).await;
    let data = json!({"sourceSessionId": session.id, "newSessionId": branch.id, "displayName": "Try it(1)"});
    assert_eq!((&notes[0]["note"], &notes[0]["data"]["data"]), (&json!("daemon.session_branched"), &data));
    assert!(session.notes(&server).await.is_empty(), "followers of the source are not notified");
    branch.close().await;
    let loaded = branch.post("load", &json!({})).await.with_status(200);
    assert_eq!(loaded["compactedReplay"].as_array().unwrap().len(), 2);
}

#[both_engines]
async fn a_branch_can_be_branched_and_rewound_before_it_began(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let session = attached(&server).await;
    session.prompt_to_end("one").await;
    session.prompt_to_end("two").await;
    let (child, _) = branch(&session, &json!({})).await;
    child.prompt_to_end("three").await;
    let (grandchild, branched) = branch(&child, &json!({})).await;
    // Its parent is already a branch of that name.
    assert_eq!(branched["displayName"], format!("{}(2)", &session.id[..8]));
    grandchild.prompt_to_end("four").await;
    assert_eq!(conversation(&server, &grandchild).await, ["one", "one", "two", "two", "three", "three"]);
    let listed = grandchild.get("rewind/snapshots").await.with_status(200);
    assert_eq!(listed["snapshots"].as_array().unwrap().len(), 4);
    let target = format!("{}########2", grandchild.id);
    assert_eq!(listed["snapshots"][1]["promptId"], target);
    let rewound = grandchild.post("rewind", &json!({"promptId": target})).await.with_status(200);
    assert_eq!(rewound["targetTurnIndex"], 1);
    grandchild.prompt_to_end("five").await;
    assert_eq!(conversation(&server, &grandchild).await, ["one", "one"]);
    child.prompt_to_end("six").await;
    assert_eq!(conversation(&server, &child).await, ["one", "one", "two", "two", "three", "three"]);
    // A later rewind of the source does not change its branches.
    let target = format!("{}########1", session.id);
    session.post("rewind", &json!({"promptId": target})).await.with_status(200);
    child.prompt_to_end("seven").await;
    assert_eq!(conversation(&server, &child).await[..2], ["one", "one"]);
}

#[both_engines]
async fn a_branch_is_refused_while_a_prompt_runs_and_at_the_limit(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 4;
        configure(setup, |section| section.sessions_max = 2);
    })
    .await;
    let session = attached(&server).await;
    session.prompt(r#"{"script": [{"wait": 60000}]}"#).await;
    let busy = refused(session.post("branch", &json!({})).await, 409, "branch_while_prompt_active");
    assert_eq!(busy["sessionId"], session.id);
    session.post("cancel", &json!({})).await.with_status(204);
    session.prompt_to_end("one").await;
    let path = format!("/session/{}/branch", session.id);
    refused(server.as_client("client_other", "POST", &path, &json!({})).await, 400, "invalid_client_id");
    branch(&session, &json!({})).await;
    let full = session.post("branch", &json!({})).await;
    assert_eq!(full.headers["retry-after"], "5");
    refused(full, 503, "session_limit_exceeded");
    refused(server.post("/session/ses_0/branch", &json!({})).await, 404, "session_not_found");
}

#[both_engines]
async fn a_hold_of_a_branch_holds_the_events_of_its_source(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 4;
        setup.config.retention.events_ms = Some(3_600_000);
    })
    .await;
    let session = attached(&server).await;
    session.prompt_to_end("planted-text").await;
    at_rest(&server).await;
    let (child, _) = branch(&session, &json!({})).await;
    let (grandchild, _) = branch(&child, &json!({})).await;
    server.clock.advance_ms(DAY_MS);
    let planted = async || {
        let events = server.logged(&session.id).await;
        events.iter().filter(|event| event["payload"].to_string().contains("planted-text")).count()
    };
    let before = planted().await;
    assert!(before > 0);
    let hold_id = hold(&server, json!({"sessionId": grandchild.id, "reason": "case 7"})).await;
    sweep(&server, json!({})).await;
    assert_eq!(planted().await, before);
    release(&server, &hold_id).await;
    sweep(&server, json!({})).await;
    assert_eq!(planted().await, 0);
}
