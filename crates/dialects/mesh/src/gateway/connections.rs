//! Who of the mesh is connected to this server, where they stand, and how to tell them something at once. What is told here
//! is a convenience: whatever must not be lost is in the store, and is pulled from there.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use ostler_protocol::mesh::{
    Aid,
    connections::{Live, Place, Refused, admit},
};
use tokio::sync::{Notify, broadcast};

use ostler_server::net::sockets::{Frame, Outbox};

/// A connection by its number on this server; none is given twice.
pub type ConnectionId = u64;

/// A live connection, as whoever tells it something sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Connected {
    pub id: ConnectionId,
    pub live: Live,
}

/// Answers of other servers that may wait to be heard; who misses one waits a little longer.
const SETTLED_MAX: usize = 64;

pub struct Connections {
    seats: Mutex<Seats>,
    some_left: Notify,
    /// Messages that were given to a connection.
    pushed: AtomicU64,
    /// Places at other servers of which it was settled whether somebody is there.
    pub settled_elsewhere: broadcast::Sender<(Aid, Place)>,
}

impl Default for Connections {
    fn default() -> Self {
        let (seats, some_left, pushed) = Default::default();
        Self { seats, some_left, pushed, settled_elsewhere: broadcast::Sender::new(SETTLED_MAX) }
    }
}

#[derive(Default)]
struct Seats {
    count: usize,
    next: ConnectionId,
    by_aid: HashMap<Aid, Vec<Taken>>,
    left: Vec<ConnectionId>,
}

struct Taken {
    connected: Connected,
    outbox: Outbox,
    doubted: Arc<Notify>,
    /// It was told what is for it of its agent's mailbox, up to this number.
    told: i64,
}

/// What became of a letter here.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Passed {
    /// Connections that have it.
    pub given: usize,
    /// Some connection could have it, and lacks what comes before.
    pub is_behind: bool,
}

/// A connection's place, given back when it is dropped.
pub struct Seat {
    connections: Arc<Connections>,
    aid: Aid,
    pub id: ConnectionId,
    /// Whoever sits here may have no right to any more.
    pub doubted: Arc<Notify>,
}

impl Connections {
    /// Takes a place beside the live connections of the same agent, if it may stand there. What its agent's mailbox had up to
    /// `last_seq` came before it, and is not told.
    pub fn join(self: &Arc<Self>, aid: &Aid, live: Live, outbox: Outbox, last_seq: i64) -> Result<Seat, Refused> {
        let mut seats = self.seats();
        let own = seats.by_aid.get(aid).map(Vec::as_slice).unwrap_or_default();
        let beside: Vec<Live> = own.iter().map(|taken| taken.connected.live.clone()).collect();
        admit(&live, &beside)?;
        let id = seats.next;
        let doubted = Arc::<Notify>::default();
        let taken = Taken { connected: Connected { id, live }, outbox, doubted: doubted.clone(), told: last_seq };
        seats.by_aid.entry(aid.clone()).or_default().push(taken);
        seats.count += 1;
        seats.next += 1;
        Ok(Seat { connections: self.clone(), aid: aid.clone(), id, doubted })
    }

    /// The live connections of an agent here, the oldest first.
    pub fn of(&self, aid: &Aid) -> Vec<Connected> {
        let seats = self.seats();
        seats.by_aid.get(aid).into_iter().flatten().map(|taken| taken.connected.clone()).collect()
    }

    /// Whoever has this very place here, and the way to it.
    pub fn at(&self, aid: &Aid, place: &Place) -> Option<(ConnectionId, Outbox)> {
        let seats = self.seats();
        let taken = seats.by_aid.get(aid)?.iter().find(|taken| taken.connected.live.place == *place)?;
        Some((taken.connected.id, taken.outbox.clone()))
    }

    /// Every live connection here.
    pub fn all(&self) -> Vec<(Aid, Connected)> {
        let seats = self.seats();
        let all = seats.by_aid.iter().flat_map(|(aid, own)| own.iter().map(move |taken| (aid, &taken.connected)));
        all.map(|(aid, connected)| (aid.clone(), connected.clone())).collect()
    }

    /// Whoever has left since this was last asked; waits until somebody has.
    pub async fn left(&self) -> Vec<ConnectionId> {
        loop {
            let left = std::mem::take(&mut self.seats().left);
            if !left.is_empty() {
                return left;
            }
            self.some_left.notified().await;
        }
    }

    pub fn is_online(&self, aid: &Aid) -> bool {
        self.seats().by_aid.contains_key(aid)
    }

    pub fn count(&self) -> usize {
        self.seats().count
    }

    /// Tells every connection of an agent. Never waits: one whose queue is full is cut off.
    pub fn push(&self, aid: &Aid, frame: &Frame) {
        self.seats().by_aid.get(aid).into_iter().flatten().for_each(|taken| taken.outbox.put(frame.clone()));
    }

    /// The connections of an agent that can be told more now, the oldest first.
    pub fn ready(&self, aid: &Aid) -> Vec<Connected> {
        let seats = self.seats();
        let own = seats.by_aid.get(aid).into_iter().flatten();
        own.filter(|taken| taken.outbox.has_room()).map(|taken| taken.connected.clone()).collect()
    }

    /// Tells one connection. False: it has left, or cannot be told more now.
    pub fn offer(&self, aid: &Aid, id: ConnectionId, frame: &Frame) -> bool {
        let seats = self.seats();
        let mut own = seats.by_aid.get(aid).into_iter().flatten();
        let is_given = own.any(|taken| taken.connected.id == id && taken.outbox.offer(frame));
        self.pushed.fetch_add(is_given.into(), Relaxed);
        is_given
    }

    pub fn pushed(&self) -> u64 {
        self.pushed.load(Relaxed)
    }

    /// Up to which number all connections of an agent that can be told more now were told; `None`: there is none.
    pub fn told(&self, aid: &Aid) -> Option<i64> {
        told(self.seats().by_aid.get(aid)?)
    }

    /// The same of every agent that is connected.
    pub fn all_told(&self) -> Vec<(Aid, i64)> {
        self.seats().by_aid.iter().filter_map(|(aid, own)| Some((aid.clone(), told(own)?))).collect()
    }

    /// Gives what has this number to those connections of an agent that were told everything up to `after`, which is the last
    /// thing before it. One that can be told nothing now stays where it is; it is told from there when it can.
    pub fn pass_on<'a>(
        &self,
        aid: &Aid,
        after: i64,
        seq: i64,
        frame: impl Fn(&Connected) -> Option<&'a Frame>,
    ) -> Passed {
        let mut passed = Passed::default();
        for taken in self.seats().by_aid.get_mut(aid).into_iter().flatten() {
            let frame = frame(&taken.connected);
            if taken.told < after {
                passed.is_behind |= taken.outbox.has_room();
            } else if taken.told >= seq {
                passed.given += usize::from(frame.is_some());
            } else if frame.is_none_or(|frame| taken.outbox.offer(frame)) {
                taken.told = seq;
                passed.given += usize::from(frame.is_some());
                self.pushed.fetch_add(frame.is_some().into(), Relaxed);
            }
        }
        passed
    }

    /// Has every connection of an agent look whether its login still stands.
    pub fn doubt(&self, aid: &Aid) {
        self.seats().by_aid.get(aid).into_iter().flatten().for_each(|taken| taken.doubted.notify_one());
    }

    /// The same of everybody: whose login ended elsewhere was not heard.
    pub fn doubt_all(&self) {
        self.seats().by_aid.values().flatten().for_each(|taken| taken.doubted.notify_one());
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().expect("never poisoned")
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = self.connections.seats();
        seats.count -= 1;
        seats.left.push(self.id);
        self.connections.some_left.notify_one();
        if let Some(own) = seats.by_aid.get_mut(&self.aid) {
            own.retain(|taken| taken.connected.id != self.id);
            if own.is_empty() {
                seats.by_aid.remove(&self.aid);
            }
        }
    }
}

fn told(own: &[Taken]) -> Option<i64> {
    own.iter().filter(|taken| taken.outbox.has_room()).map(|taken| taken.told).min()
}

#[cfg(test)]
mod tests {
    use ostler_protocol::mesh::connections::DeliveryMode;

    use super::*;
    use ostler_server::net::sockets::queue;

    fn live(device_id: &str) -> Live {
        let place = Place { device_id: device_id.into(), slot_id: String::new() };
        Live { place, delivery_mode: DeliveryMode::default() }
    }

    #[test]
    fn a_place_is_taken_once_and_given_back() {
        let connections = Arc::<Connections>::default();
        let aid: Aid = "alice.probe.test".parse().unwrap();
        let queues: Vec<_> = (0..4).map(|_| queue()).collect();
        let mut outboxes = queues.iter().map(|(outbox, _)| outbox.clone());
        let mut join = |device: &str| connections.join(&aid, live(device), outboxes.next().unwrap(), 0);
        let first = join("a").unwrap();
        assert_eq!(join("a").err(), Some(Refused::DeviceSingletonConflict));
        let second = join("b").unwrap();
        assert_eq!(connections.ready(&aid).iter().map(|one| one.id).collect::<Vec<_>>(), [first.id, second.id]);
        drop(first);
        let again = join("a").unwrap();
        assert_ne!(again.id, second.id);
        drop((again, second));
        assert!(!connections.is_online(&aid));
        assert_eq!((connections.count(), connections.seats().by_aid.len()), (0, 0));
    }

    #[test]
    fn a_letter_goes_to_those_who_had_the_ones_before_it() {
        let connections = Arc::<Connections>::default();
        let aid: Aid = "alice.probe.test".parse().unwrap();
        let frame = Frame::from("x");
        let join = |device: &str, last_seq| {
            let (outbox, inbox) = queue();
            (connections.join(&aid, live(device), outbox, last_seq).unwrap(), inbox)
        };
        let pass_on = |after, seq| {
            let Passed { given, is_behind } = connections.pass_on(&aid, after, seq, |_| Some(&frame));
            (given, is_behind)
        };
        assert_eq!((pass_on(0, 1), connections.told(&aid)), ((0, false), None), "nobody is there");
        let desk = join("a", 4);
        assert_eq!(pass_on(4, 5), (1, false));
        let phone = join("b", 7);
        assert_eq!(pass_on(7, 8), (1, true), "the first lacks the two before it");
        assert_eq!(connections.told(&aid), Some(5));
        assert_eq!(pass_on(5, 6), (2, false), "the second does not want what came before it");
        assert_eq!(connections.pass_on(&aid, 6, 8, |_| None).given, 0, "there is nothing to tell of the others");
        assert_eq!(connections.told(&aid), Some(8));
        let only_a = |one: &Connected| (one.live.place.device_id == "a").then_some(&frame);
        assert_eq!(connections.pass_on(&aid, 8, 9, only_a), Passed { given: 1, is_behind: false });
        assert!(connections.offer(&aid, phone.0.id, &frame));
        drop(phone.1);
        assert!(!connections.offer(&aid, phone.0.id, &frame), "nobody takes it any more");
        assert_eq!(connections.ready(&aid).iter().map(|one| one.id).collect::<Vec<_>>(), [desk.0.id]);
    }
}
