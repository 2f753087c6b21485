//! The mesh's gateway: JSON-RPC over a WebSocket. It translates between frames and services, and holds no policy but that of
//! its connections: the server speaks first, who has not introduced itself in time goes, and nobody is waited for.

pub mod connections;
mod conversation;
pub mod delivery;
mod dispatch;

use std::{net::IpAddr, time::Duration};

use axum::extract::ws::WebSocket;
use ostler_protocol::{
    Failure, FailureKind,
    mesh::{auth::HANDSHAKE_MS_MAX, calls::FRAME_BYTES_MAX},
};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use crate::state::Mesh;
use conversation::Conversation;
pub use conversation::notification;
use ostler_server::{
    app::App,
    net::{
        sockets::{Patience, converse, queue},
        waiting::Ticket,
    },
};

/// What is read of a frame. One that is longer than any call may be is read to its end if it is not much longer, so that its
/// sender receives the close code instead of a reset.
pub const HEARD_BYTES_MAX: usize = 2 * FRAME_BYTES_MAX;

/// What a connection holds of this server's: a place among all, and until it has introduced itself one among the fresh.
pub struct Seats {
    socket: OwnedSemaphorePermit,
    fresh: Ticket,
}

impl Seats {
    pub fn take(app: &App, peer: IpAddr) -> Result<Self, Failure> {
        let message = "too many connections to the gateway are open";
        let refused = |_| Failure::rule(FailureKind::Overloaded, "sockets", message);
        let socket = Mesh::of(app).sockets.clone().try_acquire_owned().map_err(refused)?;
        Ok(Self { socket, fresh: app.fresh_sockets.enter(peer) })
    }
}

/// Speaks with one peer until somebody ends it.
pub async fn serve(app: App, socket: WebSocket, peer: IpAddr, seats: Seats) {
    let Seats { socket: _seat, fresh } = seats;
    let limits = &app.config.limits;
    let patience = Patience {
        ping: Duration::from_millis(limits.socket_ping_ms),
        dead: Duration::from_millis(limits.socket_dead_ms),
        probe: Duration::from_millis(limits.socket_probe_ms),
        write: Duration::from_millis(limits.slow_reader_ms),
    };
    let (outbox, inbox) = queue();
    let until = Instant::now() + Duration::from_millis(HANDSHAKE_MS_MAX as u64);
    let conversation = Conversation::new(app.clone(), peer, outbox, (until, fresh));
    let close = converse(socket, inbox, conversation, patience).await;
    app.metrics.socket_closed(close);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of what a function's future holds for as long as it runs.
    fn held<A, B, C, D, F>(_: impl FnOnce(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_connection_holds_little_while_it_is_silent() {
        let bytes = held(serve);
        assert!(bytes <= 4 * 1024, "{bytes} bytes");
    }
}
