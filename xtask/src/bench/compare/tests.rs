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
fn a_change_of_at_most_five_percent_is_none() {
    for name in [TIME, RATE] {
        assert_eq!(verdict_of(name, [104.0, 103.0, 104.5, 103.5, 104.0, 104.0]), Verdict::Same);
        assert_eq!(verdict_of(name, [96.0, 97.0, 95.5, 96.5, 96.0, 96.0]), Verdict::Same);
        assert_eq!(verdict_of(name, [105.0; 6]), Verdict::Same);
        // One slow round of six does not hide that the others agree.
        assert_eq!(verdict_of(name, [100.0, 101.0, 99.0, 100.0, 250.0, 100.5]), Verdict::Same);
    }
}

#[test]
fn rounds_that_disagree_allow_no_verdict() {
    // The median is 20 % higher, but one round is faster than the base.
    assert_eq!(verdict_of(TIME, [120.0, 121.0, 119.0, 120.0, 95.0, 122.0]), Verdict::TooNoisy);
    // All rounds are slower, but the quartiles are not beyond the limit.
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
    for name in ["fsync.us", "machine.load_before", "append.sqlite.bare_rows_per_s", "codex.turn_bare_ms"] {
        assert_eq!(verdict(name, &[(100.0, 300.0); 6]), None, "{name}");
    }
    assert_eq!(direction("run.sqlite.generator_cpu_ms_per_run"), Direction::Context);
    assert_eq!(direction("codex.turn_ratio_to_bare"), Direction::LowerIsBetter);
    assert_eq!(direction("mesh.postgres.ratio_to_bare"), Direction::HigherIsBetter);
}

/// The benchmark has the same knowledge, in its targets.
#[test]
fn directions_agree_with_the_targets_of_the_benchmark() {
    let source = include_str!("../../../../bench/src/report.rs");
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
figure                                          abc1234      current    ratio  quartiles       verdict
fsync.us                                            302          310    1.025  1.021..1.029
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
