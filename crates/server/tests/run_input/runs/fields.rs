//! Every field of a run's input is stored with the run and read back by its followers, or rejected by name. None is dropped.

use ostler_protocol::FailureKind::*;
use serde_json::{Value, json};

use super::{RUNS, THREAD, message, received, resuming::ASKING};
use crate::harness::{Engine, PNG, TestServer, both_engines, id};

/// The input that the run's followers read back.
async fn replayed(server: &TestServer, run_id: &str) -> Value {
    server.received(run_id).await.remove(0).event["input"].take()
}

/// Every message type of the stock client, with all of its fields.
fn messages() -> Vec<Value> {
    let common = json!({"name": "ada", "encryptedValue": "c2VjcmV0", "metadata": {"snake_key": [1, {"deep": true}]}});
    let call = json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"},
        "encryptedValue": "eA==", "metadata": {"k": 1}});
    let parts = json!([{"type": "text", "id": "p1", "text": "part", "metadata": {"k": 2}},
        {"type": "image", "id": "p2", "source": {"type": "data", "value": "aGk=", "mimeType": "image/png"}, "metadata": {"k": 3}}]);
    let own = [
        json!({"id": "d", "role": "developer", "content": "be brief"}),
        json!({"id": "s", "role": "system", "content": "be kind"}),
        json!({"id": "a", "role": "assistant", "content": "calling", "toolCalls": [call]}),
        json!({"id": "a2", "role": "assistant", "toolCalls": [call]}),
        json!({"id": "t", "role": "tool", "content": "42", "toolCallId": "c1", "error": "overflow"}),
        json!({"id": "t2", "role": "tool", "content": parts, "toolCallId": "c2"}),
        json!({"id": "v", "role": "activity", "activityType": "plan", "content": {"snake_key": 1}}),
        json!({"id": "r", "role": "reasoning", "content": "hm"}),
    ];
    let with_common = |mut message: Value| {
        for (name, value) in common.as_object().unwrap() {
            message[name] = value.clone();
        }
        message
    };
    own.into_iter().map(with_common).collect()
}

#[both_engines]
async fn every_field_of_the_input_is_read_back(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let url = id(&server.upload(THREAD, PNG).await.with_status(201), "url");
    let mut body = message("run-1", "");
    (body["parentRunId"], body["protocolVersion"]) = (json!("run-0"), json!("1.0"));
    body["state"] = json!({"count": 1});
    body["tools"] =
        json!([{"name": "confirm", "description": "Asks", "parameters": {"type": "object"}, "metadata": {"k": 4}}]);
    body["context"] = json!([{"description": "page", "value": "/orders/7"}]);
    let picture = json!({"type": "binary", "mimeType": "image/png", "url": url, "id": "b1", "filename": "cat.png"});
    let user = json!({"id": "u", "role": "user", "name": "Ada", "encryptedValue": "c2VjcmV0", "metadata": {"k": 5},
        "content": [{"type": "text", "id": "p1", "text": "look", "metadata": {"k": 6}}, picture]});
    body["messages"] = [vec![user], messages()].concat().into();
    let command_id = id(&server.post(RUNS, &body).await.with_status(202), "taskId");
    let received = server.received("run-1").await;
    assert_eq!(received[0].event["parentRunId"], "run-0");
    let mut input = received[0].event["input"].clone();
    for field in ["threadId", "runId", "parentRunId", "state", "tools", "context"] {
        assert_eq!(input[field], body[field], "{field}");
    }
    let own = input["messages"][0].take();
    for field in ["id", "role", "name", "encryptedValue", "metadata"] {
        assert_eq!(own[field], body["messages"][0][field], "{field}");
    }
    assert_eq!(own["content"][0], body["messages"][0]["content"][0]);
    let picture = &own["content"][1];
    assert_eq!((&picture["type"], &picture["id"]), (&json!("image"), &json!("b1")));
    assert_eq!(picture["metadata"], json!({"filename": "cat.png"}));
    assert!(picture["source"]["value"].as_str().unwrap().contains("/attachments/"), "{picture}");
    let others = input["messages"].as_array().unwrap()[1..].to_vec();
    assert_eq!(others, messages());
    // The agent reads them too.
    let run_id = server.run_of_thread().await;
    let command = server.get(&format!("/api/v1/runs/{run_id}/commands/{command_id}")).await.text;
    for words in ["overflow", "cat.png", "called the tool f"] {
        assert!(command.contains(words), "{words}: {command}");
    }
}

/// A stock client begins its transcript with them, and removes what a snapshot does not have.
#[both_engines]
async fn instructions_before_the_message_reach_the_agent_of_every_run_and_are_in_snapshots(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let instructions = [
        json!({"id": "s", "role": "system", "content": "be brief", "name": "page", "encryptedValue": "eA=="}),
        json!({"id": "d", "role": "developer", "content": "be kind"}),
    ];
    let said = |run_id: &str, transcript: &[Value], text: &str| {
        let mut body = message(run_id, text);
        let user = body["messages"][0].clone();
        body["messages"] = [transcript, &[user]].concat().into();
        body
    };
    let first = received(&server.stream(&said("run-1", &instructions, "hello")).await.text);
    assert_eq!(first[0].event["input"]["messages"].as_array().unwrap()[1..], instructions);
    // The client's messages are now those of the first run.
    let answer = first.iter().find(|event| event.kind() == "TEXT_MESSAGE_START").unwrap().event["messageId"].clone();
    let mut transcript = instructions.to_vec();
    transcript.push(first[0].event["input"]["messages"][0].clone());
    transcript.push(json!({"id": answer, "role": "assistant", "content": "hello"}));
    let second = received(&server.stream(&said("run-2", &transcript, ASKING)).await.text);
    assert_eq!(second[0].event["input"]["messages"].as_array().unwrap()[1..], instructions);
    let snapshot = second.iter().find(|event| event.kind() == "MESSAGES_SNAPSHOT").unwrap();
    assert_eq!(snapshot.event["messages"].as_array().unwrap()[..2], instructions);
    // The agent reads them with their author.
    let run_id = server.run_of_thread().await;
    let commands = server.get(&format!("/api/v1/runs/{run_id}/commands")).await.text;
    assert!(commands.contains("page: be brief"), "{commands}");
}

#[both_engines]
async fn a_run_with_a_message_alone_reads_nothing_back_and_a_resumed_run_has_its_own_parent(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    server.say("run-1", super::resuming::ASKING).await.with_status(202);
    let received = server.received("run-1").await;
    assert!(received[0].event.get("input").is_none() && received[0].event.get("parentRunId").is_none(), "{received:?}");
    let interrupt = id(&received.last().unwrap().event["outcome"]["interrupts"][0], "id");
    let mut body = super::resuming::resume("run-2", &[(&interrupt, json!({"approved": true}))]);
    body["parentRunId"] = json!("run-1");
    server.post(RUNS, &body).await.with_status(202);
    let received = server.received("run-2").await;
    assert_eq!((&received[0].event["parentRunId"], received[0].event.get("input")), (&json!("run-1"), None));
    assert_eq!(replayed(&server, "run-1").await, Value::Null);
}

#[both_engines]
async fn a_field_that_cannot_be_stored_is_rejected_by_name(engine: Engine) {
    let server = TestServer::start(engine).await;
    let system = |field: &str, value: Value| {
        let mut system = json!({"id": "s", "role": "system", "content": "x"});
        system[field] = value;
        (vec![system], format!("messages[1].{field}"))
    };
    let called = |field: &str, value: Value| {
        let mut call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        call[field] = value;
        (
            vec![json!({"id": "a", "role": "assistant", "toolCalls": [call]})],
            format!("messages[1].toolCalls[0].{field}"),
        )
    };
    let cases = [
        system("name", json!(7)),
        system("encryptedValue", json!({})),
        system("metadata", json!("text")),
        system("subagentRunId", json!("sub-1")),
        called("type", json!("procedure")),
        called("encryptedValue", json!([])),
        called("metadata", json!([])),
    ];
    for (others, place) in cases {
        let mut body = message("run-1", "hello");
        body["messages"].as_array_mut().unwrap().extend(others);
        let refused = server.post(RUNS, &body).await;
        assert!(refused.text.contains(&place), "{place}: {}", refused.text);
        refused.refused_as(RunInputInvalid, "AGENT_RUN_MESSAGES_INVALID");
    }
    for (field, value) in
        [("parentRunId", json!(7)), ("protocolVersion", json!(1)), ("state", json!("x".repeat(131_073)))]
    {
        let mut body = message("run-1", "hello");
        body[field] = value;
        let refused = server.post(RUNS, &body).await;
        assert!(refused.text.contains(field), "{field}: {}", refused.text);
        refused.refused_as(RunInputInvalid, "AGENT_RUN_INPUT_INVALID");
    }
    let mut body = message("run-1", "hello");
    body["parentRunId"] = json!("a\u{7}b");
    server.post(RUNS, &body).await.refused_as(RunInputInvalid, "AGENT_INVALID_RUN_ID");
    let entry = |more: Value| {
        let mut body = super::resuming::resume("run-1", &[("prm_1", json!({"approved": true}))]);
        for (name, value) in more.as_object().unwrap() {
            body["resume"][0][name] = value.clone();
        }
        body
    };
    let refused = server.post(RUNS, &entry(json!({"metadata": {"k": 1}}))).await;
    assert!(refused.text.contains("resume[0].metadata"), "{}", refused.text);
    assert_eq!(refused.status, 422);
}
