//! Notifies clients that the tools have changed: those of an MCP server, or those of the front end of another turn. A client that keeps
//! the list of its first turn would otherwise use it until it is restarted.

use std::{convert::Infallible, sync::Arc};

use axum::response::{
    IntoResponse, Response,
    sse::{Event, KeepAlive, Sse},
};
use futures_util::stream;
use ostler_protocol::{
    RawJson,
    rpc::{RpcFrame, Version},
    sha256::sha256,
};
use serde_json::{Value, json};
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::{Duration, sleep},
};

use super::state::{CurrentTurn, GatewayState, KEEP_ALIVE_MS, described};

const LIST_CHANGED: &str = "notifications/tools/list_changed";

/// The digest of a list of described tools, whatever their order.
pub(super) fn list_digest(tools: &[Value]) -> [u8; 32] {
    let mut texts: Vec<_> = tools.iter().map(Value::to_string).collect();
    texts.sort_unstable();
    sha256(texts.join("\n"))
}

/// The list as one client knows it.
struct ListWatch {
    state: Arc<GatewayState>,
    turns: watch::Receiver<u64>,
    closed: watch::Receiver<bool>,
    /// The list that the client was last notified of. `None`: it has the one that was last listed.
    client_list: Option<[u8; 32]>,
    _permit: OwnedSemaphorePermit,
}

impl ListWatch {
    /// Waits until the tools differ from those that the client knows. False when the gateway is closed.
    async fn changed(&mut self) -> bool {
        loop {
            // Before the list is read, so that a turn that begins in the meantime is not missed.
            self.turns.mark_unchanged();
            if self.is_changed().await {
                return true;
            }
            let has_turn = self.state.current_turn().is_some();
            tokio::select! {
                () = sleep(self.state.poll), if has_turn => {}
                _ = self.turns.changed() => {}
                () = until_closed(&mut self.closed) => return false,
            }
        }
    }

    async fn is_changed(&mut self) -> bool {
        let Some(CurrentTurn { tools, mut end }) = self.state.current_turn() else { return false };
        // A client that has listed nothing knows no list that could be old.
        let Some(previous) = self.client_list.or_else(|| self.state.listed_digest()) else { return false };
        let listed = tokio::select! {
            listed = tools.list() => listed,
            // The sender is dropped with the turn.
            _ = end.changed() => return false,
        };
        // A list that cannot be read is read again later.
        let Ok(listed) = listed else { return false };
        let current = list_digest(&listed.tools.iter().map(described).collect::<Vec<_>>());
        self.client_list = Some(current);
        current != previous
    }
}

async fn until_closed(closed: &mut watch::Receiver<bool>) {
    // An error: the gateway is gone.
    let _ = closed.wait_for(|closed| *closed).await;
}

/// A stream of notifications, for as long as the client listens.
pub(super) fn stream_changes(state: Arc<GatewayState>, permit: OwnedSemaphorePermit) -> Response {
    let (turns, closed) = (state.turns.subscribe(), state.closed.subscribe());
    let list = ListWatch { state, turns, closed, client_list: None, _permit: permit };
    let notifications = stream::unfold(list, |mut list| async move {
        if !list.changed().await {
            return None;
        }
        let frame = RpcFrame::Notification { method: LIST_CHANGED.into(), params: RawJson::of(&json!({})) };
        let event = Event::default().event("message").data(frame.write(Version::Two));
        Some((Ok::<_, Infallible>(event), list))
    });
    let keep_alive = KeepAlive::new().interval(Duration::from_millis(KEEP_ALIVE_MS));
    Sse::new(notifications).keep_alive(keep_alive).into_response()
}
