//! The rules of schedules: chosen days by hand, and many days by python-dateutil, which shares no code with ours.

mod oracle;

use jiff::civil::date;
use serde_json::json;

use super::{
    schedule::{RunAt, Schedule, ScheduleType, list_next, next_after, next_after_date},
    *,
};
use crate::run_input::local_times::LocalTimeKind;

fn schedule(weekdays: &[u8], hour: u8, minute: u8) -> Schedule {
    let kind = if weekdays.is_empty() { ScheduleType::Daily } else { ScheduleType::Weekly };
    Schedule { kind, run_at: RunAt { hour, minute }, weekdays: weekdays.to_vec() }
}

fn next(schedule: &Schedule, zone: &str, after: &str) -> String {
    next_after(schedule, &find_zone(zone).unwrap(), after.parse().unwrap()).unwrap().at.to_string()
}

#[test]
fn a_daily_schedule_keeps_its_local_time_across_both_changes_of_the_clocks() {
    let nine = schedule(&[], 9, 0);
    for (zone, after, at) in [
        ("Europe/Berlin", "2026-03-28T08:00:00Z", "2026-03-29T07:00:00Z"),
        ("Europe/Berlin", "2026-03-29T07:00:00Z", "2026-03-30T07:00:00Z"),
        ("Europe/Berlin", "2026-10-24T07:00:00Z", "2026-10-25T08:00:00Z"),
        ("America/Los_Angeles", "2026-03-07T17:00:00Z", "2026-03-08T16:00:00Z"),
        ("Asia/Kolkata", "2026-03-08T03:29:59Z", "2026-03-08T03:30:00Z"),
        ("UTC", "2028-02-28T09:00:00Z", "2028-02-29T09:00:00Z"),
        ("UTC", "2027-02-28T09:00:00Z", "2027-03-01T09:00:00Z"),
    ] {
        assert_eq!(next(&nine, zone, after), at, "{zone} after {after}");
    }
}

#[test]
fn a_time_that_is_skipped_starts_later_and_one_that_is_repeated_starts_once() {
    let night = schedule(&[], 2, 30);
    let zone = find_zone("Europe/Berlin").unwrap();
    let starts = list_next(&night, &zone, "2026-03-28T00:00:00Z".parse().unwrap(), 3);
    let times: Vec<_> = starts.iter().map(|start| (start.at.to_string(), start.kind)).collect();
    let expected = [
        ("2026-03-28T01:30:00Z", LocalTimeKind::Exact),
        ("2026-03-29T01:30:00Z", LocalTimeKind::Missing),
        ("2026-03-30T00:30:00Z", LocalTimeKind::Exact),
    ];
    assert_eq!(times, expected.map(|(at, kind)| (at.to_owned(), kind)));
    let starts = list_next(&night, &zone, "2026-10-24T12:00:00Z".parse().unwrap(), 2);
    let times: Vec<_> = starts.iter().map(|start| (start.at.to_string(), start.kind)).collect();
    let expected = [("2026-10-25T00:30:00Z", LocalTimeKind::Ambiguous), ("2026-10-26T01:30:00Z", LocalTimeKind::Exact)];
    assert_eq!(times, expected.map(|(at, kind)| (at.to_owned(), kind)));
}

#[test]
fn a_weekly_schedule_starts_on_its_days_of_the_local_week() {
    let days = schedule(&[1, 5], 8, 15);
    let zone = find_zone("Pacific/Auckland").unwrap();
    let starts = list_next(&days, &zone, "2026-01-01T00:00:00Z".parse().unwrap(), 4);
    let dates: Vec<_> = starts.iter().map(|start| start.date).collect();
    assert_eq!(dates, [date(2026, 1, 2), date(2026, 1, 5), date(2026, 1, 9), date(2026, 1, 12)]);
    // 8:15 of Monday in Auckland is Sunday in UTC.
    assert_eq!(starts[1].at.to_string(), "2026-01-04T19:15:00Z");
}

#[test]
fn a_date_that_had_its_start_gets_no_second_one_when_the_rules_of_the_zone_change() {
    let ten = schedule(&[], 10, 0);
    let zone = find_zone("Europe/Berlin").unwrap();
    // It started at 8:00 UTC by other rules; by ours the local time is still to come.
    let after = "2026-01-10T08:00:00Z".parse().unwrap();
    assert_eq!(next_after(&ten, &zone, after).unwrap().date, date(2026, 1, 10));
    let next = next_after_date(&ten, &zone, after, Some(date(2026, 1, 10))).unwrap();
    assert_eq!(next.at.to_string(), "2026-01-11T09:00:00Z");
}

#[test]
fn a_schedule_that_contradicts_itself_is_rejected() {
    for (bad, what) in [
        (json!({"type": "daily", "run_at": {"hour": 24, "minute": 0}}), "hour"),
        (json!({"type": "daily", "run_at": {"hour": 0, "minute": 60}}), "minute"),
        (json!({"type": "daily", "run_at": {"hour": 0, "minute": 0}, "weekdays": [1]}), "weekdays"),
        (json!({"type": "weekly", "run_at": {"hour": 0, "minute": 0}}), "weekdays"),
        (json!({"type": "weekly", "run_at": {"hour": 0, "minute": 0}, "weekdays": [0]}), "weekdays"),
        (json!({"type": "weekly", "run_at": {"hour": 0, "minute": 0}, "weekdays": [8]}), "weekdays"),
        (json!({"type": "weekly", "run_at": {"hour": 0, "minute": 0}, "weekdays": [2, 2]}), "weekdays"),
    ] {
        let failure = serde_json::from_value::<Schedule>(bad.clone()).unwrap().check().unwrap_err();
        assert_eq!(failure.rule_name(), Some("automation-schedule"), "{bad}");
        assert!(failure.message.contains(what), "{bad}: {}", failure.message);
    }
    assert!(serde_json::from_value::<Schedule>(json!({"type": "hourly"})).is_err());
}

fn config() -> AutomationConfig {
    AutomationConfig {
        input_template: "Report of {{date}} at {{time}} in {{timezone}}: {{title}}".into(),
        enabled_tools: Some(vec!["calendar_write".into()]),
        context: Some(AutomationContext {
            source: ContextSource::LatestChat,
            window_mode: WindowMode::Day,
            window_count: 3,
        }),
        schedule: schedule(&[], 7, 0),
    }
}

#[test]
fn each_bound_of_a_config_holds_at_its_value_and_one_past_it() {
    config().check().unwrap();
    let check = |change: fn(&mut AutomationConfig), is_good: bool, what: &str| {
        let mut changed = config();
        change(&mut changed);
        assert_eq!(changed.check().is_ok(), is_good, "{what}");
    };
    check(|config| config.input_template = "x".repeat(USER_TEXT_CHARS_MAX), true, "longest template");
    check(|config| config.input_template = "x".repeat(USER_TEXT_CHARS_MAX + 1), false, "template");
    check(|config| config.input_template = " \n".into(), false, "blank template");
    check(|config| config.input_template = "At {{nope}}".into(), false, "unknown place");
    check(
        |config| config.enabled_tools = Some((0..ENABLED_TOOLS_MAX).map(|n| format!("t{n}")).collect()),
        true,
        "most tools",
    );
    check(
        |config| config.enabled_tools = Some((0..=ENABLED_TOOLS_MAX).map(|n| format!("t{n}")).collect()),
        false,
        "tools",
    );
    check(|config| config.enabled_tools = Some(vec![]), true, "no tool");
    check(|config| config.enabled_tools = None, true, "the default");
    check(|config| config.enabled_tools = Some(vec!["a".into(), "a".into()]), false, "a tool twice");
    check(|config| config.enabled_tools = Some(vec!["two words".into()]), false, "no name of a tool");
    check(|config| config.context.as_mut().unwrap().window_count = WINDOW_DAYS_MAX, true, "most days");
    check(|config| config.context.as_mut().unwrap().window_count = WINDOW_DAYS_MAX + 1, false, "days");
    check(|config| config.context.as_mut().unwrap().window_count = 0, false, "no day");
    check(|config| config.context = None, true, "no context");
}

#[test]
fn a_message_has_the_date_and_time_of_the_automations_zone() {
    let json = json!({"id": "aut_00000000000000000000000000000001", "owner_id": "local", "title": "Digest",
        "bootstrap_key": null, "config": config(), "timezone": "Asia/Tokyo", "next_run_at": null, "last_run_at": null,
        "status": "active", "disabled_reason": null, "failures": 0, "created_at": "2026-01-01T00:00:00Z",
        "updated_at": "2026-01-01T00:00:00Z"});
    let automation: Automation = serde_json::from_value(json).unwrap();
    let text = automation.message_at("2026-05-01T16:05:00Z".parse().unwrap()).unwrap();
    assert_eq!(text, "Report of 2026-05-02 at 01:05 in Asia/Tokyo: Digest");
}

#[test]
fn failures_in_a_row_are_counted_from_the_last_success() {
    use StartStatus::*;
    let count = [Failed, Blocked, Cancelled, Failed].into_iter().fold(0, failures_after);
    assert_eq!(count, 3);
    assert_eq!(failures_after(count, Completed), 0);
}
