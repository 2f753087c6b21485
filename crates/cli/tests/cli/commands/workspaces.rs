//! Workspaces of a real backend: its changes are reported consistently everywhere, and the credential of the checkout appears
//! nowhere.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::json;

use crate::fixtures::{
    backend_server::{BackendServer, CODEX},
    git_server::{GitServer, PASSWORD, USER},
    process::{contains, files},
    test_home::Engine,
};

fn git(directory: &Path, arguments: &[&str], stdin: &[u8]) -> String {
    let mut git = Command::new("git");
    git.args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]).args(arguments);
    git.current_dir(directory).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = git.spawn().unwrap();
    child.stdin.take().unwrap().write_all(stdin).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A project with two files in it.
fn project(directory: &Path) {
    std::fs::create_dir_all(directory).unwrap();
    std::fs::write(directory.join("changed"), "one\ntwo\n").unwrap();
    std::fs::write(directory.join("removed"), "gone\n").unwrap();
}

#[test]
fn changes_of_a_real_backend_are_in_the_result_the_api_and_the_command_line() {
    let place = tempfile::tempdir().unwrap();
    let (theirs, ours) = (place.path().join("theirs"), place.path().join("ours"));
    project(&theirs);
    project(&ours);
    let root = place.path().to_str().unwrap();
    let mut server = BackendServer::open_on(Engine::Sqlite, &CODEX, "process", &[("OSTLER_WORKSPACES__ROOTS", root)]);
    let workspace = json!({"workspaceRef": {"kind": "local", "path": theirs}});
    let (run, turn) = server.submit_with(
        "[[tool:echo three >> changed; rm removed; mkdir new; echo hi > new/file; printf '\\0\\1' > picture]]",
        json!({}),
        workspace,
    );
    let result = server.ended(&run, &turn);
    let summary = &result["artifactSummary"];
    assert_eq!(
        (&summary["filesChanged"], &summary["bytesAdded"], &summary["bytesRemoved"], &summary["truncated"]),
        (&json!(4), &json!(9), &json!(5), &json!(false)),
        "{result}"
    );
    let route = server.http.get(summary["diffPath"].as_str().unwrap()).good();
    let files = route["files"].as_array().unwrap().iter();
    let changes: Vec<_> =
        files.map(|file| (file["path"].as_str().unwrap(), file["change"].as_str().unwrap())).collect();
    assert_eq!(changes, [("changed", "modified"), ("new/file", "added"), ("picture", "added"), ("removed", "deleted")]);

    let stdout = |arguments: &[&str]| {
        let output = server.home.cli(Some(&server.server), arguments);
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    let stat = String::from_utf8(stdout(&["diff", &run, "--stat"])).unwrap();
    assert!(stat.ends_with("4 files changed, 2 lines added, 1 removed\n"), "{stat}");
    let patch = stdout(&["diff", &run]);
    assert_eq!(patch, route["diff"].as_str().unwrap().as_bytes());
    git(&ours, &["apply", "-"], &patch);
    for file in ["changed", "removed", "new/file"] {
        let read = |place: &Path| std::fs::read_to_string(place.join(file)).ok();
        assert_eq!(read(&ours), read(&theirs), "{file}");
    }
    // The next turn changes nothing, and reports that.
    let next = server.command(&run, "turn", "hello");
    assert_eq!(server.ended(&run, &next)["artifactSummary"]["filesChanged"], 0);
    server.close();
}

#[test]
fn a_private_repository_is_fetched_without_exposing_the_credential() {
    let place = tempfile::tempdir().unwrap();
    let repository = place.path().join("private");
    project(&repository);
    git(&repository, &["init", "--quiet", "--initial-branch=main"], b"");
    git(&repository, &["add", "."], b"");
    git(&repository, &["commit", "--quiet", "-m", "one"], b"");
    let forge = GitServer::start(place.path());
    let mut server = BackendServer::open_on(
        Engine::Sqlite,
        &CODEX,
        "process",
        &[("OSTLER_WORKSPACES__GIT_PROTOCOLS", "http"), ("OSTLER_OUTGOING__ALLOW", "127.0.0.1")],
    );
    let host = forge.url.strip_prefix("http://").unwrap();
    let credentials = server.home.data_dir.join("git-credentials");
    std::fs::create_dir(&credentials).unwrap();
    for (name, password) in [("right", PASSWORD), ("wrong", "not-the-password")] {
        std::fs::write(credentials.join(name), format!("username={USER}\npassword={password}\nhost={host}\n")).unwrap();
    }
    let look = "cat changed; git config --list --show-origin; git remote -v; env; cat .git/config .git/FETCH_HEAD";
    let workspace = |credential: &str| {
        let url = format!("{}/private/.git", forge.url);
        json!({"workspaceRef": {"kind": "git", "repoUrl": url, "ref": "main", "credentialRef": credential}})
    };
    let (run, turn) = server.submit_with("hello", json!({}), workspace("wrong"));
    let result = server.ended(&run, &turn);
    assert_eq!(result["failureKind"], "secret-unavailable", "{result}");
    assert_eq!(forge.counts().0, 0);

    let (run, turn) = server.submit_with(&format!("[[tool:{look}]]"), json!({}), workspace("right"));
    let result = server.ended(&run, &turn);
    assert_eq!(result["status"], "completed", "{result}");
    let (accepted, rejected) = forge.counts();
    assert!(accepted >= 2 && rejected >= 1, "the credential is sent only on request: {accepted}, {rejected}");
    assert_eq!(forge.showing(), Vec::<String>::new(), "an argument or an environment held it");
    let events = json!(server.events(&run)).to_string();
    assert!(events.contains("one\\ntwo\\n") && events.contains("PATH="), "the agent has not looked: {events}");
    let all_output = [events, server.home.log(), server.home.everything_stored(), result.to_string()].concat();
    assert!(!all_output.contains(PASSWORD), "the password was printed");
    for path in files(&server.home.data_dir, usize::MAX).into_iter().filter(|path| !path.starts_with(&credentials)) {
        let bytes = std::fs::read(&path).unwrap_or_default();
        assert!(!contains(&bytes, PASSWORD), "it is in {}", path.display());
    }
    server.close();
}
