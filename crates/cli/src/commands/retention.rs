//! `ostler retention`: how long things are kept, what a sweep removes, legal holds, and the disk space that removals free.

use clap::Subcommand;
use ostler_client::Client;
use ostler_protocol::{
    Failure,
    ids::{HoldId, prefix_range},
    limits::PAGE_ITEMS_MAX,
    retention::{Hold, ListHolds, PlaceHold, RetentionCount, RetentionNoun, SweepRetention},
};
use serde_json::json;

use crate::{
    commands::{
        list::{ListFlags, Listing, all_pages},
        serve::{StoreArgs, dialects},
    },
    connection::Connection,
    errors, exit_codes, targets,
    terminal::{
        confirm::Confirm,
        output::{self, Output, line},
        table::{Column, table},
        times::age_ms,
    },
};

/// Show limits, remove what is older, and place legal holds
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler retention show\n  ostler retention run --dry-run\n  \
    ostler retention hold --tenant acme --reason \"case 7\"")]
pub(crate) struct RetentionArgs {
    #[command(subcommand)]
    verb: RetentionVerb,
}

impl RetentionArgs {
    /// Whether it works on the store itself, without a server.
    pub(crate) fn is_offline(&self) -> bool {
        matches!(self.verb, RetentionVerb::Compact(_))
    }
}

#[derive(Subcommand, Debug)]
enum RetentionVerb {
    Show(ShowRetentionArgs),
    Run(RunRetentionArgs),
    Hold(PlaceHoldArgs),
    Holds(ListHoldsArgs),
    Release(ReleaseHoldArgs),
    Compact(CompactArgs),
}

/// Show each limit, and what a sweep would remove now
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler retention show\n  ostler retention show -o json")]
struct ShowRetentionArgs {
    #[command(flatten)]
    output: Output,
}

/// Remove what is older than its limit, without waiting for the server's next sweep
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler retention run --dry-run\n  \
    ostler retention run --tenant acme --noun events --yes")]
struct RunRetentionArgs {
    /// Only this tenant
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Only this noun: events, threads, webhook_deliveries, messages, attachments, storage
    #[arg(long, value_name = "NOUN", value_parser = parse_noun)]
    noun: Option<RetentionNoun>,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    output: Output,
}

/// Place a legal hold: what it covers is not removed before the hold is released
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler retention hold --tenant acme --reason \"case 7\"\n  \
    ostler retention hold --session ses_0198… --reason \"audit of May\"\n  \
    ostler retention hold --identity alice.localhost.test --reason \"case 7\"")]
#[command(group(clap::ArgGroup::new("target").args(["tenant", "session", "identity"]).required(true).multiple(true)))]
struct PlaceHoldArgs {
    /// A tenant with everything in it
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// A session
    #[arg(long, value_name = "SESSION")]
    session: Option<String>,
    /// Messages from and to an identity of the mesh
    #[arg(long, value_name = "NAME", conflicts_with_all = ["tenant", "session"])]
    identity: Option<String>,
    /// Why, in one line
    #[arg(long, value_name = "TEXT")]
    reason: String,
    #[command(flatten)]
    output: Output,
}

/// List legal holds, newest first, also those that were released
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler retention holds\n  ostler retention holds -o jsonl | jq -r .holdId")]
struct ListHoldsArgs {
    #[command(flatten)]
    list: ListFlags,
}

/// Release a legal hold; limits apply again, and the record of the hold stays
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler retention release hld_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d --yes")]
struct ReleaseHoldArgs {
    /// The hold's id, or the beginning of it
    #[arg(value_name = "HOLD")]
    hold_id: String,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    output: Output,
}

/// Return all free space of the store to the disk
///
/// Works on the store directly. With SQLite the server must be stopped, and the disk needs room for a second copy of the file.
/// With Postgres the tables that retention removes rows from are locked, one after the other, while each is rewritten.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler retention compact --yes\n  ostler retention compact --data-dir ./data --yes"
)]
struct CompactArgs {
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn retention(connection: &Connection, args: &RetentionArgs) -> Result<u8, Failure> {
    match &args.verb {
        RetentionVerb::Show(args) => show(connection, args).await,
        RetentionVerb::Run(args) => run(connection, args).await,
        RetentionVerb::Hold(args) => hold(connection, args).await,
        RetentionVerb::Holds(args) => holds(connection, args).await,
        RetentionVerb::Release(args) => release(connection, args).await,
        RetentionVerb::Compact(args) => compact(connection, args).await,
    }
}

fn parse_noun(text: &str) -> Result<RetentionNoun, String> {
    let known = || RetentionNoun::ALL.map(RetentionNoun::as_str).join(", ");
    RetentionNoun::parse(text).ok_or_else(|| format!("known nouns: {}", known()))
}

async fn show(connection: &Connection, args: &ShowRetentionArgs) -> Result<u8, Failure> {
    let view = connection.client()?.retention().await?;
    args.output.one(&view, || render(&view.counts, view.has_more, output::width()));
    Ok(exit_codes::OK)
}

async fn run(connection: &Connection, args: &RunRetentionArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    let request = |dry_run| SweepRetention { dry_run, tenant_id: args.tenant.clone(), noun: args.noun };
    let mut swept = client.sweep_retention(&request(true)).await?;
    if !args.confirm.dry_run {
        let total = swept.counts.iter().fold((0, 0), |sum, count| (sum.0 + count.items, sum.1 + count.bytes));
        output::message(&render(&swept.counts, swept.has_more, output::width()));
        if total.0 > 0 && !args.confirm.ask(&format!("remove these ({})?", size(total.1)))? {
            return Ok(exit_codes::OK);
        }
        swept = client.sweep_retention(&request(false)).await?;
        while swept.has_more {
            let more = client.sweep_retention(&request(false)).await?;
            for (sum, more) in swept.counts.iter_mut().zip(&more.counts) {
                *sum = RetentionCount { items: sum.items + more.items, bytes: sum.bytes + more.bytes, ..more.clone() };
            }
            swept.has_more = more.has_more;
        }
    }
    args.output.one(&swept, || {
        let verb = if args.confirm.dry_run { "would be removed" } else { "removed" };
        let items: i64 = swept.counts.iter().map(|count| count.items).sum();
        let bytes = swept.counts.iter().map(|count| count.bytes).sum();
        let table =
            if args.confirm.dry_run { render(&swept.counts, swept.has_more, output::width()) } else { String::new() };
        format!("{table}{} {verb}, {}\n", output::count(items, "item"), size(bytes))
    });
    Ok(exit_codes::OK)
}

/// Rows with a limit, and those without one where there is no other.
fn render(counts: &[RetentionCount], has_more: bool, width: Option<usize>) -> String {
    let with_limit: Vec<_> = counts.iter().filter(|count| count.limit_ms.is_some()).collect();
    if with_limit.is_empty() {
        return "no limits are set; everything is kept (section [retention] of the configuration)\n".into();
    }
    let row = |count: &&RetentionCount| {
        vec![
            count.noun.as_str().to_owned(),
            count.tenant_id.as_deref().map_or("-".into(), |tenant| line(tenant, 200)),
            count.limit_ms.map_or("-".into(), age_ms),
            count.items.to_string(),
            size(count.bytes),
            count.held.to_string(),
        ]
    };
    let columns = [
        Column::whole("NOUN"),
        Column::text(2, "TENANT"),
        Column::whole("KEPT FOR"),
        Column::whole("REMOVABLE"),
        Column::whole("SIZE"),
        Column::spare(1, "HELD"),
    ];
    let mut text = table(&columns, with_limit.iter().map(row).collect(), width);
    if has_more {
        text.push_str("there is more than was counted\n");
    }
    text
}

/// Bytes for people.
fn size(bytes: i64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64 / 1024.0;
    if value < 1.0 {
        return format!("{bytes} B");
    }
    for unit in UNITS {
        if value < 1024.0 || unit == "TiB" {
            return format!("{value:.1} {unit}");
        }
        value /= 1024.0;
    }
    format!("{bytes} B")
}

async fn hold(connection: &Connection, args: &PlaceHoldArgs) -> Result<u8, Failure> {
    let request = PlaceHold {
        tenant_id: args.tenant.clone(),
        session_id: args.session.clone(),
        identity: args.identity.clone(),
        reason: args.reason.clone(),
    };
    let placed = connection.client()?.place_hold(&request).await?;
    args.output.one(&placed, || format!("{}\n", placed.hold_id));
    let release = format!("{} retention release {}", connection.invocation(), placed.hold_id);
    output::message(&format!("{} is held; release it: {release}\n", covers(&placed)));
    Ok(exit_codes::OK)
}

async fn holds(connection: &Connection, args: &ListHoldsArgs) -> Result<u8, Failure> {
    let (limit, times, output) = args.list.parts();
    let page = connection.client()?.list_holds(&ListHolds { limit: Some(limit), cursor: None }).await?;
    HOLDS.print(&page.holds, page.next_cursor.is_some(), times, output)
}

const HOLDS: Listing<Hold> = Listing {
    nothing: "no legal holds; place one: ostler retention hold --tenant TENANT --reason TEXT\n",
    columns: &[
        Column::whole("HOLD"),
        Column::text(3, "COVERS"),
        Column::whole("STATE"),
        Column::spare(1, "PLACED"),
        Column::text(2, "REASON"),
    ],
    row: |hold, times, now| {
        let state = if hold.released_at.is_some() { "released" } else { "in force" };
        vec![
            hold.hold_id.to_string(),
            covers(hold),
            state.into(),
            times.ago(hold.placed_at, now),
            line(&hold.reason, 200),
        ]
    },
};

fn covers(hold: &Hold) -> String {
    let named = |what: &str, name: &str| format!("{what} {}", line(name, 200));
    match (&hold.identity, &hold.session_id, &hold.tenant_id) {
        (Some(identity), ..) => named("identity", identity),
        (_, Some(session), _) => named("session", session),
        (.., tenant) => named("tenant", tenant.as_deref().unwrap_or_default()),
    }
}

async fn release(connection: &Connection, args: &ReleaseHoldArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    let hold = find(&client, &args.hold_id).await?;
    output::message(&format!("  hold {} · {} · {}\n", hold.hold_id, covers(&hold), line(&hold.reason, 200)));
    if !args.confirm.ask("release this?")? {
        return Ok(exit_codes::OK);
    }
    let released = client.release_hold(&hold.hold_id.to_string()).await?;
    args.output.one(&released, || format!("{} released\n", released.hold_id));
    Ok(exit_codes::OK)
}

/// Finds a hold by its id or the beginning of it. Fails if several match.
async fn find(client: &Client, word: &str) -> Result<Hold, Failure> {
    let word = word.trim_end_matches('…');
    let unknown = || errors::listed_by(targets::unknown("hold", word), "ostler retention holds");
    let prefix = prefix_range(HoldId::PREFIX, word).map(|(prefix, _)| prefix);
    let fits = |hold: &Hold| prefix.as_ref().is_some_and(|prefix| hold.hold_id.to_string().starts_with(prefix));
    let all = all_pages(async |cursor| {
        let page = client.list_holds(&ListHolds { limit: Some(PAGE_ITEMS_MAX), cursor }).await?;
        Ok((page.holds, page.next_cursor))
    });
    let found: Vec<Hold> = all.await?.into_iter().filter(fits).collect();
    let candidate = |hold: &Hold| (hold.hold_id.to_string(), covers(hold));
    let id = targets::one(word, "hold", found.iter().map(candidate).collect())?.ok_or_else(unknown)?;
    found.into_iter().find(|hold| hold.hold_id.to_string() == id).ok_or_else(unknown)
}

async fn compact(connection: &Connection, args: &CompactArgs) -> Result<u8, Failure> {
    let config = args.store.load(connection)?;
    if !args.confirm.ask("rewrite the store without its free space? writers wait until it is done")? {
        return Ok(exit_codes::OK);
    }
    let compacted = ostler_server::compact(&config, &dialects()).await?;
    let (before, after) = (compacted.before_bytes as i64, compacted.after_bytes as i64);
    let value = json!({"beforeBytes": before, "afterBytes": after});
    args.output.one(&value, || format!("{} before, {} now\n", size(before), size(after)));
    Ok(exit_codes::OK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::times::Times;

    fn count(noun: RetentionNoun, tenant: Option<&str>, limit_ms: Option<i64>) -> RetentionCount {
        RetentionCount {
            noun,
            tenant_id: tenant.map(str::to_owned),
            limit_ms,
            items: 12_345,
            bytes: 1_234_567_890,
            held: 3,
        }
    }

    #[test]
    fn the_limits_fit_80_columns() {
        let counts = [
            count(RetentionNoun::WebhookDeliveries, Some(&"tenant".repeat(20)), Some(90 * 86_400_000)),
            count(RetentionNoun::Messages, None, Some(3_600_000)),
            count(RetentionNoun::Storage, Some("hwlab"), None),
        ];
        let text = render(&counts, false, Some(80));
        assert!(text.lines().all(|line| output::columns(line) <= 80), "{text}");
        assert!(text.contains("webhook_deliveries") && text.contains("1.1 GiB") && !text.contains("storage"), "{text}");
        assert!(render(&counts[2..], false, Some(80)).contains("no limits are set"));
    }

    #[test]
    fn holds_fit_80_columns() {
        let hold: Hold = serde_json::from_value(json!({"holdId": format!("hld_{:032x}", 1), "tenantId": "hwlab",
            "sessionId": null, "identity": null, "reason": "a long reason ".repeat(9), "placedBy": "operator",
            "placedAt": "2030-01-01T00:00:00Z", "releasedBy": null, "releasedAt": null}))
        .unwrap();
        let now = "2030-01-02T00:00:00Z".parse().unwrap();
        let text = HOLDS.render(&[hold], Times::default(), now, Some(80));
        assert!(text.lines().all(|line| output::columns(line) <= 80), "{text}");
        assert!(text.contains("in force") && text.contains("tenant hwlab"), "{text}");
    }

    #[test]
    fn sizes_are_readable() {
        let sizes = [0, 1023, 1024, 1536, 5 << 20, 3 << 40].map(size);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 MiB", "3.0 TiB"]);
    }

    #[test]
    fn an_unknown_noun_is_rejected_with_the_known_ones() {
        assert!(parse_noun("runs").unwrap_err().contains("webhook_deliveries"));
        assert_eq!(parse_noun("events"), Ok(RetentionNoun::Events));
    }
}
