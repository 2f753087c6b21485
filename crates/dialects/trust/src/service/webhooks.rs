//! Webhooks: set, show and remove an agent's, look at what was told to it, and begin again with what was given up.

use jiff::SignedDuration;
use ostler_crypto::mac::{SECRET_BYTES_MIN, secret_text};
use ostler_protocol::{
    Failure, FailureKind,
    cursors::{self, Cursor},
    ids::AgentId,
    json::{hex, unhex},
    trust::webhooks::{
        DELIVERIES_WAITING_MAX, Delivery, DeliveryId, DeliveryPage, DeliveryStatus, ENDED_DELIVERIES_MAX,
        ListDeliveries, NewWebhook, PutWebhook, Webhook, body,
    },
};
use ostler_store::{
    self as store,
    trust::webhooks::{NewDelivery, Sealed},
};
use serde_json::json;

use super::agents::{owned, retired};
use crate::{deliveries::sender::check_url, state::Trust};
use ostler_server::{app::App, auth::Principal, clock::fill};

/// What tells a receiver nothing but that it is reached.
const TEST: &str = "webhook.test";

/// What has ended is shown for this long.
const KEPT: SignedDuration = SignedDuration::from_hours(30 * 24);
/// Deliveries that are forgotten by one statement.
const FORGOTTEN_MAX: u32 = 500;
/// Agents with too many ended deliveries that are looked at together.
const OVERFULL_AT_ONCE: u32 = 100;

/// Sets an agent's webhook, with a new secret. What still waits goes to the new one.
pub async fn put(app: &App, caller: &Principal, agent_id: AgentId, asked: PutWebhook) -> Result<NewWebhook, Failure> {
    owned(app, caller, agent_id).await?;
    let url = check_url(&Trust::of(app).webhooks.rules(&app.config.outgoing)?, &asked.url)?;
    let mut random = [0; SECRET_BYTES_MIN];
    fill(&mut random);
    let secret = secret_text(&random);
    let webhook = Webhook { agent_id, url: url.into(), created_at: app.now(), disabled_at: None };
    let sealed = hex(&app.secrets.seal(&sealed_name(agent_id), secret.as_bytes()));
    if !store::trust::webhooks::insert(&app.db, &webhook, &sealed).await? {
        return Err(retired());
    }
    tracing::info!(%agent_id, by = caller.name(), "a webhook was set");
    Trust::of(app).deliveries.notify_one();
    Ok(NewWebhook { webhook, secret })
}

pub async fn get(app: &App, caller: &Principal, agent_id: AgentId) -> Result<Webhook, Failure> {
    owned(app, caller, agent_id).await?;
    let found = store::trust::webhooks::get(&app.db, agent_id).await?;
    found.map(|sealed| sealed.webhook).ok_or_else(no_webhook)
}

/// Removes an agent's webhook; what waited for it is given up.
pub async fn delete(app: &App, caller: &Principal, agent_id: AgentId) -> Result<Webhook, Failure> {
    let webhook = get(app, caller, agent_id).await?;
    if !store::trust::webhooks::delete(&app.db, agent_id, app.now()).await? {
        return Err(no_webhook());
    }
    tracing::info!(%agent_id, by = caller.name(), "a webhook was removed");
    Ok(webhook)
}

/// Puts down a delivery that means nothing.
pub async fn test(app: &App, caller: &Principal, agent_id: AgentId) -> Result<Delivery, Failure> {
    listening(app, caller, agent_id).await?;
    let new = new_delivery(app, agent_id, TEST, &json!({}));
    store::trust::webhooks::insert_delivery(&app.db, &new).await?;
    Trust::of(app).deliveries.notify_one();
    get_delivery(app, caller, agent_id, new.delivery_id).await
}

/// There is a webhook, and its receiver is not gone.
async fn listening(app: &App, caller: &Principal, agent_id: AgentId) -> Result<(), Failure> {
    let message = "the receiver said that it is gone; set the webhook anew";
    match get(app, caller, agent_id).await?.disabled_at {
        None => Ok(()),
        Some(_) => Err(Failure::rule(FailureKind::StateConflict, "webhook-disabled", message)),
    }
}

/// Something to tell an agent's webhook, for the transaction that makes it so. Afterwards `Trust::deliveries` is notified.
pub fn new_delivery(
    app: &App,
    agent_id: AgentId,
    event_type: &'static str,
    payload: &impl serde::Serialize,
) -> NewDelivery {
    let created_at = app.now();
    let body = body(event_type, payload, created_at);
    NewDelivery { delivery_id: DeliveryId::new(app.ids.body()), agent_id, event_type, body, created_at }
}

pub async fn list_deliveries(
    app: &App,
    caller: &Principal,
    agent_id: AgentId,
    asked: ListDeliveries,
) -> Result<DeliveryPage, Failure> {
    owned(app, caller, agent_id).await?;
    let limit = cursors::limit(asked.limit)?;
    let fingerprint = cursors::fingerprint("deliveries", &(agent_id, asked.status));
    let after = asked.cursor.as_deref().map(|text| Cursor::decode(text, &fingerprint)).transpose()?;
    let found =
        store::trust::webhooks::list_deliveries(&app.db, agent_id, asked.status, after.as_ref(), limit + 1).await;
    let mut deliveries = found?;
    let more = deliveries.len() > limit as usize;
    deliveries.truncate(limit as usize);
    let next_cursor = deliveries.last().filter(|_| more).map(|last| {
        let id = last.delivery_id.to_string();
        Cursor { created_at_us: last.created_at.as_microsecond(), id }.encode(&fingerprint)
    });
    Ok(DeliveryPage { deliveries, next_cursor })
}

pub async fn get_delivery(
    app: &App,
    caller: &Principal,
    agent_id: AgentId,
    delivery_id: DeliveryId,
) -> Result<Delivery, Failure> {
    owned(app, caller, agent_id).await?;
    let found = store::trust::webhooks::get_delivery(&app.db, agent_id, delivery_id).await?;
    found.ok_or_else(|| Failure::not_found("delivery"))
}

/// Begins again with a dead delivery, under its own id.
pub async fn replay(
    app: &App,
    caller: &Principal,
    agent_id: AgentId,
    delivery_id: DeliveryId,
) -> Result<Delivery, Failure> {
    let known = get_delivery(app, caller, agent_id, delivery_id).await?;
    listening(app, caller, agent_id).await?;
    let replayed = store::trust::webhooks::update_replayed(&app.db, agent_id, delivery_id, app.now()).await;
    let replayed = replayed?.ok_or_else(|| {
        if known.status == DeliveryStatus::Dead {
            let message = format!("{DELIVERIES_WAITING_MAX} deliveries wait already; replay it when some have gone");
            return Failure::rule(FailureKind::RateLimited, "deliveries-waiting", message);
        }
        let message = format!("only a dead delivery can be replayed; this one is {}", known.status.as_str());
        Failure::rule(FailureKind::StateConflict, "delivery-not-dead", message)
    })?;
    Trust::of(app).deliveries.notify_one();
    Ok(replayed)
}

/// Forgets what ended long ago.
pub async fn forget_ended(app: &App) -> Result<(), Failure> {
    let before = app.now().checked_sub(KEPT).map_err(Failure::internal)?;
    while store::trust::webhooks::delete_ended(&app.db, before, FORGOTTEN_MAX).await? == FORGOTTEN_MAX as usize {}
    drop_overfull(app).await
}

/// Anybody can begin and end a relation as often as they like, and each time a delivery is put down: of those the oldest are
/// forgotten when there are too many. A re-consent is its owner's own doing, and is not.
async fn drop_overfull(app: &App) -> Result<(), Failure> {
    loop {
        let found = store::trust::webhooks::list_overfull(&app.db, ENDED_DELIVERIES_MAX, OVERFULL_AT_ONCE).await;
        let overfull = found?;
        if overfull.is_empty() {
            return Ok(());
        }
        for (agent_id, status) in overfull {
            let dropped =
                store::trust::webhooks::delete_oldest(&app.db, agent_id, status, ENDED_DELIVERIES_MAX, FORGOTTEN_MAX)
                    .await;
            Trust::of(app).counters.deliveries_dropped(dropped?);
        }
    }
}

/// The secret as it was shown. `None`: it cannot be opened with this server's key.
pub fn open_secret(app: &App, webhook: &Sealed) -> Option<String> {
    let opened = app.secrets.open_sealed(&sealed_name(webhook.webhook.agent_id), &unhex(&webhook.secret)?)?;
    std::str::from_utf8(&opened).ok().map(str::to_owned)
}

/// What a webhook's secret is sealed for. Profiles have no colons in their names.
fn sealed_name(agent_id: AgentId) -> String {
    format!("webhook:{agent_id}")
}

fn no_webhook() -> Failure {
    Failure::rule(FailureKind::NotFound, "webhook-unknown", "the agent has no webhook")
}
