//! `--jq`: filters what `-o json` and `-o jsonl` print, and reports a wrong expression before any request.

use serde_json::Value;

use crate::fixtures::{
    process::stdout_of,
    pty::Terminal,
    snapshot::{assert_snapshot, piped},
    test_home::{Engine, TestHome},
};

#[test]
fn a_wrong_expression_is_reported_before_any_request() {
    let home = TestHome::new(Engine::Sqlite);
    let offline = |args: &[&str]| {
        let mut command = home.command(args);
        command.env("OSTLER_SERVER", "http://127.0.0.1:1").output().unwrap()
    };
    assert_snapshot("error_jq", &home, &piped(&offline(&["runs", "list", "--jq", ".[] | .runId | ascii_downcas"])));
    let unfinished = piped(&offline(&["ps", "--jq", ".[0"]));
    assert!(unfinished.starts_with("exit code 2\n") && unfinished.contains("character 4"), "{unfinished}");
    for format in ["text", "wide", "name"] {
        let refused = piped(&offline(&["runs", "list", "--jq", ".", "-o", format]));
        assert!(refused.starts_with("exit code 2\n") && refused.contains(&format!("with `-o {format}`")), "{refused}");
    }
    assert!(piped(&offline(&["runs", "list", "--jq", ".", "--columns", "runId"])).starts_with("exit code 2\n"));
    // A right one makes the request.
    assert!(piped(&offline(&["ps", "--jq", "."])).starts_with("exit code 7\n"));
}

#[test]
fn lists_results_events_and_requests_are_filtered() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    let cli = |args: &[&str]| home.cli(Some(&server), args);
    let out = |args: &[&str]| stdout_of(cli(args));
    for session in ["one", "two"] {
        stdout_of(cli(&["run", "--session", session, "say \"hello\""]));
    }
    // A list is one array.
    assert_eq!(out(&["runs", "list", "--jq", "length"]), "2\n");
    assert_eq!(out(&["sessions", "list", "--jq", "map(.sessionId) | sort | join(\" \")"]), "one two\n");
    assert_eq!(out(&["sessions", "list", "-o", "json", "--jq", ".[0] | {sessionId}"]), "{\"sessionId\":\"two\"}\n");
    // Of `jsonl`, each line is one value.
    assert_eq!(out(&["ps", "--all", "-o", "jsonl", "--jq", ".sessionId"]), "two\none\n");
    // Strings are raw, anything else is JSON.
    let reply: Value = serde_json::from_str(&out(&["result", "one", "-o", "json"])).unwrap();
    assert_eq!(out(&["result", "one", "--jq", ".reply"]), format!("{}\n", reply["reply"].as_str().unwrap()));
    assert_eq!(out(&["result", "one", "--jq", ".reply, (.missing | . == null)"]).lines().last(), Some("true"));
    // Events that are printed as they are read are one document for a filter.
    let types = out(&["trace", "one", "--jq", "map(.type) | unique | index(\"assistant_message\") != null"]);
    assert_eq!(types, "true\n");
    assert_eq!(out(&["trace", "one", "--kind", "error", "--jq", "length"]), "0\n");
    let texts = out(&["trace", "one", "-o", "jsonl", "--kind", "user_message", "--jq", ".type"]);
    assert_eq!(texts, "user_message\n");
    assert!(out(&["output", "one", "--jq", ".[].payload.text"]).contains("hello"));
    assert_eq!(out(&["run", "--dry-run", "hello", "--jq", ".command.payload.prompt"]), "hello\n");
    assert_eq!(out(&["run", "hello", "--jq", ".state"]), "completed\n");
    assert_eq!(out(&["whoami", "--jq", ".kind"]), "operator\n");
    let unfit = cli(&["runs", "list", "--jq", ".[].runId | .x"]);
    assert_eq!(unfit.status.code(), Some(2));
    let text = piped(&unfit);
    assert!(
        text.contains("error: --jq: cannot index \"…\" with \"x\"\n")
            && text.contains("`-o json` shows what it filters"),
        "{text}"
    );
    server.stop();
}

#[test]
fn a_filtered_string_cannot_control_the_terminal() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    let args = ["backends", "list", "--jq", "\"\\u001b]0;pl4nted\\u0007 \\u202e\""];
    let ended = Terminal::start(&home, &server, &args, &[]).ends();
    assert!(!ended.raw.contains("\x1b]0;") && ended.screen.contains("pl4nted"), "{:?}", ended.raw);
    assert_eq!(stdout_of(home.cli(Some(&server), &args)), "\u{1b}]0;pl4nted\u{7} \u{202e}\n", "in a pipe it is raw");
    server.stop();
}
