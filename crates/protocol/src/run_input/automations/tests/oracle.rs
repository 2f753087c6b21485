//! Schedules by python-dateutil: `rrule` for the days and its own readers of time zones for the clocks.

use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use serde_json::{Value, json};

use super::{super::schedule::next_after, schedule};
use crate::run_input::{judges::ask_python, local_times::find_zone};

const CASES: usize = 3_000;
/// Zones whose rules for these years have been the same in all databases for long, with shifts of an hour, half an hour, two
/// hours and a whole day, and without any.
const ZONES: [&str; 14] = [
    "UTC",
    "Europe/Berlin",
    "Europe/London",
    "America/New_York",
    "America/Los_Angeles",
    "America/St_Johns",
    "America/Sao_Paulo",
    "Australia/Lord_Howe",
    "Australia/Sydney",
    "Pacific/Auckland",
    "Pacific/Apia",
    "Antarctica/Troll",
    "Asia/Kolkata",
    "Asia/Tokyo",
];
/// 2010-01-01 and 2036-01-01.
const YEARS_S: std::ops::Range<i64> = 1_262_304_000..2_082_758_400;

/// Seconds around changes of the clocks are as likely as all others together.
fn seconds() -> impl Strategy<Value = i64> {
    let changes = prop::sample::select(vec![
        1_269_741_600_i64, // Europe, 2010-03-28
        1_774_746_000,     // Europe, 2026-03-29
        1_792_890_000,     // Europe, 2026-10-25
        1_772_964_000,     // America, 2026-03-08
        1_793_520_000,     // America, 2026-11-01
        1_775_314_800,     // Lord Howe, 2026-04-04
        1_791_037_800,     // Lord Howe, 2026-10-03
        1_325_239_200,     // Apia, 2011-12-30
        1_541_300_400,     // Sao Paulo, 2018-11-04
    ]);
    prop_oneof![YEARS_S, (changes, -200_000_i64..200_000).prop_map(|(at, by)| at + by)]
}

#[test]
fn the_next_start_is_the_one_that_dateutil_finds() {
    let weekdays = prop::collection::btree_set(1_u8..=7, 0..4);
    let strategy = (prop::sample::select(ZONES.to_vec()), weekdays, 0_u8..24, 0_u8..60, seconds());
    let mut runner = TestRunner::deterministic();
    let cases: Vec<_> = (0..CASES).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect();
    let asked = cases.iter().map(|(zone, weekdays, hour, minute, after)| {
        json!({"zone": zone, "weekdays": weekdays, "hour": hour, "minute": minute, "after": after})
    });
    let answers = ask_python(include_str!("schedules.py"), &asked.collect::<Vec<_>>());
    for ((zone, weekdays, hour, minute, after), answer) in cases.iter().zip(answers) {
        let days: Vec<u8> = weekdays.iter().copied().collect();
        let at = jiff::Timestamp::from_second(*after).unwrap();
        let next = next_after(&schedule(&days, *hour, *minute), &find_zone(zone).unwrap(), at).unwrap();
        let ours = Value::from(next.at.as_second());
        assert_eq!(ours, answer, "{zone} {days:?} {hour}:{minute} after {at}: {}", next.at);
    }
}
