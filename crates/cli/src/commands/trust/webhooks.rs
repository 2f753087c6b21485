//! `ostler webhooks`: the webhook of an agent and its deliveries, for the agent's owner. A new secret is printed on stdout
//! only.

use clap::{Subcommand, ValueEnum};
use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind, Rule,
    ids::AgentId,
    limits::PAGE_ITEMS_MAX,
    trust::webhooks::{Delivery, DeliveryId, DeliveryStatus, ListDeliveries, PutWebhook},
};

use crate::{
    commands::list::{ListFlags, Listing, all_pages},
    commands::trust::agents,
    connection::Connection,
    errors, exit_codes, targets,
    terminal::{
        confirm::Confirm,
        output::{self, Output, line},
        table::Column,
    },
};

/// Set an agent's webhook, and manage its deliveries
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler webhooks set notes-helper https://agent.example/hook\n  \
    ostler webhooks list agt_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d --status dead\n  \
    ostler webhooks replay agt_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d --dead")]
pub(crate) struct WebhooksArgs {
    #[command(subcommand)]
    verb: WebhooksVerb,
}

#[derive(Subcommand, Debug)]
enum WebhooksVerb {
    Set(SetWebhookArgs),
    Show(ShowWebhookArgs),
    Test(TestWebhookArgs),
    List(ListWebhooksArgs),
    Replay(ReplayWebhookArgs),
    Remove(RemoveWebhookArgs),
}

/// Set an agent's webhook; the new secret is printed once, on stdout
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    ostler webhooks set notes-helper https://agent.example/hook > secret")]
struct SetWebhookArgs {
    #[arg(help = agents::NAMED)]
    agent: String,
    /// The URL to send requests to: https, on a public address
    url: String,
    #[command(flatten)]
    output: Output,
}

/// Show an agent's webhook, or one of its deliveries
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler webhooks show agt_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d\n  \
    ostler webhooks show notes-helper 0197c1d2-e3f4-7a6b -o json")]
struct ShowWebhookArgs {
    #[arg(help = agents::NAMED)]
    agent: String,
    /// A delivery, from `ostler webhooks list`: its id, or the beginning of it
    #[arg(value_name = "DELIVERY")]
    delivery_id: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// Send a test delivery to the webhook
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler webhooks test agt_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d")]
struct TestWebhookArgs {
    #[arg(help = agents::NAMED)]
    agent: String,
    #[command(flatten)]
    output: Output,
}

/// List the deliveries of an agent's webhook, newest first
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler webhooks list agt_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d --status dead")]
struct ListWebhooksArgs {
    #[arg(help = agents::NAMED)]
    agent: String,
    /// Only pending, delivered or dead ones; a dead one has failed permanently
    #[arg(long, value_enum)]
    status: Option<StatusFlag>,
    #[command(flatten)]
    list: ListFlags,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum StatusFlag {
    Pending,
    Delivered,
    Dead,
}

impl From<StatusFlag> for DeliveryStatus {
    fn from(status: StatusFlag) -> Self {
        match status {
            StatusFlag::Pending => Self::Pending,
            StatusFlag::Delivered => Self::Delivered,
            StatusFlag::Dead => Self::Dead,
        }
    }
}

/// Retry dead deliveries
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    ostler webhooks replay notes-helper 0197c1d2-e3f4-7a6b\n  \
    ostler webhooks replay agt_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d --dead")]
struct ReplayWebhookArgs {
    #[arg(help = agents::NAMED)]
    agent: String,
    #[arg(value_name = "DELIVERY", required_unless_present = "dead", conflicts_with = "dead")]
    delivery_ids: Vec<String>,
    /// Every dead delivery
    #[arg(long)]
    dead: bool,
    #[command(flatten)]
    output: Output,
}

/// Remove an agent's webhook; its pending deliveries are dropped
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler webhooks remove agt_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d --yes")]
struct RemoveWebhookArgs {
    #[arg(help = agents::NAMED)]
    agent: String,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn webhooks(connection: &Connection, args: &WebhooksArgs) -> Result<u8, Failure> {
    match &args.verb {
        WebhooksVerb::Set(args) => set(connection, args).await,
        WebhooksVerb::Show(args) => show(connection, args).await,
        WebhooksVerb::Test(args) => test(connection, args).await,
        WebhooksVerb::List(args) => list(connection, args).await,
        WebhooksVerb::Replay(args) => replay(connection, args).await,
        WebhooksVerb::Remove(args) => remove(connection, args).await,
    }
}

async fn set(connection: &Connection, args: &SetWebhookArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    let agent_id = agents::find_id(&client, &args.agent).await?;
    let set = client.put_webhook(agent_id, &PutWebhook { url: args.url.clone() }).await?;
    args.output.one(&set, || format!("{}\n", set.secret));
    output::message(&format!(
        "deliveries are signed with this secret; it is not shown again\ntest it: {} webhooks test {}\n",
        connection.invocation(),
        agent_id
    ));
    Ok(exit_codes::OK)
}

async fn show(connection: &Connection, args: &ShowWebhookArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    let agent_id = agents::find_id(&client, &args.agent).await?;
    if let Some(word) = &args.delivery_id {
        let delivery = client.get_delivery(agent_id, find_delivery(&client, agent_id, word).await?).await?;
        args.output.one(&delivery, || describe(&delivery));
        return Ok(exit_codes::OK);
    }
    let webhook = client.get_webhook(agent_id).await?;
    args.output.one(&webhook, || match webhook.disabled_at {
        None => format!("{}\n", line(&webhook.url, 2_048)),
        Some(at) => {
            format!("{}\ndisabled at {at}: the receiver responded that it is gone\n", line(&webhook.url, 2_048))
        }
    });
    Ok(exit_codes::OK)
}

fn describe(delivery: &Delivery) -> String {
    let error = delivery.last_error.as_deref().map(|error| format!(": {}", line(error, 200))).unwrap_or_default();
    format!(
        "{} {} after {} attempts{error}\n{}\n",
        line(&delivery.event_type, 200),
        delivery.status.as_str(),
        delivery.attempts,
        output::json(&delivery.body.to_value()).trim_end()
    )
}

async fn test(connection: &Connection, args: &TestWebhookArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    let agent_id = agents::find_id(&client, &args.agent).await?;
    let delivery = client.test_webhook(agent_id).await?;
    args.output.one(&delivery, || format!("{}\n", delivery.delivery_id));
    let invocation = connection.invocation();
    output::message(&format!("its outcome: {invocation} webhooks show {agent_id} {}\n", delivery.delivery_id));
    Ok(exit_codes::OK)
}

async fn list(connection: &Connection, args: &ListWebhooksArgs) -> Result<u8, Failure> {
    let (limit, times, output) = args.list.parts();
    let query = ListDeliveries { status: args.status.map(Into::into), limit: Some(limit), cursor: None };
    let client = connection.client()?;
    let page = client.list_deliveries(agents::find_id(&client, &args.agent).await?, &query).await?;
    DELIVERIES.print(&page.deliveries, page.next_cursor.is_some(), times, output)
}

async fn replay(connection: &Connection, args: &ReplayWebhookArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    let agent_id = agents::find_id(&client, &args.agent).await?;
    let mut ids = if args.dead { dead(&client, agent_id).await? } else { vec![] };
    for word in &args.delivery_ids {
        ids.push(find_delivery(&client, agent_id, word).await?);
    }
    let (mut replayed, is_any_dead) = (vec![], !ids.is_empty());
    for delivery_id in ids {
        match client.replay_delivery(agent_id, delivery_id).await {
            Ok(begun) => replayed.push(begun),
            // The queue is full; the rest can be replayed later.
            Err(full) if args.dead && full.broken_rule() == Some(Rule::DeliveriesWaiting) => {
                output::message(&format!("{}\n", full.message));
                break;
            }
            // The delivery, or the run that it describes, is not there any more. The others can be replayed.
            Err(gone) if args.dead && gone.kind == FailureKind::NotFound && gone.broken_rule().is_none() => {
                output::message(&format!("{delivery_id} is not replayed: {}\n", gone.message));
            }
            Err(failure) if failure.broken_rule() == Some(Rule::DeliveryNotDead) => {
                let hint = "`ostler webhooks list AGENT --status dead` shows those that can be replayed";
                return Err(errors::with_hint(failure, hint));
            }
            Err(failure) => return Err(failure),
        }
    }
    let lines = || replayed.iter().map(|delivery| format!("{} pending\n", delivery.delivery_id)).collect();
    args.output.many(&replayed, lines);
    if !is_any_dead {
        output::message("there are no dead deliveries\n");
    }
    Ok(exit_codes::OK)
}

/// Every dead delivery, oldest first.
async fn dead(client: &Client, agent_id: AgentId) -> Result<Vec<DeliveryId>, Failure> {
    let all = deliveries(client, agent_id, Some(DeliveryStatus::Dead)).await?;
    Ok(all.iter().rev().map(|delivery| delivery.delivery_id).collect())
}

async fn deliveries(
    client: &Client,
    agent_id: AgentId,
    status: Option<DeliveryStatus>,
) -> Result<Vec<Delivery>, Failure> {
    let all = all_pages(async |cursor| {
        let query = ListDeliveries { status, limit: Some(PAGE_ITEMS_MAX), cursor };
        let page = client.list_deliveries(agent_id, &query).await?;
        Ok((page.deliveries, page.next_cursor))
    });
    all.await
}

/// A delivery by its id or the beginning of it. A complete id is returned without a lookup.
async fn find_delivery(client: &Client, agent_id: AgentId, word: &str) -> Result<DeliveryId, Failure> {
    if let Ok(id) = word.parse() {
        return Ok(id);
    }
    let unknown = || errors::listed_by(targets::unknown("delivery", word), &format!("ostler webhooks list {agent_id}"));
    let all = deliveries(client, agent_id, None).await?;
    let fits = all.iter().filter(|delivery| delivery.delivery_id.to_string().starts_with(word));
    let found = fits.map(|delivery| (delivery.delivery_id.to_string(), delivery.status.as_str().to_owned())).collect();
    let id = targets::one(word, "delivery id", found)?.ok_or_else(unknown)?;
    id.parse().map_err(|_| unknown())
}

async fn remove(connection: &Connection, args: &RemoveWebhookArgs) -> Result<u8, Failure> {
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

const DELIVERIES: Listing<Delivery> = Listing {
    nothing: "no such deliveries\n",
    columns: &[
        Column::whole("DELIVERY"),
        Column::spare(3, "TYPE"),
        Column::whole("STATUS"),
        Column::spare(2, "ATTEMPTS"),
        Column::text(4, "LAST ERROR"),
        Column::spare(1, "MADE"),
    ],
    row: |delivery, times, now| {
        vec![
            delivery.delivery_id.to_string(),
            line(&delivery.event_type, 200),
            delivery.status.as_str().to_owned(),
            delivery.attempts.to_string(),
            line(delivery.last_error.as_deref().unwrap_or("-"), 200),
            times.ago(delivery.created_at, now),
        ]
    },
};

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::terminal::times::Times;

    fn delivery() -> Delivery {
        serde_json::from_value(json!({
            "delivery_id": "019a8f6e-7c3b-7d2a-9c1e-5a4b3c2d1e0f", "agent_id": format!("agt_{:032x}", 1),
            "type": "webhook.test", "status": "dead", "attempts": 10, "due_at": null, "last_status": 500,
            "last_error": "responded 500", "created_at": "2030-01-01T00:00:00Z", "updated_at": "2030-01-04T00:00:00Z",
            "body": {"type": "webhook.test", "data": {"n": 1}}}))
        .unwrap()
    }

    #[test]
    fn a_delivery_is_shown_with_its_body_as_indented_json() {
        let text = describe(&delivery());
        assert!(text.starts_with("webhook.test dead after 10 attempts: responded 500\n{\n  \""), "{text}");
        assert!(text.contains("\n  \"data\": {\n    \"n\": 1\n  }") && text.ends_with("\n}\n"), "{text}");
    }

    #[test]
    fn the_table_shows_the_state_of_each_delivery() {
        let now = "2030-01-01T02:00:00Z".parse().unwrap();
        let text = DELIVERIES.render(&[delivery()], Times::default(), now, None);
        let row = "019a8f6e-7c3b-7d2a-9c1e-5a4b3c2d1e0f  webhook.test  dead    10        responded 500  2h ago\n";
        assert_eq!(text.lines().nth(1).map(|line| format!("{line}\n")).as_deref(), Some(row));
    }
}
