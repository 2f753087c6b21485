//! When automations start: once for each time, whatever becomes of servers, clocks and the rules of time zones.

use std::collections::BTreeSet;

use ostler_protocol::Timestamp;
use ostler_server::clock::Clock as _;

use super::*;
use crate::harness::{one_engine, run};

/// The starts of all automations, as `automation due`.
async fn all_starts(server: &TestServer) -> Vec<String> {
    server.store("SELECT automation_id || ' ' || CAST(due_at AS TEXT) FROM automation_starts").await
}

async fn count(server: &TestServer, table: &str) -> usize {
    server.store(&format!("SELECT CAST(COUNT(*) AS TEXT) FROM {table}")).await[0].parse().unwrap()
}

#[both_engines]
async fn a_due_automation_starts_once_and_gets_its_next_time(engine: Engine) {
    let server = server(engine, 4).await;
    let automation_id = create(&server, &daily("Digest", 7, "hi")).await;
    assert!(starts(&server, &automation_id).await.is_empty(), "its time has not come");
    server.clock.advance_ms(7 * HOUR_MS);
    let start = started(&server, &automation_id, 1, "completed").await.remove(0);
    assert_eq!((&start["trigger"], &start["due_at"]), (&json!("schedule"), &json!("2026-01-01T07:00:00Z")));
    let automation = server.get(&format!("{AUTOMATIONS}/{automation_id}")).await.ok();
    assert_eq!(automation["next_run_at"], "2026-01-02T07:00:00Z");
    assert_eq!(automation["last_run_at"], "2026-01-01T07:00:00Z");
    server.clock.advance_ms(DAY_MS);
    started(&server, &automation_id, 2, "completed").await;
}

#[both_engines]
async fn after_downtime_an_automation_starts_once_and_not_for_every_missed_time(engine: Engine) {
    let mut server = server(engine, 4).await;
    let automation_id = create(&server, &daily("Digest", 7, "hi")).await;
    let clock = server.clock.clone();
    server.restart_after(async |_| clock.advance_ms(5 * DAY_MS + 8 * HOUR_MS)).await;
    let start = started(&server, &automation_id, 1, "completed").await.remove(0);
    assert_eq!(start["due_at"], "2026-01-01T07:00:00Z", "the time that it made up for");
    let automation = server.get(&format!("{AUTOMATIONS}/{automation_id}")).await.ok();
    assert_eq!(automation["next_run_at"], "2026-01-07T07:00:00Z");
}

/// What a server leaves that dies after it recorded a start, before and after the run exists.
#[both_engines]
async fn a_start_of_a_server_that_died_is_repeated_and_finds_its_run(engine: Engine) {
    let server = server(engine, 4).await;
    let automation_id = create(&server, &daily("Digest", 7, "hi")).await;
    server.clock.advance_ms(7 * HOUR_MS);
    let first = started(&server, &automation_id, 1, "completed").await.remove(0);
    let runs = count(&server, "runs").await;
    let undone =
        "UPDATE automation_starts SET status = 'starting', command_id = NULL, ended_at = NULL, claimed_until = 0";
    server.store(undone).await;
    let again = started(&server, &automation_id, 1, "completed").await.remove(0);
    assert_eq!((&again["task_id"], &again["thread_id"]), (&first["task_id"], &first["thread_id"]));
    assert_eq!(count(&server, "runs").await, runs, "the run existed");
    // Before the run: the same row with a thread that does not exist yet.
    let thread_id = crate::operations::uuid(&automation_id);
    server.store(&format!("{undone}, thread_id = '{thread_id}'")).await;
    let repaired = started(&server, &automation_id, 1, "completed").await.remove(0);
    assert_eq!(repaired["thread_id"], json!(thread_id));
    assert_eq!(count(&server, "runs").await, runs + 1);
}

#[both_engines]
async fn a_next_time_by_other_rules_of_zones_is_computed_again(engine: Engine) {
    let mut server = server(engine, 0).await;
    let automation_id = create(&server, &automation()).await;
    // By other rules 7:30 in Berlin was an hour later.
    server
        .restart_after(async |config| {
            let sql = "UPDATE automations SET plan_zone_rules = '1999a', next_run_at = next_run_at + 3600000000";
            crate::harness::query(config, sql).await;
        })
        .await;
    eventually("it is planned again", async || {
        let automation = server.get(&format!("{AUTOMATIONS}/{automation_id}")).await.ok();
        (automation["next_run_at"] == "2026-01-02T06:30:00Z").then_some(())
    })
    .await;
}

/// What a server of an earlier release leaves that has planned an automation after this one has looked for such plans.
#[both_engines]
async fn a_next_time_by_older_rules_is_computed_again_without_a_restart(engine: Engine) {
    let server = server(engine, 0).await;
    let [older, newer] = [create(&server, &automation()).await, create(&server, &automation()).await];
    let next = async |automation_id: &str| {
        server.get(&format!("{AUTOMATIONS}/{automation_id}")).await.ok()["next_run_at"].clone()
    };
    // Two rounds: the server that looks again does not stop looking.
    for _ in 0..2 {
        for (automation_id, rules) in [(&newer, "2999a"), (&older, "1999a")] {
            let sql = format!(
                "UPDATE automations SET plan_zone_rules = '{rules}', next_run_at = next_run_at + 3600000000
                 WHERE automation_id = '{automation_id}'"
            );
            server.store(&sql).await;
        }
        eventually("it is planned again", async || (next(&older).await == "2026-01-02T06:30:00Z").then_some(())).await;
    }
    assert_eq!(next(&newer).await, "2026-01-02T08:30:00Z", "this server knows less than the one that has planned it");
}

/// Copies an automation, straight into the store.
async fn copy(server: &TestServer, engine: Engine, automation_id: &str, copies: usize, next: &str) {
    let id = match engine {
        Engine::Sqlite => "'aut_' || printf('%032x', n.i)",
        Engine::Postgres => "'aut_' || lpad(to_hex(n.i), 32, '0')",
    };
    let sql = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {copies})
         INSERT INTO automations (automation_id, owner_id, tenant_id, title, config, timezone, next_run_at, status,
             failures, plan_after, plan_zone_rules, revision, created_at, updated_at)
         SELECT {id}, a.owner_id, a.tenant_id, a.title, a.config, a.timezone, {next}, a.status, 0, a.plan_after,
             a.plan_zone_rules, 1, a.created_at, a.updated_at FROM n, automations AS a
         WHERE a.automation_id = '{automation_id}'"
    );
    server.store(&sql).await;
}

const MANY: usize = 1_000;

#[both_engines]
async fn a_thousand_automations_of_one_minute_start_once_each(engine: Engine) {
    let server = server(engine, 0).await;
    let automation_id = create(&server, &daily("Digest", 7, "hi")).await;
    copy(&server, engine, &automation_id, MANY - 1, "a.next_run_at").await;
    server.clock.advance_ms(7 * HOUR_MS);
    eventually("all have started", async || (count(&server, "runs").await == MANY).then_some(())).await;
    let all = all_starts(&server).await;
    assert_eq!((all.len(), all.iter().collect::<BTreeSet<_>>().len()), (MANY, MANY));
}

const SHARED: usize = 200;

/// Two servers of one store claim the same automations at the same time.
#[test]
fn two_servers_start_each_automation_once() {
    run(async {
        let first = server(Engine::Postgres, 0).await;
        let second = first.start_another(|_| ()).await;
        let automation_id = create(&first, &daily("Digest", 7, "hi")).await;
        copy(&first, Engine::Postgres, &automation_id, SHARED - 1, "a.next_run_at").await;
        for days in 1..=3 {
            first.clock.advance_ms(if days == 1 { 7 * HOUR_MS } else { DAY_MS });
            let expected = days * SHARED;
            eventually("all have started", async || (count(&first, "runs").await == expected).then_some(())).await;
            let all = all_starts(&first).await;
            assert_eq!((all.len(), all.iter().collect::<BTreeSet<_>>().len()), (expected, expected));
        }
        drop(second);
    });
}

/// The other server would sleep for an hour.
#[test]
fn a_change_on_one_server_wakes_the_scheduler_of_another() {
    run(async {
        let first = TestServer::with(Engine::Postgres, |setup| {
            setup.config.runner.slots = 0;
            setup.config.change(|automations: &mut AutomationsSection| automations.scheduler = false);
        })
        .await;
        let second = first
            .start_another(|config| {
                config.change(|automations: &mut AutomationsSection| {
                    (automations.scheduler, automations.poll_ms) = (true, 120_000);
                });
            })
            .await;
        let automation_id = create(&first, &daily("Digest", 7, "hi")).await;
        first.clock.advance_ms(8 * HOUR_MS);
        assert!(starts(&first, &automation_id).await.is_empty());
        let path = format!("{AUTOMATIONS}/{automation_id}");
        first.patch(&path, &json!({"title": "Morning"})).await.with_status(200);
        eventually("the other server starts it", async || {
            (starts(&first, &automation_id).await.len() == 1).then_some(())
        })
        .await;
        drop(second);
    });
}

/// A scheduler with nothing to do looks every 30 s, and one that knows of the start every second.
#[test]
fn a_requested_start_on_one_server_wakes_the_scheduler_of_another() {
    run(async {
        let first = TestServer::with(Engine::Postgres, |setup| {
            setup.config.runner.slots = 4;
            setup.config.change(|automations: &mut AutomationsSection| automations.scheduler = false);
        })
        .await;
        let automation_id = create(&first, &daily("Digest", 7, "hi")).await;
        let second = first
            .start_another(|config| {
                config.change(|automations: &mut AutomationsSection| {
                    (automations.scheduler, automations.poll_ms) = (true, 1_000);
                });
            })
            .await;
        first.post(&format!("{AUTOMATIONS}/{automation_id}/start"), &json!({})).await.with_status(202);
        let completed = started(&first, &automation_id, 1, "completed");
        tokio::time::timeout(std::time::Duration::from_secs(15), completed).await.expect("the scheduler was woken");
        drop(second);
    });
}

#[both_engines]
async fn a_due_automation_of_an_unknown_zone_is_paused(engine: Engine) {
    let server = server(engine, 4).await;
    let automation_id = create(&server, &daily("Digest", 7, "hi")).await;
    server.store("UPDATE automations SET timezone = 'Mars/Olympus'").await;
    server.clock.advance_ms(8 * HOUR_MS);
    let path = format!("{AUTOMATIONS}/{automation_id}");
    let paused = eventually("it is paused", async || {
        let automation = server.get(&path).await.ok();
        (automation["status"] == "disabled").then_some(automation)
    })
    .await;
    assert_eq!((&paused["disabled_reason"], &paused["next_run_at"]), (&json!("unknown-zone"), &Value::Null));
    server.patch(&path, &json!({"timezone": "UTC", "status": "active"})).await.with_status(200);
    server.clock.advance_ms(DAY_MS);
    started(&server, &automation_id, 1, "completed").await;
}

/// A daily time on both days with a change of the clocks, as the server starts it.
#[one_engine]
async fn a_local_time_starts_once_on_the_days_of_daylight_saving(engine: Engine) {
    let mut night = daily("Night", 2, "hi");
    night["timezone"] = json!("Europe/Berlin");
    night["config"]["schedule"]["run_at"]["minute"] = json!(30);
    for (days, due) in [(86, "2026-03-29T01:30:00Z"), (296, "2026-10-25T00:30:00Z")] {
        let server = server(engine, 0).await;
        server.clock.advance_ms(days * DAY_MS + 12 * HOUR_MS);
        let automation_id = create(&server, &night).await;
        for _ in 0..24 {
            server.clock.advance_ms(HOUR_MS);
            eventually("nothing is due", async || {
                let automation = server.get(&format!("{AUTOMATIONS}/{automation_id}")).await.ok();
                let next: Timestamp = automation["next_run_at"].as_str().unwrap().parse().unwrap();
                (next > server.clock.now()).then_some(())
            })
            .await;
        }
        let starts = starts(&server, &automation_id).await;
        assert_eq!(starts.len(), 1, "{due}");
        assert_eq!(starts[0]["due_at"], due);
    }
}
