//! The identities that are connected to this server, their device slots, and how to push frames to them at once. A push is a
//! convenience: everything that must not be lost is in the store, and clients pull it from there.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use ostler_protocol::mesh::{
    Aid,
    connections::{DeviceSlot, Live, Refused, admit},
};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, broadcast};

use ostler_server::net::sockets::{Frame, Outbox};

/// The number of a connection on this server. No number is used twice.
pub(crate) type ConnectionId = u64;

/// A live connection, as the code that pushes to it sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Connected {
    pub id: ConnectionId,
    pub live: Live,
}

/// Replies of other servers to probes that may be queued. A probe that misses its reply waits a little longer.
const SETTLED_MAX: usize = 64;

pub(crate) struct Connections {
    table: Mutex<ConnectionTable>,
    some_closed: Notify,
    /// Messages that were pushed to a connection.
    pushed: AtomicU64,
    /// Device slots at other servers whose probe has ended.
    pub settled_elsewhere: broadcast::Sender<(Aid, DeviceSlot)>,
}

impl Default for Connections {
    fn default() -> Self {
        let (table, some_closed, pushed) = Default::default();
        Self { table, some_closed, pushed, settled_elsewhere: broadcast::Sender::new(SETTLED_MAX) }
    }
}

#[derive(Default)]
struct ConnectionTable {
    count: usize,
    next: ConnectionId,
    by_aid: HashMap<Aid, Vec<IdentityEntry>>,
    closed: Vec<ConnectionId>,
}

struct IdentityEntry {
    connected: Connected,
    outbox: Outbox,
    recheck: Arc<Notify>,
    /// Everything for it in its identity's mailbox up to this number was pushed to it.
    pushed_seq: i64,
}

/// The outcome of pushing a message to the connections of this server.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct PushOutcome {
    /// Number of connections that have it.
    pub pushed: usize,
    /// Some connection could receive it, but lacks a message before it.
    pub is_behind: bool,
}

/// Keeps a connection in the table, and removes it when it is dropped.
pub(crate) struct ConnectionGuard {
    connections: Arc<Connections>,
    aid: Aid,
    pub id: ConnectionId,
    /// Notified when the login of the connection may have ended.
    pub recheck: Arc<Notify>,
}

impl Connections {
    /// Adds a connection to the live ones of the same identity, if its device slot is free. Messages of the mailbox up to
    /// `last_seq` came before it, and are not pushed to it.
    pub(crate) fn join(
        self: &Arc<Self>,
        aid: &Aid,
        live: Live,
        outbox: Outbox,
        last_seq: i64,
    ) -> Result<ConnectionGuard, Refused> {
        let mut table = self.table();
        let own = table.by_aid.get(aid).map(Vec::as_slice).unwrap_or_default();
        let beside: Vec<Live> = own.iter().map(|entry| entry.connected.live.clone()).collect();
        admit(&live, &beside)?;
        let id = table.next;
        let recheck = Arc::<Notify>::default();
        let connected = Connected { id, live };
        let entry = IdentityEntry { connected, outbox, recheck: recheck.clone(), pushed_seq: last_seq };
        table.by_aid.entry(aid.clone()).or_default().push(entry);
        table.count += 1;
        table.next += 1;
        Ok(ConnectionGuard { connections: self.clone(), aid: aid.clone(), id, recheck })
    }

    /// The live connections of an identity to this server, the oldest first.
    pub(crate) fn of(&self, aid: &Aid) -> Vec<Connected> {
        let table = self.table();
        table.by_aid.get(aid).into_iter().flatten().map(|entry| entry.connected.clone()).collect()
    }

    /// The connection that has exactly this device slot on this server, with its outbox.
    pub(crate) fn at(&self, aid: &Aid, place: &DeviceSlot) -> Option<(ConnectionId, Outbox)> {
        let table = self.table();
        let entry = table.by_aid.get(aid)?.iter().find(|entry| entry.connected.live.place == *place)?;
        Some((entry.connected.id, entry.outbox.clone()))
    }

    /// Every live connection to this server.
    pub(crate) fn all(&self) -> Vec<(Aid, Connected)> {
        let table = self.table();
        let all = table.by_aid.iter().flat_map(|(aid, own)| own.iter().map(move |entry| (aid, &entry.connected)));
        all.map(|(aid, connected)| (aid.clone(), connected.clone())).collect()
    }

    /// The connections that have closed since the last call. Waits until there is one.
    pub(crate) async fn closed(&self) -> Vec<ConnectionId> {
        loop {
            let closed = std::mem::take(&mut self.table().closed);
            if !closed.is_empty() {
                return closed;
            }
            self.some_closed.notified().await;
        }
    }

    pub(crate) fn is_online(&self, aid: &Aid) -> bool {
        self.table().by_aid.contains_key(aid)
    }

    pub(crate) fn count(&self) -> usize {
        self.table().count
    }

    /// Pushes a frame to every connection of an identity. Never waits: a connection whose queue is full is closed.
    pub(crate) fn push(&self, aid: &Aid, frame: &Frame) {
        self.table().by_aid.get(aid).into_iter().flatten().for_each(|entry| entry.outbox.put(frame.clone()));
    }

    /// The connections of an identity whose queues have room, the oldest first.
    pub(crate) fn ready(&self, aid: &Aid) -> Vec<Connected> {
        let table = self.table();
        let own = table.by_aid.get(aid).into_iter().flatten();
        own.filter(|entry| entry.outbox.has_room()).map(|entry| entry.connected.clone()).collect()
    }

    /// Pushes a frame to one connection. False if it has closed, or its queue is full.
    pub(crate) fn offer(&self, aid: &Aid, id: ConnectionId, frame: &Frame) -> bool {
        let table = self.table();
        let mut own = table.by_aid.get(aid).into_iter().flatten();
        let is_pushed = own.any(|entry| entry.connected.id == id && entry.outbox.offer(frame));
        self.pushed.fetch_add(is_pushed.into(), Relaxed);
        is_pushed
    }

    pub(crate) fn pushed(&self) -> u64 {
        self.pushed.load(Relaxed)
    }

    /// Lowest sequence number already pushed to every writable connection of the identity. `None` if it has none.
    pub(crate) fn pushed_seq(&self, aid: &Aid) -> Option<i64> {
        lowest_pushed_seq(self.table().by_aid.get(aid)?)
    }

    /// The same for every connected identity.
    pub(crate) fn all_pushed_seqs(&self) -> Vec<(Aid, i64)> {
        let table = self.table();
        table.by_aid.iter().filter_map(|(aid, own)| Some((aid.clone(), lowest_pushed_seq(own)?))).collect()
    }

    /// Pushes the message with number `seq` to those connections of an identity that have everything up to `after`, the last
    /// number before it. A connection whose queue is full keeps its number; delivery continues from there when it has room.
    pub(crate) fn push_in_order<'a>(
        &self,
        aid: &Aid,
        after: i64,
        seq: i64,
        frame: impl Fn(&Connected) -> Option<&'a Frame>,
    ) -> PushOutcome {
        let mut outcome = PushOutcome::default();
        for entry in self.table().by_aid.get_mut(aid).into_iter().flatten() {
            let frame = frame(&entry.connected);
            if entry.pushed_seq < after {
                outcome.is_behind |= entry.outbox.has_room();
            } else if entry.pushed_seq >= seq {
                outcome.pushed += usize::from(frame.is_some());
            } else if frame.is_none_or(|frame| entry.outbox.offer(frame)) {
                entry.pushed_seq = seq;
                outcome.pushed += usize::from(frame.is_some());
                self.pushed.fetch_add(frame.is_some().into(), Relaxed);
            }
        }
        outcome
    }

    /// Makes every connection of an identity check whether its login is still valid.
    pub(crate) fn recheck_logins(&self, aid: &Aid) {
        self.table().by_aid.get(aid).into_iter().flatten().for_each(|entry| entry.recheck.notify_one());
    }

    /// The same for all connections, after wake-ups from other servers may have been lost.
    pub(crate) fn recheck_all_logins(&self) {
        self.table().by_aid.values().flatten().for_each(|entry| entry.recheck.notify_one());
    }

    fn table(&self) -> MutexGuard<'_, ConnectionTable> {
        self.table.lock()
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let mut table = self.connections.table();
        table.count -= 1;
        table.closed.push(self.id);
        self.connections.some_closed.notify_one();
        if let Some(own) = table.by_aid.get_mut(&self.aid) {
            own.retain(|entry| entry.connected.id != self.id);
            if own.is_empty() {
                table.by_aid.remove(&self.aid);
            }
        }
    }
}

fn lowest_pushed_seq(own: &[IdentityEntry]) -> Option<i64> {
    own.iter().filter(|entry| entry.outbox.has_room()).map(|entry| entry.pushed_seq).min()
}

#[cfg(test)]
mod tests {
    use ostler_protocol::mesh::connections::DeliveryMode;

    use super::*;
    use ostler_server::net::sockets::queue;

    fn live(device_id: &str) -> Live {
        let place = DeviceSlot { device_id: device_id.into(), slot_id: String::new() };
        Live { place, delivery_mode: DeliveryMode::default() }
    }

    #[test]
    fn a_device_slot_has_one_connection_and_is_free_after_it_closes() {
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
        assert_eq!((connections.count(), connections.table().by_aid.len()), (0, 0));
    }

    #[test]
    fn a_message_is_pushed_to_connections_that_have_the_ones_before_it() {
        let connections = Arc::<Connections>::default();
        let aid: Aid = "alice.probe.test".parse().unwrap();
        let frame = Frame::from("x");
        let join = |device: &str, last_seq| {
            let (outbox, inbox) = queue();
            (connections.join(&aid, live(device), outbox, last_seq).unwrap(), inbox)
        };
        let push = |after, seq| {
            let PushOutcome { pushed, is_behind } = connections.push_in_order(&aid, after, seq, |_| Some(&frame));
            (pushed, is_behind)
        };
        assert_eq!((push(0, 1), connections.pushed_seq(&aid)), ((0, false), None), "there is no connection");
        let desk = join("a", 4);
        assert_eq!(push(4, 5), (1, false));
        let phone = join("b", 7);
        assert_eq!(push(7, 8), (1, true), "the first lacks the two before it");
        assert_eq!(connections.pushed_seq(&aid), Some(5));
        assert_eq!(push(5, 6), (2, false), "the second needs no message from before it connected");
        assert_eq!(connections.push_in_order(&aid, 6, 8, |_| None).pushed, 0, "the others have no frame");
        assert_eq!(connections.pushed_seq(&aid), Some(8));
        let only_a = |one: &Connected| (one.live.place.device_id == "a").then_some(&frame);
        assert_eq!(connections.push_in_order(&aid, 8, 9, only_a), PushOutcome { pushed: 1, is_behind: false });
        assert!(connections.offer(&aid, phone.0.id, &frame));
        drop(phone.1);
        assert!(!connections.offer(&aid, phone.0.id, &frame), "its reader is gone");
        assert_eq!(connections.ready(&aid).iter().map(|one| one.id).collect::<Vec<_>>(), [desk.0.id]);
    }
}
