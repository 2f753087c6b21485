//! The conversation of a session before a command: across its runs, for callers that may see the run only.

use ostler_protocol::FailureKind::NotFound;
use serde_json::{Value, json};

use crate::harness::{Caller, Engine, TestServer, both_engines};

fn path(run_id: &str, command_id: &str) -> String {
    format!("/api/v1/runs/{run_id}/commands/{command_id}/conversation")
}

async fn run_in_session(caller: &Caller, session_id: &str) -> String {
    caller.create_run_with(|run| run["sessionRef"] = json!({"sessionId": session_id})).await
}

/// A turn that is asked and answered.
async fn exchange(server: &TestServer, run_id: &str, asked: &str, answered: &str) {
    let turn = server.turn(run_id, asked).await;
    let runner = server.claim(run_id, "runner-a").await;
    runner.ack(&turn).await;
    runner.say(&turn, answered).await;
    runner.end(&turn, "completed").await;
    runner.release().await;
}

#[both_engines]
async fn an_earlier_run_of_the_session_comes_along(engine: Engine) {
    let server = TestServer::start(engine).await;
    let first = run_in_session(&server, "talk").await;
    exchange(&server, &first, "one", "eins").await;
    let other = server.create_run().await;
    exchange(&server, &other, "elsewhere", "anderswo").await;
    let second = run_in_session(&server, "talk").await;
    exchange(&server, &second, "two", "zwei").await;
    let third = server.turn(&second, "three").await;
    let later = server.turn(&second, "four").await;
    let said = server.get(&path(&second, &third)).await.ok();
    let words: Vec<_> = said["messages"].as_array().unwrap().iter().map(|message| message["text"].clone()).collect();
    assert_eq!(words, ["one", "eins", "two", "zwei"]);
    assert_eq!(said["truncated"], false);
    let said = server.get(&path(&second, &later)).await.ok();
    assert_eq!(said["messages"][4], json!({"role": "user", "text": "three"}));
}

#[both_engines]
async fn only_callers_who_may_see_the_run_can_read_its_conversation(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.token("other", "client", &["unidesk"])).await;
    let run_id = server.create_run().await;
    let turn = server.turn(&run_id, "hi").await;
    let empty: Value = server.get(&path(&run_id, &turn)).await.ok();
    assert_eq!(empty["messages"], json!([]));
    server.caller("other").get(&path(&run_id, &turn)).await.refused(NotFound);
    let another = server.create_run().await;
    server.get(&path(&another, &turn)).await.refused(NotFound);
    server.get(&path(&run_id, "cmd_nothing")).await.refused(NotFound);
}
