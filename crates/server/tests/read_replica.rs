//! Lists and histories from a standby: as stale as the bound allows and no staler, and from the primary when the standby is away.

use std::time::Duration;

use ostler_testkit::postgres::{Cluster, find_binaries};
use serde_json::json;
use tokio::time::Instant;

use crate::harness::{Engine, Setup, TestServer, eventually, id, run};

const LAG_MAX: Duration = Duration::from_millis(1_500);

async fn lists(server: &TestServer, run_id: &str) -> bool {
    let page = server.get("/api/v1/runs?limit=100").await.ok();
    page["runs"].as_array().unwrap().iter().any(|run| run["runId"] == run_id)
}

/// Whether a text is in the trace of the session, in that of its run, and in its output.
async fn histories_have(server: &TestServer, run_id: &str, text: &str) -> [bool; 3] {
    let session_id = id(&server.run(run_id).await, "sessionId");
    let mut found = [false; 3];
    for (at, part) in ["trace", &format!("trace?runId={run_id}"), "output"].into_iter().enumerate() {
        let page = server.get(&format!("/api/v1/sessions/{session_id}/{part}")).await.ok();
        found[at] = page.to_string().contains(text);
    }
    found
}

/// Whether the last statement of a connection of the server was something else than a measurement of the lag.
fn has_answered_lists(cluster: &Cluster) -> bool {
    let sql = "SELECT COUNT(*) FROM pg_stat_activity WHERE application_name = 'ostler' AND query LIKE 'SELECT %' \
               AND query NOT LIKE 'SELECT CASE WHEN pg_is_in_recovery%'";
    cluster.execute(sql).unwrap() != "0"
}

#[test]
fn lists_are_as_stale_as_the_bound_allows_and_no_staler() {
    // On this thread, which outlives both.
    let primary = Cluster::start(&find_binaries().expect("Postgres is installed")).unwrap();
    let mut standby = primary.standby().unwrap();
    run(async {
        let server = TestServer::with(Engine::Sqlite, |setup| {
            setup.config.store.database_url = Some(primary.url().into());
            setup.config.store.read_database_url = Some(standby.url().into());
            setup.config.store.read_lag_max_ms = LAG_MAX.as_millis() as u64;
        })
        .await;
        let first = server.create_run().await;
        eventually("the standby answers lists", async || {
            lists(&server, &first).await;
            has_answered_lists(&standby).then_some(())
        })
        .await;
        eventually("the standby has the run", async || lists(&server, &first).await.then_some(())).await;
        let turn = server.turn(&first, "hi").await;
        let runner = server.claim(&first, "runner-a").await;
        runner.ack(&turn).await;

        // From now on the standby receives changes but does not apply them.
        standby.execute("ALTER SYSTEM SET recovery_min_apply_delay = '1h'").unwrap();
        standby.execute("SELECT pg_reload_conf()").unwrap();
        let lagging_since = Instant::now();
        // What the runner says is the id of the new run.
        let missing = eventually("a new run and message are missing from the list and the histories", async || {
            let run_id = server.create_run().await;
            runner.say(&turn, &run_id).await;
            let is_listed = lists(&server, &run_id).await;
            let is_shown = histories_have(&server, &first, &run_id).await;
            (!is_listed && is_shown == [false; 3]).then_some(run_id)
        })
        .await;
        assert_eq!(id(&server.get(&format!("/api/v1/runs/{missing}")).await.ok(), "runId"), missing);
        eventually("the primary answers instead", async || lists(&server, &missing).await.then_some(())).await;
        assert_eq!(histories_have(&server, &first, &missing).await, [true; 3]);
        assert!(lagging_since.elapsed() < LAG_MAX + Duration::from_secs(2), "{:?}", lagging_since.elapsed());

        // What decides anything is never read from the standby, and what was just written can be followed.
        let command_id = server.turn(&missing, "hi").await;
        let page = server.get(&format!("/api/v1/runs/{missing}/events")).await.ok();
        let is_there = |event: &serde_json::Value| event["commandId"] == json!(command_id);
        assert!(page["events"].as_array().unwrap().iter().any(is_there), "{page}");

        standby.kill().unwrap();
        let last = server.create_run().await;
        assert!(lists(&server, &last).await);
        let session_id = id(&server.get(&format!("/api/v1/runs/{last}")).await.ok(), "sessionId");
        let history = server.get(&format!("/api/v1/sessions/{session_id}/trace")).await.ok();
        assert!(!history["events"].as_array().unwrap().is_empty(), "{history}");
    });
}

/// Waits until a standby has everything that another cluster has written.
async fn catch_up(standby: &Cluster, position: &str) {
    let sql = format!("SELECT pg_last_wal_replay_lsn() >= '{position}'");
    eventually("the standby catches up", async || (standby.execute(&sql).unwrap() == "t").then_some(())).await;
}

/// The standby is further in its log than the new primary is in its own, but in another history: it has what was lost in the failover,
/// and nothing that was written since.
#[test]
fn a_standby_that_has_not_followed_a_failover_is_not_read() {
    // On this thread, which outlives all of them.
    let mut lost = Cluster::start(&find_binaries().expect("Postgres is installed")).unwrap();
    let (mut next, left_behind) = (lost.standby().unwrap(), lost.standby().unwrap());
    let settings = |primary: &Cluster, replica: Option<&Cluster>| {
        let (primary, replica) = (primary.url(), replica.map(Cluster::url));
        move |setup: &mut Setup| {
            setup.config.store.database_url = Some(primary.into());
            setup.config.store.read_database_url = replica.map(Into::into);
            setup.config.store.read_lag_max_ms = LAG_MAX.as_millis() as u64;
        }
    };
    run(async {
        let server = TestServer::with(Engine::Sqlite, settings(&lost, None)).await;
        server.create_run().await;
        drop(server);
        catch_up(&next, &lost.execute("SELECT pg_current_wal_flush_lsn()").unwrap()).await;
        next.stop().unwrap();
        for _ in 0..3 {
            lost.execute("SELECT pg_logical_emit_message(false, 'ostler', 'lost in the failover')").unwrap();
            lost.execute("SELECT pg_switch_wal()").unwrap();
        }
        catch_up(&left_behind, &lost.execute("SELECT pg_current_wal_flush_lsn()").unwrap()).await;
        lost.kill().unwrap();
        next.start_again().unwrap();
        next.promote().unwrap();

        let server = TestServer::with(Engine::Sqlite, settings(&next, Some(&left_behind))).await;
        let run_id = server.create_run().await;
        let position = next.execute("SELECT pg_current_wal_flush_lsn()").unwrap();
        catch_up(&left_behind, &position).await;
        for _ in 0..3 {
            assert!(lists(&server, &run_id).await, "the primary answers");
        }
    });
}
