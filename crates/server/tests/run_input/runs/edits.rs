//! An approval that changes the arguments: checked against the schema, recorded with their own digest, and used by the agent.
//! Before an interrupt a client receives everything it needs to resume.

use ostler_protocol::{FailureKind::*, json::canonical_hash};
use serde_json::{Value, json};

use super::{RUNS, kinds, message, received, resuming::resume};
use crate::harness::{Engine, TestServer, both_engines, id};

fn editable() -> String {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
    let ask =
        json!({"title": "Delete a?", "command": "rm a", "editable": {"arguments": {"path": "a"}, "schema": schema}});
    json!({"script": [{"say": "May I?"}, {"ask": ask}, {"say": "Done."}]}).to_string()
}

/// Asks under this run, and returns the interrupt.
async fn pending_request(server: &TestServer, run_id: &str, script: &str) -> Value {
    let mut received = received(&server.stream(&message(run_id, script)).await.text);
    received.pop().unwrap().event["outcome"]["interrupts"][0].take()
}

#[both_engines]
async fn edited_arguments_are_what_the_agent_runs(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let interrupt = pending_request(&server, "run-1", &editable()).await;
    assert_eq!(interrupt["metadata"]["arguments"], json!({"path": "a"}));
    assert_eq!(interrupt["responseSchema"]["properties"]["editedArgs"]["required"], json!(["path"]));
    let prm = id(&interrupt, "id");
    let edited = json!({"path": "b"});
    for (payload, words) in [
        (json!({"approved": true, "editedArgs": {"path": 7}}), "/path"),
        (json!({"approved": true, "editedArgs": "rm b"}), "an object"),
        (json!({"approved": false, "editedArgs": edited}), "allows the request"),
        (json!({"approved": true, "editedArgs": {"path": "x".repeat(65_536)}}), "65536 bytes"),
    ] {
        let refused = server.resume("run-2", &[(&prm, payload)]).await;
        assert!(refused.text.contains(words), "{words}: {}", refused.text);
        refused.refused_as(RunInputInvalid, "AGENT_RUN_INPUT_INVALID");
    }
    let approval = json!({"approved": true, "editedArgs": edited});
    server.resume("run-2", &[(&prm, approval.clone())]).await.with_status(202);
    let received = server.received("run-2").await;
    let used = received.iter().find(|event| event.event["name"] == "edited_arguments").expect("the agent uses them");
    assert_eq!(used.event["value"], edited);
    let run_id = server.run_of_thread().await;
    let resolved = server.events_of(&run_id, "permission_resolved").await.remove(0);
    assert_eq!(resolved["payload"]["edited"], json!({"arguments": edited, "digest": canonical_hash(&edited)}));
    // The same answer again changes nothing; other edits are another answer.
    server.resume("run-3", &[(&prm, approval)]).await.with_status(202);
    let other = json!({"approved": true, "editedArgs": {"path": "c"}});
    server.resume("run-4", &[(&prm, other)]).await.refused_by(RunInputInvalid, "interrupt-resolved");
}

#[both_engines]
async fn arguments_that_are_not_editable_stay_as_they_are(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let interrupt = pending_request(&server, "run-1", super::resuming::ASKING).await;
    assert!(interrupt["responseSchema"]["properties"].get("editedArgs").is_none(), "{interrupt}");
    let prm = id(&interrupt, "id");
    let refused = server.resume("run-2", &[(&prm, json!({"approved": true, "editedArgs": {"path": "b"}}))]).await;
    assert!(refused.text.contains("no arguments that can be edited"), "{}", refused.text);
    let mut dismissed = resume("run-2", &[(&prm, json!({"editedArgs": {}}))]);
    dismissed["resume"][0]["status"] = json!("cancelled");
    let refused = server.post(RUNS, &dismissed).await;
    assert!(refused.text.contains("editedArgs"), "{}", refused.text);
    refused.refused_as(RunInputInvalid, "AGENT_RUN_INPUT_INVALID");
}

#[both_engines]
async fn an_interrupt_follows_snapshots_of_messages_and_state(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    server.say("run-1", "hello").await.with_status(202);
    server.received("run-1").await;
    let mut body = message("run-2", super::resuming::ASKING);
    body["state"] = json!({"count": 1});
    let received = received(&server.stream(&body).await.text);
    let all = kinds(&received);
    assert!(all.ends_with(&["STATE_SNAPSHOT", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]), "{all:?}");
    let messages = received[received.len() - 2].event["messages"].as_array().unwrap();
    let texts: Vec<_> = messages.iter().map(|message| message["content"].as_str().unwrap()).collect();
    assert_eq!(texts, ["hello", "hello", super::resuming::ASKING, "May I?"]);
    assert_eq!(server.received("run-2").await, received, "and the same again");
}
