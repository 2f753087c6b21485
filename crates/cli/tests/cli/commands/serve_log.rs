//! The log as JSON: one object per line, each failure once, with the trace id that the client received.

use std::process::Stdio;

use serde_json::Value;

use crate::fixtures::{
    http::Http,
    process::{Guarded, Server, eventually},
    runner::submit,
    test_home::{Engine, TestHome, both_engines},
};

#[test]
fn each_failure_is_one_line_of_json_with_its_trace_id() {
    let mut home = TestHome::new(Engine::Sqlite);
    home.flags = vec!["--log-format".into(), "json".into()];
    let server = home.serve();
    let mut http = Http::new(&server);
    let refused = http.get("/api/v1/runs/sk-pl4nted0123456789");
    let trace_id = refused.json()["traceId"].clone();
    let token = server.token.clone();
    server.stop();
    let log = home.log();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let of_failure: Vec<_> = lines.iter().filter(|line| line["trace_id"] == trace_id).collect();
    assert_eq!(of_failure.len(), 1, "{log}");
    assert_eq!((&of_failure[0]["level"], &of_failure[0]["kind"]), (&"INFO".into(), &"not-found".into()));
    assert!(of_failure[0]["path"].as_str().unwrap().starts_with("/api/v1/runs/"), "{log}");
    assert!(!log.contains("pl4nted") && !log.contains(&token), "{log}");
}

#[test]
fn a_server_whose_log_has_no_reader_responds_and_drains() {
    let home = TestHome::new(Engine::Sqlite);
    let mut command = home.command(&["serve", "--listen", "127.0.0.1:0"]);
    command.stderr(Stdio::piped());
    let mut server = Server::start(command).unwrap();
    drop(server.process.0.stderr.take());
    let mut stranger = Http::with_token(&server.address, Some("bad"));
    assert_eq!(stranger.get("/api/v1/runs").refusal().0, 401);
    assert_eq!(Http::new(&server).get("/api/v1/sessions/nosuch").refusal().0, 404);
    server.stop();
}

#[test]
fn a_clean_stop_with_a_follower_logs_no_error() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    let mut http = Http::new(&server);
    let (run_id, _) = submit(&mut http, r#"{"script": [{"wait": 600000}]}"#);
    let mut command = home.command(&["trace", "-f", &run_id]);
    let follower = command.env("OSTLER_SERVER", server.url()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let follower = Guarded(follower.unwrap());
    std::thread::sleep(std::time::Duration::from_millis(700));
    server.stop();
    drop(follower);
    let log = home.log();
    assert!(!log.contains("ERROR"), "{log}");
}

#[both_engines]
fn the_runs_of_a_killed_server_are_taken_up_with_a_line_in_the_log(engine: Engine) {
    let mut home = TestHome::on_disk(engine);
    home.set("OSTLER_RUNNER__JOB_SILENCE_MS", "2000");
    let server = home.serve();
    let mut http = Http::new(&server);
    let (run_id, _) = submit(&mut http, r#"{"script": [{"wait": 600000}]}"#);
    let run = format!("/api/v1/runs/{run_id}");
    eventually("the run is at work", || (http.get(&run).good()["status"] != "pending").then_some(()));
    server.kill();
    let line = match engine {
        Engine::Sqlite => "taking up the runs that the previous process left unfinished",
        Engine::Postgres => "runner jobs of a launcher that stopped responding are started again",
    };
    assert!(!home.log().contains(line), "{}", home.log());
    let server = home.serve();
    eventually("the line", || home.log().contains(line).then_some(()));
    server.stop();
}

#[test]
fn the_configuration_can_choose_json() {
    let mut home = TestHome::new(Engine::Sqlite);
    home.set("OSTLER_LOG__FORMAT", "json");
    home.serve().stop();
    assert!(home.log().lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{}", home.log());
    assert!(home.log().contains("stopping"));
}
