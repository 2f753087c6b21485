//! The real Qwen Code over ACP, behind a real server, with a scripted provider on loopback: a self-test with a real backend
//! process, not acceptance with a real provider. It takes its time to start, so each test does several things with it.

use serde_json::{Value, json};

use crate::{
    home::Engine,
    inn::{Inn, QWEN, is_phase, is_tool},
    runner::count,
};

#[test]
fn turns_of_a_run_are_worked_by_one_process_and_ask_as_the_policy_says() {
    let mut inn = Inn::open(&QWEN, "resident");
    let policy = json!({"sandbox": "workspace-write", "approval": "untrusted"});
    let (run, hello) = inn.submit_with("hello", policy, json!({}));
    let result = inn.ended(&run, &hello);
    assert_eq!((&result["status"], &result["usage"]["totalTokens"]), (&json!("completed"), &json!(15)), "{result}");
    assert!(result["reply"].as_str().unwrap().ends_with("hello"), "{result}");

    for (command, option, status, code, changed) in [
        ("echo here > made; exit 7", "allow_once", "failed", json!(7), json!(1)),
        ("rm made", "reject_once", "declined", json!(null), json!(0)),
    ] {
        let turn = inn.command(&run, "turn", &format!("[[run:{command}]]"));
        inn.answer(&run, &turn, option);
        let result = inn.ended(&run, &turn);
        let item = &result["toolCallSummary"]["items"][0];
        assert_eq!((&item["status"], &item["exitCode"]), (&json!(status), &code), "{result}");
        assert_eq!(result["artifactSummary"]["filesChanged"], changed, "{result}");
    }

    let turn = inn.command(&run, "turn", "[[status:400]]");
    let result = inn.ended(&run, &turn);
    assert_eq!((&result["status"], &result["failureKind"]), (&json!("failed"), &json!("backend-failed")), "{result}");
    assert_eq!(count(&inn.events(&run), "backend_status", "/phase", "initialize:completed"), 1, "one process for all");
    inn.close();
}

#[test]
fn a_cancel_while_text_streams_or_a_tool_runs_ends_the_turn_and_leaves_no_process_behind() {
    let mut inn = Inn::open(&QWEN, "process");
    let (run, turn) = inn.submit("[[slow]]");
    inn.event(&run, "text streams", |event| event["type"] == "assistant_delta");
    inn.cancel(&turn);
    let result = inn.ended(&run, &turn);
    assert_eq!((&result["status"], &result["reply"]), (&json!("cancelled"), &json!(null)), "{result}");

    let tool = "tail -n 12401 -f /dev/null";
    let turn = inn.command(&run, "turn", &format!("[[run:{tool}]]"));
    inn.runs(tool);
    inn.cancel(&turn);
    assert_eq!(inn.ended(&run, &turn)["status"], "cancelled");
    inn.gone(tool);

    let next = inn.command(&run, "turn", "and now?");
    assert!(inn.ended(&run, &next)["reply"].as_str().unwrap().ends_with("and now?"));
    inn.close();
}

#[test]
fn a_runner_that_is_killed_is_replaced_and_its_session_resumed() {
    let mut inn = Inn::open(&QWEN, "process");
    let (run, first) = inn.submit("remember the number 4711");
    inn.ended(&run, &first);
    // It does not let a `sleep` stand alone.
    let tool = "tail -n 12402 -f /dev/null";
    let turn = inn.command(&run, "turn", &format!("[[once:{tool}]]"));
    inn.event(&run, "the tool is told", |event| is_tool(event, "started"));
    inn.runs(tool);
    inn.kill_runner();
    let result = inn.ended(&run, &turn);
    assert_eq!(result["status"], "completed", "{result}");
    let events = inn.events(&run);
    assert_eq!(events.iter().filter(|event| is_tool(event, "started")).count(), 1, "it is not run again");
    assert!(result["reply"].as_str().unwrap().contains("Your work on this was cut off"), "{result}");
    assert_eq!(events.iter().filter(|event| is_tool(event, "outcome-unknown")).count(), 1);
    assert_eq!(opened(&events, "session/new"), opened(&events, "session/load"));
    inn.gone(tool);

    let recall = inn.command(&run, "turn", "[[recall]]");
    let reply = inn.ended(&run, &recall)["reply"].as_str().unwrap().to_owned();
    assert!(reply.contains("remember the number 4711"), "{reply}");
    inn.close();
}

#[test]
fn a_later_run_of_a_session_without_a_workspace_resumes_it() {
    let mut inn = Inn::open_on(Engine::Sqlite, &QWEN, "resident", &[("OSTLER_RUNNER__IDLE_MS", "0")]);
    let session = json!({"sessionRef": {"sessionId": "one"}});
    let (first, turn) = inn.submit_with("remember the number 4711", json!({}), session.clone());
    inn.ended(&first, &turn);
    inn.event(&first, "its runner goes", |event| event["payload"]["state"] == "released");
    let (second, recall) = inn.submit_with("[[recall]]", json!({}), session);
    let result = inn.ended(&second, &recall);
    assert!(result["reply"].as_str().is_some_and(|reply| reply.contains("remember the number 4711")), "{result}");
    let (first, second) = (inn.events(&first), inn.events(&second));
    assert_eq!(opened(&first, "session/new"), opened(&second, "session/resume"));
    inn.close();
}

/// The agent's own sessions that were opened this way.
fn opened<'a>(events: &'a [Value], method: &str) -> Vec<&'a Value> {
    let phase = format!("{method}:completed");
    events.iter().filter(|event| is_phase(event, &phase)).map(|event| &event["payload"]["threadId"]).collect()
}
