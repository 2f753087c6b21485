//! What runs have used, by run and day: rows that flushes add to, and the sums of a report.

use ostler_protocol::{
    ids::RunId,
    kernel::usage::{ExactUsage, RunUsage, UsageBy, UsageDay},
};

use crate::{
    db::Db,
    error::StoreError,
    record::{Value, record, text},
};

record! {
    UsageDay, usage in "usage";
    key {
        run_id: id;
        day: int;
    }
    fixed {
        tenant_id: text;
        backend_profile: text;
        agent_id: opt_id;
        user_id: opt_text;
    }
    state {
        runs: int;
        turns: int from usage.used.turns;
        tokens: int from usage.used.tokens;
        cost_nano_usd: int from usage.used.cost_nano_usd;
        active_ms: int from usage.used.active_ms;
    }
    on_conflict Add;
    build UsageDay {
        run_id,
        day,
        tenant_id,
        backend_profile,
        agent_id,
        user_id,
        runs,
        used: RunUsage { turns, tokens, cost_nano_usd, active_ms },
    };
}

/// The days on which a run has used anything.
pub async fn list_by_run(db: &Db, run_id: RunId) -> Result<Vec<UsageDay>, StoreError> {
    db.select::<UsageDay>("WHERE t.run_id = $1 ORDER BY t.day", vec![text(run_id)]).await
}

/// What a report covers.
#[derive(Clone, Debug)]
pub struct UsageFilter {
    /// The first and the last day.
    pub days: (i64, i64),
    /// The tenants that the caller may see. `None`: all.
    pub tenants: Option<Vec<String>>,
    /// Only what is this user's. `None`: everything.
    pub user_id: Option<String>,
}

/// The sums of each group: the most expensive first, or by day the latest first.
pub async fn list_groups(
    db: &Db,
    filter: &UsageFilter,
    by: UsageBy,
    limit: u32,
) -> Result<Vec<(Option<String>, ExactUsage)>, StoreError> {
    let key = match by {
        UsageBy::Profile => "t.backend_profile",
        UsageBy::Tenant => "t.tenant_id",
        UsageBy::User => "t.user_id",
        UsageBy::Agent => "t.agent_id",
        UsageBy::Day => "CAST(t.day AS TEXT)",
    };
    let order = match by {
        UsageBy::Day => "t.day DESC".to_owned(),
        // Only the order is inexact, among groups that differ by less than a millionth of a millionth.
        _ => format!("SUM(CAST(t.cost_nano_usd AS DOUBLE PRECISION)) DESC, {key}{}", db.byte_order()),
    };
    let grouped = if by == UsageBy::Day { "t.day" } else { key };
    let (condition, mut args) = condition(filter);
    args.push(i64::from(limit).into());
    let sql = format!(
        "SELECT {key} AS group_key, {} FROM usage t WHERE {condition} GROUP BY {grouped} ORDER BY {order} LIMIT ${}",
        sums(),
        args.len()
    );
    db.read(sql, args, |row| Ok((row.at("group_key")?.opt_text()?, read_sums(row)?))).await
}

/// The sums of everything.
pub async fn get_total(db: &Db, filter: &UsageFilter) -> Result<ExactUsage, StoreError> {
    let (condition, args) = condition(filter);
    let sql = format!("SELECT {} FROM usage t WHERE {condition}", sums());
    Ok(db.read_one(sql, args, read_sums).await?.unwrap_or_default())
}

const AMOUNTS: [&str; 5] = ["runs", "turns", "tokens", "cost_nano_usd", "active_ms"];
/// Amounts are summed in two parts, each of which is exact: a sum of the whole could be more than the engines can hold.
const PART: i64 = 1 << 32;

fn sums() -> String {
    let sum = |of: String| format!("CAST(COALESCE(SUM({of}), 0) AS BIGINT)");
    let of = |amount: &str| {
        let (high, low) = (sum(format!("t.{amount} / {PART}")), sum(format!("t.{amount} % {PART}")));
        format!("{high} AS {amount}_high, {low} AS {amount}_low")
    };
    AMOUNTS.map(of).join(", ")
}

fn read_sums(row: &mut crate::record::Reader<'_>) -> Result<ExactUsage, StoreError> {
    let mut sum = |amount: &str| -> Result<i128, StoreError> {
        let high = row.at(&format!("{amount}_high"))?.int()?;
        let low = row.at(&format!("{amount}_low"))?.int()?;
        Ok(i128::from(high) * i128::from(PART) + i128::from(low))
    };
    Ok(ExactUsage {
        runs: sum("runs")?,
        turns: sum("turns")?,
        tokens: sum("tokens")?,
        cost_nano_usd: sum("cost_nano_usd")?,
        active_ms: sum("active_ms")?,
    })
}

fn condition(filter: &UsageFilter) -> (String, Vec<Value>) {
    let mut args: Vec<Value> = vec![filter.days.0.into(), filter.days.1.into()];
    let mut condition = "t.day >= $1 AND t.day <= $2".to_owned();
    let mut mark = |value: &str| {
        args.push(value.into());
        format!("${}", args.len())
    };
    if let Some(tenants) = &filter.tenants {
        let marks: Vec<_> = tenants.iter().map(|tenant| mark(tenant)).collect();
        let list = if marks.is_empty() { "NULL".to_owned() } else { marks.join(", ") };
        condition += &format!(" AND t.tenant_id IN ({list})");
    }
    if let Some(user_id) = &filter.user_id {
        condition += &format!(" AND t.user_id = {}", mark(user_id));
    }
    (condition, args)
}
