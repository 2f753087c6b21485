//! Shell commands of clients: who may run them, what followers and the agent get, and how they end.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    CLIENT, configure, refused,
    rewinds::conversation,
    scene::{Attached, attached},
};
use crate::{
    harness::{Engine, TestServer, both_engines, eventually},
    retention::{DAY_MS, hold, release, sweep, verify},
};

async fn server(engine: Engine) -> TestServer {
    TestServer::with(engine, |setup| {
        setup.config.runner.slots = 4;
        setup.bind_workspace();
        configure(setup, |section| section.session_shell = true);
    })
    .await
}

async fn run(session: &Attached, command: &str) -> Value {
    session.post("shell", &json!({"command": command})).await.with_status(200)
}

#[both_engines]
async fn a_command_runs_in_the_workspace_and_the_agent_gets_its_output(engine: Engine) {
    let server = server(engine).await;
    let session = attached(&server).await;
    session.prompt_to_end("one").await;
    let result = run(&session, " echo made > file; cat file; exit 3 ").await;
    assert_eq!(result, json!({"exitCode": 3, "output": "made\n", "aborted": false}));
    let workspace = server.config.server.workspace.clone().unwrap().canonicalize().unwrap();
    assert_eq!(std::fs::read_to_string(workspace.join("file")).unwrap(), "made\n");
    let notes = session.notes(&server).await;
    let frames: Vec<_> = notes.iter().map(|note| note["note"].as_str().unwrap()).collect();
    assert_eq!(frames, ["daemon.user_shell_command", "daemon.session_update", "daemon.user_shell_result"]);
    assert!(notes.iter().all(|note| note["data"]["clientId"] == session.client.as_str()));
    let command = json!({"sessionId": session.id, "command": "echo made > file; cat file; exit 3",
        "cwd": workspace.to_str().unwrap()});
    assert_eq!(notes[0]["data"]["data"], command);
    let update = &notes[1]["data"]["data"]["update"];
    assert_eq!((&update["sessionUpdate"], &update["output"]), (&json!("shell_output"), &json!("made\n")));
    let end = json!({"sessionId": session.id, "exitCode": 3, "signal": null, "aborted": false});
    assert_eq!(notes[2]["data"]["data"], end);
    session.prompt_to_end("two").await;
    let messages = conversation(&server, &session).await;
    assert_eq!(messages.len(), 3);
    assert!(
        messages[2].contains("cat file") && messages[2].contains("made\n") && messages[2].contains("exit code 3"),
        "{messages:?}"
    );
}

#[both_engines]
async fn an_output_that_is_cut_is_marked_in_the_response_and_in_the_frame(engine: Engine) {
    let server = server(engine).await;
    let session = attached(&server).await;
    let mark = "\n[The rest of the output is left out.]\n";
    let update = async || {
        let mut notes = session.notes(&server).await.into_iter();
        let note = notes.rfind(|note| note["note"] == "daemon.session_update").unwrap();
        note["data"]["data"]["update"].clone()
    };
    let long = run(&session, "printf '%300000s' '' | tr ' ' x").await;
    assert_eq!(long["outputTruncated"], true);
    let output = long["output"].as_str().unwrap();
    assert!(output.ends_with(mark) && output.len() <= 256 * 1024 + mark.len(), "{} bytes", output.len());
    let frame = update().await;
    assert_eq!(frame["outputTruncated"], true);
    let output = frame["output"].as_str().unwrap();
    assert!(output.ends_with(mark) && output.len() == 32 * 1024 + mark.len(), "{} bytes", output.len());
    // The response has all of this one, and the frame does not.
    let short = run(&session, "printf '%40000s' '' | tr ' ' y").await;
    assert_eq!((short["output"].as_str().unwrap().len(), short.get("outputTruncated")), (40_000, None));
    let frame = update().await;
    assert!(frame["outputTruncated"] == true && frame["output"].as_str().unwrap().ends_with(mark), "{frame}");
    run(&session, "echo whole").await;
    assert_eq!(update().await.get("outputTruncated"), None);
}

#[both_engines]
async fn only_clients_of_the_session_may_run_commands_where_they_are_enabled(engine: Engine) {
    let server = server(engine).await;
    let session = attached(&server).await;
    let (path, body) = (format!("/session/{}/shell", session.id), json!({"command": "touch never"}));
    refused(server.post(&path, &body).await, 403, "client_id_required");
    refused(server.as_client("client_other", "POST", &path, &body).await, 400, "invalid_client_id");
    for command in [json!(null), json!("  "), json!(7), json!("x".repeat(20_000))] {
        refused(session.post("shell", &json!({"command": command})).await, 400, "invalid_shell_command");
    }
    let disabled = TestServer::with(engine, |setup| drop(setup.bind_workspace())).await;
    let session = attached(&disabled).await;
    refused(session.post("shell", &body).await, 403, "session_shell_disabled");
    assert!(session.notes(&disabled).await.is_empty());
}

#[both_engines]
async fn secrets_are_removed_from_commands_and_their_output(engine: Engine) {
    let server = server(engine).await;
    let session = attached(&server).await;
    let secret = "sk-0123456789abcdef0123456789abcdef";
    let result = run(&session, &format!("echo {secret}; printf 'a\\000b'")).await;
    assert!(!result.to_string().contains(secret) && result["output"].as_str().unwrap().ends_with("ab"), "{result}");
    let logged = serde_json::to_string(&server.logged(&session.id).await).unwrap();
    assert!(logged.contains("user_shell_command") && !logged.contains(secret), "{logged}");
}

#[both_engines]
async fn a_command_is_killed_when_its_client_hangs_up(engine: Engine) {
    let server = server(engine).await;
    let session = attached(&server).await;
    let path = format!("/session/{}/shell", session.id);
    let request = server.request("POST", &path).header(CLIENT, &session.client).timeout(Duration::from_millis(200));
    let body = json!({"command": "echo begun; sleep 60; touch survived"});
    let hung_up = request.header("content-type", "application/json").body(body.to_string()).send().await;
    assert!(hung_up.is_err());
    let end = eventually("the command is killed", async || {
        session.notes(&server).await.into_iter().find(|note| note["note"] == "daemon.user_shell_result")
    })
    .await;
    assert_eq!((&end["data"]["data"]["aborted"], &end["data"]["data"]["exitCode"]), (&json!(true), &Value::Null));
}

#[both_engines]
async fn commands_and_their_output_are_removed_after_the_limit_of_events_unless_they_are_held(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 4;
        setup.bind_workspace();
        configure(setup, |section| section.session_shell = true);
        setup.config.retention.events_ms = Some(3_600_000);
    })
    .await;
    let session = attached(&server).await;
    run(&session, "echo planted-$((40 + 2))").await;
    server.clock.advance_ms(DAY_MS);
    run(&session, "echo later").await;
    let planted = async || {
        let events = server.logged(&session.id).await;
        events.iter().filter(|event| event["payload"].to_string().contains("planted-")).count()
    };
    let hold_id = hold(&server, json!({"sessionId": session.id, "reason": "case 7"})).await;
    let swept = sweep(&server, json!({"noun": "events"})).await;
    assert!(swept["counts"].as_array().unwrap().iter().any(|count| count["held"] == 4), "{swept}");
    assert_eq!(planted().await, 3, "the command, its output, and the message for the agent");
    release(&server, &hold_id).await;
    let swept = sweep(&server, json!({"noun": "events"})).await;
    assert!(swept["counts"].as_array().unwrap().iter().any(|count| count["items"] == 4), "{swept}");
    assert_eq!(planted().await, 0);
    let report = verify(&server, engine).await;
    assert_eq!((report.broken, report.removed), (vec![], 4));
    // What is younger than the limit stays, and the agent still gets it.
    session.prompt_to_end("two").await;
    let messages = conversation(&server, &session).await;
    assert!(messages.len() == 1 && messages[0].contains("later"), "{messages:?}");
}

#[both_engines]
async fn a_label_with_the_name_of_a_removable_change_is_not_removed(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.bind_workspace();
        configure(setup, |section| section.session_shell = true);
        setup.config.retention.events_ms = Some(3_600_000);
    })
    .await;
    let session = attached(&server).await;
    let path = format!("/api/v1/sessions/{}", session.id);
    server.patch(&path, &json!({"labels": {"change": "noted"}})).await.with_status(200);
    run(&session, "echo planted").await;
    server.clock.advance_ms(DAY_MS);
    sweep(&server, json!({"noun": "events"})).await;
    let events = server.logged(&session.id).await;
    assert!(events.iter().any(|event| event["payload"]["change"] == "labelled"), "{events:?}");
    assert!(!events.iter().any(|event| event["payload"]["change"] == "noted"), "{events:?}");
    assert_eq!(verify(&server, engine).await.broken, vec![]);
}

#[both_engines]
async fn a_signal_that_ended_a_command_is_reported(engine: Engine) {
    let server = server(engine).await;
    let session = attached(&server).await;
    for (name, signal) in [("TERM", 15), ("KILL", 9)] {
        let result = run(&session, &format!("echo before; kill -{name} $$; echo after")).await;
        assert_eq!((&result["output"], &result["aborted"]), (&json!("before\n"), &json!(false)), "{name}");
        let end = session.notes(&server).await.pop().unwrap();
        let end = &end["data"]["data"];
        assert_eq!((&end["exitCode"], &end["signal"]), (&Value::Null, &json!(signal)), "{name}");
    }
}
