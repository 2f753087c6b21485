//! A backup as `docs/operating.md` describes it: made while the server writes, restored, verified and served.

use std::{fs, os::unix::fs::PermissionsExt, thread};

use serde_json::json;

use crate::fixtures::{
    attachments,
    http::Http,
    process::eventually,
    runner::Writer,
    shell_agent,
    test_home::{Engine, TestHome},
};

#[test]
fn a_copy_made_while_the_server_writes_is_consistent() {
    let home = TestHome::on_disk(Engine::Sqlite).without_runner();
    let server = home.serve();
    let mut http = Http::new(&server);
    let mut writer = Writer::new(&mut http, "runner-a");
    let run_id = writer.run_id.clone();
    let restored = TestHome::on_disk(Engine::Sqlite).without_runner();
    fs::create_dir(&restored.data_dir).unwrap();
    fs::set_permissions(&restored.data_dir, PermissionsExt::from_mode(0o700)).unwrap();
    let copy = restored.data_dir.join("ostler.db");
    thread::scope(|scope| {
        let mut own = Http::new(&server);
        scope.spawn(move || writer.write_until_cut_off(&mut own));
        eventually("there is something to copy", || (http.events(&run_id).len() > 100).then_some(()));
        home.execute(&format!("VACUUM INTO '{}'", copy.display()));
        for file in ["token", "signing-key"] {
            fs::copy(home.data_dir.join(file), restored.data_dir.join(file)).unwrap();
        }
        server.kill();
    });
    restored.assert_verified();
    let server = restored.serve();
    let mut http = Http::new(&server);
    assert!(http.events(&run_id).len() > 100, "the operator's token and the events are there");
    let mut next = Writer::new(&mut http, "runner-b");
    next.claim(&mut http);
    let batch = next.next_batch();
    assert_eq!(next.append(&mut http, &batch).unwrap().status, 200, "it takes new work");
    server.stop();
    restored.assert_verified();
}

const OPERATING: &str = include_str!("../../../../../docs/operating.md");

/// The parts of a data directory that the page copies, and those that need no copy.
fn documented() -> (Vec<&'static str>, Vec<&'static str>) {
    let copied = OPERATING.split_once("for part in ").unwrap().1.split_once("; do").unwrap().0;
    let rest = OPERATING.split_once("These need none:").unwrap().1.split_once("Directories below").unwrap().0;
    let named = rest.split('`').skip(1).step_by(2);
    let store = ["ostler.db", "ostler.db-wal", "ostler.db-shm"];
    (copied.split_whitespace().collect(), named.chain(store).collect())
}

#[test]
fn the_documented_backup_names_everything_that_a_server_stores() {
    let mut home = TestHome::on_disk(Engine::Sqlite);
    for (name, value) in [
        ("OSTLER_WORKSPACES__GIT_PROTOCOLS", "file"),
        ("OSTLER_SERVER__DRAIN_MS", "100"),
        ("PATH", &std::env::var("PATH").unwrap()),
    ] {
        home.set(name, value);
    }
    let server = home.serve();
    // An operator's files, a name of the mesh, an attachment, and a backend in a checkout.
    fs::create_dir(home.data_dir.join("git-credentials")).unwrap();
    assert!(home.cli(Some(&server), &["mesh", "join", "alice"]).status.success());
    attachments::upload(&mut Http::new(&server)).good();
    let project = home.path("project");
    fs::create_dir(&project).unwrap();
    for arguments in [&["init", "--quiet"][..], &["commit", "--quiet", "--allow-empty", "-m", "one"]] {
        let mut git = std::process::Command::new("git");
        git.args(["-c", "user.name=me", "-c", "user.email=me@here.test"]).args(arguments);
        assert!(git.current_dir(&project).status().unwrap().success());
    }
    shell_agent::set_profile(&home, &server, "echo new >written");
    let workspace = json!({"workspaceRef": {"kind": "git", "repoUrl": format!("file://{}", project.display())}});
    let (_, result) = shell_agent::turn(&home, &server, "workspace-write", &workspace);
    assert_eq!(result["terminalStatus"], "completed", "{result}");
    let (copied, needless) = documented();
    let kept: Vec<_> = fs::read_dir(&home.data_dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    for name in kept.iter().map(|name| name.to_str().unwrap()) {
        assert!(copied.contains(&name) || needless.contains(&name), "docs/operating.md does not name {name}");
    }
    for part in &copied {
        assert!(kept.iter().any(|name| name == part), "{part} is documented, and a used server has none");
        assert!(OPERATING.contains(&format!("`{part}` in the data directory")), "{part} is not in the table");
    }
    server.stop();
}
