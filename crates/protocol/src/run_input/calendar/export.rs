//! A calendar as RFC 5545 text, for other programs to import. Each zone is described by its changes in the years that the
//! events cover, because readers need not know the names of our database.

use std::collections::BTreeMap;

use jiff::{
    SignedDuration,
    civil::DateTime,
    tz::{Offset, TimeZone},
};

use super::CalendarEvent;
use crate::{Failure, Timestamp};

/// The longest line in bytes, without its end.
const LINE_BYTES_MAX: usize = 75;
/// Years of zone changes after the export, for events without an end.
const ZONE_YEARS: i64 = 20;
const YEAR: SignedDuration = SignedDuration::from_hours(24 * 366);
/// Changes of one zone in an export: 250 years with two changes each.
const CHANGES_MAX: usize = 500;

/// The text of a calendar with these events, at the time of `now`. Each event comes with the end of its last occurrence, as it is
/// stored: computing it walks all occurrences.
pub fn write(events: &[(CalendarEvent, Option<Timestamp>)], now: Timestamp) -> Result<String, Failure> {
    let mut text = Lines::default();
    text.put("BEGIN", "VCALENDAR");
    text.put("VERSION", "2.0");
    text.put("PRODID", "-//Ostler//Calendar//EN");
    text.put("CALSCALE", "GREGORIAN");
    for (name, (from, to)) in zones(events, now)? {
        write_zone(&mut text, &name, from, to)?;
    }
    for (event, _) in events {
        write_event(&mut text, event)?;
    }
    text.put("END", "VCALENDAR");
    Ok(text.0)
}

/// The zones of events with times, each with the span of its events.
fn zones(
    events: &[(CalendarEvent, Option<Timestamp>)],
    now: Timestamp,
) -> Result<BTreeMap<String, (Timestamp, Timestamp)>, Failure> {
    let mut zones = BTreeMap::new();
    for (event, last_end) in events.iter().filter(|(event, _)| !event.all_day && event.event_timezone != "UTC") {
        let (start, _) = event.first(&event.zone()?)?;
        let latest = now.max(start.at).checked_add(YEAR * (ZONE_YEARS as i32)).unwrap_or(Timestamp::MAX);
        let end = last_end.map_or(latest, |end| end.min(latest));
        let span = zones.entry(event.event_timezone.clone()).or_insert((start.at, end));
        *span = (span.0.min(start.at), span.1.max(end));
    }
    Ok(zones)
}

/// One kind of change of a zone: the offsets before and after it, the name of the time after it, and whether that is daylight
/// saving.
type Change = (Offset, Offset, String, bool);

fn write_zone(text: &mut Lines, name: &str, from: Timestamp, to: Timestamp) -> Result<(), Failure> {
    let zone = crate::run_input::local_times::find_zone(name)?;
    text.put("BEGIN", "VTIMEZONE");
    text.put("TZID", name);
    for ((before, after, abbreviation, is_dst), at) in changes(&zone, from, to) {
        let part = if is_dst { "DAYLIGHT" } else { "STANDARD" };
        text.put("BEGIN", part);
        text.put("DTSTART", &at.first().copied().map_or_else(|| "19700101T000000".into(), local_text));
        for later in at.iter().skip(1) {
            text.put("RDATE", &local_text(*later));
        }
        text.put("TZOFFSETFROM", &offset_text(before));
        text.put("TZOFFSETTO", &offset_text(after));
        text.put("TZNAME", &escape(&abbreviation));
        text.put("END", part);
    }
    text.put("END", "VTIMEZONE");
    Ok(())
}

/// The changes of a zone that events of this time need, by their kind, with their local times before the change.
fn changes(zone: &TimeZone, from: Timestamp, to: Timestamp) -> Vec<(Change, Vec<DateTime>)> {
    let start = from.checked_sub(YEAR).unwrap_or(Timestamp::MIN);
    let base = zone.to_offset_info(start);
    let mut found: Vec<(Change, Vec<DateTime>)> = vec![];
    let mut put = |change: Change, at: Option<DateTime>| match found.iter_mut().find(|(kind, _)| *kind == change) {
        Some((_, times)) => times.extend(at),
        None => found.push((change, at.into_iter().collect())),
    };
    let first = (base.offset(), base.offset(), base.abbreviation().to_owned(), base.dst().is_dst());
    put(first, None);
    let mut offset = base.offset();
    for change in zone.following(start).take_while(|change| change.timestamp() <= to).take(CHANGES_MAX) {
        let kind = (offset, change.offset(), change.abbreviation().to_owned(), change.dst().is_dst());
        put(kind, Some(offset.to_datetime(change.timestamp())));
        offset = change.offset();
    }
    found
}

fn write_event(text: &mut Lines, event: &CalendarEvent) -> Result<(), Failure> {
    let zone = event.zone()?;
    text.put("BEGIN", "VEVENT");
    text.put("UID", &format!("{}@ostler", event.id));
    text.put("DTSTAMP", &utc_text(event.updated_at));
    text.put("CREATED", &utc_text(event.created_at));
    text.put("LAST-MODIFIED", &utc_text(event.updated_at));
    text.put("SEQUENCE", &(event.revision - 1).max(0).to_string());
    text.put("SUMMARY", &escape(&event.title));
    write_time(text, event, "DTSTART", event.starts_at);
    write_time(text, event, "DTEND", event.ends_at);
    if let Some(rule) = event.rule()? {
        text.put("RRULE", &rule.to_text(&zone, event.all_day));
        for date in rule.excluded() {
            write_time(text, event, "EXDATE", date.to_datetime(event.starts_at.time()));
        }
    }
    for (name, value) in [("DESCRIPTION", &event.description), ("LOCATION", &event.location)] {
        if let Some(value) = value {
            text.put(name, &escape(value));
        }
    }
    text.put("END", "VEVENT");
    Ok(())
}

/// A local time of an event.
fn write_time(text: &mut Lines, event: &CalendarEvent, name: &str, local: DateTime) {
    match (event.all_day, event.event_timezone.as_str()) {
        (true, _) => text.put(&format!("{name};VALUE=DATE"), &local.strftime("%Y%m%d").to_string()),
        (false, "UTC") => text.put(name, &format!("{}Z", local_text(local))),
        (false, zone) => text.put(&format!("{name};TZID={zone}"), &local_text(local)),
    }
}

fn local_text(local: DateTime) -> String {
    local.strftime("%Y%m%dT%H%M%S").to_string()
}

fn utc_text(at: Timestamp) -> String {
    at.strftime("%Y%m%dT%H%M%SZ").to_string()
}

fn offset_text(offset: Offset) -> String {
    let seconds = offset.seconds();
    let sign = if seconds < 0 { '-' } else { '+' };
    let (hours, minutes, rest) = (seconds.abs() / 3_600, seconds.abs() / 60 % 60, seconds.abs() % 60);
    let rest = if rest == 0 { String::new() } else { format!("{rest:02}") };
    format!("{sign}{hours:02}{minutes:02}{rest}")
}

/// A text value: separators and line ends are escaped.
fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace(';', "\\;").replace(',', "\\,");
    text.replace("\r\n", "\\n").replace(['\r', '\n'], "\\n")
}

/// Lines that end with CRLF and are folded at 75 bytes.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn put(&mut self, name: &str, value: &str) {
        let mut length = 0;
        for character in format!("{name}:{value}").chars() {
            if length + character.len_utf8() > LINE_BYTES_MAX {
                self.0.push_str("\r\n ");
                length = 1;
            }
            self.0.push(character);
            length += character.len_utf8();
        }
        self.0.push_str("\r\n");
    }
}
