//! Usage: what runs have cost in a period, by group.

use ostler_protocol::{
    Failure, Rule,
    kernel::usage::{ExactUsage, USAGE_GROUPS_MAX, UsageBy, UsageGroup, UsageQuery, UsageReport, day_of, day_text},
};
use ostler_store::{self as store, kernel::usage::UsageFilter};

use crate::{app::App, auth::Principal};

/// A caller sees the usage of its tenants; a user only what is their own.
pub async fn report(app: &App, caller: &Principal, request: UsageQuery) -> Result<UsageReport, Failure> {
    let tenants = caller.tenants_within(request.tenant_id.as_deref())?;
    let by = request.by.as_deref().map_or(Some(UsageBy::Profile), UsageBy::parse);
    let by = by.ok_or_else(|| {
        Failure::invalid(Rule::UsageBy, "usage can be grouped by profile, tenant, user, agent or day")
    })?;
    let (since, until) = request.days(day_of(app.now()))?;
    let filter = UsageFilter { days: (since, until), tenants, user_id: caller.sees_threads_of() };
    let mut groups = store::kernel::usage::list_groups(&app.db, &filter, by, USAGE_GROUPS_MAX as u32 + 1).await?;
    let truncated = groups.len() > USAGE_GROUPS_MAX;
    groups.truncate(USAGE_GROUPS_MAX);
    let total = match truncated {
        true => store::kernel::usage::get_total(&app.db, &filter).await?,
        false => groups.iter().fold(ExactUsage::default(), |mut total, (_, usage)| {
            total.add(usage);
            total
        }),
    };
    let mut groups = match by {
        UsageBy::Day => groups.into_iter().map(|(day, usage)| (day.and_then(written_day), usage)).rev().collect(),
        _ => groups,
    };
    if by != UsageBy::Day {
        groups
            .sort_by(|(a, used_a), (b, used_b)| used_b.cost_nano_usd.cmp(&used_a.cost_nano_usd).then_with(|| a.cmp(b)));
    }
    let users: Vec<_> = groups.iter().filter(|_| by == UsageBy::User).filter_map(|(key, _)| key.clone()).collect();
    let names = store::users::list_names(&app.db, &users).await?;
    let group = |(key, usage): (Option<String>, ExactUsage)| {
        let name = key.as_ref().and_then(|key| names.get(key)).cloned();
        UsageGroup { key, name, sums: usage.sums() }
    };
    let groups = groups.into_iter().map(group).collect();
    let written = |day| day_text(day).unwrap_or_default();
    Ok(UsageReport { by, since: written(since), until: written(until), groups, truncated, total: total.sums() })
}

fn written_day(day: String) -> Option<String> {
    day_text(day.parse().ok()?)
}
