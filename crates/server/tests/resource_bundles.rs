//! Resource bundles: parts of a repository in the workspace, from one commit for all runners of a run. The agent's program is
//! nowhere: what is placed for it is what is looked at.

use std::path::{Path, PathBuf};

use ostler_protocol::FailureKind::*;
use serde_json::{Value, json};

use crate::harness::{Engine, Setup, TestServer, both_engines, eventually, id, of_program, run_body};

fn with_programs(setup: &mut Setup) {
    setup.config.runner.slots = 4;
    setup.config.agents.codex = Some("/nowhere/codex".into());
    setup.config.workspaces.git_protocols = vec!["file".into()];
}

fn git(directory: &Path, arguments: &[&str]) -> String {
    let author = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
    let output =
        std::process::Command::new("git").args(author).args(arguments).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Commits `skills/word` with this text, and returns the commit.
fn commit(place: &Path, text: &str) -> String {
    if !place.join(".git").exists() {
        git(place, &["init", "--quiet", "--initial-branch=main"]);
    }
    std::fs::create_dir_all(place.join("skills")).unwrap();
    std::fs::write(place.join("skills/word"), text).unwrap();
    git(place, &["add", "."]);
    git(place, &["commit", "--quiet", "-m", text]);
    git(place, &["rev-parse", "HEAD"])
}

fn bundle(place: &Path, more: &Value) -> Value {
    let mut bundle = json!({"kind": "gitbundle", "repoUrl": format!("file://{}", place.display()),
        "bundles": [{"subpath": "skills", "targetPath": "skills"}]});
    bundle.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    bundle
}

/// Runs a turn of a program with this bundle to its end. Its run and its result.
async fn run_with(server: &TestServer, bundle: &Value) -> (String, Value) {
    run_in(server, &json!({"kind": "none"}), bundle).await
}

async fn run_in(server: &TestServer, workspace: &Value, bundle: &Value) -> (String, Value) {
    server.equip().await;
    let change = |body: &mut Value| {
        of_program(body);
        (body["workspaceRef"], body["resourceBundleRef"]) = (workspace.clone(), bundle.clone());
    };
    let (run_id, command_id) = server.start_with("hi", change).await;
    let result = server.ended(&run_id, &command_id).await;
    (run_id, result)
}

async fn place_of(server: &TestServer, run_id: &str) -> PathBuf {
    let session_id = id(&server.run(run_id).await, "sessionId");
    server.config.server.data_dir.as_ref().unwrap().join("workspaces").join(session_id).join("work")
}

/// The commits of the facts that the runners of a run have recorded.
async fn recorded(server: &TestServer, run_id: &str) -> Vec<Value> {
    let events = server.events_of(run_id, "backend_status").await;
    let ready = events.iter().filter(|event| event["payload"]["phase"] == "resource-bundle-ready");
    ready.map(|event| event["payload"]["commitId"].clone()).collect()
}

#[both_engines]
async fn a_branch_is_resolved_once_for_all_runners_of_a_run(engine: Engine) {
    let server = TestServer::with(engine, with_programs).await;
    let place = tempfile::tempdir().unwrap();
    let first = commit(place.path(), "one");
    let wanted = bundle(place.path(), &json!({"ref": "main"}));
    let (run_id, _) = run_with(&server, &wanted).await;
    let word = place_of(&server, &run_id).await.join("skills/word");
    assert_eq!(std::fs::read_to_string(&word).unwrap(), "one");
    assert_eq!(recorded(&server, &run_id).await, [json!(first)]);
    assert_eq!(server.run(&run_id).await["resourceBundleRef"], wanted, "the run shows what it was created with");
    assert_eq!(server.store("SELECT commit_id FROM bundle_commits").await, std::slice::from_ref(&first));
    // The branch moves on, and the workspace is lost, as that of a pod is.
    let second = commit(place.path(), "two");
    eventually("the first runner has left", async || {
        let jobs = server.get(&format!("/api/v1/runs/{run_id}/runner-jobs")).await.ok();
        (jobs["runnerJobs"][0]["phase"] == "succeeded").then_some(())
    })
    .await;
    std::fs::remove_dir_all(place_of(&server, &run_id).await.parent().unwrap()).unwrap();
    let turn = server.turn(&run_id, "again").await;
    server.ended(&run_id, &turn).await;
    assert_eq!(recorded(&server, &run_id).await, [json!(first), json!(first)]);
    assert_eq!(std::fs::read_to_string(&word).unwrap(), "one");
    // Another run takes the current commit, or the one that it names.
    let (other, _) = run_with(&server, &wanted).await;
    assert_eq!(recorded(&server, &other).await, [json!(second)]);
    let (pinned, _) = run_with(&server, &bundle(place.path(), &json!({"commitId": first}))).await;
    assert_eq!(recorded(&server, &pinned).await, [json!(first)]);
}

#[both_engines]
async fn runs_in_one_directory_of_the_machine_use_the_bundle_that_an_earlier_one_has_placed(engine: Engine) {
    let (place, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = TestServer::with(engine, |setup| {
        with_programs(setup);
        setup.config.workspaces.roots = vec![root.path().display().to_string()];
    })
    .await;
    let commit = commit(place.path(), "one");
    let (workspace, wanted) = (json!({"kind": "local", "path": root.path()}), bundle(place.path(), &json!({})));
    let word = root.path().join("skills/word");
    for _ in 0..2 {
        let (run_id, _) = run_in(&server, &workspace, &wanted).await;
        assert_eq!(recorded(&server, &run_id).await, [json!(commit)]);
        assert_eq!(std::fs::read_to_string(&word).unwrap(), "one");
    }
}

/// The repository's host accepts connections and sends nothing, so that fetching takes until its time limit.
#[both_engines]
async fn a_run_that_is_cancelled_while_its_bundle_is_fetched_ends_at_once(engine: Engine) {
    let host = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = TestServer::with(engine, |setup| {
        with_programs(setup);
        setup.config.workspaces.git_protocols = vec!["http".into()];
        setup.config.outgoing.allow = vec!["127.0.0.1".into()];
        // A runner renews its lease three times as often.
        setup.config.runner.lease_ms = 1_500;
    })
    .await;
    server.equip().await;
    let url = format!("http://{}/a.git", host.local_addr().unwrap());
    let wanted = json!({"kind": "gitbundle", "repoUrl": url, "commitId": "0".repeat(40),
        "bundles": [{"subpath": "skills", "targetPath": "skills"}]});
    let change = |body: &mut Value| {
        of_program(body);
        body["resourceBundleRef"] = wanted;
    };
    let (run_id, command_id) = server.start_with("hi", change).await;
    eventually("the runner has claimed the run", async || {
        (!server.events_of(&run_id, "lease").await.is_empty()).then_some(())
    })
    .await;
    server.cancel_run(&run_id).await;
    assert_eq!(server.ended(&run_id, &command_id).await["status"], "cancelled");
}

#[both_engines]
async fn a_bundle_that_cannot_be_placed_ends_the_turn_with_a_reason(engine: Engine) {
    let server = TestServer::with(engine, with_programs).await;
    let place = tempfile::tempdir().unwrap();
    commit(place.path(), "one");
    let absent = json!([{"subpath": "absent", "targetPath": "x"}]);
    for (more, kind, words) in [
        (json!({"bundles": absent}), "not-found", "\"absent\""),
        (json!({"ref": "absent"}), "not-found", "no such commit"),
        (json!({"commitId": "0".repeat(40)}), "not-found", "no such commit"),
    ] {
        let (run_id, result) = run_with(&server, &bundle(place.path(), &more)).await;
        assert_eq!((&result["status"], &result["failureKind"]), (&json!("failed"), &json!(kind)), "{more}");
        assert!(result["blocker"].as_str().unwrap().contains(words), "{}", result["blocker"]);
        assert_eq!(recorded(&server, &run_id).await, [] as [Value; 0]);
    }
}

#[both_engines]
async fn a_bundle_that_this_server_does_not_fetch_is_refused_when_the_run_is_created(engine: Engine) {
    let server = TestServer::start(engine).await;
    server.equip().await;
    let create = async |bundle: Value, profile: &str| {
        let mut body = run_body();
        of_program(&mut body);
        body["backendProfile"] = profile.into();
        body["resourceBundleRef"] = bundle;
        if profile == "scripted" {
            body["executionPolicy"] = json!({});
        }
        server.post("/api/v1/runs", &body).await
    };
    let with = |field: &str, value: Value| {
        let mut bundle = json!({"kind": "gitbundle", "repoUrl": "https://git.example/a.git",
            "bundles": [{"subpath": "a", "targetPath": "b"}]});
        bundle[field] = value;
        bundle
    };
    create(with("ref", json!("main")), "codex").await.with_status(201);
    for (field, value, kind, rule) in [
        ("repoUrl", json!("file:///etc"), TenantPolicyDenied, "workspace-git-protocol"),
        ("credentialRef", json!("forge"), SecretUnavailable, "workspace-git-credential"),
        ("promptRefs", json!(["a"]), SchemaInvalid, "resource-bundle-prompts"),
        ("kind", json!("zip"), SchemaInvalid, "resource-bundle-shape"),
        ("bundles", json!([{"subpath": "a", "targetPath": "../b"}]), SchemaInvalid, "resource-bundle-path"),
    ] {
        create(with(field, value), "codex").await.refused_by(kind, rule);
    }
    let scripted = create(with("ref", json!("main")), "scripted").await;
    scripted.refused_by(SchemaInvalid, "resource-bundle-profile");
    let large = with("ref", json!("x".repeat(16 * 1024)));
    create(large, "codex").await.refused_by(PayloadTooLarge, "resource-bundle-ref-size");
}
