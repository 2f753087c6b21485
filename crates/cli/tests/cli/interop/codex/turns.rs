//! Turns that complete, and turns that fail because of the provider.

use serde_json::json;

use super::with_both_launchers;
use crate::fixtures::{
    backend_server::{BackendServer, CODEX, is_phase, is_tool},
    http::Http,
    runner::count,
    test_home::Engine,
};

with_both_launchers!(one_process_runs_the_turns_of_a_run_and_each_ends_with_its_reply);

fn one_process_runs_the_turns_of_a_run_and_each_ends_with_its_reply(launcher: &str) {
    let mut server = BackendServer::open(&CODEX, launcher);
    let (run, hello) = server.submit("hello");
    let result = server.ended(&run, &hello);
    assert_eq!((&result["status"], &result["reply"]), (&json!("completed"), &json!("You said: hello")), "{result}");
    assert_eq!(result["usage"]["totalTokens"], 18);
    for (command, status, code) in [("echo said", "completed", 0), ("exit 7", "failed", 7)] {
        let turn = server.command(&run, "turn", &format!("[[tool:{command}]]"));
        let result = server.ended(&run, &turn);
        assert_eq!(result["status"], "completed", "{result}");
        let item = &result["toolCallSummary"]["items"][0];
        assert_eq!(
            (&item["status"], &item["exitCode"], &item["toolName"]),
            (&json!(status), &json!(code), &json!("shell"))
        );
        assert_eq!(result["usage"]["totalTokens"], 36, "two calls of the model");
    }
    let events = server.events(&run);
    assert_eq!(count(&events, "backend_status", "/phase", "initialize:completed"), 1, "one process for all");
    assert_eq!(count(&events, "backend_status", "/phase", "thread/start:completed"), 1);
    let session = server.http.get(&format!("/api/v1/runs/{run}")).good()["sessionId"].as_str().unwrap().to_owned();
    let thread = server.http.get(&format!("/api/v1/sessions/{session}")).good()["threadId"].clone();
    let reported = events.iter().find(|event| event["type"] == "session" && !event["payload"]["threadId"].is_null());
    assert_eq!(thread, reported.unwrap()["payload"]["threadId"]);
    server.close();
}

#[test]
fn a_turn_of_a_real_codex_is_the_same_on_postgres() {
    let mut server = BackendServer::open_on(Engine::Postgres, &CODEX, "resident", &[]);
    let (run, turn) = server.submit("[[tool:echo said]]");
    assert_eq!(server.ended(&run, &turn)["status"], "completed");
    let output = server.events(&run).into_iter().find(|event| event["type"] == "command_output").unwrap();
    assert_eq!(output["payload"]["text"], "said\n");
    server.close();
}

#[test]
fn two_turns_submitted_at_once_run_one_after_the_other() {
    let mut server = BackendServer::open(&CODEX, "resident");
    let (run, first) = server.submit("[[slow:20]] first");
    let second = server.command(&run, "turn", "second");
    assert_eq!(server.ended(&run, &second)["reply"], "You said: second");
    assert_eq!(server.ended(&run, &first)["reply"], "You said: [[slow:20]] first");
    let events = server.events(&run);
    let turns: Vec<_> = events.iter().filter(|event| is_phase(event, "turn/started")).collect();
    assert_eq!(turns.len(), 2);
    assert_ne!(turns[0]["payload"]["turnId"], turns[1]["payload"]["turnId"], "neither joined the other");
    server.close();
}

#[test]
fn a_steer_reaches_the_running_turn() {
    let mut server = BackendServer::open(&CODEX, "process");
    let (run, turn) = server.submit("[[hold]] straight on");
    server.event(&run, "text streams", |event| event["type"] == "assistant_delta");
    let steer = server.command(&run, "steer", "turn left");
    let result = server.ended(&run, &turn);
    assert_eq!((&result["status"], &result["reply"]), (&json!("completed"), &json!("You said: turn left")), "{result}");
    assert_eq!(server.ended(&run, &steer)["status"], "completed");
    server.close();
}

#[test]
fn each_failure_of_a_provider_ends_the_command_with_its_kind() {
    let soon = [("OSTLER_AGENTS__PROVIDER_UNREACHABLE_MS", "3000")];
    let mut server = BackendServer::open_on(Engine::Sqlite, &CODEX, "resident", &soon);
    let (run, first) = server.submit("hello");
    server.ended(&run, &first);
    for (marker, status, kind) in [
        ("status:401", "failed", "provider-auth-failed"),
        ("status:400", "failed", "backend-failed"),
        ("status:503", "failed", "provider-unavailable"),
        ("cut", "failed", "provider-unavailable"),
        ("later:99", "blocked", "provider-unavailable"),
    ] {
        let turn = server.command(&run, "turn", &format!("[[{marker}]]"));
        let result = server.ended(&run, &turn);
        assert_eq!((&result["status"], &result["failureKind"]), (&json!(status), &json!(kind)), "{marker}: {result}");
        assert_eq!(result["reply"], json!(null), "{marker}: {result}");
    }
    // Each in a new thread: Codex's behaviour after an exceeded window is not tested.
    let (run, turn) = server.submit("[[overflow]]");
    assert_eq!(server.ended(&run, &turn)["failureKind"], "backend-failed");
    let nobody = ostler_stand_ins::responses().base_url();
    server.set_provider(&nobody);
    let (run, turn) = server.submit("anybody there?");
    assert_eq!(server.ended(&run, &turn)["failureKind"], "provider-unavailable");
    server.close();
}

#[test]
fn an_exhausted_budget_interrupts_codex_and_blocks_the_command() {
    let mut server = BackendServer::open(&CODEX, "resident");
    let policy = json!({"maxTokens": 10});
    let (run, turn) = server.submit_with("[[tool:echo one]] [[tokens:6]]", policy, json!({}));
    let result = server.ended(&run, &turn);
    assert_eq!((&result["status"], &result["failureKind"]), (&json!("blocked"), &json!("budget-exceeded")), "{result}");
    assert!(result["blocker"].as_str().unwrap().contains("maxTokens"), "{result}");
    assert_eq!(result["usage"]["totalTokens"], 12, "the agent's own count");
    let policy = json!({"maxToolCalls": 1});
    let (run, turn) = server.submit_with("[[tool:echo one]]", policy, json!({}));
    assert_eq!(server.ended(&run, &turn)["status"], "completed", "as many as granted");
    assert!(server.events(&run).iter().any(|event| is_tool(event, "completed")));
    server.close();
}

#[test]
fn a_runner_stops_endless_tool_calls_and_leaves_no_call_open() {
    let mut server = BackendServer::open(&CODEX, "resident");
    for most in [1, 3] {
        let (run, turn) = server.submit_with("[[loop:sleep 0.2; echo on]]", json!({"maxToolCalls": most}), json!({}));
        let result = server.ended(&run, &turn);
        assert_eq!(result["failureKind"], "budget-exceeded", "{result}");
        let events = server.events(&run);
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
    server.close();
}

#[test]
fn a_key_printed_in_pieces_is_not_stored_even_in_part() {
    let mut server = BackendServer::open(&CODEX, "resident");
    let script = "for i in sk-plan ted-pro vider-k ey-4711; do printf %s $i; sleep .3; done; echo; sleep .3; echo tail";
    let (run, turn) = server.submit(&format!("[[tool:{script}]]"));
    assert_eq!(server.ended(&run, &turn)["status"], "completed");
    let events = server.events(&run);
    let texts = events.iter().filter(|event| event["type"] == "command_output").map(|event| &event["payload"]["text"]);
    let reported: Vec<_> = texts.map(|text| text.as_str().unwrap()).collect();
    assert!(reported.contains(&"tail\n") && reported.contains(&"[redacted]\n"), "{reported:?}");
    assert!(!reported.concat().contains("ey-4711"), "{reported:?}");
    server.close();
}

#[test]
fn a_session_continues_in_the_run_that_waits_for_it() {
    let server = BackendServer::open(&CODEX, "resident");
    let ask = |words: &[&str]| {
        let fixed = ["run", "--profile", "codex", "--session", "greeting"];
        let output = server.home.cli(Some(&server.server), &[&fixed, words].concat());
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, printed, words) = ask(&["hello"]);
    assert_eq!((code, printed.as_str()), (Some(0), "You said: hello\n"), "{words}");
    let (code, printed, words) = ask(&["-o", "jsonl", "and now?"]);
    assert_eq!(code, Some(0), "{words}");
    assert!(
        printed.contains("You said: and now?") && !printed.contains("You said: hello"),
        "only this turn: {printed}"
    );
    let runs = Http::new(&server.server).get("/api/v1/runs?sessionId=greeting").good();
    let [run] = runs["runs"].as_array().unwrap().as_slice() else { panic!("one run: {runs}") };
    assert_eq!(run["commandCount"], 2);
    // A request with other settings is rejected.
    let (code, _, words) = ask(&["--sandbox", "read-only", "look around"]);
    assert_ne!(code, Some(0));
    assert!(words.contains("session-busy") && words.contains("another sandbox"), "{words}");
    server.close();
}

#[test]
fn tools_have_a_private_temporary_directory_and_cannot_write_to_the_shared_one() {
    let mut server = BackendServer::open(&CODEX, "resident");
    let outside = server.home.path("outside");
    let command = format!("touch {}; touch here $TMPDIR/there && echo $TMPDIR", outside.display());
    let policy = json!({"sandbox": "workspace-write"});
    let (run, turn) = server.submit_with(&format!("[[tool:{command}]]"), policy, json!({}));
    let result = server.ended(&run, &turn);
    let printed: String = server.events(&run).iter().filter_map(|event| event["payload"]["text"].as_str()).collect();
    assert!(printed.contains("/scratch\n") && printed.contains("Read-only file system"), "{printed}");
    assert!(!outside.exists());
    assert_eq!(result["artifactSummary"]["filesChanged"], 1, "{result}");
    server.close();
}

#[test]
fn a_command_that_outlives_its_turn_does_not_end_in_another_turn() {
    let mut server = BackendServer::open(&CODEX, "resident");
    let go = server.home.path("go");
    let command = format!("until [ -e {} ]; do sleep 0.05; done; echo late", go.display());
    let (run, first) = server.submit(&format!("[[background:{command}]]"));
    let result = server.ended(&run, &first);
    assert_eq!(result["status"], "completed", "{result}");
    assert_eq!(result["toolCallSummary"]["items"][0]["status"], "outcome-unknown", "{result}");
    let second = server.command(&run, "turn", "[[slow:60]] next");
    server.event(&run, "the next turn speaks", |event| {
        event["type"] == "assistant_delta" && event["commandId"] == second.as_str()
    });
    std::fs::write(go, "").unwrap();
    let result = server.ended(&run, &second);
    assert_eq!((&result["status"], &result["toolCallSummary"]["items"]), (&json!("completed"), &json!([])), "{result}");
    assert!(!server.events(&run).iter().any(|event| event["payload"]["text"] == "late\n"), "late output is dropped");
    server.close();
}
