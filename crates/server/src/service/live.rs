//! What waits for whoever connects, and how they are told. What waits is decided from the store, on every connect and on every
//! wake-up, so that a frame that was lost on its way is told again.

use ostler_protocol::{Failure, webhooks::Webhook};
use ostler_store as store;
use serde_json::json;

use crate::{
    app::{App, store_failure},
    live::{Listener, connection::Frame},
};

/// Things of one kind that one listener is told of at once.
const PENDING_MAX: u32 = 100;

/// What this listener has not answered yet.
pub async fn pending(app: &App, listener: &Listener) -> Result<Vec<Frame>, Failure> {
    match listener {
        Listener::Human(user_id) => {
            let disabled =
                store::webhooks::list_disabled(&app.db, user_id, PENDING_MAX).await.map_err(store_failure)?;
            Ok(disabled.iter().map(webhook_disabled).collect())
        }
        // An agent has nothing to answer: what concerns it is told as it happens, and by webhook until it is taken.
        Listener::Agent(_) => Ok(vec![]),
    }
}

/// Tells a listener something that is pending for them by now: here at once; on other servers, they look again.
pub fn tell(app: &App, listener: &Listener, frame: &Frame) {
    app.live.tell(listener, frame);
    if let Some(told) = &app.told {
        told.put_listener(listener);
    }
}

/// A webhook's receiver is gone; its owner must set it anew.
pub fn webhook_disabled(webhook: &Webhook) -> Frame {
    let payload = json!({"agent_id": webhook.agent_id, "url": webhook.url, "disabled_at": webhook.disabled_at});
    json!({"type": "webhook.disabled", "payload": payload}).to_string().into()
}
