//! Starting and stopping a server: one ready line, private files, one server per SQLite store, and a prompt exit.

use std::{io::Read, process::Output, time::Duration};

use crate::fixtures::{
    http::Http,
    process::{eventually, ostler},
    runner::{count, submit},
    test_home::{Engine, TestHome, both_engines, mode},
};

#[both_engines]
fn the_ready_line_is_the_only_output_on_stdout(engine: Engine) {
    let home = TestHome::with_empty_database(engine);
    let server = home.serve();
    let ready = server.ready.as_object().unwrap();
    assert_eq!(ready.keys().map(String::as_str).collect::<Vec<_>>(), ["address", "tokenFile"]);
    assert_eq!(ready["tokenFile"], home.data_dir.join("token").to_str().unwrap());
    assert!(!server.address.ends_with(":0"), "the port that was taken");
    assert_eq!((mode(&home.data_dir), mode(&home.data_dir.join("token"))), (0o700, 0o600));
    let Output { status, stdout, stderr } = home.cli(Some(&server), &["run", "say hello"]);
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    assert_eq!(stdout, b"say hello\n");
    let readiness = Http::with_token(&server.address, None).get("/health/readiness").good();
    assert_eq!(readiness["durability"]["durable"], true, "{readiness}");
    let (status, _, rest) = server.terminate();
    assert_eq!((status.code(), rest), (Some(0), vec![]));
}

#[test]
fn health_names_the_commit_that_the_version_names() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    let version = String::from_utf8(ostler(&["--version"]).output().unwrap().stdout).unwrap();
    for path in ["/health", "/health/live", "/health/readiness"] {
        let health = Http::with_token(&server.address, None).get(path).good();
        let commit = health["sourceCommit"].as_str().unwrap();
        assert!(version.contains(&format!("(commit {commit}, ")), "{path}: {commit} and {version}");
    }
    server.stop();
}

#[both_engines]
fn it_stops_promptly_with_a_follower_a_waiter_and_a_running_turn(engine: Engine) {
    let mut home = TestHome::with_empty_database(engine);
    home.set("OSTLER_RUNNER__LEASE_MS", "2000");
    home.set("OSTLER_RUNNER__JOB_SILENCE_MS", "3000");
    home.set("OSTLER_RUNNER__SWEEP_INTERVAL_MS", "50");
    let server = home.serve();
    let mut http = Http::new(&server);
    let (run_id, _) = submit(&mut http, r#"{"script": [{"tool": {"name": "t", "waitMs": 400}}, {"say": "done"}]}"#);
    eventually("the turn is at work", || {
        (count(&http.events(&run_id), "tool_call", "/status", "started") >= 1).then_some(())
    });
    let mut follower = http.follow(&run_id);
    let (address, token, path) = (
        server.address.clone(),
        server.token.clone(),
        format!("/api/v1/runs/{run_id}/events?afterSeq=100000&waitMs=30000"),
    );
    let waiter = std::thread::spawn(move || Http::with_token(&address, Some(&token)).get(&path).status);
    std::thread::sleep(Duration::from_millis(500));
    let (status, took, rest) = server.terminate();
    assert_eq!((status.code(), rest), (Some(0), vec![]), "{}", home.log());
    assert!(took < Duration::from_secs(20), "it waited for the waiter: {took:?}");
    let mut frames = String::new();
    follower.read_to_string(&mut frames).expect("the stream is ended, not torn off");
    assert!(frames.contains("event: tool_call") && frames.ends_with("0\r\n\r\n"), "{frames}");
    assert_eq!(waiter.join().unwrap(), 200);

    // The next server resumes the interrupted turn.
    let server = home.serve();
    let mut http = Http::new(&server);
    eventually("the turn ends", || {
        (count(&http.events(&run_id), "terminal_status", "/status", "completed") == 1).then_some(())
    });
    server.stop();
}

#[test]
fn a_second_server_on_the_same_sqlite_store_is_rejected() {
    let home = TestHome::on_disk(Engine::Sqlite);
    let server = home.serve();
    let status = home.try_serve().err().expect("the second one does not start");
    assert_eq!(status.code(), Some(5), "it is in use, which is no failed run");
    let log = home.log();
    assert!(log.contains("hint: stop the other process"), "{log}");
    assert!(log.contains("another process has") && log.contains("SQLite serves one process"), "{log}");
    let (code, printed) = home.verify();
    assert_eq!(code, 5, "{printed}");
    assert!(printed.starts_with("error: the server of this store is running\n"), "{printed}");
    assert!(
        printed.contains("hint: stop the server, or verify a copy: `ostler backup --no-workspaces FILE`"),
        "{printed}"
    );
    assert_eq!(Http::new(&server).get("/health/readiness").status, 200, "the first one is not disturbed");
    server.stop();
    home.serve().stop();
}

#[test]
fn an_address_in_use_and_an_invalid_address_have_exit_codes_of_their_own() {
    let home = TestHome::on_disk(Engine::Sqlite);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (listen, code) in [(address.as_str(), 5), ("nope", 2)] {
        let output = home.cli(None, &["serve", "--listen", listen]);
        let printed = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{listen}: {printed}");
        assert!(printed.contains("hint: ") && printed.contains("--listen"), "{printed}");
    }
    let bad = home.cli(None, &["--server", "nope", "ps"]);
    let printed = String::from_utf8(bad.stderr).unwrap();
    assert!(bad.status.code() == Some(2) && printed.contains("http://127.0.0.1:4747"), "{printed}");
}

#[test]
fn a_token_that_others_can_read_is_not_used() {
    use std::os::unix::fs::PermissionsExt;
    let home = TestHome::on_disk(Engine::Sqlite);
    home.serve().stop();
    std::fs::set_permissions(home.data_dir.join("token"), PermissionsExt::from_mode(0o644)).unwrap();
    assert_ne!(home.try_serve().err().expect("refused").code(), Some(0));
    assert!(home.log().contains("can be read by others; run: chmod 600"), "{}", home.log());
}

#[test]
fn a_missing_store_is_reported() {
    let mut home = TestHome::on_disk(Engine::Sqlite);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    home.set("DATABASE_URL", &format!("postgres://nobody@{free}/x"));
    assert_ne!(home.try_serve().err().expect("no start").code(), Some(0));
    let log = home.log();
    assert!(log.contains(&format!("Postgres at {free} refuses connections; is it running?")), "{log}");
    assert!(log.contains("hint: start the database"), "{log}");
    home.set("DATABASE_URL", "mysql://root@127.0.0.1/x");
    assert_ne!(home.try_serve().err().expect("no start").code(), Some(0));
    assert!(home.log().contains("must begin with postgres://"), "{}", home.log());
}

#[test]
fn every_problem_of_the_configuration_is_reported_with_its_place() {
    let mut home = TestHome::on_disk(Engine::Sqlite);
    let file = home.path("bad.toml");
    std::fs::write(&file, "[server]\nlisen = \"127.0.0.1:0\"\n\n[limits]\nheartbeat_ms = 0\nhead_ms = \"soon\"\n")
        .unwrap();
    home.set("OSTLER_SERVER__DRIAN_MS", "5");
    let serve = || home.cli(None, &["serve", "--config", file.to_str().unwrap()]);
    let output = serve();
    let printed = String::from_utf8(output.stderr).unwrap().replace(file.to_str().unwrap(), "bad.toml");
    assert_eq!(output.status.code(), Some(2), "{printed}");
    let expected = "error: bad.toml, line 2: server.lisen is no setting; did you mean server.listen?\n       \
        bad.toml, line 5: limits.heartbeat_ms must be 1 to 86400000\n       \
        bad.toml, line 6: limits.head_ms: must be a whole number, not the text \"soon\"\n       \
        OSTLER_SERVER__DRIAN_MS: server.drian_ms is no setting; did you mean OSTLER_SERVER__DRAIN_MS?\n  \
        kind: schema-invalid\n  \
        rule: config\nhint: correct the settings named above; docs/configuration.md lists every setting";
    assert!(printed.starts_with(expected), "{printed}");
    let home = TestHome::on_disk(Engine::Sqlite);
    std::fs::write(&file, "[limits]\nheartbeat_ms = 0\nhead_ms = 0\n").unwrap();
    let output = home.cli(None, &["serve", "--config", file.to_str().unwrap()]);
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(printed.contains("bad.toml, line 3: limits.head_ms must be 1 to 86400000"), "{printed}");
    assert!(printed.contains("bad.toml, line 2: limits.heartbeat_ms must be 1 to 86400000"), "{printed}");
}

#[test]
fn a_data_directory_that_cannot_be_made_is_named_with_a_way_out() {
    let mut home = TestHome::on_disk(Engine::Sqlite);
    home.data_dir = "/proc/ostler".into();
    let output = home.cli(None, &["serve", "--listen", "127.0.0.1:0"]);
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(printed.starts_with("error: cannot make the data directory /proc/ostler: "), "{printed}");
    assert!(printed.contains("hint: choose another directory with `--data-dir`"), "{printed}");
    let mut home = TestHome::on_disk(Engine::Sqlite);
    home.data_dir = home.path("a-file");
    std::fs::write(&home.data_dir, "x").unwrap();
    let output = home.cli(None, &["serve", "--listen", "127.0.0.1:0"]);
    let printed = String::from_utf8(output.stderr).unwrap();
    let expected = format!("error: the data directory {} is a file; name a directory\n", home.data_dir.display());
    assert!(printed.starts_with(&expected), "{printed}");
}

#[test]
fn hints_about_a_start_that_fails_fit_its_cause() {
    let mut home = TestHome::on_disk(Engine::Sqlite);
    let printed = |home: &TestHome, args: &[&str]| String::from_utf8(home.cli(None, args).stderr).unwrap();
    // An address for documentation, which no machine has.
    let elsewhere = printed(&home, &["serve", "--listen", "192.0.2.1:5000"]);
    assert!(elsewhere.contains("hint: give an address of this machine"), "{elsewhere}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = printed(&home, &["serve", "--listen", &taken.local_addr().unwrap().to_string()]);
    assert!(taken.contains("hint: stop the other program"), "{taken}");
    for command in [&["serve"][..], &["config", "show"]] {
        let missing = printed(&home, &[command, &["--config", "nosuch.toml"]].concat());
        assert!(missing.contains("  rule: config-file\nhint: name a file that exists"), "{missing}");
    }
    home.set("OSTLER_RETENTION__EVENT_MS", "5");
    for command in [&["serve"][..], &["config", "show"]] {
        let unknown = printed(&home, command);
        assert!(unknown.contains("hint: correct the settings named above"), "{unknown}");
        assert!(!unknown.contains("ostler config show"), "it fails for the same reason: {unknown}");
    }
}

#[test]
fn a_start_that_waits_for_its_store_can_be_interrupted() {
    // It accepts the connection and sends nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut home = TestHome::on_disk(Engine::Sqlite);
    home.set("DATABASE_URL", &format!("postgres://nobody@{}/x", silent.local_addr().unwrap()));
    let mut process = home.spawn_serve();
    let (_connection, _) = silent.accept().unwrap();
    process.signal(rustix::process::Signal::TERM);
    assert_eq!(process.wait().code(), Some(0), "{}", home.log());
}

#[test]
fn an_open_server_logs_a_warning() {
    let mut home = TestHome::on_disk(Engine::Sqlite);
    home.flags.push("--open-loopback".into());
    home.serve().stop();
    assert!(home.log().contains("without a token"), "{}", home.log());
}

#[test]
fn the_ready_line_has_an_absolute_token_path() {
    let mut home = TestHome::on_disk(Engine::Sqlite);
    home.data_dir = "data".into();
    let server = home.serve();
    assert_eq!(server.ready["tokenFile"], home.path("data/token").canonicalize().unwrap().to_str().unwrap());
    server.stop();
}
