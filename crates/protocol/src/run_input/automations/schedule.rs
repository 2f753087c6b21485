//! When an automation starts: every day, or on some days of the week, at a local time of its zone. One local date has at most
//! one start, whatever the clocks do on it.

use jiff::{
    ToSpan,
    civil::{Date, Time, Weekday},
    tz::TimeZone,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    Failure, Rule, Timestamp,
    run_input::local_times::{LocalTimeKind, resolve},
};

/// Dates that are searched for the next start. A week has every weekday, and one date before and after it may be moved by a
/// change of the zone.
const DATES_MAX: usize = 16;
const WEEKDAYS: u8 = 7;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleType {
    Daily,
    Weekly,
}

/// A local time of the automation's zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunAt {
    #[schema(maximum = 23)]
    pub hour: u8,
    #[schema(maximum = 59)]
    pub minute: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    #[serde(rename = "type")]
    pub kind: ScheduleType,
    pub run_at: RunAt,
    /// From 1, Monday, to 7, Sunday. Only `weekly` has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weekdays: Vec<u8>,
}

/// A time at which an automation starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedStart {
    pub at: Timestamp,
    /// The local date that it counts for.
    pub date: Date,
    pub kind: LocalTimeKind,
}

impl Schedule {
    pub fn check(&self) -> Result<(), Failure> {
        let wrong = |message: &str| Err(Failure::invalid(Rule::AutomationSchedule, message));
        if self.time().is_none() {
            return wrong("schedule.run_at needs an hour of 0 to 23 and a minute of 0 to 59");
        }
        let is_set = self.weekdays.iter().all(|day| (1..=WEEKDAYS).contains(day))
            && self.weekdays.iter().enumerate().all(|(at, day)| !self.weekdays[..at].contains(day));
        match self.kind {
            _ if !is_set => wrong("schedule.weekdays are numbers of 1 (Monday) to 7 (Sunday), each at most once"),
            ScheduleType::Daily if !self.weekdays.is_empty() => wrong("a daily schedule has no weekdays"),
            ScheduleType::Weekly if self.weekdays.is_empty() => wrong("a weekly schedule needs weekdays"),
            _ => Ok(()),
        }
    }

    fn time(&self) -> Option<Time> {
        Time::new(self.run_at.hour.try_into().ok()?, self.run_at.minute.try_into().ok()?, 0, 0).ok()
    }

    fn includes(&self, weekday: Weekday) -> bool {
        match self.kind {
            ScheduleType::Daily => true,
            ScheduleType::Weekly => self.weekdays.contains(&weekday.to_monday_one_offset().unsigned_abs()),
        }
    }
}

/// The first start after an instant. `None` if the schedule is malformed, or the next start is after the year 9999.
pub fn next_after(schedule: &Schedule, zone: &TimeZone, after: Timestamp) -> Option<PlannedStart> {
    next_after_date(schedule, zone, after, None)
}

/// As [`next_after`], and on a later local date than `date`: after a change of the zone's rules, a date that had its start gets
/// no second one.
pub fn next_after_date(
    schedule: &Schedule,
    zone: &TimeZone,
    after: Timestamp,
    date: Option<Date>,
) -> Option<PlannedStart> {
    let time = schedule.time()?;
    // The time of the date before may have been moved into this one.
    let first = after.to_zoned(zone.clone()).date().yesterday().unwrap_or(Date::MIN);
    let first = date.and_then(|date| date.tomorrow().ok()).map_or(first, |next| next.max(first));
    let dates = std::iter::successors(Some(first), |date| date.checked_add(1.day()).ok()).take(DATES_MAX);
    dates.filter(|date| schedule.includes(date.weekday())).find_map(|date| {
        let resolved = resolve(date.to_datetime(time), zone)?;
        (resolved.at > after).then_some(PlannedStart { at: resolved.at, date, kind: resolved.kind })
    })
}

/// The next starts after an instant, at most `count`.
pub fn list_next(schedule: &Schedule, zone: &TimeZone, after: Timestamp, count: usize) -> Vec<PlannedStart> {
    let first = next_after(schedule, zone, after);
    std::iter::successors(first, |start| next_after(schedule, zone, start.at)).take(count).collect()
}
