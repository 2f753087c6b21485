//! T4: one owner at a time. The loser learns who holds the run and until when, waits, takes over; an old epoch writes
//! nothing.

use ostler_protocol::FailureKind::*;
use serde_json::{Value, json};

use crate::harness::{Answer, Engine, ManualRunner, Setup, TestServer, both_engines, eventually, id, of_program};

const LEASE_MS: i64 = 60_000;

#[both_engines]
async fn of_two_runners_one_becomes_the_owner(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let claims = (0..8).map(|n| {
        let (caller, run_id) = (server.with_token(Some(&server.operator_token())), run_id.clone());
        tokio::spawn(async move { caller.try_claim(&run_id, &format!("runner-{n}"), LEASE_MS).await })
    });
    let mut answers: Vec<Answer> = vec![];
    for claim in claims.collect::<Vec<_>>() {
        answers.push(claim.await.unwrap());
    }
    let (won, lost): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status == 200);
    assert_eq!((won.len(), lost.len()), (1, 7));
    for answer in lost {
        answer.refused_by(RunnerLeaseConflict, "lease-held");
    }
    let claimed = server.events_of(&run_id, "lease").await;
    assert_eq!(claimed.iter().filter(|event| event["payload"]["state"] == "claimed").count(), 1);
}

#[both_engines]
async fn the_loser_learns_owner_and_expiry(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let claimed = server.try_claim(&run_id, "runner-a", LEASE_MS).await.with_status(200);
    assert_eq!((&claimed["leaseEpoch"], &claimed["run"]["runId"]), (&json!(1), &json!(run_id)));
    assert!(id(&claimed, "attemptId").starts_with("att_"));
    server.clock.advance_ms(1_500);
    let answer = server.try_claim(&run_id, "runner-b", LEASE_MS).await;
    assert_eq!(answer.headers["retry-after"], "59");
    let refused = answer.refused_by(RunnerLeaseConflict, "lease-held");
    assert_eq!(refused.details["ownerRunnerId"], "runner-a");
    assert_eq!(refused.details["leaseExpiresAt"], claimed["leaseExpiresAt"]);
    assert_eq!((&refused.details["leaseEpoch"], &refused.details["retryAfterMs"]), (&json!(1), &json!(58_500)));
}

#[both_engines]
async fn second_runner_waits_for_the_lease_to_expire(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "work").await;
    server.claim(&run_id, "runner-a").await;
    server.try_claim(&run_id, "runner-b", LEASE_MS).await.refused(RunnerLeaseConflict);
    server.clock.advance_ms(LEASE_MS - 1);
    server.try_claim(&run_id, "runner-b", LEASE_MS).await.refused(RunnerLeaseConflict);
    server.clock.advance_ms(1);
    let claimed = server.try_claim(&run_id, "runner-b", LEASE_MS).await.with_status(200);
    assert_eq!(claimed["leaseEpoch"], 2);
    assert_eq!(claimed["commands"][0]["commandId"], command_id.as_str());
}

#[both_engines]
async fn waiting_and_recovery_are_visible_once_per_waiter(engine: Engine) {
    // Whether the sweeper finds the expired lease first makes no difference to who recovers; here it does not.
    let server = TestServer::with(engine, |setup| setup.config.runner.sweep_interval_ms = 3_600_000).await;
    let run_id = server.create_run().await;
    server.claim(&run_id, "runner-a").await;
    for _ in 0..3 {
        for waiter in ["runner-b", "runner-c"] {
            server.try_claim(&run_id, waiter, LEASE_MS).await.refused(RunnerLeaseConflict);
        }
    }
    server.clock.advance_ms(LEASE_MS);
    server.claim(&run_id, "runner-b").await;
    let leases = server.events_of(&run_id, "lease").await;
    let told = |event: &Value| (id(&event["payload"], "state"), id(&event["payload"], "runnerId"));
    let told: Vec<_> = leases.iter().map(told).collect();
    let expected = [("claimed", "a"), ("claim-waiting", "b"), ("claim-waiting", "c"), ("recovered", "b")];
    assert_eq!(told, expected.map(|(state, runner)| (state.to_owned(), format!("runner-{runner}"))));
    let phases: Vec<_> = leases.iter().map(|event| event["payload"]["phase"].clone()).collect();
    assert_eq!(phases, [json!("run-claimed"), Value::Null, Value::Null, json!("run-claimed")]);
    assert_eq!(leases[1]["payload"]["ownerRunnerId"], "runner-a");
    assert_eq!(leases[3]["payload"]["previousRunnerId"], "runner-a");
}

/// Every write of a runner, each of which must be refused by `rule`.
async fn all_refused(runner: &ManualRunner, command_id: &str, rule: &str) {
    let event = json!([{"type": "custom", "commandId": command_id, "payload": {"name": "stale"}}]);
    runner.try_append(None, event.clone()).await.refused_by(RunnerLeaseConflict, rule);
    runner.try_append(Some(99), event).await.refused_by(RunnerLeaseConflict, rule);
    runner.try_ack(command_id).await.refused_by(RunnerLeaseConflict, rule);
    runner.try_end(command_id, "completed").await.refused_by(RunnerLeaseConflict, rule);
    runner.try_end(command_id, "running").await.refused_by(RunnerLeaseConflict, rule);
    runner.try_end_run("failed").await.refused_by(RunnerLeaseConflict, rule);
    runner.try_patch_lease(json!({})).await.refused_by(RunnerLeaseConflict, rule);
    let release = runner.try_patch_lease(json!({"release": true})).await;
    match rule {
        "lease-released" => assert_eq!(release.with_status(200)["released"], true, "to release twice is fine"),
        _ => drop(release.refused_by(RunnerLeaseConflict, rule)),
    }
}

#[both_engines]
async fn a_stale_epoch_writes_nothing(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "work").await;
    let old = server.claim(&run_id, "runner-a").await;
    old.ack(&command_id).await;
    server.clock.advance_ms(LEASE_MS);
    let expired = server.events_of(&run_id, "lease").await.len();
    eventually("the lease is found expired", async || {
        (server.events_of(&run_id, "lease").await.len() > expired || expired > 1).then_some(())
    })
    .await;
    all_refused(&old, &command_id, "lease-expired").await;
    all_refused(&ManualRunner { epoch: 7, ..old.clone() }, &command_id, "lease-epoch-unknown").await;
    let new = server.claim(&run_id, "runner-b").await;
    let (before, run) = (server.events(&run_id).await, server.run(&run_id).await);
    all_refused(&old, &command_id, "lease-epoch-stale").await;
    let thief =
        ManualRunner { runner_id: "runner-a".into(), epoch: new.epoch, ..server.claim(&run_id, "runner-b").await };
    all_refused(&thief, &command_id, "lease-epoch-stale").await;
    assert_eq!(server.events(&run_id).await.len(), before.len() + 1, "only the second claim of runner-b");
    let after = server.run(&run_id).await;
    assert_eq!((&after["status"], &after["unfinishedCommands"]), (&run["status"], &run["unfinishedCommands"]));
}

#[both_engines]
async fn the_same_runner_claiming_again_fences_its_older_self(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "work").await;
    let first = server.claim(&run_id, "runner-a").await;
    let second = server.claim(&run_id, "runner-a").await;
    assert_eq!((first.epoch, second.epoch), (1, 2));
    assert_ne!(first.attempt_id, second.attempt_id);
    all_refused(&first, &command_id, "lease-epoch-stale").await;
    let stranger = ManualRunner { runner_id: "runner-z".into(), ..first };
    let stranger = ManualRunner { epoch: second.epoch, ..stranger };
    all_refused(&stranger, &command_id, "lease-owner").await;
    // An attempt that is not the lease's is refused even under the right epoch.
    let body = json!({"runnerId": "runner-a", "leaseEpoch": 2, "attemptId": stranger.attempt_id});
    let answer = server.post(&format!("/api/v1/commands/{command_id}/ack"), &body).await;
    answer.refused_by(RunnerLeaseConflict, "attempt-stale");
    second.ack(&command_id).await;
}

#[both_engines]
async fn a_heartbeat_extends_the_lease(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let runner = server.claim(&run_id, "runner-a").await;
    for _ in 0..3 {
        server.clock.advance_ms(LEASE_MS - 1);
        let state = runner.heartbeat().await;
        assert_eq!((&state["released"], &state["leaseEpoch"]), (&json!(false), &json!(1)));
    }
    server.try_claim(&run_id, "runner-b", LEASE_MS).await.refused(RunnerLeaseConflict);
    let state = runner.try_patch_lease(json!({"leaseMs": 1_000})).await.with_status(200);
    assert_eq!(state["runCancelRequested"], false);
    server.clock.advance_ms(1_000);
    server.claim(&run_id, "runner-b").await;
    // A heartbeat is not an event.
    assert!(server.events_of(&run_id, "lease").await.len() <= 4);
}

#[both_engines]
async fn a_released_lease_is_free_at_once(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let runner = server.claim(&run_id, "runner-a").await;
    assert_eq!(server.run(&run_id).await["status"], "claimed");
    assert_eq!(runner.release().await["released"], true);
    assert_eq!(server.run(&run_id).await["status"], "pending");
    all_refused(&runner, &server.turn(&run_id, "x").await, "lease-released").await;
    assert_eq!(server.claim(&run_id, "runner-b").await.epoch, 2);
}

#[both_engines]
async fn a_lease_stays_while_a_command_waits(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let runner = server.claim(&run_id, "runner-a").await;
    let command_id = server.turn(&run_id, "just in time").await;
    let idle = json!({"release": true, "onlyIfIdle": true});
    assert_eq!(runner.try_patch_lease(idle.clone()).await.with_status(200)["released"], false);
    runner.end(&command_id, "completed").await;
    assert_eq!(runner.try_patch_lease(idle).await.with_status(200)["released"], true);
}

#[both_engines]
async fn an_expired_lease_returns_the_run_to_pending(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "work").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.tell(&command_id, "step", json!({"name": "s", "status": "started"})).await;
    assert_eq!(server.run(&run_id).await["status"], "running");
    server.clock.advance_ms(LEASE_MS);
    eventually("the run is pending again", async || (server.run(&run_id).await["status"] == "pending").then_some(()))
        .await;
    let leases = server.events_of(&run_id, "lease").await;
    assert_eq!(leases.last().unwrap()["payload"]["state"], "expired");
    // Nothing was decided about the command.
    assert_eq!(server.command(&run_id, &command_id).await["state"], "running");
}

#[both_engines]
async fn a_taken_over_turn_starts_its_reply_again(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "work").await;
    let dead = server.claim(&run_id, "runner-a").await;
    dead.ack(&command_id).await;
    dead.say(&command_id, "half an answer").await;
    server.clock.advance_ms(LEASE_MS);
    let next = server.claim(&run_id, "runner-b").await;
    assert_eq!(server.result(&run_id, &command_id).await["finalResponse"]["text"], "half an answer");
    let acked = next.ack(&command_id).await;
    assert_eq!((&acked["state"], &acked["attemptId"]), (&json!("acked"), &json!(next.attempt_id)));
    assert_eq!(server.result(&run_id, &command_id).await["finalResponse"], Value::Null);
    let restarted = server.events_of(&run_id, "backend_status").await;
    assert_eq!(restarted[0]["payload"]["phase"], "attempt-restarted");
    assert_eq!(restarted[0]["payload"]["previousAttemptId"], dead.attempt_id.as_str());
    next.end(&command_id, "completed").await;
    assert_eq!(server.result(&run_id, &command_id).await["reply"], Value::Null);
}

#[both_engines]
async fn only_the_job_offers_the_first_attempt(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    server.turn(&run_id, "work").await;
    let job = server.create_job(&run_id, &json!({})).await.with_status(201);
    let first = server.claim(&run_id, "runner-a").await;
    assert_eq!(first.attempt_id, id(&job, "attemptId"));
    let second = server.claim(&run_id, "runner-a").await;
    assert_ne!(second.attempt_id, first.attempt_id);
}

#[both_engines]
async fn a_runner_cannot_write_without_a_lease(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "work").await;
    let claimed = json!({"leaseEpoch": 0, "attemptId": "att_"});
    let nobody = ManualRunner::new((*server).clone(), &run_id, "runner-a", &claimed);
    let before = server.events(&run_id).await;
    all_refused(&nobody, &command_id, "lease-absent").await;
    assert_eq!(server.events(&run_id).await, before);
    for lease_ms in [9, 600_001, -1] {
        server.try_claim(&run_id, "runner-a", lease_ms).await.refused_by(SchemaInvalid, "lease-ms");
    }
    for runner_id in ["", " runner", &"r".repeat(201)] {
        server.try_claim(&run_id, runner_id, LEASE_MS).await.refused_by(SchemaInvalid, "name-shape");
    }
    server.try_claim(&run_id, &"r".repeat(200), 600_000).await.with_status(200);
}

#[both_engines]
async fn a_runner_registers_and_registers_again(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let body =
        json!({"runnerId": "runner-a", "runId": run_id, "backendProfile": "scripted", "placement": "host-process"});
    let first = server.post("/api/v1/runners/register", &body).await.with_status(200);
    assert_eq!((&first["runnerId"], &first["tenantId"]), (&json!("runner-a"), &json!("hwlab")));
    server.clock.advance_ms(1_000);
    let again = server.post("/api/v1/runners/register", &body).await.with_status(200);
    assert_eq!(again["registeredAt"], first["registeredAt"]);
    assert_ne!(again["heartbeatAt"], first["heartbeatAt"]);
    for (change, kind) in [
        (json!({"backendProfile": "codex"}), SchemaInvalid),
        (json!({"backendProfile": "No Slug"}), SchemaInvalid),
        (json!({"runnerId": ""}), SchemaInvalid),
        (json!({"runId": "run_nowhere"}), NotFound),
        (json!({"placement": "x".repeat(17_000)}), PayloadTooLarge),
    ] {
        let mut wrong = body.clone();
        wrong.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        server.post("/api/v1/runners/register", &wrong).await.refused(kind);
    }
}

#[both_engines]
async fn leases_of_a_stopped_server_end_where_it_was_alone(engine: Engine) {
    let mut server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "work").await;
    server.claim(&run_id, "runner-a").await.ack(&command_id).await;
    server.restart().await;
    let answer = server.try_claim(&run_id, "runner-b", LEASE_MS).await;
    match engine {
        Engine::Sqlite => assert_eq!(answer.with_status(200)["leaseEpoch"], 2),
        // Other replicas may be alive; their leases run out by themselves.
        Engine::Postgres => drop(answer.refused(RunnerLeaseConflict)),
    }
}

#[both_engines]
async fn a_claim_takes_the_next_turn_up_on_request(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let claim = async |runner: &str, take_up: Value| {
        let body = json!({"runnerId": runner, "leaseMs": LEASE_MS, "takeUp": take_up});
        server.post(&format!("/api/v1/runs/{run_id}/claim"), &body).await
    };
    // There is nothing to take up, and nothing is.
    assert_eq!(claim("runner-a", json!(true)).await.with_status(200)["commands"], json!([]));
    let (first, second) = (server.turn(&run_id, "one").await, server.turn(&run_id, "two").await);
    claim("runner-a", json!("yes")).await.refused(SchemaInvalid);
    assert_eq!(claim("runner-a", json!(false)).await.with_status(200)["commands"][0]["state"], "pending");
    let claimed = claim("runner-a", json!(true)).await.with_status(200);
    let states = |body: &Value| [body["commands"][0]["state"].clone(), body["commands"][1]["state"].clone()];
    assert_eq!(states(&claimed), ["acked", "pending"]);
    assert_eq!(
        (&claimed["commands"][0]["commandId"], &claimed["commands"][0]["attemptId"]),
        (&json!(first), &claimed["attemptId"])
    );
    // What an earlier attempt has had is left for the runner to see to.
    let again = claim("runner-a", json!(true)).await.with_status(200);
    assert_eq!(again["commands"][0]["attemptId"], claimed["attemptId"]);
    assert_eq!(server.command(&run_id, &second).await["state"], "pending");
    // A refused claim takes nothing up.
    claim("runner-b", json!(true)).await.refused_by(RunnerLeaseConflict, "lease-held");
    assert_eq!(server.command(&run_id, &first).await["attemptId"], claimed["attemptId"]);
}

/// An ACP agent that replies to every prompt and stays open for the next one. Our calls are numbered: initialize is 1, the
/// session is 2, the prompts follow.
const AGENT: &str = r#"
say() { printf '%s\n' "$1"; }
read -r l; say '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"agentInfo":{"name":"played"},"agentCapabilities":{"loadSession":true}}}'
read -r l; say '{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s1"}}'
n=2
while read -r l; do n=$((n + 1)); say '{"jsonrpc":"2.0","id":'$n',"result":{"stopReason":"end_turn"}}'; done
"#;
const KEY: &str = "k-0123456789";
const PROFILE_PATH: &str = "/api/v1/provider-profiles/played";

/// For programs: their runners keep the lease between turns.
fn with_programs(setup: &mut Setup) {
    setup.config.runner.slots = 2;
    setup.config.runner.lease_ms = 600_000;
    setup.config.limits.recheck_ms = 60_000;
}

/// Stores the agent's profile with this key.
async fn set_agent(server: &TestServer, key: &str) {
    let config = format!("[ostler]\nagent = \"acp\"\ncommand = [\"/bin/sh\", \"-c\", '''{AGENT}''']\n");
    let auth = json!({"OPENAI_API_KEY": key}).to_string();
    let files = json!({"files": {"auth.json": auth, "config.toml": config}});
    server.call("PUT", &format!("{PROFILE_PATH}/credential"), &files).await.with_status(200);
}

/// A run of a program whose turn has ended, and whose runner waits for another.
async fn idle(server: &TestServer, session_id: &str) -> String {
    let change = |body: &mut Value| {
        body["backendProfile"] = json!("played");
        let secret = json!({"name": "agentrun-v01-provider-played", "keys": ["auth.json", "config.toml"]});
        body["executionPolicy"] =
            json!({"secretScope": {"providerCredentials": [{"profile": "played", "secretRef": secret}]}});
        body["sessionRef"] = json!({"sessionId": session_id});
    };
    let (run_id, command_id) = server.start_with("hi", change).await;
    server.ended(&run_id, &command_id).await;
    assert_eq!(server.run(&run_id).await["status"], "claimed");
    run_id
}

async fn let_go(server: &TestServer, run_id: &str) {
    eventually("its job has ended", async || {
        let jobs = server.get(&format!("/api/v1/runs/{run_id}/runner-jobs")).await.ok();
        (jobs["runnerJobs"][0]["phase"] == "succeeded").then_some(())
    })
    .await;
    assert_eq!(server.run(run_id).await["status"], "pending");
    let leases = server.events_of(run_id, "lease").await;
    assert_eq!(leases.last().unwrap()["payload"]["state"], "released");
}

#[both_engines]
async fn with_every_place_taken_the_longest_idle_runner_gives_way(engine: Engine) {
    let server = TestServer::with(engine, with_programs).await;
    set_agent(&server, KEY).await;
    let first = idle(&server, "first").await;
    server.clock.advance_ms(1_000);
    let second = idle(&server, "second").await;
    server.clock.advance_ms(1_000);
    let third = idle(&server, "third").await;
    let_go(&server, &first).await;
    assert_eq!(server.run(&second).await["status"], "claimed");
    assert_eq!(server.run(&third).await["status"], "claimed");
}

#[both_engines]
async fn a_stopping_server_does_not_wait_for_runners_that_only_wait(engine: Engine) {
    let mut server = TestServer::with(engine, |setup| {
        with_programs(setup);
        // Who waited for it would not be done in time.
        setup.config.server.drain_ms = 3_600_000;
    })
    .await;
    set_agent(&server, KEY).await;
    let run_id = idle(&server, "one").await;
    server.restart().await;
    let_go(&server, &run_id).await;
}

#[both_engines]
async fn storage_of_a_session_whose_runner_only_waits_can_be_evicted(engine: Engine) {
    let server = TestServer::with(engine, with_programs).await;
    set_agent(&server, KEY).await;
    let run_id = idle(&server, "one").await;
    let path = "/api/v1/sessions/one/storage";
    server.send(server.request("DELETE", path)).await.with_status(200);
    let_go(&server, &run_id).await;
}

#[both_engines]
async fn a_changed_credential_reaches_the_next_turn(engine: Engine) {
    let server = TestServer::with(engine, with_programs).await;
    set_agent(&server, KEY).await;
    let run_id = idle(&server, "one").await;
    // The same again is no change.
    set_agent(&server, KEY).await;
    assert_eq!(server.run(&run_id).await["status"], "claimed");
    set_agent(&server, "k-another-one").await;
    let_go(&server, &run_id).await;
    let turn = server.turn(&run_id, "again").await;
    server.ended(&run_id, &turn).await;
    assert_eq!(server.run(&run_id).await["leaseEpoch"], 2, "another runner, in a home with the new key");
}

#[both_engines]
async fn a_turn_after_its_credential_was_deleted_is_refused(engine: Engine) {
    // A program that cannot be started: its turns fail, and its runner leaves.
    let server = TestServer::with(engine, |setup| {
        with_programs(setup);
        setup.config.agents.codex = Some("/nowhere/codex".into());
    })
    .await;
    server.equip().await;
    let (run_id, command_id) = server.start_with("hi", of_program).await;
    server.ended(&run_id, &command_id).await;
    server.send(server.request("DELETE", "/api/v1/provider-profiles/codex")).await.with_status(200);
    let turn = json!({"type": "turn", "payload": {"prompt": "again"}});
    server.submit(&run_id, &turn).await.refused(SecretUnavailable);
}

#[both_engines]
async fn an_idle_runner_of_a_deleted_profile_lets_its_run_go(engine: Engine) {
    let server = TestServer::with(engine, with_programs).await;
    set_agent(&server, KEY).await;
    let run_id = idle(&server, "one").await;
    server.send(server.request("DELETE", PROFILE_PATH)).await.with_status(200);
    let turn = json!({"type": "turn", "payload": {"prompt": "again"}});
    server.submit(&run_id, &turn).await.refused(SecretUnavailable);
    let_go(&server, &run_id).await;
}
