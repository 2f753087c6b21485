//! What a runner requires of a backend.

use futures_util::future::BoxFuture;

use super::turn::{Turn, TurnResult};
use crate::turn_sink::TurnSink;

/// Something that can work on the turns of a session.
pub trait Backend: Send + Sync {
    /// Works on one turn. When the sink reports a stop, the backend should finish soon. The runner drops the future if
    /// it does not. A program that the backend has started must have ended when the future resolves, or end in
    /// [`Backend::close`]: the runner then releases its lease, and another backend may start.
    fn turn<'a>(&'a mut self, turn: &'a Turn, sink: TurnSink) -> BoxFuture<'a, TurnResult>;

    /// Whether the runner keeps the lease for a while when the run is idle, because starting the backend again is
    /// expensive.
    fn keeps_lease(&self) -> bool;

    /// Whether the backend can continue after a turn without being started again. After a turn whose program could not be
    /// started, or has ended, it cannot: the lease is released at once, so that a failed run does not stay claimed. Not asked
    /// before the first turn.
    fn is_open(&self) -> bool {
        true
    }

    /// Ends what the backend keeps between turns, because the runner gives up its lease. A backend that is dropped
    /// without this call ends too, but not gracefully.
    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// Whether each turn should carry the earlier messages of the session. A backend with a thread of its own has them.
    fn wants_conversation(&self) -> bool {
        false
    }

    /// Whether the backend stores the conversation in a thread of its own. Then each turn carries the earlier messages, too: a
    /// new thread does not have them, and an existing one lacks those that came after its last turn.
    fn keeps_thread(&self) -> bool {
        false
    }

    /// Whether the backend accepts images. If not, it receives a note that the message had some.
    fn sees_images(&self) -> bool {
        false
    }
}
