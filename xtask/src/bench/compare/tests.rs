use super::*;

/// Rounds with one figure, given as pairs of base and current.
fn rounds(name: &str, pairs: &[(f64, f64)]) -> Vec<Round> {
    let figures = |value| Figures::from([(name.to_owned(), value)]);
    let round =
        |&(base, current): &(f64, f64)| Round { base: figures(base), current: figures(current), is_base_first: true };
    pairs.iter().map(round).collect()
}

fn verdict(name: &str, pairs: &[(f64, f64)]) -> Option<Verdict> {
    compare(&rounds(name, pairs)).changes[0].verdict
}

/// Verdict of ratios that are measured against a base of 100.
fn verdict_of(name: &str, percent: [f64; 6]) -> Verdict {
    verdict(name, &percent.map(|current| (100.0, current))).unwrap()
}

const TIME: &str = "start.ready_ms";
const RATE: &str = "append.sqlite.rows_per_s";

#[test]
fn a_time_is_worse_and_a_rate_is_better_when_it_grows() {
    let grown = [108.0, 112.0, 110.0, 109.0, 111.0, 107.0];
    assert_eq!(verdict_of(TIME, grown), Verdict::Worse);
    assert_eq!(verdict_of(RATE, grown), Verdict::Better);
    let shrunk = grown.map(|percent| 10_000.0 / percent);
    assert_eq!(verdict_of(TIME, shrunk), Verdict::Better);
    assert_eq!(verdict_of(RATE, shrunk), Verdict::Worse);
}

#[test]
fn a_change_of_at_most_three_percent_is_none() {
    for name in [TIME, RATE] {
        assert_eq!(verdict_of(name, [102.0, 101.0, 102.5, 101.5, 102.0, 102.0]), Verdict::Same);
        assert_eq!(verdict_of(name, [98.0, 99.0, 97.5, 98.5, 98.0, 98.0]), Verdict::Same);
        assert_eq!(verdict_of(name, [103.0; 6]), Verdict::Same);
        // One slow round of six does not hide that the others agree.
        assert_eq!(verdict_of(name, [100.0, 101.0, 99.0, 100.0, 250.0, 100.5]), Verdict::Same);
    }
}

#[test]
fn rounds_that_disagree_allow_no_verdict() {
    // The median is 20 % higher, but one round is faster than the base.
    assert_eq!(verdict_of(TIME, [120.0, 121.0, 119.0, 120.0, 95.0, 122.0]), Verdict::TooNoisy);
    // All rounds are slower, but by factors so different that the interval contains 1.
    assert_eq!(verdict_of(TIME, [101.0, 102.0, 150.0, 104.0, 160.0, 170.0]), Verdict::TooNoisy);
    // The median is exactly the same.
    assert_eq!(verdict_of(TIME, [50.0, 150.0, 100.0, 100.0, 60.0, 140.0]), Verdict::TooNoisy);
    assert_eq!(verdict_of(RATE, [50.0, 150.0, 100.0, 100.0, 60.0, 140.0]), Verdict::TooNoisy);
}

#[test]
fn one_of_eight_rounds_may_contradict_the_others() {
    let with_outliers = |outliers: usize| {
        let mut pairs = [(100.0, 150.0); 8];
        pairs[..outliers].fill((150.0, 100.0));
        verdict(TIME, &pairs)
    };
    assert_eq!(with_outliers(1), Some(Verdict::Worse));
    assert_eq!(with_outliers(2), Some(Verdict::TooNoisy));
}

#[test]
fn a_machine_that_gets_slower_during_the_rounds_changes_no_verdict() {
    let pairs = [1.0, 1.3, 2.0, 2.9, 4.0, 7.0].map(|load| (100.0 * load, 100.5 * load));
    assert_eq!(verdict(TIME, &pairs), Some(Verdict::Same));
}

#[test]
fn more_rounds_with_the_same_noise_allow_a_verdict() {
    let rounds = [100.5, 101.0, 105.0, 110.0, 112.0].map(|current| (100.0, current));
    assert_eq!(verdict(TIME, &rounds), Some(Verdict::TooNoisy));
    assert_eq!(verdict(TIME, &rounds.repeat(3)), Some(Verdict::Worse));
}

/// Numbers from 0 to 1 that look random and are the same in each test.
struct Noise(u64);

impl Noise {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1))
    }

    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / f64::from(1_u32 << 24)
    }

    /// Twelve rounds on a machine whose speed changes by a factor of two. Each value is up to 2 % off, and all errors are equally
    /// likely, so that the verdicts are clearer than with normal noise of 2 %.
    fn rounds(&mut self, change: f64) -> Vec<(f64, f64)> {
        let round = |_| {
            let load = 1.0 + self.unit();
            let base = 100.0 * load * (0.98 + 0.04 * self.unit());
            let current = 100.0 * load * change * (0.98 + 0.04 * self.unit());
            (base, current)
        };
        (0..12).map(round).collect()
    }
}

#[test]
fn twelve_rounds_with_uniform_noise_of_two_percent_show_a_regression_of_five_percent_and_no_other_change() {
    for seed in 1..=200 {
        let verdict_of_change = |change| verdict(TIME, &Noise::new(seed).rounds(change)).unwrap();
        assert_eq!(verdict_of_change(1.05), Verdict::Worse, "seed {seed}");
        let unchanged = verdict_of_change(1.0);
        assert!(!matches!(unchanged, Verdict::Worse | Verdict::Better), "seed {seed}: {unchanged:?}");
    }
}

#[test]
fn fewer_than_five_pairs_allow_no_verdict() {
    assert_eq!(verdict(TIME, &[(100.0, 200.0); ROUNDS_MIN - 1]), Some(Verdict::TooNoisy));
    assert_eq!(verdict(TIME, &[(100.0, 200.0); ROUNDS_MIN]), Some(Verdict::Worse));
    // A round in which one side lacks the figure is not a pair.
    let mut some = rounds(TIME, &[(100.0, 200.0); ROUNDS_MIN]);
    some[2].base.clear();
    let comparison = compare(&some);
    assert_eq!(comparison.changes[0].verdict, Some(Verdict::TooNoisy));
    assert!(comparison.only_current.is_empty(), "the other rounds have it on both sides");
}

#[test]
fn equal_figures_are_the_same_also_when_they_are_zero() {
    assert_eq!(verdict(TIME, &[(0.0, 0.0); 6]), Some(Verdict::Same));
    assert_eq!(verdict(TIME, &[(7.0, 7.0); 6]), Some(Verdict::Same));
}

#[test]
fn a_zero_has_no_ratio() {
    let comparison = compare(&rounds(TIME, &[(0.0, 10.0); 6]));
    assert_eq!(comparison.changes[0].ratios, None);
    assert_eq!(comparison.changes[0].verdict, Some(Verdict::TooNoisy));
    assert_eq!(ratio(-0.5, 0.5), None, "memory can shrink during a measurement");
}

#[test]
fn a_figure_of_one_revision_is_listed_as_such() {
    let mut some = rounds(TIME, &[(100.0, 100.0); 6]);
    some[0].base.insert("old.ms".into(), 1.0);
    for round in &mut some {
        round.current.insert("new.ms".into(), 1.0);
    }
    let comparison = compare(&some);
    assert_eq!(comparison.only_base, ["old.ms"]);
    assert_eq!(comparison.only_current, ["new.ms"]);
    assert_eq!(comparison.changes.len(), 1);
    let table = comparison.table("abc1234");
    assert!(table.contains("  only in abc1234: old.ms\n  only in current: new.ms\n"), "{table}");
}

#[test]
fn context_has_no_verdict() {
    let names = ["fsync.us", "machine.load_before", "append.sqlite.bare_rows_per_s", "codex.turn_bare_ms"];
    for name in names.into_iter().chain(["idle.rss_mib", "append.postgres.rss_mib"]) {
        assert_eq!(verdict(name, &[(100.0, 300.0); 6]), None, "{name}");
    }
    assert_eq!(verdict("idle.anonymous_mib", &[(100.0, 300.0); 6]), Some(Verdict::Worse));
    assert_eq!(direction("run.sqlite.generator_cpu_ms_per_run"), Direction::Context);
    assert_eq!(direction("codex.turn_ratio_to_bare"), Direction::LowerIsBetter);
    assert_eq!(direction("mesh.postgres.ratio_to_bare"), Direction::HigherIsBetter);
}

/// The benchmark has the same knowledge, in its targets.
#[test]
fn directions_agree_with_the_targets_of_the_benchmark() {
    let source = include_str!("../../../../bench/src/targets.rs");
    let mut count = 0;
    for line in source.lines().map(str::trim) {
        let Some((name, target)) = line.strip_prefix("(\"").and_then(|line| line.split_once("\", ")) else { continue };
        let expected = if target.starts_with("AtLeast") { Direction::HigherIsBetter } else { Direction::LowerIsBetter };
        let found = direction(name);
        assert!(found == expected || found == Direction::Context, "{name}: {found:?}, but its target is {target}");
        count += 1;
    }
    assert!(count > 20, "found {count} targets");
}

#[test]
fn quartiles_are_interpolated() {
    let spread = Spread::of(vec![4.0, 1.0, 3.0, 2.0]).unwrap();
    assert_eq!((spread.lower_quartile, spread.median, spread.upper_quartile), (1.75, 2.5, 3.25));
    assert_eq!(Spread::of(vec![]), None);
    assert_eq!(Spread::of(vec![2.0]).unwrap().upper_quartile, 2.0);
}

#[test]
fn figures_are_an_object_of_numbers() {
    let figures = parse("{\n  \"fsync.us\": 51.2,\n  \"machine.cores\": 2.0\n}\n").unwrap();
    assert_eq!(figures["fsync.us"], 51.2);
    for wrong in ["", "[]", "{\"a\": \"b\"}", "{\"a\": null}"] {
        assert!(parse(wrong).unwrap_err().contains("not an object of numbers"), "{wrong}");
    }
}

#[test]
fn the_tables_show_every_figure_and_round() {
    let mut some = rounds(TIME, &[(100.0, 112.0); 6]);
    for (index, round) in some.iter_mut().enumerate() {
        round.base.insert(FSYNC.into(), 300.0 + index as f64);
        round.current.insert(FSYNC.into(), 310.0);
        round.base.insert("mesh.login_cpu_ms".into(), 2.0);
        round.current.insert("mesh.login_cpu_ms".into(), 2.0);
        round.is_base_first = index % 2 == 0;
    }
    let comparison = compare(&some);
    assert_eq!(comparison.worse(), [TIME]);
    assert_eq!(
        comparison.table("abc1234"),
        "\
figure                                          abc1234      current    ratio  interval        verdict
fsync.us                                            302          310    1.025  1.019..1.030
mesh.login_cpu_ms                                 2.000        2.000    1.000  1.000..1.000    same
start.ready_ms                                      100          112    1.120  1.120..1.120    worse

  worse: start.ready_ms
"
    );
    some[1].current.insert(FSYNC.into(), 40.0);
    let rounds = rounds_table(&some[..2], "abc1234");
    assert_eq!(
        rounds,
        "\
round  first         fsync.us abc1234     fsync.us current
1      abc1234                    300                  310
2      current                    301                 40.0  disk speed changed
"
    );
}
