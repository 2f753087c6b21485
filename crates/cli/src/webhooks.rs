//! `ostler webhooks`: where an agent's own server is told, and what was told to it, for the agent's owner. A new secret goes to
//! stdout and nowhere else.

use clap::{Subcommand, ValueEnum};
use ostler_client::Client;
use ostler_protocol::{
    Failure, Timestamp,
    ids::AgentId,
    limits::PAGE_ITEMS_MAX,
    trust::webhooks::{Delivery, DeliveryId, DeliveryStatus, ListDeliveries, PutWebhook},
};

use crate::{
    agents,
    confirm::Confirm,
    connect::Connection,
    errors, exit_codes,
    output::{self, Output, line},
    table::table,
    times::{Times, now},
};

/// Set an agent's webhook, and look after what is told to it
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler webhooks set agt_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d https://agent.example/hook\n  \
    ostler webhooks list agt_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d --status dead\n  \
    ostler webhooks replay agt_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d --dead"
)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    Set(SetArgs),
    Show(ShowArgs),
    Test(AgentArgs),
    List(ListArgs),
    Replay(ReplayArgs),
    Remove(RemoveArgs),
}

/// Set where an agent's own server is told; the new secret is printed once, on stdout
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    ostler webhooks set agt_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d https://agent.example/hook > secret")]
struct SetArgs {
    #[arg(help = agents::NAMED)]
    agent: String,
    /// Where to send requests: https, on a public address
    url: String,
    #[command(flatten)]
    output: Output,
}

/// Show an agent's webhook, or one of its deliveries
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler webhooks show agt_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d\n  \
    ostler webhooks show agt_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d 0197c1d2-e3f4-7a6b-8c9d-0e1f2a3b4c5d -o json")]
struct ShowArgs {
    #[arg(help = agents::NAMED)]
    agent: String,
    /// A delivery, from `ostler webhooks list`
    #[arg(value_name = "DELIVERY")]
    delivery_id: Option<DeliveryId>,
    #[command(flatten)]
    output: Output,
}

/// Tell the webhook something that means nothing, to see that it works
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler webhooks test agt_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d")]
struct AgentArgs {
    #[arg(help = agents::NAMED)]
    agent: String,
    #[command(flatten)]
    output: Output,
}

/// List what was told to an agent's webhook, newest first
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler webhooks list agt_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d --status dead")]
struct ListArgs {
    #[arg(help = agents::NAMED)]
    agent: String,
    /// Only those that wait, were delivered, or were given up
    #[arg(long, value_enum)]
    status: Option<Status>,
    /// Show at most this many
    #[arg(short = 'n', long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Status {
    Pending,
    Delivered,
    Dead,
}

impl From<Status> for DeliveryStatus {
    fn from(status: Status) -> Self {
        match status {
            Status::Pending => Self::Pending,
            Status::Delivered => Self::Delivered,
            Status::Dead => Self::Dead,
        }
    }
}

/// Begin again with deliveries that were given up
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    ostler webhooks replay agt_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d 0197c1d2-e3f4-7a6b-8c9d-0e1f2a3b4c5d\n  \
    ostler webhooks replay agt_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d --dead")]
struct ReplayArgs {
    #[arg(help = agents::NAMED)]
    agent: String,
    #[arg(value_name = "DELIVERY", required_unless_present = "dead", conflicts_with = "dead")]
    delivery_ids: Vec<DeliveryId>,
    /// All that were given up
    #[arg(long)]
    dead: bool,
    #[command(flatten)]
    output: Output,
}

/// Remove an agent's webhook; what waits for it is given up
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler webhooks remove agt_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d --yes")]
struct RemoveArgs {
    #[arg(help = agents::NAMED)]
    agent: String,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    output: Output,
}

pub async fn webhooks(connection: &Connection, args: &Args) -> Result<u8, Failure> {
    match &args.verb {
        Verb::Set(args) => set(connection, args).await,
        Verb::Show(args) => show(connection, args).await,
        Verb::Test(args) => test(connection, args).await,
        Verb::List(args) => list(connection, args).await,
        Verb::Replay(args) => replay(connection, args).await,
        Verb::Remove(args) => remove(connection, args).await,
    }
}

async fn set(connection: &Connection, args: &SetArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    let agent_id = agents::find_id(&client, &args.agent).await?;
    let set = client.put_webhook(agent_id, &PutWebhook { url: args.url.clone() }).await?;
    args.output.one(&set, || format!("{}\n", set.secret));
    output::words(&format!(
        "what is sent is signed with this secret; it is not shown again\ntry it: {} webhooks test {}\n",
        connection.invocation(),
        agent_id
    ));
    Ok(exit_codes::OK)
}

async fn show(connection: &Connection, args: &ShowArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    let agent_id = agents::find_id(&client, &args.agent).await?;
    if let Some(delivery_id) = args.delivery_id {
        let delivery = client.get_delivery(agent_id, delivery_id).await?;
        args.output.one(&delivery, || describe(&delivery));
        return Ok(exit_codes::OK);
    }
    let webhook = client.get_webhook(agent_id).await?;
    args.output.one(&webhook, || match webhook.disabled_at {
        None => format!("{}\n", line(&webhook.url, 2_048)),
        Some(at) => format!("{}\ndisabled at {at}: the receiver said that it is gone\n", line(&webhook.url, 2_048)),
    });
    Ok(exit_codes::OK)
}

fn describe(delivery: &Delivery) -> String {
    let told = delivery.last_error.as_deref().map(|error| format!(": {}", line(error, 200))).unwrap_or_default();
    format!(
        "{} {} after {} attempts{told}\n{}\n",
        line(&delivery.event_type, 200),
        delivery.status.as_str(),
        delivery.attempts,
        output::harmless(delivery.body.as_str())
    )
}

async fn test(connection: &Connection, args: &AgentArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    let agent_id = agents::find_id(&client, &args.agent).await?;
    let delivery = client.test_webhook(agent_id).await?;
    args.output.one(&delivery, || format!("{}\n", delivery.delivery_id));
    let invocation = connection.invocation();
    output::words(&format!("how it went: {invocation} webhooks show {agent_id} {}\n", delivery.delivery_id));
    Ok(exit_codes::OK)
}

async fn list(connection: &Connection, args: &ListArgs) -> Result<u8, Failure> {
    let query = ListDeliveries { status: args.status.map(Into::into), limit: Some(args.limit), cursor: None };
    let client = connection.client()?;
    let page = client.list_deliveries(agents::find_id(&client, &args.agent).await?, &query).await?;
    args.output.many(&page.deliveries, || render(&page.deliveries, args.times, now(), output::width()));
    if page.deliveries.is_empty() {
        output::words("no such deliveries\n");
    } else if page.next_cursor.is_some() {
        output::words(&format!("there are more than these {}; see `--limit`\n", page.deliveries.len()));
    }
    Ok(exit_codes::OK)
}

async fn replay(connection: &Connection, args: &ReplayArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    let agent_id = agents::find_id(&client, &args.agent).await?;
    let ids = if args.dead { dead(&client, agent_id).await? } else { args.delivery_ids.clone() };
    let mut replayed = vec![];
    for delivery_id in ids {
        match client.replay_delivery(agent_id, delivery_id).await {
            Ok(begun) => replayed.push(begun),
            // So many wait by now that the rest has to wait for another time.
            Err(full) if args.dead && full.rule_name() == Some("deliveries-waiting") => {
                output::words(&format!("{}\n", full.message));
                break;
            }
            Err(failure) if failure.rule_name() == Some("delivery-not-dead") => {
                let hint = "`ostler webhooks list AGENT --status dead` shows those that can be replayed";
                return Err(errors::with_hint(failure, hint));
            }
            Err(failure) => return Err(failure),
        }
    }
    let lines = || replayed.iter().map(|delivery| format!("{} waits\n", delivery.delivery_id)).collect();
    args.output.many(&replayed, lines);
    if replayed.is_empty() {
        output::words("nothing was given up\n");
    }
    Ok(exit_codes::OK)
}

/// Everything that was given up, oldest first.
async fn dead(client: &Client, agent_id: AgentId) -> Result<Vec<DeliveryId>, Failure> {
    let status = Some(DeliveryStatus::Dead);
    let mut query = ListDeliveries { status, limit: Some(PAGE_ITEMS_MAX), cursor: None };
    let mut ids = vec![];
    loop {
        let page = client.list_deliveries(agent_id, &query).await?;
        ids.extend(page.deliveries.iter().map(|delivery| delivery.delivery_id));
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            ids.reverse();
            return Ok(ids);
        }
    }
}

async fn remove(connection: &Connection, args: &RemoveArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    let agent_id = agents::find_id(&client, &args.agent).await?;
    let webhook = client.get_webhook(agent_id).await?;
    if !args.confirm.ask(&format!("remove the webhook {}?", line(&webhook.url, 200)))? {
        return Ok(exit_codes::OK);
    }
    let removed = client.delete_webhook(agent_id).await?;
    args.output.one(&removed, || format!("{} removed\n", line(&removed.url, 2_048)));
    Ok(exit_codes::OK)
}

fn render(deliveries: &[Delivery], times: Times, now: Timestamp, width: Option<usize>) -> String {
    let rows = deliveries.iter().map(|delivery| {
        vec![
            delivery.delivery_id.to_string(),
            line(&delivery.event_type, 200),
            delivery.status.as_str().to_owned(),
            delivery.attempts.to_string(),
            line(delivery.last_error.as_deref().unwrap_or("-"), 200),
            times.ago(delivery.created_at, now),
        ]
    });
    table(&["DELIVERY", "TYPE", "STATUS", "ATTEMPTS", "LAST ERROR", "MADE"], rows.collect(), &[4, 1], width)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        times: Times,
    }

    #[test]
    fn the_table_shows_how_each_delivery_went() {
        let delivery: Delivery = serde_json::from_value(json!({
            "delivery_id": "019a8f6e-7c3b-7d2a-9c1e-5a4b3c2d1e0f", "agent_id": format!("agt_{:032x}", 1),
            "type": "webhook.test", "status": "dead", "attempts": 10, "due_at": null, "last_status": 500,
            "last_error": "answered 500", "created_at": "2030-01-01T00:00:00Z", "updated_at": "2030-01-04T00:00:00Z",
            "body": {}}))
        .unwrap();
        let now = "2030-01-01T02:00:00Z".parse().unwrap();
        let shown = render(&[delivery], Line::parse_from(["list"]).times, now, None);
        let row = "019a8f6e-7c3b-7d2a-9c1e-5a4b3c2d1e0f  webhook.test  dead    10        answered 500  2h ago\n";
        assert_eq!(shown.lines().nth(1).map(|line| format!("{line}\n")).as_deref(), Some(row));
    }
}
