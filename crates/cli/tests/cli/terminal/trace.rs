//! The output of `ostler trace`: every event once and in order, of several sessions at once, filtered, and across the death of
//! a server.

use std::{fs::File, process::Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    process::{Guarded, Server, eventually},
    pty::{CTRL_C, Terminal},
    snapshot::{assert_snapshot, piped},
    test_home::{Engine, TestHome, both_engines},
};

fn run(home: &TestHome, server: &Server, session: &str, script: Value) {
    let output = home.cli(Some(server), &["run", "--session", session, &script.to_string()]);
    assert!(output.status.success(), "{output:?}");
}

fn talk() -> Value {
    json!({"script": [{"say": "Testing."}, {"tool": {"name": "shell", "command": "cargo test", "output": "ok\n"}},
        {"tool": {"name": "shell", "command": "cargo build", "exitCode": 101}}, {"say": "Done."}]})
}

#[test]
fn a_trace_is_a_line_per_event() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    run(&home, &server, "review", talk());
    assert_snapshot("trace_piped", &home, &piped(&home.cli(Some(&server), &["trace", "review"])));
    let ended = Terminal::start(&home, &server, &["trace", "review", "--time", "iso"], &[]).ends();
    assert_snapshot("trace_terminal", &home, &ended.screen);
    for (name, args) in [
        ("trace_kind", &["trace", "review", "--kind", "tool_call"][..]),
        ("trace_grep", &["trace", "review", "--grep", "cargo (build|bench)"]),
        ("trace_since", &["trace", "review", "--since", "1h", "--kind", "terminal_status"]),
        ("trace_nothing", &["trace", "review", "--kind", "error"]),
        ("output_piped", &["output", "review"]),
        ("error_trace_kind", &["trace", "review", "--kind", "nonsense"]),
        ("error_trace_json_follow", &["trace", "review", "-f", "-o", "json"]),
    ] {
        assert_snapshot(name, &home, &piped(&home.cli(Some(&server), args)));
    }
}

#[test]
fn several_sessions_have_prefixes() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    run(&home, &server, "red", json!({"script": [{"say": "I am red."}]}));
    run(&home, &server, "violet", json!({"script": [{"say": "I am violet."}]}));
    let args = ["trace", "red", "violet", "--kind", "assistant_message,terminal_status"];
    assert_snapshot("trace_several", &home, &piped(&home.cli(Some(&server), &args)));

    let terminal = Terminal::start(&home, &server, &[&args[..], &["-f"]].concat(), &[]);
    terminal.shows("I am violet.");
    run(&home, &server, "red", json!({"script": [{"say": "I am red again."}]}));
    terminal.shows("red    |     ");
    terminal.shows("I am red again.");
    terminal.types(CTRL_C);
    let ended = terminal.ends();
    assert_eq!(ended.code, 0);
    let (red, violet) = ("\x1b[36mred    |\x1b[0m", "\x1b[33mviolet |\x1b[0m");
    assert!(ended.raw.contains(red) && ended.raw.contains(violet), "each has a colour: {:?}", ended.raw);

    // What was there before is in the order of time, not session by session.
    let shown = piped(&home.cli(Some(&server), &args));
    let places = ["I am red.", "I am violet.", "I am red again."].map(|text| shown.find(text).unwrap());
    assert!(places.is_sorted(), "{shown}");
}

#[test]
fn following_a_run_ends_with_its_commands_and_a_session_does_not() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    let script = json!({"script": [{"say": "Before."}, {"wait": 1200}, {"say": "After."}]}).to_string();
    let made = home.cli(Some(&server), &["run", "--detach", "--session", "review", &script]);
    let run_id = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    // Live, and again after the end.
    for _ in 0..2 {
        let followed = home.cli(Some(&server), &["trace", "-f", &run_id]);
        let text = piped(&followed);
        assert!(followed.status.success() && text.contains("After.") && text.contains("completed"), "{text}");
    }
    let terminal = Terminal::start(&home, &server, &["trace", "-f", "review"], &[]);
    terminal.shows("After.");
    run(&home, &server, "review", json!({"script": [{"say": "Another."}]}));
    terminal.shows("Another.");
    terminal.types(CTRL_C);
    assert_eq!(terminal.ends().code, 0);
}

/// Follows in a separate process, into a file.
fn follow(home: &TestHome, server: &Server, args: &[&str]) -> Guarded {
    let mut command = home.command(args);
    let (out, err) = (File::create(home.path("followed")).unwrap(), File::create(home.path("followed.err")).unwrap());
    command.env("OSTLER_SERVER", server.url()).stdin(Stdio::null()).stdout(out).stderr(err);
    Guarded(command.spawn().unwrap())
}

fn followed(home: &TestHome) -> Vec<i64> {
    let text = std::fs::read_to_string(home.path("followed")).unwrap();
    let event = |line: &str| serde_json::from_str::<Value>(line).ok();
    text.lines().filter_map(event).map(|event| event["sessionSeq"].as_i64().unwrap()).collect()
}

#[both_engines]
fn following_a_session_across_a_killed_server_has_no_gap_and_no_duplicate(engine: Engine) {
    let mut home = TestHome::new(engine);
    if engine == Engine::Postgres {
        // On Postgres other servers may hold leases, so these must expire first.
        home.set("OSTLER_RUNNER__LEASE_MS", "500");
        home.set("OSTLER_RUNNER__JOB_SILENCE_MS", "3000");
        home.set("OSTLER_RUNNER__SWEEP_INTERVAL_MS", "50");
    }
    let mut server = home.serve();
    let address = server.address.clone();
    let busy = json!({"script": [{"emit": {"count": 300}}, {"wait": 400}, {"emit": {"count": 300}}, {"wait": 400},
        {"emit": {"count": 300}}, {"say": "Done."}]});
    let detached = home.cli(Some(&server), &["run", "--detach", "--session", "busy", &busy.to_string()]);
    assert!(detached.status.success(), "{detached:?}");
    let mut follower = follow(&home, &server, &["trace", "-f", "busy", "-o", "jsonl"]);
    for killed_after in [1, 400] {
        eventually("events arrive", || (followed(&home).len() > killed_after).then_some(()));
        server.kill();
        server = home.serve_at(&address);
    }
    let last = eventually("the turn ends", || {
        let session = Http::new(&server).get("/api/v1/sessions/busy").good();
        (session["executionState"] != "running").then(|| session["lastSeq"].as_i64().unwrap())
    });
    eventually("the follower has all", || (followed(&home).last() >= Some(&last)).then_some(()));
    let whole: Vec<i64> = (1..=last).collect();
    assert_eq!(followed(&home), whole);
    follower.signal(Signal::INT);
    assert!(follower.wait().success());
    let printed = std::fs::read_to_string(home.path("followed.err")).unwrap();
    assert!(printed.contains("connection lost; the run goes on. Reconnecting…"), "it was cut off: {printed}");
    assert!(printed.contains("connected again after"), "{printed}");
    server.stop();
}
