//! The mesh's gateway: JSON-RPC over a WebSocket. It translates between frames and services, and holds no policy but that of
//! its connections: the server speaks first, who has not introduced itself in time goes, and nobody is waited for.

pub mod connections;
mod conversation;
pub mod delivery;
mod dispatch;

use std::{net::IpAddr, time::Duration};

use axum::extract::ws::WebSocket;
use ostler_protocol::mesh::{auth::HANDSHAKE_MS_MAX, calls::FRAME_BYTES_MAX};
use tokio::time::Instant;

use crate::{
    app::App,
    live::connection::{Patience, converse, queue},
};
use conversation::Conversation;
pub use conversation::notification;

/// A frame that is longer than any call may be still gets an answer; the sender of a much longer one is cut off.
pub const HEARD_BYTES_MAX: usize = 2 * FRAME_BYTES_MAX;

/// Speaks with one peer until somebody ends it.
pub async fn serve(app: App, socket: WebSocket, peer: IpAddr) {
    let limits = &app.config.limits;
    let patience = Patience {
        ping: Duration::from_millis(limits.socket_ping_ms),
        dead: Duration::from_millis(limits.socket_dead_ms),
        write: Duration::from_millis(limits.slow_reader_ms),
    };
    let (outbox, inbox) = queue();
    let until = Instant::now() + Duration::from_millis(HANDSHAKE_MS_MAX as u64);
    let conversation = Conversation::new(app.clone(), peer, outbox, until);
    let close = converse(socket, inbox, conversation, patience).await;
    app.metrics.socket_closed(close);
}
