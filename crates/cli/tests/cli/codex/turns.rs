//! Turns that go well, and those that fail because the provider does.

use serde_json::json;

use super::with_both_launchers;
use crate::{
    home::Engine,
    http::Http,
    inn::{CODEX, Inn, is_phase, is_tool},
    runner::count,
};

with_both_launchers!(turns_of_a_run_are_worked_by_one_process_and_end_with_their_replies);

fn turns_of_a_run_are_worked_by_one_process_and_end_with_their_replies(launcher: &str) {
    let mut inn = Inn::open(&CODEX, launcher);
    let (run, hello) = inn.submit("hello");
    let result = inn.ended(&run, &hello);
    assert_eq!((&result["status"], &result["reply"]), (&json!("completed"), &json!("You said: hello")), "{result}");
    assert_eq!(result["usage"]["totalTokens"], 18);
    for (command, status, code) in [("echo said", "completed", 0), ("exit 7", "failed", 7)] {
        let turn = inn.command(&run, "turn", &format!("[[tool:{command}]]"));
        let result = inn.ended(&run, &turn);
        assert_eq!(result["status"], "completed", "{result}");
        let item = &result["toolCallSummary"]["items"][0];
        assert_eq!(
            (&item["status"], &item["exitCode"], &item["toolName"]),
            (&json!(status), &json!(code), &json!("shell"))
        );
        assert_eq!(result["usage"]["totalTokens"], 36, "two calls of the model");
    }
    let events = inn.events(&run);
    assert_eq!(count(&events, "backend_status", "/phase", "initialize:completed"), 1, "one process for all");
    assert_eq!(count(&events, "backend_status", "/phase", "thread/start:completed"), 1);
    let session = inn.http.get(&format!("/api/v1/runs/{run}")).good()["sessionId"].as_str().unwrap().to_owned();
    let thread = inn.http.get(&format!("/api/v1/sessions/{session}")).good()["threadId"].clone();
    let told = events.iter().find(|event| event["type"] == "session" && !event["payload"]["threadId"].is_null());
    assert_eq!(thread, told.unwrap()["payload"]["threadId"]);
    inn.close();
}

#[test]
fn a_turn_of_a_real_codex_is_the_same_on_postgres() {
    let mut inn = Inn::open_on(Engine::Postgres, &CODEX, "resident", &[]);
    let (run, turn) = inn.submit("[[tool:echo said]]");
    assert_eq!(inn.ended(&run, &turn)["status"], "completed");
    let output = inn.events(&run).into_iter().find(|event| event["type"] == "command_output").unwrap();
    assert_eq!(output["payload"]["text"], "said\n");
    inn.close();
}

#[test]
fn two_turns_asked_for_at_once_are_worked_one_after_the_other() {
    let mut inn = Inn::open(&CODEX, "resident");
    let (run, first) = inn.submit("[[slow:20]] first");
    let second = inn.command(&run, "turn", "second");
    assert_eq!(inn.ended(&run, &second)["reply"], "You said: second");
    assert_eq!(inn.ended(&run, &first)["reply"], "You said: [[slow:20]] first");
    let events = inn.events(&run);
    let turns: Vec<_> = events.iter().filter(|event| is_phase(event, "turn/started")).collect();
    assert_eq!(turns.len(), 2);
    assert_ne!(turns[0]["payload"]["turnId"], turns[1]["payload"]["turnId"], "neither joined the other");
    inn.close();
}

#[test]
fn a_steer_reaches_the_running_turn() {
    let mut inn = Inn::open(&CODEX, "process");
    let (run, turn) = inn.submit("[[hold]] straight on");
    inn.event(&run, "text streams", |event| event["type"] == "assistant_delta");
    let steer = inn.command(&run, "steer", "turn left");
    let result = inn.ended(&run, &turn);
    assert_eq!((&result["status"], &result["reply"]), (&json!("completed"), &json!("You said: turn left")), "{result}");
    assert_eq!(inn.ended(&run, &steer)["status"], "completed");
    inn.close();
}

#[test]
fn each_failure_of_a_provider_ends_the_command_with_its_kind() {
    let mut inn = Inn::open(&CODEX, "resident");
    let (run, first) = inn.submit("hello");
    inn.ended(&run, &first);
    for (marker, status, kind) in [
        ("status:401", "failed", "provider-auth-failed"),
        ("status:400", "failed", "backend-failed"),
        ("status:503", "failed", "provider-unavailable"),
        ("cut", "failed", "provider-unavailable"),
        ("later:99", "blocked", "provider-unavailable"),
    ] {
        let turn = inn.command(&run, "turn", &format!("[[{marker}]]"));
        let result = inn.ended(&run, &turn);
        assert_eq!((&result["status"], &result["failureKind"]), (&json!(status), &json!(kind)), "{marker}: {result}");
        assert_eq!(result["reply"], json!(null), "{marker}: {result}");
    }
    // Each in a thread of its own: what comes after an exceeded window is Codex's own affair.
    let (run, turn) = inn.submit("[[overflow]]");
    assert_eq!(inn.ended(&run, &turn)["failureKind"], "backend-failed");
    let nobody = ostler_stand_ins::responses().base_url();
    inn.furnish(&nobody);
    let (run, turn) = inn.submit("anybody there?");
    assert_eq!(inn.ended(&run, &turn)["failureKind"], "provider-unavailable");
    inn.close();
}

#[test]
fn a_budget_that_is_used_up_interrupts_codex_and_blocks_the_command() {
    let mut inn = Inn::open(&CODEX, "resident");
    let policy = json!({"maxTokens": 10});
    let (run, turn) = inn.submit_with("[[tool:echo one]] [[tokens:6]]", policy, json!({}));
    let result = inn.ended(&run, &turn);
    assert_eq!((&result["status"], &result["failureKind"]), (&json!("blocked"), &json!("budget-exceeded")), "{result}");
    assert!(result["blocker"].as_str().unwrap().contains("maxTokens"), "{result}");
    assert_eq!(result["usage"]["totalTokens"], 12, "the agent's own count");
    let policy = json!({"maxToolCalls": 1});
    let (run, turn) = inn.submit_with("[[tool:echo one]]", policy, json!({}));
    assert_eq!(inn.ended(&run, &turn)["status"], "completed", "as many as granted");
    assert!(inn.events(&run).iter().any(|event| is_tool(event, "completed")));
    inn.close();
}

#[test]
fn an_agent_that_calls_tool_after_tool_is_stopped_by_its_runner_and_leaves_no_call_open() {
    let mut inn = Inn::open(&CODEX, "resident");
    for most in [1, 3] {
        let (run, turn) = inn.submit_with("[[loop:sleep 0.2; echo on]]", json!({"maxToolCalls": most}), json!({}));
        let result = inn.ended(&run, &turn);
        assert_eq!(result["failureKind"], "budget-exceeded", "{result}");
        let events = inn.events(&run);
        let end = events.iter().find(|event| event["type"] == "terminal_status").unwrap();
        assert_eq!(end["payload"]["source"], "runner", "{end}");
        assert_eq!(end["payload"]["message"], format!("the budget maxToolCalls of {most} is used up"));
        let ids = |is_start: bool| {
            let calls = events.iter().filter(|event| event["type"] == "tool_call").map(|event| &event["payload"]);
            let fits = calls.filter(|call| (call["status"] == "started") == is_start);
            fits.map(|call| call["toolCallId"].as_str().unwrap().to_owned()).collect::<std::collections::BTreeSet<_>>()
        };
        assert!(ids(true).len() > most as usize, "{events:#?}");
        assert_eq!(ids(true), ids(false), "each that started has ended: {events:#?}");
    }
    inn.close();
}

#[test]
fn a_key_that_a_command_prints_in_pieces_is_stored_nowhere_not_even_in_part() {
    let mut inn = Inn::open(&CODEX, "resident");
    let script = "for i in sk-plan ted-pro vider-k ey-4711; do printf %s $i; sleep .3; done; echo; sleep .3; echo tail";
    let (run, turn) = inn.submit(&format!("[[tool:{script}]]"));
    assert_eq!(inn.ended(&run, &turn)["status"], "completed");
    let events = inn.events(&run);
    let texts = events.iter().filter(|event| event["type"] == "command_output").map(|event| &event["payload"]["text"]);
    let told: Vec<_> = texts.map(|text| text.as_str().unwrap()).collect();
    assert!(told.contains(&"tail\n") && told.contains(&"[redacted]\n"), "{told:?}");
    assert!(!told.concat().contains("ey-4711"), "{told:?}");
    inn.close();
}

#[test]
fn a_session_is_gone_on_with_in_the_run_that_waits_for_it() {
    let inn = Inn::open(&CODEX, "resident");
    let ask = |words: &[&str]| {
        let fixed = ["run", "--profile", "codex", "--session", "greeting"];
        let output = inn.home.cli(Some(&inn.server), &[&fixed, words].concat());
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, said, words) = ask(&["hello"]);
    assert_eq!((code, said.as_str()), (Some(0), "You said: hello\n"), "{words}");
    let (code, said, words) = ask(&["-o", "jsonl", "and now?"]);
    assert_eq!(code, Some(0), "{words}");
    assert!(said.contains("You said: and now?") && !said.contains("You said: hello"), "only this turn: {said}");
    let runs = Http::new(&inn.server).get("/api/v1/runs?sessionId=greeting").good();
    let [run] = runs["runs"].as_array().unwrap().as_slice() else { panic!("one run: {runs}") };
    assert_eq!(run["commandCount"], 2);
    // What it may not change it does not take on.
    let (code, _, words) = ask(&["--sandbox", "read-only", "look around"]);
    assert_ne!(code, Some(0));
    assert!(words.contains("session-busy") && words.contains("another sandbox"), "{words}");
    inn.close();
}

#[test]
fn tools_have_a_place_of_their_own_for_what_is_temporary_and_cannot_write_to_everybodys() {
    let mut inn = Inn::open(&CODEX, "resident");
    let outside = inn.home.path("outside");
    let command = format!("touch {}; touch here $TMPDIR/there && echo $TMPDIR", outside.display());
    let policy = json!({"sandbox": "workspace-write"});
    let (run, turn) = inn.submit_with(&format!("[[tool:{command}]]"), policy, json!({}));
    let result = inn.ended(&run, &turn);
    let said: String = inn.events(&run).iter().filter_map(|event| event["payload"]["text"].as_str()).collect();
    assert!(said.contains("/scratch\n") && said.contains("Read-only file system"), "{said}");
    assert!(!outside.exists());
    assert_eq!(result["artifactSummary"]["filesChanged"], 1, "{result}");
    inn.close();
}

#[test]
fn a_command_that_outlives_its_turn_ends_in_no_other() {
    let mut inn = Inn::open(&CODEX, "resident");
    let go = inn.home.path("go");
    let command = format!("until [ -e {} ]; do sleep 0.05; done; echo late", go.display());
    let (run, first) = inn.submit(&format!("[[background:{command}]]"));
    let result = inn.ended(&run, &first);
    assert_eq!(result["status"], "completed", "{result}");
    assert_eq!(result["toolCallSummary"]["items"][0]["status"], "outcome-unknown", "{result}");
    let second = inn.command(&run, "turn", "[[slow:60]] next");
    inn.event(&run, "the next turn speaks", |event| {
        event["type"] == "assistant_delta" && event["commandId"] == second.as_str()
    });
    std::fs::write(go, "").unwrap();
    let result = inn.ended(&run, &second);
    assert_eq!((&result["status"], &result["toolCallSummary"]["items"]), (&json!("completed"), &json!([])), "{result}");
    assert!(!inn.events(&run).iter().any(|event| event["payload"]["text"] == "late\n"), "nobody asked for it any more");
    inn.close();
}
