//! Resource bundles: files of a repository that an agent finds in its workspace, with runners in processes of their own.

use std::{path::Path, process::Command};

use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    shell_agent,
    test_home::{Engine, TestHome, both_engines},
};

/// Commits a file, and returns the commit.
pub(crate) fn commit(repository: &Path, file: &str, text: &str) -> String {
    let git = |arguments: &[&str]| {
        let author = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
        let output = Command::new("git").args(author).args(arguments).current_dir(repository).output().unwrap();
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let path = repository.join(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
    if !repository.join(".git").exists() {
        git(&["init", "--quiet", "--initial-branch=main"]);
    }
    git(&["add", "--all"]);
    git(&["commit", "--quiet", "-m", "one"]);
    git(&["rev-parse", "HEAD"])
}

/// The field of a run that places `skills` of the repository.
pub(crate) fn bundle(repository: &Path) -> Value {
    let url = format!("file://{}", repository.display());
    json!({"resourceBundleRef": {"kind": "gitbundle", "repoUrl": url, "ref": "main",
        "bundles": [{"subpath": "skills", "targetPath": ".agents/skills"}]}})
}

#[both_engines]
fn an_agent_in_a_process_finds_the_files_of_the_bundle(engine: Engine) {
    let mut home = TestHome::on_disk(engine);
    home.set("OSTLER_RUNNER__LAUNCHER", "process");
    home.set("OSTLER_WORKSPACES__GIT_PROTOCOLS", "file");
    let repository = home.path("repository");
    let commit_id = commit(&repository, "skills/word", "hello from the bundle");
    let server = home.serve();
    shell_agent::set_profile(&home, &server, "reply=$(cat .agents/skills/word)");
    let (run, result) = shell_agent::turn(&home, &server, "workspace-write", &bundle(&repository));
    assert_eq!((&result["terminalStatus"], &result["reply"]), (&json!("completed"), &json!("hello from the bundle")));
    let mut http = Http::new(&server);
    let events = http.events(&run);
    let ready = events.iter().find(|event| event["payload"]["phase"] == "resource-bundle-ready").unwrap();
    assert_eq!(ready["payload"]["commitId"], json!(commit_id));
    // The files are not counted as changes of the agent.
    assert_eq!(result["artifactSummary"]["filesChanged"], 0, "{result}");
    server.stop();
}

#[both_engines]
fn an_agent_does_not_start_without_its_bundle(engine: Engine) {
    let mut home = TestHome::on_disk(engine);
    home.set("OSTLER_RUNNER__LAUNCHER", "process");
    home.set("OSTLER_WORKSPACES__GIT_PROTOCOLS", "file");
    let repository = home.path("repository");
    commit(&repository, "other", "text");
    let server = home.serve();
    let trace = home.path("started");
    shell_agent::set_profile(&home, &server, &format!("touch {}", trace.display()));
    let (_, result) = shell_agent::turn(&home, &server, "workspace-write", &bundle(&repository));
    assert_eq!((&result["terminalStatus"], &result["failureKind"]), (&json!("failed"), &json!("not-found")));
    assert!(result["blocker"].as_str().unwrap().contains("\"skills\""), "{result}");
    assert!(!trace.exists());
    server.stop();
}
