//! Pending notifications of people and agents, and how they are sent. They are read from the store on every connect, on every
//! wake-up and from time to time, so that a lost frame is sent again.

use std::{ops::ControlFlow, time::Duration};

use ostler_protocol::{
    Failure,
    ids::AgentId,
    json::text_of,
    trust::{
        relations::{REAUTH_REQUIRED, ReauthRequired},
        webhooks::Webhook,
    },
};
use ostler_server::{
    app::App,
    dialect::{Dialects, PersonNotice},
    net::sockets::Frame,
};
use ostler_store as store;
use serde::Serialize;
use serde_json::json;

use super::relations;
use crate::{
    listeners::{Listener, Notification, Subject},
    service::frames::{notify, wake},
    state::Trust,
};

/// Disabled webhooks that one owner is notified of at once.
const WEBHOOKS_MAX: u32 = 100;
/// The pause after the store has failed; it doubles each time.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The notifications that this listener has not answered yet.
pub(crate) async fn pending(app: &App, listener: &Listener) -> Result<Vec<Notification>, Failure> {
    match listener {
        Listener::Human(user_id) => {
            let reauths = relations::pending(app, user_id).await?;
            let disabled = store::trust::webhooks::list_disabled(&app.db, user_id, WEBHOOKS_MAX).await?;
            let notices = Dialects::pending_notices(app, user_id).await?;
            let own = reauths.iter().map(reauth_required).chain(disabled.iter().filter_map(webhook_disabled));
            Ok(own.chain(notices.iter().map(from_notice)).collect())
        }
        Listener::Agent(agent_id) => {
            let announced = relations::announced(app, *agent_id).await?;
            let notifications = announced.iter().map(|event| Notification {
                subject: Subject::Manifest(*agent_id),
                number: event.new_manifest_version,
                frame: frame(&TypedEvent { event_type: REAUTH_REQUIRED, event }),
            });
            Ok(notifications.collect())
        }
    }
}

/// Notifies the people who have to consent again because this agent has changed, and the agent itself, on whichever server they
/// are connected. A single task does it, however often the agent changes in the meantime, and retries until the store has
/// returned all of them.
pub(crate) fn notify_reauth(app: &App, agent_id: AgentId) {
    if !Trust::of(app).listeners.begin_notifying(agent_id) {
        return;
    }
    let app = app.clone();
    tokio::spawn(async move {
        let mut pause = RETRY_MIN;
        while Trust::of(&app).listeners.take_change(agent_id) {
            match notify_all_pending(&app, agent_id).await {
                Ok(people) => {
                    tracing::info!(%agent_id, people, "people have to consent to a manifest again");
                    pause = RETRY_MIN;
                }
                Err(failure) => {
                    let cause = failure.cause.as_deref();
                    tracing::warn!(%agent_id, %failure, cause, "people could not be notified; trying again");
                    Trust::of(&app).counters.reauth_retried();
                    Trust::of(&app).listeners.begin_notifying(agent_id);
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = app.drained() => return,
                    }
                    pause = (2 * pause).min(RETRY_MAX);
                }
            }
        }
    });
}

/// Returns how many people were notified. Ends early when the agent changes again.
async fn notify_all_pending(app: &App, agent_id: AgentId) -> Result<usize, Failure> {
    wake(app, &Listener::Agent(agent_id));
    let mut people = 0;
    relations::each_pending(app, agent_id, |user_id, event| {
        notify(app, &Listener::Human(user_id.into()), &reauth_required(&event));
        people += 1;
        if Trust::of(app).listeners.has_changed_again(agent_id) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })
    .await?;
    Ok(people)
}

/// Makes a user's connections read what is pending, on this server and on others.
pub(crate) fn notify_person(app: &App, user_id: &str) {
    wake(app, &Listener::Human(user_id.into()));
}

fn from_notice(notice: &PersonNotice) -> Notification {
    let subject = Subject::Other(notice.subject.as_str().into());
    Notification { subject, number: notice.number, frame: frame(&notice.frame) }
}

fn reauth_required(event: &ReauthRequired) -> Notification {
    Notification { subject: Subject::Manifest(event.agent_id), number: event.new_manifest_version, frame: frame(event) }
}

/// Notifies the owner that the webhook's receiver is gone and must be set again. `None` if the webhook is not disabled.
pub(crate) fn webhook_disabled(webhook: &Webhook) -> Option<Notification> {
    let payload = json!({"agent_id": webhook.agent_id, "url": webhook.url, "disabled_at": webhook.disabled_at});
    Some(Notification {
        subject: Subject::Webhook(webhook.agent_id),
        number: webhook.disabled_at?.as_microsecond(),
        frame: frame(&json!({"type": "webhook.disabled", "payload": payload})),
    })
}

#[derive(Serialize)]
struct TypedEvent<'a, T> {
    #[serde(rename = "type")]
    event_type: &'static str,
    #[serde(flatten)]
    event: &'a T,
}

fn frame(event: &impl Serialize) -> Frame {
    text_of(event).into()
}
