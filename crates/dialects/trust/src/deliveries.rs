//! Sends deliveries to agents' webhooks. Any server of the store claims deliveries that are due, one server at a time for each.
//! A delivery of a server that died is claimed again when the claim expires, under the same delivery id.

pub(crate) mod sender;

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::SignedDuration;
use ostler_crypto::mac::MacKey;
use ostler_protocol::{
    Failure, Timestamp,
    json::hex,
    trust::webhooks::{
        self, AGENT_HEADER, DELIVERY_HEADER, Delivery, DeliveryOutcome, DeliveryStatus, NextAttempt, SIGNATURE_HEADER,
        TIMESTAMP_HEADER, Webhook, next_attempt, retry_after_s,
    },
};
use ostler_store::{
    self as store,
    trust::webhooks::{Ended, Sealed},
};
use tokio::{sync::Semaphore, task::JoinSet, time::Instant};

use crate::{
    listeners::Listener,
    service::{self, webhooks::UNREADABLE},
    state::Trust,
};
use ostler_server::{app::App, clock::fill};
use sender::{HookResponse, Sender};

/// Concurrent attempts of one server.
const ATTEMPTS_MAX: usize = 64;
/// How much longer than the timeout of an attempt a claim lasts.
const GRACE: SignedDuration = SignedDuration::from_secs(30);
/// How long a call to a store that fails is retried, before and after the request. It must end within the claim.
const STORE_PATIENCE: Duration = Duration::from_secs(10);
const STORE_PAUSE: Duration = Duration::from_millis(200);

pub(crate) async fn run(app: App) {
    let rules = Trust::of(&app).webhooks.rules(&app.config.outgoing);
    let sender = match rules {
        Ok(rules) => Arc::new(Sender::new(rules, Trust::of(&app).webhooks.timeout())),
        Err(failure) => {
            tracing::error!(%failure, cause = failure.cause.as_deref(), "webhooks are off: the rules for their addresses cannot be read");
            return;
        }
    };
    let owner: Arc<str> = app.ids.body().simple().to_string().into();
    let (permits, mut attempts) = (Arc::new(Semaphore::new(ATTEMPTS_MAX)), JoinSet::new());
    let mut ticks = tokio::time::interval(Duration::from_millis(Trust::of(&app).webhooks.poll_ms.max(1)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = Trust::of(&app).deliveries.notified() => {}
            Some(_) = attempts.join_next() => {}
            () = app.drained() => break,
        }
        let claimed = match claim(&app, &owner, permits.available_permits()).await {
            Ok(claimed) => claimed,
            Err(failure) => {
                tracing::warn!(%failure, cause = failure.cause.as_deref(), "webhooks' deliveries cannot be read; trying again");
                continue;
            }
        };
        for delivery in claimed {
            let Ok(permit) = permits.clone().try_acquire_owned() else { break };
            let (app, sender, owner) = (app.clone(), sender.clone(), owner.clone());
            attempts.spawn(async move {
                attempt(&app, &sender, &owner, delivery).await;
                drop(permit);
            });
        }
    }
    // Requests that are under way end, or time out.
    while attempts.join_next().await.is_some() {}
}

async fn claim(app: &App, owner: &str, free: usize) -> Result<Vec<Delivery>, Failure> {
    let now = app.now();
    if free == 0 || !store::trust::webhooks::any_due(&app.db, now).await? {
        return Ok(vec![]);
    }
    let time = SignedDuration::try_from(Trust::of(app).webhooks.timeout()).unwrap_or(GRACE) + GRACE;
    let until = now.checked_add(time).map_err(Failure::internal)?;
    let claimed = store::trust::webhooks::claim(&app.db, owner, until, now, free as u32).await;
    Ok(claimed?)
}

async fn attempt(app: &App, sender: &Sender, owner: &str, delivery: Delivery) {
    let read = || async {
        let webhook = store::trust::webhooks::get(&app.db, delivery.agent_id).await?;
        Ok::<_, Failure>((webhook, service::webhooks::may_send(app, &delivery).await?))
    };
    let (found, may_send) = match with_retries(app, read).await {
        Ok(found) => found,
        Err(error) => {
            // No request was sent, so the receiver did not fail. The delivery is due again when this claim expires.
            return tracing::warn!(%error, delivery_id = %delivery.delivery_id, "a webhook could not be read");
        }
    };
    let webhook = match found.filter(|sealed| sealed.webhook.disabled_at.is_none()) {
        _ if !may_send => Err(UNREADABLE.to_owned()),
        webhook => webhook.ok_or_else(|| "there is no webhook".to_owned()),
    };
    let response = match &webhook {
        Ok(webhook) => post(app, sender, webhook, &delivery).await,
        Err(why) => Err(why.clone()),
    };
    let (outcome, last_error) = match response {
        Ok(response) => {
            let retry_after_s = response.retry_after.and_then(|text| retry_after_s(&text, app.wall()));
            let error = (!(200..300).contains(&response.status)).then(|| format!("answered {}", response.status));
            (DeliveryOutcome::Answered { status: response.status, retry_after_s }, error)
        }
        Err(why) => (DeliveryOutcome::Unanswered, Some(why)),
    };
    let mut random = [0; 2];
    fill(&mut random);
    let next = match may_send {
        true => next_attempt(outcome, delivery.attempts, u16::from_le_bytes(random)),
        false => NextAttempt::Dead,
    };
    Trust::of(app).counters.webhook_attempt(next);
    let attempt = Attempt { owner, delivery: &delivery, webhook: webhook.ok(), outcome, last_error };
    if let Err(error) = with_retries(app, || store_outcome(app, attempt.clone(), next)).await {
        // The delivery is due again when this claim expires, and is sent once more under the same id.
        tracing::warn!(%error, delivery_id = %delivery.delivery_id, "the outcome of a delivery could not be stored");
    }
}

/// Retries a call to the store until it succeeds, at most for [`STORE_PATIENCE`].
async fn with_retries<T, E, F>(app: &App, mut call: impl FnMut() -> F) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let until = Instant::now() + STORE_PATIENCE;
    loop {
        let result = call().await;
        if result.is_ok() || Instant::now() + STORE_PAUSE > until || app.is_draining() {
            return result;
        }
        tokio::time::sleep(STORE_PAUSE).await;
    }
}

async fn post(app: &App, sender: &Sender, webhook: &Sealed, delivery: &Delivery) -> Result<HookResponse, String> {
    let headers = signed_headers(app, webhook, delivery)
        .ok_or("the webhook's secret cannot be decrypted; set the webhook again")?;
    sender.post(&webhook.webhook.url, headers, delivery.body.as_str().to_owned()).await
}

/// The headers of this attempt: the delivery's id stays, the time is new.
fn signed_headers(app: &App, webhook: &Sealed, delivery: &Delivery) -> Option<HeaderMap> {
    let key = service::webhooks::open_secret(app, webhook)?;
    Some(headers(&MacKey::from_base64(&key)?, delivery, app.wall()))
}

#[expect(clippy::expect_used, reason = "letters, digits and dashes")]
fn headers(key: &MacKey, delivery: &Delivery, now: Timestamp) -> HeaderMap {
    let (timestamp, id) = (now.as_second().to_string(), delivery.delivery_id.to_string());
    let tag = key.sign(&webhooks::signed(&timestamp, &id, delivery.body.as_str().as_bytes()));
    let named = [
        (SIGNATURE_HEADER, hex(&tag)),
        (TIMESTAMP_HEADER, timestamp),
        (DELIVERY_HEADER, id),
        (AGENT_HEADER, delivery.agent_id.to_string()),
    ];
    let value = |text: String| HeaderValue::try_from(text).expect("letters, digits and dashes");
    named.into_iter().map(|(name, text)| (HeaderName::from_static(name), value(text))).collect()
}

/// An attempt that has ended.
#[derive(Clone)]
struct Attempt<'a> {
    owner: &'a str,
    delivery: &'a Delivery,
    /// The webhook that the request was sent to.
    webhook: Option<Sealed>,
    outcome: DeliveryOutcome,
    last_error: Option<String>,
}

async fn store_outcome(app: &App, attempt: Attempt<'_>, next: NextAttempt) -> Result<(), store::StoreError> {
    let Attempt { owner, delivery: Delivery { delivery_id, agent_id, .. }, webhook, outcome, last_error } = attempt;
    let now = app.now();
    let next = match (next, &webhook) {
        // The response of a receiver that was replaced concurrently does not disable the new one.
        (NextAttempt::Disable, Some(webhook)) if !is_current(app, webhook).await? => NextAttempt::Again { after_ms: 0 },
        (next, _) => next,
    };
    let (status, due_at) = match next {
        NextAttempt::Delivered => (DeliveryStatus::Delivered, None),
        NextAttempt::Again { after_ms } => {
            (DeliveryStatus::Pending, now.checked_add(SignedDuration::from_millis(after_ms)).ok())
        }
        NextAttempt::Dead | NextAttempt::Disable => (DeliveryStatus::Dead, None),
    };
    let last_status = match outcome {
        DeliveryOutcome::Answered { status, .. } => Some(status),
        DeliveryOutcome::Unanswered => None,
    };
    let ended = Ended { delivery_id: *delivery_id, owner, status, due_at, last_status, last_error };
    store::trust::webhooks::update_ended(&app.db, ended, now).await?;
    if let (NextAttempt::Disable, Some(sealed)) = (next, webhook)
        && store::trust::webhooks::update_disabled(&app.db, &sealed, now).await?
    {
        tracing::info!(%agent_id, "a webhook was disabled: its receiver is gone");
        if let Some(agent) = store::trust::agents::get(&app.db, *agent_id).await? {
            let owner = Listener::Human(agent.owner_id.into());
            let webhook = Webhook { disabled_at: Some(now), ..sealed.webhook };
            let notification = service::live::webhook_disabled(&webhook);
            notification.iter().for_each(|notification| service::frames::notify(app, &owner, notification));
        }
    }
    Ok(())
}

/// Whether this is still the agent's webhook. Each webhook has its own secret.
async fn is_current(app: &App, sealed: &Sealed) -> Result<bool, store::StoreError> {
    let current = store::trust::webhooks::get(&app.db, sealed.webhook.agent_id).await?;
    Ok(current.is_some_and(|current| current.secret == sealed.secret))
}
