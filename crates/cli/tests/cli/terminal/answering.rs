//! Answering where one waits: in the terminal of `ostler run`, from the list of everything that waits, and again with
//! `ostler retry`.

use serde_json::{Value, json};

use crate::fixtures::{
    process::{Server, eventually, stdout_of},
    pty::{CTRL_C, Terminal},
    snapshot::{assert_snapshot, piped},
    test_home::{Engine, TestHome, both_engines},
};

fn start() -> (TestHome, Server) {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    (home, server)
}

/// Waits until the run has asked this often. Whatever is typed before a question is no answer to it.
fn wait_for_question(terminal: &Terminal, times: usize) {
    eventually("the question", || (terminal.screen().matches("allow this?").count() == times).then_some(()));
}

fn asking(title: &str, command: &str) -> String {
    json!({"script": [{"ask": {"title": title, "command": command}}, {"say": "Done."}]}).to_string()
}

/// Starts a run that waits for permission, and waits until it does.
fn waiting(home: &TestHome, server: &Server, session: &str, title: &str, command: &str) {
    let detached = home.cli(Some(server), &["run", "--detach", "--session", session, &asking(title, command)]);
    assert!(detached.status.success(), "{detached:?}");
    eventually("the agent asks", || {
        let shown = home.cli(Some(server), &["sessions", "show", session, "-o", "json"]);
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
        (shown["liveness"]["phase"] == "waiting-permission").then_some(())
    });
}

fn json_of(home: &TestHome, server: &Server, args: &[&str]) -> Value {
    let output = home.cli(Some(server), &[args, &["-o", "json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{args:?}: {output:?}"))
}

#[test]
fn a_run_asks_and_is_answered_in_its_own_terminal() {
    let (home, server) = start();
    let terminal = Terminal::start(&home, &server, &["run", &asking("Delete old logs?", "rm -r logs")], &[]);
    wait_for_question(&terminal, 1);
    terminal.types("what\n");
    terminal.shows("answer y, n or v");
    wait_for_question(&terminal, 2);
    terminal.types("v\n");
    let shown = terminal.shows("options: allow (Allow), deny (Deny)");
    assert!(shown.contains("digest:"), "{shown}");
    wait_for_question(&terminal, 3);
    terminal.types("y\n");
    let ended = terminal.ends();
    assert_eq!(ended.code, 0, "{}", ended.screen);
    assert_snapshot("run_answered", &home, &ended.screen);

    let terminal = Terminal::start(&home, &server, &["run", &asking("Delete old logs?", "rm -r logs")], &[]);
    terminal.shows("allow this?");
    terminal.types("n\n");
    let ended = terminal.ends();
    assert_eq!(ended.code, 12, "{}", ended.screen);
    assert_snapshot("run_denied", &home, &ended.screen);
}

#[test]
fn a_long_command_is_allowed_only_after_it_was_shown_whole() {
    let (home, server) = start();
    let long: String = (1..=30).map(|n| format!("ls {n}\n")).collect();
    let terminal = Terminal::start(&home, &server, &["run", &asking("Go on?", &long)], &[]);
    let shown = terminal.shows("… v shows the rest");
    assert!(!shown.contains("ls 30"), "{shown}");
    wait_for_question(&terminal, 1);
    terminal.types("y\n");
    terminal.shows("ls 30");
    eventually("the question after the whole call", || {
        let screen = terminal.screen();
        screen.split("ls 30").nth(1).is_some_and(|rest| rest.contains("allow this?")).then_some(())
    });
    terminal.types("y\n");
    assert_eq!(terminal.ends().code, 0);
}

#[test]
fn a_question_that_is_answered_elsewhere_is_withdrawn() {
    let (home, server) = start();
    let run = ["run", "--session", "disk", &asking("Go on?", "make")];
    let terminal = Terminal::start(&home, &server, &run, &[]);
    terminal.shows("allow this?");
    assert!(home.cli(Some(&server), &["approve", "disk", "--yes"]).status.success());
    let ended = terminal.ends();
    assert_eq!(ended.code, 0, "{}", ended.screen);
    assert!(ended.screen.contains("permission allowed by operator\nDone.\n"), "{}", ended.screen);
    // The person at the terminal has seen the outcome.
    eventually("nothing is unread", || {
        let listed = home.cli(Some(&server), &["ps"]);
        String::from_utf8_lossy(&listed.stderr).contains("nothing is unread").then_some(())
    });
}

#[test]
fn approve_alone_lists_what_waits_and_asks_about_each_at_a_terminal() {
    let (home, server) = start();
    let cli = |args: &[&str]| home.cli(Some(&server), args);
    assert_eq!(piped(&cli(&["approve"])), piped(&cli(&["deny"])));
    waiting(&home, &server, "first", "Delete old logs?", "rm -r logs");
    // The only one needs no name, but a `--yes`.
    assert!(cli(&["approve"]).status.success());
    assert_eq!(json_of(&home, &server, &["approve"]).as_array().unwrap().len(), 1, "it is only listed");
    assert!(stdout_of(cli(&["approve", "--yes"])).contains(" allowed\n"));
    waiting(&home, &server, "second", "Delete new logs?", "rm -r new");
    waiting(&home, &server, "third", "Go on?", "make");
    assert_eq!(cli(&["approve", "--yes"]).status.code(), Some(2), "there are two");
    let several = cli(&["deny", "--yes"]);
    assert!(String::from_utf8_lossy(&several.stderr).contains("name a run: ostler deny RUN --yes"), "{several:?}");
    let terminal = Terminal::start(&home, &server, &["approve"], &[]);
    terminal.shows("1 of 2, in second");
    terminal.types("n\n");
    terminal.shows("2 of 2, in third");
    terminal.types("\n");
    let ended = terminal.ends();
    assert!(ended.screen.contains("denied") && ended.screen.contains("skipped"), "{}", ended.screen);
    let waits = json_of(&home, &server, &["approve"]);
    assert_eq!((waits.as_array().unwrap().len(), &waits[0]["sessionId"]), (1, &json!("third")));
    assert!(stdout_of(cli(&["deny", "--yes"])).contains(" denied\n"));
}

#[test]
fn approve_of_a_run_needs_a_yes_and_n_denies_as_at_every_prompt() {
    let (home, server) = start();
    let cli = |args: &[&str]| home.cli(Some(&server), args);
    waiting(&home, &server, "disk", "Delete old logs?", "rm -r logs");
    let refused = cli(&["approve", "disk"]);
    let message = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{message}");
    assert!(message.contains("command: rm -r logs") && message.contains("hint: pass `--yes`"), "{message}");
    assert_eq!(json_of(&home, &server, &["approve"]).as_array().unwrap().len(), 1, "it still waits");
    for (typed, shown) in [("s\n", "skipped; the request still waits"), ("n\n", " denied")] {
        let terminal = Terminal::start(&home, &server, &["approve", "disk"], &[]);
        wait_for_question(&terminal, 1);
        terminal.types(typed);
        let ended = terminal.ends();
        assert_eq!(ended.code, 0, "{}", ended.screen);
        assert!(ended.screen.contains(shown), "{}", ended.screen);
    }
    assert_eq!(cli(&["wait", "disk", "--for", "blocked", "--timeout", "60s"]).status.code(), Some(0));
}

#[test]
fn the_inbox_has_requests_and_unread_outcomes() {
    let (home, server) = start();
    let cli = |args: &[&str]| home.cli(Some(&server), args);
    assert_eq!(piped(&cli(&["inbox"])), "exit code 0\n--- stdout\n--- stderr\nnothing waits for you\n");
    assert!(cli(&["run", "--session", "nightly", "hello"]).status.success());
    let terminal = Terminal::start(&home, &server, &["inbox", "-w"], &[]);
    terminal.shows("0 requests · 1 unread outcome · Ctrl-C quits");
    waiting(&home, &server, "disk", "Delete old logs?", "rm -r logs");
    let shown = terminal.shows("1 request · 1 unread outcome");
    assert!(shown.contains("disk     waiting for permission") && shown.contains("command: rm -r logs"), "{shown}");
    assert!(cli(&["approve", "disk", "--yes"]).status.success());
    terminal.shows("0 requests · 2 unread outcomes");
    assert_eq!(stdout_of(cli(&["read", "--all"])).lines().count(), 2);
    terminal.shows("0 requests · 0 unread outcomes");
    terminal.types(CTRL_C);
    assert_eq!(terminal.ends().code, 0);
    assert_eq!(piped(&cli(&["read", "--all"])), "exit code 0\n--- stdout\n--- stderr\nnothing is unread\n");
}

#[both_engines]
fn a_retry_submits_the_same_input_and_names_the_run_that_it_repeats(engine: Engine) {
    let home = TestHome::new(engine);
    let server = home.serve();
    let cli = |args: &[&str]| home.cli(Some(&server), args);
    let fails = r#"{"script": [{"say": "Trying."}, {"fail": {"kind": "backend-failed", "message": "no"}}]}"#;
    let run = ["run", "--session", "review", "--max-turns", "3", "--timeout", "5m", fails];
    assert_eq!(cli(&run).status.code(), Some(10));
    let first = json_of(&home, &server, &["result"]);
    let retried = cli(&["retry"]);
    let repeating = format!("repeating {}: {{\"script\"", first["runId"].as_str().unwrap());
    assert!(String::from_utf8_lossy(&retried.stderr).starts_with(&repeating), "{retried:?}");
    assert_eq!((retried.status.code(), String::from_utf8_lossy(&retried.stdout).as_ref()), (Some(10), "Trying.\n"));
    let second = json_of(&home, &server, &["result"]);
    assert_ne!(first["runId"], second["runId"]);
    assert_eq!((&second["retryOf"], &second["sessionId"]), (&first["runId"], &json!("review")));
    let [old, new] = [&first, &second].map(|result| {
        let run = result["runId"].as_str().unwrap();
        let command = result["commandId"].as_str().unwrap();
        let path = format!("/api/v1/runs/{run}");
        let run = json_of_api(&home, &server, &path);
        let command = json_of_api(&home, &server, &format!("{path}/commands/{command}"));
        (run["executionPolicy"].clone(), run["backendProfile"].clone(), command["payload"].clone())
    });
    assert_eq!(old, new);
    assert!(stdout_of(cli(&["runs", "list"])).contains("RETRY OF"));
    let shown = cli(&["result"]);
    let repeated = format!("retry of {}", first["runId"].as_str().unwrap());
    assert!(String::from_utf8_lossy(&shown.stdout).contains(&repeated), "{shown:?}");
    assert_eq!(cli(&["retry", "run_ffffffffffff"]).status.code(), Some(4));
}

fn json_of_api(home: &TestHome, server: &Server, path: &str) -> Value {
    serde_json::from_str(&stdout_of(home.cli(Some(server), &["api", "GET", path]))).unwrap()
}

#[test]
fn wait_ends_with_the_state_the_run_or_the_time() {
    let (home, server) = start();
    let code = |args: &[&str]| home.cli(Some(&server), args).status.code().unwrap();
    waiting(&home, &server, "disk", "Go on?", "make");
    assert_eq!(code(&["wait", "disk", "--for", "waiting"]), 0);
    let late = home.cli(Some(&server), &["wait", "disk", "--timeout", "1s"]);
    let message = String::from_utf8_lossy(&late.stderr);
    assert_eq!(late.status.code(), Some(9), "{message}");
    assert_eq!(message.matches("the run needs an answer: ostler ").count(), 1, "{message}");
    assert!(
        message.contains(" approve run_") && message.ends_with("the run is still waiting for permission\n"),
        "{message}"
    );
    assert_eq!(code(&["deny", "disk"]), 0);
    assert_eq!(code(&["wait", "disk", "--timeout", "60s"]), 12);
    assert_eq!(code(&["wait", "disk", "--for", "blocked"]), 0);
    assert_eq!(code(&["run", "hello"]), 0);
    assert_eq!(code(&["wait"]), 0);
    assert_eq!(code(&["wait", "--for", "failed"]), 1);
    assert_eq!(code(&["wait", "--for", "nonsense"]), 2);
    assert_eq!(code(&["wait", "--for", "failed,completed"]), 0);
}

#[test]
fn wait_shows_how_to_answer_and_the_state_at_a_terminal_and_only_the_state_in_a_pipe() {
    let (home, server) = start();
    waiting(&home, &server, "disk", "Go on?", "make");
    let terminal = Terminal::start(&home, &server, &["wait", "disk", "--for", "completed,failed"], &[]);
    terminal.shows("waiting for permission · ");
    assert!(home.cli(Some(&server), &["approve", "disk", "--yes"]).status.success());
    let ended = terminal.ends();
    let shown = json_of(&home, &server, &["result", "disk"]);
    let run = &shown["runId"].as_str().unwrap()[..20];
    let lines = format!("the run needs an answer: ostler approve {run}\ncompleted\n");
    assert_eq!((ended.code, ended.screen.as_str()), (0, lines.as_str()));
    let piped_wait = home.cli(Some(&server), &["wait", "disk"]);
    assert_eq!(piped(&piped_wait), "exit code 0\n--- stdout\ncompleted\n--- stderr\n");
}

#[test]
fn wait_shows_each_time_that_the_run_needs_an_answer() {
    let (home, server) = start();
    let ask = json!({"ask": {"title": "Go on?", "command": "make"}});
    let script = json!({"script": [ask, {"wait": 1000}, ask]}).to_string();
    assert!(home.cli(Some(&server), &["run", "--detach", "--session", "disk", &script]).status.success());
    let terminal = Terminal::start(&home, &server, &["wait", "disk"], &[]);
    for requests in 1..=2 {
        eventually("the request is noted", || {
            (terminal.screen().matches("the run needs an answer: ").count() == requests).then_some(())
        });
        assert!(home.cli(Some(&server), &["approve", "disk", "--yes"]).status.success());
    }
    let ended = terminal.ends();
    assert_eq!(ended.code, 0, "{}", ended.screen);
}

#[test]
fn a_turn_that_was_answered_does_not_wait_for_a_runner() {
    let (home, server) = start();
    let script = json!({"script": [{"ask": {"title": "Go on?", "command": "make"}}, {"wait": 2500}, {"say": "Done."}]});
    let terminal = Terminal::start(&home, &server, &["run", &script.to_string()], &[]);
    wait_for_question(&terminal, 1);
    terminal.types("y\n");
    terminal.shows("running · ");
    let ended = terminal.ends();
    assert_eq!(ended.code, 0, "{}", ended.screen);
    let (_, answered) = ended.raw.rsplit_once("allow this?").unwrap();
    assert!(!answered.contains("waiting for a runner"), "{answered:?}");
}

#[test]
fn a_request_of_a_cancelled_run_is_described_in_plain_words() {
    let (home, server) = start();
    let cli = |args: &[&str]| home.cli(Some(&server), args);
    waiting(&home, &server, "disk", "Go on?", "make");
    assert!(cli(&["cancel", "disk", "--yes"]).status.success());
    assert_eq!(cli(&["wait", "disk", "--for", "cancelled"]).status.code(), Some(0));
    let trace = stdout_of(cli(&["trace", "disk"]));
    assert!(trace.contains("  cancelled: the turn was cancelled prm_"), "{trace}");
    assert!(trace.contains("  turn cancelled on request\n"), "{trace}");
}

#[test]
fn whoami_shows_the_caller_and_where_its_token_comes_from() {
    let (home, server) = start();
    let cli = |args: &[&str]| home.cli(Some(&server), args);
    assert_snapshot("whoami_operator", &home, &piped(&cli(&["whoami"])));
    let token = stdout_of(cli(&["tokens", "create", "ci", "--tenant", "local"]));
    let mut service = home.command(&["whoami"]);
    service.env("OSTLER_SERVER", server.url()).env("OSTLER_TOKEN", token.trim());
    assert_snapshot("whoami_service", &home, &piped(&service.output().unwrap()));
}

#[test]
fn whoami_names_the_tenant_that_a_new_run_gets() {
    let (home, server) = start();
    let created = |args: &[&str]| {
        let token = home.cli(Some(&server), &[&["tokens", "create"], args].concat());
        stdout_of(token).trim().to_owned()
    };
    let as_caller = |token: &str, tenant: Option<&str>, args: &[&str]| {
        let mut command = home.command(args);
        command.env("OSTLER_SERVER", server.url()).env("OSTLER_TOKEN", token);
        command.envs(tenant.map(|tenant| ("OSTLER_TENANT", tenant))).output().unwrap()
    };
    let new_runs = |token: &str, tenant: Option<&str>| {
        let shown = stdout_of(as_caller(token, tenant, &["whoami"]));
        shown.lines().find_map(|line| line.strip_prefix("new runs ")).unwrap().to_owned()
    };
    let one = created(&["one", "--tenant", "hwlab"]);
    assert_eq!(new_runs(&one, None), "for the tenant hwlab");
    let run = as_caller(&one, None, &["run", "--detach", "-o", "json", "say hello"]);
    let run: Value = serde_json::from_str(&stdout_of(run)).unwrap();
    assert_eq!(run["tenantId"], "hwlab");
    let session = as_caller(&one, None, &["sessions", "create", "review", "-o", "json"]);
    assert_eq!(serde_json::from_str::<Value>(&stdout_of(session)).unwrap()["tenantId"], "hwlab");
    // A tenant that is configured counts, even if it is the wrong one.
    let rejected = "are rejected: the token is not for the tenant local (from environment OSTLER_TENANT)";
    assert_eq!(new_runs(&one, Some("local")), rejected);
    assert_eq!(as_caller(&one, Some("local"), &["run", "say hello"]).status.code(), Some(3));
    let two = created(&["two", "--tenant", "hwlab", "--tenant", "unidesk"]);
    assert_eq!(new_runs(&two, None), "name their tenant with `--tenant`, OSTLER_TENANT or a context");
    let refused = as_caller(&two, None, &["run", "say hello"]);
    let message = String::from_utf8(refused.stderr).unwrap();
    assert!(message.contains("rule: tenant-id-required\n") && message.contains("hint: name the tenant"), "{message}");
    assert_eq!(new_runs(&two, Some("unidesk")), "for the tenant unidesk (from environment OSTLER_TENANT)");
    let runner = created(&["runner", "--role", "runner", "--tenant", "hwlab"]);
    assert_eq!(new_runs(&runner, None), "not with this token");
    server.stop();
}

#[test]
fn a_run_of_an_agent_is_run_by_the_agents_profile() {
    let (home, server) = start();
    let cli = |args: &[&str]| home.cli(Some(&server), args);
    let agent = stdout_of(cli(&["agents", "create", "reader", "--profile", "scripted"]));
    assert!(cli(&["run", "--agent", "reader", "hello"]).status.success());
    let runs = json_of(&home, &server, &["runs", "list"]);
    assert_eq!(runs[0]["agentId"], json!(agent.trim()));
    assert_eq!(cli(&["run", "--agent", "nobody", "hello"]).status.code(), Some(4));
}
