//! `kill -9` of a runner process: its lease expires, a replacement takes over, the dead runner's epoch is rejected from then
//! on, and nothing that was acknowledged is lost.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
};

use serde_json::json;

use crate::fixtures::{
    http::Http,
    process::{Guarded, eventually},
    runner::{Writer, count},
    test_home::{Engine, TestHome, both_engines},
};

/// Longer than the runner lives, even on a slow machine: the lease is never renewed.
const LEASE_MS: i64 = 10_000;
/// The variable with the work of the runner process: address, token, run, command, epoch.
const ORDER: &str = "OSTLER_TEST_RUNNER_ORDER";

/// Not a test: the runner process. Reports each acknowledgement on stdout, until it is killed.
#[test]
#[ignore = "the process that other tests start and kill"]
fn runner_process() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let [address, token, run_id, command_id, epoch] = order.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let mut http = Http::with_token(address, Some(token));
    let mut out = std::io::stdout();
    for batch_no in 1.. {
        let event = json!({"type": "custom", "commandId": command_id, "payload": {"n": batch_no}});
        let body = json!({"runnerId": "runner-a", "leaseEpoch": epoch.parse::<i64>().unwrap(), "batchNo": batch_no,
            "events": [event]});
        let appended = http.post(&format!("/api/v1/runs/{run_id}/events"), &body).good();
        writeln!(out, "\nacked {} {batch_no}", appended["firstSeq"]).unwrap();
    }
}

fn spawn_runner(http_address: &str, token: &str, writer: &Writer) -> Guarded {
    let order = [http_address, token, &writer.run_id, &writer.command_id, &writer.epoch.unwrap().to_string()].join(" ");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "reliability::killed_runner::runner_process", "--ignored", "--nocapture"])
        .env(ORDER, order);
    Guarded(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
}

#[both_engines]
fn a_replacement_takes_over_from_a_killed_runner(engine: Engine) {
    let home = TestHome::on_disk(engine).without_runner();
    let server = home.serve();
    let mut http = Http::new(&server);
    let mut writer = Writer::new(&mut http, "runner-a");
    writer.lease_ms = LEASE_MS;
    writer.claim(&mut http);
    let old_epoch = writer.epoch.unwrap();
    let mut runner = spawn_runner(&server.address, &server.token, &writer);
    let mut reports = BufReader::new(runner.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut note = |line: String| {
        let Some((seq, number)) = line.strip_prefix("acked ").and_then(|rest| rest.split_once(' ')) else { return };
        writer.acked.insert(seq.parse().unwrap(), number.parse().unwrap());
    };
    reports.by_ref().take(60).for_each(&mut note);
    runner.0.kill().unwrap();
    runner.wait();
    // The output up to its death.
    reports.for_each(&mut note);
    assert!(writer.acked.len() >= 20, "the runner got going");

    let (status, kind, rule) = writer.claim_as(&mut http, "runner-b").refusal();
    assert_eq!((status, kind.as_str(), rule.as_str()), (409, "runner-lease-conflict", "lease-held"));
    let claimed = eventually("the lease runs out", || {
        Some(writer.claim_as(&mut http, "runner-b")).filter(|answer| answer.status == 200)
    });
    assert_eq!(claimed.json()["leaseEpoch"], old_epoch + 1);

    let before = http.events(&writer.run_id);
    assert_epoch_rejected(&mut http, &writer, old_epoch);
    assert_eq!(http.events(&writer.run_id).len(), before.len(), "a stale writer changes nothing");
    assert_eq!(count(&before, "lease", "/state", "claim-waiting"), 1);
    check_book(&before, &writer);

    let end = json!({"runnerId": "runner-b", "leaseEpoch": old_epoch + 1, "status": "completed"});
    let command = http.patch(&format!("/api/v1/commands/{}/status", writer.command_id), &end).good();
    assert_eq!(command["state"], "completed");
    server.stop();
    home.assert_verified();
}

/// Sends each request of a runner, with the dead runner's epoch.
fn assert_epoch_rejected(http: &mut Http, writer: &Writer, epoch: i64) {
    let (run, command) = (&writer.run_id, &writer.command_id);
    let holder = json!({"runnerId": "runner-a", "leaseEpoch": epoch});
    let with = |more: serde_json::Value| {
        let mut body = holder.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let event = json!({"events": [{"type": "custom", "payload": {"n": -1}}], "batchNo": 1_000_000});
    let answers = [
        http.post(&format!("/api/v1/runs/{run}/events"), &with(event)),
        http.post(&format!("/api/v1/commands/{command}/ack"), &holder),
        http.patch(&format!("/api/v1/runs/{run}/lease"), &holder),
        http.patch(&format!("/api/v1/commands/{command}/status"), &with(json!({"status": "completed"}))),
        http.patch(&format!("/api/v1/runs/{run}/status"), &with(json!({"status": "failed"}))),
    ];
    for answer in answers {
        assert_eq!(answer.refusal(), (409, "runner-lease-conflict".into(), "lease-epoch-stale".into()));
    }
}

/// The runner was killed between a write and its report at most once.
fn check_book(events: &[serde_json::Value], writer: &Writer) {
    let stored: Vec<_> = events.iter().filter(|event| event["type"] == "custom").collect();
    assert!(stored.len() <= writer.acked.len() + 1, "{} stored, {} acknowledged", stored.len(), writer.acked.len());
    for (seq, number) in &writer.acked {
        let event = &events[*seq as usize - 1];
        assert_eq!(event["payload"]["n"], *number, "{event}");
    }
}
