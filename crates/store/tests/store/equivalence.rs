//! The same requests, one at a time, with the same ids and the same clock, leave the same rows on both engines.

use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::{Config, RngAlgorithm, RngSeed, TestRunner},
};

use crate::{
    rows::TABLES,
    script::{Step, script},
    script_runner::ScriptRunner,
    test_store::{Engine, TestStore},
};

const SCRIPTS: usize = 3;
const STEPS: usize = 30;

/// Cases that differ only by their timing are left out: a crash, and requests that race.
fn in_turn(script: Vec<Step>) -> Vec<Step> {
    let steps = script.into_iter().flat_map(|step| match step {
        Step::Together(asks) | Step::Crash(asks, _) => {
            asks.into_iter().map(|ask| Step::Together(vec![ask])).collect::<Vec<_>>()
        }
        Step::AdvanceMs(ms) => vec![Step::AdvanceMs(ms)],
    });
    steps.collect()
}

#[test]
fn both_engines_keep_the_same_rows() {
    let config = Config {
        failure_persistence: None,
        rng_algorithm: RngAlgorithm::ChaCha,
        rng_seed: RngSeed::Fixed(20_260_102),
        ..Config::default()
    };
    let mut runner = TestRunner::new(config);
    for _ in 0..SCRIPTS {
        let script = in_turn(script(STEPS).new_tree(&mut runner).unwrap().current());
        let (sqlite, postgres) = (TestStore::new(Engine::Sqlite), TestStore::new(Engine::Postgres));
        let mut script_runners = [ScriptRunner::new(&sqlite), ScriptRunner::new(&postgres)];
        for (number, step) in script.iter().enumerate() {
            for script_runner in &mut script_runners {
                script_runner.step(step).unwrap_or_else(|why| panic!("step {number}, {step:?}: {why}"));
            }
            let [left, right] = &script_runners;
            for table in TABLES {
                assert_eq!(left.rows.of(table), right.rows.of(table), "{table} after step {number}, {step:?}");
            }
        }
        let [left, right] = script_runners.map(ScriptRunner::finish);
        assert_eq!(left, right);
    }
}
