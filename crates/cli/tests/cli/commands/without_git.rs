//! A server on a machine without git: every response that needs git reports that it is missing, and unknown changes never
//! look like "nothing changed".

use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    shell_agent,
    test_home::{Engine, TestHome},
};

/// A server whose PATH has no git.
fn home() -> TestHome {
    let mut home = TestHome::on_disk(Engine::Sqlite);
    let programs = home.path("bin");
    std::fs::create_dir(&programs).unwrap();
    home.set("PATH", programs.to_str().unwrap());
    home.set("OSTLER_WORKSPACES__GIT_PROTOCOLS", "file");
    home.set("OSTLER_SERVER__DRAIN_MS", "100");
    home
}

#[test]
fn readiness_and_doctor_report_that_git_is_missing() {
    let home = home();
    let server = home.serve();
    let found = Http::new(&server).get("/health/readiness").good()["workspaces"].clone();
    assert_eq!(found["git"], false);
    assert!(found["reason"].as_str().unwrap().contains("install git"), "{found}");
    let checks = home.cli(Some(&server), &["doctor", "-o", "json"]).stdout;
    let checks: Vec<Value> = serde_json::from_slice(&checks).unwrap();
    let git = checks.iter().find(|check| check["name"] == "git").unwrap();
    assert!(git["state"] == "warn" && git["fix"].as_str().unwrap().contains("install git"), "{git}");
    server.stop();
}

#[test]
fn changes_of_a_turn_are_reported_as_unknown() {
    let home = home();
    let server = home.serve();
    shell_agent::set_profile(&home, &server, "echo new >written");
    let (run, result) = shell_agent::turn(&home, &server, "workspace-write", &json!({}));
    assert_eq!(result["terminalStatus"], "completed", "{result}");
    let summary = &result["artifactSummary"];
    assert_eq!((&summary["filesChanged"], &summary["changesUnknown"]), (&json!(0), &json!(true)), "{summary}");
    let diff = Http::new(&server).get(summary["diffPath"].as_str().unwrap()).good();
    assert_eq!(diff["unknown"], true);
    assert!(diff["reason"].as_str().unwrap().contains("install git"), "{diff}");
    let shown = home.cli(Some(&server), &["diff", &run, "--stat"]);
    assert_eq!(String::from_utf8(shown.stdout).unwrap(), "changes unknown\n");
    assert!(String::from_utf8(shown.stderr).unwrap().contains("install git"));
    server.stop();
}

#[test]
fn a_checkout_fails_and_names_git() {
    let home = home();
    let server = home.serve();
    shell_agent::set_profile(&home, &server, "true");
    let workspace = json!({"workspaceRef": {"kind": "git", "repoUrl": "file:///nowhere/project"}});
    let (run, result) = shell_agent::turn(&home, &server, "workspace-write", &workspace);
    assert_eq!((&result["terminalStatus"], &result["failureKind"]), (&json!("failed"), &json!("infra-failed")));
    assert_eq!(result["rule"], "workspace-git-missing", "{result}");
    assert!(result["blocker"].as_str().unwrap().ends_with("install git where the server runs"), "{result}");
    let shown = String::from_utf8(home.cli(Some(&server), &["result", &run]).stdout).unwrap();
    assert!(shown.contains("next:    install git on the server") && !shown.contains("the server's log"), "{shown}");
    server.stop();
    // The operator finds the same reason in the log.
    let log = home.log();
    let line =
        log.lines().find(|line| line.contains("the agent could not be started; its turn fails with this reason"));
    assert!(line.is_some_and(|line| line.contains("install git where the server runs")), "{log}");
}
