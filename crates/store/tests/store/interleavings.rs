//! Random interleavings of everything that can be asked, retried, refused, expire or crash, on both engines through the
//! real lanes. The seed is fixed: a failure shows again, and shrinks.

use std::cell::RefCell;

use proptest::test_runner::{Config, RngAlgorithm, RngSeed, TestCaseError, TestError, TestRunner};

use crate::{
    rows::Witness,
    script::{Step, script},
    script_runner::{ScriptRunner, Tally},
    test_store::{Engine, TestStore},
};

const SEED: u64 = 20_260_101;
const STEPS: usize = 60;
const SQLITE_CASES: u32 = 20;
const POSTGRES_CASES: u32 = 16;

/// What a run of the test must have reached, or it would prove less than it seems to.
const REACHED: &[&str] = &[
    "ack",
    "answer",
    "append",
    "append retried",
    "ask",
    "cancel command",
    "cancel run",
    "close session",
    "claim",
    "command ended by manager",
    "command ended by run",
    "command ended by runner",
    "crash",
    "end command",
    "end run",
    "finish job",
    "flush with many",
    "given back with an append",
    "heartbeat",
    "interrupt",
    "job",
    "job claimed",
    "job failed",
    "job succeeded",
    "kept after an append",
    "lease claim-waiting",
    "lease expired",
    "lease recovered",
    "lease released",
    "message",
    "nothing to take up",
    "permission allowed",
    "permission cancelled",
    "permission denied",
    "permission past its deadline",
    "refused command-terminal",
    "refused lease-epoch-stale",
    "refused lease-expired",
    "refused lease-held",
    "refused lease-owner",
    "refused payload-hash",
    "refused session-closed",
    "refused permission-digest",
    "refused permission-id-used",
    "refused run-cancelled",
    "refused session-busy",
    "release",
    "rename session",
    "run",
    "run ended by manager",
    "run ended by runner",
    "run in a known session",
    "run with its start",
    "same command",
    "same job",
    "session",
    "session taken",
    "steer",
    "steer without a turn",
    "sweep",
    "taken",
    "tool",
    "turn",
    "turn taken up",
    "usage",
    "label run",
    "label session",
];

/// Where a crash may cut anything short, what is rare may not be reached.
const RARE_ON_POSTGRES: &[&str] = &[
    "close session",
    "job failed",
    "job succeeded",
    "permission allowed",
    "permission denied",
    "permission past its deadline",
    "refused permission-digest",
    "refused permission-id-used",
    "refused run-cancelled",
    "refused session-closed",
    "run in a known session",
    "same command",
];

fn play(test_store: &TestStore, script: &[Step], tally: &RefCell<Tally>) -> Result<(), TestCaseError> {
    let mut script_runner = ScriptRunner::new(test_store);
    for (number, step) in script.iter().enumerate() {
        script_runner.step(step).map_err(|why| TestCaseError::fail(format!("step {number}, {step:?}: {why}")))?;
    }
    for (what, count) in script_runner.finish() {
        *tally.borrow_mut().entry(what).or_default() += count;
    }
    Ok(())
}

/// `OSTLER_SOAK=seed:cases` looks for longer, and elsewhere.
fn runner(cases: u32) -> TestRunner {
    let soak = std::env::var("OSTLER_SOAK").ok();
    let soak = soak.as_deref().and_then(|soak| soak.split_once(':'));
    let (seed, cases) = soak.map_or((SEED, cases), |(seed, cases)| (seed.parse().unwrap(), cases.parse().unwrap()));
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 2_000,
        max_shrink_time: 60_000,
        rng_algorithm: RngAlgorithm::ChaCha,
        rng_seed: RngSeed::Fixed(seed),
        ..Config::default()
    };
    TestRunner::new(config)
}

/// Fails with the reason and the shortest script that shows it, a step in a line.
fn succeeded(played: Result<(), TestError<Vec<Step>>>) {
    match played {
        Ok(()) => {}
        Err(TestError::Fail(why, script)) => {
            let steps: Vec<_> = script.iter().map(|step| format!("{step:?}")).collect();
            panic!("{why}\n{}", steps.join("\n"));
        }
        Err(other) => panic!("{other}"),
    }
}

fn every_kind_was_reached(tally: &Tally, but: &[&str]) {
    for (what, count) in tally {
        println!("{count:>7}  {what}");
    }
    let missing = REACHED.iter().filter(|what| !tally.contains_key(**what) && !but.contains(what));
    let missing: Vec<_> = missing.collect();
    assert!(missing.is_empty(), "the scripts never reached {missing:?}");
}

#[test]
fn every_invariant_survives_any_interleaving_on_sqlite() {
    let tally = RefCell::default();
    let played =
        runner(SQLITE_CASES).run(&script(STEPS), |script| play(&TestStore::new(Engine::Sqlite), &script, &tally));
    succeeded(played);
    every_kind_was_reached(&tally.borrow(), &[]);
}

#[test]
fn every_invariant_survives_any_interleaving_on_postgres() {
    let tally = RefCell::default();
    let test_store = TestStore::new(Engine::Postgres);
    let played = runner(POSTGRES_CASES).run(&script(STEPS), |script| {
        wipe(&test_store);
        play(&test_store, &script, &tally)
    });
    succeeded(played);
    every_kind_was_reached(&tally.borrow(), RARE_ON_POSTGRES);
}

/// The same database for every case: making one takes longer than playing one.
fn wipe(test_store: &TestStore) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let now = ostler_protocol::Timestamp::UNIX_EPOCH;
        ostler_store::Db::open(&test_store.config(), now).await.unwrap().close().await;
        Witness::of(test_store).await.wipe().await;
    });
}
