//! The mesh's gateway: JSON-RPC over a WebSocket. It translates between frames and services, and has no policy except that of
//! its connections: the server sends first, a peer without `auth.connect` is disconnected at its deadline, and the server never
//! waits for a slow peer.

pub(crate) mod connections;
mod conversation;
pub(crate) mod delivery;
mod dispatch;
mod frames;

use std::{net::IpAddr, time::Duration};

use axum::extract::ws::WebSocket;
use ostler_protocol::{
    Failure, FailureKind, Rule,
    mesh::{auth::HANDSHAKE_MS_MAX, calls::FRAME_BYTES_MAX},
};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use crate::state::Mesh;
use conversation::GatewaySession;
pub(crate) use frames::notification;
use ostler_server::{
    app::App,
    net::{
        sockets::{Patience, converse, queue},
        waiting_connections::Ticket,
    },
};

/// How much is read of a frame. A frame that is longer than any call may be is read to its end if it is not much longer, so
/// that its sender receives the close code instead of a reset.
pub(crate) const FRAME_READ_BYTES_MAX: usize = 2 * FRAME_BYTES_MAX;

/// The permits of a connection: one of all sockets, and one of the fresh sockets until `auth.connect`.
pub(crate) struct GatewayPermits {
    socket: OwnedSemaphorePermit,
    fresh: Ticket,
}

impl GatewayPermits {
    pub(crate) fn acquire(app: &App, peer: IpAddr) -> Result<Self, Failure> {
        let message = "too many connections to the gateway are open";
        let refused = |_| Failure::rule(Rule::Sockets, message).with_kind(FailureKind::Overloaded);
        let socket = Mesh::of(app).sockets.clone().try_acquire_owned().map_err(refused)?;
        Ok(Self { socket, fresh: app.fresh_sockets.enter(peer) })
    }
}

/// Serves one peer until either side closes the connection.
pub(crate) async fn serve(app: App, socket: WebSocket, peer: IpAddr, permits: GatewayPermits) {
    let GatewayPermits { socket: _permit, fresh } = permits;
    let patience = Patience::of(&app.config.limits);
    let (outbox, inbox) = queue();
    let until = Instant::now() + Duration::from_millis(HANDSHAKE_MS_MAX as u64);
    let session = GatewaySession::new(app.clone(), peer, outbox, (until, fresh));
    let close = converse(socket, inbox, session, patience).await;
    app.metrics.socket_closed(close);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of a function's future, which is allocated for as long as it runs.
    fn future_size<A, B, C, D, F>(_: impl FnOnce(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn an_idle_connection_needs_little_memory() {
        let bytes = future_size(serve);
        assert!(bytes <= 4 * 1024, "{bytes} bytes");
    }
}
