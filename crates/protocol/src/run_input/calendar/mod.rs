//! Events of a person's calendar. An event has local times and a zone, because that is what people agree on: its instants
//! follow from the rules of the zone. The zone of the machine is never used.

pub mod export;
pub mod occurrences;
pub mod recurrence;
#[cfg(test)]
mod tests;
pub mod tool;

use jiff::{
    SignedDuration, ToSpan,
    civil::DateTime,
    tz::{AmbiguousOffset, TimeZone},
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use self::recurrence::Recurrence;
use crate::{
    Failure, Rule, Timestamp,
    ids::CalendarEventId,
    problems::Problems,
    run_input::local_times::{LocalTimeKind, ResolvedTime, find_zone, resolve, zone_name},
    text::{is_plain, is_plain_lines},
};

pub const EVENT_TITLE_CHARS_MAX: usize = 500;
pub const EVENT_TEXT_CHARS_MAX: usize = 10_000;
pub const EVENT_DAYS_MAX: i64 = 366;
pub const EVENTS_PER_USER_MAX: i64 = 10_000;
/// The longest window of a list of occurrences.
pub const WINDOW_MAX: SignedDuration = SignedDuration::from_hours(24 * 400);
/// Occurrences in one response.
pub const OCCURRENCES_MAX: usize = 1_000;
/// Rules of zones may change by about a day after an event was stored.
pub const ZONE_CHANGE_MAX: SignedDuration = SignedDuration::from_hours(48);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CalendarEvent {
    pub id: CalendarEventId,
    pub owner_id: String,
    #[serde(skip)]
    pub tenant_id: String,
    pub title: String,
    pub description: Option<String>,
    pub location: Option<String>,
    /// A local time of the event's zone, such as `2026-03-16T09:00:00`.
    #[schema(value_type = String)]
    pub starts_at: DateTime,
    #[schema(value_type = String)]
    pub ends_at: DateTime,
    /// It lasts whole days: both times are midnight.
    pub all_day: bool,
    /// A name of the time zone database, such as `Europe/Berlin`.
    pub event_timezone: String,
    /// A rule of RFC 5545, such as `FREQ=WEEKLY;BYDAY=MO`. A further line `EXDATE:20260323` leaves dates out.
    pub recurrence: Option<String>,
    /// Rises with each change.
    pub revision: i64,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}

/// One occurrence of an event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CalendarOccurrence {
    pub event_id: CalendarEventId,
    pub title: String,
    pub location: Option<String>,
    pub all_day: bool,
    #[schema(value_type = String, format = DateTime)]
    pub starts_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub ends_at: Timestamp,
    /// The start in the event's zone.
    pub local: String,
    pub event_timezone: String,
    pub local_time: LocalTimeKind,
}

impl CalendarEvent {
    pub fn zone(&self) -> Result<TimeZone, Failure> {
        find_zone(&self.event_timezone)
    }

    pub fn rule(&self) -> Result<Option<Recurrence>, Failure> {
        self.recurrence.as_deref().map(Recurrence::parse).transpose()
    }

    /// Checks everything that one field alone does not show: the order of the times, and whether the rule starts with them.
    pub fn check(&self) -> Result<(), Failure> {
        let time = |message: String| Failure::invalid(Rule::CalendarTime, message);
        let zone = self.zone()?;
        let (start, end) = self.first(&zone)?;
        if end <= start.at {
            return Err(time("ends_at must be after starts_at".into()));
        }
        if end.duration_since(start.at) > SignedDuration::from_hours(24 * EVENT_DAYS_MAX) {
            return Err(time(format!("an event lasts at most {EVENT_DAYS_MAX} days")));
        }
        let is_midnight = |at: DateTime| at.time() == jiff::civil::Time::midnight();
        if self.all_day && !(is_midnight(self.starts_at) && is_midnight(self.ends_at)) {
            return Err(time("an event of whole days starts and ends at midnight".into()));
        }
        let Some(rule) = self.rule()? else { return Ok(()) };
        match rule.first_date(self.starts_at, &zone) {
            Some(date) if date == self.starts_at.date() => Ok(()),
            Some(date) => {
                let message = format!("the event must start on the first date of its recurrence, which is {date}");
                Err(Failure::invalid(Rule::CalendarRule, message))
            }
            None => Err(Failure::invalid(Rule::CalendarRule, "the recurrence has no date")),
        }
    }

    /// The instants of the first occurrence.
    pub fn first(&self, zone: &TimeZone) -> Result<(ResolvedTime, Timestamp), Failure> {
        let range = || Failure::invalid(Rule::CalendarTime, "a time of the event is out of range");
        let start = resolve(self.starts_at, zone).ok_or_else(range)?;
        Ok((start, resolve(self.ends_at, zone).ok_or_else(range)?.at))
    }
}

/// The time of a list of occurrences, without its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    pub from: Timestamp,
    pub to: Timestamp,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateCalendarEvent {
    pub title: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// A local time of the event's zone, without an offset: `2026-03-16T09:00`. For whole days a date.
    pub starts_at: String,
    /// Left out: an hour after the start, or a day. If the clocks repeat that hour, the event ends when they have repeated it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<String>,
    #[serde(default)]
    pub all_day: bool,
    /// A name of the time zone database, such as `Europe/Berlin`.
    pub event_timezone: String,
    /// A rule of RFC 5545, such as `FREQ=WEEKLY;BYDAY=MO`. A further line `EXDATE:20260323` leaves dates out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recurrence: Option<String>,
}

/// What is left out stays as it is. An empty text removes the description, the location or the recurrence. A new start keeps
/// the length of the event, unless there is a new end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpdateCalendarEvent {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all_day: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_timezone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recurrence: Option<String>,
}

/// The fields of an event that people choose, checked one by one.
#[derive(Clone, Debug, PartialEq)]
pub struct EventFields {
    pub title: String,
    pub description: Option<String>,
    pub location: Option<String>,
    pub starts_at: DateTime,
    pub ends_at: DateTime,
    pub all_day: bool,
    pub event_timezone: String,
    pub recurrence: Option<String>,
}

impl CreateCalendarEvent {
    pub fn read(&self) -> Result<EventFields, Failure> {
        let mut problems = Problems::default();
        let texts = check_texts(Some(&self.title), self.description.as_deref(), self.location.as_deref());
        problems.note(texts);
        let starts_at = problems.note(read_local("starts_at", &self.starts_at, self.all_day));
        let ends_at =
            problems.note(self.ends_at.as_deref().map(|text| read_local("ends_at", text, self.all_day)).transpose());
        let zone = problems.note(find_zone(&self.event_timezone));
        problems.note(self.recurrence.as_deref().filter(|rule| !rule.is_empty()).map(Recurrence::parse).transpose());
        let (Some(starts_at), Some(ends_at), Some(zone), true) = (starts_at, ends_at, zone, problems.is_empty()) else {
            return Err(problems.into_failure());
        };
        let ends_at = match ends_at {
            Some(ends_at) => ends_at,
            None => default_end(starts_at, self.all_day, &zone)?,
        };
        Ok(EventFields {
            title: self.title.clone(),
            description: non_empty(self.description.clone()),
            location: non_empty(self.location.clone()),
            starts_at,
            ends_at,
            all_day: self.all_day,
            event_timezone: zone_name(&zone).to_owned(),
            recurrence: non_empty(self.recurrence.clone()),
        })
    }
}

impl UpdateCalendarEvent {
    pub fn read(&self, event: &CalendarEvent) -> Result<EventFields, Failure> {
        if *self == Self::default() {
            return Err(Failure::invalid(Rule::CalendarShape, "a change needs at least one field of the event"));
        }
        let mut problems = Problems::default();
        let texts = check_texts(self.title.as_deref(), self.description.as_deref(), self.location.as_deref());
        problems.note(texts);
        let all_day = self.all_day.unwrap_or(event.all_day);
        let mut local = |name: &str, text: &Option<String>| {
            problems.note(text.as_deref().map(|text| read_local(name, text, all_day)).transpose()).flatten()
        };
        let (starts_at, ends_at) = (local("starts_at", &self.starts_at), local("ends_at", &self.ends_at));
        let name = self.event_timezone.as_deref().unwrap_or(&event.event_timezone);
        let zone = problems.note(find_zone(name));
        let rule = self.recurrence.clone().or(event.recurrence.clone()).filter(|rule| !rule.is_empty());
        problems.note(rule.as_deref().map(Recurrence::parse).transpose());
        let (Some(zone), true) = (zone, problems.is_empty()) else { return Err(problems.into_failure()) };
        let ends_at = match (starts_at, ends_at) {
            (_, Some(ends_at)) => ends_at,
            (Some(starts_at), None) => {
                if all_day || event.all_day {
                    let length = event.starts_at.until(event.ends_at).map_err(Failure::internal)?;
                    starts_at.checked_add(length).map_err(|_| out_of_range())?
                } else {
                    let (start, end) = event.first(&event.zone()?)?;
                    end_after(starts_at, end.duration_since(start.at), &zone)?
                }
            }
            (None, None) => event.ends_at,
        };
        let changed = |new: &Option<String>, old: &Option<String>| match new {
            Some(text) => non_empty(Some(text.clone())),
            None => old.clone(),
        };
        Ok(EventFields {
            title: self.title.clone().unwrap_or_else(|| event.title.clone()),
            description: changed(&self.description, &event.description),
            location: changed(&self.location, &event.location),
            starts_at: starts_at.unwrap_or(event.starts_at),
            ends_at,
            all_day,
            event_timezone: zone_name(&zone).to_owned(),
            recurrence: rule,
        })
    }
}

fn non_empty(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

fn out_of_range() -> Failure {
    Failure::invalid(Rule::CalendarTime, "a time of the event is out of range")
}

/// An hour later, or the next day. On a day with a change of the clocks an hour is still an hour, unless the end is in the repeated
/// part of the day.
fn default_end(starts_at: DateTime, all_day: bool, zone: &TimeZone) -> Result<DateTime, Failure> {
    if all_day {
        return starts_at.checked_add(1.day()).map_err(|_| out_of_range());
    }
    end_after(starts_at, SignedDuration::from_hours(1), zone)
}

/// The local time at which `length` has elapsed since `starts_at`. Changes of the clocks do not count as elapsed time.
fn end_after(starts_at: DateTime, length: SignedDuration, zone: &TimeZone) -> Result<DateTime, Failure> {
    let start = resolve(starts_at, zone).ok_or_else(out_of_range)?;
    let end = start.at.checked_add(length).map_err(|_| out_of_range())?;
    let local = end.to_zoned(zone.clone()).datetime();
    let AmbiguousOffset::Fold { before, .. } = zone.to_ambiguous_timestamp(local).offset() else { return Ok(local) };
    if resolve(local, zone).is_some_and(|resolved| resolved.at == end) {
        return Ok(local);
    }
    // The clocks show this local time for the second time, and a local time means the first. The next local time that can be written
    // is the one at which they stop repeating.
    let behind = end.checked_add(SignedDuration::from_secs(1)).map_err(|_| out_of_range())?;
    let change = zone.preceding(behind).next().ok_or_else(out_of_range)?;
    Ok(before.to_datetime(change.timestamp()))
}

fn check_texts(title: Option<&str>, description: Option<&str>, location: Option<&str>) -> Result<(), Failure> {
    let wrong = |message: String| Err::<(), _>(Failure::invalid(Rule::CalendarShape, message));
    let mut problems = Problems::default();
    if title.is_some_and(|title| !is_plain(title) || title.chars().count() > EVENT_TITLE_CHARS_MAX) {
        problems.note(wrong(format!("title must be one line of 1 to {EVENT_TITLE_CHARS_MAX} characters")));
    }
    for (name, text) in [("description", description), ("location", location)] {
        if text.is_some_and(|text| !is_plain_lines(text) || text.chars().count() > EVENT_TEXT_CHARS_MAX) {
            problems.note(wrong(format!("{name} must be plain text of at most {EVENT_TEXT_CHARS_MAX} characters")));
        }
    }
    problems.check()
}

/// A local time without an offset, with seconds or without; a date for whole days.
fn read_local(name: &str, text: &str, all_day: bool) -> Result<DateTime, Failure> {
    let invalid = |message: &str| Failure::invalid(Rule::CalendarTime, format!("{name} {message}"));
    let is_digit = |byte: u8, shape: u8| match shape {
        b'd' => byte.is_ascii_digit(),
        b'T' => matches!(byte, b'T' | b't' | b' '),
        shape => byte == shape,
    };
    let fits = |shape: &str| text.len() == shape.len() && text.bytes().zip(shape.bytes()).all(|(b, s)| is_digit(b, s));
    let is_date = fits("dddd-dd-dd");
    let is_time = fits("dddd-dd-ddTdd:dd") || fits("dddd-dd-ddTdd:dd:dd");
    if !is_date && !is_time {
        return Err(invalid("must be a local time without an offset, such as 2026-03-16T09:00"));
    }
    if is_date && !all_day {
        return Err(invalid("needs a time of day, unless all_day is set"));
    }
    text.parse().map_err(|_| invalid("is no date and time that exists"))
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListCalendarEvents {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Events of the caller, the newest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CalendarEventPage {
    pub events: Vec<CalendarEvent>,
    pub next_cursor: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListOccurrences {
    /// Occurrences that end after this.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(required, nullable = false)]
    pub from: Option<String>,
    /// Occurrences that start before this, at most 400 days later.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(required, nullable = false)]
    pub to: Option<String>,
}

impl ListOccurrences {
    pub fn window(&self) -> Result<Window, Failure> {
        let wrong = |message: &str| Failure::invalid(Rule::CalendarWindow, message);
        let read = |text: &Option<String>| text.as_deref().and_then(|text| text.parse::<Timestamp>().ok());
        let (Some(from), Some(to)) = (read(&self.from), read(&self.to)) else {
            return Err(wrong("from and to must be instants such as 2026-03-16T09:00:00Z"));
        };
        if to <= from || to.duration_since(from) > WINDOW_MAX {
            return Err(wrong("to must be after from, by at most 400 days"));
        }
        Ok(Window { from, to })
    }
}

/// The occurrences of a window, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CalendarOccurrences {
    pub occurrences: Vec<CalendarOccurrence>,
    /// There are more than one response has; a shorter window has the rest.
    pub has_more: bool,
}
