//! Usage: what runs have cost, by run and by day. It is a fold of the log: each `usage` event of a command and each turn's
//! end advance it, in the transaction that appends the event. Amounts are whole numbers, so that a sum does not depend on
//! the order in which it is made.

use jiff::civil::Date;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{
    Failure, Rule, Timestamp,
    ids::{AgentId, RunId},
};

/// The most that a run's usage counts to, for each amount: every JSON reader can still represent it, and sums of many
/// runs do not overflow.
pub const USAGE_MAX: i64 = (1 << 53) - 1;
/// Groups of a report.
pub const USAGE_GROUPS_MAX: usize = 1_000;
/// The period of a report that names none, today included.
pub const USAGE_DAYS_DEFAULT: i64 = 30;

const NANOS: f64 = 1e9;
/// Costs above it count as [`USAGE_MAX`]. It bounds the product below, which would be infinite otherwise.
const COST_USD_MAX: f64 = 1e7;

/// What a run has used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunUsage {
    /// Tokens that its agent reported, of all its commands.
    pub tokens: i64,
    /// In US dollars, where the backend reports a cost or the profile has prices.
    #[serde(rename = "costUsd", with = "nano_usd")]
    #[schema(value_type = f64)]
    pub cost_nano_usd: i64,
    /// Turns that an agent has worked on and that have ended.
    pub turns: i64,
    /// The time of those turns, each from when its runner took it up (for the last time) until its end.
    pub active_ms: i64,
}

mod nano_usd {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(nanos: &i64, output: S) -> Result<S::Ok, S::Error> {
        output.serialize_f64(super::usd(*nanos))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<i64, D::Error> {
        f64::deserialize(input).map(super::nanos)
    }
}

/// US dollars as they are shown.
fn usd(nanos: i64) -> f64 {
    nanos as f64 / NANOS
}

/// Billionths of a US dollar. The migration that introduced them does the same arithmetic in SQL.
pub fn nanos(usd: f64) -> i64 {
    ((usd.clamp(0.0, COST_USD_MAX) * NANOS + 0.5).floor() as i64).min(USAGE_MAX)
}

impl RunUsage {
    pub fn cost_usd(&self) -> f64 {
        usd(self.cost_nano_usd)
    }

    /// What models were called for.
    pub fn of_calls(tokens: i64, cost_usd: f64) -> Self {
        Self { tokens: tokens.clamp(0, USAGE_MAX), cost_nano_usd: nanos(cost_usd), ..Self::default() }
    }

    /// A turn that was taken up and has ended.
    pub fn of_turn(acked_at: Timestamp, end: Timestamp) -> Self {
        let active_us = end.as_microsecond().saturating_sub(acked_at.as_microsecond());
        Self { turns: 1, active_ms: (active_us / 1_000).clamp(0, USAGE_MAX), ..Self::default() }
    }

    /// Adds to it, up to [`USAGE_MAX`], and returns what was really added.
    pub fn add(&mut self, more: Self) -> Self {
        let before = *self;
        let sum = |a: i64, b: i64| a.saturating_add(b).min(USAGE_MAX);
        self.tokens = sum(self.tokens, more.tokens);
        self.cost_nano_usd = sum(self.cost_nano_usd, more.cost_nano_usd);
        self.turns = sum(self.turns, more.turns);
        self.active_ms = sum(self.active_ms, more.active_ms);
        self.since(before)
    }

    /// What was added since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            tokens: self.tokens - before.tokens,
            cost_nano_usd: self.cost_nano_usd - before.cost_nano_usd,
            turns: self.turns - before.turns,
            active_ms: self.active_ms - before.active_ms,
        }
    }
}

/// What one run has used on one day. It repeats whose run it is, because it outlives the run. Rows of different runs are
/// different rows, so that two servers never wait for each other to count.
#[derive(Clone, Debug, PartialEq)]
pub struct UsageDay {
    pub run_id: RunId,
    /// Days since 1970, in UTC.
    pub day: i64,
    pub tenant_id: String,
    pub backend_profile: String,
    pub agent_id: Option<AgentId>,
    /// The owner of the session, or else the caller that created the run. `None` if neither is known, or was erased.
    pub user_id: Option<String>,
    /// 1 on the day on which the run was created.
    pub runs: i64,
    pub used: RunUsage,
}

/// Days since 1970, in UTC.
pub fn day_of(time: Timestamp) -> i64 {
    time.as_microsecond().div_euclid(86_400_000_000)
}

/// The day as it is written: `2026-01-31`. `None` if it is outside the calendar.
pub fn day_text(day: i64) -> Option<String> {
    let at = Timestamp::from_second(day.checked_mul(86_400)?).ok()?;
    Some(at.to_zoned(jiff::tz::TimeZone::UTC).date().to_string())
}

/// By what a report is grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum UsageBy {
    Profile,
    Tenant,
    User,
    Agent,
    Day,
}

enum_words!(UsageBy {
    Profile => "profile",
    Tenant => "tenant",
    User => "user",
    Agent => "agent",
    Day => "day",
});

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct UsageQuery {
    /// `profile`, `tenant`, `user`, `agent` or `day`; `profile` when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The first day (UTC); 29 days before `until` when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(format = Date)]
    pub since: Option<String>,
    /// The last day (UTC); today when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(format = Date)]
    pub until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
}

impl UsageQuery {
    /// The first and the last day. Fails if a date has another form, or if the last day comes before the first.
    pub fn days(&self, today: i64) -> Result<(i64, i64), Failure> {
        let until = self.until.as_deref().map_or(Ok(today), |text| parse_day("until", text))?;
        let since =
            self.since.as_deref().map_or(Ok(until - USAGE_DAYS_DEFAULT + 1), |text| parse_day("since", text))?;
        if since > until {
            return Err(Failure::invalid(Rule::UsagePeriod, "since is after until"));
        }
        Ok((since, until))
    }
}

fn parse_day(field: &str, text: &str) -> Result<i64, Failure> {
    let wrong = || Failure::invalid(Rule::UsagePeriod, format!("{field} must be a date such as 2026-01-31"));
    let is_plain = text.len() == 10 && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    let date: Date = text.parse().ok().filter(|_| is_plain).ok_or_else(wrong)?;
    let start = date.to_zoned(jiff::tz::TimeZone::UTC).map_err(|_| wrong())?;
    Ok(day_of(start.timestamp()))
}

/// What the runs of one group have used in the period.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageGroup {
    /// The profile, tenant, user, agent or day. Null: runs of no agent, or whose user is unknown or was erased.
    pub key: Option<String>,
    /// The name of the user, if usage is grouped by user. Absent if it is unknown.
    #[serde(default)]
    pub name: Option<String>,
    #[serde(flatten)]
    pub sums: UsageSums,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageSums {
    /// Runs that were created in the period.
    pub runs: i64,
    /// Turns that ended in the period.
    pub turns: i64,
    pub tokens: i64,
    pub cost_usd: f64,
    /// The time of those turns.
    pub active_ms: i64,
}

/// Exact sums over any number of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExactUsage {
    pub runs: i128,
    pub turns: i128,
    pub tokens: i128,
    pub cost_nano_usd: i128,
    pub active_ms: i128,
}

impl ExactUsage {
    pub fn add(&mut self, more: &Self) {
        self.runs += more.runs;
        self.turns += more.turns;
        self.tokens += more.tokens;
        self.cost_nano_usd += more.cost_nano_usd;
        self.active_ms += more.active_ms;
    }

    /// As it is shown. What does not fit counts as the largest number that does.
    pub fn sums(&self) -> UsageSums {
        let whole = |sum: i128| i64::try_from(sum).unwrap_or(i64::MAX);
        UsageSums {
            runs: whole(self.runs),
            turns: whole(self.turns),
            tokens: whole(self.tokens),
            cost_usd: self.cost_nano_usd as f64 / NANOS,
            active_ms: whole(self.active_ms),
        }
    }
}

/// What has been used in a period, by group: the most expensive first, or by day the earliest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageReport {
    pub by: UsageBy,
    /// The first day, in UTC.
    #[schema(format = Date)]
    pub since: String,
    /// The last day.
    #[schema(format = Date)]
    pub until: String,
    /// At most 1,000.
    pub groups: Vec<UsageGroup>,
    /// Whether there are more groups, which are in `total` only.
    pub truncated: bool,
    pub total: UsageSums,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_end_at_their_maximum_and_the_difference_is_what_was_added() {
        let mut usage = RunUsage { tokens: USAGE_MAX - 5, ..RunUsage::default() };
        let more = RunUsage { tokens: i64::MAX, cost_nano_usd: 3, turns: 1, active_ms: 7 };
        assert_eq!(usage.add(more), RunUsage { tokens: 5, ..more });
        assert_eq!(usage.add(more).tokens, 0);
        for (cost, expected) in [(0.1, 100_000_000), (f64::MAX, USAGE_MAX), (-1.0, 0), (2.5e-9, 3), (0.4e-9, 0)] {
            assert_eq!(nanos(cost), expected, "{cost}");
        }
    }

    #[test]
    fn a_usage_reads_back_as_it_was_written() {
        let usage = RunUsage { tokens: 7, cost_nano_usd: 123_456_789, turns: 2, active_ms: 3 };
        let text = serde_json::to_value(usage).unwrap();
        assert_eq!(text["costUsd"], serde_json::json!(0.123456789));
        assert_eq!(serde_json::from_value::<RunUsage>(text).unwrap(), usage);
    }

    #[test]
    fn days_are_those_of_utc_in_both_directions() {
        let at = |text: &str| day_of(text.parse().unwrap());
        assert_eq!((at("1970-01-01T23:59:59Z"), at("1970-01-02T00:00:00Z"), at("1969-12-31T23:59:59.9Z")), (0, 1, -1));
        for day in ["2026-02-28", "2000-02-29", "1969-12-31"] {
            assert_eq!(day_text(parse_day("since", day).unwrap()).as_deref(), Some(day));
        }
        for wrong in ["", "2026-2-1", "2026-02-30", "2026-02-01T00:00:00", "-002026-02-01", "20260201"] {
            assert!(parse_day("since", wrong).is_err(), "{wrong:?}");
        }
        let query = |since: Option<&str>, until: Option<&str>| UsageQuery {
            since: since.map(str::to_owned),
            until: until.map(str::to_owned),
            ..UsageQuery::default()
        };
        assert_eq!(query(None, None).days(100).unwrap(), (71, 100));
        assert_eq!(query(Some("1970-01-02"), Some("1970-01-02")).days(100).unwrap(), (1, 1));
        assert!(query(Some("1970-01-03"), Some("1970-01-02")).days(100).is_err());
    }
}
