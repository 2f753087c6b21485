//! `ostler attach` at a terminal and in a pipe, against a server that is bound to a directory.

use std::{
    io::Write,
    process::{Child, Output, Stdio},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use crate::fixtures::{
    process::{Guarded, Server, eventually},
    pty::{CTRL_C, Terminal},
    test_home::{Engine, TestHome, both_engines},
};

pub(super) const CTRL_D: &str = "\x04";
/// The line that waits for a prompt.
const CUE: &str = "\n>\n";

pub(super) fn start_on(engine: Engine) -> (TestHome, Server) {
    let mut home = TestHome::on_disk(engine);
    let workspace = home.path("workspace");
    std::fs::create_dir(&workspace).unwrap();
    home.flags = vec!["--workspace".into(), workspace.display().to_string()];
    let server = home.serve();
    (home, server)
}

fn start() -> (TestHome, Server) {
    start_on(Engine::Sqlite)
}

pub(super) fn attached(home: &TestHome, server: &Server) -> Terminal {
    let terminal = Terminal::start(home, server, &["attach"], &[]);
    terminal.shows(CUE);
    terminal
}

pub(super) fn script(steps: Value) -> String {
    format!("{}\n", json!({"script": steps}))
}

/// Runs it with these lines on stdin.
fn piped(home: &TestHome, server: &Server, args: &[&str], lines: &[String]) -> Output {
    spawned(home, server, args, lines).wait_with_output().unwrap()
}

fn spawned(home: &TestHome, server: &Server, args: &[&str], lines: &[String]) -> Child {
    let mut command = home.command(args);
    command.env("OSTLER_SERVER", server.url()).stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.concat().as_bytes()).unwrap();
    child
}

/// Waits until this many questions are on the screen. What is typed before a question is no answer to it.
pub(super) fn wait_for_question(terminal: &Terminal, times: usize) {
    eventually("the question", || (terminal.screen().matches("allow this?").count() == times).then_some(()));
}

/// Waits until keys are answers to the question that is on the screen: not within its first 0.7 s.
fn settled() {
    thread::sleep(Duration::from_millis(750));
}

#[both_engines]
fn a_person_prompts_a_session_and_detaches(engine: Engine) {
    let (home, server) = start_on(engine);
    let terminal = attached(&home, &server);
    let shown = terminal.screen();
    assert!(shown.starts_with("opened session ") && shown.contains("/workspace; /help lists"), "{shown}");
    terminal.types("/help\n");
    terminal.shows("/detach    leave; nothing is ended, like Ctrl-D");
    terminal
        .types(&script(json!([{"tool": {"name": "shell", "command": "ls", "output": "a\n"}}, {"say": "Two files."}])));
    let shown = terminal.shows("Two files.\n>\n");
    assert!(shown.contains("tool shell completed: ls\n"), "{shown}");
    terminal.types(CTRL_D);
    let ended = terminal.ends();
    assert_eq!(ended.code, 0, "{}", ended.screen);
    assert!(ended.screen.contains("detached; the session goes on: ostler "), "{}", ended.screen);
    // The session is still there, and its frames can be shown again.
    let all = home.cli(Some(&server), &["attach", "--all", "-o", "jsonl"]);
    let frames: Vec<Value> =
        String::from_utf8(all.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(frames.iter().any(|frame| frame["type"] == "turn_complete"), "{frames:?}");
    assert_eq!(all.status.code(), Some(0));
}

#[test]
fn two_terminals_share_a_session_and_either_votes() {
    let (home, server) = start();
    let (one, two) = (attached(&home, &server), attached(&home, &server));
    assert!(two.screen().starts_with("attached to session "), "{}", two.screen());
    let ask = |title: &str| {
        script(json!([{"ask": {"title": title, "command": "rm -r logs"}}, {"say": format!("{title} Done.")}]))
    };
    one.types(&ask("Delete?"));
    wait_for_question(&one, 1);
    wait_for_question(&two, 1);
    let shown = two.screen();
    assert!(
        shown.contains("client_") && shown.contains("permission needed: Delete?\n  command: rm -r logs"),
        "{shown}"
    );
    // A prompt of the daemon waits for 5 minutes by default.
    assert!(shown.contains("command: rm -r logs\n  answer:  within 4m\n"), "{shown}");
    two.types("v\n");
    wait_for_question(&two, 2);
    two.types("1\n");
    two.shows("permission allowed by you");
    let shown = one.shows("permission allowed by client_");
    assert!(!shown.contains("by you"), "{shown}");
    for terminal in [&one, &two] {
        terminal.shows("Delete? Done.\n>\n");
    }
    two.types(&ask("Again?"));
    wait_for_question(&one, 2);
    one.types("n\n");
    for terminal in [&one, &two] {
        terminal.shows("turn ended: refusal");
    }
    one.types("/detach\n");
    assert_eq!(one.ends().code, 0);
    two.types(CTRL_D);
    assert_eq!(two.ends().code, 0);
}

#[test]
fn an_unknown_command_is_not_sent_as_a_prompt() {
    let (home, server) = start();
    let terminal = attached(&home, &server);
    terminal.types("/nope now\n");
    terminal.shows(
        "unknown command /nope; known: /cancel, /detach, /help\n  hint: //nope sends the text /nope as a prompt\n>\n",
    );
    // The scripted backend replies with the prompt.
    terminal.types("//nope now\n");
    let shown = terminal.shows("\n/nope now\n>\n");
    assert_eq!(shown.matches("unknown command").count(), 1, "{shown}");
    terminal.types("/etc/hosts is a path\n");
    terminal.shows("\n/etc/hosts is a path\n>\n");
    terminal.types(CTRL_D);
    assert_eq!(terminal.ends().code, 0);
    let frames = home.cli(Some(&server), &["attach", "--all", "-o", "jsonl"]);
    let frames = String::from_utf8(frames.stdout).unwrap();
    assert_eq!(frames.matches("user_message_chunk").count(), 2, "{frames}");
}

#[test]
fn a_refused_vote_names_who_may_vote() {
    let mut home = TestHome::on_disk(Engine::Sqlite);
    let workspace = home.path("workspace");
    std::fs::create_dir(&workspace).unwrap();
    home.flags = vec!["--workspace".into(), workspace.display().to_string()];
    home.set("OSTLER_POLICY__PERMISSION_STRATEGY", "designated");
    let server = home.serve();
    let (one, two) = (attached(&home, &server), attached(&home, &server));
    one.types(&script(json!([{"ask": {"title": "Delete?", "command": "rm -r logs"}}, {"say": "Done."}])));
    wait_for_question(&one, 1);
    wait_for_question(&two, 1);
    two.types("y\n");
    let shown = two.shows("may vote here, because it sent the prompt");
    assert!(shown.contains("not answered: only client_"), "{shown}");
    let shown = one.shows("only you may vote here, because you sent the prompt");
    assert!(shown.contains("a vote by client_"), "{shown}");
    wait_for_question(&one, 2);
    one.types("y\n");
    for terminal in [&one, &two] {
        terminal.shows("Done.\n>\n");
    }
}

#[test]
fn a_turn_that_is_taken_over_is_announced() {
    let (home, server) = start();
    let terminal = attached(&home, &server);
    terminal.types(&script(json!([{"say": "one two", "pieces": 2, "everyMs": 1_000}])));
    terminal.shows("\none");
    let address = server.address.clone();
    server.kill();
    let server = home.serve_at(&address);
    let shown = terminal.shows("another runner took the turn over; the reply starts again\none two\n>\n");
    assert!(!shown.contains("oneone") && !shown.contains("one one"), "{shown}");
    terminal.types(CTRL_D);
    assert_eq!(terminal.ends().code, 0);
    server.stop();
}

#[test]
fn a_prompt_that_waits_is_shown_again_when_its_turn_begins() {
    let (home, server) = start();
    let (one, two) = (attached(&home, &server), attached(&home, &server));
    one.types(&script(json!([{"say": "one two three", "pieces": 3, "everyMs": 700}])));
    two.shows("\none");
    two.types("next\n");
    let shown = two.shows("\nnext\n>\n");
    assert!(shown.contains("ree\nyou: next\nnext\n"), "{shown}");
    let shown = one.shows("\nnext\n>\n");
    assert!(shown.contains("waits for this turn with: next\n") && shown.contains(": next\nnext\n"), "{shown}");
}

#[test]
fn a_key_votes_without_enter_and_the_rest_of_its_word_is_no_prompt() {
    let (home, server) = start();
    let terminal = attached(&home, &server);
    let ask =
        |title: &str| script(json!([{"ask": {"title": title, "command": "make"}}, {"say": format!("{title} Done.")}]));
    terminal.types(&ask("First?"));
    wait_for_question(&terminal, 1);
    settled();
    terminal.types("v");
    wait_for_question(&terminal, 2);
    settled();
    terminal.types("y");
    terminal.shows("permission allowed by you");
    terminal.shows("First? Done.\n>\n");
    terminal.types("es\n");
    terminal.types(&ask("Second?"));
    wait_for_question(&terminal, 3);
    assert!(!terminal.screen().contains("\nes\n"), "the backend repeats prompts: {}", terminal.screen());
    settled();
    terminal.types("2");
    terminal.shows("turn ended: refusal\n>\n");
    terminal.types(&script(json!([{"say": "Lines again."}])));
    terminal.shows("Lines again.\n>\n");
    terminal.types(CTRL_D);
    assert_eq!(terminal.ends().code, 0);
}

#[test]
fn a_key_of_an_unfinished_line_is_no_vote_although_the_question_is_shown_again() {
    let (home, server) = start();
    let terminal = attached(&home, &server);
    terminal.types(&script(json!([{"ask": {"title": "Go on?", "command": "make"}}, {"say": "Done."}])));
    wait_for_question(&terminal, 1);
    settled();
    terminal.types("x");
    // Another client prompts, which is shown, so the question is shown again below it.
    let mut other = Guarded(spawned(&home, &server, &["attach"], &["next\n".to_owned()]));
    terminal.shows("waits for this turn with: next\n");
    eventually("the question again", || (terminal.screen().matches("allow this?").count() > 1).then_some(()));
    terminal.types("y");
    terminal.types("\n");
    let shown = terminal.shows("answer with a number from 1 to 2, y, n or v");
    assert!(!shown.contains("permission allowed"), "{shown}");
    terminal.types("n\n");
    terminal.shows("turn ended: refusal");
    assert_eq!(other.wait().code(), Some(0));
}

#[test]
fn a_long_command_is_allowed_only_after_it_was_shown_whole() {
    let (home, server) = start();
    let terminal = attached(&home, &server);
    let long: String = (1..=30).map(|n| format!("ls {n}\n")).collect();
    terminal.types(&script(json!([{"ask": {"title": "Go on?", "command": long}}, {"say": "Done."}])));
    terminal.shows("… v shows the rest");
    wait_for_question(&terminal, 1);
    terminal.types("1\n");
    eventually("the question after the whole call", || {
        let screen = terminal.screen();
        screen.split("           ls 30\n").nth(1).is_some_and(|rest| rest.contains("allow this?")).then_some(())
    });
    terminal.types("1\n");
    terminal.shows("permission allowed by you");
    terminal.shows("Done.");
}

#[test]
fn ctrl_c_cancels_the_running_prompt_and_never_detaches() {
    let (home, server) = start();
    let terminal = attached(&home, &server);
    terminal.types(CTRL_C);
    terminal.shows("no prompt runs; Ctrl-D or /detach detaches");
    terminal.types(&script(json!([{"say": "Working."}, {"wait": 60_000}])));
    terminal.shows("Working.\n");
    terminal.types(CTRL_C);
    terminal.shows("turn ended: cancelled\n>\n");
    terminal.types(&script(json!([{"say": "Working again."}, {"wait": 60_000}])));
    terminal.shows("Working again.\n");
    terminal.types("/cancel\n");
    eventually("the second cancel", || (terminal.screen().matches("turn ended: cancelled").count() == 2).then_some(()));
    terminal.types(CTRL_D);
    assert_eq!(terminal.ends().code, 0);
}

#[both_engines]
fn a_terminal_continues_after_the_server_was_restarted(engine: Engine) {
    let (home, server) = start_on(engine);
    let terminal = attached(&home, &server);
    terminal.types(&script(json!([{"say": "Before."}])));
    terminal.shows("Before.\n>\n");
    let address = server.address.clone();
    server.stop();
    eventually("the loss is reported", || {
        let screen = terminal.screen();
        (screen.contains("connection lost") || screen.contains("waiting for it to come back")).then_some(())
    });
    assert!(!terminal.screen().contains("the session ended"), "{}", terminal.screen());
    // A line that is typed in the meantime is sent when the server is back.
    terminal.types(&script(json!([{"say": "Meanwhile."}])));
    let server = home.serve_at(&address);
    terminal.shows("connected again");
    terminal.shows("Meanwhile.\n");
    terminal.types(&script(json!([{"say": "After."}])));
    let shown = terminal.shows("After.\n>\n");
    assert_eq!(shown.matches("\nBefore.").count(), 1, "nothing is shown twice: {shown}");
    terminal.types(CTRL_D);
    assert_eq!(terminal.ends().code, 0);
    server.stop();
}

#[test]
fn the_lines_of_a_pipe_are_prompts_and_the_last_turn_is_the_exit_code() {
    let (home, server) = start();
    let lines = [script(json!([{"say": "One."}])), "\n".into(), script(json!([{"say": "Two."}]))];
    let done = piped(&home, &server, &["attach"], &lines);
    assert_eq!(
        (done.status.code(), String::from_utf8_lossy(&done.stdout).as_ref()),
        (Some(0), "One.\nTwo.\n"),
        "{done:?}"
    );
    let fails = script(json!([{"fail": {"kind": "backend-failed", "message": "it fell over"}}]));
    let failed = piped(&home, &server, &["attach", "--new"], &[fails]);
    assert_eq!(failed.status.code(), Some(10), "{failed:?}");
    assert!(String::from_utf8_lossy(&failed.stderr).contains("error backend_failed: it fell over"), "{failed:?}");
    let frames = piped(&home, &server, &["attach", "-o", "jsonl"], &[script(json!([{"say": "Three."}]))]);
    let frames = String::from_utf8(frames.stdout).unwrap();
    let types: Vec<String> = frames
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["type"].as_str().unwrap().to_owned())
        .collect();
    assert!(types.iter().any(|frame_type| frame_type == "turn_complete"), "{frames}");
    assert!(!frames.contains("Two."), "earlier frames are shown on request: {frames}");
}

#[test]
fn earlier_frames_are_shown_on_request_and_a_running_turn_always() {
    let (home, server) = start();
    piped(&home, &server, &["attach"], &[script(json!([{"say": "One."}])), script(json!([{"say": "Two."}]))]);
    let shown = |args: &[&str]| {
        let terminal = Terminal::start(&home, &server, args, &[]);
        terminal.shows(CUE);
        terminal.types(CTRL_D);
        terminal.ends().screen
    };
    assert!(!shown(&["attach"]).contains("Two."));
    let all = shown(&["attach", "--all"]);
    assert!(all.contains("One.\n") && all.contains("Two.\n"), "{all}");
    let one = attached(&home, &server);
    one.types(&script(json!([{"say": "Three."}, {"ask": {"title": "Go on?", "command": "make"}}])));
    wait_for_question(&one, 1);
    let two = Terminal::start(&home, &server, &["attach"], &[]);
    wait_for_question(&two, 1);
    let screen = two.screen();
    assert!(screen.contains("Three.\n") && !screen.contains("Two."), "{screen}");
    two.types("y\n");
    one.shows("permission allowed by client_");
}

#[test]
fn without_a_terminal_and_a_prompt_no_session_is_made() {
    let (home, server) = start();
    for args in [&["attach"][..], &["attach", "--new"]] {
        // Its stdin is the null device.
        let refused = home.cli(Some(&server), args);
        let stderr = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("neither a terminal nor a prompt") && stderr.contains("| ostler attach"), "{stderr}");
    }
    let sessions = home.cli(Some(&server), &["sessions", "list", "-o", "json"]);
    assert_eq!(serde_json::from_slice::<Value>(&sessions.stdout).unwrap(), json!([]));
}

#[test]
fn a_session_that_ends_ends_its_terminals() {
    let (home, server) = start();
    let terminal = attached(&home, &server);
    let session = terminal.screen().split_whitespace().nth(2).unwrap().to_owned();
    let closed = home.cli(Some(&server), &["api", "DELETE", &format!("/session/{session}")]);
    assert!(closed.status.success(), "{closed:?}");
    let ended = terminal.ends();
    assert!(ended.code == 0 && ended.screen.contains("the session was closed"), "{}", ended.screen);
    // It can be attached to again by its id, or the beginning of it.
    let terminal = Terminal::start(&home, &server, &["attach", &session], &[]);
    terminal.shows(CUE);
    terminal.types(CTRL_D);
    assert_eq!(terminal.ends().code, 0);
    let unknown = home.cli(Some(&server), &["attach", "no-such-session"]);
    assert_eq!(unknown.status.code(), Some(4), "{unknown:?}");
}
