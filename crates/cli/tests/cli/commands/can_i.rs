//! `ostler can-i`: the server's own rules, as an exit code, as a word and as a list.

use std::process::Output;

use crate::fixtures::{
    process::{Server, stdout_of},
    snapshot::{assert_snapshot, piped},
    test_home::{Engine, TestHome},
};

fn as_token(home: &TestHome, server: &Server, token: &str, args: &[&str]) -> Output {
    let mut command = home.command(&[&["can-i"], args].concat());
    command.env("OSTLER_SERVER", server.url()).env("OSTLER_TOKEN", token).output().unwrap()
}

#[test]
fn the_answer_is_the_exit_code() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    let cli = |args: &[&str]| home.cli(Some(&server), args);
    assert_eq!(stdout_of(cli(&["can-i", "operate"])), "yes\n");
    let token = stdout_of(cli(&["tokens", "create", "ci", "--tenant", "local"]));
    let client = |args: &[&str]| as_token(&home, &server, token.trim(), args);
    assert_snapshot("can_i_no", &home, &piped(&client(&["operate"])));
    assert_eq!(stdout_of(client(&["submit"])), "yes\n");
    assert_eq!(stdout_of(client(&["submit", "--tenant", "local"])), "yes\n");
    let other = client(&["submit", "--tenant", "hwlab"]);
    assert!(other.status.code() == Some(1) && piped(&other).contains("not for the tenant \"hwlab\""), "{other:?}");
    for (action, code) in [("submit", 0), ("provide", 1)] {
        let quiet = client(&["-q", action]);
        assert_eq!((quiet.status.code(), quiet.stdout.len(), quiet.stderr.len()), (Some(code), 0, 0), "{action}");
    }
    // What is answered is true.
    let refused =
        home.command(&["tokens", "list"]).env("OSTLER_SERVER", server.url()).env("OSTLER_TOKEN", token.trim()).output();
    assert_eq!(refused.unwrap().status.code(), Some(3));
    assert_eq!(as_token(&home, &server, "ost_wrong", &["submit"]).status.code(), Some(3));
    server.stop();
}

#[test]
fn every_action_is_listed_and_an_unknown_one_is_answered_with_them() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    let cli = |args: &[&str]| home.cli(Some(&server), args);
    let token = stdout_of(cli(&["tokens", "create", "keys", "--role", "provide", "--operator-profiles"]));
    assert_snapshot("can_i_list", &home, &piped(&as_token(&home, &server, token.trim(), &[])));
    let allowed = as_token(&home, &server, token.trim(), &["--jq", ".[] | select(.allowed) | .action"]);
    assert_eq!(stdout_of(allowed), "inspect\nprovide\n");
    assert_snapshot("error_action_unknown", &home, &piped(&cli(&["can-i", "sumbit"])));
    server.stop();
}
