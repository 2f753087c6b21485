//! What waits for whoever connects, and how they are told. What waits is decided from the store, on every connect, on every
//! wake-up and from time to time, so that a frame that was lost on its way is told again.

use std::{ops::ControlFlow, time::Duration};

use ostler_protocol::{
    Failure,
    ids::AgentId,
    trust::{
        relations::{REAUTH_REQUIRED, ReauthRequired},
        webhooks::Webhook,
    },
};
use ostler_store as store;
use serde::Serialize;
use serde_json::json;

use super::relations;
use crate::{
    listeners::{Listener, News, Subject},
    state::Trust,
    topics::LISTENER,
};
use ostler_server::{app::App, net::sockets::Frame};

/// Webhooks that one owner is told of at once.
const WEBHOOKS_MAX: u32 = 100;
/// A store that did not answer is asked again after this long, then after twice as long each time.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// What this listener has not answered yet.
pub async fn pending(app: &App, listener: &Listener) -> Result<Vec<News>, Failure> {
    match listener {
        Listener::Human(user_id) => {
            let asked = relations::pending(app, user_id).await?;
            let disabled = store::trust::webhooks::list_disabled(&app.db, user_id, WEBHOOKS_MAX).await?;
            Ok(asked.iter().map(reauth_required).chain(disabled.iter().filter_map(webhook_disabled)).collect())
        }
        Listener::Agent(agent_id) => {
            let announced = relations::announced(app, *agent_id).await?;
            let news = announced.iter().map(|told| News {
                subject: Subject::Manifest(*agent_id),
                number: told.new_manifest_version,
                frame: frame(&Typed { event_type: REAUTH_REQUIRED, told }),
            });
            Ok(news.collect())
        }
    }
}

/// Tells everybody who has something to answer to now that this agent has changed, and the agent itself, wherever they are
/// connected. One task does it, however often the agent changes meanwhile, and goes on until the store has told it all.
pub fn ask_again(app: &App, agent_id: AgentId) {
    if !Trust::of(app).listeners.begin_asking(agent_id) {
        return;
    }
    let app = app.clone();
    tokio::spawn(async move {
        let mut pause = RETRY_MIN;
        while Trust::of(&app).listeners.take_asking(agent_id) {
            match ask_everybody(&app, agent_id).await {
                Ok(asked) => {
                    tracing::info!(%agent_id, asked, "this many people have to answer to a manifest");
                    pause = RETRY_MIN;
                }
                Err(failure) => {
                    let cause = failure.cause.as_deref();
                    tracing::warn!(%agent_id, %failure, cause, "people could not be told; trying again");
                    Trust::of(&app).counters.reauth_retried();
                    Trust::of(&app).listeners.begin_asking(agent_id);
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

/// How many there were. Ends early when the agent changes again.
async fn ask_everybody(app: &App, agent_id: AgentId) -> Result<usize, Failure> {
    wake(app, &Listener::Agent(agent_id));
    let mut asked = 0;
    relations::each_pending(app, agent_id, |user_id, event| {
        tell(app, &Listener::Human(user_id.into()), &reauth_required(&event));
        asked += 1;
        if Trust::of(app).listeners.must_ask_anew(agent_id) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })
    .await?;
    Ok(asked)
}

/// Tells a listener something that is pending for them by now: here at once; on other servers, they look again.
pub fn tell(app: &App, listener: &Listener, news: &News) {
    Trust::of(app).listeners.tell(listener, news);
    app.wake_others(&LISTENER, listener);
}

/// Says something to an agent's connections, here and on other servers. It waits for nobody: what must not be missed is told to
/// the agent's webhook as well.
pub fn say(app: &App, agent_id: AgentId, frame: &Frame) {
    let listener = Listener::Agent(agent_id);
    Trust::of(app).listeners.say(&listener, frame);
    app.send_to_others(&LISTENER, &listener, frame);
}

/// Has a listener's connections look at what is pending, here and on other servers.
fn wake(app: &App, listener: &Listener) {
    Trust::of(app).listeners.reread(listener);
    app.wake_others(&LISTENER, listener);
}

fn reauth_required(event: &ReauthRequired) -> News {
    News { subject: Subject::Manifest(event.agent_id), number: event.new_manifest_version, frame: frame(event) }
}

/// A webhook's receiver is gone; its owner must set it anew. `None`: it is not.
pub fn webhook_disabled(webhook: &Webhook) -> Option<News> {
    let payload = json!({"agent_id": webhook.agent_id, "url": webhook.url, "disabled_at": webhook.disabled_at});
    Some(News {
        subject: Subject::Webhook(webhook.agent_id),
        number: webhook.disabled_at?.as_microsecond(),
        frame: frame(&json!({"type": "webhook.disabled", "payload": payload})),
    })
}

#[derive(Serialize)]
struct Typed<'a, T> {
    #[serde(rename = "type")]
    event_type: &'static str,
    #[serde(flatten)]
    told: &'a T,
}

fn frame(told: &impl Serialize) -> Frame {
    serde_json::to_string(told).expect("our own types serialise").into()
}
