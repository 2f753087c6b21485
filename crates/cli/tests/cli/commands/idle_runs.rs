//! Runs that wait for a runner elsewhere, runs that have nothing left to do, and sessions by their state.

use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    process::{Server, eventually, stdout_of},
    runner::run_request,
    shell_agent,
    test_home::{Engine, TestHome},
};

fn json_of(home: &TestHome, server: &Server, args: &[&str]) -> Value {
    let output = home.cli(Some(server), &[args, &["-o", "json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{args:?}: {output:?}"))
}

fn run(home: &TestHome, server: &Server, args: &[&str]) -> String {
    json_of(home, server, &[&["run"], args].concat())["runId"].as_str().unwrap().to_owned()
}

#[test]
fn cancelling_a_completed_run_reports_that_nothing_runs() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    let run_id = run(&home, &server, &["say hello"]);
    let output = home.cli(Some(&server), &["cancel", &run_id, "--yes"]);
    assert!(output.status.success(), "{output:?}");
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(message, format!("nothing to cancel: the run completed ({run_id})\n"));
    assert_eq!(output.stdout, b"");
    let found = stdout_of(home.cli(Some(&server), &["api", "GET", &format!("/api/v1/runs/{run_id}")]));
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!((&found["status"], &found["cancelRequestedAt"]), (&"pending".into(), &Value::Null));
    run(&home, &server, &["--session", "chat", "say hello"]);
    let output = home.cli(Some(&server), &["cancel", "chat"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), message.as_str()), (Some(0), "nothing runs in chat\n"), "it asks nothing");
    server.stop();
}

#[test]
fn a_run_whose_input_was_removed_is_not_repeated() {
    let mut home = TestHome::new(Engine::Sqlite);
    home.set("OSTLER_RETENTION__EVENTS_MS", "1");
    let server = home.serve();
    let run_id = run(&home, &server, &["say hello"]);
    std::thread::sleep(std::time::Duration::from_millis(50));
    stdout_of(home.cli(Some(&server), &["retention", "run", "--yes"]));
    let output = home.cli(Some(&server), &["retry", &run_id]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("the input of this run was removed by retention on 20"), "{message}");
    assert!(message.contains("; start a new run") && message.contains("hint: "), "{message}");
    assert!(!output.status.success() && !message.contains("prompt, message or text"), "{message}");
    server.stop();
}

#[test]
fn a_turn_without_a_runner_is_recovered_by_the_command_that_its_result_shows() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    let mut http = Http::new(&server);
    let run_id = http.post("/api/v1/runs", &run_request()).good()["runId"].as_str().unwrap().to_owned();
    let turn = json!({"type": "turn", "payload": {"prompt": "say hello"}});
    http.post(&format!("/api/v1/runs/{run_id}/commands"), &turn).good();
    let cli = |args: &[&str]| home.cli(Some(&server), args);
    let shown = String::from_utf8(cli(&["result", &run_id]).stdout).unwrap();
    assert!(shown.contains(&format!("\nrecover  ostler jobs create {run_id}\n")), "{shown}");
    assert!(!shown.contains("ostler api"), "{shown}");
    assert!(stdout_of(cli(&["jobs", "create", &run_id])).starts_with("job_"));
    assert_eq!(cli(&["wait", &run_id, "--timeout", "60s"]).status.code(), Some(0));
    let again = cli(&["jobs", "create", &run_id]);
    assert_eq!(again.status.code(), Some(5), "{again:?}");
    server.stop();
}

#[test]
fn a_failed_run_whose_program_has_ended_does_not_stay_claimed() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    shell_agent::set_profile(&home, &server, "exit 3");
    let (run_id, result) = shell_agent::turn(&home, &server, "workspace-write", &json!({}));
    assert_eq!(result["state"], "failed", "{result}");
    // The default of `runner.idle_ms` is ten minutes.
    let mut http = Http::new(&server);
    eventually("the lease is released", || {
        let run = http.get(&format!("/api/v1/runs/{run_id}")).good();
        (run["status"] == "pending" && run["state"] == "failed").then_some(())
    });
    let listed = stdout_of(home.cli(Some(&server), &["runs", "list"]));
    assert!(listed.contains("  failed  ") && !listed.contains("claimed"), "{listed}");
    server.stop();
}

#[test]
fn a_run_without_a_command_is_not_shown_as_ended() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    let mut http = Http::new(&server);
    let run = http.post("/api/v1/runs", &run_request()).good();
    // As in docs/cli.md: only reads have the state for people.
    let found = http.get(&format!("/api/v1/runs/{}", run["runId"].as_str().unwrap())).good();
    assert_eq!((&run["state"], &found["state"]), (&Value::Null, &json!("waiting")), "{run} {found}");
    let shown = home.cli(Some(&server), &["result", run["runId"].as_str().unwrap()]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.starts_with("waiting for a command\n"), "{shown}");
    assert!(shown.contains("\nactive   ") && !shown.contains("ended"), "{shown}");
    server.stop();
}

#[test]
fn a_profile_whose_program_is_missing_is_named_in_the_hint_and_in_the_log() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    shell_agent::set_profile_command(&server, &["nosuchprog"]);
    let (run_id, result) = shell_agent::turn(&home, &server, "workspace-write", &json!({}));
    assert_eq!(result["failureKind"], "infra-failed", "{result}");
    let shown = String::from_utf8(home.cli(Some(&server), &["result", &run_id]).stdout).unwrap();
    assert!(shown.contains("the profile's program \"nosuchprog\" is not installed"), "{shown}");
    assert!(shown.contains("change the profile's command: `ostler profiles config played --file FILE`"), "{shown}");
    // Only a caller who may set profiles is to do something about it.
    let state = |output: std::process::Output| {
        let checks: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        checks.into_iter().find(|check| check["name"] == "profile").expect("a check of the profile")["state"].clone()
    };
    assert_eq!(state(home.cli(Some(&server), &["doctor", "-o", "json"])), "fail");
    stdout_of(home.cli(Some(&server), &["users", "add", "ada", "--timezone", "UTC"]));
    let token = stdout_of(home.cli(Some(&server), &["users", "token", "ada"]));
    let mut doctor = home.command(&["doctor", "-o", "json"]);
    doctor.env("OSTLER_SERVER", server.url()).env("OSTLER_TOKEN", token.trim());
    assert_eq!(state(doctor.output().unwrap()), "warn");
    server.stop();
    let log = home.log();
    let logged: Vec<_> = log.lines().filter(|line| line.contains("nosuchprog")).collect();
    assert!(logged.len() == 1 && logged[0].contains("WARN"), "{log}");
    assert!(!log.contains("x-not-used"), "{log}");
}

#[test]
fn a_profile_is_ready_in_every_list_or_in_none() {
    let mut home = TestHome::new(Engine::Sqlite);
    home.set("OSTLER_RUNNER__EXTERNAL_PROFILES", "my-agent");
    let server = home.serve();
    let backends = json_of(&home, &server, &["backends", "list"]);
    let named = |of: &Value, is_ready: bool| -> Vec<String> {
        let all = of.as_array().unwrap().iter().filter(|one| one["ready"] == is_ready);
        all.map(|one| one["profile"].as_str().unwrap().to_owned()).collect()
    };
    let (ready, unready) = (named(&backends, true), named(&backends, false));
    assert_eq!(ready, ["scripted", "my-agent"]);
    assert!(unready.contains(&"model".to_owned()) && unready.contains(&"codex".to_owned()), "{unready:?}");
    let profiles = json_of(&home, &server, &["profiles", "list"]);
    assert_eq!((named(&profiles, true), named(&profiles, false)), (vec!["my-agent".to_owned()], unready.clone()));
    let checks = json_of(&home, &server, &["doctor"]);
    let found = |name: &str| -> String {
        let checks = checks.as_array().unwrap().iter().filter(|check| check["name"] == name);
        checks.map(|check| format!("{} {}", check["state"], check["found"])).collect::<Vec<_>>().join("\n")
    };
    // No runner serves the external profile yet.
    let expected = format!("1 profile can run: scripted; not ready: {}, my-agent", unready.join(", "));
    assert!(found("backends").contains(&expected), "{}", found("backends"));
    let external = "my-agent: external profile; no runner has requested a job since this server started";
    assert!(found("profile").contains(external), "{}", found("profile"));
    for noun in ["backends", "profiles"] {
        let table = stdout_of(home.cli(Some(&server), &[noun, "list"]));
        assert!(table.contains("external profile; "), "{table}");
    }
    // A run of it names the runner that it waits for.
    let run_id = run(&home, &server, &["--profile", "my-agent", "--detach", "hi"]);
    let result = String::from_utf8(home.cli(Some(&server), &["result", &run_id]).stdout).unwrap();
    assert!(result.starts_with("waiting for a runner that claims profile my-agent\n"), "{result}");
    assert!(result.contains("next     start that runner"), "{result}");
    server.stop();
}

#[test]
fn sessions_of_a_state_are_found_beyond_the_first_page() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    run(
        &home,
        &server,
        &["--session", "bad", r#"{"script": [{"fail": {"kind": "backend-failed", "message": "it broke"}}]}"#],
    );
    for name in ["a", "b", "c"] {
        run(&home, &server, &["--session", name, "say hello"]);
    }
    let failed = json_of(&home, &server, &["sessions", "list", "--status", "failed", "-n", "2"]);
    let ids: Vec<_> = failed.as_array().unwrap().iter().map(|session| &session["sessionId"]).collect();
    assert_eq!(ids, ["bad"]);
    assert_eq!(failed[0]["state"], "failed");
    server.stop();
}
