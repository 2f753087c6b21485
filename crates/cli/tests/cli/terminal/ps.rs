//! `ostler ps` and related commands: running and unread sessions, redrawn in place on a terminal, plain when piped.

use serde_json::{Value, json};

use crate::fixtures::{
    process::{Guarded, Server, eventually},
    pty::{CTRL_C, Terminal},
    snapshot::{assert_snapshot, piped},
    test_home::{Engine, TestHome},
};

/// Two ended sessions and one that waits.
fn scene() -> (TestHome, Server) {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    for session in ["alpha", "beta"] {
        assert!(home.cli(Some(&server), &["run", "--session", session, "hello"]).status.success());
    }
    waiting(&home, &server, "gamma");
    (home, server)
}

/// Starts a run that waits for permission, and waits until it does.
fn waiting(home: &TestHome, server: &Server, session: &str) {
    let script = json!({"script": [{"ask": {"title": "Go on?", "command": "make"}}]}).to_string();
    assert!(home.cli(Some(server), &["run", "--detach", "--session", session, &script]).status.success());
    eventually("the agent asks", || {
        let shown = home.cli(Some(server), &["sessions", "show", session, "-o", "json"]);
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
        (shown["liveness"]["phase"] == "waiting-permission").then_some(())
    });
}

#[test]
fn ps_lists_running_and_unread_sessions() {
    let (home, server) = scene();
    let ended = Terminal::start(&home, &server, &["ps"], &[]).ends();
    assert_snapshot("ps_terminal", &home, &ended.screen);
    assert_snapshot("ps_piped", &home, &piped(&home.cli(Some(&server), &["ps"])));
    assert_snapshot("ps_iso", &home, &piped(&home.cli(Some(&server), &["ps", "--time", "iso", "-n", "1"])));

    // Both `result` and `approve` show the command before it runs.
    for args in
        [&["result", "gamma"][..], &["trace", "gamma", "--kind", "permission_request"], &["approve", "gamma", "--yes"]]
    {
        let text = piped(&home.cli(Some(&server), args));
        assert!(text.contains("command: make"), "{args:?}: {text}");
    }
    eventually("it goes on", || (home.cli(Some(&server), &["result", "gamma"]).status.code() != Some(9)).then_some(()));
    waiting(&home, &server, "gamma");

    // A read session is no longer listed, for this reader only.
    assert_snapshot("read_piped", &home, &piped(&home.cli(Some(&server), &["read", "alpha", "beta"])));
    assert_eq!(sessions(&home, &server, &["ps"]), ["gamma"]);
    assert_eq!(sessions(&home, &server, &["ps", "--reader", "somebody"]), ["gamma", "beta", "alpha"]);
    assert_eq!(sessions(&home, &server, &["ps", "--all"]), ["gamma", "beta", "alpha"]);
    assert_snapshot("ps_nothing", &home, &piped(&home.cli(Some(&server), &["ps", "--profile", "model"])));
}

#[test]
fn unread_outcomes_do_not_hide_what_waits() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    waiting(&home, &server, "oldest");
    for session in ["alpha", "beta", "gamma"] {
        assert!(home.cli(Some(&server), &["run", "--session", session, "hello"]).status.success());
    }
    assert_eq!(sessions(&home, &server, &["ps", "-n", "2"]), ["oldest", "gamma"]);
    assert_eq!(sessions(&home, &server, &["ps", "-n", "4"]), ["gamma", "beta", "alpha", "oldest"]);
}

#[test]
fn sessions_without_a_run_do_not_hide_what_waits() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    waiting(&home, &server, "oldest");
    for session in ["empty-1", "empty-2", "empty-3"] {
        assert!(home.cli(Some(&server), &["sessions", "create", session]).status.success());
    }
    for session in ["alpha", "beta", "gamma"] {
        assert!(home.cli(Some(&server), &["run", "--session", session, "hello"]).status.success());
    }
    assert_eq!(sessions(&home, &server, &["ps", "-n", "2"]), ["oldest", "gamma"]);
}

fn sessions(home: &TestHome, server: &Server, args: &[&str]) -> Vec<String> {
    let output = home.cli(Some(server), &[args, &["-o", "jsonl"]].concat());
    let id = |line: &str| serde_json::from_str::<Value>(line).unwrap()["sessionId"].as_str().unwrap().to_owned();
    String::from_utf8(output.stdout).unwrap().lines().map(id).collect()
}

#[test]
fn a_watched_list_is_refreshed_in_place() {
    let (home, server) = scene();
    let terminal = Terminal::start(&home, &server, &["ps", "-w"], &[]);
    let first = terminal.shows("3 sessions · 0 running · 1 waiting");
    assert_snapshot("ps_watched", &home, &first);
    assert!(home.cli(Some(&server), &["read", "alpha", "beta"]).status.success());
    assert!(home.cli(Some(&server), &["deny", "gamma"]).status.success());
    let second = terminal.shows("1 session · 0 running");
    assert_eq!(second.matches("SESSION ").count(), 1, "the old list is gone: {second}");
    assert!(!second.contains("alpha"), "{second}");
    terminal.types(CTRL_C);
    assert_eq!(terminal.ends().code, 0);
}

#[test]
fn a_watched_list_is_refreshed_in_place_on_a_narrow_terminal() {
    let (home, server) = scene();
    let columns = 60.try_into().unwrap();
    let shown = Terminal::start_at(columns, &home, &server, &["runs", "list"], &[]).ends().screen;
    assert_eq!(shown.lines().count(), 4, "a line per run: {shown}");
    let terminal = Terminal::start_at(columns, &home, &server, &["ps", "-w"], &[]);
    let first = terminal.shows("3 sessions · 0 running · 1 waiting");
    assert_eq!(first.lines().count(), 6, "no row is wrapped: {first}");
    assert!(home.cli(Some(&server), &["read", "alpha", "beta"]).status.success());
    assert!(home.cli(Some(&server), &["deny", "gamma"]).status.success());
    terminal.shows("1 session · 0 running");
    // The rest of the screen is erased after the text.
    eventually("nothing of the old list is left", || (terminal.screen().lines().count() == 4).then_some(()));
    terminal.types(CTRL_C);
    assert_eq!(terminal.ends().code, 0);
}

#[test]
fn a_piped_watch_prints_a_line_per_change() {
    let (home, server) = scene();
    let mut command = home.command(&["ps", "-w", "-o", "jsonl"]);
    let log = std::fs::File::create(home.path("watched")).unwrap();
    let process = Guarded(command.env("OSTLER_SERVER", server.url()).stdout(log).spawn().unwrap());
    let lines = || -> Vec<Value> {
        let text = std::fs::read_to_string(home.path("watched")).unwrap();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    eventually("the first look", || (lines().len() == 3).then_some(()));
    assert!(home.cli(Some(&server), &["deny", "gamma"]).status.success());
    let lines = eventually("the change", || Some(lines()).filter(|lines| lines.len() > 3));
    assert!(lines[3..].iter().all(|line| line["sessionId"] == "gamma"), "only what changed: {lines:?}");
    drop(process);
}

#[test]
fn a_watch_survives_a_server_restart() {
    let (home, server) = scene();
    let address = server.address.clone();
    let terminal = Terminal::start(&home, &server, &["ps", "-w"], &[]);
    terminal.shows("3 sessions");
    server.kill();
    let lost = terminal.shows("connection lost; the list is refreshed when it is back");
    assert!(lost.contains("gamma    waiting for permission") && !lost.contains("3 sessions"), "the rows stay: {lost}");
    let server = home.serve_at(&address);
    terminal.shows("3 sessions");
    terminal.types(CTRL_C);
    assert_eq!(terminal.ends().code, 0);
    server.stop();
}

#[test]
fn a_watch_of_a_server_that_never_answered_ends() {
    let home = TestHome::new(Engine::Sqlite);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = home.cli(None, &["--server", &format!("http://{free}"), "ps", "-w"]);
    let printed = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(7), "{printed}");
    assert!(printed.starts_with(&format!("error: http://{free} does not answer (connection refused)\n")), "{printed}");
    assert!(printed.contains("  kind: server-unreachable\n") && !printed.contains("os error"), "{printed}");
    let verbose = home.cli(None, &["--server", &format!("http://{free}"), "ps", "-v"]);
    let printed = String::from_utf8(verbose.stderr).unwrap();
    assert!(printed.contains("  cause: error sending request"), "{printed}");
}

#[test]
fn a_server_without_tls_that_is_addressed_with_it_is_named() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    let output = home.cli(None, &["--server", &server.url().replace("http:", "https:"), "ps"]);
    let printed = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(7), "{printed}");
    let message = format!("error: the server at https://{0} does not use TLS; use http://{0}\n", server.address);
    assert!(printed.starts_with(&message) && !printed.contains("is the server running"), "{printed}");
}

#[test]
fn a_session_is_renamed_and_closed_and_a_failed_turn_is_listed() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    let cli = |args: &[&str]| home.cli(Some(&server), args);
    let failed =
        cli(&["run", "--session", "review", r#"{"script": [{"fail": {"kind": "backend-failed", "message": "no"}}]}"#]);
    assert_eq!(failed.status.code(), Some(10), "{failed:?}");
    for status in ["failed", "completed", "pending"] {
        let listed = piped(&cli(&["runs", "list", "--status", status]));
        // The run itself is pending, ready for another turn.
        assert_eq!(listed.contains("  failed  "), status != "completed", "{status}: {listed}");
    }
    assert_snapshot("sessions_rename", &home, &piped(&cli(&["sessions", "rename", "review", "Review of Tuesday"])));
    assert_snapshot("error_close_unasked", &home, &piped(&cli(&["sessions", "close", "review"])));
    assert_snapshot("sessions_close", &home, &piped(&cli(&["sessions", "close", "review", "--yes"])));
    assert_snapshot("ps_closed", &home, &piped(&cli(&["ps"])));
    let shown = piped(&cli(&["sessions", "show", "review"]));
    assert!(shown.contains("title    Review of Tuesday") && shown.contains("\nclosed "), "{shown}");
    let facts = piped(&cli(&["trace", "review", "--kind", "session"]));
    assert!(facts.contains("renamed to Review of Tuesday by") && facts.contains("closed by"), "{facts}");
}

#[test]
fn a_cancel_asks_first() {
    let (home, server) = scene();
    let terminal = Terminal::start(&home, &server, &["cancel", "gamma"], &[]);
    terminal.shows("cancel this? [y/N]");
    terminal.types("n\n");
    let ended = terminal.ends();
    assert_eq!((ended.code, ended.screen.contains("nothing was done")), (0, true), "{}", ended.screen);

    assert_snapshot("error_cancel_unasked", &home, &piped(&home.cli(Some(&server), &["cancel", "gamma"])));
    assert_snapshot("cancel_dry", &home, &piped(&home.cli(Some(&server), &["cancel", "gamma", "--dry-run"])));
    assert_eq!(sessions(&home, &server, &["ps"]).len(), 3);
    let gamma = |field: &str| {
        let shown = home.cli(Some(&server), &["result", "gamma", "-o", "json"]);
        serde_json::from_slice::<Value>(&shown.stdout).unwrap()[field].clone()
    };
    assert_eq!(gamma("terminalStatus"), Value::Null, "nothing was cancelled so far");

    let terminal = Terminal::start(&home, &server, &["cancel", "gamma"], &[]);
    terminal.shows("cancel this? [y/N]");
    terminal.types("y\n");
    assert_eq!(terminal.ends().code, 0);
    eventually("it ends", || (gamma("terminalStatus") == "cancelled").then_some(()));
}
