//! `ostler usage`: what runs have cost in a period, by group.

use std::collections::BTreeMap;

use ostler_client::Client;
use ostler_protocol::{
    Failure, Timestamp,
    kernel::usage::{UsageBy, UsageGroup, UsageQuery, UsageReport, UsageSums, day_of, day_text},
    limits::PAGE_ITEMS_MAX,
    trust::agents::{Agent, ListAgents},
    users::{ListUsers, User},
};

use crate::{
    commands::list::all_pages,
    connection::Connection,
    exit_codes,
    terminal::{
        amounts,
        output::{self, Output, line},
        table::{Column, table},
        times::{now, parse_ms},
    },
};

/// Show what runs have cost: by profile, tenant, user, agent or day
///
/// Days are whole days of UTC. A run counts on the day on which it was created, tokens and cost when they were used, a turn
/// when it ended. The cost is known where the backend reports it or the profile has prices.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler usage\n  ostler usage --by day --since 7d    # today and the 6 days before\n  \
    ostler usage --by user --since 2026-01-01 --until 2026-01-31 -o json"
)]
pub(crate) struct UsageArgs {
    /// By profile, tenant, user, agent or day
    #[arg(long, value_name = "NOUN", default_value = "profile", hide_possible_values = true,
        value_parser = ["profile", "tenant", "user", "agent", "day"])]
    by: String,
    /// The first day: a date, or a number of days that ends with today: `30d` is today and the 29 days before [default: 29 days
    /// before the last one]
    #[arg(long, value_name = "DATE|AGE", value_parser = parse_day)]
    since: Option<Day>,
    /// The last day: a date, or how many days ago it was; `--since 14d --until 7d` is the week before the last 7 days [default:
    /// today]
    #[arg(long, value_name = "DATE|AGE", value_parser = parse_day)]
    until: Option<Day>,
    #[arg(long, help = "Only runs of this tenant")]
    tenant: Option<String>,
    #[command(flatten)]
    output: Output,
}

const DAY_MS: i64 = 86_400_000;
/// A hundred years; older days are not in every calendar.
const AGE_DAYS_MAX: i64 = 36_525;

/// A day as it is given on the command line.
#[derive(Clone, Debug, PartialEq)]
enum Day {
    Date(String),
    /// An age, rounded up to whole days. At least one.
    Days(i64),
}

impl Day {
    /// The first day of a period: that many days end with today.
    fn first(&self, now: Timestamp) -> Option<String> {
        self.date(now, 1)
    }

    /// The last day of a period: that many days before today.
    fn last(&self, now: Timestamp) -> Option<String> {
        self.date(now, 0)
    }

    fn date(&self, now: Timestamp, later: i64) -> Option<String> {
        match self {
            Self::Date(date) => Some(date.clone()),
            Self::Days(days) => day_text(day_of(now).checked_sub(*days)?.checked_add(later)?),
        }
    }
}

/// The server checks that the date exists.
fn parse_day(text: &str) -> Result<Day, String> {
    let is_date = text.len() == 10 && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    match (is_date, parse_ms(text)) {
        (true, _) => Ok(Day::Date(text.to_owned())),
        (false, Ok(ms)) if ms <= AGE_DAYS_MAX * DAY_MS => Ok(Day::Days((ms + DAY_MS - 1) / DAY_MS)),
        (false, _) => Err("write a date such as 2026-01-31, or a number of days such as 30d".to_owned()),
    }
}

pub(crate) async fn usage(connection: &Connection, args: &UsageArgs) -> Result<u8, Failure> {
    let now = now();
    let query = UsageQuery {
        by: Some(args.by.clone()),
        since: args.since.as_ref().and_then(|day| day.first(now)),
        until: args.until.as_ref().and_then(|day| day.last(now)),
        tenant_id: args.tenant.clone(),
    };
    let client = connection.client()?;
    let report = client.usage(&query).await?;
    let names = if args.output.is_text() { names(&client, &report).await } else { BTreeMap::new() };
    args.output.one(&report, || render(&report, &names, output::width()));
    Ok(exit_codes::OK)
}

/// The names of users and agents, by their ids. Groups whose name the caller may not see are shown by their id.
async fn names(client: &Client, report: &UsageReport) -> BTreeMap<String, String> {
    if report.groups.iter().all(|group| group.key.is_none()) {
        return BTreeMap::new();
    }
    let limit = Some(PAGE_ITEMS_MAX);
    let found = match report.by {
        UsageBy::User => {
            let read = async |cursor| {
                let page = client.list_users(&ListUsers { cursor, limit }).await?;
                Ok((page.users, page.next_cursor))
            };
            let name = |user: User| (user.user_id.to_string(), user.name);
            all_pages(read).await.map(|users| users.into_iter().map(name).collect())
        }
        UsageBy::Agent => {
            let read = async |cursor| {
                let page = client.list_agents(&ListAgents { cursor, limit, ..ListAgents::default() }).await?;
                Ok((page.agents, page.next_cursor))
            };
            let name = |agent: Agent| (agent.id.to_string(), agent.name);
            all_pages(read).await.map(|agents| agents.into_iter().map(name).collect())
        }
        UsageBy::Profile | UsageBy::Tenant | UsageBy::Day => return BTreeMap::new(),
    };
    found.unwrap_or_default()
}

fn render(report: &UsageReport, names: &BTreeMap<String, String>, width: Option<usize>) -> String {
    let name = |group: &UsageGroup| {
        let named = group.name.as_ref().or_else(|| names.get(group.key.as_ref()?)).or(group.key.as_ref());
        named.map_or_else(|| "–".to_owned(), |name| line(name, 200))
    };
    let amounts = |sums: &UsageSums| {
        [
            sums.runs.to_string(),
            sums.turns.to_string(),
            amounts::count(sums.tokens),
            amounts::cost(sums.cost_usd),
            amounts::duration(sums.active_ms),
        ]
    };
    let row = |name: String, sums: &UsageSums| [vec![name], amounts(sums).to_vec()].concat();
    let mut rows: Vec<_> = report.groups.iter().map(|group| row(name(group), &group.sums)).collect();
    if report.truncated {
        rows.push(vec!["…".to_owned(), String::new(), String::new(), String::new(), String::new(), String::new()]);
    }
    rows.push(row("total".to_owned(), &report.total));
    let header = match report.by {
        UsageBy::Profile => "PROFILE",
        UsageBy::Tenant => "TENANT",
        UsageBy::User => "USER",
        UsageBy::Agent => "AGENT",
        UsageBy::Day => "DAY",
    };
    let columns = [
        Column::text(2, header),
        Column::whole("RUNS"),
        Column::spare(1, "TURNS"),
        Column::whole("TOKENS"),
        Column::whole("COST"),
        Column::whole("TIME"),
    ];
    format!("{} to {}\n{}", report.since, report.until, table(&columns, rows, width))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_age_is_a_number_of_whole_days_that_end_with_today() {
        for time in ["2026-03-01T00:00:00Z", "2026-03-01T12:00:00Z", "2026-03-01T23:59:59.999Z"] {
            let now: Timestamp = time.parse().unwrap();
            let first = |text: &str| parse_day(text).unwrap().first(now).unwrap();
            let last = |text: &str| parse_day(text).unwrap().last(now).unwrap();
            assert_eq!([first("2026-01-31"), last("2026-01-31")], ["2026-01-31", "2026-01-31"]);
            // 28 days of February, one of January, and today.
            assert_eq!(first("30d"), "2026-01-31");
            assert_eq!(
                [first("1d"), first("13h"), first("24h"), first("25h")],
                ["2026-03-01", "2026-03-01", "2026-03-01", "2026-02-28"]
            );
            // One period ends where the next one begins.
            assert_eq!([last("7d"), first("7d")], ["2026-02-22", "2026-02-23"]);
        }
        for wrong in ["", "yesterday", "2026-1-1", "30", "36526d"] {
            assert!(parse_day(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_user_is_shown_by_name() {
        let sums = json!({"runs": 1, "turns": 1, "tokens": 1, "costUsd": 0.0, "activeMs": 0});
        let group = |name: Option<&str>| {
            let mut group = sums.clone();
            group["key"] = "usr_1".into();
            group["name"] = name.into();
            group
        };
        let report = json!({"by": "user", "since": "2026-01-01", "until": "2026-01-30",
            "groups": [group(Some("ada")), group(None)], "truncated": false, "total": sums});
        let text = render(&serde_json::from_value(report).unwrap(), &BTreeMap::new(), Some(80));
        let users: Vec<_> = text.lines().skip(2).filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(users, ["ada", "usr_1", "total"]);
    }

    #[test]
    fn the_table_ends_with_the_total() {
        let sums = json!({"runs": 2, "turns": 3, "tokens": 12_345, "costUsd": 0.25, "activeMs": 90_000});
        let mut group = sums.clone();
        group["key"] = "scripted".into();
        let mut other = sums.clone();
        other["key"] = serde_json::Value::Null;
        let report = json!({"by": "profile", "since": "2026-01-01", "until": "2026-01-30", "groups": [group, other],
            "truncated": false, "total": sums});
        let report = serde_json::from_value(report).unwrap();
        assert_eq!(
            render(&report, &BTreeMap::from([("scripted".to_owned(), "by name".to_owned())]), Some(80)),
            "2026-01-01 to 2026-01-30\n\
             PROFILE  RUNS  TURNS  TOKENS  COST     TIME\n\
             by name  2     3      12.3k   $0.2500  1m30s\n\
             –        2     3      12.3k   $0.2500  1m30s\n\
             total    2     3      12.3k   $0.2500  1m30s\n"
        );
    }
}
