//! Lists that are narrowed to states walk the index of their order and stop when the page is full. The state of each run that
//! they pass is looked up by an index; no table is read whole, and nothing is sorted.

use futures_util::{StreamExt, TryStreamExt, stream};
use ostler_protocol::{
    cursors::Cursor,
    kernel::{
        commands::CommandType,
        operations::{CancelCommandOp, Op},
        runs::RunState,
    },
};
use ostler_store::kernel::{
    runs::{self, RunFilter},
    sessions::{self, SessionFilter},
};
use sqlx::{Connection, Executor, PgConnection};

use crate::{
    build::{RunRef, create_run},
    store_process::StoreProcess,
    test_store::{Engine, TestStore, both_engines},
};

const RUNS: usize = 1_300;
const AT_ONCE: usize = 16;
const PAGE: u32 = 50;

/// Runs in sessions of their own, each with a turn. Every second turn was cancelled. Returns the session and the run in the
/// middle, as cursors.
async fn fill(process: &mut StoreProcess) -> (Cursor, Cursor) {
    let mut requests = vec![];
    let mut middle = None;
    for number in 0..RUNS {
        process.host.advance_ms(1);
        let op = process.new_run(None);
        let (run, now) = (RunRef::of(&op), process.now());
        if number == RUNS / 2 {
            let at = |id: String| Cursor { created_at_us: now.as_microsecond(), id };
            middle = Some((at(run.session.to_string()), at(run.run_id.to_string())));
        }
        let turn = process.mint.command(&run, CommandType::Turn, "do it", None, now);
        let cancel = CancelCommandOp {
            command_id: turn.command.command_id,
            by: "test".into(),
            reason: None,
            origin: None,
            with_jobs: false,
        };
        let mut of_run = vec![create_run(op), run.request(Op::CreateCommand(Box::new(turn)))];
        of_run.extend((number % 2 == 0).then(|| run.request(Op::CancelCommand(cancel))));
        requests.push(of_run);
    }
    let submit = |of_run| async {
        for request in of_run {
            process.lanes.submit(request).await?;
        }
        Ok::<_, ostler_store::lane::LaneError>(())
    };
    stream::iter(requests).map(submit).buffer_unordered(AT_ONCE).try_for_each(async |()| Ok(())).await.unwrap();
    middle.unwrap()
}

/// Checks that rows are found in the order of this index, and others by an index.
#[track_caller]
fn assert_walked(plan: &[String], index: &str) {
    let plan = plan.join("\n");
    assert!(plan.contains(index), "{index} is not used:\n{plan}");
    let is_whole = |line: &&str| line.contains("Seq Scan") || (line.starts_with("SCAN") && !line.contains("INDEX"));
    assert_eq!(plan.lines().find(is_whole), None, "{plan}");
    assert!(!plan.contains("Sort") && !plan.contains("TEMP B-TREE"), "all matches are read before the first:\n{plan}");
}

#[both_engines]
async fn a_page_of_some_states_is_walked_in_order_and_not_sorted(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let (session, run) = fill(&mut process).await;
    if test_store.engine() == Engine::Postgres {
        // As its own daemon would, sooner or later.
        PgConnection::connect(&test_store.url()).await.unwrap().execute("VACUUM ANALYZE").await.unwrap();
    }
    let db = &process.db;
    let every_state = [
        vec![RunState::Cancelled],
        vec![RunState::Waiting, RunState::Running],
        vec![RunState::Failed, RunState::Blocked, RunState::Completed],
    ];
    for states in every_state {
        let of_sessions = SessionFilter { states: states.clone(), reader_id: "reader".into(), ..Default::default() };
        let of_runs = RunFilter { states, ..RunFilter::default() };
        for is_first in [true, false] {
            let after = (!is_first).then_some(&session);
            let plan = sessions::explain_list(db, &of_sessions, after, PAGE).await.unwrap();
            assert_walked(&plan, "sessions_created");
            let after = (!is_first).then_some(&run);
            let plan = runs::explain_list(db, &of_runs, after, PAGE).await.unwrap();
            assert_walked(&plan, "runs_created");
        }
    }
    let cancelled = RunFilter { states: vec![RunState::Cancelled], ..RunFilter::default() };
    assert_eq!(runs::list(db, &cancelled, Some(&run), RUNS as u32).await.unwrap().len(), RUNS / 4);
    let cancelled = SessionFilter { states: vec![RunState::Cancelled], ..SessionFilter::default() };
    assert_eq!(sessions::list(db, &cancelled, Some(&session), RUNS as u32).await.unwrap().len(), RUNS / 4);
}
