//! The output of `ostler run`: streamed text, lines for tool calls, a status line that is erased, Ctrl-C, and a server that
//! goes away in the middle.

use serde_json::json;

use crate::fixtures::{
    http::Http,
    process::{Server, ostler},
    pty::{CTRL_C, Terminal},
    snapshot::{assert_snapshot, piped},
    test_home::{Engine, TestHome},
};

/// Streamed text, a tool that takes a moment, and a reply.
fn script() -> String {
    json!({"script": [{"say": "Looking at the disk."},
        {"tool": {"name": "shell", "command": "df -h", "output": "/dev/sda1 93%\n", "waitMs": 50}},
        {"tool": {"name": "shell", "command": "rm -r logs", "exitCode": 2}},
        {"say": "Two lines\nof reply."}]})
    .to_string()
}

fn start() -> (TestHome, Server) {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    (home, server)
}

/// Whether colour was used. Cursor movements of the status line do not count.
fn is_coloured(raw: &str) -> bool {
    raw.split("\x1b[")
        .skip(1)
        .any(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('m'))
}

#[test]
fn a_run_at_a_terminal_streams_the_reply_and_notes_every_tool_call() {
    let (home, server) = start();
    let ended = Terminal::start(&home, &server, &["run", &script()], &[]).ends();
    assert_eq!(ended.code, 0, "{}", ended.screen);
    assert!(is_coloured(&ended.raw), "{:?}", ended.raw);
    assert_snapshot("run_terminal", &home, &ended.screen);
}

#[test]
fn without_colour_a_run_has_the_same_text() {
    let (home, server) = start();
    let ended = Terminal::start(&home, &server, &["run", &script()], &[("NO_COLOR", "1")]).ends();
    assert!(!is_coloured(&ended.raw), "{:?}", ended.raw);
    assert_snapshot("run_terminal", &home, &ended.screen);
}

#[test]
fn a_piped_run_prints_the_reply_on_stdout_and_messages_on_stderr() {
    let (home, server) = start();
    assert_snapshot("run_piped", &home, &piped(&home.cli(Some(&server), &["run", &script()])));
    let events = home.cli(Some(&server), &["run", "-o", "jsonl", "hello"]);
    let lines: Vec<serde_json::Value> =
        String::from_utf8(events.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let numbers: Vec<_> = lines.iter().map(|event| event["seq"].as_i64().unwrap()).collect();
    assert_eq!(numbers, (1..=numbers.len() as i64).collect::<Vec<_>>());
    assert_eq!(lines.last().unwrap()["type"], "terminal_status");
}

#[test]
fn a_script_that_cannot_be_read_is_explained_by_its_guide() {
    let (home, server) = start();
    let failed = home.cli(Some(&server), &["run", r#"{"script": [{"sya": "hello"}]}"#]);
    assert_eq!(failed.status.code(), Some(10));
    let shown = String::from_utf8(failed.stderr).unwrap();
    let guide = format!("{}/guide/scripted-agent", server.url());
    let end = format!("hint: correct the script; docs/scripted-agent.md describes its steps\n  read: {guide}\n");
    assert!(shown.ends_with(&end), "{shown}");
    assert!(Http::new(&server).get("/guide/scripted-agent").status < 400);
}

#[test]
fn a_status_line_shows_the_phase_and_is_erased() {
    let (home, server) = start();
    let script = json!({"script": [{"ask": {"title": "Delete old logs?", "command": "rm -r logs"}}, {"say": "Done."}]});
    let terminal = Terminal::start(&home, &server, &["run", "--session", "disk", &script.to_string()], &[]);
    // The question replaces the status line.
    let waiting = terminal.shows("allow this?");
    assert_snapshot("run_waiting", &home, &waiting);
    // The session resolves to its active run.
    let approved = home.cli(Some(&server), &["approve", "disk", "--yes"]);
    assert!(approved.status.success(), "{approved:?}");
    let ended = terminal.ends();
    assert_eq!(ended.code, 0, "{}", ended.screen);
    assert_snapshot("run_approved", &home, &ended.screen);
}

#[test]
fn a_reply_is_wrapped_between_words_at_a_terminal_only() {
    let (home, server) = start();
    let reply = "The disk is nearly full, because the logs of last year were never deleted.";
    let script = json!({"script": [{"say": reply}]}).to_string();
    let columns = 40.try_into().unwrap();
    let ended = Terminal::start_at(columns, &home, &server, &["run", &script], &[]).ends();
    let wrapped = "The disk is nearly full, because the\nlogs of last year were never deleted.\n";
    assert!(ended.screen.contains(wrapped), "{}", ended.screen);
    let piped = String::from_utf8(home.cli(Some(&server), &["run", &script]).stdout).unwrap();
    assert_eq!(piped, format!("{reply}\n"));
}

#[test]
fn the_status_line_returns_while_a_reply_pauses() {
    let (home, server) = start();
    let waits = json!({"script": [{"say": "First."}, {"wait": 4000}, {"say": "Last."}]}).to_string();
    let terminal = Terminal::start(&home, &server, &["run", &waits], &[]);
    let waiting = terminal.shows("First.\nrunning ·");
    assert_eq!(waiting.matches("Ctrl-C").count(), 1, "{waiting}");
    let ended = terminal.ends();
    let after = ended.screen.split_once("First.").unwrap().1;
    assert!(after.starts_with("\nLast.\ncompleted ·"), "it leaves no trace: {}", ended.screen);
}

#[test]
fn both_streams_in_one_pipe_do_not_mix_lines() {
    let (home, server) = start();
    let mut command = home.command(&["run", &script()]);
    let (mut reader, writer) = std::io::pipe().unwrap();
    command.env("OSTLER_SERVER", server.url()).stdout(writer.try_clone().unwrap()).stderr(writer);
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
    assert!(child.wait().unwrap().success());
    assert_snapshot("run_terminal", &home, &text);
}

#[test]
fn no_status_line_is_drawn_for_a_machine() {
    let (home, server) = start();
    let waits = json!({"script": [{"wait": 1200}, {"say": "Done."}]}).to_string();
    for environment in [("CI", "true"), ("TERM", "dumb")] {
        let ended = Terminal::start(&home, &server, &["run", &waits], &[environment]).ends();
        assert!(
            !ended.raw.contains("Ctrl-C cancels") && !ended.raw.contains("\x1b[K"),
            "{environment:?}: {:?}",
            ended.raw
        );
    }
    let ended = Terminal::start(&home, &server, &["run", &waits], &[]).ends();
    assert!(ended.raw.contains("Ctrl-C cancels"), "the check finds what it looks for: {:?}", ended.raw);
}

#[test]
fn ctrl_c_at_the_terminal_cancels_and_waits_for_the_end() {
    let (home, server) = start();
    let script = json!({"script": [{"say": "Working."}, {"wait": 600_000}]}).to_string();
    let terminal = Terminal::start(&home, &server, &["run", &script], &[]);
    terminal.shows("Working.");
    terminal.types(CTRL_C);
    let ended = terminal.ends();
    assert_eq!(ended.code, 11, "{}", ended.screen);
    assert_snapshot("run_cancelled", &home, &ended.screen.replace("^C", ""));
}

#[test]
fn a_run_continues_when_its_server_returns() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    let address = server.address.clone();
    let script = json!({"script": [{"say": "Before."}, {"wait": 1500}, {"say": "After."}]}).to_string();
    let terminal = Terminal::start(&home, &server, &["run", &script], &[]);
    terminal.shows("Before.");
    server.kill();
    terminal.shows("connection lost; the run goes on. Reconnecting…");
    let server = home.serve_at(&address);
    let ended = terminal.ends();
    assert_eq!(ended.code, 0, "{}", ended.screen);
    assert!(ended.screen.contains("another runner took the turn over; the reply starts again\n"), "{}", ended.screen);
    assert!(ended.screen.contains("After.\ncompleted · run_"), "{}", ended.screen);
    server.stop();
}

#[test]
fn a_server_that_stops_in_order_is_not_called_a_lost_connection() {
    let mut home = TestHome::new(Engine::Sqlite);
    home.set("OSTLER_SERVER__DRAIN_MS", "100");
    let server = home.serve();
    let script = json!({"script": [{"say": "Before."}, {"wait": 600_000}]}).to_string();
    let terminal = Terminal::start(&home, &server, &["run", &script], &[]);
    terminal.shows("Before.");
    server.stop();
    let screen = terminal.shows("the server is stopping; waiting for it to come back");
    assert!(!screen.contains("connection lost"), "{screen}");
}

/// Starts a run with this script in the background and returns its id.
fn detached(home: &TestHome, server: &Server, script: &serde_json::Value) -> String {
    let made = home.cli(Some(server), &["run", "--detach", "-o", "json", &script.to_string()]);
    let made: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap_or_else(|_| panic!("{made:?}"));
    made["runId"].as_str().unwrap().to_owned()
}

#[test]
fn a_wait_whose_server_is_gone_reports_it_and_claims_nothing_about_the_run() {
    let (home, server) = start();
    let run_id = detached(&home, &server, &json!({"script": [{"wait": 600_000}]}));
    let terminal = Terminal::start(&home, &server, &["wait", &run_id, "--timeout", "3s"], &[]);
    terminal.shows("Ctrl-C stops waiting");
    server.kill();
    let ended = terminal.ends();
    assert_eq!(ended.code, 7, "{}", ended.screen);
    assert_eq!(ended.screen.matches("connection lost; reconnecting…").count(), 1, "{}", ended.screen);
    assert!(ended.screen.contains("error: the state of the run is unknown: "), "{}", ended.screen);
    assert!(!ended.screen.contains("still running"), "{}", ended.screen);
}

#[test]
fn a_wait_continues_when_its_server_returns() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    let address = server.address.clone();
    let run_id = detached(&home, &server, &json!({"script": [{"wait": 1500}, {"say": "done"}]}));
    let terminal = Terminal::start(&home, &server, &["wait", &run_id], &[]);
    terminal.shows("Ctrl-C stops waiting");
    server.kill();
    terminal.shows("connection lost; reconnecting…");
    let server = home.serve_at(&address);
    let ended = terminal.ends();
    assert_eq!(ended.code, 0, "{}", ended.screen);
    assert!(ended.screen.contains("connected again after ") && ended.screen.contains("completed"), "{}", ended.screen);
    server.stop();
}

#[test]
fn a_cancel_reaches_a_server_that_was_away() {
    let (home, server) = start();
    let address = server.address.clone();
    let script = json!({"script": [{"say": "Before."}, {"wait": 60_000}, {"say": "After."}]}).to_string();
    let terminal = Terminal::start(&home, &server, &["run", &script], &[]);
    terminal.shows("Before.");
    server.kill();
    terminal.shows("connection lost; the run goes on. Reconnecting…");
    terminal.types(CTRL_C);
    terminal.shows("cancelling; Ctrl-C again exits without waiting");
    let server = home.serve_at(&address);
    let ended = terminal.ends();
    assert_eq!(ended.code, 11, "{}", ended.screen);
    assert!(!ended.screen.contains("After."), "{}", ended.screen);
    server.stop();
}

#[test]
fn a_prompt_is_read_from_a_file_or_a_pipe_and_a_dry_run_sends_nothing() {
    let (home, server) = start();
    let file = home.path("task.md");
    std::fs::write(&file, "hello from a file\n").unwrap();
    let printed = home.cli(Some(&server), &["run", "--file", file.to_str().unwrap()]);
    assert_eq!(String::from_utf8(printed.stdout).unwrap(), "hello from a file\n");
    let dry = home.cli(Some(&server), &["run", "--dry-run", "--tenant", "hwlab", "--timeout", "20m", "hello"]);
    assert_snapshot("run_dry", &home, &piped(&dry));
    let runs = home.cli(Some(&server), &["runs", "list", "-o", "json"]);
    let runs: Vec<serde_json::Value> = serde_json::from_slice(&runs.stdout).unwrap();
    assert_eq!(runs.len(), 1, "only the first was sent");
    let missing = home.cli(Some(&server), &["run", "--file", "/no/such/file"]);
    assert_snapshot("error_prompt_file", &home, &piped(&missing));
}

#[test]
fn help_needs_no_server_and_no_home() {
    let output = ostler(&["--help"]).output().unwrap();
    assert!(output.status.success() && String::from_utf8(output.stdout).unwrap().contains("Exit codes:"));
}
