//! `kill -9` of a server that starts automations: each recorded start has one run, and no time has two starts.

use std::{collections::BTreeSet, thread};

use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    process::{eventually, random_ms},
    test_home::{Engine, TestHome, both_engines},
};

const KILLS: i64 = 8;
const AUTOMATIONS: usize = 20;

fn create(http: &mut Http, number: usize) -> String {
    let body = json!({"title": format!("Digest {number}"), "timezone": "UTC", "config": {"input_template": "hi",
        "schedule": {"type": "daily", "run_at": {"hour": 7, "minute": 0}}}});
    http.post("/api/v1/automations", &body).good()["id"].as_str().unwrap().to_owned()
}

#[both_engines]
fn a_start_has_one_run_however_often_the_server_dies(engine: Engine) {
    let mut home = TestHome::on_disk(engine);
    home.set("OSTLER_AUTOMATIONS__POLL_MS", "10");
    let server = home.serve();
    let automations: Vec<_> = (0..AUTOMATIONS).map(|number| create(&mut Http::new(&server), number)).collect();
    server.stop();
    for round in 1..=KILLS {
        // A time of its own for each round, which is long past.
        home.execute(&format!("UPDATE automations SET next_run_at = {round}"));
        // The claims of the dead server expire at once instead of in a minute.
        home.execute("UPDATE automation_starts SET claimed_until = 0 WHERE status = 'starting'");
        let server = home.serve();
        thread::sleep(random_ms(0, 150));
        server.kill();
    }
    home.execute("UPDATE automation_starts SET claimed_until = 0 WHERE status = 'starting'");
    let server = home.serve();
    let mut http = Http::new(&server);
    let mut all = 0;
    for automation in &automations {
        let starts = eventually("all starts have a run", || {
            let page = http.get(&format!("/api/v1/automations/{automation}/runs?limit=100")).good();
            let starts = page["starts"].as_array().unwrap().clone();
            starts.iter().all(|start| start["task_id"].is_string()).then_some(starts)
        });
        let of = |field: &str| starts.iter().map(|start| start[field].to_string()).collect::<BTreeSet<_>>();
        assert_eq!(of("due_at").len(), starts.len(), "no time has two starts: {starts:#?}");
        assert_eq!(of("thread_id").len(), starts.len());
        let runs = http.get(&format!("/api/v1/runs?label=automation={automation}&limit=100")).good();
        let runs: &Vec<Value> = runs["runs"].as_array().unwrap();
        assert_eq!(runs.len(), starts.len(), "each start has one run");
        all += starts.len();
    }
    assert!(all >= AUTOMATIONS, "{all}");
    server.stop();
    home.assert_verified();
    println!("{engine:?}: {all} starts over {KILLS} kills");
}

/// Rounds in which both servers die. The number of a round is a digit of its time.
const ROUNDS: i64 = 4;

/// What an automation has started.
fn starts_of(http: &mut Http, automation: &str) -> Vec<Value> {
    let page = http.get(&format!("/api/v1/automations/{automation}/runs?limit=100")).good();
    page["starts"].as_array().unwrap().clone()
}

#[test]
fn a_due_time_has_one_run_also_if_one_of_two_servers_dies_while_both_start_it() {
    let mut home = TestHome::on_disk(Engine::Postgres);
    home.set("OSTLER_AUTOMATIONS__POLL_MS", "10");
    let server = home.serve();
    let automations: Vec<_> = (0..AUTOMATIONS).map(|number| create(&mut Http::new(&server), number)).collect();
    server.stop();
    for round in 1..=ROUNDS {
        let (first, second) = (home.serve(), home.serve());
        home.execute(&format!("UPDATE automations SET next_run_at = {round}"));
        thread::sleep(random_ms(0, 60));
        first.kill();
        thread::sleep(random_ms(0, 60));
        second.kill();
        // The claims of the dead servers expire at once instead of in a minute.
        home.execute("UPDATE automation_starts SET claimed_until = 0 WHERE status = 'starting'");
    }
    let (first, second) = (home.serve(), home.serve());
    let last = ROUNDS + 1;
    home.execute(&format!("UPDATE automations SET next_run_at = {last}"));
    let mut http = Http::new(&second);
    for automation in &automations {
        let is_last = |start: &Value| start["due_at"].as_str().is_some_and(|at| at.contains(&format!(".00000{last}")));
        let starts = eventually("the last time has its start, and all starts have a run", || {
            let starts = starts_of(&mut http, automation);
            let are_done = starts.iter().all(|start| start["task_id"].is_string());
            (are_done && starts.iter().any(is_last)).then_some(starts)
        });
        assert_eq!(starts.iter().filter(|start| is_last(start)).count(), 1, "{starts:#?}");
        let times: BTreeSet<_> = starts.iter().map(|start| start["due_at"].to_string()).collect();
        assert_eq!(times.len(), starts.len(), "no time has two starts: {starts:#?}");
        let runs = http.get(&format!("/api/v1/runs?label=automation={automation}&limit=100")).good();
        assert_eq!(runs["runs"].as_array().unwrap().len(), starts.len(), "each start has one run");
    }
    first.stop();
    second.stop();
    home.assert_verified();
}
