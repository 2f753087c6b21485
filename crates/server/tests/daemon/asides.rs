//! Questions beside a session, and how much of the context window it takes.

use ostler_stand_ins::{Endpoint, chat};
use serde_json::{Value, json};

use super::{
    configure, refused,
    scene::{Attached, attached},
};
use crate::harness::{Caller, Engine, TestServer, ask_body, both_engines, eventually, one_engine};

/// A server whose sessions use a model at this endpoint, with a context window of 1000 tokens.
async fn with_model(engine: Engine, endpoint: &Endpoint) -> TestServer {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 64;
        configure(setup, |section| section.profile = "model".into());
    })
    .await;
    let base_url = endpoint.base_url();
    let config =
        format!("[ostler]\nagent = \"model\"\nbase_url = \"{base_url}\"\nmodel = \"small\"\ncontext_window = 1000\n");
    let path = "/api/v1/provider-profiles/model/config";
    server.call("PUT", path, &json!({"config": config})).await.with_status(200);
    server
}

/// Homes of backends outside of jobs.
fn homes(server: &TestServer) -> usize {
    let homes = server.config.server.data_dir.as_ref().unwrap().join("homes");
    let entries = std::fs::read_dir(homes).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with("outside-"))).count()
}

async fn events(caller: &Caller, session: &Attached) -> usize {
    let page = caller.get(&format!("/api/v1/sessions/{}/trace?limit=100", session.id)).await.with_status(200);
    page["events"].as_array().unwrap().len()
}

#[both_engines]
async fn side_questions_are_answered_and_leave_no_event(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let session = attached(&server).await;
    let nothing = session.post("recap", &Value::Null).await.with_status(200);
    assert_eq!(nothing, json!({"sessionId": session.id, "recap": null}));
    let ask = json!({"question": " Why? "});
    let nothing = session.post("btw", &ask).await.with_status(200);
    assert_eq!(nothing, json!({"sessionId": session.id, "answer": null}));
    session.prompt_to_end(r#"{"script": [{"say": "The race is fixed."}]}"#).await;
    let before = events(&server, &session).await;
    let recap = session.post("recap", &Value::Null).await.with_status(200);
    assert_eq!(recap["recap"], "2 messages; the last one: The race is fixed.");
    let answer = session.post("btw", &ask).await.with_status(200);
    assert_eq!(answer["answer"], "Why?: 2 messages; the last one: The race is fixed.");
    assert_eq!(events(&server, &session).await, before);
}

#[one_engine]
async fn a_question_must_be_one_and_its_client_registered(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (session, other) = (attached(&server).await, attached(&server).await);
    let too_long = "a".repeat(4_097);
    for body in [json!({}), json!({"question": " "}), json!({"question": too_long})] {
        refused(session.post("btw", &body).await, 400, "invalid_question");
    }
    let foreign = Attached { client: other.client.clone(), ..session };
    refused(foreign.post("recap", &Value::Null).await, 400, "invalid_client_id");
    refused(foreign.post("btw", &json!({"question": "why?"})).await, 400, "invalid_client_id");
    refused(server.post("/session/nobody/recap", &Value::Null).await, 404, "session_not_found");
    refused(server.get("/session/nobody/context-usage").await, 404, "session_not_found");
}

#[both_engines]
async fn a_side_query_sends_the_conversation_and_no_tools_to_the_model(engine: Engine) {
    let endpoint = chat();
    let server = with_model(engine, &endpoint).await;
    let session = attached(&server).await;
    session.prompt_to_end("my name is Ada").await;
    let before = events(&server, &session).await;
    let answer = session.post("btw", &json!({"question": "[[recall]]"})).await.with_status(200);
    assert_eq!(answer["answer"], "user=my name is Ada | assistant=You said: my name is Ada");
    let request = endpoint.seen().pop().unwrap().body;
    assert!(request.get("tools").is_none() && request["messages"].as_array().unwrap().len() == 3, "{request}");
    // The stand-in repeats the question, tags included.
    let recap = session.post("recap", &Value::Null).await.with_status(200);
    assert_eq!(recap["recap"], "and");
    assert_eq!(events(&server, &session).await, before);
}

#[one_engine]
async fn a_provider_that_fails_gives_no_recap_and_fails_a_question(engine: Engine) {
    let endpoint = chat();
    let server = with_model(engine, &endpoint).await;
    let session = attached(&server).await;
    session.prompt_to_end("hello").await;
    let failed = session.post("btw", &json!({"question": "[[status:500]]"})).await;
    assert_eq!(failed.headers["content-type"], "application/json");
    refused(failed, 503, "provider_unavailable");
    let empty = session.post("btw", &json!({"question": "[[nothing]]"})).await.with_status(200);
    assert_eq!(empty["answer"], Value::Null);
    // The message of the failed turn is the last one, so that the question for a recap fails in the same way.
    session.prompt_to_end("[[status:400]]").await;
    assert_eq!(session.post("recap", &Value::Null).await.with_status(200)["recap"], Value::Null);
}

#[one_engine]
async fn a_client_that_leaves_ends_its_question_and_makes_room(engine: Engine) {
    let endpoint = chat();
    let server = with_model(engine, &endpoint).await;
    let session = attached(&server).await;
    session.prompt_to_end("hello").await;
    let path = format!("/session/{}/btw", session.id);
    let silent: Vec<_> = (0..4)
        .map(|_| {
            let (caller, path) = (session.caller.clone(), path.clone());
            tokio::spawn(async move { caller.post(&path, &json!({"question": "[[hold]]"})).await })
        })
        .collect();
    eventually("the provider is asked", async || (endpoint.seen().len() == 5).then_some(())).await;
    assert_eq!(homes(&server), 0, "a question needs no home");
    let question = json!({"question": "hi"});
    let busy = session.post("btw", &question).await;
    assert_eq!(busy.headers["retry-after"], "1");
    refused(busy, 429, "side_queries_per_caller");
    refused(session.post("recap", &Value::Null).await, 429, "side_queries_per_caller");
    silent.iter().for_each(tokio::task::JoinHandle::abort);
    eventually("there is room", async || (session.post("btw", &question).await.status == 200).then_some(())).await;
    eventually("every dropped question is counted", async || {
        let metrics = server.get("/metrics").await.text;
        metrics.contains("ostler_side_queries_total{end=\"dropped\"} 4\n").then_some(())
    })
    .await;
}

#[one_engine]
async fn questions_are_advertised_only_if_the_backend_answers_them(engine: Engine) {
    let advertised = async |server: &TestServer| {
        let envelope = server.get("/capabilities").await.with_status(200);
        let features = envelope["features"].as_array().unwrap();
        let tags = ["session_btw", "session_recap", "session_context_usage"];
        tags.map(|tag| features.contains(&json!(tag)))
    };
    assert_eq!(advertised(&TestServer::start(engine).await).await, [true, true, true]);
    let endpoint = chat();
    assert_eq!(advertised(&with_model(engine, &endpoint).await).await, [true, true, true]);
    let other = TestServer::with(engine, |setup| configure(setup, |section| section.profile = "other".into())).await;
    // A program that is not known to have a model which can be asked without its tools.
    let config = "[ostler]\nagent = \"acp\"\ncommand = [\"/bin/cat\"]\n";
    let path = "/api/v1/provider-profiles/other/config";
    other.call("PUT", path, &json!({"config": config})).await.with_status(200);
    assert_eq!(advertised(&other).await, [false, false, true]);
}

#[both_engines]
async fn context_usage_is_what_the_provider_counted_last(engine: Engine) {
    let endpoint = chat();
    let server = with_model(engine, &endpoint).await;
    let session = attached(&server).await;
    let before = session.get("context-usage").await.with_status(200);
    assert_eq!((&before["v"], &before["sessionId"]), (&json!(1), &json!(session.id)));
    assert_eq!(before["usage"]["isEstimated"], true);
    assert_eq!((&before["usage"]["totalTokens"], &before["usage"]["modelName"]), (&json!(0), &json!("small")));
    session.prompt_to_end("hi").await;
    let usage = session.get("context-usage?detail=true").await.with_status(200)["usage"].clone();
    assert_eq!((&usage["totalTokens"], &usage["contextWindowSize"]), (&json!(10), &json!(1000)));
    assert_eq!((&usage["modelName"], &usage["isEstimated"]), (&json!("stand-in"), &json!(false)));
    let parts = &usage["breakdown"];
    // 2 and 12 bytes of messages.
    assert_eq!((&parts["messages"], &parts["unattributed"], &parts["freeSpace"]), (&json!(4), &json!(6), &json!(990)));
    assert_eq!(usage["showDetails"], true);
}

#[both_engines]
async fn context_usage_estimates_what_no_backend_reports(engine: Engine) {
    let mut bound = None;
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 64;
        bound = Some(setup.bind_workspace());
    })
    .await;
    let workspace = bound.unwrap();
    std::fs::write(workspace.join("AGENTS.md"), "Never force-push.\n").unwrap();
    let session = attached(&server).await;
    let context = session.get("context-usage?detail=true").await.with_status(200);
    assert_eq!(context["workspaceCwd"], workspace.to_str().unwrap());
    let usage = &context["usage"];
    assert_eq!((&usage["totalTokens"], &usage["contextWindowSize"]), (&json!(5), &json!(0)));
    assert_eq!(usage["memoryFiles"], json!([{"path": "AGENTS.md", "tokens": 5}]));
    assert_eq!((&usage["isEstimated"], &usage["breakdown"]["memoryFiles"]), (&json!(true), &json!(5)));
    assert!(context["formattedText"].as_str().unwrap().contains("Context window: not known"), "{context}");
    let plain = session.get("context-usage").await.with_status(200)["usage"].clone();
    assert_eq!((&plain["memoryFiles"], &plain["showDetails"]), (&json!([]), &json!(false)));
    session.prompt_to_end(r#"{"script": [{"usage": {"inputTokens": 30, "outputTokens": 12}}, {"say": "x"}]}"#).await;
    assert_eq!(session.get("context-usage").await.with_status(200)["usage"]["totalTokens"], 30);
}

#[both_engines]
async fn a_prompt_may_have_64_open_permission_requests(engine: Engine) {
    let server = TestServer::start(engine).await;
    let session = attached(&server).await;
    session.prompt("hi").await;
    let (run_id, command_id) = session.prompted(&server).await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    let ask = |number: usize| {
        let permission_id = format!("prm_{}{number:02}", &command_id[4..34]);
        json!({"type": "permission_request", "commandId": command_id,
            "payload": ask_body(&permission_id, crate::operations::DIGEST)})
    };
    runner.try_append(None, (0..64).map(ask).collect()).await.with_status(200);
    let refused = runner.try_append(None, json!([ask(64)])).await;
    refused.refused_by(ostler_protocol::FailureKind::Overloaded, "permissions-open");
}

/// Proves one of the tags about questions beside a session.
pub(crate) async fn proof(server: &TestServer, tag: &str) {
    let session = attached(server).await;
    match tag {
        "session_recap" => assert!(session.post("recap", &Value::Null).await.with_status(200)["recap"].is_null()),
        "session_btw" => {
            session.post("model", &json!({"modelId": "scripted"})).await.with_status(200);
            session.prompt("hello").await;
            let answer = session.post("btw", &json!({"question": "why?"})).await.with_status(200);
            assert_eq!(answer["answer"], "why?: 1 messages; the last one: hello");
        }
        "session_context_usage" => {
            assert!(session.get("context-usage").await.with_status(200)["usage"]["totalTokens"].is_u64());
        }
        other => panic!("{other} is not about questions beside a session"),
    }
    session.close().await;
}
