//! `kill -9` of a server in the middle of a sweep of retention: the log stays provable, and the next server completes the sweep.

use std::{thread, time::Duration};

use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    runner::Writer,
    test_home::{Engine, TestHome, both_engines},
};

const ROUNDS: usize = 3;

/// Payloads of the run that are there.
fn payloads(http: &mut Http, run_id: &str) -> usize {
    let (mut found, mut after) = (0, 0);
    loop {
        let page = http.get(&format!("/api/v1/runs/{run_id}/events?afterSeq={after}&limit=1000")).good();
        found += page["events"].as_array().unwrap().iter().filter(|event| !event["payload"].is_null()).count();
        after = page["nextAfterSeq"].as_i64().unwrap();
        if page["hasMore"] == false {
            return found;
        }
    }
}

#[both_engines]
fn a_sweep_that_is_killed_leaves_a_provable_log_and_is_completed(engine: Engine) {
    let mut home = TestHome::on_disk(engine).without_runner();
    home.set("OSTLER_RETENTION__STEP_ROWS", "2");
    home.set("OSTLER_RETENTION__PAUSE_MS", "1");
    home.set("OSTLER_RETENTION__SWEEP_MS", "3600000");
    let mut server = home.serve();
    let mut http = Http::new(&server);
    let mut writer = Writer::new(&mut http, "runner-a");
    writer.claim(&mut http);
    while writer.acked.len() < 400 {
        let batch = writer.next_batch();
        assert_eq!(writer.append(&mut http, &batch).unwrap().status, 200);
    }
    let run_id = writer.run_id.clone();
    for path in [format!("/api/v1/commands/{}/status", writer.command_id), format!("/api/v1/runs/{run_id}/status")] {
        let end = json!({"runnerId": "runner-a", "leaseEpoch": writer.epoch, "status": "completed"});
        http.send("PATCH", &path, &[], &end.to_string()).unwrap().good();
    }
    server.stop();
    // From here on the run is older than its limit.
    home.set("OSTLER_RETENTION__EVENTS_MS", "1");
    server = home.serve();
    let mut left = payloads(&mut Http::new(&server), &run_id);
    for _ in 0..ROUNDS {
        thread::scope(|scope| {
            let mut http = Http::new(&server);
            scope.spawn(move || while http.send("POST", "/api/v1/retention/sweeps", &[], "").is_ok() {});
            thread::sleep(Duration::from_millis(60));
            server.kill();
        });
        home.assert_verified();
        server = home.serve();
        let now_left = payloads(&mut Http::new(&server), &run_id);
        assert!(now_left <= left, "{now_left} of {left}");
        left = now_left;
    }
    let mut http = Http::new(&server);
    loop {
        let swept: Value = http.post("/api/v1/retention/sweeps", &json!({})).good();
        if swept["hasMore"] == false {
            break;
        }
    }
    assert_eq!(payloads(&mut http, &run_id), 0);
    server.stop();
    let (code, printed) = home.verify();
    assert!(code == 0 && printed.contains("without their payload by retention"), "{printed}");
}
