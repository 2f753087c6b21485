//! Who is connected by WebSocket to this server, and how to tell them something at once. What is told here is a convenience:
//! whatever must not be lost is in the store, and is told again on every connect until it is answered.

pub mod connection;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard},
};

use ostler_protocol::{Failure, FailureKind, ids::AgentId};
use tokio::sync::Notify;

use crate::config::LimitsSection;
use connection::{Frame, Outbox};

/// Somebody who was refused may try again after this long.
const RETRY_AFTER_MS: u64 = 1_000;

/// The user that the operator's own token speaks for.
pub const LOCAL: &str = "local";

/// Somebody who may be connected, more than once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listener {
    /// A user's id, or `local`.
    Human(Arc<str>),
    Agent(AgentId),
}

impl Listener {
    /// Who goes by this name.
    pub fn named(name: &str) -> Self {
        name.parse().map_or_else(|_| Self::Human(name.into()), Self::Agent)
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Human(user_id) => f.write_str(user_id),
            Self::Agent(agent_id) => agent_id.fmt(f),
        }
    }
}

#[derive(Default)]
pub struct Live {
    seats: Mutex<Seats>,
}

#[derive(Default)]
struct Seats {
    all: usize,
    next: u64,
    by_listener: HashMap<Listener, Vec<Taken>>,
}

struct Taken {
    number: u64,
    outbox: Outbox,
    reread: Arc<Notify>,
}

/// A connection's place, given back when it is dropped.
pub struct Seat {
    live: Arc<Live>,
    listener: Listener,
    number: u64,
    /// Whoever sits here should look again at what is pending for them.
    pub reread: Arc<Notify>,
}

impl Live {
    pub fn count(&self) -> usize {
        self.seats().all
    }

    pub fn join(self: &Arc<Self>, listener: Listener, outbox: Outbox, limits: &LimitsSection) -> Result<Seat, Failure> {
        let mut seats = self.seats();
        if seats.all >= limits.sockets_max {
            return Err(refused("sockets", "too many WebSockets are open", limits.sockets_max));
        }
        let number = seats.next;
        let own = seats.by_listener.entry(listener.clone()).or_default();
        if own.len() >= limits.sockets_per_caller_max {
            let max = limits.sockets_per_caller_max;
            return Err(refused("sockets-per-caller", "this caller has too many WebSockets open", max));
        }
        let reread = Arc::<Notify>::default();
        own.push(Taken { number, outbox, reread: reread.clone() });
        seats.all += 1;
        seats.next += 1;
        Ok(Seat { live: self.clone(), listener, number, reread })
    }

    /// Tells every connection of this listener here. Never waits.
    pub fn tell(&self, listener: &Listener, frame: &Frame) {
        let seats = self.seats();
        let own = seats.by_listener.get(listener).into_iter().flatten();
        own.for_each(|taken| taken.outbox.put(frame.clone()));
    }

    /// Has this listener's connections here look again at what is pending.
    pub fn reread(&self, listener: &Listener) {
        let seats = self.seats();
        let own = seats.by_listener.get(listener).into_iter().flatten();
        own.for_each(|taken| taken.reread.notify_one());
    }

    /// Has everybody here look again: nobody knows what was missed.
    pub fn reread_all(&self) {
        self.seats().by_listener.values().flatten().for_each(|taken| taken.reread.notify_one());
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().expect("never poisoned")
    }
}

fn refused(rule: &'static str, message: &str, max: usize) -> Failure {
    Failure::rule(FailureKind::RateLimited, rule, message).detail("max", max).detail("retryAfterMs", RETRY_AFTER_MS)
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = self.live.seats();
        seats.all -= 1;
        if let Some(own) = seats.by_listener.get_mut(&self.listener) {
            own.retain(|taken| taken.number != self.number);
            if own.is_empty() {
                seats.by_listener.remove(&self.listener);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{connection::queue, *};

    fn human(name: &str) -> Listener {
        Listener::Human(name.into())
    }

    #[test]
    fn a_listener_is_known_by_name() {
        let agent = Listener::Agent("agt_00000000000000000000000000000007".parse().unwrap());
        for listener in [human("local"), human("usr_00000000000000000000000000000007"), agent] {
            assert_eq!(Listener::named(&listener.to_string()), listener);
        }
    }

    #[test]
    fn nobody_takes_all_the_seats_and_who_leaves_gives_theirs_back() {
        let live = Arc::<Live>::default();
        let limits = LimitsSection { sockets_max: 3, sockets_per_caller_max: 2, ..LimitsSection::default() };
        let join = |name: &str| live.join(human(name), queue().0, &limits);
        let ada = [join("ada").unwrap(), join("ada").unwrap()];
        assert_eq!(join("ada").err().unwrap().rule_name(), Some("sockets-per-caller"));
        let _bob = join("bob").unwrap();
        assert_eq!(join("eve").err().unwrap().rule_name(), Some("sockets"));
        drop(ada);
        assert_eq!(live.count(), 1);
        let _eve = join("eve").unwrap();
        assert_eq!(live.seats().by_listener.len(), 2, "those who left are forgotten");
    }
}
