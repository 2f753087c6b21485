//! Agents of the mesh on the command line: they join, send sealed, and open what came, once.

use std::{os::unix::fs::PermissionsExt, process::Output};

use serde_json::Value;

use crate::home::{Engine, Home, on_both_engines};

on_both_engines!(two_names_talk_sealed);

#[track_caller]
fn printed(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn two_names_talk_sealed(engine: Engine) {
    let home = Home::new(engine);
    let server = home.serve();
    let ostler = |args: &[&str]| home.cli(Some(&server), args);
    let refused = ostler(&["mesh", "inbox"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("ostler mesh join"), "{refused:?}");
    for name in ["alice", "bobby"] {
        assert_eq!(printed(ostler(&["mesh", "join", name])), format!("{name}.localhost.test\n"));
    }
    let (alice, bobby) = ("alice.localhost.test", "bobby.localhost.test");
    let joined: Value = serde_json::from_str(&printed(ostler(&["mesh", "join", "carol", "-o", "json"]))).unwrap();
    let mode = std::fs::metadata(joined["keys"].as_str().unwrap()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!ostler(&["mesh", "join", "alice"]).status.success(), "the name is taken");
    for text in ["hello 你好", "and more"] {
        printed(ostler(&["mesh", "send", bobby, text, "--as", alice]));
    }
    let read = ["mesh", "inbox", "--as", bobby];
    assert_eq!(printed(ostler(&read)), format!("{alice}: hello 你好\n{alice}: and more\n"));
    assert_eq!(printed(ostler(&read)), "", "what was read is read");
    printed(ostler(&["mesh", "send", bobby, "later", "--as", alice]));
    let told: Value = serde_json::from_str(printed(ostler(&[&read[..], &["-o", "jsonl"]].concat())).trim()).unwrap();
    assert_eq!((&told["contents"]["text"], &told["sealed"], &told["seq"]), (&"later".into(), &true.into(), &3.into()));
    let shown = printed(ostler(&["mesh", "whois", bobby, "--as", alice]));
    assert!(shown.contains("sha256:") && shown.contains("not connected, 1 device"), "{shown}");
    let unknown = ostler(&["mesh", "whois", "nobody.localhost.test", "--as", alice]);
    assert_eq!(unknown.status.code(), Some(4), "{unknown:?}");
}
