//! Workspaces of a real agent: what it changes there is told everywhere alike, and what the workspace was fetched with is told
//! nowhere.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::json;

use crate::{
    git_server::{GitServer, PASSWORD, USER},
    home::Engine,
    inn::{CODEX, Inn},
    profiles::{contains, files},
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
fn what_a_real_agent_changed_is_in_its_result_behind_its_route_and_on_the_command_line() {
    let place = tempfile::tempdir().unwrap();
    let (theirs, ours) = (place.path().join("theirs"), place.path().join("ours"));
    project(&theirs);
    project(&ours);
    let root = place.path().to_str().unwrap();
    let mut inn = Inn::open_on(Engine::Sqlite, &CODEX, "process", &[("OSTLER_WORKSPACES__ROOTS", root)]);
    let workspace = json!({"workspaceRef": {"kind": "local", "path": theirs}});
    let (run, turn) = inn.submit_with(
        "[[tool:echo three >> changed; rm removed; mkdir new; echo hi > new/file; printf '\\0\\1' > picture]]",
        json!({}),
        workspace,
    );
    let result = inn.ended(&run, &turn);
    let summary = &result["artifactSummary"];
    assert_eq!(
        (&summary["filesChanged"], &summary["bytesAdded"], &summary["bytesRemoved"], &summary["truncated"]),
        (&json!(4), &json!(9), &json!(5), &json!(false)),
        "{result}"
    );
    let route = inn.http.get(summary["diffPath"].as_str().unwrap()).good();
    let files = route["files"].as_array().unwrap().iter();
    let changes: Vec<_> =
        files.map(|file| (file["path"].as_str().unwrap(), file["change"].as_str().unwrap())).collect();
    assert_eq!(changes, [("changed", "modified"), ("new/file", "added"), ("picture", "added"), ("removed", "deleted")]);

    let said = |arguments: &[&str]| {
        let output = inn.home.cli(Some(&inn.server), arguments);
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    let stat = String::from_utf8(said(&["diff", &run, "--stat"])).unwrap();
    assert!(stat.ends_with("4 files changed, 9 bytes added, 5 removed\n"), "{stat}");
    let patch = said(&["diff", &run]);
    assert_eq!(patch, route["diff"].as_str().unwrap().as_bytes());
    git(&ours, &["apply", "-"], &patch);
    for file in ["changed", "removed", "new/file"] {
        let read = |place: &Path| std::fs::read_to_string(place.join(file)).ok();
        assert_eq!(read(&ours), read(&theirs), "{file}");
    }
    // The next turn has changed nothing, and says so.
    let next = inn.command(&run, "turn", "hello");
    assert_eq!(inn.ended(&run, &next)["artifactSummary"]["filesChanged"], 0);
    inn.close();
}

#[test]
fn a_private_repository_is_fetched_with_a_credential_that_nobody_else_sees() {
    let place = tempfile::tempdir().unwrap();
    let repository = place.path().join("private");
    project(&repository);
    git(&repository, &["init", "--quiet", "--initial-branch=main"], b"");
    git(&repository, &["add", "."], b"");
    git(&repository, &["commit", "--quiet", "-m", "one"], b"");
    let forge = GitServer::start(place.path());
    let mut inn = Inn::open_on(
        Engine::Sqlite,
        &CODEX,
        "process",
        &[("OSTLER_WORKSPACES__GIT_PROTOCOLS", "http"), ("OSTLER_OUTGOING__ALLOW", "127.0.0.1")],
    );
    let host = forge.url.strip_prefix("http://").unwrap();
    let credentials = inn.home.data_dir.join("git-credentials");
    std::fs::create_dir(&credentials).unwrap();
    for (name, password) in [("right", PASSWORD), ("wrong", "not-the-password")] {
        std::fs::write(credentials.join(name), format!("username={USER}\npassword={password}\nhost={host}\n")).unwrap();
    }
    let look = "cat changed; git config --list --show-origin; git remote -v; env; cat .git/config .git/FETCH_HEAD";
    let workspace = |credential: &str| {
        let url = format!("{}/private/.git", forge.url);
        json!({"workspaceRef": {"kind": "git", "repoUrl": url, "ref": "main", "credentialRef": credential}})
    };
    let (run, turn) = inn.submit_with("hello", json!({}), workspace("wrong"));
    let result = inn.ended(&run, &turn);
    assert_eq!(result["failureKind"], "secret-unavailable", "{result}");
    assert_eq!(forge.counts().0, 0);

    let (run, turn) = inn.submit_with(&format!("[[tool:{look}]]"), json!({}), workspace("right"));
    let result = inn.ended(&run, &turn);
    assert_eq!(result["status"], "completed", "{result}");
    let (let_in, turned_away) = forge.counts();
    assert!(let_in >= 2 && turned_away >= 1, "it is only said when it is asked for: {let_in}, {turned_away}");
    assert_eq!(forge.showing(), Vec::<String>::new(), "an argument or an environment held it");
    let events = json!(inn.events(&run)).to_string();
    assert!(events.contains("one\\ntwo\\n") && events.contains("PATH="), "the agent has not looked: {events}");
    let told = [events, inn.home.log(), inn.home.everything_stored(), result.to_string()].concat();
    assert!(!told.contains(PASSWORD), "it was told");
    for path in files(&inn.home.data_dir, usize::MAX).into_iter().filter(|path| !path.starts_with(&credentials)) {
        let bytes = std::fs::read(&path).unwrap_or_default();
        assert!(!contains(&bytes, PASSWORD), "it is in {}", path.display());
    }
    inn.close();
}
