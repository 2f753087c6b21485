//! What waits for whoever connects, and how they are told. What waits is decided from the store, on every connect and on every
//! wake-up, so that a frame that was lost on its way is told again.

use ostler_protocol::Failure;

use crate::{
    app::App,
    live::{Listener, connection::Frame},
};

/// What this listener has not answered yet.
pub async fn pending(_app: &App, _listener: &Listener) -> Result<Vec<Frame>, Failure> {
    Ok(vec![])
}

/// Tells a listener something that is pending for them by now: here at once; on other servers, they look again.
#[expect(dead_code, reason = "nothing is pending yet")]
pub fn tell(app: &App, listener: &Listener, frame: &Frame) {
    app.live.tell(listener, frame);
    if let Some(told) = &app.told {
        told.put_listener(listener);
    }
}
