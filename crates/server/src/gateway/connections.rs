//! Who of the mesh is connected to this server, where they stand, and how to tell them something at once. What is told here
//! is a convenience: whatever must not be lost is in the store, and is pulled from there.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

use ostler_protocol::mesh::{
    Aid,
    connections::{Live, Refused, admit},
};
use tokio::sync::Notify;

use crate::live::connection::{Frame, Outbox};

/// A connection by its number on this server; none is given twice.
pub type ConnectionId = u64;

/// A live connection, as whoever tells it something sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Connected {
    pub id: ConnectionId,
    pub live: Live,
}

#[derive(Default)]
pub struct Connections {
    seats: Mutex<Seats>,
}

#[derive(Default)]
struct Seats {
    count: usize,
    next: ConnectionId,
    by_aid: HashMap<Aid, Vec<Taken>>,
}

struct Taken {
    connected: Connected,
    outbox: Outbox,
    doubted: Arc<Notify>,
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
    /// Takes a place beside the live connections of the same agent, if it may stand there.
    pub fn join(self: &Arc<Self>, aid: &Aid, live: Live, outbox: Outbox) -> Result<Seat, Refused> {
        let mut seats = self.seats();
        let own = seats.by_aid.get(aid).map(Vec::as_slice).unwrap_or_default();
        let beside: Vec<Live> = own.iter().map(|taken| taken.connected.live.clone()).collect();
        admit(&live, &beside)?;
        let id = seats.next;
        let doubted = Arc::<Notify>::default();
        let taken = Taken { connected: Connected { id, live }, outbox, doubted: doubted.clone() };
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

    pub fn is_online(&self, aid: &Aid) -> bool {
        self.seats().by_aid.contains_key(aid)
    }

    pub fn count(&self) -> usize {
        self.seats().count
    }

    /// Tells those connections of an agent that are meant, and says how many. Never waits: one whose queue is full is cut
    /// off.
    pub fn push(&self, aid: &Aid, is_meant: impl Fn(&Connected) -> bool, frame: &Frame) -> usize {
        let seats = self.seats();
        let own = seats.by_aid.get(aid).into_iter().flatten();
        let meant = own.filter(|taken| is_meant(&taken.connected));
        meant.map(|taken| taken.outbox.put(frame.clone())).count()
    }

    /// Has every connection of an agent look whether its login still stands.
    pub fn doubt(&self, aid: &Aid) {
        self.seats().by_aid.get(aid).into_iter().flatten().for_each(|taken| taken.doubted.notify_one());
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().expect("never poisoned")
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = self.connections.seats();
        seats.count -= 1;
        if let Some(own) = seats.by_aid.get_mut(&self.aid) {
            own.retain(|taken| taken.connected.id != self.id);
            if own.is_empty() {
                seats.by_aid.remove(&self.aid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ostler_protocol::mesh::connections::{DeliveryMode, Place};

    use super::*;
    use crate::live::connection::queue;

    fn live(device_id: &str) -> Live {
        let place = Place { device_id: device_id.into(), slot_id: String::new() };
        Live { place, delivery_mode: DeliveryMode::default() }
    }

    #[test]
    fn a_place_is_taken_once_and_given_back() {
        let connections = Arc::<Connections>::default();
        let aid: Aid = "alice.probe.test".parse().unwrap();
        let join = |device: &str| connections.join(&aid, live(device), queue().0);
        let first = join("a").unwrap();
        assert_eq!(join("a").err(), Some(Refused::DeviceSingletonConflict));
        let second = join("b").unwrap();
        assert_eq!(connections.of(&aid).iter().map(|one| one.id).collect::<Vec<_>>(), [first.id, second.id]);
        drop(first);
        let again = join("a").unwrap();
        assert_ne!(again.id, second.id);
        drop((again, second));
        assert!(!connections.is_online(&aid));
        assert_eq!((connections.count(), connections.seats().by_aid.len()), (0, 0));
    }

    #[test]
    fn only_those_who_are_meant_are_told() {
        let connections = Arc::<Connections>::default();
        let aid: Aid = "alice.probe.test".parse().unwrap();
        let _seats = ["a", "b"].map(|device| connections.join(&aid, live(device), queue().0).unwrap());
        let on = |device: &'static str| move |one: &Connected| one.live.place.device_id == device;
        assert_eq!(connections.push(&aid, on("a"), &"x".into()), 1);
        assert_eq!(connections.push(&aid, |_| true, &"x".into()), 2);
        assert_eq!(connections.push(&aid, on("c"), &"x".into()), 0);
        assert_eq!(connections.push(&"bobby.probe.test".parse().unwrap(), |_| true, &"x".into()), 0);
    }
}
