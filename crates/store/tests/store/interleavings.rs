//! Random interleavings of everything that can be asked, retried, refused, expire or crash, on both engines through the
//! real lanes. The seed is fixed: a failure shows again, and shrinks.

use std::cell::RefCell;

use proptest::test_runner::{Config, RngAlgorithm, RngSeed, TestCaseError, TestError, TestRunner};

use crate::{
    place::{Engine, Place},
    player::{Player, Tally},
    rows::Witness,
    script::{Step, script},
};

const STEPS: usize = 60;
const SQLITE_CASES: u32 = 40;
const POSTGRES_CASES: u32 = 10;

/// What a run of the test must have reached, or it would prove less than it seems to.
const REACHED: &[&str] = &[
    "ack",
    "answer",
    "append",
    "append retried",
    "ask",
    "cancel command",
    "cancel run",
    "claim",
    "crash",
    "end command",
    "end run",
    "finish job",
    "flush with many",
    "heartbeat",
    "interrupt",
    "job",
    "job claimed",
    "lease claim-waiting",
    "lease expired",
    "lease recovered",
    "lease released",
    "message",
    "release",
    "run",
    "run in a known session",
    "run with its start",
    "same command",
    "same job",
    "steer",
    "steer without a turn",
    "sweep",
    "taken",
    "tool",
    "turn",
    "usage",
    "permission allowed",
    "permission denied",
    "permission cancelled",
    "permission past its deadline",
    "job failed",
    "job succeeded",
    "command completed by runner",
    "command cancelled by manager",
    "command blocked by manager",
    "command cancelled by run",
    "run completed by runner",
    "run cancelled by manager",
    "refused lease-held",
    "refused lease-epoch-stale",
    "refused lease-owner",
    "refused lease-expired",
    "refused payload-hash",
    "refused permission-digest",
    "refused permission-id-used",
    "refused session-busy",
    "refused command-terminal",
    "refused run-cancelled",
];

fn play(place: &Place, script: &[Step], tally: &RefCell<Tally>) -> Result<(), TestCaseError> {
    let mut player = Player::new(place);
    for (number, step) in script.iter().enumerate() {
        player.step(step).map_err(|why| TestCaseError::fail(format!("step {number}, {step:?}: {why}")))?;
    }
    for (what, count) in player.finish() {
        *tally.borrow_mut().entry(what).or_default() += count;
    }
    Ok(())
}

fn runner(cases: u32) -> TestRunner {
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 2_000,
        max_shrink_time: 60_000,
        rng_algorithm: RngAlgorithm::ChaCha,
        rng_seed: RngSeed::Fixed(20_260_101),
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

fn every_kind_was_reached(tally: &Tally) {
    for (what, count) in tally {
        println!("{count:>7}  {what}");
    }
    let missing: Vec<_> = REACHED.iter().filter(|what| !tally.contains_key(**what)).collect();
    assert!(missing.is_empty(), "the scripts never reached {missing:?}");
}

#[test]
fn every_invariant_survives_any_interleaving_on_sqlite() {
    let tally = RefCell::default();
    let played = runner(SQLITE_CASES).run(&script(STEPS), |script| play(&Place::new(Engine::Sqlite), &script, &tally));
    succeeded(played);
    every_kind_was_reached(&tally.borrow());
}

#[test]
fn every_invariant_survives_any_interleaving_on_postgres() {
    let tally = RefCell::default();
    let place = Place::new(Engine::Postgres);
    let played = runner(POSTGRES_CASES).run(&script(STEPS), |script| {
        wipe(&place);
        play(&place, &script, &tally)
    });
    succeeded(played);
    every_kind_was_reached(&tally.borrow());
}

/// The same database for every case: making one takes longer than playing one.
fn wipe(place: &Place) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let now = ostler_protocol::Timestamp::UNIX_EPOCH;
        ostler_store::Db::open(&place.config(), now).await.unwrap().close().await;
        Witness::of(place).await.wipe().await;
    });
}
