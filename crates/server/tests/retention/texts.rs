//! The rows beside the log lose their texts with its payloads: commands, their ends, and jobs. Counts and kinds stay.

use serde_json::{Value, json};

use super::{DAY_MS, hourly, in_single_steps, sweep, sweep_all, verify};
use crate::harness::{Engine, TestServer, both_engines};

/// The columns that may hold texts of a run.
const COLUMNS: [(&str, &str); 7] = [
    ("commands", "payload"),
    ("commands", "fold"),
    ("commands", "terminal"),
    ("commands", "cancel_reason"),
    ("runs", "terminal"),
    ("runner_jobs", "terminal_summary"),
    ("runner_jobs", "observed"),
];

/// A run whose first turn has failed, with a tool call, changed files and a job; its id and its first command.
async fn failed(server: &TestServer) -> (String, String) {
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "planted-prompt").await;
    server.create_job(&run_id, &json!({"standing": false})).await.with_status(201);
    let summary = json!({"status": "idle", "turnStatus": "failed", "failureKind": "backend-failed",
        "message": "planted-summary", "logTail": "planted-log"});
    let observed = json!({"phase": "failed", "reason": "OOMKilled", "message": "planted-observation"});
    server
        .store(&format!(
            "UPDATE runner_jobs SET phase = 'succeeded', terminal_summary = '{summary}', observed = '{observed}'"
        ))
        .await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    let call =
        json!({"toolCallId": "c", "name": "shell", "status": "completed", "exitCode": 0, "command": "planted-command"});
    runner.tell(&command_id, "tool_call", call).await;
    let changes = json!({"phase": "workspace-changed", "filesChanged": 2, "bytesAdded": 40, "bytesRemoved": 1, "linesAdded": 3,
        "files": [{"path": "planted-path", "change": "added", "bytesAdded": 40}], "diff": "+planted-line\n"});
    runner.tell(&command_id, "backend_status", changes).await;
    runner.tell(&command_id, "usage", json!({"totalTokens": 12, "costUsd": 0.5})).await;
    runner.tell(&command_id, "error", json!({"failureKind": "backend-failed", "message": "planted-error"})).await;
    let end = json!({"status": "failed", "failureKind": "backend-failed", "message": "planted-end"});
    runner.tell(&command_id, "terminal_status", end).await;
    let next = server.turn(&run_id, "planted-next").await;
    server
        .post(&format!("/api/v1/commands/{next}/cancel"), &json!({"reason": "planted-reason"}))
        .await
        .with_status(200);
    runner.try_end_run("completed").await.with_status(200);
    (run_id, command_id)
}

async fn columns_with_texts(server: &TestServer) -> Vec<String> {
    let mut found = vec![];
    for (table, column) in COLUMNS {
        let rows = server.store(&format!("SELECT {column} FROM {table} WHERE {column} LIKE '%planted%'")).await;
        found.extend(rows.iter().map(|row| format!("{table}.{column}: {row}")));
    }
    found
}

async fn check(server: &TestServer, engine: Engine, run_id: &str, command_id: &str) {
    assert_eq!(columns_with_texts(server).await, [""; 0]);
    let result = server.result(run_id, command_id).await;
    assert!(!result.to_string().contains("planted"), "{result}");
    assert_eq!((&result["terminalStatus"], &result["failureKind"]), (&json!("failed"), &json!("backend-failed")));
    assert_eq!((&result["usage"]["totalTokens"], &result["usage"]["costUsd"]), (&json!(12), &json!(0.5)));
    let tools = &result["toolCallSummary"];
    assert_eq!((&tools["count"], &tools["exitCodeCounts"]), (&json!(1), &json!({"0": 1})));
    assert_eq!((&tools["items"][0]["toolName"], &tools["items"][0]["command"]), (&json!("shell"), &Value::Null));
    let job = &server.get(&format!("/api/v1/runs/{run_id}/runner-jobs")).await.ok()["runnerJobs"][0];
    let summary =
        json!({"status": "idle", "turnStatus": "failed", "failureKind": "backend-failed", "textsRemoved": true});
    assert_eq!((&job["phase"], &job["terminalSummary"]), (&json!("succeeded"), &summary));
    assert_eq!(job["observed"], json!({"phase": "failed", "reason": "OOMKilled"}));
    assert_eq!(verify(server, engine).await.broken, vec![]);
}

#[both_engines]
async fn texts_beside_the_log_go_with_its_payloads(engine: Engine) {
    let server = hourly(engine).await;
    let (run_id, command_id) = failed(&server).await;
    assert!(columns_with_texts(&server).await.len() >= 5, "they are there before");
    server.clock.advance_ms(DAY_MS);
    sweep(&server, json!({})).await;
    check(&server, engine, &run_id, &command_id).await;
}

#[both_engines]
async fn texts_beside_the_log_go_in_steps(engine: Engine) {
    let server = TestServer::with(engine, in_single_steps).await;
    let (run_id, command_id) = failed(&server).await;
    server.clock.advance_ms(DAY_MS);
    sweep_all(&server, json!({})).await;
    check(&server, engine, &run_id, &command_id).await;
    // A sweep that was interrupted between two steps leaves nothing that does not fit.
    assert_eq!(super::total(&sweep(&server, json!({})).await), (0, 0));
}

#[both_engines]
async fn removed_changes_are_unknown_and_not_none(engine: Engine) {
    let server = hourly(engine).await;
    let (run_id, command_id) = failed(&server).await;
    let path = format!("/api/v1/runs/{run_id}/commands/{command_id}/diff");
    let before = server.get(&path).await.with_status(200);
    assert_eq!((&before["unknown"], &before["diff"]), (&json!(false), &json!("+planted-line\n")));
    server.clock.advance_ms(DAY_MS);
    sweep(&server, json!({})).await;
    let after = server.get(&path).await.with_status(200);
    assert_eq!((&after["unknown"], &after["reason"]), (&json!(true), &json!("the changes were removed by retention")));
    assert_eq!((&after["filesChanged"], &after["linesAdded"]), (&json!(2), &json!(3)), "the counts stay");
    assert_eq!((&after["files"], &after["diff"]), (&json!([]), &json!("")));
}

#[both_engines]
async fn texts_that_an_earlier_version_left_are_removed_by_a_later_sweep(engine: Engine) {
    let server = hourly(engine).await;
    failed(&server).await;
    server.clock.advance_ms(DAY_MS);
    sweep_all(&server, json!({})).await;
    // An earlier version removed the payloads of events only.
    server.store("UPDATE payload_removals SET texts_removed = 0").await;
    server.store("UPDATE commands SET payload = '{\"prompt\":\"planted-left\"}'").await;
    sweep_all(&server, json!({})).await;
    assert_eq!(columns_with_texts(&server).await, Vec::<String>::new());
    assert_eq!(verify(&server, engine).await.broken, vec![]);
    assert_eq!(server.store("SELECT CAST(texts_removed AS TEXT) FROM payload_removals").await, ["1"]);
}
