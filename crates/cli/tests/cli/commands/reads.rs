//! The output of other commands: short ids, errors and hints, settings and their origins, contexts, the raw API, and shell
//! completions.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::fixtures::{
    process::{Server, eventually, ostler},
    snapshot::{assert_snapshot, piped},
    test_home::{Engine, TestHome},
};

fn start() -> (TestHome, Server) {
    let mut home = TestHome::new(Engine::Sqlite);
    let config = home.path("config").display().to_string();
    home.set("XDG_CONFIG_HOME", &config);
    let server = home.serve();
    (home, server)
}

fn run(home: &TestHome, server: &Server) -> String {
    let made = home.cli(Some(server), &["run", "--detach", "hello"]);
    String::from_utf8(made.stdout).unwrap().trim().to_owned()
}

#[test]
fn the_beginning_of_an_id_is_enough() {
    let (home, server) = start();
    let first = run(&home, &server);
    // All but the last digit is unambiguous; the prefix may be omitted.
    for word in [&first[..], &first[..35], &first[4..30]] {
        let shown = home.cli(Some(&server), &["jobs", "list", word, "-o", "json"]);
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
        assert_eq!(shown[0]["runId"], first.as_str(), "{word}");
    }
    for run in [first, run(&home, &server)] {
        assert!(home.cli(Some(&server), &["wait", &run]).status.success());
    }
    let ambiguous = home.cli(Some(&server), &["result", "run_0"]);
    assert_snapshot("error_ambiguous", &home, &piped(&ambiguous));
    for (name, word) in
        [("error_unknown_run", "run_ffff"), ("error_unknown_session", "ses_ffff"), ("error_unknown_word", "nobody")]
    {
        assert_snapshot(name, &home, &piped(&home.cli(Some(&server), &["result", word])));
    }
}

#[test]
fn a_name_that_two_tenants_have_needs_a_tenant() {
    let (home, server) = start();
    let mut runs = vec![];
    for tenant in ["local", "hwlab"] {
        let made = home.cli(Some(&server), &["run", "--detach", "--session", "review", "--tenant", tenant, tenant]);
        runs.push(String::from_utf8(made.stdout).unwrap().trim().to_owned());
        let done = || home.cli(Some(&server), &["result", runs.last().unwrap()]);
        eventually("the turn ends", || done().status.success().then_some(()));
    }
    assert_snapshot("ps_tenants", &home, &piped(&home.cli(Some(&server), &["ps"])));
    assert_snapshot("error_tenant_ambiguous", &home, &piped(&home.cli(Some(&server), &["output", "review"])));
    let verbs: [&[&str]; 6] = [
        &["sessions", "show"],
        &["trace"],
        &["output"],
        &["read", "--reader", "somebody"],
        &["result"],
        &["cancel", "--dry-run"],
    ];
    for verb in verbs {
        let printed = |more: &[&str]| {
            let output = home.cli(Some(&server), &[verb, more].concat());
            let text = piped(&output);
            assert!(output.status.success(), "{verb:?} {more:?}: {text}");
            text
        };
        for (run, tenant) in runs.iter().zip(["local", "hwlab"]) {
            printed(&[run]);
            let named = printed(&["review", "--tenant", tenant]);
            // A session in which nothing runs has nothing to cancel.
            let is_plain = ["read", "result", "cancel"].contains(&verb[0]);
            assert!(is_plain || named.contains(tenant), "{verb:?}: {named}");
        }
        // The default tenant resolves it, too.
        let mut settled = home.command(&[verb, &["review"]].concat());
        settled.env("OSTLER_SERVER", server.url()).env("OSTLER_TENANT", "hwlab");
        assert!(settled.output().unwrap().status.success(), "{verb:?}");
    }
    let shown = home.cli(Some(&server), &["sessions", "show", &runs[1], "-o", "json"]);
    assert_eq!(serde_json::from_slice::<Value>(&shown.stdout).unwrap()["tenantId"], "hwlab");
}

#[test]
fn the_beginning_of_a_tokens_a_commands_or_a_sessions_id_is_enough() {
    let (home, server) = start();
    let cli = |args: &[&str]| home.cli(Some(&server), args);
    assert!(cli(&["token", "create", "ci", "--tenant", "local"]).status.success());
    let listed: Value = serde_json::from_slice(&cli(&["token", "list", "-o", "json"]).stdout).unwrap();
    let token = listed[0]["tokenId"].as_str().unwrap();
    assert_snapshot("token_revoke_dry", &home, &piped(&cli(&["token", "revoke", &token[..20], "--dry-run"])));
    assert_snapshot("error_token_unknown", &home, &piped(&cli(&["token", "revoke", "tok_ffff", "--dry-run"])));
    let revoked = piped(&cli(&["token", "revoke", &token[..30], "--yes"]));
    assert!(revoked.contains(&format!("{token} revoked")), "{revoked}");

    assert!(cli(&["run", "--session", "review-of-tuesday", "hello"]).status.success());
    let shown: Value = serde_json::from_slice(&cli(&["sessions", "show", "review-of", "-o", "json"]).stdout).unwrap();
    assert_eq!(shown["sessionId"], "review-of-tuesday");
    let whole: Value = serde_json::from_slice(&cli(&["result", "review-of", "-o", "json"]).stdout).unwrap();
    let command = whole["commandId"].as_str().unwrap();
    let same = cli(&["result", "review-of", "--command", &command[..30], "-o", "json"]);
    assert_eq!(serde_json::from_slice::<Value>(&same.stdout).unwrap()["commandId"], command);
    assert_snapshot("error_command_unknown", &home, &piped(&cli(&["result", "review-of", "--command", "cmd_ffff"])));
    assert!(cli(&["run", "--session", "review-of-friday", "hello"]).status.success());
    assert_snapshot("error_session_ambiguous", &home, &piped(&cli(&["sessions", "show", "review"])));
}

#[test]
fn a_missing_thing_is_reported_with_the_command_that_lists_such_things() {
    let (home, server) = start();
    for (name, args) in [
        ("error_user_unknown", &["users", "token", "nobody"][..]),
        ("error_user_unknown_dry", &["users", "remove", "nobody", "--dry-run"]),
        ("error_profile_unknown", &["profiles", "show", "nothing"]),
        ("error_path_unknown", &["api", "GET", "nothing"]),
    ] {
        assert_snapshot(name, &home, &piped(&home.cli(Some(&server), args)));
    }
    let add = ["users", "add", "ada", "--timezone", "UTC"];
    assert!(home.cli(Some(&server), &add).status.success());
    let again = ["users", "add", "ada", "--timezone", "Europe/Berlin"];
    assert_snapshot("error_user_taken", &home, &piped(&home.cli(Some(&server), &again)));
}

/// The output of `doctor`, without lines that depend on the account and the kernel of the test machine.
fn without_machine(printed: &str) -> String {
    let mut lines: Vec<&str> = printed.lines().collect();
    let warning = lines.iter().position(|line| line.starts_with("warn  user"));
    if let Some(at) = warning {
        lines.drain(at..at + 2);
    }
    // Whether agents get PID namespaces depends on the machine, and is known only some time after the start.
    let text = (lines.join("\n") + "\n").replace("; a PID namespace for each", "").replace("no PID namespaces; ", "");
    match warning {
        Some(_) => text
            .replace("no failures, 3 warnings", "no failures, 2 warnings")
            .replace("failed, 2 warnings", "failed, 1 warning"),
        None => text,
    }
}

#[test]
fn doctor_shows_each_check_and_what_to_do() {
    let (home, server) = start();
    assert_snapshot("doctor_piped", &home, &without_machine(&piped(&home.cli(Some(&server), &["doctor"]))));
    let mut refused = home.command(&["doctor"]);
    refused.env("OSTLER_SERVER", server.url()).env("OSTLER_TOKEN", "ost_wrong");
    assert_snapshot("doctor_refused", &home, &without_machine(&piped(&refused.output().unwrap())));
    let checks = home.cli(Some(&server), &["doctor", "-o", "json"]);
    let checks: Vec<Value> = serde_json::from_slice(&checks.stdout).unwrap();
    assert!(checks.iter().all(|check| check["state"] != "fail"), "{checks:?}");
    let address = server.address.clone();
    server.stop();
    let mut gone = home.command(&["doctor"]);
    assert_snapshot(
        "doctor_gone",
        &home,
        &piped(&gone.env("OSTLER_SERVER", format!("http://{address}")).output().unwrap()),
    );
    let mut ps = home.command(&["ps"]);
    assert_snapshot(
        "error_unreachable",
        &home,
        &piped(&ps.env("OSTLER_SERVER", format!("http://{address}")).output().unwrap()),
    );
}

#[test]
fn settings_show_their_origin_and_hide_secrets() {
    let (home, server) = start();
    let file = home.path("ostler.toml");
    std::fs::write(&file, "[runner]\nlease_ms = 1500\n").unwrap();
    let mut command = home.command(&["config", "show", "--config", file.to_str().unwrap(), "--listen", "127.0.0.1:1"]);
    command.env("OSTLER_LIMITS__FOLLOWERS_MAX", "7").env("DATABASE_URL", "postgres://me:planted@localhost/x");
    command.env("OSTLER_SERVER", server.url()).env("OSTLER_TOKEN", "ost_planted");
    let output = command.output().unwrap();
    let text = piped(&output);
    assert!(!text.contains("planted"), "{text}");
    // Other keys depend on features.
    let kept =
        ["cli.", "runner.lease_ms", "limits.followers_max", "server.listen", "server.data_dir", "store.database_url"];
    let lines = text.lines().filter(|line| kept.iter().any(|key| line.starts_with(key)));
    let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n");
    assert_snapshot("config_show", &home, &words.collect::<String>());
}

#[test]
fn contexts_name_servers() {
    let (home, server) = start();
    let url = server.url();
    let token = home.data_dir.join("token").display().to_string();
    let at = |args: &[&str]| {
        let mut command = ostler(args);
        command.env("XDG_CONFIG_HOME", home.path("config"));
        piped(&command.output().unwrap())
    };
    assert_snapshot("context_none", &home, &at(&["context", "list"]));
    assert_snapshot("context_add", &home, &at(&["context", "add", "lab", "--server", &url, "--token-file", &token]));
    at(&["context", "add", "prod", "--server", "https://ostler.example.org", "--tenant", "hwlab"]);
    assert_snapshot("context_list", &home, &at(&["context", "list"]));
    assert!(at(&["ps"]).starts_with("exit code 0\n"), "the current context's server and token are used");
    assert!(at(&["--context", "lab", "backends", "list"]).contains("scripted"));
    assert_snapshot("error_context_unknown", &home, &at(&["--context", "nowhere", "ps"]));
    assert_snapshot("error_context_and_server", &home, &at(&["--context", "lab", "--server", &url, "ps"]));
    assert_snapshot("context_use", &home, &at(&["context", "use", "prod"]));
    assert!(at(&["context", "use", "none"]).contains("hint: to use no context: ostler contexts use --none"));
    assert!(at(&["context", "use", "--none"]).contains("context \"prod\" is no longer the current one"));
    assert!(!at(&["context", "list"]).contains('*'));
    assert_snapshot("error_context_remove_unasked", &home, &at(&["context", "remove", "prod"]));
    assert_snapshot("context_remove", &home, &at(&["context", "remove", "prod", "--yes"]));
}

#[test]
fn the_api_is_called_with_the_token_applied() {
    let (home, server) = start();
    let run = run(&home, &server);
    let got = home.cli(Some(&server), &["api", "GET", &format!("runs/{run}")]);
    assert_eq!(serde_json::from_slice::<Value>(&got.stdout).unwrap()["runId"], run.as_str());
    let body = home.path("body.json");
    std::fs::write(&body, "{\"reason\": \"enough\"}").unwrap();
    let data = format!("@{}", body.display());
    let cancelled = home.cli(Some(&server), &["api", "post", &format!("/api/v1/runs/{run}/cancel"), "-d", &data]);
    assert_eq!(serde_json::from_slice::<Value>(&cancelled.stdout).unwrap()["runId"], run.as_str(), "{cancelled:?}");
    let stream =
        home.cli(Some(&server), &["api", "GET", &format!("runs/{run}/events"), "-H", "Accept: text/event-stream"]);
    assert!(String::from_utf8(stream.stdout).unwrap().contains("id: 1\n"), "a stream is printed as it comes");
    let refused = home.cli(Some(&server), &["api", "GET", "runs/run_1"]);
    assert_eq!(refused.status.code(), Some(4));
    assert_eq!(serde_json::from_slice::<Value>(&refused.stdout).unwrap()["failureKind"], "not-found");
    let mut foreign = home.command(&["api", "GET", "runs"]);
    foreign.env("OSTLER_SERVER", server.url()).env("OSTLER_TOKEN", "ost_wrong");
    assert_snapshot("error_unauthenticated", &home, &piped(&foreign.output().unwrap()));
}

/// The completions that a real bash offers after these words.
fn offered(home: &TestHome, server: &Server, words: &[&str]) -> Vec<String> {
    let script = r#"
        source <(ostler completions bash)
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_TYPE=9
        _clap_complete_ostler ostler "${@: -1}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_ostler"));
    let output = Command::new("bash")
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", program.parent().unwrap().display()))
        .env("OSTLER_SERVER", server.url())
        .env("OSTLER_DATA_DIR", &home.data_dir)
        .args(["--norc", "-c", script, "bash"])
        .args(words)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(|line| line.trim().to_owned()).collect()
}

#[test]
fn a_shell_completes_commands_and_ids() {
    let (home, server) = start();
    let run = run(&home, &server);
    // Completion has a short deadline, so a slow server may offer nothing at first.
    let is_offered = |words: &[&str], start: &str| {
        let offered = eventually("something is offered", || {
            Some(offered(&home, &server, words)).filter(|offered| offered.iter().any(|one| !one.is_empty()))
        });
        assert!(offered.len() == 1 && offered[0].starts_with(start), "{offered:?}");
    };
    assert!(offered(&home, &server, &["ostler", "tra"]).contains(&"trace".to_owned()));
    is_offered(&["ostler", "result", &run[..20]], &run);
    assert!(home.cli(Some(&server), &["users", "add", "ada", "--timezone", "UTC"]).status.success());
    assert!(home.cli(Some(&server), &["token", "create", "ci", "--tenant", "local"]).status.success());
    is_offered(&["ostler", "users", "token", "a"], "ada");
    is_offered(&["ostler", "token", "revoke", "tok_"], "tok_");
    is_offered(&["ostler", "profiles", "show", "deep"], "deepseek");
    // Only what waits for an answer.
    assert_eq!(offered(&home, &server, &["ostler", "approve", &run[..20]]).concat(), "");
    assert!(offered(&home, &server, &["ostler", "jobs", "li"]).contains(&"list".to_owned()));
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let script = home.cli(None, &["completions", shell]);
        assert!(script.status.success() && !script.stdout.is_empty(), "{shell}");
    }
}

#[test]
fn a_missing_token_file_is_named_with_what_to_do() {
    let (home, server) = start();
    let absent = home.path("absent-token").display().to_string();
    let add = ["context", "add", "lab", "--server", &server.url(), "--token-file", &absent];
    let added = home.cli(None, &add);
    assert!(added.status.success(), "{added:?}");
    assert_snapshot("error_token_file_missing", &home, &piped(&home.cli(None, &["--context", "lab", "ps"])));
    // The data directory of a server of this machine, without its token.
    let empty = home.path("empty").display().to_string();
    std::fs::create_dir(&empty).unwrap();
    let mut elsewhere = ostler(&["ps", "--server", &server.url(), "--data-dir", &empty]);
    assert_snapshot("error_token_missing", &home, &piped(&elsewhere.output().unwrap()));
    server.stop();
}
