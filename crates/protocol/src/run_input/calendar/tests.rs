//! The rules of calendars: recurrence by python-dateutil, exports by Python's `icalendar`, zones by the protocol's order.

mod oracle;

use serde_json::{Value, json};

use super::{
    export,
    tool::{CalendarWrite, KnownZones, ZoneSource, definitions, missing_zone, read_write, resolve_zone},
    *,
};

pub(super) fn event(fields: Value) -> CalendarEvent {
    let fields = serde_json::from_value::<CreateCalendarEvent>(fields).unwrap().read().unwrap();
    with_fields(fields)
}

fn with_fields(fields: EventFields) -> CalendarEvent {
    CalendarEvent {
        id: "cal_00000000000000000000000000000001".parse().unwrap(),
        owner_id: "local".into(),
        tenant_id: "local".into(),
        title: fields.title,
        description: fields.description,
        location: fields.location,
        starts_at: fields.starts_at,
        ends_at: fields.ends_at,
        all_day: fields.all_day,
        event_timezone: fields.event_timezone,
        recurrence: fields.recurrence,
        revision: 1,
        created_at: "2026-01-01T00:00:00Z".parse().unwrap(),
        updated_at: "2026-01-01T00:00:00Z".parse().unwrap(),
    }
}

fn standup(zone: &str, rule: &str) -> CalendarEvent {
    event(json!({"title": "Standup", "starts_at": "2026-03-23T09:00", "ends_at": "2026-03-23T09:30",
        "event_timezone": zone, "recurrence": rule}))
}

pub(super) fn list(events: &[CalendarEvent], window: &Window, max: usize) -> CalendarOccurrences {
    occurrences::list(&with_ends(events), window, max).unwrap()
}

/// The events as they are stored, with the ends of their last occurrences.
pub(super) fn with_ends(events: &[CalendarEvent]) -> Vec<(CalendarEvent, Option<Timestamp>)> {
    events.iter().map(|event| (event.clone(), event.last_end().unwrap())).collect()
}

fn starts(event: &CalendarEvent, from: &str, to: &str) -> Vec<String> {
    event.check().unwrap();
    let window = Window { from: from.parse().unwrap(), to: to.parse().unwrap() };
    let found = list(std::slice::from_ref(event), &window, OCCURRENCES_MAX).occurrences;
    found.iter().map(|occurrence| occurrence.starts_at.to_string()).collect()
}

#[test]
fn excluded_dates_have_no_occurrence_and_are_exported() {
    let rule = "FREQ=WEEKLY;COUNT=4\nEXDATE:20260330,20260406T090000\r\nEXDATE;VALUE=DATE:20260330";
    let weekly = standup("Europe/Berlin", rule);
    let found = starts(&weekly, "2026-03-01T00:00:00Z", "2026-06-01T00:00:00Z");
    assert_eq!(found, ["2026-03-23T08:00:00Z", "2026-04-13T07:00:00Z"], "the count includes them");
    let text = export::write(&with_ends(std::slice::from_ref(&weekly)), weekly.created_at).unwrap();
    for line in ["EXDATE;TZID=Europe/Berlin:20260330T090000", "EXDATE;TZID=Europe/Berlin:20260406T090000"] {
        assert_eq!(text.matches(line).count(), 1, "{text}");
    }
    let without_first = standup("UTC", "FREQ=DAILY;COUNT=2\nEXDATE:20260323");
    assert_eq!(starts(&without_first, "2026-03-01T00:00:00Z", "2026-06-01T00:00:00Z"), ["2026-03-24T09:00:00Z"]);
    for wrong in [
        "FREQ=DAILY\nEXDATE:20260230",
        "FREQ=DAILY\nEXDATE:20260323T090000Z",
        "FREQ=DAILY\nEXDATE:",
        "FREQ=DAILY\nEXDATE;TZID=Europe/Paris:20260323T090000",
        "FREQ=DAILY\nEXDATE:20260323T250000",
        "EXDATE:20260323",
        "FREQ=DAILY\nFREQ=WEEKLY",
        "FREQ=DAILY;EXDATE=20260323",
    ] {
        assert!(Recurrence::parse(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn occurrences_keep_their_local_time_across_a_change_of_the_clocks() {
    let weekly = standup("Europe/Berlin", "FREQ=WEEKLY;COUNT=3");
    let expected = ["2026-03-23T08:00:00Z", "2026-03-30T07:00:00Z", "2026-04-06T07:00:00Z"];
    assert_eq!(starts(&weekly, "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"), expected);
    assert_eq!(starts(&weekly, "2026-03-30T07:15:00Z", "2026-03-30T07:16:00Z"), expected[1..2], "one that goes on");
    assert!(starts(&weekly, "2026-04-06T07:30:00Z", "2027-01-01T00:00:00Z").is_empty(), "the end is not included");
    assert!(starts(&weekly, "2026-04-07T00:00:00Z", "2027-01-01T00:00:00Z").is_empty(), "the count has an end");
}

/// Whole days of Berlin, on the days on which the clocks go forward and back.
#[test]
fn a_whole_day_ends_at_midnight_also_when_the_clocks_change() {
    for (first, ends) in [
        ("2026-03-28", ["2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", "2026-03-30T22:00:00Z"]),
        ("2026-10-24", ["2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", "2026-10-26T23:00:00Z"]),
    ] {
        let daily =
            event(json!({"title": "Fair", "starts_at": first, "all_day": true, "event_timezone": "Europe/Berlin",
            "recurrence": "FREQ=DAILY;COUNT=3"}));
        daily.check().unwrap();
        let window =
            Window { from: "2026-01-01T00:00:00Z".parse().unwrap(), to: "2027-01-01T00:00:00Z".parse().unwrap() };
        let found = list(std::slice::from_ref(&daily), &window, OCCURRENCES_MAX).occurrences;
        assert_eq!(found.iter().map(|one| one.ends_at.to_string()).collect::<Vec<_>>(), ends);
        assert!(found.windows(2).all(|pair| pair[0].ends_at == pair[1].starts_at), "{found:?}");
        assert_eq!(daily.last_end().unwrap().unwrap().to_string(), ends[2]);
        // A day is over at its midnight, not 24 hours after its start.
        let next = Window { from: ends[1].parse().unwrap(), to: ends[2].parse().unwrap() };
        assert_eq!(list(&[daily], &next, OCCURRENCES_MAX).occurrences, found[2..]);
    }
}

#[test]
fn the_first_occurrences_of_many_events_are_listed_in_order() {
    let events: Vec<_> = (0..20_u32)
        .map(|n| {
            let starts_at = format!("2026-03-{:02}T09:00", 20 - n);
            let event = event(json!({"title": format!("Daily {n}"), "starts_at": starts_at, "event_timezone": "UTC",
                "recurrence": "FREQ=DAILY"}));
            CalendarEvent { id: format!("cal_{n:032x}").parse().unwrap(), ..event }
        })
        .collect();
    let window = Window { from: "2026-03-01T00:00:00Z".parse().unwrap(), to: "2026-04-01T00:00:00Z".parse().unwrap() };
    let all = list(&events, &window, OCCURRENCES_MAX);
    assert_eq!((all.occurrences.len(), all.has_more), ((12..=31_usize).sum::<usize>(), false));
    assert!(all.occurrences.is_sorted_by_key(|one| (one.starts_at, one.event_id)));
    for max in [1, 7, all.occurrences.len() - 1, all.occurrences.len()] {
        let first = list(&events, &window, max);
        assert_eq!(first.occurrences, all.occurrences[..max]);
        assert_eq!(first.has_more, max < all.occurrences.len());
    }
}

#[test]
fn a_window_far_away_is_found_without_counting_up_to_it() {
    let daily = standup("Europe/Berlin", "FREQ=DAILY");
    let found = starts(&daily, "9000-06-01T00:00:00Z", "9000-06-03T00:00:00Z");
    assert_eq!(found, ["9000-06-01T07:00:00Z", "9000-06-02T07:00:00Z"]);
}

#[test]
fn a_leap_day_recurs_in_leap_years() {
    let leap = event(json!({"title": "Leap", "starts_at": "2028-02-29T10:00", "event_timezone": "UTC",
        "recurrence": "FREQ=YEARLY;COUNT=3"}));
    let (rule, zone) = (leap.rule().unwrap().unwrap(), leap.zone().unwrap());
    let span = (leap.starts_at.date(), "2040-01-01".parse().unwrap());
    let dates: Vec<_> = rule.dates(leap.starts_at, span, &zone).take(3).collect();
    assert_eq!(dates.iter().map(ToString::to_string).collect::<Vec<_>>(), ["2028-02-29", "2032-02-29", "2036-02-29"]);
}

#[test]
fn an_event_that_does_not_start_with_its_rule_is_rejected_with_the_date_that_would_do() {
    let mut late = standup("UTC", "FREQ=WEEKLY;BYDAY=TU");
    assert!(late.check().unwrap_err().message.contains("2026-03-24"));
    late.recurrence = Some("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30".into());
    assert_eq!(late.check().unwrap_err().rule_name(), Some("calendar-rule"));
}

#[test]
fn rules_that_we_do_not_know_are_rejected_by_name() {
    for (bad, what) in [
        ("", "FREQ"),
        ("FREQ=HOURLY", "FREQ"),
        ("FREQ=DAILY;BYHOUR=9", "BYHOUR"),
        ("FREQ=YEARLY;BYWEEKNO=20", "BYWEEKNO"),
        ("FREQ=DAILY;COUNT=0", "COUNT"),
        ("FREQ=DAILY;COUNT=5001", "COUNT"),
        ("FREQ=DAILY;COUNT=2;UNTIL=20270101", "COUNT and UNTIL"),
        ("FREQ=DAILY;FREQ=DAILY", "twice"),
        ("FREQ=WEEKLY;BYDAY=1MO", "BYDAY"),
        ("FREQ=WEEKLY;BYDAY=XX", "BYDAY"),
        ("FREQ=MONTHLY;BYMONTHDAY=32", "BYMONTHDAY"),
        ("FREQ=DAILY;UNTIL=tomorrow", "UNTIL"),
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL"),
        ("FREQ=MONTHLY;BYSETPOS=1", "BYSETPOS"),
        ("nonsense", "NAME=VALUE"),
        ("FREQ=WEEKLY\nRDATE:20270329", "RDATE is not supported"),
    ] {
        let failure = Recurrence::parse(bad).unwrap_err();
        assert!(failure.message.contains(what), "{bad}: {}", failure.message);
    }
    Recurrence::parse("RRULE:FREQ=DAILY;COUNT=5000").unwrap();
}

#[test]
fn a_local_time_has_no_offset_and_a_time_of_day() {
    let read = |starts_at: &str, all_day: bool| {
        let fields = json!({"title": "t", "starts_at": starts_at, "event_timezone": "UTC", "all_day": all_day});
        serde_json::from_value::<CreateCalendarEvent>(fields).unwrap().read()
    };
    for good in ["2026-03-16T09:00", "2026-03-16T09:00:00", "2026-03-16 09:00"] {
        assert!(read(good, false).is_ok(), "{good}");
    }
    assert!(read("2026-03-16", true).is_ok());
    for bad in [
        "2026-03-16",
        "2026-03-16T09:00Z",
        "2026-03-16T09:00:00-07:00",
        "2026-02-30T09:00",
        "9:00",
        "",
        "2026-03-16T25:00",
    ] {
        assert_eq!(read(bad, false).unwrap_err().rule_name(), Some("calendar-time"), "{bad}");
    }
}

#[test]
fn an_event_ends_after_it_starts_also_when_the_clocks_go_back() {
    let mut night =
        event(json!({"title": "Night", "starts_at": "2026-10-25T02:30", "event_timezone": "Europe/Berlin"}));
    night.check().unwrap();
    let (start, end) = night.first(&night.zone().unwrap()).unwrap();
    assert_eq!(start.kind, LocalTimeKind::Ambiguous);
    assert_eq!(night.ends_at.to_string(), "2026-10-25T03:00:00", "the second 02:30 cannot be written");
    assert_eq!(end.duration_since(start.at).as_mins(), 90);
    night.ends_at = night.starts_at;
    assert_eq!(night.check().unwrap_err().rule_name(), Some("calendar-time"));
}

#[test]
fn an_end_in_the_repeated_hour_is_the_end_of_that_hour() {
    let long = event(json!({"title": "Long", "starts_at": "2026-10-20T10:00", "ends_at": "2026-10-20T11:20",
        "event_timezone": "Europe/Berlin"}));
    for (starts_at, ends_at) in [
        // The first 02:45, and an hour and twenty minutes after the first 02:10: the second 02:30.
        ("2026-10-25T01:25", "2026-10-25T02:45:00"),
        ("2026-10-25T02:10", "2026-10-25T03:00:00"),
        ("2026-10-25T01:40", "2026-10-25T03:00:00"),
        ("2026-10-25T02:50", "2026-10-25T03:10:00"),
    ] {
        let update = UpdateCalendarEvent { starts_at: Some(starts_at.into()), ..UpdateCalendarEvent::default() };
        assert_eq!(update.read(&long).unwrap().ends_at.to_string(), ends_at, "{starts_at}");
    }
}

#[test]
fn a_moved_event_keeps_its_length_and_what_is_left_out() {
    let old = standup("Europe/Berlin", "FREQ=WEEKLY");
    let update = UpdateCalendarEvent { starts_at: Some("2026-03-24T10:00".into()), ..UpdateCalendarEvent::default() };
    let fields = update.read(&old).unwrap();
    assert_eq!(fields.ends_at.to_string(), "2026-03-24T10:30:00");
    assert_eq!((fields.title.as_str(), fields.recurrence.as_deref()), ("Standup", Some("FREQ=WEEKLY")));
    let update = UpdateCalendarEvent { recurrence: Some(String::new()), ..UpdateCalendarEvent::default() };
    assert_eq!(update.read(&old).unwrap().recurrence, None);
}

/// The protocol's order: the call, the device, the user, UTC.
#[test]
fn the_zone_of_an_event_is_resolved_in_the_fixed_order() {
    let zones = KnownZones { device: Some("America/Los_Angeles"), user: Some("Asia/Shanghai"), event: None };
    for (argument, zones, expected) in [
        (Some("europe/berlin"), zones, ("Europe/Berlin", ZoneSource::Argument)),
        (None, zones, ("America/Los_Angeles", ZoneSource::Device)),
        (None, KnownZones { device: None, ..zones }, ("Asia/Shanghai", ZoneSource::User)),
        (None, KnownZones { device: Some("Mars/Olympus"), ..zones }, ("Asia/Shanghai", ZoneSource::User)),
        (None, KnownZones::default(), ("UTC", ZoneSource::Utc)),
    ] {
        let (zone, source) = resolve_zone(argument, zones).unwrap();
        assert_eq!((zone.as_str(), source), expected);
    }
    assert_eq!(resolve_zone(Some("Mars/Olympus"), zones).unwrap_err().rule_name(), Some("timezone"));
}

#[test]
fn the_final_call_of_a_new_event_always_has_a_zone() {
    let [write, _] = definitions();
    assert_eq!(write.parameters["required"], json!(["action"]), "a call without a zone gets one by the order");
    let call = json!({"action": "create", "title": "Dentist", "starts_at": "2026-03-17T09:00", "location": null});
    let zones = KnownZones { device: Some("America/Los_Angeles"), ..KnownZones::default() };
    let CalendarWrite::Create(made) = read_write(&call, zones).unwrap() else { panic!("a new event") };
    assert_eq!(made.call.event_timezone, "America/Los_Angeles");
    assert_eq!(made.zone_source, Some(ZoneSource::Device));
    // An update keeps the event's zone, unless it names another.
    let id = "cal_00000000000000000000000000000001";
    for (change, source) in [
        (json!({"title": "Doctor"}), None),
        (json!({"starts_at": "2026-03-17T10:00"}), Some(ZoneSource::Event)),
        (json!({"event_timezone": "Europe/Berlin"}), Some(ZoneSource::Argument)),
    ] {
        let mut call = change.clone();
        (call["action"], call["event_id"]) = (json!("update"), json!(id));
        let CalendarWrite::Update(_, updated) = read_write(&call, zones).unwrap() else { panic!("an update") };
        assert_eq!(
            (updated.zone_source, updated.call.event_timezone.is_some()),
            (source, source == Some(ZoneSource::Argument)),
            "{change}"
        );
    }
    let event = with_fields(made.call.read().unwrap());
    let (start, _) = event.first(&event.zone().unwrap()).unwrap();
    assert_eq!(start.at.to_string(), "2026-03-17T16:00:00Z");
}

#[test]
fn a_call_with_wrong_arguments_is_rejected() {
    let id = "cal_00000000000000000000000000000001";
    for bad in [
        json!("create"),
        json!({"action": "share"}),
        json!({"action": "create", "title": "t"}),
        json!({"action": "create", "title": "t", "starts_at": "2026-03-17T09:00", "color": "red"}),
        json!({"action": "create", "event_id": id, "title": "t", "starts_at": "2026-03-17T09:00"}),
        json!({"action": "update", "title": "t"}),
        json!({"action": "update", "event_id": "7", "title": "t"}),
        json!({"action": "delete"}),
        json!({"action": "create", "title": "t", "starts_at": "2026-03-17T09:00", "event_timezone": 7}),
    ] {
        assert!(read_write(&bad, KnownZones::default()).is_err(), "{bad}");
    }
    assert!(matches!(
        read_write(&json!({"action": "delete", "event_id": id}), KnownZones::default()),
        Ok(CalendarWrite::Delete(_))
    ));
}

#[test]
fn exported_text_is_escaped_and_folded() {
    let mut long = standup("Europe/Berlin", "FREQ=WEEKLY");
    long.title = "Plan; build, test\\ship ".repeat(6).trim().into();
    long.description = Some("first\nsecond 早上好".into());
    let text = export::write(&with_ends(&[long]), "2026-01-01T00:00:00Z".parse().unwrap()).unwrap();
    assert!(text.lines().all(|line| line.len() <= 76), "{text}");
    assert_eq!(text.matches("\r\n").count(), text.matches('\n').count());
    let unfolded = text.replace("\r\n ", "");
    assert!(unfolded.contains("SUMMARY:Plan\\; build\\, test\\\\ship"), "{unfolded}");
    assert!(unfolded.contains("DESCRIPTION:first\\nsecond 早上好"));
}

#[test]
fn a_call_lacks_a_zone_if_it_has_a_time_and_names_none() {
    let zones =
        KnownZones { device: Some("America/Los_Angeles"), user: Some("Asia/Shanghai"), event: Some("Europe/Berlin") };
    let missing = |call: Value| missing_zone(call.as_object().unwrap(), zones).map(|(zone, _)| zone);
    let device = Some("America/Los_Angeles".to_owned());
    for (call, expected) in [
        (json!({"action": "create", "starts_at": "2026-03-17T09:00"}), device.clone()),
        (json!({"action": "create", "event_timezone": null}), device),
        (json!({"action": "create", "event_timezone": "UTC"}), None),
        (json!({"action": "update", "ends_at": "2026-03-17T09:00"}), Some("Europe/Berlin".to_owned())),
        (json!({"action": "update", "title": "x"}), None),
        (json!({"action": "delete"}), None),
    ] {
        assert_eq!(missing(call.clone()), expected, "{call}");
    }
}
