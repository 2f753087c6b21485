//! What waits for whoever connects, and how they are told. What waits is decided from the store, on every connect and on every
//! wake-up, so that a frame that was lost on its way is told again.

use ostler_protocol::{Failure, ids::AgentId, relations::REAUTH_REQUIRED, webhooks::Webhook};
use ostler_store as store;
use serde::Serialize;
use serde_json::json;

use super::relations;
use crate::{
    app::{App, store_failure},
    live::{Listener, connection::Frame},
};

/// Webhooks that one owner is told of at once.
const WEBHOOKS_MAX: u32 = 100;

/// What this listener has not answered yet.
pub async fn pending(app: &App, listener: &Listener) -> Result<Vec<Frame>, Failure> {
    match listener {
        Listener::Human(user_id) => {
            let asked = relations::pending(app, user_id).await?;
            let disabled =
                store::webhooks::list_disabled(&app.db, user_id, WEBHOOKS_MAX).await.map_err(store_failure)?;
            Ok(asked.iter().map(frame).chain(disabled.iter().map(webhook_disabled)).collect())
        }
        Listener::Agent(agent_id) => {
            let announced = relations::announced(app, *agent_id).await?;
            Ok(announced.iter().map(|told| frame(&Typed { event_type: REAUTH_REQUIRED, told })).collect())
        }
    }
}

/// Tells everybody who has something to answer to now that this agent has changed, and the agent itself. How many people
/// there are, wherever they are connected.
pub async fn ask_again(app: &App, agent_id: AgentId) -> Result<usize, Failure> {
    wake(app, &Listener::Agent(agent_id));
    let mut asked = 0;
    relations::each_pending(app, agent_id, |user_id, event| {
        tell(app, &Listener::Human(user_id.into()), &frame(&event));
        asked += 1;
    })
    .await?;
    Ok(asked)
}

/// Tells a listener something that is pending for them by now: here at once; on other servers, they look again.
pub fn tell(app: &App, listener: &Listener, frame: &Frame) {
    app.live.tell(listener, frame);
    if let Some(told) = &app.told {
        told.put_listener(listener);
    }
}

/// Has a listener's connections look at what is pending, here and on other servers.
fn wake(app: &App, listener: &Listener) {
    app.live.reread(listener);
    if let Some(told) = &app.told {
        told.put_listener(listener);
    }
}

/// A webhook's receiver is gone; its owner must set it anew.
pub fn webhook_disabled(webhook: &Webhook) -> Frame {
    let payload = json!({"agent_id": webhook.agent_id, "url": webhook.url, "disabled_at": webhook.disabled_at});
    frame(&json!({"type": "webhook.disabled", "payload": payload}))
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
