//! T5: the order to start a runner. Its identity is never null, its key is good for one job, and only a standing one
//! starts a runner again.

use ostler_protocol::FailureKind::*;
use serde_json::{Value, json};

use crate::harness::{Engine, TestServer, both_engines, eventually, id};

#[both_engines]
async fn a_job_answers_at_once_with_its_whole_identity(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let job = server.create_job(&run_id, &json!({"commandId": command_id})).await.with_status(201);
    let job_id = id(&job, "runnerJobId");
    assert!(job_id.starts_with("job_"));
    assert_eq!((&job["runId"], &job["commandId"]), (&json!(run_id), &json!(command_id)));
    for field in ["attemptId", "jobName", "namespace", "launcher", "runnerId", "phase"] {
        assert!(job[field].as_str().is_some_and(|text| !text.is_empty()), "{field} in {job}");
    }
    // A runner inside the server has no pod, log file, image or retention. Everything else is known.
    let absent = ["podName", "logPath", "retention", "backendImageRef"];
    for (field, value) in job.as_object().unwrap() {
        assert_eq!(value.is_null(), absent.contains(&field.as_str()), "{field} in {job}");
    }
    assert_eq!((&job["phase"], &job["standing"]), (&json!("pending"), &json!(false)));
    assert_eq!(job["terminalSummary"], json!({}));
    for (name, path) in [
        ("job", format!("/api/v1/runs/{run_id}/runner-jobs/{job_id}")),
        ("events", format!("/api/v1/runs/{run_id}/events")),
        ("result", format!("/api/v1/runs/{run_id}/commands/{command_id}/result")),
    ] {
        assert_eq!(job["poll"][name], path);
        server.get(&path).await.with_status(200);
    }
    assert_eq!(server.get(&id(&job["poll"], "job")).await.ok(), job);
}

#[both_engines]
async fn the_same_key_orders_no_second_runner(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let body = json!({"commandId": command_id, "idempotencyKey": "k"});
    let first = server.create_job(&run_id, &body).await.with_status(201);
    assert_eq!(server.create_job(&run_id, &body).await.with_status(200), first);
    let path = format!("/api/v1/runs/{run_id}/runner-jobs");
    let request =
        server.request("POST", &path).header("idempotency-key", "k").header("content-type", "application/json");
    let by_header = server.send(request.body(json!({"commandId": command_id}).to_string())).await;
    assert_eq!(by_header.with_status(200), first);
    let standing = json!({"commandId": command_id, "idempotencyKey": "k", "standing": true});
    let refused = server.create_job(&run_id, &standing).await.refused_by(IdempotencyConflict, "payload-hash");
    assert_eq!(refused.details["runnerJobId"], first["runnerJobId"]);
    assert_eq!(server.get(&path).await.ok()["runnerJobs"].as_array().unwrap().len(), 1);
    // The key is still taken when the command has ended.
    server.cancel_command(&command_id).await;
    assert_eq!(server.create_job(&run_id, &body).await.with_status(200)["runnerJobId"], first["runnerJobId"]);
}

#[both_engines]
async fn a_job_without_a_command_takes_the_latest(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let path = format!("/api/v1/runs/{run_id}/runner-jobs");
    server.create_job(&run_id, &json!({})).await.refused(NotFound);
    server.turn(&run_id, "one").await;
    let two = server.turn(&run_id, "two").await;
    assert_eq!(server.create_job(&run_id, &json!({})).await.with_status(201)["commandId"], two.as_str());
    // Not even a body is needed.
    let bare = server.send(server.request("POST", &path)).await.with_status(201);
    assert_eq!(bare["commandId"], two.as_str());
}

#[both_engines]
async fn jobs_are_listed_newest_first_and_by_command(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let commands = [server.turn(&run_id, "one").await, server.turn(&run_id, "two").await];
    let mut jobs = vec![];
    for n in 0..5 {
        let body = json!({"commandId": commands[n % 2]});
        jobs.insert(0, id(&server.create_job(&run_id, &body).await.with_status(201), "runnerJobId"));
        server.clock.advance_ms(1);
    }
    let path = format!("/api/v1/runs/{run_id}/runner-jobs");
    let ids = |page: &Value| -> Vec<String> {
        page["runnerJobs"].as_array().unwrap().iter().map(|job| id(job, "runnerJobId")).collect()
    };
    assert_eq!(ids(&server.get(&path).await.ok()), jobs);
    let odd = server.get(&format!("{path}?commandId={}", commands[1])).await.ok();
    assert_eq!(ids(&odd), [jobs[1].as_str(), jobs[3].as_str()]);
    assert_eq!(ids(&server.get(&format!("{path}?commandId=cmd_x")).await.ok()), Vec::<String>::new());
    let (mut walked, mut query) = (vec![], String::new());
    loop {
        let page = server.get(&format!("{path}?limit=2{query}")).await.ok();
        walked.extend(ids(&page));
        let Some(cursor) = page["nextCursor"].as_str() else { break };
        query = format!("&cursor={cursor}");
    }
    assert_eq!(walked, jobs);
    let foreign = server.get(&format!("{path}?commandId={}{query}", commands[0])).await;
    foreign.refused_by(SchemaInvalid, "cursor-unknown");
    let elsewhere = server.create_run().await;
    server.get(&format!("/api/v1/runs/{elsewhere}/runner-jobs/{}", jobs[0])).await.refused(NotFound);
}

#[both_engines]
async fn a_job_for_what_is_over_is_refused(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let (one, two) = (server.turn(&run_id, "one").await, server.turn(&run_id, "two").await);
    server.cancel_command(&one).await;
    server.create_job(&run_id, &json!({"commandId": one})).await.refused_by(Cancelled, "command-cancelled");
    let runner = server.claim(&run_id, "runner-a").await;
    runner.end(&two, "completed").await;
    // The status and the kind are those of the manager's specification.
    let refused = server.create_job(&run_id, &json!({"commandId": two})).await.with_status(409);
    assert_eq!(
        (&refused["failureKind"], &refused["details"]["rule"]),
        (&json!("schema-invalid"), &json!("command-terminal"))
    );
    server.create_job(&run_id, &json!({"commandId": "cmd_x"})).await.refused(NotFound);
    runner.release().await;
    server.cancel_run(&run_id).await;
    server.create_job(&run_id, &json!({})).await.refused_by(Cancelled, "run-cancelled");
    let path = format!("/api/v1/runs/{run_id}/runner-jobs");
    assert_eq!(server.get(&path).await.ok()["runnerJobs"], json!([]));
}

#[both_engines]
async fn a_command_that_a_runner_works_on_gets_no_second_one(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let turn = server.turn(&run_id, "work").await;
    let body = json!({"commandId": turn, "idempotencyKey": "k"});
    let first = server.create_job(&run_id, &body).await.with_status(201);
    let runner = server.claim(&run_id, "runner-a").await;
    let other = server.turn(&run_id, "next").await;
    let bare = json!({"commandId": turn});
    for state in ["acked", "running"] {
        match state {
            "acked" => drop(runner.ack(&turn).await),
            _ => drop(runner.say(&turn, "at it").await),
        }
        let refused = server.create_job(&run_id, &bare).await.with_status(409);
        assert_eq!(
            (&refused["failureKind"], &refused["details"]["rule"], &refused["details"]["state"]),
            (&json!("schema-invalid"), &json!("command-not-pending"), &json!(state))
        );
    }
    // The same key still returns the first answer, and a command that waits can get a runner.
    assert_eq!(server.create_job(&run_id, &body).await.with_status(200)["runnerJobId"], first["runnerJobId"]);
    server.create_job(&run_id, &json!({"commandId": other})).await.with_status(201);
    // Once its runner is lost, the command can get another one.
    server.clock.advance_ms(60_001);
    assert_eq!(server.command(&run_id, &turn).await["state"], "running");
    server.create_job(&run_id, &bare).await.with_status(201);
}

/// The job once it has come to an end.
async fn finished(server: &TestServer, job: &Value) -> Value {
    eventually("the job ends", async || {
        let job = server.get(&id(&job["poll"], "job")).await.ok();
        (!["pending", "running"].contains(&job["phase"].as_str().unwrap())).then_some(job)
    })
    .await
}

#[both_engines]
async fn a_job_runs_its_command_and_records_how_it_ended(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let job = server.create_job(&run_id, &json!({"commandId": command_id})).await.with_status(201);
    let result = server.ended(&run_id, &command_id).await;
    assert_eq!((&result["reply"], &result["attemptId"]), (&json!("hi"), &job["attemptId"]));
    let job = finished(&server, &job).await;
    assert_eq!((&job["phase"], &job["attempt"]), (&json!("succeeded"), &json!(1)));
    assert_eq!(job["terminalSummary"]["status"], "idle");
    assert_eq!(job["terminalSummary"]["turnStatus"], "completed");
    assert_eq!(server.run(&run_id).await["status"], "pending");
}

#[both_engines]
async fn a_managers_job_is_not_standing(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let run_id = server.create_run().await;
    let one = server.turn(&run_id, "one").await;
    let job = server.create_job(&run_id, &json!({"commandId": one})).await.with_status(201);
    server.ended(&run_id, &one).await;
    finished(&server, &job).await;
    let two = server.turn(&run_id, "two").await;
    // Another run from beginning to end, by the same launcher: time enough for a job that should not stand.
    let (other_run, other) = server.start("meanwhile").await;
    server.ended(&other_run, &other).await;
    let result = server.result(&run_id, &two).await;
    assert_eq!((&result["status"], &result["liveness"]["phase"]), (&json!("pending"), &json!("waiting-runner")));
    server.create_job(&run_id, &json!({"commandId": two})).await.with_status(201);
    assert_eq!(server.ended(&run_id, &two).await["reply"], "two");
}

#[both_engines]
async fn a_standing_job_starts_a_runner_for_the_next_command(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let (run_id, one) = server.start("one").await;
    assert_eq!(server.ended(&run_id, &one).await["reply"], "one");
    for prompt in ["two", "three"] {
        let command_id = server.turn(&run_id, prompt).await;
        assert_eq!(server.ended(&run_id, &command_id).await["reply"], prompt);
    }
    let jobs = server.get(&format!("/api/v1/runs/{run_id}/runner-jobs")).await.ok();
    assert_eq!(jobs["runnerJobs"].as_array().unwrap().len(), 1);
    assert_eq!(jobs["runnerJobs"][0]["standing"], true);
}

#[both_engines]
async fn jobs_left_by_a_stopped_server_are_taken_up_again(engine: Engine) {
    let mut server = TestServer::with_runner(engine).await;
    let script = json!({"script": [{"say": "begun"}, {"wait": 400}, {"say": "done"}]}).to_string();
    let (run_id, command_id) = server.start(&script).await;
    eventually("the turn has begun", async || {
        (!server.events_of(&run_id, "assistant_message").await.is_empty()).then_some(())
    })
    .await;
    server.restart().await;
    if engine == Engine::Postgres {
        // Another replica could hold lease and job; they must fall silent first.
        server.clock.advance_ms(60_000);
    }
    let result = server.ended(&run_id, &command_id).await;
    assert_eq!((&result["status"], &result["reply"]), (&json!("completed"), &json!("done")));
    let said = server.events_of(&run_id, "assistant_message").await;
    assert_eq!(said.iter().filter(|event| event["payload"]["text"] == "done").count(), 1);
}

#[both_engines]
async fn the_log_of_a_runner_that_is_no_pod_is_what_its_job_has_of_it(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let job = server.create_job(&run_id, &json!({"commandId": command_id})).await.with_status(201);
    let path = format!("{}/log", id(&job["poll"], "job"));
    let log = server.get(&path).await.ok();
    assert_eq!((&log["text"], &log["podName"], &log["finished"]), (&json!(""), &Value::Null, &json!(false)));
    let summary = json!({"logTail": "one\ntwo\nthree"}).to_string();
    server.store(&format!("UPDATE runner_jobs SET phase = 'failed', terminal_summary = '{summary}'")).await;
    let log = server.get(&format!("{path}?tailLines=2")).await.ok();
    assert_eq!(
        (&log["text"], &log["truncated"], &log["finished"]),
        (&json!("two\nthree\n"), &json!(true), &json!(true))
    );
    server.get(&format!("{path}?tailLines=5001")).await.refused_by(SchemaInvalid, "log-lines");
    server.get(&format!("{path}?after=yesterday")).await.refused_by(SchemaInvalid, "log-after");
    let elsewhere = server.create_run().await;
    let foreign = format!("/api/v1/runs/{elsewhere}/runner-jobs/{}/log", id(&job, "runnerJobId"));
    server.get(&foreign).await.refused(NotFound);
}
