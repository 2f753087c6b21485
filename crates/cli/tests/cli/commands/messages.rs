//! Messages that a newcomer meets first: each has what happened and what to do, in lines that can be copied.

use crate::fixtures::{
    process::{Server, eventually, stdout_of},
    snapshot::{assert_snapshot, piped},
    test_home::{Engine, TestHome},
};

fn start() -> (TestHome, Server) {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    (home, server)
}

#[test]
fn a_profile_that_is_not_set_up_shows_what_to_write() {
    let (home, server) = start();
    let run = home.cli(Some(&server), &["run", "--profile", "model", "hello"]);
    assert_snapshot("error_model_not_set_up", &home, &piped(&run));
    server.stop();
}

#[test]
fn an_unknown_tenant_is_answered_with_those_that_the_caller_may_name() {
    let (home, server) = start();
    let cli = |args: &[&str]| home.cli(Some(&server), args);
    assert_snapshot("error_tenant_unknown", &home, &piped(&cli(&["run", "--tenant", "nosuch", "hello"])));
    let shown = stdout_of(cli(&["whoami"]));
    assert!(shown.contains("tenants  every tenant: unidesk, hwlab, local\n"), "{shown}");
    server.stop();
}

#[test]
fn a_state_in_words_of_other_tools_is_answered_with_ours() {
    let home = TestHome::new(Engine::Sqlite);
    assert_snapshot("error_status_foreign", &home, &piped(&home.cli(None, &["runs", "list", "--status", "idle"])));
}

#[test]
fn compacting_the_store_of_a_running_server_fails_with_the_hint_to_stop_it() {
    let (home, server) = start();
    let compact = home.cli(Some(&server), &["retention", "compact", "--yes"]);
    assert_snapshot("error_compact_served", &home, &piped(&compact));
    server.stop();
    let compact = home.cli(None, &["retention", "compact", "--yes"]);
    assert!(compact.status.success(), "{compact:?}");
}

#[test]
fn the_line_after_a_steer_can_be_copied() {
    let (home, server) = start();
    let cli = |args: &[&str]| home.cli(Some(&server), args);
    let script = r#"{"script":[{"awaitSteer":{"waitMs":60000}},{"say":"done"}]}"#;
    assert!(cli(&["run", "--detach", "--session", "chat", script]).status.success());
    let steered = eventually("the turn runs", || {
        let steered = cli(&["steer", "chat", "left"]);
        steered.status.success().then_some(steered)
    });
    let message = String::from_utf8(steered.stderr).unwrap();
    let (first, command) = message.trim_end().split_once('\n').unwrap();
    assert_eq!(first, "sent to the running turn; did the agent take it?");
    // The test names a data directory, too.
    let words: Vec<_> = command.split_whitespace().skip_while(|word| *word != "result").collect();
    assert!(format!("  ostler {}", words.join(" ")).len() <= 80, "{command}");
    assert_eq!(cli(&["wait", "chat", "--timeout", "60s"]).status.code(), Some(0));
    let shown = stdout_of(cli(&words));
    assert!(shown.contains("steer    accepted by the agent\n"), "{shown}");
    server.stop();
}

#[test]
fn a_command_to_copy_quotes_the_names_in_it() {
    let (home, server) = start();
    let cli = |args: &[&str]| home.cli(Some(&server), args);
    let message = |args: &[&str]| String::from_utf8(cli(args).stderr).unwrap();
    assert!(cli(&["run", "--session", "x;id", "hello"]).status.success());
    let steered = message(&["steer", "x;id", "hi"]);
    assert!(steered.contains(" run --session 'x;id' \"…\"\n"), "{steered}");
    let approved = message(&["approve", "x;id"]);
    assert!(approved.contains("`ostler trace 'x;id'` shows past requests"), "{approved}");
    let attached = message(&["attach", "x;id", "--no-input"]);
    assert!(attached.contains("`ostler trace -f 'x;id'` follows any session"), "{attached}");
    assert!(attached.contains("not those of `ostler run`") && !attached.contains("dialect"), "{attached}");
    let added = message(&["users", "add", "x y", "--timezone", "UTC"]);
    assert!(added.ends_with(" users token 'x y'\n"), "{added}");
    let prompt = message(&["run", "say", "$(id)"]);
    assert!(prompt.contains("put the prompt in quotes: ostler run 'say $(id) …'\n"), "{prompt}");
    server.stop();
}

#[test]
fn an_empty_list_shows_whether_filters_are_the_reason() {
    let (home, server) = start();
    let message = |args: &[&str]| String::from_utf8(home.cli(Some(&server), args).stderr).unwrap();
    assert_eq!(message(&["runs", "list"]), "no runs yet; start one: ostler run \"say hello\"\n");
    for filter in [["--status", "failed"], ["--label", "x=y"], ["--since", "1h"], ["--session", "chat"]] {
        assert_eq!(message(&[&["runs", "list"][..], &filter].concat()), "no run matches these filters\n", "{filter:?}");
    }
    assert_eq!(message(&["sessions", "list"]), "no sessions yet; start one: ostler run --session NAME \"say hello\"\n");
    assert_eq!(message(&["sessions", "list", "--status", "failed"]), "no session matches these filters\n");
    server.stop();
}

#[test]
fn a_command_of_null_means_that_none_is_unfinished() {
    let (home, server) = start();
    let cli = |args: &[&str]| home.cli(Some(&server), args);
    assert!(cli(&["run", "--session", "chat", "hello"]).status.success());
    assert_snapshot("error_command_null", &home, &piped(&cli(&["result", "chat", "--command", "null"])));
    server.stop();
}

#[test]
fn mcp_servers_of_the_workspace_are_listed_with_their_state() {
    let home = TestHome::new(Engine::Sqlite);
    let directory = home.path("project");
    std::fs::create_dir(&directory).unwrap();
    let mut command = home.command(&["daemon", "--listen", "127.0.0.1:0"]);
    command.env("OSTLER_MCP__SERVERS", r#"{"notes": {"command": "notes-mcp", "description": "Notes of the team"}}"#);
    command.current_dir(&directory);
    let server = Server::start(command).unwrap();
    let listed = stdout_of(home.cli(Some(&server), &["mcp", "list"]));
    assert_eq!(
        listed,
        "SERVER  STATE         TRANSPORT  FROM             NOTE\n\
         notes   disconnected  stdio      system settings  Notes of the team\n"
    );
    server.stop();
    // A server without a workspace lists those of its configuration, too. This one has none.
    let server = home.serve();
    assert!(home.cli(Some(&server), &["mcp", "list"]).status.success());
    server.stop();
}
