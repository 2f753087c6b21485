//! Workspaces: only below allowed roots, only by allowed protocols, checked out at the commit that was named, and cleared
//! away afterwards. The agent's program is nowhere: what is made ready for it is what is looked at.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use ostler_protocol::FailureKind::*;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::harness::{Answer, Engine, Setup, TestServer, both_engines, eventually, id, of_program, run_body};

fn with_programs(setup: &mut Setup) {
    setup.config.runner.slots = 4;
    setup.config.agents.codex = Some("/nowhere/codex".into());
    setup.config.workspaces.git_protocols = vec!["file".into()];
}

async fn try_create(server: &TestServer, workspace: Value) -> Answer {
    let mut body = run_body();
    body["workspaceRef"] = workspace;
    server.post("/api/v1/runs", &body).await
}

/// A run of a program in this workspace, to the end of its turn. Its id and its result.
async fn run_in(server: &TestServer, workspace: Value) -> (String, Value) {
    let change = |body: &mut Value| {
        of_program(body);
        body["workspaceRef"] = workspace;
    };
    server.equip().await;
    let (run_id, command_id) = server.start_with("hi", change).await;
    let result = server.ended(&run_id, &command_id).await;
    (run_id, result)
}

fn own(server: &TestServer, run_id: &str) -> PathBuf {
    server.config.server.data_dir.as_ref().unwrap().join("workspaces").join(run_id)
}

/// Where a run's agent works: a place of the run's own, or of its session's.
async fn place_of(server: &TestServer, run_id: &str) -> PathBuf {
    let session_id = id(&server.run(run_id).await, "sessionId");
    [own(server, run_id), own(server, &session_id)].into_iter().find(|place| place.exists()).unwrap()
}

#[both_engines]
async fn runs_without_a_workspace_work_where_their_session_did(engine: Engine) {
    let server = TestServer::with(engine, with_programs).await;
    server.equip().await;
    let mut places = vec![];
    for key in ["k-1234567890", "k-2345678901"] {
        let change = |body: &mut Value| {
            of_program(body);
            body["sessionRef"] = json!({"sessionId": "one"});
        };
        let (run_id, command_id) = server.start_with("hi", change).await;
        server.ended(&run_id, &command_id).await;
        let all = own(&server, "");
        places.push(std::fs::read_dir(all).unwrap().flatten().map(|entry| entry.path()).collect::<Vec<_>>());
        // Its runner is let go, as it would be after a while, so that the session takes another run.
        server
            .call("PUT", "/api/v1/provider-profiles/codex/credential", &json!({"apiKey": key}))
            .await
            .with_status(200);
    }
    assert_eq!((places[0].len(), &places[0]), (1, &places[1]), "an agent finds again what it filed by its directory");
}

fn git(directory: &Path, arguments: &[&str]) -> String {
    let author = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
    let output =
        std::process::Command::new("git").args(author).args(arguments).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A repository with two commits. Its address and their ids.
fn repository(place: &Path) -> (String, String, String) {
    git(place, &["init", "--quiet", "--initial-branch=main"]);
    let mut commits = ["one", "two"].iter().map(|text| {
        std::fs::write(place.join("file"), text).unwrap();
        git(place, &["add", "."]);
        git(place, &["commit", "--quiet", "-m", text]);
        git(place, &["rev-parse", "HEAD"])
    });
    let (first, second) = (commits.next().unwrap(), commits.next().unwrap());
    (format!("file://{}", place.display()), first, second)
}

#[both_engines]
async fn no_directory_of_the_machine_is_a_workspace_by_default(engine: Engine) {
    let server = TestServer::start(engine).await;
    let place = tempfile::tempdir().unwrap();
    for path in [place.path().to_str().unwrap(), "/", "/nowhere/at/all"] {
        let refused = try_create(&server, json!({"kind": "local", "path": path})).await;
        refused.refused_by(TenantPolicyDenied, "workspace-root");
    }
}

#[both_engines]
async fn a_local_workspace_is_below_an_allowed_root_links_included(engine: Engine) {
    let place = tempfile::tempdir().unwrap();
    let (root, outside) = (place.path().join("root"), place.path().join("outside"));
    for folder in [&root.join("project"), &outside] {
        std::fs::create_dir_all(folder).unwrap();
    }
    std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
    std::os::unix::fs::symlink(root.join("project"), place.path().join("way-in")).unwrap();
    let server = TestServer::with(engine, |setup| {
        with_programs(setup);
        setup.config.workspaces.roots = vec![root.to_str().unwrap().to_owned()];
    })
    .await;
    let local = |path: &Path| json!({"kind": "local", "path": path});
    for path in [&root.join("project"), &place.path().join("way-in"), &root] {
        try_create(&server, local(path)).await.with_status(201);
    }
    for path in [&root.join("link"), &root.join("../outside"), &outside, &root.join("absent")] {
        try_create(&server, local(path)).await.refused_by(TenantPolicyDenied, "workspace-root");
    }
    // It is asked again when a runner starts.
    let inner = root.join("inner");
    std::fs::create_dir(&inner).unwrap();
    let mut body = run_body();
    of_program(&mut body);
    body["workspaceRef"] = local(&inner);
    server.equip().await;
    let run_id = id(&server.post("/api/v1/runs", &body).await.with_status(201), "runId");
    std::fs::remove_dir(&inner).unwrap();
    std::os::unix::fs::symlink(&outside, &inner).unwrap();
    let turn = server.turn(&run_id, "hi").await;
    server.create_job(&run_id, &json!({"commandId": turn})).await.with_status(201);
    assert_eq!(server.ended(&run_id, &turn).await["failureKind"], "tenant-policy-denied");
}

#[both_engines]
async fn only_allowed_protocols_and_known_credentials_are_taken(engine: Engine) {
    let server = TestServer::start(engine).await;
    let at = |url: &str| json!({"kind": "git", "repoUrl": url});
    try_create(&server, at("https://git.example/a.git")).await.with_status(201);
    for url in ["file:///etc", "ssh://git@git.example/a", "http://git.example/a"] {
        try_create(&server, at(url)).await.refused_by(TenantPolicyDenied, "workspace-git-protocol");
    }
    try_create(&server, at("ext::sh -c id")).await.refused_by(SchemaInvalid, "workspace-git-url");
    let mut named = at("https://git.example/a.git");
    named["credentialRef"] = json!("github");
    try_create(&server, named.clone()).await.refused_by(SecretUnavailable, "workspace-git-credential");
    let folder = server.config.server.data_dir.as_ref().unwrap().join("git-credentials");
    std::fs::create_dir(&folder).unwrap();
    let write = |more: &str| {
        let text = format!("username=me\npassword=planted-git-password\n{more}");
        std::fs::write(folder.join("github"), text).unwrap();
    };
    // It goes only to a server that it names, for a tenant that may use it: the URL is the caller's to choose.
    for not_for_it in ["", "host=evil.example\n", "host=git.example:8443\n", "host=git.example\ntenant=unidesk\n"] {
        write(not_for_it);
        try_create(&server, named.clone()).await.refused_by(SecretUnavailable, "workspace-git-credential");
    }
    for for_it in ["host=git.example\n", "host=a.example\nhost=Git.Example\n", "host=git.example\ntenant=hwlab\n"] {
        write(for_it);
        let created = try_create(&server, named.clone()).await.with_status(201);
        assert!(!created.to_string().contains("planted"));
    }
}

#[both_engines]
async fn a_run_without_a_workspace_gets_an_empty_directory(engine: Engine) {
    let server = TestServer::with(engine, with_programs).await;
    let (run_id, _) = run_in(&server, json!({"kind": "none"})).await;
    assert_eq!(std::fs::read_dir(place_of(&server, &run_id).await.join("work")).unwrap().count(), 0);
    let (run_id, command_id) = server.start("hi").await;
    server.ended(&run_id, &command_id).await;
    assert!(!own(&server, &run_id).exists(), "an agent inside its runner needs none");
}

#[both_engines]
async fn a_repository_is_checked_out_at_its_commit_and_shares_nothing(engine: Engine) {
    let server = TestServer::with(engine, with_programs).await;
    let place = tempfile::tempdir().unwrap();
    let (url, first, second) = repository(place.path());
    // A hook of the repository's own, and one that a clone might bring along, would leave a trace.
    for (want, text, commit) in [
        (json!({}), "two", &second),
        (json!({"commitId": first}), "one", &first),
        (json!({"ref": "main"}), "two", &second),
    ] {
        let mut workspace = json!({"kind": "git", "repoUrl": url});
        workspace.as_object_mut().unwrap().extend(want.as_object().unwrap().clone());
        let (run_id, result) = run_in(&server, workspace).await;
        let work = own(&server, &run_id).join("work");
        assert_eq!(std::fs::read_to_string(work.join("file")).unwrap(), text, "{result}");
        assert_eq!(&git(&work, &["rev-parse", "HEAD"]), commit);
        assert_eq!(git(&work, &["remote"]), "");
        assert!(!work.join(".git/objects/info/alternates").exists());
    }
    let cache = server.config.server.data_dir.as_ref().unwrap().join("git");
    let caches: Vec<_> = std::fs::read_dir(&cache).unwrap().flatten().collect();
    assert_eq!(caches.len(), 1, "the same repository is fetched into the same place");
    assert_eq!(git(&caches[0].path(), &["for-each-ref"]), "", "and keeps no name of a run that has its checkout");
}

#[both_engines]
async fn a_commit_that_is_not_there_ends_the_turn_with_a_reason(engine: Engine) {
    let server = TestServer::with(engine, with_programs).await;
    let place = tempfile::tempdir().unwrap();
    let (url, ..) = repository(place.path());
    for want in [json!({"commitId": "0123456789012345678901234567890123456789"}), json!({"ref": "absent"})] {
        let mut workspace = json!({"kind": "git", "repoUrl": url});
        workspace.as_object_mut().unwrap().extend(want.as_object().unwrap().clone());
        let (_, result) = run_in(&server, workspace).await;
        assert_eq!((&result["status"], &result["failureKind"]), (&json!("failed"), &json!("not-found")), "{want}");
        assert!(result["blocker"].as_str().unwrap().contains("no such commit"), "{}", result["blocker"]);
    }
}

#[both_engines]
async fn what_was_made_for_a_run_goes_with_it(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        with_programs(setup);
        setup.config.sessions.gc_interval_ms = 10;
        // A lease that is found run out is a use of its run, which would be kept for another day.
        setup.config.runner.sweep_interval_ms = 3_600_000;
    })
    .await;
    let place = tempfile::tempdir().unwrap();
    let (url, ..) = repository(place.path());
    let workspace = json!({"kind": "git", "repoUrl": url});
    let (ended, _) = run_in(&server, workspace.clone()).await;
    let (idle, _) = run_in(&server, workspace).await;
    let (first, second) = (place_of(&server, &ended).await, place_of(&server, &idle).await);
    server.cancel_run(&ended).await;
    eventually("it is cleared", async || (!first.exists()).then_some(())).await;
    assert!(second.exists());
    server.clock.advance_ms(server.config.workspaces.keep_ms);
    eventually("so is one that nobody uses", async || (!second.exists()).then_some(())).await;
}

#[both_engines]
async fn what_was_made_for_a_session_goes_with_its_storage(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        with_programs(setup);
        setup.config.sessions.gc_interval_ms = 10;
    })
    .await;
    let place = tempfile::tempdir().unwrap();
    let (url, ..) = repository(place.path());
    let (run_id, _) = run_in(&server, json!({"kind": "none"})).await;
    let session_id = id(&server.run(&run_id).await, "sessionId");
    let own = place_of(&server, &run_id).await;
    server.cancel_run(&run_id).await;
    server.clock.advance_ms(2 * server.config.workspaces.keep_ms);
    // A sweep has been there: it cleared what was made after it.
    let (other, _) = run_in(&server, json!({"kind": "git", "repoUrl": url})).await;
    let checkout = place_of(&server, &other).await;
    server.cancel_run(&other).await;
    eventually("a sweep comes by", async || (!checkout.exists()).then_some(())).await;
    assert!(own.exists(), "later runs of the session work there too");
    let storage = format!("/api/v1/sessions/{session_id}/storage");
    server.send(server.request("DELETE", &storage)).await.with_status(200);
    eventually("it goes with the storage", async || (!own.exists()).then_some(())).await;
}

#[both_engines]
async fn what_a_turn_changed_is_in_its_result_and_behind_its_route(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let (turn, next) = (server.turn(&run_id, "hi").await, server.turn(&run_id, "again").await);
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&turn).await;
    let diff = |turn: &str| format!("/api/v1/runs/{run_id}/commands/{turn}/diff");
    let secret = "sk-abcdefghijklmnop0123456789";
    let told = json!({"phase": "workspace-changed", "filesChanged": 2, "bytesAdded": 40, "bytesRemoved": 1, "truncated": true,
        "files": [{"path": "a", "change": "added", "bytesAdded": 40}], "diff": format!("+key {secret}\n")});
    runner.tell(&turn, "backend_status", told).await;
    let found = server.get(&diff(&turn)).await.with_status(200);
    assert_eq!((&found["filesChanged"], &found["files"][0]["path"]), (&json!(2), &json!("a")));
    assert_eq!(found["diff"], "+key [redacted]\n");
    let summary = &server.result(&run_id, &turn).await["artifactSummary"];
    assert_eq!(
        (&summary["filesChanged"], &summary["bytesAdded"], &summary["bytesRemoved"]),
        (&json!(2), &json!(40), &json!(1))
    );
    assert_eq!((&summary["diffPath"], &summary["truncated"]), (&json!(diff(&turn)), &json!(true)));
    // The next turn has changed nothing.
    let nothing = server.get(&diff(&next)).await.with_status(200);
    assert_eq!((&nothing["filesChanged"], &nothing["diff"]), (&json!(0), &json!("")));
    assert_eq!(server.result(&run_id, &next).await["artifactSummary"]["diffPath"], Value::Null);
    server.get(&diff("cmd_unknown")).await.refused(NotFound);
    server.get(&format!("/api/v1/runs/{}/commands/{turn}/diff", server.create_run().await)).await.refused(NotFound);
}

/// Listens on this machine, counts connections, and answers each request with this head.
async fn listening(answer: String) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, count) = (listener.local_addr().unwrap().port(), Arc::<AtomicUsize>::default());
    let counted = count.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (port, count)
}

/// How a run ends whose repository is here.
async fn fetched_from(server: &TestServer, url: &str) -> (Value, Value) {
    let (_, result) = run_in(server, json!({"kind": "git", "repoUrl": url})).await;
    (result["failureKind"].clone(), result["blocker"].clone())
}

const COULD_NOT: &str = "the repository could not be fetched; check repoUrl, and credentialRef if it is private";

#[both_engines]
async fn a_repository_that_is_not_public_is_not_connected_to(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        with_programs(setup);
        setup.config.workspaces.git_protocols = ["http", "https", "git", "ssh"].map(String::from).to_vec();
        // A name alone does not lead to this machine.
        setup.config.outgoing.allow = vec!["localhost".into(), "10.255.255.0/24".into()];
    })
    .await;
    let (port, reached) = listening("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".into()).await;
    for url in [
        format!("http://127.0.0.1:{port}/a.git"),
        format!("http://localhost:{port}/a.git"),
        format!("https://localhost:{port}/a.git"),
        format!("http://[::ffff:127.0.0.1]:{port}/a.git"),
        format!("git://127.0.0.1:{port}/a.git"),
        format!("ssh://git@127.0.0.1:{port}/a.git"),
        "http://169.254.169.254/latest/meta-data".to_owned(),
    ] {
        assert_eq!(fetched_from(&server, &url).await, (json!("infra-failed"), json!(COULD_NOT)), "{url}");
    }
    assert_eq!(reached.load(Ordering::SeqCst), 0);
}

#[both_engines]
async fn every_failed_connection_ends_with_the_same_words(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        with_programs(setup);
        setup.config.workspaces.git_protocols = vec!["http".into()];
        setup.config.outgoing.allow = vec!["127.0.0.0/8".into(), "::1".into()];
    })
    .await;
    let (elsewhere, followed) = listening("HTTP/1.1 404 Not Found\r\n\r\n".into()).await;
    let head = |status: &str| format!("HTTP/1.1 {status}\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>");
    let redirect = format!("302 Found\r\nLocation: http://127.0.0.1:{elsewhere}/a.git/info/refs");
    let wanted = "401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"x\"";
    let mut urls = vec!["http://127.0.0.1:1/a.git".to_owned(), "http://nowhere.invalid/a.git".to_owned()];
    for answer in ["404 Not Found", "500 Broken", &redirect, wanted, "200 OK"] {
        let (port, reached) = listening(head(answer)).await;
        urls.push(format!("http://localhost:{port}/a.git"));
        assert_eq!(fetched_from(&server, urls.last().unwrap()).await.1, json!(COULD_NOT), "{answer}");
        assert!(reached.load(Ordering::SeqCst) > 0, "{answer}: what the operator allows is connected to");
    }
    let (port, _) = listening("not HTTP at all".into()).await;
    urls.push(format!("http://127.0.0.1:{port}/a.git"));
    for url in urls {
        assert_eq!(fetched_from(&server, &url).await, (json!("infra-failed"), json!(COULD_NOT)), "{url}");
    }
    assert_eq!(followed.load(Ordering::SeqCst), 0, "a redirect is not followed");
}

#[both_engines]
async fn a_turn_waits_for_its_workspace_as_pending_and_is_cancelled_at_once(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        with_programs(setup);
        setup.config.workspaces.git_protocols = vec!["http".into()];
        setup.config.workspaces.git_timeout_ms = 3_000;
        setup.config.outgoing.allow = vec!["127.0.0.0/8".into()];
    })
    .await;
    server.equip().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/a.git", listener.local_addr().unwrap());
    let change = |body: &mut Value| {
        of_program(body);
        body["workspaceRef"] = json!({"kind": "git", "repoUrl": url});
    };
    let (run_id, command_id) = server.start_with("hi", change).await;
    // The checkout waits for an answer while this connection is open.
    let _connection = listener.accept().await.unwrap();
    let job = server.get(&format!("/api/v1/runs/{run_id}/runner-jobs")).await.ok()["runnerJobs"][0].clone();
    assert_eq!(job["phase"], "running");
    assert_eq!(server.command(&run_id, &command_id).await["state"], "pending");
    assert_eq!(server.cancel_command(&command_id).await["state"], "cancelled");
}

/// Neither a submodule nor a file of the large-file extension is fetched, whatever the repository declares.
#[both_engines]
async fn a_checkout_connects_nowhere(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        with_programs(setup);
        setup.config.outgoing.allow = vec!["127.0.0.0/8".into()];
    })
    .await;
    let (port, reached) = listening("HTTP/1.1 200 OK\r\n\r\n".into()).await;
    let place = tempfile::tempdir().unwrap();
    let (url, _, second) = repository(place.path());
    let inner = format!("[submodule \"x\"]\n\tpath = x\n\turl = http://127.0.0.1:{port}/x.git\n\tupdate = !id\n");
    std::fs::write(place.path().join(".gitmodules"), inner).unwrap();
    std::fs::write(place.path().join(".gitattributes"), "*.big filter=lfs diff=lfs merge=lfs -text\n").unwrap();
    std::fs::write(place.path().join(".lfsconfig"), format!("[lfs]\n\turl = http://127.0.0.1:{port}/lfs\n")).unwrap();
    let pointer = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 5\n", "a".repeat(64));
    std::fs::write(place.path().join("file.big"), &pointer).unwrap();
    git(place.path(), &["add", "."]);
    git(place.path(), &["update-index", "--add", "--cacheinfo", &format!("160000,{second},x")]);
    git(place.path(), &["commit", "--quiet", "-m", "more"]);
    let (run_id, result) = run_in(&server, json!({"kind": "git", "repoUrl": url})).await;
    let work = own(&server, &run_id).join("work");
    assert_eq!(std::fs::read_to_string(work.join("file.big")).unwrap(), pointer, "{result}");
    assert_eq!(reached.load(Ordering::SeqCst), 0);
}
