//! `ostler verify` against a store that was changed behind the server's back.

use crate::{
    home::{Engine, Home, both_engines},
    http::Http,
    process::eventually,
    runner::{count, submit},
};

const COPY: &str = "INSERT INTO events (session_id, session_seq, run_id, seq, command_id, type, payload, digest, hash, \
    created_at) SELECT session_id, {to}, run_id, {to}, command_id, type, payload, digest, hash, created_at \
    FROM events WHERE session_seq = {from}";

/// What is done to the store, what undoes it, and the event that must be named.
fn tamperings(last: i64) -> Vec<(String, String, i64)> {
    let set = |seq: i64, what: &str| format!("UPDATE events SET {what} WHERE session_seq = {seq}");
    let renumber = |from: i64, to: i64| format!("UPDATE events SET session_seq = {to} WHERE session_seq = {from}");
    let swap = [renumber(2, 100), renumber(3, 2), renumber(100, 3)].join("; ");
    let copied = COPY.replace("{from}", &last.to_string()).replace("{to}", &(last + 1).to_string());
    let hide = |seq: i64| format!("UPDATE events SET session_id = 'x' || session_id WHERE session_seq = {seq}");
    let show = "UPDATE events SET session_id = substr(session_id, 2) WHERE session_id LIKE 'x%'".to_owned();
    vec![
        (set(2, "payload = replace(payload, 'say', 'sai')"), set(2, "payload = replace(payload, 'sai', 'say')"), 2),
        (set(2, "created_at = created_at + 1"), set(2, "created_at = created_at - 1"), 2),
        (set(3, "type = 'custom' || type"), set(3, "type = substr(type, 7)"), 3),
        (hide(3), show.clone(), 3),
        (hide(last), show, last),
        (swap.clone(), swap, 2),
        (copied, format!("DELETE FROM events WHERE session_seq = {}", last + 1), last + 1),
    ]
}

#[both_engines]
fn each_single_tampering_is_found_and_named(engine: Engine) {
    let home = Home::new(engine);
    let server = home.serve();
    let output = home.cli(Some(&server), &["run", "say hello"]);
    assert!(output.status.success(), "{output:?}");
    let mut http = Http::new(&server);
    let run_id = http.get("/api/v1/runs").good()["runs"][0]["runId"].as_str().unwrap().to_owned();
    // The runner gives its lease back after the turn has ended: the log's last event.
    let last = eventually("the lease is given back", || {
        let events = http.events(&run_id);
        (count(&events, "lease", "/state", "released") == 1).then_some(events.len() as i64)
    });
    let session_id = http.get(&format!("/api/v1/runs/{run_id}")).good()["sessionId"].as_str().unwrap().to_owned();
    server.stop();
    home.assert_verified();
    for (tamper, undo, named) in tamperings(last) {
        home.execute(&tamper);
        let (code, said) = home.verify();
        assert_eq!(code, 1, "{tamper}: {said}");
        assert!(said.contains(&format!("{session_id} #{named}: ")), "{tamper}: {said}");
        home.execute(&undo);
        home.assert_verified();
    }
}

#[test]
fn a_store_that_is_not_there_is_not_made_and_not_praised() {
    let home = Home::new(Engine::Sqlite);
    std::fs::create_dir(&home.data_dir).unwrap();
    let (code, said) = home.verify();
    assert!(code > 1, "{code}: {said}");
    assert_eq!(std::fs::read_dir(&home.data_dir).unwrap().count(), 0);
}

/// One that the command line cannot have: `submit` goes past it.
#[test]
fn a_named_session_is_verified_alone() {
    let home = Home::new(Engine::Sqlite);
    let server = home.serve();
    let mut http = Http::new(&server);
    submit(&mut http, "one");
    let (run_id, _) = submit(&mut http, "two");
    let session_id = http.get(&format!("/api/v1/runs/{run_id}")).good()["sessionId"].as_str().unwrap().to_owned();
    server.stop();
    let output = home.cli(None, &["verify", &session_id]);
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("ok 1 session, "), "{output:?}");
    assert_eq!(home.cli(None, &["verify", "nobody"]).status.code(), Some(4));
}
