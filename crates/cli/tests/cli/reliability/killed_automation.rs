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
