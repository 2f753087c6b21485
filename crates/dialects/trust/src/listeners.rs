//! Who is connected by WebSocket to this server, and how to tell them something at once. What is told here is a convenience:
//! whatever must not be lost is in the store, and is told again on every connect until it is answered.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    fmt,
    sync::{Arc, Mutex, MutexGuard},
};

use ostler_protocol::{Failure, FailureKind, ids::AgentId};
use tokio::sync::Notify;

use ostler_server::{
    config::LimitsSection,
    net::sockets::{Frame, Outbox},
};

/// Somebody who was refused may try again after this long.
const RETRY_AFTER_MS: u64 = 1_000;

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

/// What somebody can be told of. The latest word on it takes the place of an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Manifest(AgentId),
    Webhook(AgentId),
}

/// The word on a subject; a higher number is a later one.
#[derive(Clone, Debug)]
pub struct News {
    pub subject: Subject,
    pub number: i64,
    pub frame: Frame,
}

/// What one connection is to be told next, and what it was told last. Each subject has one place, so a board grows no further
/// than what concerns its reader, and nobody hears a thing twice, or an older word after a later one.
#[derive(Default)]
struct Board {
    next: BTreeMap<Subject, News>,
    told: BTreeMap<Subject, i64>,
}

impl Board {
    fn put(&mut self, news: &News) {
        let known = self.next.get(&news.subject).map(|next| next.number).max(self.told.get(&news.subject).copied());
        if known.is_none_or(|known| known < news.number) {
            self.next.insert(news.subject, news.clone());
        }
    }

    /// Everything that is pending now. What is not was answered, and need not be remembered.
    fn put_all(&mut self, pending: &[News]) {
        let subjects: BTreeSet<_> = pending.iter().map(|news| news.subject).collect();
        self.told.retain(|subject, _| subjects.contains(subject));
        pending.iter().for_each(|news| self.put(news));
    }

    fn take(&mut self) -> Vec<Frame> {
        let next = std::mem::take(&mut self.next);
        self.told.extend(next.values().map(|news| (news.subject, news.number)));
        next.into_values().map(|news| news.frame).collect()
    }
}

#[derive(Default)]
pub struct Listeners {
    seats: Mutex<Seats>,
    /// Agents whose people are being told that it has changed, and whether it has changed again meanwhile.
    asking: Mutex<HashMap<AgentId, bool>>,
}

#[derive(Default)]
struct Seats {
    all: usize,
    next: u64,
    by_listener: HashMap<Listener, Vec<Taken>>,
}

struct Taken {
    number: u64,
    place: Arc<Place>,
    outbox: Outbox,
}

/// What reaches a connection.
#[derive(Default)]
struct Place {
    board: Mutex<Board>,
    some: Notify,
    reread: Notify,
}

impl Place {
    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().expect("never poisoned")
    }
}

/// A connection's place, given back when it is dropped.
pub struct Seat {
    listeners: Arc<Listeners>,
    listener: Listener,
    number: u64,
    place: Arc<Place>,
}

impl Seat {
    /// Resolves when whoever sits here should look again at what is pending for them.
    pub async fn must_reread(&self) {
        self.place.reread.notified().await;
    }

    /// Resolves when there may be something new to take.
    pub async fn some(&self) {
        self.place.some.notified().await;
    }

    pub fn put_all(&self, pending: &[News]) {
        self.place.board().put_all(pending);
    }

    pub fn has_some(&self) -> bool {
        !self.place.board().next.is_empty()
    }

    /// What is to be said now.
    pub fn take(&self) -> Vec<Frame> {
        self.place.board().take()
    }
}

impl Listeners {
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
        let place = Arc::<Place>::default();
        own.push(Taken { number, place: place.clone(), outbox });
        seats.all += 1;
        seats.next += 1;
        Ok(Seat { listeners: self.clone(), listener, number, place })
    }

    /// Tells every connection of this listener here. Never waits.
    pub fn tell(&self, listener: &Listener, news: &News) {
        let seats = self.seats();
        for Taken { place, .. } in seats.by_listener.get(listener).into_iter().flatten() {
            place.board().put(news);
            place.some.notify_one();
        }
    }

    /// Says something that waits for nobody: whoever is not connected here never hears it. Never waits.
    pub fn say(&self, listener: &Listener, frame: &Frame) {
        let seats = self.seats();
        let own = seats.by_listener.get(listener).into_iter().flatten();
        own.for_each(|taken| taken.outbox.put(frame.clone()));
    }

    /// Has this listener's connections here look again at what is pending.
    pub fn reread(&self, listener: &Listener) {
        let seats = self.seats();
        let own = seats.by_listener.get(listener).into_iter().flatten();
        own.for_each(|taken| taken.place.reread.notify_one());
    }

    /// Has everybody here look again: nobody knows what was missed.
    pub fn reread_all(&self) {
        self.seats().by_listener.values().flatten().for_each(|taken| taken.place.reread.notify_one());
    }

    /// An agent has changed. False: its people are being told already, and whoever does it begins again.
    pub fn begin_asking(&self, agent_id: AgentId) -> bool {
        match self.asking().entry(agent_id) {
            Entry::Occupied(mut known) => {
                known.insert(true);
                false
            }
            Entry::Vacant(none) => {
                none.insert(true);
                true
            }
        }
    }

    /// Whether there is a change that people have not been told of yet; if not, that was all.
    pub fn take_asking(&self, agent_id: AgentId) -> bool {
        let mut asking = self.asking();
        let changed = asking.get_mut(&agent_id).is_some_and(std::mem::take);
        if !changed {
            asking.remove(&agent_id);
        }
        changed
    }

    /// Whether what is being told is old by now.
    pub fn must_ask_anew(&self, agent_id: AgentId) -> bool {
        self.asking().get(&agent_id).copied().unwrap_or_default()
    }

    fn asking(&self) -> MutexGuard<'_, HashMap<AgentId, bool>> {
        self.asking.lock().expect("never poisoned")
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
        let mut seats = self.listeners.seats();
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
    use super::*;
    use ostler_server::net::sockets::queue;

    fn human(name: &str) -> Listener {
        Listener::Human(name.into())
    }

    #[test]
    fn a_listener_is_known_by_name() {
        for listener in [human("local"), human("usr_00000000000000000000000000000007"), Listener::Agent(agent())] {
            assert_eq!(Listener::named(&listener.to_string()), listener);
        }
    }

    fn agent() -> AgentId {
        "agt_00000000000000000000000000000007".parse().unwrap()
    }

    fn version(number: i64) -> News {
        News { subject: Subject::Manifest(agent()), number, frame: number.to_string().into() }
    }

    #[test]
    fn nobody_hears_a_thing_twice_or_an_older_word_after_a_later_one() {
        let mut board = Board::default();
        board.put(&version(2));
        assert_eq!(board.take(), ["2"]);
        [3, 4, 3, 2].map(version).iter().for_each(|news| board.put(news));
        assert_eq!(board.take(), ["4"], "the latest alone");
        board.put_all(&[version(4)]);
        [4, 3].map(version).iter().for_each(|news| board.put(news));
        assert!(board.take().is_empty(), "it is known");
        let webhook = News { subject: Subject::Webhook(agent()), ..version(1) };
        board.put(&webhook);
        assert_eq!(board.take(), ["1"], "another subject");
        board.put_all(&[]);
        assert!(board.told.is_empty(), "what was answered is not remembered");
    }

    #[test]
    fn a_change_that_comes_while_people_are_told_has_it_begin_again() {
        let live = Listeners::default();
        assert!(live.begin_asking(agent()));
        assert!(live.take_asking(agent()));
        assert!(!live.begin_asking(agent()), "one at a time");
        assert!(live.must_ask_anew(agent()));
        assert!(live.take_asking(agent()));
        assert!(!live.must_ask_anew(agent()));
        assert!(!live.take_asking(agent()));
        assert!(live.begin_asking(agent()), "it had ended");
    }

    #[test]
    fn nobody_takes_all_the_seats_and_who_leaves_gives_theirs_back() {
        let live = Arc::<Listeners>::default();
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
