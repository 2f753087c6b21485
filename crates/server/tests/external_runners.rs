//! Runners elsewhere: they claim the jobs of the profiles that the server leaves to them. A job belongs to one runner, comes back
//! when that runner is lost, and runners that want the same get jobs in turn.

use std::time::Duration;

use ostler_protocol::{
    FailureKind::*,
    limits::{JOB_ATTEMPTS_MAX, JOB_PROFILES_MAX},
};
use ostler_server::clock::Clock;
use serde_json::{Value, json};

use crate::harness::{
    Answer, Caller, EXTERNAL, Engine, ManualRunner, TestServer, both_engines, eventually, id, run_body,
};

const CLAIM: &str = "/api/v1/runner-jobs/claim";

/// A run with its first turn, and a standing job for it.
async fn started(server: &TestServer, prompt: &str) -> (String, String) {
    let mut body = run_body();
    body["backendProfile"] = json!(EXTERNAL);
    body["command"] = json!({"type": "turn", "payload": {"prompt": prompt}});
    let made = server.post("/api/v1/runs", &body).await.with_status(201);
    (id(&made, "runId"), id(&made["command"], "commandId"))
}

async fn try_job(caller: &Caller, runner_id: &str, wait_ms: u64) -> Answer {
    caller.post(CLAIM, &json!({"runnerId": runner_id, "profiles": [EXTERNAL], "waitMs": wait_ms})).await
}

/// Claims a job that is there, and its run.
async fn work(caller: &Caller, runner_id: &str) -> ManualRunner {
    let claimed = try_job(caller, runner_id, 0).await.with_status(200);
    assert_eq!(claimed["runnerJob"]["runnerId"], runner_id);
    caller.claim(&id(&claimed["run"], "runId"), runner_id).await
}

/// When a runner last requested a job of the external profile.
async fn last_claim_at(server: &TestServer) -> Value {
    let found = server.get("/api/v1/backends").await.ok();
    let backend = found["backends"].as_array().unwrap().iter().find(|backend| backend["profile"] == EXTERNAL);
    backend.unwrap()["external"]["lastClaimAt"].clone()
}

async fn job_of(server: &TestServer, run_id: &str) -> Value {
    let jobs = server.get(&format!("/api/v1/runs/{run_id}/runner-jobs")).await.ok();
    jobs["runnerJobs"][0].clone()
}

#[both_engines]
async fn a_runner_elsewhere_finds_its_work_and_the_server_keeps_off(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 64;
        setup.token("runner", "runner", &["hwlab"]);
    })
    .await;
    let (run_id, turn) = started(&server, "hi").await;
    // The server's own launcher runs another run from beginning to end in the meantime.
    let (own_run, own_turn) = server.start("own").await;
    assert_eq!(server.ended(&own_run, &own_turn).await["reply"], "own");
    let job = job_of(&server, &run_id).await;
    assert_eq!((&job["phase"], &job["launcher"]), (&json!("pending"), &json!("external")));
    let caller = server.caller("runner");
    let runner = work(caller, "mine").await;
    assert_eq!(job_of(&server, &run_id).await["phase"], "running");
    runner.ack(&turn).await;
    runner.say(&turn, "done elsewhere").await;
    runner.end(&turn, "completed").await;
    runner.release().await;
    assert_eq!(server.result(&run_id, &turn).await["reply"], "done elsewhere");
    assert_eq!(job_of(&server, &run_id).await["phase"], "succeeded", "the release of the lease ended it");
    try_job(caller, "mine", 0).await.with_status(204);
    // The next turn of the run is work again.
    let next = server.turn(&run_id, "again").await;
    let runner = work(caller, "mine").await;
    assert_eq!(runner.poll("").await["commands"][0]["commandId"], next.as_str());
}

#[both_engines]
async fn a_waiting_runner_gets_a_job_as_soon_as_there_is_one(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.limits.recheck_ms = 60_000).await;
    let waiting = async { try_job(&server, "mine", 30_000).await.with_status(200) };
    let submitting = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        started(&server, "hi").await.0
    };
    let both = tokio::time::timeout(Duration::from_secs(20), async { tokio::join!(waiting, submitting) });
    let (claimed, run_id) = both.await.expect("the claim does not wait for its time");
    assert_eq!(claimed["run"]["runId"], run_id.as_str());
    try_job(&server, "mine", 50).await.with_status(204);
}

#[both_engines]
async fn no_two_runners_get_the_same_job(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut runs = vec![];
    for n in 0..12 {
        runs.push(started(&server, &n.to_string()).await.0);
    }
    let claims = (0..20).map(|n| {
        let caller = (*server).clone();
        async move {
            let answer = try_job(&caller, &format!("runner-{n}"), 0).await;
            (answer.status == 200).then(|| id(&answer.ok()["run"], "runId"))
        }
    });
    let mut claimed: Vec<_> = futures_util::future::join_all(claims).await.into_iter().flatten().collect();
    // Runners that came while another one looked were sent away; the rest is theirs now.
    while let Some(run_id) = Some(try_job(&server, "late", 0).await).filter(|answer| answer.status == 200) {
        claimed.push(id(&run_id.ok()["run"], "runId"));
    }
    claimed.sort_unstable();
    runs.sort_unstable();
    assert_eq!(claimed, runs);
}

#[both_engines]
async fn waiting_runners_get_jobs_in_the_order_in_which_they_came(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut waiting = vec![];
    for n in 0..3 {
        let caller = (*server).clone();
        server.clock.advance_ms(1);
        waiting
            .push(tokio::spawn(async move { try_job(&caller, &format!("runner-{n}"), 30_000).await.with_status(200) }));
        let now = json!(server.clock.now());
        eventually("the runner waits", async || (last_claim_at(&server).await == now).then_some(())).await;
    }
    for runner in waiting {
        let (run_id, _) = started(&server, "hi").await;
        let claimed = tokio::time::timeout(Duration::from_secs(20), runner).await.expect("its turn").unwrap();
        assert_eq!(claimed["run"]["runId"], run_id.as_str());
    }
}

#[both_engines]
async fn a_claim_whose_answer_was_lost_comes_back(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (run_id, turn) = started(&server, "hi").await;
    try_job(&server, "gone", 0).await.with_status(200);
    try_job(&server, "next", 0).await.with_status(204);
    server.clock.advance_ms(server.config.runner.job_silence_ms + 1);
    let claimed = try_job(&server, "next", 20_000).await.with_status(200);
    assert_eq!((&claimed["run"]["runId"], &claimed["runnerJob"]["attempt"]), (&json!(run_id), &json!(1)));
    // The first one comes late, and finds the run taken.
    let runner = server.claim(&run_id, "next").await;
    server.try_claim(&run_id, "gone", 60_000).await.refused_by(RunnerLeaseConflict, "lease-held");
    runner.end(&turn, "completed").await;
    runner.release().await;
    assert_eq!(job_of(&server, &run_id).await["phase"], "succeeded");
}

#[both_engines]
async fn claims_whose_answers_were_lost_do_not_use_up_the_starts(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (run_id, turn) = started(&server, "hi").await;
    for n in 0..=JOB_ATTEMPTS_MAX {
        try_job(&server, &format!("gone-{n}"), 20_000).await.with_status(200);
        server.clock.advance_ms(server.config.runner.job_silence_ms + 1);
    }
    let claimed = try_job(&server, "next", 20_000).await.with_status(200);
    assert_eq!(claimed["runnerJob"]["attempt"], 1);
    let runner = server.claim(&run_id, "next").await;
    runner.end(&turn, "completed").await;
    assert_eq!(server.result(&run_id, &turn).await["terminalStatus"], "completed");
}

#[both_engines]
async fn the_work_of_a_runner_that_is_lost_goes_to_the_next(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (run_id, turn) = started(&server, "hi").await;
    let lost = work(&server, "lost").await;
    lost.ack(&turn).await;
    // While it renews its lease, the job is its own, however long it takes.
    for _ in 0..4 {
        server.clock.advance_ms(40_000);
        lost.heartbeat().await;
    }
    try_job(&server, "next", 300).await.with_status(204);
    server.clock.advance_ms(60_001);
    let claimed = try_job(&server, "next", 20_000).await.with_status(200);
    assert_eq!(claimed["run"]["runId"], run_id.as_str());
    let ends = server.events_of(&run_id, "backend_status").await;
    let end = &ends.iter().find(|event| event["payload"]["phase"] == "runner-ended").unwrap()["payload"]["end"];
    assert_eq!(end["category"], "runner-job-observe-failed", "{end}");
    let next = server.claim(&run_id, "next").await;
    lost.try_end(&turn, "failed").await.refused_by(RunnerLeaseConflict, "lease-epoch-stale");
    next.ack(&turn).await;
    next.say(&turn, "taken over").await;
    next.end(&turn, "completed").await;
    assert_eq!(server.result(&run_id, &turn).await["reply"], "taken over");
}

#[both_engines]
async fn work_that_every_runner_leaves_behind_is_given_up(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (run_id, turn) = started(&server, "hi").await;
    server.clock.advance_ms(1);
    for n in 1..=5 {
        let runner = work(&server, &format!("runner-{n}")).await;
        runner.release().await;
        server.clock.advance_ms(60_000);
    }
    let result = server.result(&run_id, &turn).await;
    let end = (&result["terminalStatus"], &result["failureKind"]);
    assert_eq!(end, (&json!("failed"), &json!("infra-failed")), "{result}");
    assert_eq!(job_of(&server, &run_id).await["phase"], "failed");
}

#[both_engines]
async fn a_runner_elsewhere_outlives_the_server(engine: Engine) {
    let mut server = TestServer::start(engine).await;
    let (run_id, turn) = started(&server, "hi").await;
    let mut runner = work(&server, "mine").await;
    runner.ack(&turn).await;
    server.restart().await;
    runner.caller = (*server).clone();
    runner.say(&turn, "still here").await;
    runner.end(&turn, "completed").await;
    assert_eq!(server.result(&run_id, &turn).await["reply"], "still here");
    // A job whose run was not claimed yet is still its own, too.
    let (run_id, _) = started(&server, "again").await;
    try_job(&server, "mine", 0).await.with_status(200);
    server.restart().await;
    try_job(&server, "next", 100).await.with_status(204);
    server.claim(&run_id, "mine").await;
}

#[both_engines]
async fn a_job_that_is_not_standing_ends_with_the_silence_of_its_runner(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run_with(|run| run["backendProfile"] = json!(EXTERNAL)).await;
    let turn = server.turn(&run_id, "hi").await;
    server.create_job(&run_id, &json!({"commandId": turn})).await.with_status(201);
    let runner = work(&server, "mine").await;
    runner.end(&turn, "completed").await;
    runner.release().await;
    server.clock.advance_ms(server.config.runner.job_silence_ms + 1);
    eventually("the sweeper ends it", async || (job_of(&server, &run_id).await["phase"] == "succeeded").then_some(()))
        .await;
}

#[both_engines]
async fn a_job_without_work_is_not_given_to_a_runner(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (run_id, turn) = started(&server, "hi").await;
    server.cancel_command(&turn).await;
    try_job(&server, "mine", 0).await.with_status(204);
    assert_eq!(job_of(&server, &run_id).await["phase"], "succeeded");
    assert_eq!(server.result(&run_id, &turn).await["terminalStatus"], "cancelled");
}

#[both_engines]
async fn a_runner_sees_the_jobs_of_its_tenants_and_profiles_only(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.external_profiles.push("other".into());
        setup.token("here", "runner", &["hwlab"]);
        setup.token("there", "runner", &["unidesk"]);
        setup.token("client", "client", &["hwlab"]);
    })
    .await;
    started(&server, "hi").await;
    try_job(server.caller("there"), "r", 0).await.with_status(204);
    let other = json!({"runnerId": "r", "profiles": ["other"]});
    server.caller("here").post(CLAIM, &other).await.with_status(204);
    try_job(server.caller("client"), "r", 0).await.refused_by(Forbidden, "role");
    server.with_token(None).post(CLAIM, &other).await.refused(Unauthenticated);
    let both = json!({"runnerId": "r", "profiles": ["other", EXTERNAL, "other"]});
    server.caller("here").post(CLAIM, &both).await.with_status(200);
}

#[both_engines]
async fn a_claim_that_makes_no_sense_is_refused(engine: Engine) {
    let server = TestServer::start(engine).await;
    let claim = |change: Value| {
        let mut body = json!({"runnerId": "r", "profiles": [EXTERNAL]});
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        body
    };
    let many = vec![EXTERNAL; JOB_PROFILES_MAX + 1];
    server.post(CLAIM, &claim(json!({"profiles": many[1..]}))).await.with_status(204);
    for (change, rule) in [
        (json!({"profiles": []}), "runner-profiles"),
        (json!({"profiles": many}), "runner-profiles"),
        (json!({"profiles": ["No Slug"]}), "slug-shape"),
        (json!({"runnerId": ""}), "name-shape"),
        (json!({"waitMs": 30_001}), "wait-limit"),
    ] {
        server.post(CLAIM, &claim(change)).await.refused_by(SchemaInvalid, rule);
    }
    let refused = server.post(CLAIM, &claim(json!({"profiles": ["scripted"]}))).await;
    let refused = refused.refused_by(TenantPolicyDenied, "profile-not-external");
    assert_eq!(refused.details["profile"], "scripted");
}

#[both_engines]
async fn the_job_of_a_cancelled_run_ends_and_is_given_to_no_runner(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (run_id, _) = started(&server, "hi").await;
    // A second job that is not standing.
    server.create_job(&run_id, &json!({"standing": false})).await.with_status(201);
    assert_eq!(server.cancel_run(&run_id).await["status"], "cancelled");
    let jobs = server.get(&format!("/api/v1/runs/{run_id}/runner-jobs")).await.ok();
    let phases: Vec<_> = jobs["runnerJobs"].as_array().unwrap().iter().map(|job| job["phase"].clone()).collect();
    assert_eq!(phases, [json!("cancelled"), json!("cancelled")]);
    try_job(&server, "mine", 0).await.with_status(204);
    assert_eq!(server.store("SELECT job_name FROM runner_jobs WHERE phase = 'pending'").await, [""; 0]);
}

#[both_engines]
async fn a_cancelled_command_leaves_the_pending_jobs_of_its_run_alone(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (run_id, turn) = started(&server, "hi").await;
    let body = json!({"standing": false, "idempotencyKey": "once"});
    let job = server.create_job(&run_id, &body).await.with_status(201);
    server.cancel_command(&turn).await;
    let jobs = server.get(&format!("/api/v1/runs/{run_id}/runner-jobs")).await.ok();
    let phases: Vec<_> = jobs["runnerJobs"].as_array().unwrap().iter().map(|job| job["phase"].clone()).collect();
    assert_eq!(phases, [json!("pending"), json!("pending")]);
    let next = server.turn(&run_id, "again").await;
    let again = server.create_job(&run_id, &body).await.with_status(200);
    assert_eq!((&again["runnerJobId"], &again["phase"]), (&job["runnerJobId"], &json!("pending")));
    let runner = work(&server, "mine").await;
    assert_eq!(runner.poll("").await["commands"][0]["commandId"], next.as_str());
}

#[both_engines]
async fn the_job_of_a_cancelled_session_ends_and_its_next_turn_is_a_job_again(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (run_id, turn) = started(&server, "hi").await;
    let session_id = id(&server.run(&run_id).await, "sessionId");
    let path = format!("/api/v1/sessions/{session_id}/control");
    server.post(&path, &json!({"action": "cancel"})).await.with_status(200);
    let job = job_of(&server, &run_id).await;
    let message = &job["terminalSummary"]["message"];
    assert_eq!(
        (&job["phase"], message),
        (&json!("cancelled"), &json!("the turn was cancelled before a runner claimed the job"))
    );
    assert_eq!(server.result(&run_id, &turn).await["terminalStatus"], "cancelled");
    try_job(&server, "mine", 0).await.with_status(204);
    assert_eq!(job_of(&server, &run_id).await["phase"], "cancelled", "it does not succeed later");
    let next = server.turn(&run_id, "again").await;
    assert_eq!(job_of(&server, &run_id).await["phase"], "pending");
    let runner = work(&server, "mine").await;
    assert_eq!(runner.poll("").await["commands"][0]["commandId"], next.as_str());
}

#[both_engines]
async fn a_job_whose_runner_was_lost_while_its_run_was_cancelled_ends(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (run_id, turn) = started(&server, "hi").await;
    let runner = work(&server, "mine").await;
    runner.ack(&turn).await;
    server.cancel_run(&run_id).await;
    assert_eq!(job_of(&server, &run_id).await["phase"], "running", "its runner has to stop the turn");
    server.clock.advance_ms(3_600_000);
    eventually("the run ends", async || (server.run(&run_id).await["status"] == "cancelled").then_some(())).await;
    assert_eq!(job_of(&server, &run_id).await["phase"], "cancelled");
    try_job(&server, "mine", 0).await.with_status(204);
}

#[both_engines]
async fn an_external_profile_is_shown_with_the_last_request_for_a_job(engine: Engine) {
    let server = TestServer::start(engine).await;
    let shown = async |path: &str, list: &str| -> Value {
        let found = server.get(path).await.with_status(200);
        let found = found[list].as_array().unwrap().iter().find(|one| one["profile"] == EXTERNAL).cloned();
        found.unwrap_or_else(|| panic!("{EXTERNAL} in {path}"))
    };
    let backend = shown("/api/v1/backends", "backends").await;
    assert_eq!((&backend["ready"], &backend["external"]), (&json!(true), &json!({"lastClaimAt": null})));
    assert_eq!(backend["message"], "external profile; no runner has requested a job since this server started");
    let profile = shown("/api/v1/provider-profiles", "providerProfiles").await;
    assert_eq!((&profile["agent"], &profile["ready"]), (&json!("external"), &json!(true)));
    assert_eq!(profile["message"], backend["message"], "both lists show the same note");
    server.get(&format!("/api/v1/provider-profiles/{EXTERNAL}")).await.with_status(200);
    let trial = format!("/api/v1/provider-profiles/{EXTERNAL}/validate");
    let trial = server.post(&trial, &json!({"tenantId": "hwlab"})).await.with_status(202);
    assert_eq!((&trial["status"], &trial["tenantId"]), (&json!("running"), &Value::Null), "it waits for a runner");
    server.post(&format!("/api/v1/runs/{}/cancel", id(&trial, "runId")), &json!({})).await;
    try_job(&server, "mine", 0).await.with_status(204);
    server.clock.advance_ms(7_000);
    let backend = shown("/api/v1/backends", "backends").await;
    assert!(backend["external"]["lastClaimAt"].is_string(), "{backend}");
    assert_eq!(backend["message"], "external profile; a runner last requested a job 7 s ago");
    let profile = shown("/api/v1/provider-profiles", "providerProfiles").await;
    assert_eq!(profile["message"], backend["message"]);
    assert_eq!(profile["lastClaimAt"], backend["external"]["lastClaimAt"]);
}

#[both_engines]
async fn a_run_that_no_runner_has_claimed_names_the_profile_it_waits_for(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (run_id, turn) = started(&server, "hi").await;
    let result = server.result(&run_id, &turn).await;
    assert_eq!(result["liveness"]["externalProfile"], EXTERNAL);
    let summary = result["supervisor"]["summary"].as_str().unwrap();
    assert!(summary.contains(&format!("waiting for a runner that claims profile {EXTERNAL}")), "{summary}");
    assert!(result["liveness"]["suggestedAction"].as_str().unwrap().contains("start a runner that claims profile"));
    let session_id = id(&result, "sessionId");
    let session = server.get(&format!("/api/v1/sessions/{session_id}")).await.with_status(200);
    assert_eq!((&session["state"], &session["liveness"]["externalProfile"]), (&json!("waiting"), &json!(EXTERNAL)));
    work(&server, "mine").await.ack(&turn).await;
    assert_eq!(server.result(&run_id, &turn).await["liveness"]["externalProfile"], Value::Null);
    // The server starts the runners of other profiles itself.
    let own = server.create_run().await;
    let own_turn = server.turn(&own, "hi").await;
    assert_eq!(server.result(&own, &own_turn).await["liveness"]["externalProfile"], Value::Null);
}
