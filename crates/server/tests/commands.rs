//! T3 and T6: commands are asked once per key, end apart from their run, and never speak for each other. Steers and
//! interrupts aim at the turn that was active.

use ostler_protocol::FailureKind::*;
use serde_json::{Value, json};

use crate::harness::{Engine, TestServer, both_engines, id};

#[both_engines]
async fn the_same_key_and_payload_give_the_same_command(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let body = json!({"type": "turn", "payload": {"prompt": "hi", "n": 1}, "idempotencyKey": "k"});
    let first = server.submit(&run_id, &body).await.with_status(201);
    // The hash is of the meaning, not of the text.
    let text = r#"{"idempotencyKey":"k","payload":{"n":1.0,  "prompt":"hi"},"type":"turn"}"#;
    let again = server.send_text("POST", &format!("/api/v1/runs/{run_id}/commands"), text).await.with_status(200);
    assert_eq!(again, first);
    assert_eq!((&first["seq"], &first["state"]), (&json!(1), &json!("pending")));
    assert_eq!(server.command(&run_id, &id(&first, "commandId")).await, first);
    assert_eq!(server.events_of(&run_id, "user_message").await.len(), 1);
    assert_eq!(server.run(&run_id).await["commandCount"], 1);
}

#[both_engines]
async fn the_same_key_with_another_payload_is_a_conflict(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let body = |prompt: &str| json!({"type": "turn", "payload": {"prompt": prompt}, "idempotencyKey": "k"});
    let first = server.submit(&run_id, &body("one")).await.with_status(201);
    assert_eq!(server.submit(&run_id, &body("one")).await.with_status(200)["commandId"], first["commandId"]);
    let before = server.events(&run_id).await;
    let refused = server.submit(&run_id, &body("two")).await.refused_by(IdempotencyConflict, "payload-hash");
    assert_eq!(refused.details["commandId"], first["commandId"]);
    assert_eq!(refused.details["payloadHash"], first["payloadHash"]);
    let other_type = json!({"type": "steer", "payload": {"prompt": "one"}, "idempotencyKey": "k"});
    server.submit(&run_id, &other_type).await.refused(IdempotencyConflict);
    assert_eq!(server.events(&run_id).await, before);
    // The key is taken as long as its command exists, also when that has ended; in another run it is free.
    server.cancel_command(&id(&first, "commandId")).await;
    assert_eq!(server.submit(&run_id, &body("one")).await.with_status(200)["state"], "cancelled");
    let other_run = server.create_run().await;
    server.submit(&other_run, &body("two")).await.with_status(201);
}

#[both_engines]
async fn a_key_in_the_header_counts_like_one_in_the_body(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let path = format!("/api/v1/runs/{run_id}/commands");
    let send = async |key: &str, body: Value| {
        let request = server.request("POST", &path).header("idempotency-key", key);
        server.send(request.header("content-type", "application/json").body(body.to_string())).await
    };
    let body = json!({"type": "turn", "payload": {"prompt": "hi"}});
    let first = send("k", body.clone()).await.with_status(201);
    assert_eq!(first["idempotencyKey"], "k");
    assert_eq!(send("k", body.clone()).await.with_status(200), first);
    let mut keyed = body.clone();
    keyed["idempotencyKey"] = "k".into();
    assert_eq!(server.submit(&run_id, &keyed).await.with_status(200), first);
    assert_eq!(send("k", keyed.clone()).await.with_status(200), first);
    send("another", keyed).await.refused_by(SchemaInvalid, "idempotency-key");
    send("k", json!({"type": "turn", "payload": {"prompt": "other"}})).await.refused(IdempotencyConflict);
}

#[both_engines]
async fn two_commands_of_a_run_end_apart(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let (one, two) = (server.turn(&run_id, "one").await, server.turn(&run_id, "two").await);
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&one).await;
    runner.say(&one, "the answer to one").await;
    assert_eq!(server.run(&run_id).await["status"], "running");
    let ended = runner.end(&one, "completed").await;
    assert_eq!((&ended["state"], &ended["terminal"]["status"]), (&json!("completed"), &json!("completed")));
    let run = server.run(&run_id).await;
    assert_eq!((&run["status"], &run["terminal"]), (&json!("claimed"), &Value::Null));
    assert_eq!(server.result(&run_id, &two).await["status"], "pending");
    runner.ack(&two).await;
    runner.say(&two, "the answer to two").await;
    runner.end(&two, "failed").await;
    let run = server.run(&run_id).await;
    assert_eq!((&run["status"], &run["unfinishedCommands"]), (&json!("claimed"), &json!(0)));
    assert_eq!(server.result(&run_id, &one).await["reply"], "the answer to one");
    assert_eq!(server.result(&run_id, &two).await["terminalStatus"], "failed");
    // Only the run's own end ends it: here a cancel, which takes what is unfinished along.
    let three = server.turn(&run_id, "three").await;
    runner.release().await;
    let run = server.cancel_run(&run_id).await;
    assert_eq!((&run["status"], &run["terminal"]["status"]), (&json!("cancelled"), &json!("cancelled")));
    let mut states = vec![];
    for command_id in [&one, &two, &three] {
        states.push(id(&server.command(&run_id, command_id).await, "state"));
    }
    assert_eq!(states, ["completed", "failed", "cancelled"]);
}

#[both_engines]
async fn a_result_never_holds_another_commands_text(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let (one, two) = (server.turn(&run_id, "ask-one").await, server.turn(&run_id, "ask-two").await);
    let runner = server.claim(&run_id, "runner-a").await;
    for (command_id, word) in [(&one, "apple"), (&two, "banana")] {
        runner.tell(command_id, "tool_call", json!({"toolCallId": word, "name": word, "status": "completed"})).await;
        runner.tell(command_id, "command_output", json!({"text": word})).await;
        runner.tell(command_id, "error", json!({"failureKind": "backend-failed", "message": word})).await;
        runner.say(command_id, word).await;
    }
    runner.end(&one, "completed").await;
    runner.end(&two, "completed").await;
    for (command_id, mine, foreign) in [(&one, "apple", "banana"), (&two, "banana", "apple")] {
        let result = server.result(&run_id, command_id).await;
        assert_eq!(result["reply"], mine);
        assert!(!result.to_string().contains(foreign), "{result}");
        let by_query = server.get(&format!("/api/v1/runs/{run_id}/result?commandId={command_id}")).await.ok();
        assert_eq!(by_query, result);
    }
    let latest = server.get(&format!("/api/v1/runs/{run_id}/result")).await.ok();
    assert_eq!(latest["commandId"], two.as_str());
}

#[both_engines]
async fn a_turn_or_steer_needs_words(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    for (body, rule) in [
        (json!({"type": "turn"}), "prompt-required"),
        (json!({"type": "turn", "payload": {}}), "prompt-required"),
        (json!({"type": "turn", "payload": {"prompt": " \n"}}), "prompt-required"),
        (json!({"type": "turn", "payload": {"prompt": 7}}), "prompt-required"),
        (json!({"type": "steer", "payload": {"other": "x"}}), "prompt-required"),
        (json!({"type": "turn", "payload": "words"}), "payload-object"),
        (json!({"type": "turn", "payload": null}), "payload-object"),
        (json!({"type": "turn", "payload": ["words"]}), "payload-object"),
        (
            json!({"type": "turn", "payload": {"prompt": "x", "wholePayload": {"bytes": 1, "sha256": ""}}}),
            "payload-reserved",
        ),
        (json!({"type": "dance", "payload": {"prompt": "x"}}), "body-shape"),
        (json!({"payload": {"prompt": "x"}}), "body-shape"),
        (json!({"type": "turn", "payload": {"prompt": "x"}, "idempotencyKey": " "}), "name-shape"),
        (json!({"type": "turn", "payload": {"prompt": "x", "budgets": {"maxTurns": 0}}}), "budget-positive"),
        (json!({"type": "turn", "payload": {"prompt": "x", "budgets": "all"}}), "budgets-shape"),
    ] {
        let answer = server.submit(&run_id, &body).await;
        assert_eq!(answer.body["details"]["rule"], rule, "{body}: {}", answer.text);
        answer.refused(SchemaInvalid);
    }
    assert_eq!(server.run(&run_id).await["commandCount"], 0);
    for field in ["prompt", "message", "text"] {
        let body = json!({"type": "turn", "payload": {field: "words"}});
        server.submit(&run_id, &body).await.with_status(201);
    }
    let messages = server.events_of(&run_id, "user_message").await;
    assert_eq!(messages.len(), 3);
    assert!(messages.iter().all(|message| message["payload"]["content"][0]["text"] == "words"));
}

#[both_engines]
async fn a_steer_aims_at_the_active_turn(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let (one, two) = (server.turn(&run_id, "one").await, server.turn(&run_id, "two").await);
    assert_eq!(server.steer(&run_id, "early").await["targetCommandId"], one.as_str());
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&one).await;
    runner.end(&one, "completed").await;
    runner.ack(&two).await;
    let steer = server.steer(&run_id, "later").await;
    assert_eq!((&steer["targetCommandId"], &steer["state"]), (&json!(two), &json!("pending")));
    assert_eq!(server.command(&run_id, &one).await["targetCommandId"], Value::Null);
}

#[both_engines]
async fn a_steer_without_a_turn_is_blocked_at_once(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let steer = server.steer(&run_id, "nobody there").await;
    assert_eq!((&steer["state"], &steer["terminal"]["failureKind"]), (&json!("blocked"), &json!("state-conflict")));
    assert_eq!(steer["targetCommandId"], Value::Null);
    // Also when the turn has just ended.
    let command_id = server.turn(&run_id, "x").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.end(&command_id, "completed").await;
    assert_eq!(server.steer(&run_id, "too late").await["state"], "blocked");
}

#[both_engines]
async fn undelivered_steers_end_with_their_turn(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "x").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    let steers =
        [id(&server.steer(&run_id, "a").await, "commandId"), id(&server.steer(&run_id, "b").await, "commandId")];
    runner.ack(&steers[1]).await;
    runner.end(&command_id, "completed").await;
    for steer in &steers {
        let command = server.command(&run_id, steer).await;
        assert_eq!(command["state"], "blocked");
        assert_eq!(command["terminal"]["message"], "the turn it was meant for has ended");
    }
    assert_eq!(server.run(&run_id).await["unfinishedCommands"], 0);
    runner.try_ack(&steers[0]).await.refused_by(StateConflict, "command-terminal");
}

#[both_engines]
async fn an_accepted_steer_shows_its_progress(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let turn = server.turn(&run_id, "x").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&turn).await;
    let steer = id(&server.steer(&run_id, "left!").await, "commandId");
    let delivery = async || server.result(&run_id, &steer).await["steerDelivery"].clone();
    let state = delivery().await;
    assert_eq!((&state["targetCommandId"], &state["acked"]), (&json!(turn), &json!(false)));
    assert_eq!((&state["accepted"], &state["acceptedSeq"]), (&json!(false), &Value::Null));
    runner.ack(&steer).await;
    assert_eq!(delivery().await["acked"], true);
    let accepted = runner.tell(&steer, "backend_status", json!({"phase": "turn/steer:completed"})).await;
    runner.end(&steer, "completed").await;
    let state = delivery().await;
    assert_eq!((&state["accepted"], &state["acceptedSeq"]), (&json!(true), &accepted["firstSeq"]));
    assert_eq!(state["targetEventsObserved"], false);
    assert!(state["note"].as_str().unwrap().contains("does not mean"));
    runner.say(&turn, "turning left").await;
    assert_eq!(delivery().await["targetEventsObserved"], true);
    // A steer's own result has no reply, and a turn's has no delivery.
    assert_eq!(server.result(&run_id, &steer).await["reply"], Value::Null);
    assert_eq!(server.result(&run_id, &turn).await["steerDelivery"], Value::Null);
}

#[both_engines]
async fn an_interrupt_needs_no_words_and_aims_like_a_steer(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let interrupt = json!({"type": "interrupt"});
    assert_eq!(server.submit(&run_id, &interrupt).await.with_status(201)["state"], "blocked");
    let turn = server.turn(&run_id, "x").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&turn).await;
    let command = server.submit(&run_id, &interrupt).await.with_status(201);
    assert_eq!((&command["state"], &command["targetCommandId"]), (&json!("pending"), &json!(turn)));
    // It asks; it does not end anything by itself.
    assert_eq!(server.command(&run_id, &turn).await["state"], "acked");
    assert_eq!(server.result(&run_id, &id(&command, "commandId")).await["steerDelivery"], Value::Null);
}

#[both_engines]
async fn a_poll_gives_unfinished_commands_above_a_number(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let (one, two) = (server.turn(&run_id, "one").await, server.turn(&run_id, "two").await);
    let runner = server.claim(&run_id, "runner-a").await;
    let ids = |page: &Value| -> Vec<String> {
        page["commands"].as_array().unwrap().iter().map(|command| id(command, "commandId")).collect()
    };
    let page = runner.poll("").await;
    assert_eq!(ids(&page), [one.as_str(), two.as_str()]);
    assert_eq!(page["nextAfterSeq"], 2);
    let page = runner.poll("limit=1").await;
    assert_eq!((ids(&page), &page["nextAfterSeq"]), (vec![one.clone()], &json!(1)));
    assert_eq!(ids(&runner.poll("afterSeq=1").await), [two.as_str()]);
    runner.ack(&one).await;
    server.cancel_command(&one).await;
    let page = runner.poll("afterSeq=2").await;
    assert_eq!((ids(&page), &page["nextAfterSeq"]), (vec![], &json!(2)));
    assert_eq!(page["cancelRequested"], json!([one]));
    assert_eq!(page["runCancelRequested"], false);
    runner.end(&one, "cancelled").await;
    let page = runner.poll("").await;
    assert_eq!((ids(&page), &page["cancelRequested"]), (vec![two], &json!([])));
    server.cancel_run(&run_id).await;
    assert_eq!(runner.poll("").await["runCancelRequested"], true);
}

#[both_engines]
async fn a_run_takes_a_bounded_number_of_unfinished_commands(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let first = server.turn(&run_id, "0").await;
    for n in 1..ostler_protocol::limits::COMMANDS_UNFINISHED_MAX {
        server.turn(&run_id, &n.to_string()).await;
    }
    let body = json!({"type": "turn", "payload": {"prompt": "one more"}});
    server.submit(&run_id, &body).await.refused_by(Overloaded, "commands-unfinished");
    server.cancel_command(&first).await;
    server.submit(&run_id, &body).await.with_status(201);
}
