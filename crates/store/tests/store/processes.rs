//! Several processes on one Postgres, and only one on SQLite.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use futures_util::future::{join, join_all};
use ostler_protocol::{
    ids::SessionId,
    kernel::{
        events::{Event, EventType},
        operations::{CancelRunOp, Op, Reply},
        runner_jobs::JobPhase,
        runs::RunStatus,
    },
};
use ostler_store::{
    Db, StoreError,
    kernel::{runner_jobs, runs},
    lane::{Host, LaneError},
};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use crate::{
    build::{LAUNCHER, create_run, event},
    invariants,
    model::Model,
    rows::Witness,
    store_process::{StoreProcess, refused_by},
    test_store::{Engine, TestStore},
};

/// What both published, put together, in each session's order.
fn published(processes: [&StoreProcess; 2]) -> BTreeMap<SessionId, Vec<Event>> {
    let mut all: BTreeMap<SessionId, Vec<Event>> = BTreeMap::new();
    for (session, events) in processes.iter().flat_map(|process| process.host.published()) {
        all.entry(session).or_default().extend(events);
    }
    all.values_mut().for_each(|events| events.sort_by_key(|event| event.session_seq));
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_write_one_session_without_gap_or_second_owner() {
    let test_store = TestStore::new(Engine::Postgres);
    let (mut one, mut two) =
        (StoreProcess::numbered(&test_store, 1).await, StoreProcess::numbered(&test_store, 2).await);
    let run = one.run().await;
    let command = one.turn(&run).await;
    let (first, second) = (one.mint.attempt(), two.mint.attempt());
    let claims = join(
        one.lanes.submit(run.claim("runner-1", 60_000, first)),
        two.lanes.submit(run.claim("runner-2", 60_000, second)),
    );
    let (first, second) = claims.await;
    let (winner, loser) = if first.is_ok() { ("runner-1", &second) } else { ("runner-2", &first) };
    assert_eq!(refused_by(loser), "lease-held");
    let (turns_one, turns_two): (Vec<_>, Vec<_>) = (0..20).map(|_| (one.new_turn(&run), two.new_turn(&run))).unzip();
    let appends = (0..60).map(|number| {
        let says = vec![event(EventType::AssistantMessage, Some(command), json!({"text": number, "epoch": 1}))];
        let append = run.append(winner, 1, Some(number), says);
        // Each append goes to both: the second must reply as the first did.
        join(one.lanes.submit(append.clone()), two.lanes.submit(append))
    });
    let (appended, turns_one, turns_two) = tokio::join!(
        join_all(appends),
        join_all(turns_one.into_iter().map(|turn| one.lanes.submit(turn))),
        join_all(turns_two.into_iter().map(|turn| two.lanes.submit(turn))),
    );
    for (first, second) in appended {
        match (first.unwrap(), second.unwrap()) {
            (Reply::Appended(first), Reply::Appended(second)) => assert_eq!(first, second),
            other => panic!("an append was answered with {other:?}"),
        }
    }
    assert!(turns_one.iter().chain(&turns_two).all(Result::is_ok));
    let rows = Witness::of(&test_store).await.rows().await;
    invariants::check(&rows, &Model::default(), one.host.now()).unwrap();
    assert_eq!(rows.events(), published([&one, &two]));
    assert_eq!(rows.of("commands").len(), 41);
    assert_eq!(rows.of("events").iter().filter(|e| e.text("type") == "assistant_message").count(), 60);
}

/// A lane keeps rows between flushes. What another process did to them since decides, also where nothing is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_decision_rests_on_rows_that_another_process_has_changed() {
    let test_store = TestStore::new(Engine::Postgres);
    let (mut one, mut two) =
        (StoreProcess::numbered(&test_store, 1).await, StoreProcess::numbered(&test_store, 2).await);
    let run = one.run().await;
    let command = one.turn(&run).await;
    let says = |epoch: i64| event(EventType::AssistantMessage, Some(command), json!({"text": "hello", "epoch": epoch}));
    let (first, second, third) = (one.mint.attempt(), two.mint.attempt(), one.mint.attempt());
    two.ask(run.claim("runner-2", 60_000, second)).await;
    // As the first process last saw it, the run is free.
    assert_eq!(refused_by(&one.lanes.submit(run.claim("runner-1", 60_000, first)).await), "lease-held");
    two.ask(run.append("runner-2", 1, Some(1), vec![says(1)])).await;
    one.ask(run.append("runner-2", 1, Some(2), vec![says(1)])).await;
    // The second still has the lease at its first epoch.
    one.ask(run.claim("runner-2", 60_000, third)).await;
    assert_eq!(
        refused_by(&two.lanes.submit(run.append("runner-2", 1, Some(3), vec![says(1)])).await),
        "lease-epoch-stale"
    );
    let fourth = two.mint.attempt();
    two.ask(run.claim("runner-2", 60_000, fourth)).await;
    // The first would refuse this one, and have nothing to write.
    one.ask(run.append("runner-2", 3, Some(1), vec![says(3)])).await;
    let rows = Witness::of(&test_store).await.rows().await;
    invariants::check(&rows, &Model::default(), one.host.now()).unwrap();
    assert_eq!(rows.events(), published([&one, &two]));
    assert_eq!(rows.of("events").iter().filter(|e| e.text("type") == "assistant_message").count(), 3);
}

/// Each flush touches the same sessions, in whatever order they were asked: none may wait for the other in a circle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushes_of_two_processes_over_the_same_sessions_all_succeed() {
    let test_store = TestStore::new(Engine::Postgres);
    let (mut one, mut two) =
        (StoreProcess::numbered(&test_store, 1).await, StoreProcess::numbered(&test_store, 2).await);
    let mut runs = vec![];
    for _ in 0..12 {
        runs.push(one.run().await);
    }
    for _ in 0..10 {
        let first: Vec<_> = runs.iter().map(|run| one.new_turn(run)).collect();
        let second: Vec<_> = runs.iter().rev().map(|run| two.new_turn(run)).collect();
        let first = join_all(first.into_iter().map(|request| one.lanes.submit(request)));
        let second = join_all(second.into_iter().map(|request| two.lanes.submit(request)));
        let (first, second) = join(first, second).await;
        assert!(first.iter().chain(&second).all(Result::is_ok));
    }
    let rows = Witness::of(&test_store).await.rows().await;
    invariants::check(&rows, &Model::default(), one.host.now()).unwrap();
    assert_eq!(rows.of("commands").len(), 240);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_does_not_fail_because_its_connection_was_lost() {
    let test_store = TestStore::new(Engine::Postgres);
    let mut process = StoreProcess::open(&test_store).await;
    let run = process.run().await;
    // Several at a time, so that several connections are kept.
    let reads = || join_all((0..6).map(|_| runs::get(&process.db, run.run_id)));
    assert!(reads().await.iter().all(Result::is_ok));
    test_store.end_connections();
    for read in reads().await {
        assert!(read.unwrap().is_some());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creates_that_race_in_two_processes_have_one_winner_each_and_no_loser_by_accident() {
    let test_store = TestStore::new(Engine::Postgres);
    let (mut one, mut two) =
        (StoreProcess::numbered(&test_store, 1).await, StoreProcess::numbered(&test_store, 2).await);
    for round in 0..5 {
        // In opposite orders: each would wait for what the other holds.
        let keys: Vec<_> = (0..20).map(|number| format!("{round}-{number}")).collect();
        let first: Vec<_> = keys.iter().map(|key| create_run(one.new_run(Some(key)))).collect();
        let second: Vec<_> = keys.iter().rev().map(|key| create_run(two.new_run(Some(key)))).collect();
        let first = join_all(first.into_iter().map(|request| one.lanes.submit(request)));
        let second = join_all(second.into_iter().map(|request| two.lanes.submit(request)));
        let (first, mut second) = join(first, second).await;
        second.reverse();
        for (key, (first, second)) in keys.iter().zip(first.into_iter().zip(second)) {
            match (&first, &second) {
                (Ok(_), Err(LaneError::Taken)) | (Err(LaneError::Taken), Ok(_)) => {}
                other => panic!("{key}: {other:?}"),
            }
        }
    }
    let rows = Witness::of(&test_store).await.rows().await;
    assert_eq!(rows.of("runs").len(), 100);
    assert_eq!(rows.of("sessions").len(), 100, "a loser leaves no session behind");
    invariants::check(&rows, &Model::default(), one.host.now()).unwrap();
    assert_eq!(rows.events(), published([&one, &two]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_launchers_get_the_same_job() {
    let test_store = TestStore::new(Engine::Postgres);
    let (mut one, two) = (StoreProcess::numbered(&test_store, 1).await, StoreProcess::numbered(&test_store, 2).await);
    for _ in 0..30 {
        let run = one.run().await;
        let command = one.turn(&run).await;
        let job = one.mint.job(&run, Some(command), false, None, one.now());
        one.ask(run.request(Op::CreateJob(Box::new(job)))).await;
    }
    let takes = (0..20).map(|number| {
        let process = if number % 2 == 0 { &one } else { &two };
        async move {
            let owner = format!("launcher-{number}");
            runner_jobs::claim(
                &process.db,
                LAUNCHER,
                &owner,
                process.now(),
                2,
                &[],
                ostler_store::kernel::runner_jobs::LaunchableJobs::default(),
            )
            .await
            .unwrap()
        }
    });
    let taken: Vec<_> = join_all(takes).await.into_iter().flatten().map(|job| job.runner_job_id).collect();
    assert_eq!(taken.len(), 30);
    assert_eq!(taken.iter().collect::<HashSet<_>>().len(), 30);
}

/// When the launcher's statement is executed: before the flush loads the jobs, or after.
enum ClaimTime {
    BeforeLoad,
    /// The flush waits for the session's row with its write, so that the jobs change after it has loaded its rows.
    BeforeWrite,
}

/// A launcher claims a job by a statement of its own, which the session's revision does not show.
async fn cancel_while_jobs_are_claimed(time: ClaimTime) {
    let test_store = TestStore::new(Engine::Postgres);
    let mut process = StoreProcess::open(&test_store).await;
    let run = process.run().await;
    let command = process.turn(&run).await;
    let mut ids = vec![];
    for standing in [true, false, false] {
        let job = process.mint.job(&run, Some(command), standing, None, process.now());
        ids.push(job.job.runner_job_id);
        process.ask(run.request(Op::CreateJob(Box::new(job)))).await;
    }
    let unclaimed = ids.pop().unwrap();
    let mut connection = PgConnection::connect(&test_store.url()).await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    let claim = format!(
        "UPDATE runner_jobs SET phase = 'running', owner = 'them', attempt = attempt + 1
         WHERE runner_job_id IN ('{}', '{}')",
        ids[0], ids[1]
    );
    let lock = "SELECT 1 FROM sessions FOR UPDATE".to_owned();
    let (first, second) = match time {
        ClaimTime::BeforeLoad => (claim, None),
        ClaimTime::BeforeWrite => (lock, Some(claim)),
    };
    tx.execute(sqlx::raw_sql(AssertSqlSafe(first))).await.unwrap();
    let cancel = run.request(Op::CancelRun(CancelRunOp { by: "test".into(), reason: None }));
    let commit = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        if let Some(sql) = second {
            tx.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
        }
        tx.commit().await.unwrap();
    };
    let (cancelled, ()) = join(process.lanes.submit(cancel), commit).await;
    assert!(matches!(cancelled, Ok(Reply::CancelledRun(run)) if run.status == RunStatus::Cancelled));
    for id in ids {
        let job = runner_jobs::get(&process.db, id).await.unwrap().unwrap();
        assert_eq!((job.phase, job.owner.as_deref(), job.attempt), (JobPhase::Running, Some("them"), 1));
    }
    let job = runner_jobs::get(&process.db, unclaimed).await.unwrap().unwrap();
    assert_eq!(job.phase, JobPhase::Cancelled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelling_a_run_does_not_erase_a_claim_that_commits_while_the_jobs_are_loaded() {
    cancel_while_jobs_are_claimed(ClaimTime::BeforeLoad).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelling_a_run_does_not_erase_a_claim_that_commits_before_the_write() {
    cancel_while_jobs_are_claimed(ClaimTime::BeforeWrite).await;
}

#[tokio::test]
async fn sqlite_serves_one_process_and_reports_it() {
    let test_store = TestStore::new(Engine::Sqlite);
    let process = StoreProcess::open(&test_store).await;
    let error = Db::open(&test_store.config(), process.now()).await.err().expect("the store is open already");
    assert!(matches!(error, StoreError::Locked(_)), "{error}");
    assert!(error.to_string().contains("use Postgres for several"), "{error}");
    process.db.close().await;
    Db::open(&test_store.config(), process.now()).await.unwrap().close().await;
    // A closed store stays closed, even if a handle is still held.
    assert!(matches!(process.db.migrations().await, Err(StoreError::Stopped)));
}
