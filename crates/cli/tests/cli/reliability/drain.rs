//! SIGTERM: the server reports that it is draining, accepts no new work, ends streams, lets turns finish for a while, and
//! hands over the rest; a second SIGTERM ends it at once.

use std::{
    io::{BufRead, BufReader},
    net::TcpStream,
};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    process::{Server, eventually},
    runner::{count, run_request, submit},
    test_home::{Engine, TestHome, both_engines},
};

fn busy(tool_ms: u64) -> String {
    json!({"script": [{"tool": {"name": "shell", "command": "make", "waitMs": tool_ms}}, {"say": "done"}]}).to_string()
}

fn started(http: &mut Http, prompt: &str) -> (String, String) {
    let (run_id, command_id) = submit(http, prompt);
    eventually("the tool is at work", || {
        (count(&http.events(&run_id), "tool_call", "/status", "started") == 1).then_some(())
    });
    (run_id, command_id)
}

/// Waits until the server reports that it is draining.
fn draining(server: &Server) -> Value {
    eventually("readiness reports it", || {
        let answer = Http::with_token(&server.address, None).get("/health/readiness");
        Some(answer).filter(|answer| answer.status == 503).map(|answer| answer.json())
    })
}

/// Reads a stream to its regular end.
fn to_its_end(mut stream: BufReader<TcpStream>) -> String {
    let mut received = String::new();
    while !received.ends_with("\r\n0\r\n") {
        assert_ne!(stream.read_line(&mut received).unwrap(), 0, "broken off after {received}");
    }
    received
}

fn ended(http: &mut Http, run_id: &str, command_id: &str) -> Value {
    let path = format!("/api/v1/runs/{run_id}/commands/{command_id}/result");
    eventually("the command ends", || Some(http.get(&path).good()).filter(|result| !result["terminalStatus"].is_null()))
}

#[both_engines]
fn a_draining_server_accepts_no_new_work_and_lets_its_turn_finish(engine: Engine) {
    let home = TestHome::on_disk(engine);
    let mut server = home.serve();
    let mut http = Http::new(&server);
    let (run_id, command_id) = started(&mut http, &busy(5_000));
    let follower = http.follow(&run_id);
    server.process.signal(Signal::TERM);
    assert_eq!(draining(&server)["status"], "draining");
    let frames = to_its_end(follower);
    assert!(frames.contains("event: tool_call") && !frames.contains("event: terminal_status"), "{frames}");
    for (path, body) in [
        ("/api/v1/runs".to_owned(), run_request()),
        (format!("/api/v1/runs/{run_id}/commands"), json!({"type": "turn", "payload": {"prompt": "more"}})),
        (format!("/api/v1/runs/{run_id}/runner-jobs"), json!({})),
        (format!("/api/v1/runs/{run_id}/claim"), json!({"runnerId": "another"})),
    ] {
        let answer = http.post(&path, &body);
        assert_eq!((answer.status, &answer.json()["failureKind"]), (503, &json!("draining")), "{path}");
        assert!(answer.head.to_ascii_lowercase().contains("retry-after: 1"), "{}", answer.head);
    }
    // The message is true of the only server, too.
    let refused = home.cli(Some(&server), &["run", "more"]);
    assert_eq!(refused.status.code(), Some(6), "{refused:?}");
    let message = String::from_utf8(refused.stderr).unwrap();
    assert!(message.starts_with("error: this server is stopping and takes no new work\n"), "{message}");
    let hint = "\nhint: this server is stopping: try again after its next start, or at once if other servers of its store are running\n";
    assert!(message.ends_with(hint), "{message}");
    // Reads continue, so that clients can see the turn end.
    assert_eq!(http.get(&format!("/api/v1/runs/{run_id}")).status, 200);
    assert!(server.process.wait().success(), "{}", home.log());

    let server = home.serve();
    let mut http = Http::new(&server);
    assert_eq!(ended(&mut http, &run_id, &command_id)["reply"], "done");
    let events = http.events(&run_id);
    assert_eq!(count(&events, "lease", "/state", "claimed"), 1, "it ended under the server that stopped");
    server.stop();
    home.assert_verified();
}

#[both_engines]
fn a_second_signal_does_not_wait_for_the_turn(engine: Engine) {
    let mut home = TestHome::on_disk(engine);
    home.set("OSTLER_SERVER__DRAIN_MS", "3600000");
    home.set("OSTLER_RUNNER__LEASE_MS", "500");
    home.set("OSTLER_RUNNER__JOB_SILENCE_MS", "3000");
    let mut server = home.serve();
    let (run_id, command_id) = started(&mut Http::new(&server), &busy(1_000));
    server.process.signal(Signal::TERM);
    draining(&server);
    server.process.signal(Signal::TERM);
    assert_eq!(server.process.wait().code(), Some(130));

    let server = home.serve();
    assert_eq!(ended(&mut Http::new(&server), &run_id, &command_id)["status"], "completed");
    server.stop();
}

#[test]
fn the_other_server_takes_over_from_a_draining_one_at_once() {
    let mut home = TestHome::on_disk(Engine::Postgres);
    home.set("OSTLER_SERVER__DRAIN_MS", "100");
    // Faster than the expiry of a lease, or the detection of a silent runner.
    home.set("OSTLER_RUNNER__LEASE_MS", "600000");
    home.set("OSTLER_RUNNER__JOB_SILENCE_MS", "600000");
    let first = home.serve();
    let (run_id, command_id) = started(&mut Http::new(&first), &busy(2_000));
    let second = home.serve();
    let follower = Http::new(&first).follow(&run_id);
    first.stop();
    let frames = to_its_end(follower);
    let seen = frames.lines().filter_map(|line| line.strip_prefix("id: ")?.parse().ok()).max().unwrap_or(0);

    let mut http = Http::new(&second);
    assert_eq!(ended(&mut http, &run_id, &command_id)["reply"], "done");
    let events = http.events(&run_id);
    assert_eq!(count(&events, "backend_status", "/phase", "attempt-restarted"), 1);
    assert_eq!(count(&events, "tool_call", "/status", "outcome-unknown"), 1);
    assert_eq!(count(&events, "lease", "/state", "expired"), 0, "the lease was given back");
    // A follower that reconnects with its last number receives the rest.
    http.post(&format!("/api/v1/runs/{run_id}/cancel"), &json!({})).good();
    let rest = to_its_end(http.try_follow(&run_id, seen).unwrap());
    let numbers: Vec<i64> = rest.lines().filter_map(|line| line.strip_prefix("id: ")?.parse().ok()).collect();
    assert_eq!(numbers, (seen + 1..=http.events(&run_id).len() as i64).collect::<Vec<_>>());
    second.stop();
    home.assert_verified();
}
