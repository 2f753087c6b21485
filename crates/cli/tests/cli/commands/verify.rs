//! `ostler verify` on a store that was changed without the server.

use crate::fixtures::{
    http::Http,
    process::eventually,
    runner::{count, submit},
    test_home::{Engine, TestHome, both_engines},
};

const COPY: &str = "INSERT INTO events (session_id, session_seq, run_id, seq, command_id, type, payload, digest, hash, \
    created_at) SELECT session_id, {to}, run_id, {to}, command_id, type, payload, digest, hash, created_at \
    FROM events WHERE session_seq = {from}";

/// A change of the store, the change that undoes it, and the event that must be named.
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
fn every_kind_of_tampering_is_found_and_named(engine: Engine) {
    let home = TestHome::new(engine);
    let server = home.serve();
    let output = home.cli(Some(&server), &["run", "say hello"]);
    assert!(output.status.success(), "{output:?}");
    let mut http = Http::new(&server);
    let run_id = http.get("/api/v1/runs").good()["runs"][0]["runId"].as_str().unwrap().to_owned();
    // The runner releases its lease after the turn has ended, which is the last event.
    let last = eventually("the lease is given back", || {
        let events = http.events(&run_id);
        (count(&events, "lease", "/state", "released") == 1).then_some(events.len() as i64)
    });
    let session_id = http.get(&format!("/api/v1/runs/{run_id}")).good()["sessionId"].as_str().unwrap().to_owned();
    server.stop();
    assert_eq!(home.verify(), (0, format!("ok 1 session, {last} events\n")));
    for (tamper, undo, named) in tamperings(last) {
        home.execute(&tamper);
        let (code, printed) = home.verify();
        assert_eq!(code, 1, "{tamper}: {printed}");
        // An event that was moved to a session of its own makes that one inconsistent, too.
        let broken =
            if tamper.starts_with("UPDATE events SET session_id") { "2 sessions of 2" } else { "1 session of 1" };
        let mut lines = printed.lines();
        let head = lines.next().unwrap();
        assert!(
            head.starts_with(&format!("broken {broken} session")) && head.ends_with(" events"),
            "{tamper}: {printed}"
        );
        let reason = lines.find_map(|line| line.strip_prefix(&format!("  {session_id} #{named}: ")));
        assert!(reason.is_some_and(|reason| !reason.is_empty()), "{tamper}: {printed}");
        home.execute(&undo);
        home.assert_verified();
    }
}

#[test]
fn a_missing_store_is_neither_created_nor_reported_as_good() {
    let home = TestHome::new(Engine::Sqlite);
    std::fs::create_dir(&home.data_dir).unwrap();
    let (code, printed) = home.verify();
    assert!(code > 1, "{code}: {printed}");
    assert_eq!(std::fs::read_dir(&home.data_dir).unwrap().count(), 0);
}

/// A session that was made without the command line.
#[test]
fn a_named_session_is_verified_alone() {
    let home = TestHome::new(Engine::Sqlite);
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
