//! Recurrence rules of RFC 5545, without the parts that concern times of day and numbers of weeks. A rule makes dates; each
//! has the local time of the event. The first date of a rule is that of the event. Lines after the rule leave dates out: `EXDATE:20260323`.

use jiff::{
    Span, ToSpan,
    civil::{Date, DateTime, Weekday},
    tz::TimeZone,
};

use crate::{Failure, Rule, Timestamp, run_input::local_times::resolve};

pub const RULE_BYTES_MAX: usize = 500;
pub const RULE_COUNT_MAX: u32 = 5_000;
pub const RULE_INTERVAL_MAX: u32 = 1_000;
/// Years after its start in which an event with an end recurs.
const YEARS_MAX: i64 = 400;
/// Values of one part of a rule.
const LIST_MAX: usize = 62;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frequency {
    Daily,
    Weekly,
    Monthly,
    Yearly,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RuleEnd {
    Never,
    Count(u32),
    /// The last date, which is included.
    Date(Date),
    Local(DateTime),
    Instant(Timestamp),
}

/// A weekday, or the nth one of the month or year, from its end if negative.
type RuleDay = (Option<i16>, Weekday);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recurrence {
    frequency: Frequency,
    interval: u32,
    end: RuleEnd,
    months: Vec<i16>,
    month_days: Vec<i16>,
    weekdays: Vec<RuleDay>,
    positions: Vec<i16>,
    week_start: Weekday,
    /// Dates that are left out, in order. They count as occurrences of a rule with a count.
    excluded: Vec<Date>,
}

fn wrong(message: impl Into<String>) -> Failure {
    Failure::invalid(Rule::CalendarRule, format!("recurrence: {}", message.into()))
}

impl Recurrence {
    pub fn parse(text: &str) -> Result<Self, Failure> {
        if text.len() > RULE_BYTES_MAX {
            return Err(wrong(format!("a rule has at most {RULE_BYTES_MAX} bytes")));
        }
        let upper = text.trim().to_ascii_uppercase();
        let lines = upper.lines().map(str::trim).filter(|line| !line.is_empty());
        if lines.clone().any(|line| line.starts_with("RDATE")) {
            return Err(wrong("RDATE is not supported; create another event for an additional date"));
        }
        let (exclusions, rules): (Vec<&str>, Vec<&str>) = lines.partition(|line| line.starts_with("EXDATE"));
        let parts = match rules[..] {
            [] => "",
            [rule] => rule.strip_prefix("RRULE:").unwrap_or(rule),
            _ => return Err(wrong("there is more than one rule")),
        };
        let mut rule = Self {
            frequency: Frequency::Daily,
            interval: 1,
            end: RuleEnd::Never,
            months: vec![],
            month_days: vec![],
            weekdays: vec![],
            positions: vec![],
            week_start: Weekday::Monday,
            excluded: read_exclusions(&exclusions)?,
        };
        let mut names: Vec<&str> = vec![];
        for part in parts.split(';').filter(|part| !part.is_empty()) {
            let Some((name, value)) = part.split_once('=') else {
                return Err(wrong(format!("{part:?} is not NAME=VALUE")));
            };
            if names.contains(&name) {
                return Err(wrong(format!("{name} is given twice")));
            }
            names.push(name);
            rule.read_part(name, value)?;
        }
        if !names.contains(&"FREQ") {
            return Err(wrong("FREQ is missing"));
        }
        if names.contains(&"COUNT") && names.contains(&"UNTIL") {
            return Err(wrong("COUNT and UNTIL exclude each other"));
        }
        rule.check().map(|()| rule)
    }

    fn read_part(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        match name {
            "FREQ" => {
                self.frequency = match value {
                    "DAILY" => Frequency::Daily,
                    "WEEKLY" => Frequency::Weekly,
                    "MONTHLY" => Frequency::Monthly,
                    "YEARLY" => Frequency::Yearly,
                    _ => return Err(wrong("FREQ must be DAILY, WEEKLY, MONTHLY or YEARLY")),
                }
            }
            "INTERVAL" => self.interval = read_number(name, value, RULE_INTERVAL_MAX)?,
            "COUNT" => self.end = RuleEnd::Count(read_number(name, value, RULE_COUNT_MAX)?),
            "UNTIL" => self.end = read_until(value)?,
            "BYMONTH" => self.months = read_list(name, value, 12, false)?,
            "BYMONTHDAY" => self.month_days = read_list(name, value, 31, true)?,
            "BYSETPOS" => self.positions = read_list(name, value, 366, true)?,
            "BYDAY" => {
                let days = value.split(',').map(read_day).collect::<Option<Vec<_>>>();
                let days = days.filter(|days| days.len() <= LIST_MAX);
                self.weekdays =
                    days.ok_or_else(|| wrong(format!("BYDAY={value} is no list of weekdays such as MO,-1FR")))?;
            }
            "WKST" => match read_day(value) {
                Some((None, weekday)) => self.week_start = weekday,
                _ => return Err(wrong("WKST must be a weekday such as MO")),
            },
            _ => return Err(wrong(format!("{name} is not supported"))),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Failure> {
        let is_short = matches!(self.frequency, Frequency::Daily | Frequency::Weekly);
        if is_short && self.weekdays.iter().any(|(nth, _)| nth.is_some()) {
            return Err(wrong("BYDAY has numbers only with FREQ=MONTHLY and FREQ=YEARLY"));
        }
        if is_short && !self.positions.is_empty() {
            return Err(wrong("BYSETPOS is supported only with FREQ=MONTHLY and FREQ=YEARLY"));
        }
        if self.frequency == Frequency::Weekly && !self.month_days.is_empty() {
            return Err(wrong("BYMONTHDAY is not allowed with FREQ=WEEKLY"));
        }
        if !self.positions.is_empty() && self.weekdays.is_empty() && self.month_days.is_empty() {
            return Err(wrong("BYSETPOS needs BYDAY or BYMONTHDAY"));
        }
        Ok(())
    }

    /// The rule for an export: the end as an instant of UTC, as RFC 5545 wants it for events with a zone, or as a date.
    pub fn to_text(&self, zone: &TimeZone, all_day: bool) -> String {
        let frequency = match self.frequency {
            Frequency::Daily => "DAILY",
            Frequency::Weekly => "WEEKLY",
            Frequency::Monthly => "MONTHLY",
            Frequency::Yearly => "YEARLY",
        };
        let mut text = format!("FREQ={frequency}");
        if self.interval != 1 {
            text += &format!(";INTERVAL={}", self.interval);
        }
        text += &match self.end {
            RuleEnd::Never => String::new(),
            RuleEnd::Count(count) => format!(";COUNT={count}"),
            end => self.until_text(end, zone, all_day),
        };
        let numbers = |list: &[i16]| list.iter().map(i16::to_string).collect::<Vec<_>>().join(",");
        for (name, list) in [("BYMONTH", &self.months), ("BYMONTHDAY", &self.month_days), ("BYSETPOS", &self.positions)]
        {
            if !list.is_empty() {
                text += &format!(";{name}={}", numbers(list));
            }
        }
        if !self.weekdays.is_empty() {
            let day = |(nth, weekday): &RuleDay| {
                format!("{}{}", nth.map_or(String::new(), |n| n.to_string()), word(*weekday))
            };
            text += &format!(";BYDAY={}", self.weekdays.iter().map(day).collect::<Vec<_>>().join(","));
        }
        if self.week_start != Weekday::Monday {
            text += &format!(";WKST={}", word(self.week_start));
        }
        text
    }

    fn until_text(&self, end: RuleEnd, zone: &TimeZone, all_day: bool) -> String {
        let last = match end {
            RuleEnd::Date(date) => date.at(23, 59, 59, 0),
            RuleEnd::Local(local) => local,
            RuleEnd::Instant(at) => at.to_zoned(zone.clone()).datetime(),
            RuleEnd::Never | RuleEnd::Count(_) => return String::new(),
        };
        if all_day {
            return format!(";UNTIL={}", last.date().strftime("%Y%m%d"));
        }
        let at = match end {
            RuleEnd::Instant(at) => Some(at),
            _ => resolve(last, zone).map(|resolved| resolved.at),
        };
        at.map_or(String::new(), |at| format!(";UNTIL={}", at.strftime("%Y%m%dT%H%M%SZ")))
    }

    /// The dates that are left out.
    pub fn excluded(&self) -> &[Date] {
        &self.excluded
    }

    /// Whether a date of the rule is left out.
    pub fn excludes(&self, date: Date) -> bool {
        self.excluded.binary_search(&date).is_ok()
    }

    /// The dates of the rule for an event that starts at `first`, from a date to another, without the rule's count. Both are
    /// included.
    pub fn dates<'a>(
        &'a self,
        first: DateTime,
        (from, to): (Date, Date),
        zone: &'a TimeZone,
    ) -> impl Iterator<Item = Date> + 'a {
        let from = from.max(first.date());
        let periods = (self.period_of(first.date(), from)..).map_while(move |n| self.period(first.date(), n, to));
        let dates = periods.flatten().filter(move |date| (from..=to).contains(date));
        dates.take_while(move |date| self.goes_on(date.to_datetime(first.time()), zone))
    }

    /// The date of the last occurrence. `None` if the rule has no end. Occurrences after many centuries are left out.
    pub fn last_date(&self, first: DateTime, zone: &TimeZone) -> Option<Date> {
        let dates = self.dates(first, (first.date(), horizon(first.date())), zone);
        match self.end {
            RuleEnd::Never => None,
            RuleEnd::Count(count) => dates.take(count as usize).last(),
            RuleEnd::Date(_) | RuleEnd::Local(_) | RuleEnd::Instant(_) => dates.last(),
        }
    }

    /// The first date of the rule on or after that of the event.
    pub fn first_date(&self, first: DateTime, zone: &TimeZone) -> Option<Date> {
        self.dates(first, (first.date(), horizon(first.date())), zone).next()
    }

    fn goes_on(&self, local: DateTime, zone: &TimeZone) -> bool {
        match self.end {
            RuleEnd::Never | RuleEnd::Count(_) => true,
            RuleEnd::Date(last) => local.date() <= last,
            RuleEnd::Local(last) => local <= last,
            RuleEnd::Instant(last) => resolve(local, zone).is_some_and(|resolved| resolved.at <= last),
        }
    }

    /// The number of the period with a date, or of one before it.
    fn period_of(&self, first: Date, date: Date) -> i64 {
        let days = |from: Date, to: Date| from.until(to).map_or(0, |span| i64::from(span.get_days()));
        let interval = i64::from(self.interval);
        match self.frequency {
            Frequency::Daily => days(first, date) / interval,
            Frequency::Weekly => days(self.week_of(first), date) / (7 * interval),
            Frequency::Monthly => {
                let months = |date: Date| i64::from(date.year()) * 12 + i64::from(date.month());
                (months(date) - months(first)) / interval
            }
            Frequency::Yearly => i64::from(date.year() - first.year()) / interval,
        }
        .max(0)
    }

    fn week_of(&self, date: Date) -> Date {
        let days = i64::from(date.weekday().since(self.week_start));
        date.checked_sub(days.days()).unwrap_or(date)
    }

    /// The dates of the nth period, in order. `None` if the period starts after a date, or after the year 9999.
    fn period(&self, first: Date, n: i64, to: Date) -> Option<Vec<Date>> {
        let steps = n.checked_mul(i64::from(self.interval))?;
        let dates: Vec<Date> = match self.frequency {
            Frequency::Daily => vec![first.checked_add(Span::new().try_days(steps).ok()?).ok()?],
            Frequency::Weekly => {
                let start = self.week_of(first).checked_add(Span::new().try_weeks(steps).ok()?).ok()?;
                (0..7).filter_map(|day: i64| start.checked_add(day.days()).ok()).collect()
            }
            Frequency::Monthly => month(first.first_of_month().checked_add(Span::new().try_months(steps).ok()?).ok()?),
            Frequency::Yearly => {
                let year = i16::try_from(i64::from(first.year()).checked_add(steps)?).ok()?;
                let months = if self.has_own_days() { 1..=12 } else { first.month()..=first.month() };
                let months = if self.months.is_empty() { months } else { 1..=12 };
                let months = months.filter(|month| self.months.is_empty() || self.months.contains(&i16::from(*month)));
                let starts = months.map(|month| Date::new(year, month, 1).ok()).collect::<Option<Vec<_>>>()?;
                starts.into_iter().flat_map(month).collect()
            }
        };
        if dates.first().is_some_and(|start| *start > to) {
            return None;
        }
        let dates: Vec<_> = dates.into_iter().filter(|date| self.includes(first, *date)).collect();
        if self.positions.is_empty() {
            return Some(dates);
        }
        let count = dates.len() as i64;
        let is_chosen = |at: usize| {
            let at = at as i64;
            self.positions.iter().any(|position| match i64::from(*position) {
                position if position > 0 => position - 1 == at,
                position => count + position == at,
            })
        };
        Some(dates.into_iter().enumerate().filter(|(at, _)| is_chosen(*at)).map(|(_, date)| date).collect())
    }

    fn has_own_days(&self) -> bool {
        !self.month_days.is_empty() || !self.weekdays.is_empty()
    }

    fn includes(&self, first: Date, date: Date) -> bool {
        let days = i16::from(date.days_in_month());
        let day = i16::from(date.day());
        let in_month = self.months.is_empty() || self.months.contains(&i16::from(date.month()));
        if !self.has_own_days() {
            return in_month
                && match self.frequency {
                    Frequency::Daily => true,
                    Frequency::Weekly => date.weekday() == first.weekday(),
                    Frequency::Monthly | Frequency::Yearly => date.day() == first.day(),
                };
        }
        let by_day =
            self.month_days.is_empty() || self.month_days.contains(&day) || self.month_days.contains(&(day - days - 1));
        let by_weekday = self.weekdays.is_empty()
            || self
                .weekdays
                .iter()
                .any(|(nth, weekday)| *weekday == date.weekday() && nth.is_none_or(|nth| self.is_nth(date, nth)));
        in_month && by_day && by_weekday
    }

    /// Whether a date is the nth one of its weekday, in its month or, for a yearly rule without months, in its year.
    fn is_nth(&self, date: Date, nth: i16) -> bool {
        let of_year = self.frequency == Frequency::Yearly && self.months.is_empty();
        let (day, days) = match of_year {
            true => (date.day_of_year(), date.days_in_year()),
            false => (i16::from(date.day()), i16::from(date.days_in_month())),
        };
        if nth > 0 { (day - 1) / 7 + 1 == nth } else { -((days - day) / 7 + 1) == nth }
    }
}

/// The dates of lines such as `EXDATE:20260323,20260330T090000`. A rule has one occurrence on a date, so that times are not compared.
fn read_exclusions(lines: &[&str]) -> Result<Vec<Date>, Failure> {
    let mut dates = vec![];
    for line in lines {
        let values = line.strip_prefix("EXDATE:").or_else(|| line.strip_prefix("EXDATE;VALUE=DATE:"));
        let values =
            values.ok_or_else(|| wrong("EXDATE takes dates or local times of the event's zone, as EXDATE:20260323"))?;
        for value in values.split(',') {
            let date = match value.len() {
                8 => Date::strptime("%Y%m%d", value).ok(),
                15 => DateTime::strptime("%Y%m%dT%H%M%S", value).ok().map(|local| local.date()),
                _ => None,
            };
            dates.push(date.ok_or_else(|| wrong(format!("EXDATE: {value:?} is no date such as 20260323")))?);
        }
    }
    dates.sort_unstable();
    dates.dedup();
    Ok(dates)
}

/// The date up to which the ends of a rule are looked for.
fn horizon(first: Date) -> Date {
    first.checked_add(YEARS_MAX.years()).unwrap_or(Date::MAX)
}

/// All dates of a month.
fn month(first: Date) -> Vec<Date> {
    (1..=first.days_in_month()).filter_map(|day| first.with().day(day).build().ok()).collect()
}

fn read_number(name: &str, value: &str, max: u32) -> Result<u32, Failure> {
    let number = value.parse().ok().filter(|number| (1..=max).contains(number));
    number.ok_or_else(|| wrong(format!("{name} must be 1 to {max}")))
}

fn read_list(name: &str, value: &str, max: i16, from_end: bool) -> Result<Vec<i16>, Failure> {
    let read = |text: &str| {
        let number: i16 = text.parse().ok()?;
        let is_allowed = (1..=max).contains(&number) || from_end && (-max..=-1).contains(&number);
        is_allowed.then_some(number)
    };
    let list = value.split(',').map(read).collect::<Option<Vec<_>>>().filter(|list| list.len() <= LIST_MAX);
    list.ok_or_else(|| wrong(format!("{name}={value} is no list of numbers of 1 to {max}")))
}

fn read_day(text: &str) -> Option<RuleDay> {
    let at = text.len().checked_sub(2).filter(|at| text.is_char_boundary(*at))?;
    let (nth, day) = text.split_at(at);
    let weekday = [
        Weekday::Monday,
        Weekday::Tuesday,
        Weekday::Wednesday,
        Weekday::Thursday,
        Weekday::Friday,
        Weekday::Saturday,
        Weekday::Sunday,
    ]
    .into_iter()
    .find(|weekday| word(*weekday) == day)?;
    if nth.is_empty() {
        return Some((None, weekday));
    }
    let number: i16 = nth.parse().ok()?;
    (number != 0 && (-53..=53).contains(&number)).then_some((Some(number), weekday))
}

fn word(weekday: Weekday) -> &'static str {
    match weekday {
        Weekday::Monday => "MO",
        Weekday::Tuesday => "TU",
        Weekday::Wednesday => "WE",
        Weekday::Thursday => "TH",
        Weekday::Friday => "FR",
        Weekday::Saturday => "SA",
        Weekday::Sunday => "SU",
    }
}

/// A date, a local time, or an instant of UTC.
fn read_until(value: &str) -> Result<RuleEnd, Failure> {
    let invalid = || wrong("UNTIL must look like 20261231 or 20261231T235959Z");
    let date = |text: &str| Date::strptime("%Y%m%d", text).map_err(|_| invalid());
    let local = |text: &str| DateTime::strptime("%Y%m%dT%H%M%S", text).map_err(|_| invalid());
    match (value.len(), value.strip_suffix('Z')) {
        (8, None) => date(value).map(RuleEnd::Date),
        (15, None) => local(value).map(RuleEnd::Local),
        (16, Some(text)) => {
            let at = TimeZone::UTC.to_timestamp(local(text)?).map_err(|_| invalid())?;
            Ok(RuleEnd::Instant(at))
        }
        _ => Err(invalid()),
    }
}
