//! The occurrences of events in a window. Only the times of an event are walked; its texts are copied for the occurrences that
//! are returned.

use std::{collections::BinaryHeap, ops::ControlFlow};

use jiff::{SignedDuration, civil::Date, tz::TimeZone};

use super::{CalendarEvent, CalendarOccurrence, CalendarOccurrences, Window, ZONE_CHANGE_MAX};
use crate::{
    Failure, Timestamp,
    ids::CalendarEventId,
    run_input::local_times::{LocalTimeKind, ResolvedTime, local_text, resolve},
};

/// An occurrence without the texts of its event. The order is that of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FoundTime {
    starts_at: Timestamp,
    event_id: CalendarEventId,
    ends_at: Timestamp,
    kind: LocalTimeKind,
    /// The position of the event in the list.
    index: usize,
}

/// The first `max` occurrences of the events in a window, in order. Each event comes with the end of its last occurrence. No
/// more than `max` + 1 occurrences are held, and an event is not walked past the last of them.
pub fn list(
    events: &[(CalendarEvent, Option<Timestamp>)],
    window: &Window,
    max: usize,
) -> Result<CalendarOccurrences, Failure> {
    let mut first = BinaryHeap::new();
    for (index, (event, last_end)) in events.iter().enumerate() {
        event.visit_times(window, *last_end, |start, ends_at| {
            let found = FoundTime { starts_at: start.at, event_id: event.id, ends_at, kind: start.kind, index };
            if first.len() > max {
                if first.peek().is_some_and(|last| found >= *last) {
                    return ControlFlow::Break(());
                }
                first.pop();
            }
            first.push(found);
            ControlFlow::Continue(())
        })?;
    }
    let mut found = first.into_sorted_vec();
    let has_more = found.len() > max;
    found.truncate(max);
    let occurrence = |found: FoundTime| {
        let event = events.get(found.index).map(|(event, _)| event)?;
        Some(event.zone().map(|zone| event.occurrence(&found, &zone)))
    };
    let occurrences = found.into_iter().filter_map(occurrence).collect::<Result<_, Failure>>()?;
    Ok(CalendarOccurrences { occurrences, has_more })
}

impl CalendarEvent {
    /// The instant at which its last occurrence ends. `None` if it recurs without an end.
    pub fn last_end(&self) -> Result<Option<Timestamp>, Failure> {
        let zone = self.zone()?;
        let (start, end) = self.first(&zone)?;
        let Some(rule) = self.rule()? else { return Ok(Some(end)) };
        let length = end.duration_since(start.at);
        let Some(date) = rule.last_date(self.starts_at, &zone) else { return Ok(None) };
        let last = resolve(date.to_datetime(self.starts_at.time()), &zone);
        Ok(last.map(|last| self.end_of(date, last.at, length, &zone)))
    }

    /// The end of the occurrence that starts on `date`, at `start`. Whole days are counted in the zone: a day on which the clocks
    /// change is one day. Other occurrences last as long as the first one.
    fn end_of(&self, date: Date, start: Timestamp, length: SignedDuration, zone: &TimeZone) -> Timestamp {
        if !self.all_day {
            return start.checked_add(length).unwrap_or(Timestamp::MAX);
        }
        let days = self.starts_at.date().until(self.ends_at.date());
        let last = days.and_then(|days| date.checked_add(days)).ok();
        let end = last.and_then(|last| resolve(last.to_datetime(self.ends_at.time()), zone));
        end.map_or(Timestamp::MAX, |end| end.at)
    }

    /// Visits the starts and ends of the occurrences that overlap a window, in order, until `visit` breaks. `last_end` is that
    /// of the event: it bounds rules with a count, so that a window is found without counting from the start.
    fn visit_times(
        &self,
        window: &Window,
        last_end: Option<Timestamp>,
        mut visit: impl FnMut(ResolvedTime, Timestamp) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        let zone = self.zone()?;
        let (start, end) = self.first(&zone)?;
        let overlaps = |start: Timestamp, end: Timestamp| start < window.to && end > window.from;
        let Some(rule) = self.rule()? else {
            if overlaps(start.at, end) {
                let _ = visit(start, end);
            }
            return Ok(());
        };
        let length = end.duration_since(start.at);
        let earliest = window.from.checked_sub(length).and_then(|at| at.checked_sub(ZONE_CHANGE_MAX));
        let earliest = earliest.unwrap_or(Timestamp::MIN).to_zoned(zone.clone()).date();
        let latest = window.to.to_zoned(zone.clone()).date().tomorrow().unwrap_or(Date::MAX);
        for date in rule.dates(self.starts_at, (earliest, latest), &zone) {
            let Some(start) = resolve(date.to_datetime(self.starts_at.time()), &zone) else { break };
            let end = self.end_of(date, start.at, length, &zone);
            // Occurrences may overlap, so only the end tells those beyond the rule's count.
            if start.at >= window.to || last_end.is_some_and(|last| end > last) {
                break;
            }
            if !rule.excludes(date) && overlaps(start.at, end) && visit(start, end).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn occurrence(&self, found: &FoundTime, zone: &TimeZone) -> CalendarOccurrence {
        CalendarOccurrence {
            event_id: self.id,
            title: self.title.clone(),
            location: self.location.clone(),
            all_day: self.all_day,
            starts_at: found.starts_at,
            ends_at: found.ends_at,
            local: local_text(found.starts_at, zone),
            event_timezone: self.event_timezone.clone(),
            local_time: found.kind,
        }
    }
}
