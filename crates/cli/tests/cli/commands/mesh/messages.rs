//! `ostler mesh`: joins, sends encrypted messages, and prints each received message once; also with several commands at a
//! time, and across server restarts.

use std::{
    fs::File,
    io::Write,
    path::PathBuf,
    process::{Output, Stdio},
};

use serde_json::Value;

use crate::fixtures::{
    process::{Guarded, Server, eventually},
    relay::Relay,
    test_home::{Engine, TestHome, both_engines, mode},
};

const ALICE: &str = "alice.localhost.test";
const BOBBY: &str = "bobby.localhost.test";

#[track_caller]
fn stdout_of(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The exit code and the output.
#[track_caller]
fn refused(output: Output) -> (i32, String) {
    assert!(!output.status.success(), "{output:?}");
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn join(home: &TestHome, server: &Server, names: &[&str]) {
    for name in names {
        stdout_of(home.cli(Some(server), &["mesh", "join", name]));
    }
}

fn keys(home: &TestHome, aid: &str) -> Value {
    let file = home.data_dir.join(format!("mesh/{aid}.json"));
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// `ostler mesh inbox --follow`, and its output so far.
struct Follower {
    _process: Guarded,
    shown: PathBuf,
}

impl Follower {
    fn start(home: &TestHome, url: &str, name: &str) -> Self {
        Self::start_with(home, url, name, &[])
    }

    fn start_with(home: &TestHome, url: &str, name: &str, more: &[&str]) -> Self {
        let shown = home.path(&format!("{name}.shown"));
        let mut command = home.command(&[&["mesh", "inbox", "--follow", "--as", name], more].concat());
        command.env("OSTLER_SERVER", url);
        let output = command.stdout(File::create(&shown).unwrap()).stderr(Stdio::null()).spawn().unwrap();
        Self { _process: Guarded(output), shown }
    }

    #[track_caller]
    fn shows(&self, expected: &str) {
        let read = || std::fs::read_to_string(&self.shown).unwrap();
        eventually(expected, || (read().lines().count() >= expected.lines().count()).then_some(()));
        assert_eq!(read(), expected);
    }
}

#[both_engines]
fn two_names_exchange_encrypted_messages(engine: Engine) {
    let home = TestHome::new(engine);
    let server = home.serve();
    let ostler = |args: &[&str]| home.cli(Some(&server), args);
    let (_, nobody) = refused(ostler(&["mesh", "inbox"]));
    assert!(nobody.contains("ostler mesh join"), "{nobody}");
    for name in ["al", "bob"] {
        let (_, short) = refused(ostler(&["mesh", "join", name]));
        assert!(short.contains("the name of an AID has 4 to 64 characters"), "{short}");
    }
    for name in ["alice", "bobby"] {
        assert_eq!(stdout_of(ostler(&["mesh", "join", name])), format!("{name}.localhost.test\n"));
    }
    let joined: Value = serde_json::from_str(&stdout_of(ostler(&["mesh", "join", "carol", "-o", "json"]))).unwrap();
    assert_eq!(mode(joined["keys"].as_str().unwrap().as_ref()), 0o600);
    // Joining again finds the keys; without them the name is in use.
    let before = keys(&home, ALICE);
    let again = ostler(&["mesh", "join", "alice"]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("already joined on this machine"), "{again:?}");
    stdout_of(again);
    assert_eq!(keys(&home, ALICE), before);
    let elsewhere = TestHome::new(Engine::Sqlite);
    let (code, taken) = refused(elsewhere.cli(Some(&server), &["mesh", "join", "alice"]));
    assert!(code == 5 && taken.contains("already registered") && taken.contains("choose another name"), "{taken}");
    let (_, none) = refused(elsewhere.cli(Some(&server), &["mesh", "send", "bobby", "x"]));
    assert!(none.contains("no name has joined on this machine"), "{none}");

    stdout_of(ostler(&["mesh", "send", BOBBY, "hello 你好", "--as", ALICE]));
    // Without their domains, and from stdin.
    let mut command = home.command(&["mesh", "send", "bobby", "-", "--as", "alice"]);
    let mut sending = command.env("OSTLER_SERVER", server.url()).stdin(Stdio::piped()).spawn().unwrap();
    sending.stdin.take().unwrap().write_all(b"and more\n").unwrap();
    stdout_of(sending.wait_with_output().unwrap());
    let read = ["mesh", "inbox", "--as", "bobby"];
    assert_eq!(stdout_of(ostler(&read)), format!("{ALICE}: hello 你好\n{ALICE}: and more\n"));
    assert_eq!(stdout_of(ostler(&read)), "", "what was read is read");
    stdout_of(ostler(&["mesh", "send", BOBBY, "later", "--as", ALICE]));
    let reported: Value =
        serde_json::from_str(stdout_of(ostler(&[&read[..], &["-o", "jsonl"]].concat())).trim()).unwrap();
    assert_eq!(
        (&reported["contents"]["text"], &reported["sealed"], &reported["seq"]),
        (&"later".into(), &true.into(), &3.into())
    );
    let shown = eventually("it is gone", || {
        let shown = stdout_of(ostler(&["mesh", "whois", "bobby", "--as", "alice"]));
        shown.contains("not connected, 1 device").then_some(shown)
    });
    assert!(shown.contains("\ntrusted\n") && shown.contains("sha256:"), "{shown}");
    let (code, several) = refused(ostler(&["mesh", "inbox"]));
    assert!(code == 2 && several.contains(ALICE) && several.contains("--as"), "{several}");
}

#[both_engines]
fn a_name_is_used_by_several_commands_at_once(engine: Engine) {
    let home = TestHome::new(engine);
    let server = home.serve();
    join(&home, &server, &["alice", "bobby"]);
    let prekeys = || keys(&home, ALICE)["prekeys"].as_array().unwrap().len();
    assert_eq!(prekeys(), 1);
    let follower = Follower::start(&home, &server.url(), "alice");
    stdout_of(home.cli(Some(&server), &["mesh", "send", "alice", "you there?", "--as", "bobby"]));
    follower.shows(&format!("{BOBBY}: you there?\n"));
    let start = |text: &str| {
        let mut command = home.command(&["mesh", "send", "bobby", text, "--as", "alice"]);
        command.env("OSTLER_SERVER", server.url()).spawn().unwrap()
    };
    let sending: Vec<_> = ["one", "two", "three", "four", "five"].map(start).into_iter().collect();
    sending.into_iter().for_each(|sending| drop(stdout_of(sending.wait_with_output().unwrap())));
    let shown = stdout_of(home.cli(Some(&server), &["mesh", "whois", "alice", "--as", "alice"]));
    assert!(shown.contains("\nconnected, 1 device"), "{shown}");
    // There is one mark of the last read message, and so one reader.
    let (code, busy) = refused(home.cli(Some(&server), &["mesh", "inbox", "--as", "alice"]));
    assert!(code == 5 && busy.contains("another `ostler mesh inbox`"), "{busy}");
    let read = stdout_of(home.cli(Some(&server), &["mesh", "inbox", "--as", "bobby"]));
    assert_eq!(read.lines().count(), 5, "{read}");
    assert_eq!(prekeys(), 1, "nobody but a reader leaves prekeys, and it only when one is needed");
}

#[both_engines]
fn a_message_that_cannot_be_decrypted_yet_is_printed_later(engine: Engine) {
    let home = TestHome::new(engine);
    let server = home.serve();
    join(&home, &server, &["alice", "bobby"]);
    let relay = Relay::start(&server.address);
    let read = || {
        let mut command = home.command(&["mesh", "inbox", "--as", "bobby"]);
        command.env("OSTLER_SERVER", relay.url()).output().unwrap()
    };
    let send = |text: &str| drop(stdout_of(home.cli(Some(&server), &["mesh", "send", "bobby", text, "--as", "alice"])));
    send("first");
    relay.withhold(Some("/pki/cert/"));
    let failed = read();
    assert_eq!(failed.stdout, b"", "nothing was shown, and so nothing is read");
    assert_eq!(refused(failed).0, 10);
    relay.withhold(None);
    assert_eq!(stdout_of(read()), format!("{ALICE}: first\n"));
    // A follower retries until the sender can be verified.
    relay.withhold(Some("/pki/cert/"));
    let follower = Follower::start(&home, &relay.url(), "bobby");
    let online = || stdout_of(home.cli(Some(&server), &["mesh", "whois", "bobby", "--as", "alice"]));
    eventually("it has connected", || (!online().contains("not connected")).then_some(()));
    send("second");
    send("third");
    relay.withhold(None);
    follower.shows(&format!("{ALICE}: second\n{ALICE}: third\n"));
}

#[both_engines]
fn a_reader_survives_a_restart_and_a_name_follows_its_server(engine: Engine) {
    let home = TestHome::new(engine);
    let server = home.serve();
    join(&home, &server, &["alice", "bobby"]);
    let follower = Follower::start(&home, &server.url(), "bobby");
    stdout_of(home.cli(Some(&server), &["mesh", "send", "bobby", "before", "--as", "alice"]));
    follower.shows(&format!("{ALICE}: before\n"));
    let address = server.address.clone();
    server.kill();
    let server = home.serve_at(&address);
    stdout_of(home.cli(Some(&server), &["mesh", "send", "bobby", "after", "--as", "alice"]));
    follower.shows(&format!("{ALICE}: before\n{ALICE}: after\n"));
    drop(follower);
    server.stop();

    // At another address: `--server` names it, and joining again stores it.
    let server = home.serve();
    assert_ne!(server.address, address);
    let send = ["mesh", "send", "bobby", "moved", "--as", "alice"];
    let (code, _) = refused(home.cli(None, &send));
    assert_eq!(code, 7, "it is not where it was");
    stdout_of(home.cli(Some(&server), &send));
    assert_eq!(refused(home.cli(None, &send)).0, 7, "`--server` is not stored");
    stdout_of(home.cli(Some(&server), &["mesh", "join", "alice"]));
    stdout_of(home.cli(None, &send));
}

#[both_engines]
fn a_revoked_unknown_or_uninvited_name_gets_a_hint(engine: Engine) {
    let mut home = TestHome::new(engine);
    let server = home.serve();
    join(&home, &server, &["alice", "bobby"]);
    let ostler = |args: &[&str]| home.cli(Some(&server), args);
    stdout_of(ostler(&["pki", "revoke", BOBBY, "--yes"]));
    let shown = stdout_of(ostler(&["mesh", "whois", "bobby", "--as", "alice"]));
    assert!(shown.contains("not trusted: the certificate of bobby.localhost.test was revoked"), "{shown}");
    let (code, out) = refused(ostler(&["mesh", "send", "bobby", "x", "--as", "alice"]));
    assert!(code == 3 && out.contains("was revoked") && out.contains("ostler mesh whois"), "{out}");
    let (code, out) = refused(ostler(&["mesh", "inbox", "--as", "bobby"]));
    assert!(code == 3 && out.contains("ostler identities issue"), "{out}");
    for verb in [&["mesh", "whois", "nobody", "--as", "alice"][..], &["mesh", "send", "nobody", "x", "--as", "alice"]] {
        let (code, out) = refused(ostler(verb));
        assert!(code == 4 && out.contains("ostler identities list") && !out.contains("ostler ps"), "{out}");
    }
    server.stop();
    home.set("OSTLER_MESH__REGISTRATION", "invite");
    let server = home.serve();
    let (code, out) = refused(home.cli(Some(&server), &["mesh", "join", "david"]));
    assert!(code == 3 && out.contains("ostler identities invite"), "{out}");
    assert!(!home.data_dir.join("mesh/david.localhost.test.json").exists());
    let invite = stdout_of(home.cli(Some(&server), &["pki", "invite"]));
    stdout_of(home.cli(Some(&server), &["mesh", "join", "david", "--invite", invite.trim()]));
}

#[both_engines]
fn received_messages_are_one_complete_json_document(engine: Engine) {
    let home = TestHome::new(engine);
    let server = home.serve();
    join(&home, &server, &["alice", "bobby"]);
    let ostler = |args: &[&str]| home.cli(Some(&server), args);
    let inbox = || serde_json::from_str::<Value>(&stdout_of(ostler(&["mesh", "inbox", "--as", "bobby", "-o", "json"])));
    assert_eq!(inbox().unwrap(), serde_json::json!([]));
    let long = format!("{}\nbobby: a line of its own", "x".repeat(3_000));
    for text in ["first", long.as_str()] {
        stdout_of(ostler(&["mesh", "send", "bobby", text, "--as", "alice"]));
    }
    let came = inbox().unwrap();
    let texts: Vec<_> = came.as_array().unwrap().iter().map(|one| one["contents"]["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["first", long.as_str()]);
    stdout_of(ostler(&["mesh", "send", "bobby", &long, "--as", "alice"]));
    let shown = stdout_of(ostler(&["mesh", "inbox", "--as", "bobby"]));
    assert_eq!(shown, format!("{ALICE}: {}\n  bobby: a line of its own\n", "x".repeat(3_000)));
    let (_, endless) = refused(ostler(&["mesh", "inbox", "--as", "bobby", "--follow", "-o", "json"]));
    assert!(endless.contains("-o jsonl"), "{endless}");
    // A filter is no document: it gets each message by itself.
    let follower = Follower::start_with(&home, &server.url(), "bobby", &["--jq", ".contents.text"]);
    for text in ["one", "two"] {
        stdout_of(ostler(&["mesh", "send", "bobby", text, "--as", "alice"]));
    }
    follower.shows("one\ntwo\n");
}

#[both_engines]
fn a_name_that_was_rate_limited_is_not_stored(engine: Engine) {
    let mut home = TestHome::new(engine);
    home.set("OSTLER_MESH__REGISTRATIONS_PER_HOUR_MAX", "1");
    let server = home.serve();
    join(&home, &server, &["alice"]);
    let (_, often) = refused(home.cli(Some(&server), &["mesh", "join", "bobby"]));
    assert!(often.contains("too many names"), "{often}");
    // There is only one name, so `--as` is not needed.
    assert_eq!(stdout_of(home.cli(Some(&server), &["mesh", "inbox"])), "");
}
