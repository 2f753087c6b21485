//! Webhooks: set, get and delete an agent's webhook, list its deliveries, and replay dead ones.

use jiff::SignedDuration;
use ostler_crypto::mac::{SECRET_BYTES_MIN, secret_text};
use ostler_protocol::{
    Failure, FailureKind, Rule,
    cursors::{Cursor, PageRequest},
    ids::AgentId,
    json::{hex, unhex},
    retention::RetentionNoun,
    trust::webhooks::{
        Delivery, DeliveryId, DeliveryPage, DeliveryStatus, ENDED_DELIVERIES_MAX, ListDeliveries, NewWebhook,
        PutWebhook, Webhook, body,
    },
};
use ostler_store::{
    self as store,
    trust::webhooks::{NewDelivery, Sealed, Subject},
};
use serde_json::json;

use crate::service::lookup::{self, owned, retired};
use crate::{deliveries::sender::check_url, state::Trust};
use ostler_server::{
    app::App,
    auth::Principal,
    clock::fill,
    dialect::{Ownership, RetentionStep},
};

/// The event of a test delivery.
const TEST: &str = "webhook.test";

/// Why a delivery about a run is not sent and not shown.
pub(crate) const UNREADABLE: &str = "the run was erased, or the agent's owner may no longer read it";

/// How long ended deliveries are stored.
const ENDED_RETENTION: SignedDuration = SignedDuration::from_hours(30 * 24);
/// Deliveries that one statement deletes.
const DELETED_AT_ONCE: u32 = 500;
/// Agents with too many ended deliveries that are read together.
const OVERFULL_AT_ONCE: u32 = 100;

/// Sets an agent's webhook, with a new secret. Pending deliveries go to the new webhook.
pub(crate) async fn put(
    app: &App,
    caller: &Principal,
    agent_id: AgentId,
    request: PutWebhook,
) -> Result<NewWebhook, Failure> {
    owned(app, caller, agent_id).await?;
    let url = check_url(&Trust::of(app).webhooks.rules(&app.config.outgoing)?, &request.url)?;
    let mut random = [0; SECRET_BYTES_MIN];
    fill(&mut random);
    let secret = secret_text(&random);
    let webhook = Webhook { agent_id, url: url.into(), created_at: app.now(), disabled_at: None };
    let sealed = hex(&app.secrets.seal(&sealed_name(agent_id), secret.as_bytes()));
    if !store::trust::webhooks::insert(&app.db, &webhook, &sealed).await? {
        return Err(retired());
    }
    tracing::info!(%agent_id, by = caller.name(), "a webhook was set");
    Trust::of(app).run_scan.notify_one();
    Trust::of(app).deliveries.notify_one();
    Ok(NewWebhook { webhook, secret })
}

pub(crate) async fn get(app: &App, caller: &Principal, agent_id: AgentId) -> Result<Webhook, Failure> {
    owned(app, caller, agent_id).await?;
    let found = store::trust::webhooks::get(&app.db, agent_id).await?;
    found.map(|sealed| sealed.webhook).ok_or_else(no_webhook)
}

/// Deletes an agent's webhook. Its pending deliveries become dead.
pub(crate) async fn delete(app: &App, caller: &Principal, agent_id: AgentId) -> Result<Webhook, Failure> {
    let webhook = get(app, caller, agent_id).await?;
    if !store::trust::webhooks::delete(&app.db, agent_id, app.now()).await? {
        return Err(no_webhook());
    }
    tracing::info!(%agent_id, by = caller.name(), "a webhook was removed");
    Ok(webhook)
}

/// Creates a test delivery.
pub(crate) async fn test(app: &App, caller: &Principal, agent_id: AgentId) -> Result<Delivery, Failure> {
    check_enabled(app, caller, agent_id).await?;
    let new = new_delivery(app, agent_id, TEST, &json!({}));
    store::trust::webhooks::insert_delivery(&app.db, &new).await?;
    Trust::of(app).deliveries.notify_one();
    get_delivery(app, caller, agent_id, new.delivery_id).await
}

/// Checks that there is a webhook, and that it is not disabled.
async fn check_enabled(app: &App, caller: &Principal, agent_id: AgentId) -> Result<(), Failure> {
    let message = "the receiver responded that it is gone (410); set the webhook again";
    match get(app, caller, agent_id).await?.disabled_at {
        None => Ok(()),
        Some(_) => Err(Failure::rule(Rule::WebhookDisabled, message)),
    }
}

/// A delivery to an agent's webhook, for the transaction that stores the change. Notify `Trust::deliveries` after its commit.
pub(crate) fn new_delivery(
    app: &App,
    agent_id: AgentId,
    event_type: &'static str,
    payload: &impl serde::Serialize,
) -> NewDelivery {
    let created_at = app.now();
    let body = body(event_type, payload, created_at);
    let delivery_id = DeliveryId::new(app.ids.body());
    NewDelivery { delivery_id, agent_id, event_type, body, created_at, run_id: None }
}

pub(crate) async fn list_deliveries(
    app: &App,
    caller: &Principal,
    agent_id: AgentId,
    request: ListDeliveries,
) -> Result<DeliveryPage, Failure> {
    owned(app, caller, agent_id).await?;
    let ListDeliveries { status, limit, cursor } = request;
    let page = PageRequest::new("deliveries", &(agent_id, status), limit, cursor.as_deref())?;
    let (after, rows_max) = (page.after.as_ref(), page.rows_max());
    let found = store::trust::webhooks::list_deliveries(&app.db, agent_id, status, after, rows_max).await?;
    let found = without_unreadable(app, caller, found).await?;
    let page = page.page(found, |last| Cursor::after(last.created_at, last.delivery_id));
    Ok(DeliveryPage { deliveries: page.items, next_cursor: page.next_cursor })
}

pub(crate) async fn get_delivery(
    app: &App,
    caller: &Principal,
    agent_id: AgentId,
    delivery_id: DeliveryId,
) -> Result<Delivery, Failure> {
    owned(app, caller, agent_id).await?;
    let found = store::trust::webhooks::get_delivery(&app.db, agent_id, delivery_id).await?;
    let found = without_unreadable(app, caller, found.into_iter().collect()).await?.pop();
    found.ok_or_else(|| Failure::not_found("delivery"))
}

/// Removes the payloads of deliveries about runs that the owner may no longer read.
async fn without_unreadable(app: &App, owner: &Principal, found: Vec<Delivery>) -> Result<Vec<Delivery>, Failure> {
    let runs: Vec<_> = found.iter().filter_map(|delivery| delivery.run_id).collect();
    let readable = lookup::readable(app, owner, &runs).await?;
    let clear = |delivery: Delivery| match delivery.run_id {
        Some(run_id) if !readable.contains(&run_id) => {
            Delivery { body: body(&delivery.event_type, &(), delivery.created_at), ..delivery }
        }
        _ => delivery,
    };
    Ok(found.into_iter().map(clear).collect())
}

/// Whether a delivery may be sent: the agent's owner can still read the run that it describes.
pub(crate) async fn may_send(app: &App, delivery: &Delivery) -> Result<bool, Failure> {
    let Some(run_id) = delivery.run_id else { return Ok(true) };
    let Some(agent) = store::trust::agents::get(&app.db, delivery.agent_id).await? else { return Ok(false) };
    let Some(owner) = lookup::owner(app, &agent.owner_id).await? else { return Ok(false) };
    Ok(lookup::readable(app, &owner, &[run_id]).await?.contains(&run_id))
}

/// Makes a dead delivery pending again, under the same id.
pub(crate) async fn replay(
    app: &App,
    caller: &Principal,
    agent_id: AgentId,
    delivery_id: DeliveryId,
) -> Result<Delivery, Failure> {
    let dead = get_delivery(app, caller, agent_id, delivery_id).await?;
    check_enabled(app, caller, agent_id).await?;
    if !may_send(app, &dead).await? {
        return Err(Failure::new(FailureKind::NotFound, UNREADABLE));
    }
    let replayed = store::trust::webhooks::update_replayed(&app.db, &dead, app.now()).await;
    let replayed = replayed?.ok_or_else(|| {
        if dead.status == DeliveryStatus::Dead {
            let waiting = Subject::of(dead.run_id).waiting_max();
            let message = format!("{waiting} deliveries wait already; replay it when some have gone");
            return Failure::rule(Rule::DeliveriesWaiting, message);
        }
        let message = format!("only a dead delivery can be replayed; this one is {}", dead.status.as_str());
        Failure::rule(Rule::DeliveryNotDead, message)
    })?;
    Trust::of(app).deliveries.notify_one();
    Ok(replayed)
}

/// Deletes deliveries that ended long ago.
pub(crate) async fn delete_ended(app: &App) -> Result<(), Failure> {
    let before = app.now().checked_sub(ENDED_RETENTION).map_err(Failure::internal)?;
    while store::trust::webhooks::delete_ended(&app.db, before, DELETED_AT_ONCE).await? == DELETED_AT_ONCE as usize {}
    for subject in Subject::ALL {
        drop_overfull(app, subject).await?;
    }
    Ok(())
}

/// Deletes deliveries that describe erased runs, and the cursors of runs that are no longer reported.
pub(crate) async fn delete_erased(app: &App) -> Result<(), Failure> {
    let all = DELETED_AT_ONCE as usize;
    while store::trust::run_webhooks::delete_erased(&app.db, DELETED_AT_ONCE).await? == all {}
    while store::trust::run_webhooks::delete_unused(&app.db, DELETED_AT_ONCE).await? == all {}
    Ok(())
}

/// Any person can begin and end a relation as often as they like, and each time a delivery is created. The same applies to
/// runs. When an agent has too many of either, the oldest are deleted. Deliveries about re-consent follow from the owner's own
/// changes, and are not.
async fn drop_overfull(app: &App, subject: Subject) -> Result<(), Failure> {
    loop {
        let found =
            store::trust::webhooks::list_overfull(&app.db, subject, ENDED_DELIVERIES_MAX, OVERFULL_AT_ONCE).await;
        let overfull = found?;
        if overfull.is_empty() {
            return Ok(());
        }
        let mut dropped_any = false;
        for of in overfull {
            let dropped =
                store::trust::webhooks::delete_oldest(&app.db, subject, of, ENDED_DELIVERIES_MAX, DELETED_AT_ONCE)
                    .await;
            let dropped = dropped?;
            dropped_any |= dropped > 0;
            Trust::of(app).counters.deliveries_dropped(dropped);
        }
        if !dropped_any {
            // Holds cover all that is left.
            return Ok(());
        }
    }
}

/// The secret in the clear. `None` if it cannot be opened with this server's key.
pub(crate) fn open_secret(app: &App, webhook: &Sealed) -> Option<String> {
    let opened = app.secrets.open_sealed(&sealed_name(webhook.webhook.agent_id), &unhex(&webhook.secret)?)?;
    std::str::from_utf8(&opened).ok().map(str::to_owned)
}

/// The name that a webhook's secret is sealed under. Names of profiles contain no colon.
fn sealed_name(agent_id: AgentId) -> String {
    format!("webhook:{agent_id}")
}

fn no_webhook() -> Failure {
    Failure::rule(Rule::WebhookUnknown, "the agent has no webhook")
}

/// Ended deliveries are removed after their limit, even before [`delete_ended`] would delete them.
pub(crate) fn retention() -> RetentionStep {
    RetentionStep::new(
        RetentionNoun::WebhookDeliveries,
        Ownership::TenantOrNone,
        |app, page| async move {
            store::trust::webhooks::list_removable(&app.db, &page.scope, page.after.as_deref(), page.limit).await
        },
        |app, scope, keys| async move { Ok(store::trust::webhooks::remove(&app.db, &scope, &keys).await?) },
    )
    .tables(&["webhook_deliveries"])
    .bulk()
}
