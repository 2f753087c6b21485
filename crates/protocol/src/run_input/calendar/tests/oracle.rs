//! Recurrence by python-dateutil, and exports by `icalendar`, which khal reads its imports with.

use jiff::civil::{Date, DateTime};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use serde_json::{Value, json};

use super::{
    super::{OCCURRENCES_MAX, Window, export, recurrence::Recurrence},
    event, list as occurrences_of, with_ends,
};
use crate::run_input::{judges::ask_python, local_times::find_zone};

const CASES: usize = 3_000;
const EXCLUSION_CASES: usize = 500;
/// Dates of each rule that are compared.
const DATES: usize = 12;
const DAYS: [&str; 7] = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"];

fn list<T: std::fmt::Debug + Clone + Ord + 'static>(one: impl Strategy<Value = T> + 'static) -> BoxedStrategy<Vec<T>> {
    prop_oneof![Just(vec![]), prop::collection::btree_set(one, 1..4).prop_map(|set| set.into_iter().collect())].boxed()
}

fn joined<T: ToString>(name: &str, values: &[T]) -> String {
    if values.is_empty() {
        return String::new();
    }
    format!(";{name}={}", values.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
}

fn rules() -> impl Strategy<Value = String> {
    let frequency = prop::sample::select(vec!["DAILY", "WEEKLY", "MONTHLY", "YEARLY"]);
    let month_days = list(prop_oneof![1_i16..=31, -31_i16..=-1]);
    let weekdays = list(0_usize..7);
    let nth = prop_oneof![3 => Just(None), 1 => (1_i16..=5).prop_map(Some), 1 => (-5_i16..=-1).prop_map(Some)];
    let position = prop_oneof![4 => Just(None), 1 => (1_i16..=4).prop_map(Some), 1 => (-4_i16..=-1).prop_map(Some)];
    let end = prop_oneof![
        Just(String::new()),
        (1_u32..20).prop_map(|n| format!(";COUNT={n}")),
        (2026_i16..2040, 1_i8..=12).prop_map(|(y, m)| format!(";UNTIL={y}{m:02}15T101500"))
    ];
    let parts = (frequency, 1_u32..5, list(1_i16..=12), month_days, weekdays, nth, position, end, 0_usize..7);
    parts.prop_map(|(frequency, interval, months, month_days, weekdays, nth, position, end, week_start)| {
        let is_long = matches!(frequency, "MONTHLY" | "YEARLY");
        let month_days = if frequency == "WEEKLY" { vec![] } else { month_days };
        let day = |day: &usize| match nth.filter(|_| is_long) {
            Some(nth) => format!("{nth}{}", DAYS[*day]),
            None => DAYS[*day].to_owned(),
        };
        let weekdays: Vec<_> = weekdays.iter().map(day).collect();
        let has_days = !weekdays.is_empty() || !month_days.is_empty();
        let position: Vec<_> = position.filter(|_| is_long && has_days).into_iter().collect();
        format!(
            "FREQ={frequency};INTERVAL={interval}{}{}{}{}{end};WKST={}",
            joined("BYMONTH", &months),
            joined("BYMONTHDAY", &month_days),
            joined("BYDAY", &weekdays),
            joined("BYSETPOS", &position),
            DAYS[week_start]
        )
    })
}

/// The dates of a rule with its count.
fn dates(rule: &Recurrence, text: &str, first: DateTime, from: Date) -> Vec<String> {
    let zone = find_zone("UTC").unwrap();
    let count = text.split(';').find_map(|part| part.strip_prefix("COUNT=")?.parse().ok()).unwrap_or(usize::MAX);
    let last = Date::new(2079, 12, 31).unwrap();
    let all = rule.dates(first, (first.date(), last), &zone).take(count);
    all.filter(|date| *date >= from).take(DATES).map(|date| date.to_string()).collect()
}

#[test]
fn a_rule_has_the_dates_that_dateutil_finds() {
    let strategy = (rules(), 2020_i16..2030, 1_i8..=12, 1_i8..=28, 0_i16..4_000);
    let mut runner = TestRunner::deterministic();
    let cases: Vec<_> = (0..CASES).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect();
    let first = |year: i16, month: i8, day: i8| Date::new(year, month, day).unwrap().at(10, 15, 0, 0);
    let asked = cases.iter().map(|(rule, year, month, day, _)| {
        json!({"rule": rule, "first": first(*year, *month, *day).to_string(), "dates": DATES})
    });
    let answers = ask_python(include_str!("rules.py"), &asked.collect::<Vec<_>>());
    for ((text, year, month, day, skip), answer) in cases.iter().zip(answers) {
        let first = first(*year, *month, *day);
        let rule = Recurrence::parse(text).unwrap();
        let ours = dates(&rule, text, first, first.date());
        assert_eq!(json!(ours), answer, "{text} from {first}");
        // A later start of the search finds the same dates.
        let from = first.date().saturating_add(jiff::Span::new().days(*skip));
        let zone = find_zone("UTC").unwrap();
        if !text.contains("COUNT") {
            let last = Date::new(2079, 12, 31).unwrap();
            let jumped = rule.dates(first, (from, last), &zone).take(DATES);
            assert_eq!(
                jumped.map(|date| date.to_string()).collect::<Vec<_>>(),
                dates(&rule, text, first, from),
                "{text} from {from}"
            );
        }
    }
}

/// Dates of the rule are excluded at random, and one further date that need not be one of the rule's.
#[test]
fn a_rule_with_excluded_dates_has_the_occurrences_that_dateutil_finds() {
    let strategy = (rules(), 2020_i16..2030, 1_i8..=12, 1_i8..=28, any::<u16>(), 0_i16..400);
    let mut runner = TestRunner::deterministic();
    let cases = (0..EXCLUSION_CASES).map(|_| strategy.new_tree(&mut runner).unwrap().current());
    let cases = cases.filter_map(|(rule, year, month, day, mask, further)| {
        let first = Date::new(year, month, day).unwrap().at(10, 15, 0, 0);
        let found = dates(&Recurrence::parse(&rule).unwrap(), &rule, first, first.date());
        let chosen = found.iter().enumerate().filter(|(at, _)| mask & (1_u16 << *at) != 0);
        let further = first.date().saturating_add(jiff::Span::new().days(further));
        let excluded: Vec<Date> = chosen.map(|(_, date)| date.parse::<Date>().unwrap()).chain([further]).collect();
        (!found.is_empty()).then_some((rule, first, excluded))
    });
    let cases: Vec<(String, DateTime, Vec<Date>)> = cases.collect();
    assert!(cases.len() > EXCLUSION_CASES / 2, "most rules have dates");
    let local = |date: &Date| date.strftime("%Y%m%dT101500").to_string();
    // dateutil compares times, too, so that it gets each as a local time.
    let asked = cases.iter().map(|(rule, first, excluded)| {
        let excluded: Vec<_> = excluded.iter().map(local).collect();
        let rule = format!("{rule}\nEXDATE:{}", excluded.join(","));
        json!({"rule": rule, "first": first.to_string(), "dates": DATES})
    });
    let answers = ask_python(include_str!("rules.py"), &asked.collect::<Vec<_>>());
    let window = Window { from: "2020-01-01T00:00:00Z".parse().unwrap(), to: "2080-01-01T00:00:00Z".parse().unwrap() };
    for ((rule, first, excluded), answer) in cases.iter().zip(answers) {
        // Both forms, on two lines.
        let (dates, times): (Vec<&Date>, Vec<&Date>) = excluded.iter().partition(|date| date.day() % 2 == 0);
        let mut text = rule.clone();
        for (name, values) in [
            ("EXDATE;VALUE=DATE", dates.iter().map(|date| date.strftime("%Y%m%d").to_string()).collect::<Vec<_>>()),
            ("EXDATE", times.into_iter().map(local).collect()),
        ] {
            if !values.is_empty() {
                text += &format!("\n{name}:{}", values.join(","));
            }
        }
        let recurring = event(json!({"title": "Recurring", "starts_at": first.strftime("%Y-%m-%dT%H:%M").to_string(),
            "event_timezone": "UTC", "recurrence": text}));
        let found = occurrences_of(&[recurring], &window, DATES).occurrences;
        let ours: Vec<_> = found.iter().map(|one| one.starts_at.strftime("%Y-%m-%d").to_string()).collect();
        assert_eq!(json!(ours), answer, "{text} from {first}");
    }
}

/// Whole days of Berlin over the days on which the clocks change, with ends by dateutil's zones.
#[test]
fn whole_days_have_the_starts_and_ends_that_dateutil_finds() {
    let cases: Vec<_> = ["2026-03-26", "2026-10-22"]
        .into_iter()
        .flat_map(|first| (1..=3_i32).map(move |days| (first.parse::<Date>().unwrap(), days)))
        .collect();
    let rule = "FREQ=DAILY;COUNT=6";
    let asked = cases
        .iter()
        .map(|(first, days)| json!({"rule": rule, "first": first.to_string(), "days": days, "zone": "Europe/Berlin"}));
    let answers = ask_python(include_str!("days.py"), &asked.collect::<Vec<_>>());
    let window = Window { from: "2026-01-01T00:00:00Z".parse().unwrap(), to: "2027-01-01T00:00:00Z".parse().unwrap() };
    for ((first, days), answer) in cases.into_iter().zip(answers) {
        let ends_at = first.saturating_add(jiff::Span::new().days(days));
        let days = event(json!({"title": "Days", "starts_at": first.to_string(), "ends_at": ends_at.to_string(),
            "all_day": true, "event_timezone": "Europe/Berlin", "recurrence": rule}));
        let found = occurrences_of(&[days], &window, OCCURRENCES_MAX).occurrences;
        let ours: Vec<_> = found.iter().map(|one| [one.starts_at.as_second(), one.ends_at.as_second()]).collect();
        assert_eq!(json!(ours), answer, "{first}");
    }
}

#[test]
fn an_export_is_read_by_icalendar_with_the_same_instants() {
    let events = [
        json!({"title": "Sprint; plan, review", "description": "first\nsecond", "location": "Room 7",
            "starts_at": "2026-03-23T09:00", "ends_at": "2026-03-23T09:30", "event_timezone": "Europe/Berlin",
            "recurrence": "FREQ=WEEKLY;UNTIL=20260501"}),
        json!({"title": "Missing", "starts_at": "2026-03-08T02:15", "event_timezone": "America/Los_Angeles"}),
        json!({"title": "Call", "starts_at": "2026-07-01T12:00", "event_timezone": "UTC"}),
        json!({"title": "Fair", "starts_at": "2026-05-01", "ends_at": "2026-05-04", "all_day": true, "event_timezone": "Asia/Tokyo"}),
        json!({"title": "早上好 ".repeat(40).trim(), "starts_at": "2026-10-04T08:00", "event_timezone": "Australia/Lord_Howe",
            "recurrence": "FREQ=MONTHLY;BYDAY=1SU;COUNT=5"}),
    ]
    .map(event);
    for event in &events {
        event.check().unwrap();
    }
    let text = export::write(&with_ends(&events), "2026-01-01T00:00:00Z".parse().unwrap()).unwrap();
    let answer = ask_python(include_str!("export.py"), &[json!({"text": text})]).remove(0);
    let ours: Vec<Value> = events.iter().map(|event| {
        let (start, end) = event.first(&event.zone().unwrap()).unwrap();
        json!({"title": event.title, "start": start.at.as_second(), "end": end.as_second(), "all_day": event.all_day})
    }).collect();
    let read = answer["events"].as_array().unwrap();
    assert_eq!(read.len(), ours.len());
    for (read, ours) in read.iter().zip(&ours) {
        assert_eq!(read["title"], ours["title"]);
        assert_eq!(read["all_day"], ours["all_day"], "{}", ours["title"]);
        if ours["all_day"] == false {
            assert_eq!((&read["start"], &read["end"]), (&ours["start"], &ours["end"]), "{}", ours["title"]);
        }
    }
    assert_eq!(answer["zones"], json!(["America/Los_Angeles", "Australia/Lord_Howe", "Europe/Berlin"]));
}
