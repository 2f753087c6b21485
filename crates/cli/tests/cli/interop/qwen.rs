//! The real Qwen Code over ACP, behind a real server, with a scripted provider on loopback: a self-test with a real backend
//! process, not acceptance with a real provider. It starts slowly, so each test covers several things.

use serde_json::{Value, json};

use crate::fixtures::{
    backend_server::{BackendServer, QWEN, is_phase, is_tool},
    runner::count,
    test_home::Engine,
};

#[test]
fn one_process_runs_the_turns_of_a_run_and_follows_the_approval_policy() {
    let mut server = BackendServer::open(&QWEN, "resident");
    let policy = json!({"sandbox": "workspace-write", "approval": "untrusted"});
    let (run, hello) = server.submit_with("hello", policy, json!({}));
    let result = server.ended(&run, &hello);
    assert_eq!((&result["status"], &result["usage"]["totalTokens"]), (&json!("completed"), &json!(15)), "{result}");
    assert!(result["reply"].as_str().unwrap().ends_with("hello"), "{result}");

    for (command, option, status, code, changed) in [
        ("echo here > made; exit 7", "allow_once", "failed", json!(7), json!(1)),
        ("rm made", "reject_once", "declined", json!(null), json!(0)),
    ] {
        let turn = server.command(&run, "turn", &format!("[[run:{command}]]"));
        server.answer(&run, &turn, option);
        let result = server.ended(&run, &turn);
        let item = &result["toolCallSummary"]["items"][0];
        assert_eq!((&item["status"], &item["exitCode"]), (&json!(status), &code), "{result}");
        assert_eq!(result["artifactSummary"]["filesChanged"], changed, "{result}");
    }

    let turn = server.command(&run, "turn", "[[status:400]]");
    let result = server.ended(&run, &turn);
    assert_eq!((&result["status"], &result["failureKind"]), (&json!("failed"), &json!("backend-failed")), "{result}");
    assert_eq!(
        count(&server.events(&run), "backend_status", "/phase", "initialize:completed"),
        1,
        "one process for all"
    );
    server.close();
}

#[test]
fn a_cancel_while_text_streams_or_a_tool_runs_ends_the_turn_and_leaves_no_process_behind() {
    let mut server = BackendServer::open(&QWEN, "process");
    let (run, turn) = server.submit("[[slow]]");
    server.event(&run, "text streams", |event| event["type"] == "assistant_delta");
    server.cancel(&turn);
    let result = server.ended(&run, &turn);
    assert_eq!((&result["status"], &result["reply"]), (&json!("cancelled"), &json!(null)), "{result}");

    let tool = "tail -n 12401 -f /dev/null";
    let turn = server.command(&run, "turn", &format!("[[run:{tool}]]"));
    server.runs(tool);
    server.cancel(&turn);
    assert_eq!(server.ended(&run, &turn)["status"], "cancelled");
    server.gone(tool);

    let next = server.command(&run, "turn", "and now?");
    assert!(server.ended(&run, &next)["reply"].as_str().unwrap().ends_with("and now?"));
    server.close();
}

#[test]
fn a_killed_runner_is_replaced_and_its_session_resumed() {
    let mut server = BackendServer::open(&QWEN, "process");
    let (run, first) = server.submit("remember the number 4711");
    server.ended(&run, &first);
    // It refuses a plain `sleep`.
    let tool = "tail -n 12402 -f /dev/null";
    let turn = server.command(&run, "turn", &format!("[[once:{tool}]]"));
    server.event(&run, "the tool call is reported", |event| is_tool(event, "started"));
    server.runs(tool);
    server.kill_runner();
    let result = server.ended(&run, &turn);
    assert_eq!(result["status"], "completed", "{result}");
    let events = server.events(&run);
    assert_eq!(events.iter().filter(|event| is_tool(event, "started")).count(), 1, "it is not run again");
    assert!(result["reply"].as_str().unwrap().contains("Your work on this was cut off"), "{result}");
    assert_eq!(events.iter().filter(|event| is_tool(event, "outcome-unknown")).count(), 1);
    assert_eq!(opened(&events, "session/new"), opened(&events, "session/load"));
    server.gone(tool);

    let recall = server.command(&run, "turn", "[[recall]]");
    let reply = server.ended(&run, &recall)["reply"].as_str().unwrap().to_owned();
    assert!(reply.contains("remember the number 4711"), "{reply}");
    server.close();
}

#[test]
fn a_later_run_of_a_session_without_a_workspace_resumes_it() {
    let mut server = BackendServer::open_on(Engine::Sqlite, &QWEN, "resident", &[("OSTLER_RUNNER__IDLE_MS", "0")]);
    let session = json!({"sessionRef": {"sessionId": "one"}});
    let (first, turn) = server.submit_with("remember the number 4711", json!({}), session.clone());
    server.ended(&first, &turn);
    server.event(&first, "its runner goes", |event| event["payload"]["state"] == "released");
    let (second, recall) = server.submit_with("[[recall]]", json!({}), session);
    let result = server.ended(&second, &recall);
    assert!(result["reply"].as_str().is_some_and(|reply| reply.contains("remember the number 4711")), "{result}");
    let (first, second) = (server.events(&first), server.events(&second));
    assert_eq!(opened(&first, "session/new"), opened(&second, "session/resume"));
    server.close();
}

/// The backend's own sessions that were opened with this method.
fn opened<'a>(events: &'a [Value], method: &str) -> Vec<&'a Value> {
    let phase = format!("{method}:completed");
    events.iter().filter(|event| is_phase(event, &phase)).map(|event| &event["payload"]["threadId"]).collect()
}
