//! Several servers on one Postgres behave as one. In tests of wake-ups the servers do not reread the store
//! periodically, so that a lost wake-up fails the test.

use std::sync::Arc;

use futures_util::future::join_all;
use ostler_server::Config;
use ostler_testkit::scratch;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::{
    harness::{Caller, Database, Engine, PATIENCE, TestClock, TestServer, eventually, id, start},
    run_input::runs::{THREAD, received},
};

/// Longer than any test waits.
const NEVER_MS: u64 = 3_600_000;

/// Each a test on Postgres, the only engine with several servers.
macro_rules! on_postgres {
    ($($name:ident),* $(,)?) => {
        mod postgres {$(
            #[test]
            fn $name() {
                crate::harness::run(super::$name());
            }
        )*}
    };
}

on_postgres!(
    a_follower_of_one_server_sees_what_is_written_through_the_other,
    a_chat_goes_on_at_the_other_server,
    waits_at_one_server_end_by_what_happens_at_the_other,
    a_job_made_through_a_full_server_is_launched_by_the_other,
    a_server_that_lost_the_others_reads_everything_again,
    jobs_are_consumed_once,
    a_lease_is_swept_once,
    servers_that_start_together_on_an_empty_database_all_start,
);

/// Two servers that only wake each other.
async fn pair(choose: impl Fn(&mut Config)) -> (TestServer, TestServer) {
    let first = TestServer::with(Engine::Postgres, |setup| {
        setup.config.limits.recheck_ms = NEVER_MS;
        choose(&mut setup.config);
    })
    .await;
    let second = first.start_another(|_| ()).await;
    (first, second)
}

fn notes(numbers: std::ops::Range<i64>) -> Value {
    numbers.map(|n| json!({"type": "custom", "payload": {"name": "note", "value": n}})).collect()
}

async fn named_run(caller: &Caller, session_id: &str) -> String {
    caller.create_run_with(|run| run["sessionRef"] = json!({"sessionId": session_id})).await
}

async fn a_follower_of_one_server_sees_what_is_written_through_the_other() {
    let (here, there) = pair(|_| ()).await;
    let run_id = named_run(&there, "mine").await;
    let mut of_run = here.follow(&run_id, 0).await;
    let mut of_session = here.follow_session("mine", 0).await;
    let mut seen = (of_run.take(1).await, of_session.take(1).await);
    let runner = there.claim(&run_id, "runner-a").await;
    for n in 0..20 {
        runner.try_append(None, notes(n * 10..n * 10 + 1 + n % 7)).await.with_status(200);
        // Both servers write into the same session.
        let caller = if n % 2 == 0 { &here } else { &there };
        caller.turn(&run_id, "hi").await;
    }
    // More than one wake-up passes on: each follower reads for itself.
    runner.try_append(None, notes(0..400)).await.with_status(200);
    runner.try_end_run("completed").await.with_status(200);
    let whole = there.events(&run_id).await;
    seen.0.extend(of_run.rest().await);
    seen.1.extend(of_session.take(whole.len() - seen.1.len()).await);
    assert_eq!(seen.0, whole);
    assert_eq!(seen.1, whole);
}

async fn a_chat_goes_on_at_the_other_server() {
    let (here, there) = pair(|config| config.runner.slots = 1).await;
    here.say("run-1", r#"{"script": [{"say": "one "}, {"wait": 50}, {"say": "two"}]}"#).await.with_status(202);
    let whole = there.received("run-1").await;
    assert_eq!(whole.last().unwrap().event["type"], "RUN_FINISHED", "{whole:?}");
    assert_eq!(here.received("run-1").await, whole);
    for (n, seen) in whole.iter().enumerate() {
        let path = format!("/api/v1/agent/runs/{THREAD}/events?runId=run-1");
        let resumed = here.send(here.request("GET", &path).header("last-event-id", &seen.id)).await;
        assert_eq!(received(&resumed.text), whole[n + 1..], "after {}", seen.id);
    }
}

async fn waits_at_one_server_end_by_what_happens_at_the_other() {
    let (here, there) = pair(|_| ()).await;
    let run_id = there.create_run().await;
    let waits = |path: String| {
        let caller = (*here).clone();
        tokio::spawn(async move { caller.get(&path).await.ok() })
    };
    // Whether they wait already or come too late to, the same answers are right.
    let page = waits(format!("/api/v1/runs/{run_id}/events?afterSeq=1&waitMs=30000"));
    let poll = waits(format!("/api/v1/runs/{run_id}/commands?afterSeq=0&waitMs=30000"));
    let command_id = there.turn(&run_id, "hi").await;
    let page = timeout(PATIENCE, page).await.expect("the page is there").unwrap();
    assert_eq!(page["events"][0]["commandId"], command_id.as_str());
    let poll = timeout(PATIENCE, poll).await.expect("the poll is answered").unwrap();
    assert_eq!(poll["commands"][0]["commandId"], command_id.as_str());
    let mark = id(&poll, "newsMark");
    let poll = waits(format!("/api/v1/runs/{run_id}/commands?afterSeq=1&waitMs=30000&knownNews={mark}"));
    there.cancel_run(&run_id).await;
    let poll = timeout(PATIENCE, poll).await.expect("the poll hears of the cancel").unwrap();
    assert_eq!(poll["runCancelRequested"], true);
}

async fn a_job_made_through_a_full_server_is_launched_by_the_other() {
    let full = TestServer::with(Engine::Postgres, |setup| {
        setup.config.limits.recheck_ms = NEVER_MS;
        setup.config.runner.slots = 1;
    })
    .await;
    let (waiting, _) = full.start(r#"{"script": [{"say": "here"}, {"wait": 3600000}]}"#).await;
    eventually("the only place is taken", async || {
        (!full.events_of(&waiting, "assistant_message").await.is_empty()).then_some(())
    })
    .await;
    let other = full.start_another(|config| config.runner.slots = 4).await;
    let (run_id, command_id) = full.start("hello").await;
    assert_eq!(full.ended(&run_id, &command_id).await["reply"], "hello");
    let at_work = full.run(&waiting).await;
    assert_eq!(at_work["status"], "running");
    drop(other);
}

/// Ends the connections on which the servers of this database listen. How many there were.
async fn deafen(url: &str) -> i64 {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let sql = "SELECT COUNT(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE 'LISTEN%'";
    let ended = sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    ended
}

async fn a_server_that_lost_the_others_reads_everything_again() {
    let (here, there) = pair(|_| ()).await;
    let run_id = there.create_run().await;
    let runner = there.claim(&run_id, "runner-a").await;
    let mut follow = here.follow(&run_id, 0).await;
    let mut seen = follow.take(2).await;
    let url = secrecy::ExposeSecret::expose_secret(here.config.store.database_url.as_ref().unwrap()).to_owned();
    for n in 0..3 {
        eventually("both listen", async || (deafen(&url).await == 2).then_some(())).await;
        // No wake-up is received for these: only reading everything again can find them.
        runner.try_append(None, notes(n..n + 1)).await.with_status(200);
        seen.extend(follow.take(1).await);
    }
    assert_eq!(seen, there.events(&run_id).await);
}

async fn jobs_are_consumed_once() {
    let (here, there) = pair(|config| config.runner.slots = 64).await;
    let (here, there) = (&here, &there);
    let started = join_all((0..40).map(|n| async move {
        let caller = if n % 2 == 0 { here } else { there };
        caller.start(&format!("say {n}")).await
    }));
    for (run_id, command_id) in started.await {
        assert_eq!(here.ended(&run_id, &command_id).await["status"], "completed");
        let claims = there.events_of(&run_id, "lease").await;
        let claims = claims.iter().filter(|event| event["payload"]["state"] == "claimed").count();
        assert_eq!(claims, 1, "{run_id}");
        let jobs = here.get(&format!("/api/v1/runs/{run_id}/runner-jobs")).await.ok();
        assert_eq!(jobs["runnerJobs"].as_array().unwrap().len(), 1);
        assert_eq!(jobs["runnerJobs"][0]["attempt"], 1, "{jobs}");
    }
}

async fn a_lease_is_swept_once() {
    let (here, there) = pair(|config| config.runner.sweep_interval_ms = 10).await;
    let mut runs = vec![];
    for n in 0..10 {
        let run_id = here.create_run().await;
        here.turn(&run_id, "hi").await;
        (if n % 2 == 0 { &here } else { &there }).claim(&run_id, "runner-a").await;
        runs.push(run_id);
    }
    here.clock.advance_ms(60_001);
    let expired = async |run_id: &str| {
        let leases = there.events_of(run_id, "lease").await;
        leases.iter().filter(|event| event["payload"]["state"] == "expired").count()
    };
    for run_id in &runs {
        eventually("the lease is swept", async || (expired(run_id).await > 0).then_some(())).await;
    }
    // A later lease, swept after these: a second sweep of the first ones would have happened by then.
    let later = here.create_run().await;
    there.claim(&later, "runner-b").await;
    here.clock.advance_ms(60_001);
    eventually("the later lease is swept", async || (expired(&later).await > 0).then_some(())).await;
    for run_id in runs.iter().chain([&later]) {
        assert_eq!(expired(run_id).await, 1, "{run_id}");
        assert_eq!(here.run(run_id).await["status"], "pending");
    }
}

async fn servers_that_start_together_on_an_empty_database_all_start() {
    let database = Database::empty();
    let clock = Arc::new(TestClock::default());
    let start = |data_dir: &TempDir| {
        let mut config = Config::default();
        config.server.listen = "127.0.0.1:0".into();
        config.server.data_dir = Some(data_dir.path().to_owned());
        config.store.database_url = Some(database.url().into());
        config.runner.slots = 0;
        start(config, clock.clone())
    };
    let homes: Vec<_> = (0..4).map(|_| scratch::in_memory()).collect();
    let servers: Vec<_> = join_all(homes.iter().map(start)).await.into_iter().map(Result::unwrap).collect();
    let run_id = Caller::new(&servers[0]).create_run().await;
    for server in &servers {
        assert_eq!(id(&Caller::new(server).run(&run_id).await, "runId"), run_id);
    }
    for server in servers {
        server.stop().await;
    }
}
