//! Retention: what is older than its limit goes, in steps; digests stay; a legal hold wins, whenever it is placed.

mod holds;
mod nouns;
mod space;
mod texts;
mod whole_payloads;

use ostler_protocol::FailureKind::*;
use serde_json::{Value, json};

use crate::harness::{Engine, ManualRunner, Setup, TestServer, both_engines, id};

/// Everything here is older than its limit after a day.
pub(crate) const DAY_MS: i64 = 86_400_000;

/// A server on which payloads of finished runs are kept for an hour.
async fn hourly(engine: Engine) -> TestServer {
    TestServer::with(engine, |setup| setup.config.retention.events_ms = Some(3_600_000)).await
}

/// A server without pauses, whose steps remove one row each.
fn in_single_steps(setup: &mut Setup) {
    setup.config.retention.events_ms = Some(3_600_000);
    setup.config.retention.step_rows = 1;
    setup.config.retention.pause_ms = 0;
}

pub(crate) async fn sweep(server: &TestServer, body: Value) -> Value {
    server.post("/api/v1/retention/sweeps", &body).await.with_status(200)
}

/// Sweeps until nothing is left.
async fn sweep_all(server: &TestServer, body: Value) -> (i64, i64) {
    let (mut items, mut bytes) = (0, 0);
    loop {
        let swept = sweep(server, body.clone()).await;
        let (more_items, more_bytes) = total(&swept);
        items += more_items;
        bytes += more_bytes;
        if swept["hasMore"] == false {
            return (items, bytes);
        }
    }
}

fn total(swept: &Value) -> (i64, i64) {
    let counts = swept["counts"].as_array().unwrap();
    let sum = |field: &str| counts.iter().map(|count| count[field].as_i64().unwrap()).sum();
    (sum("items"), sum("bytes"))
}

/// The counts of a noun of a tenant.
fn count<'a>(swept: &'a Value, noun: &str, tenant: Option<&str>) -> &'a Value {
    let fits = |count: &&Value| count["noun"] == noun && count["tenantId"].as_str() == tenant;
    swept["counts"].as_array().unwrap().iter().find(fits).unwrap_or_else(|| panic!("{noun} of {tenant:?} in {swept}"))
}

/// A run of this tenant at work, and its command.
async fn at_work(server: &TestServer, tenant: &str) -> (ManualRunner, String) {
    let run_id = server.create_run_with(|body| body["tenantId"] = tenant.into()).await;
    let command_id = server.turn(&run_id, "planted-prompt").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    (runner, command_id)
}

/// A finished run with this reply and so many more events; its id and its command.
async fn finished(server: &TestServer, tenant: &str, events: usize) -> (String, String) {
    let (runner, command_id) = at_work(server, tenant).await;
    let event = json!({"type": "command_output", "commandId": command_id, "payload": {"text": "planted-output"}});
    for chunk in vec![event; events].chunks(100) {
        runner.try_append(None, json!(chunk)).await.with_status(200);
    }
    runner.say(&command_id, "planted-reply").await;
    runner.tell(&command_id, "usage", json!({"inputTokens": 100, "outputTokens": 20, "costUsd": 0.25})).await;
    runner.end(&command_id, "completed").await;
    runner.try_end_run("completed").await.with_status(200);
    (runner.run_id, command_id)
}

/// Payloads of the run that are there.
async fn payloads(server: &TestServer, run_id: &str) -> usize {
    server.events(run_id).await.iter().filter(|event| !event["payload"].is_null()).count()
}

pub(crate) async fn hold(server: &TestServer, body: Value) -> String {
    id(&server.post("/api/v1/retention/holds", &body).await.with_status(201), "holdId")
}

pub(crate) async fn release(server: &TestServer, hold_id: &str) -> Value {
    let request = server.request("DELETE", &format!("/api/v1/retention/holds/{hold_id}"));
    server.send(request).await.with_status(200)
}

pub(crate) async fn verify(server: &TestServer, engine: Engine) -> ostler_server::verify::Report {
    let mut config = server.config.clone();
    if engine == Engine::Sqlite {
        // A store in use has one owner; a copy has none.
        let (from, to) = (config.data_dir().unwrap(), tempfile::tempdir().unwrap().keep());
        for file in ["ostler.db", "ostler.db-wal"] {
            std::fs::copy(from.join(file), to.join(file)).unwrap();
        }
        config.server.data_dir = Some(to);
    }
    ostler_server::verify(&config, None).await.unwrap()
}

#[both_engines]
async fn payloads_of_a_run_that_idles_go_and_it_takes_another_turn(engine: Engine) {
    let server = hourly(engine).await;
    let (runner, command_id) = at_work(&server, "hwlab").await;
    runner.say(&command_id, "planted-reply").await;
    runner.end(&command_id, "completed").await;
    runner.release().await;
    server.clock.advance_ms(DAY_MS);
    sweep(&server, json!({})).await;
    let removed = server.events(&runner.run_id).await.len();
    assert_eq!(payloads(&server, &runner.run_id).await, 0);
    let again = server.turn(&runner.run_id, "once more").await;
    let next = server.claim(&runner.run_id, "runner-b").await;
    next.ack(&again).await;
    next.say(&again, "still here").await;
    next.end(&again, "completed").await;
    assert_eq!(server.result(&runner.run_id, &again).await["reply"], "still here");
    let report = verify(&server, engine).await;
    assert_eq!((report.broken, report.removed), (vec![], removed as u64));
}

#[both_engines]
async fn a_sweep_of_an_unknown_tenant_is_rejected(engine: Engine) {
    let server = hourly(engine).await;
    for dry_run in [true, false] {
        let body = json!({"dryRun": dry_run, "tenantId": "nosuch"});
        server.post("/api/v1/retention/sweeps", &body).await.refused(TenantPolicyDenied);
    }
    sweep(&server, json!({"dryRun": true, "tenantId": "hwlab"})).await;
}

#[both_engines]
async fn payloads_of_finished_runs_go_and_their_digests_stay(engine: Engine) {
    let server = hourly(engine).await;
    let (old, command_id) = finished(&server, "hwlab", 3).await;
    let (at_work, _) = at_work(&server, "hwlab").await;
    server.clock.advance_ms(DAY_MS);
    let (new, _) = finished(&server, "hwlab", 0).await;
    let (all, result) = (server.events(&old).await, server.result(&old, &command_id).await);
    assert_eq!((&result["reply"], &result["payloadsRemovedAt"]), (&json!("planted-reply"), &Value::Null));
    let expected = sweep(&server, json!({"dryRun": true})).await;
    assert_eq!(payloads(&server, &old).await, all.len(), "a dry run removes nothing");
    let shown = server.get("/api/v1/retention").await.with_status(200);
    assert_eq!(shown["counts"], expected["counts"]);
    let swept = sweep(&server, json!({})).await;
    assert_eq!((&swept["counts"], &swept["hasMore"]), (&expected["counts"], &json!(false)));
    let removed = count(&swept, "events", Some("hwlab"));
    assert_eq!((removed["items"].as_i64(), removed["held"].as_i64()), (Some(all.len() as i64), Some(0)));
    assert!(removed["bytes"].as_i64().unwrap() > 100, "{removed}");
    // Everything but the payloads is as it was, for readers of pages and for followers.
    let mut without: Vec<Value> = all.clone();
    without.iter_mut().for_each(|event| event["payload"] = Value::Null);
    assert_eq!(server.events(&old).await, without);
    assert_eq!(server.follow(&old, 0).await.take(all.len()).await, without);
    let result = server.result(&old, &command_id).await;
    assert_eq!(
        (&result["completed"], &result["reply"], &result["finalResponse"]),
        (&json!(true), &Value::Null, &Value::Null)
    );
    assert!(result["payloadsRemovedAt"].is_string(), "{result}");
    assert_eq!(server.command(&old, &command_id).await["payload"], json!({}));
    server.get(&format!("/api/v1/runs/{old}/commands/{command_id}/diff")).await.with_status(200);
    server.get(&format!("/api/v1/runs/{old}/commands/{command_id}/conversation")).await.with_status(200);
    for kept in [&at_work.run_id, &new] {
        assert!(server.events(kept).await.iter().all(|event| !event["payload"].is_null()));
    }
    let report = verify(&server, engine).await;
    assert_eq!((report.broken, report.removed, report.erased), (vec![], all.len() as u64, 0));
    assert_eq!(total(&sweep(&server, json!({})).await), (0, 0));
}

#[both_engines]
async fn a_run_whose_input_was_removed_cannot_be_repeated(engine: Engine) {
    let server = hourly(engine).await;
    let (old, command_id) = finished(&server, "hwlab", 0).await;
    let repeat = async |payload: Value| {
        let mut body = crate::harness::run_body();
        body["retryOf"] = json!(old);
        body["command"] = json!({"type": "turn", "payload": payload});
        server.post("/api/v1/runs", &body).await
    };
    repeat(json!({})).await.refused_by(SchemaInvalid, "prompt-required");
    server.clock.advance_ms(DAY_MS);
    sweep(&server, json!({})).await;
    let payload = server.command(&old, &command_id).await["payload"].clone();
    let refused = repeat(payload).await.refused_by(Gone, "retry-input");
    assert!(refused.message.starts_with("the input of this run was removed by retention on "), "{}", refused.message);
    assert!(refused.message.ends_with("; start a new run"), "{}", refused.message);
    repeat(json!({"prompt": "from the client's own copy"})).await.with_status(201);
}

#[both_engines]
async fn a_payload_that_is_missing_without_a_record_is_damage(engine: Engine) {
    let server = hourly(engine).await;
    let (old, _) = finished(&server, "hwlab", 0).await;
    let (other, _) = finished(&server, "hwlab", 0).await;
    server.clock.advance_ms(DAY_MS);
    sweep(&server, json!({})).await;
    assert_eq!(verify(&server, engine).await.broken, vec![]);
    for (change, words) in [
        (format!("UPDATE runs SET status = 'running' WHERE run_id = '{old}'"), "status"),
        (format!("UPDATE runs SET last_seq = last_seq + 1 WHERE run_id = '{other}'"), "last_seq"),
        (format!("UPDATE runs SET tokens = tokens + 1 WHERE run_id = '{old}'"), "tokens"),
    ] {
        server.store("CREATE TABLE as_it_was AS SELECT * FROM runs").await;
        server.store(&change).await;
        let broken = verify(&server, engine).await.broken;
        assert!(broken.iter().any(|broken| broken.reason.contains(words)), "{change}: {broken:?}");
        server.store("DELETE FROM runs").await;
        server.store("INSERT INTO runs SELECT * FROM as_it_was").await;
        server.store("DROP TABLE as_it_was").await;
    }
    server.store(&format!("UPDATE payload_removals SET through_seq = 1 WHERE run_id = '{old}'")).await;
    let broken = verify(&server, engine).await.broken;
    let words = "neither erasure nor retention removed it";
    assert!(broken.len() == 1 && broken[0].reason.contains(words), "{broken:?}");
}

#[both_engines]
async fn a_label_does_not_postpone_the_removal_of_payloads(engine: Engine) {
    let server = hourly(engine).await;
    let (run_id, _) = finished(&server, "hwlab", 0).await;
    let ended = server.run(&run_id).await["updatedAt"].clone();
    server.clock.advance_ms(DAY_MS);
    let labels = json!({"labels": {"verdict": "good"}});
    let labelled = server.patch(&format!("/api/v1/runs/{run_id}"), &labels).await.with_status(200);
    assert_eq!((&labelled["labels"]["verdict"], &labelled["updatedAt"]), (&json!("good"), &ended));
    sweep(&server, json!({})).await;
    assert_eq!(payloads(&server, &run_id).await, 0);
    assert_eq!(verify(&server, engine).await.broken, vec![]);
}

#[both_engines]
async fn a_tenants_own_limit_replaces_the_general_one(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.retention.events_ms = Some(3_600_000);
        let own = ostler_server::config::TenantRetention { events_ms: Some(10 * DAY_MS), ..Default::default() };
        setup.config.retention.tenants.insert("unidesk".into(), own);
    })
    .await;
    let (short, _) = finished(&server, "hwlab", 0).await;
    let (long, _) = finished(&server, "unidesk", 0).await;
    server.clock.advance_ms(DAY_MS);
    let swept = sweep(&server, json!({})).await;
    assert_eq!(count(&swept, "events", Some("unidesk"))["limitMs"], 10 * DAY_MS);
    assert_eq!((payloads(&server, &short).await, payloads(&server, &long).await > 0), (0, true));
    server.clock.advance_ms(10 * DAY_MS);
    // A sweep of another tenant or noun leaves it.
    assert_eq!(total(&sweep(&server, json!({"tenantId": "hwlab"})).await), (0, 0));
    assert_eq!(total(&sweep(&server, json!({"noun": "threads"})).await), (0, 0));
    assert!(total(&sweep(&server, json!({"tenantId": "unidesk", "noun": "events"})).await).0 > 0);
    assert_eq!(payloads(&server, &long).await, 0);
}

#[both_engines]
async fn the_server_sweeps_by_itself(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.retention.events_ms = Some(3_600_000);
        setup.config.retention.sweep_ms = 20;
    })
    .await;
    let (run_id, _) = finished(&server, "hwlab", 0).await;
    server.clock.advance_ms(DAY_MS);
    crate::harness::eventually("the payloads go", async || (payloads(&server, &run_id).await == 0).then_some(())).await;
}

#[both_engines]
async fn appends_go_on_during_a_sweep(engine: Engine) {
    let server = TestServer::with(engine, in_single_steps).await;
    let (old, _) = finished(&server, "hwlab", 300).await;
    server.clock.advance_ms(DAY_MS);
    let (runner, command_id) = at_work(&server, "hwlab").await;
    let mut appended_between = 0;
    let swept = sweep_all(&server, json!({}));
    tokio::pin!(swept);
    loop {
        tokio::select! {
            biased;
            (items, _) = &mut swept => {
                assert!(items > 300, "{items}");
                break;
            }
            _ = runner.say(&command_id, "meanwhile") => appended_between += 1,
        }
    }
    assert!(appended_between > 20, "{appended_between} appends while 300 steps were done");
    assert_eq!(payloads(&server, &old).await, 0);
    assert_eq!(verify(&server, engine).await.broken, vec![]);
}

#[both_engines]
async fn two_sweeps_at_once_do_no_harm(engine: Engine) {
    let server = TestServer::with(engine, in_single_steps).await;
    let (old, _) = finished(&server, "hwlab", 50).await;
    server.clock.advance_ms(DAY_MS);
    tokio::join!(sweep_all(&server, json!({})), sweep_all(&server, json!({})));
    assert_eq!(payloads(&server, &old).await, 0);
    assert_eq!(verify(&server, engine).await.broken, vec![]);
}

#[both_engines]
async fn retention_is_the_operators(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.token("client", "client", &["hwlab"])).await;
    let client = server.caller("client");
    let hold_id = hold(&server, json!({"tenantId": "hwlab", "reason": "case 7"})).await;
    client.get("/api/v1/retention").await.refused_by(Forbidden, "role");
    client.get("/api/v1/retention/holds").await.refused_by(Forbidden, "role");
    client.post("/api/v1/retention/sweeps", &json!({})).await.refused_by(Forbidden, "role");
    let body = json!({"tenantId": "hwlab", "reason": "case 7"});
    client.post("/api/v1/retention/holds", &body).await.refused_by(Forbidden, "role");
    let path = format!("/api/v1/retention/holds/{hold_id}");
    client.send(client.request("DELETE", &path)).await.refused_by(Forbidden, "role");
    server.post("/api/v1/retention/sweeps", &json!({"noun": "runs"})).await.refused_by(SchemaInvalid, "body-shape");
}

#[test]
fn every_step_removes_from_declared_tables() {
    use ostler_server::dialect::Location;
    let dialects = crate::harness::dialects();
    for table in ostler_server::service::retention::tables(&dialects) {
        assert!(dialects.holdings().any(|holding| holding.location == Location::Table(table)), "{table}");
    }
    let nouns: Vec<_> = dialects.retention_steps().map(|step| step.noun.as_str()).collect();
    for noun in ["threads", "attachments", "webhook_deliveries", "messages"] {
        assert!(nouns.contains(&noun), "{noun} in {nouns:?}");
    }
}
