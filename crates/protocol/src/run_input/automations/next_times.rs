//! The times at which an automation will start.

use jiff::{SignedDuration, civil::Date, tz::TimeZone};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    Automation, NEXT_TIMES_DEFAULT, NEXT_TIMES_MAX,
    schedule::{PlannedStart, list_next},
};
use crate::{
    Failure, Rule, Timestamp,
    run_input::local_times::{LocalTimeKind, find_zone, local_text, resolve},
};

/// How long a date such as `2026-10-25` is.
const DATE_CHARS: usize = 10;

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListNextTimes {
    /// 1 to 50, 5 when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// The times from the beginning of this date in the automation's zone, such as `2026-10-25`, if it has not begun. Left out: from
    /// now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(pattern = "^[0-9]{4}-[01][0-9]-[0-3][0-9]$", max_length = 10)]
    pub from: Option<String>,
}

impl ListNextTimes {
    fn count(&self) -> Result<usize, Failure> {
        match self.count.unwrap_or(NEXT_TIMES_DEFAULT) {
            count @ 1..=NEXT_TIMES_MAX => Ok(count as usize),
            _ => Err(Failure::invalid(Rule::PageLimit, format!("count must be 1 to {NEXT_TIMES_MAX}"))),
        }
    }

    /// The instant after which times are listed. It is never before `now`: the automation will not start at a time that has passed.
    fn after(&self, zone: &TimeZone, now: Timestamp) -> Result<Timestamp, Failure> {
        let Some(text) = self.from.as_deref() else { return Ok(now) };
        let date = text.parse::<Date>().ok().filter(|_| text.len() == DATE_CHARS);
        let begin = date.and_then(|date| resolve(date.at(0, 0, 0, 0), zone));
        // A start at the beginning of the date is one of its starts.
        let before = begin.and_then(|begin| begin.at.checked_sub(SignedDuration::from_nanos(1)).ok());
        let after = before.map(|before| before.max(now));
        after.ok_or_else(|| Failure::invalid(Rule::QueryShape, "from must be a date such as 2026-10-25"))
    }
}

/// A time at which an automation will start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NextTime {
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// The same in the automation's zone.
    pub local: String,
    pub local_time: LocalTimeKind,
}

/// The next times of an automation. A disabled one has the times that it would have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NextTimes {
    pub timezone: String,
    pub times: Vec<NextTime>,
}

impl NextTimes {
    pub fn of(automation: &Automation, request: &ListNextTimes, now: Timestamp) -> Result<Self, Failure> {
        let (zone, count) = (find_zone(&automation.timezone)?, request.count()?);
        let starts = list_next(&automation.config.schedule, &zone, request.after(&zone, now)?, count);
        let time =
            |start: PlannedStart| NextTime { at: start.at, local: local_text(start.at, &zone), local_time: start.kind };
        Ok(Self { timezone: automation.timezone.clone(), times: starts.into_iter().map(time).collect() })
    }
}
