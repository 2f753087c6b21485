//! `ostler backup` and `ostler restore`: made while the server writes, restored elsewhere, and everything in it used.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Output,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use serde_json::{Value, json};

use crate::fixtures::{
    attachments,
    http::Http,
    process::{Guarded, Server, eventually},
    pty::Terminal,
    runner::{Writer, run_request, submit},
    shell_agent,
    test_home::{Engine, TestHome, both_engines, mode, one_engine},
};

const GUIDE: &str = include_str!("../../../../../docs/backup.md");
/// A file that takes a while to copy.
const LARGE_BYTES: u64 = 200_000_000;

fn home(engine: Engine) -> TestHome {
    let mut home = TestHome::with_empty_database(engine);
    for (name, value) in [
        ("OSTLER_WORKSPACES__GIT_PROTOCOLS", "file,https"),
        ("OSTLER_SERVER__DRAIN_MS", "100"),
        ("OSTLER_RUNNER__LEASE_MS", "2000"),
        ("PATH", &std::env::var("PATH").unwrap()),
    ] {
        home.set(name, value);
    }
    home
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The JSON that a command printed.
#[track_caller]
fn printed(output: Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The exit code and the message of a command that failed.
#[track_caller]
fn refused(output: Output) -> (i32, String) {
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[track_caller]
fn back_up(home: &TestHome, file: &Path, more: &[&str]) -> Value {
    printed(home.cli(None, &[&["backup", text(file), "-o", "json"], more].concat()))
}

#[track_caller]
fn restore(home: &TestHome, file: &Path, more: &[&str]) -> Value {
    printed(home.cli(None, &[&["restore", text(file), "-o", "json"], more].concat()))
}

/// A turn in the session `shelf` that replies with what an earlier one wrote to its workspace.
fn turn(home: &TestHome, server: &Server) -> String {
    let session = json!({"sessionRef": {"sessionId": "shelf"}});
    let (_, result) = shell_agent::turn(home, server, "workspace-write", &session);
    assert_eq!(result["terminalStatus"], "completed", "{result}");
    result["reply"].as_str().unwrap_or_default().to_owned()
}

/// Uses everything that a server stores. Returns the path of an uploaded picture.
fn fill(home: &TestHome, server: &Server) -> String {
    for name in ["alice", "bobby"] {
        assert!(home.cli(Some(server), &["mesh", "join", name]).status.success());
    }
    let credentials = home.data_dir.join("git-credentials");
    fs::create_dir(&credentials).unwrap();
    fs::write(credentials.join("forge"), "host=git.example\nusername=me\npassword=planted-password\n").unwrap();
    fs::set_permissions(credentials.join("forge"), PermissionsExt::from_mode(0o600)).unwrap();
    let picture = attachments::upload(&mut Http::new(server)).good();
    let work = r#"reply=$(cat written 2>/dev/null || echo nothing); echo kept >written; ln -sf written link"#;
    shell_agent::set_profile(home, server, work);
    assert_eq!(turn(home, server), "nothing");
    let (_, path) = picture["url"].as_str().unwrap().split_once("://").unwrap().1.split_once('/').unwrap();
    format!("/{path}")
}

/// Uses everything that [`fill`] made, on a restored server.
fn use_everything(home: &TestHome, server: &Server, picture: &str) {
    let sent = home.cli(Some(server), &["mesh", "send", "bobby", "after the restore", "--as", "alice"]);
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    let read = home.cli(Some(server), &["mesh", "inbox", "--as", "bobby"]);
    assert!(String::from_utf8_lossy(&read.stdout).contains("after the restore"), "{read:?}");
    let mut http = Http::new(server);
    let found = http.get(picture);
    assert_eq!((found.status, found.body.as_str()), (200, attachments::PICTURE));
    // The profile still has its credential, the session its workspace.
    assert_eq!(turn(home, server), "kept");
    let credential = home.data_dir.join("git-credentials/forge");
    assert_eq!(mode(&credential), 0o600);
    let workspace = |credential: &str| {
        let git = json!({"kind": "git", "repoUrl": "https://git.example/a.git", "credentialRef": credential});
        let mut body = run_request();
        body["workspaceRef"] = git;
        body
    };
    http.post("/api/v1/runs", &workspace("forge")).good();
    assert_eq!(http.post("/api/v1/runs", &workspace("other")).refusal().2, "workspace-git-credential");
}

#[both_engines]
fn a_backup_made_under_load_is_restored_elsewhere_and_everything_works(engine: Engine) {
    let home = home(engine);
    let server = home.serve();
    let picture = fill(&home, &server);
    let (file, done, rounds) = (home.path("backup.tar"), AtomicBool::new(false), AtomicUsize::new(0));
    let (report, run_id) = thread::scope(|scope| {
        // Pictures, whose files the store refers to, and turns.
        let (mut http, done, rounds) = (Http::new(&server), &done, &rounds);
        let load = scope.spawn(move || {
            let (first, _) = submit(&mut http, "say hello");
            while !done.load(Ordering::SeqCst) {
                attachments::upload(&mut http).good();
                submit(&mut http, "say hello");
                rounds.fetch_add(1, Ordering::SeqCst);
            }
            first
        });
        let more = |than: usize| (rounds.load(Ordering::SeqCst) > than).then_some(());
        eventually("there is something to copy", || more(20));
        let report = back_up(&home, &file, &[]);
        let now = rounds.load(Ordering::SeqCst);
        eventually("the server still works", || more(now + 5));
        done.store(true, Ordering::SeqCst);
        (report, load.join().unwrap())
    });
    server.kill();
    let contents = &report["contents"];
    let of = |kind: &str, name: &str| contents[kind][name].as_u64().unwrap();
    assert!(of("rows", "attachments") > 20 && of("rows", "runs") > 20, "{report}");
    assert!(of("files", "attachments") >= of("rows", "attachments"), "a row without its file: {report}");
    assert_eq!(mode(&file), 0o600);
    assert_eq!(report["manifest"]["absent"], json!([]), "{report}");
    assert_eq!(report["contents"]["unreadable"], json!([]), "{report}");
    let restored = self::home(engine);
    let restored_report = restore(&restored, &file, &[]);
    assert_eq!(restored_report["backup"]["contents"], report["contents"]);
    assert_eq!(restored_report["verified"]["broken"], json!([]));
    assert!(restored_report["verified"]["events"].as_i64().unwrap() > 100);
    assert_eq!(restored_report["sealedSecrets"], json!([]));
    restored.assert_verified();
    let workspaces = fs::read_dir(restored.data_dir.join("workspaces")).unwrap();
    let links: Vec<_> =
        workspaces.filter_map(|one| fs::read_link(one.unwrap().path().join("work/link")).ok()).collect();
    assert_eq!(links, [Path::new("written")]);
    let again = restored.serve();
    assert_eq!(again.token, fs::read_to_string(home.data_dir.join("token")).unwrap().trim());
    assert!(Http::new(&again).events(&run_id).len() > 3);
    use_everything(&restored, &again, &picture);
    again.stop();
    restored.assert_verified();
}

/// A later part of the data directory is copied or declared as needless, or this fails.
#[one_engine]
fn the_guide_names_everything_that_a_server_stores(engine: Engine) {
    let home = home(engine);
    let server = home.serve();
    fill(&home, &server);
    let file = home.path("backup.tar");
    let report = back_up(&home, &file, &[]);
    let copied: Vec<_> = report["contents"]["files"].as_object().unwrap().keys().cloned().collect();
    let needless = GUIDE.split_once("These are not copied:").unwrap().1.split_once("\n\n").unwrap().0;
    for entry in fs::read_dir(&home.data_dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let is_named = needless.contains(&format!("`{name}`")) || name.starts_with("ostler.db-");
        assert!(copied.contains(&name) || is_named, "{name} is neither copied nor named in docs/backup.md");
    }
    for part in &copied {
        assert!(GUIDE.contains(&format!("| `{part}` |")), "{part} is copied and not in the table of docs/backup.md");
    }
    for table in ["sessions", "events", "mesh_certificates", "attachments", "provider_profile_changes"] {
        assert!(report["contents"]["rows"][table].as_i64().unwrap() > 0, "{table}: {report}");
    }
    // Files that the operator added to the data directory are not copied, and the output lists them.
    fs::write(home.data_dir.join("notes.txt"), "mine").unwrap();
    let output = home.cli(None, &["backup", text(&home.path("second.tar")), "--no-workspaces"]);
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(notes.contains("not in the backup: notes.txt in the data directory"), "{notes}");
    assert!(notes.contains("not in the backup: workspaces"), "{notes}");
    server.stop();
}

#[both_engines]
fn a_backup_of_one_engine_restores_into_the_other(engine: Engine) {
    let home = home(engine).without_runner();
    let server = home.serve();
    let mut http = Http::new(&server);
    let mut writer = Writer::new(&mut http, "runner-a");
    writer.claim(&mut http);
    for _ in 0..20 {
        let batch = writer.next_batch();
        assert_eq!(writer.append(&mut http, &batch).unwrap().status, 200);
    }
    let file = home.path("backup.tar");
    back_up(&home, &file, &[]);
    let restored =
        self::home(if engine == Engine::Sqlite { Engine::Postgres } else { Engine::Sqlite }).without_runner();
    restore(&restored, &file, &[]);
    let again = restored.serve();
    assert!(!writer.check(&mut Http::new(&again)));
    again.stop();
    restored.assert_verified();
    server.stop();
}

fn with_large_file(home: &TestHome) -> PathBuf {
    let directory = home.data_dir.join("workspaces/large");
    fs::create_dir_all(&directory).unwrap();
    let large = directory.join("file");
    fs::File::create(&large).unwrap().set_len(LARGE_BYTES).unwrap();
    large
}

#[both_engines]
fn a_killed_backup_leaves_no_file_that_looks_whole(engine: Engine) {
    let home = home(engine).without_runner();
    let server = home.serve();
    let large = with_large_file(&home);
    let (file, part) = (home.path("backup.tar"), home.path("backup.tar.part"));
    let mut backup = Guarded(home.command(&["backup", text(&file)]).spawn().unwrap());
    eventually("the backup is in the middle", || {
        fs::metadata(&part).is_ok_and(|part| part.len() > 2_000_000).then_some(())
    });
    backup.0.kill().unwrap();
    backup.wait();
    assert!(!file.exists());
    let (code, message) = refused(home.cli(None, &["restore", "--check", text(&part)]));
    assert!(code == 2 && message.contains("cut off") || message.contains("cannot be used"), "{code} {message}");
    // The server is not harmed, and the next backup is not hindered.
    Writer::new(&mut Http::new(&server), "runner-a").claim(&mut Http::new(&server));
    fs::remove_file(large).unwrap();
    back_up(&home, &file, &[]);
    assert!(!part.exists());
    restore(&self::home(engine), &file, &[]);
    // Its name is taken now.
    let (_, message) = refused(home.cli(None, &["backup", text(&file)]));
    assert!(message.contains("exists already"), "{message}");
    let inside = home.data_dir.join("backup.tar");
    assert!(refused(home.cli(None, &["backup", text(&inside)])).1.contains("backup-target"));
    server.stop();
}

#[both_engines]
fn a_server_does_not_start_on_half_of_a_restore(engine: Engine) {
    let home = home(engine).without_runner();
    let server = home.serve();
    with_large_file(&home);
    let file = home.path("backup.tar");
    back_up(&home, &file, &[]);
    server.stop();
    let restored = self::home(engine).without_runner();
    let marker = restored.data_dir.join("restore-unfinished");
    let mut restoring = Guarded(restored.command(&["restore", text(&file)]).spawn().unwrap());
    eventually("the restore is in the middle", || marker.exists().then_some(()));
    restoring.0.kill().unwrap();
    restoring.wait();
    assert!(marker.exists(), "it was not faster than the kill");
    assert!(restored.try_serve().is_err());
    assert!(restored.log().contains("was cut off"), "{}", restored.log());
    for command in [&["verify"][..], &["restore", text(&file)], &["backup", text(&restored.path("b.tar"))]] {
        let (code, message) = refused(restored.cli(None, command));
        assert!(code == 5 && message.contains("restore-unfinished"), "{command:?}: {code} {message}");
    }
    fs::remove_dir_all(&restored.data_dir).unwrap();
    restore(&restored, &file, &[]);
    restored.serve().stop();
    let (_, message) = refused(restored.cli(None, &["restore", text(&file)]));
    assert!(message.contains("restore-target"), "{message}");
    // A database with tables is not empty either, whatever the directory.
    fs::remove_dir_all(&restored.data_dir).unwrap();
    let again = restored.cli(None, &["restore", text(&file)]);
    assert_eq!(again.status.success(), engine == Engine::Sqlite, "{}", String::from_utf8_lossy(&again.stderr));
}

#[one_engine]
fn a_changed_or_missing_byte_is_found_before_anything_is_written(engine: Engine) {
    let home = home(engine).without_runner();
    let server = home.serve();
    let file = home.path("backup.tar");
    back_up(&home, &file, &[]);
    server.stop();
    let whole = fs::read(&file).unwrap();
    let restored = self::home(engine);
    let changed = home.path("changed.tar");
    let ends = (whole.len() - 2_600..whole.len()).step_by(200);
    for at in (0..whole.len()).step_by(whole.len() / 40).chain(ends) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x20;
        fs::write(&changed, &bytes).unwrap();
        let (code, message) = refused(restored.cli(None, &["restore", text(&changed)]));
        assert!(code == 1 && message.contains("backup-damaged"), "byte {at}: {code} {message}");
        fs::write(&changed, &whole[..at]).unwrap();
        let (code, message) = refused(restored.cli(None, &["restore", text(&changed)]));
        let problem = if at < 512 { "is not a backup of Ostler" } else { "it is cut off" };
        assert!(code == 1 && message.contains(problem), "{at} bytes: {code} {message}");
        assert!(!restored.data_dir.exists(), "something was written");
    }
    let (code, message) = refused(restored.cli(None, &["restore", "--check", text(&home.path("nosuch.tar"))]));
    assert!(code == 2 && message.contains("nosuch.tar: No such file"), "{code} {message}");
    fs::write(&changed, [&whole[..], b"\0"].concat()).unwrap();
    refused(restored.cli(None, &["restore", text(&changed)]));
    restore(&restored, &file, &[]);
}

/// The published implementation of age, in JavaScript.
fn age(request: &Value) {
    let installed =
        |name: &str| std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set: use `cargo xtask test`"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/reliability/age.mjs");
    let mut node = std::process::Command::new(installed("OSTLER_TEST_NODE"));
    let output =
        node.env_clear().arg(script).arg(installed("OSTLER_TEST_AGE")).arg(request.to_string()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[one_engine]
fn an_encrypted_backup_is_an_age_file(engine: Engine) {
    let home = home(engine).without_runner();
    let server = home.serve();
    let (key, words, wrong) = (home.path("key.txt"), home.path("words.txt"), home.path("wrong.txt"));
    fs::write(&words, "correct horse battery staple\n").unwrap();
    fs::write(&wrong, "correct horse battery stapler\n").unwrap();
    age(&json!({"verb": "keygen", "identity": key, "recipient": home.path("recipient.txt")}));
    let recipient = fs::read_to_string(home.path("recipient.txt")).unwrap();
    let (to_key, to_words) = (home.path("key.age"), home.path("words.age"));
    let report = back_up(&home, &to_key, &["--recipient", &recipient]);
    assert_eq!(report["isEncrypted"], true);
    back_up(&home, &to_words, &["--passphrase-file", text(&words)]);
    // The other implementation opens both, and what is in them is the backup.
    for (file, key) in [(&to_key, json!({"identity": key})), (&to_words, json!({"passphrase": words}))] {
        let plain = home.path("plain.tar");
        age(&json!({"verb": "decrypt", "from": file, "to": plain, "key": key}));
        assert!(!fs::read(file).unwrap().windows(8).any(|part| part == b"manifest"));
        restore(&self::home(engine), &plain, &[]);
        // And back: what it encrypts is restored.
        let again = home.path("again.age");
        age(&json!({"verb": "encrypt", "from": plain, "to": again, "key": key}));
        let option = match key["identity"].as_str() {
            Some(identity) => ["--identity", identity],
            None => ["--passphrase-file", text(&words)],
        };
        restore(&self::home(engine), &again, &option);
    }
    let restored = self::home(engine);
    for options in [&["--passphrase-file", text(&wrong)][..], &["--identity", text(&key)]] {
        let (code, message) = refused(restored.cli(None, &[&["restore", text(&to_words)], options].concat()));
        assert!(code == 12 && message.contains("backup-key"), "{code} {message}");
    }
    // Without a terminal there is no prompt.
    assert!(refused(restored.cli(None, &["restore", text(&to_key)])).1.contains("passphrase"));
    assert!(!restored.data_dir.exists());
    server.stop();
}

#[one_engine]
fn a_terminal_shows_the_work_then_its_progress_then_the_result(engine: Engine) {
    let home = home(engine).without_runner();
    let server = home.serve();
    let at_terminal = |args: &[&str]| {
        let ended = Terminal::start(&home, &server, args, &[]).ends();
        assert_eq!(ended.code, 0, "{}", ended.screen);
        ended
    };
    let (file, data) = (home.path("backup.tar"), home.data_dir.display());
    let backup = at_terminal(&["backup", text(&file)]);
    let lines: Vec<_> = backup.screen.lines().collect();
    assert_eq!(lines.len(), 3, "{}", backup.screen);
    assert_eq!(lines[0], format!("backing up {data} to {}", file.display()));
    assert!(
        lines[1].starts_with(&format!("{}: ", file.display())) && lines[1].ends_with(&format!(" files; from {data}")),
        "{}",
        lines[1]
    );
    assert!(lines[2].starts_with("the file is not encrypted"), "{}", lines[2]);
    // The bar is on a line of its own, which is empty again before the result is printed.
    let order = [lines[0], "\rfiles  ", "\rstore  ", "\rchanged files ", "\r\x1b[K", lines[1], lines[2]];
    let mut rest = backup.raw.as_str();
    for part in order {
        rest = rest.split_once(part).unwrap_or_else(|| panic!("{part:?} is not next in {:?}", backup.raw)).1;
    }
    let check = at_terminal(&["restore", "--check", text(&file)]);
    let lines: Vec<_> = check.screen.lines().collect();
    assert_eq!(lines[0], format!("checking {}", file.display()), "{}", check.screen);
    assert!(lines.len() == 2 && lines[1].starts_with("ok "), "{}", check.screen);
    // Without a terminal there is only the result.
    let piped = home.cli(None, &["backup", text(&home.path("piped.tar"))]);
    assert_eq!(
        String::from_utf8(piped.stderr).unwrap(),
        "the file is not encrypted: its readers have all keys of the server\n"
    );
    server.stop();
}

#[one_engine]
fn a_wrong_recipient_is_rejected_before_anything_is_written(engine: Engine) {
    let home = home(engine).without_runner();
    let file = home.path("backup.age");
    // Not a key, a key whose end is missing, and a private key.
    let (short, private) = (format!("age1{}", "q".repeat(20)), format!("AGE-SECRET-KEY-1{}", "Q".repeat(58)));
    for wrong in ["me@example.org", &short, &private] {
        let (code, message) = refused(home.cli(None, &["backup", "--recipient", wrong, text(&file)]));
        let why = "not a valid recipient: copy the whole public key that `age-keygen` prints";
        assert!(code == 2 && message.contains(why), "{code} {message}");
    }
    assert!(!file.exists() && !home.data_dir.exists());
}
