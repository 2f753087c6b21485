//! What a mailbox does, as one pure rule: numbering, idempotence by `message_id`, limits, the two delivery modes,
//! acknowledgements, recall and expiry. The store decides the same in SQL, once per engine; its tests hold both engines
//! equal to this rule. Delivery to connections is not part of it.

mod send_op;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use jiff::SignedDuration;

pub use self::send_op::{Contents, SendOp, StoredMessage};
use super::{
    Aid,
    connections::{DeviceSlot, Mode},
    messages::{
        Direction, MAILBOX_BYTES_MAX, MAILBOX_DRAIN_BYTES_PER_MS, Message, QUEUED_MAX, QUEUED_MS_MAX, RecallError,
        Recallable, recall as may_recall,
    },
};
use crate::{RawJson, Timestamp};

/// Of the messages that one acknowledgement covers, the senders of this many are notified, the newest first.
pub const ACKED_SENDERS_MAX: i64 = 200;
/// Device slots of an identity whose acknowledged positions are stored.
pub const PLACES_MAX: i64 = 256;
/// Payloads in the queue of an identity, however few messages they are.
pub const QUEUED_BYTES_MAX: i64 = 8 * 1024 * 1024;

/// Messages sent at this time or earlier are no longer in a queue.
pub fn queued_since(now: Timestamp) -> Timestamp {
    now.checked_sub(SignedDuration::from_millis(QUEUED_MS_MAX)).unwrap_or(Timestamp::MIN)
}

/// What is left at `now` of the allowance that was in use at `used_at`. It drains by whole milliseconds.
pub fn drain(used_bytes: i64, used_at: Timestamp, now: Timestamp) -> i64 {
    let elapsed_ms = (now.as_microsecond() - used_at.as_microsecond()).max(0) / 1_000;
    (used_bytes - elapsed_ms.saturating_mul(MAILBOX_DRAIN_BYTES_PER_MS)).max(0)
}

#[derive(Clone, Debug)]
pub enum MailboxOp {
    Send(Box<SendOp>),
    /// The device slot has received every message up to `seq`.
    Ack {
        owner: Aid,
        place: DeviceSlot,
        seq: i64,
    },
    /// The owner has connected in this delivery mode.
    SetMode {
        owner: Aid,
        mode: Mode,
    },
    /// Claims one queued message for a device slot.
    Claim {
        owner: Aid,
        place: DeviceSlot,
        seq: i64,
    },
    /// Claims every queued message after `after` up to `upto` that no other device slot has claimed.
    ClaimOpen {
        owner: Aid,
        place: DeviceSlot,
        after: i64,
        upto: i64,
    },
    /// Gives back a claimed message that could not be delivered.
    Release {
        owner: Aid,
        place: DeviceSlot,
        seq: i64,
    },
    Recall {
        caller: Aid,
        message_id: String,
    },
    /// Deletes what has expired, and acknowledged positions that have not been written since `idle_since`.
    Expire {
        idle_since: Timestamp,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum MailboxReply {
    /// The message is in the mailboxes that are listed, the recipient's first.
    Accepted(Vec<StoredMessage>),
    /// The message was sent before; nothing changed.
    Duplicate(SendRecord),
    /// The sender has used the `message_id` for a message to another recipient; nothing changed.
    IdInUse(SendRecord),
    /// A mailbox that the message goes to has no room; nothing changed.
    Full,
    Acked(AckOutcome),
    Claimed(bool),
    ClaimedOpen(Vec<StoredMessage>),
    /// The recipient of the recalled message, or why it was not recalled.
    Recalled(Result<Aid, RecallError>),
    Done,
}

/// How the recipient's mailbox accepted a message.
#[derive(Clone, Debug, PartialEq)]
pub struct SendRecord {
    pub to: Aid,
    pub seq: i64,
    pub sent_at: Timestamp,
    pub mode: Mode,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct AckOutcome {
    /// The acknowledged position before, …
    pub before: i64,
    /// … and after. It never moves back, nor beyond the last message.
    pub ack_seq: i64,
    /// The senders of the messages that are acknowledged by this, sorted.
    pub senders: Vec<Aid>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Mailbox {
    /// The number of the newest message. Numbers start at 1 and are consecutive.
    pub last_seq: i64,
    pub mode: Mode,
    /// Messages that left the queue without having been claimed.
    pub dropped: i64,
    /// When the queue last received a message.
    pub queued_at: Option<Timestamp>,
    /// How much of the allowance was in use at `used_at`. It has drained since.
    pub used_bytes: i64,
    pub used_at: Timestamp,
    stored: BTreeMap<i64, Stored>,
    queue: BTreeMap<i64, QueuedMessage>,
    acks: HashMap<DeviceSlot, Mark>,
}

impl Default for Mailbox {
    fn default() -> Self {
        Self {
            last_seq: 0,
            mode: Mode::Fanout,
            dropped: 0,
            queued_at: None,
            used_bytes: 0,
            used_at: Timestamp::UNIX_EPOCH,
            stored: BTreeMap::new(),
            queue: BTreeMap::new(),
            acks: HashMap::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Stored {
    message: StoredMessage,
    expires_at: Timestamp,
    is_recalled: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct QueuedMessage {
    message: StoredMessage,
    claimed_by: Option<DeviceSlot>,
    /// Acknowledged. Its id is remembered for a while, so that it is not accepted again.
    is_received: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Mark {
    seq: i64,
    updated_at: Timestamp,
}

/// What a device slot can read of a queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueView {
    /// Messages that no device slot or this one has claimed: their numbers and the bytes of their payloads.
    pub open: Vec<(i64, usize)>,
    /// The oldest message that has not been acknowledged.
    pub earliest_seq: Option<i64>,
    pub dropped: i64,
}

/// All mailboxes of a domain. Reading has no effect; a mailbox exists from its first message or mode on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mailboxes(BTreeMap<Aid, Mailbox>);

impl Mailboxes {
    /// Decides and carries out one operation. `now` never goes back from one call to the next.
    pub fn apply(&mut self, op: &MailboxOp, now: Timestamp) -> MailboxReply {
        match op {
            MailboxOp::Send(send) => self.send(send, now),
            MailboxOp::Ack { owner, place, seq } => {
                let acked = self.get_mut(owner).map(|mailbox| mailbox.ack(place, *seq, now));
                MailboxReply::Acked(acked.unwrap_or_default())
            }
            MailboxOp::SetMode { owner, mode } => {
                self.0.entry(owner.clone()).or_default().mode = *mode;
                MailboxReply::Done
            }
            MailboxOp::Claim { owner, place, seq } => {
                MailboxReply::Claimed(self.get_mut(owner).is_some_and(|mailbox| mailbox.claim(place, *seq)))
            }
            MailboxOp::ClaimOpen { owner, place, after, upto } => {
                let claimed = self.get_mut(owner).map(|mailbox| mailbox.claim_open(place, *after, *upto, now));
                MailboxReply::ClaimedOpen(claimed.unwrap_or_default())
            }
            MailboxOp::Release { owner, place, seq } => {
                if let Some(mailbox) = self.get_mut(owner) {
                    mailbox.release(place, *seq);
                }
                MailboxReply::Done
            }
            MailboxOp::Recall { caller, message_id } => MailboxReply::Recalled(self.recall(caller, message_id, now)),
            MailboxOp::Expire { idle_since } => {
                self.0.values_mut().for_each(|mailbox| mailbox.expire(*idle_since, now));
                MailboxReply::Done
            }
        }
    }

    pub fn get(&self, owner: &Aid) -> Option<&Mailbox> {
        self.0.get(owner)
    }

    pub fn get_mut(&mut self, owner: &Aid) -> Option<&mut Mailbox> {
        self.0.get_mut(owner)
    }

    /// A message goes to all its mailboxes or to none.
    fn send(&mut self, send: &SendOp, now: Timestamp) -> MailboxReply {
        if let Some(record) = self.find_sent(&send.from, &send.message_id) {
            let is_same = record.to == send.to;
            return if is_same { MailboxReply::Duplicate(record) } else { MailboxReply::IdInUse(record) };
        }
        let (inbound, own) = send.stored_messages(now);
        let mut messages: Vec<StoredMessage> = [Some(inbound), own].into_iter().flatten().collect();
        let mut weights: HashMap<&Aid, i64> = HashMap::new();
        for message in messages.iter().filter(|message| !self.is_queued(message)) {
            *weights.entry(&message.owner).or_default() += message.weight();
        }
        let used = |owner: &Aid| self.get(owner).map_or(0, |mailbox| mailbox.used_bytes(now));
        if weights.into_iter().any(|(owner, weight)| used(owner) + weight > MAILBOX_BYTES_MAX) {
            return MailboxReply::Full;
        }
        for message in &mut messages {
            self.0.entry(message.owner.clone()).or_default().add(message, send.expires_at(now), now);
        }
        MailboxReply::Accepted(messages)
    }

    fn is_queued(&self, message: &StoredMessage) -> bool {
        message.may_queue() && self.get(&message.owner).is_some_and(|mailbox| mailbox.mode == Mode::Queue)
    }

    /// The message that its sender has given this id. An id is remembered as long as its message is stored or queued.
    fn find_sent(&self, from: &Aid, message_id: &str) -> Option<SendRecord> {
        let is_it = |message: &&StoredMessage| {
            message.message_id == message_id && message.from == *from && message.direction == Direction::Inbound
        };
        let message = self.0.values().flat_map(Mailbox::messages).find(is_it)?;
        let StoredMessage { to, seq, sent_at, mode, .. } = message.clone();
        Some(SendRecord { to, seq, sent_at, mode })
    }

    /// Queued messages cannot be recalled: the queue has no history.
    fn recall(&mut self, caller: &Aid, message_id: &str, now: Timestamp) -> Result<Aid, RecallError> {
        let all = self.0.values().flat_map(|mailbox| mailbox.stored.values());
        let is_it = |stored: &&Stored| {
            let message = &stored.message;
            message.message_id == message_id && message.direction == Direction::Inbound && stored.expires_at > now
        };
        let found = all.filter(is_it).min_by_key(|stored| stored.message.from != *caller);
        let recallable = found.map(|stored| Recallable {
            from: &stored.message.from,
            sent_ms: stored.message.sent_at.as_millisecond(),
            recalled: stored.is_recalled,
        });
        may_recall(recallable, caller, now.as_millisecond())?;
        let to = found.map(|stored| stored.message.to.clone()).ok_or(RecallError::NotFound)?;
        for stored in self.0.values_mut().flat_map(|mailbox| mailbox.stored.values_mut()) {
            if stored.message.message_id == message_id && stored.message.from == *caller {
                stored.is_recalled = true;
                stored.message.contents = Contents::Copies(vec![]);
            }
        }
        Ok(to)
    }
}

impl Mailbox {
    /// The allowance that is in use.
    pub fn used_bytes(&self, now: Timestamp) -> i64 {
        drain(self.used_bytes, self.used_at, now)
    }

    fn messages(&self) -> impl Iterator<Item = &StoredMessage> {
        let queued = self.queue.values().map(|queued| &queued.message);
        self.stored.values().map(|stored| &stored.message).chain(queued)
    }

    /// Gives the message the next number and stores or queues it.
    fn add(&mut self, message: &mut StoredMessage, expires_at: Timestamp, now: Timestamp) {
        self.last_seq += 1;
        message.seq = self.last_seq;
        if self.mode == Mode::Queue && message.may_queue() {
            message.mode = Mode::Queue;
            self.queued_at = Some(now);
            self.queue
                .insert(message.seq, QueuedMessage { message: message.clone(), claimed_by: None, is_received: false });
            self.trim(now);
            return;
        }
        self.used_bytes = self.used_bytes(now) + message.weight();
        self.used_at = now;
        self.stored.insert(message.seq, Stored { message: message.clone(), expires_at, is_recalled: false });
    }

    /// Drops from the queue what is too old or too much, the oldest first. Messages and remembered ids have separate limits.
    fn trim(&mut self, now: Timestamp) {
        let since = queued_since(now);
        for is_received in [false, true] {
            let (mut count, mut bytes) = (0, 0);
            let mut is_over = |queued: &QueuedMessage| {
                count += 1;
                bytes += queued.message.contents_bytes() as i64;
                count > QUEUED_MAX || bytes > QUEUED_BYTES_MAX || queued.message.sent_at <= since
            };
            let newest_first = self.queue.iter().rev().filter(|(_, queued)| queued.is_received == is_received);
            let over: Vec<i64> = newest_first.filter(|(_, queued)| is_over(queued)).map(|(seq, _)| *seq).collect();
            for queued in over.iter().filter_map(|seq| self.queue.remove(seq)) {
                self.dropped += i64::from(!queued.is_received && queued.claimed_by.is_none());
            }
        }
    }

    fn ack(&mut self, place: &DeviceSlot, seq: i64, now: Timestamp) -> AckOutcome {
        let before = self.ack_seq(place);
        let ack_seq = before.max(seq.min(self.last_seq));
        self.acks.insert(place.clone(), Mark { seq: ack_seq, updated_at: now });
        let is_covered = |message: &&StoredMessage| {
            message.seq > before && message.seq <= ack_seq && message.direction == Direction::Inbound
        };
        let newest_first = self.stored.values().rev().map(|stored| &stored.message);
        let covered = newest_first.filter(is_covered).take(ACKED_SENDERS_MAX as usize);
        let mut senders: Vec<Aid> = covered.map(|message| message.from.clone()).collect();
        for queued in self.queue.range_mut(..=ack_seq).map(|(_, queued)| queued) {
            if !queued.is_received && queued.claimed_by.as_ref() == Some(place) {
                queued.is_received = true;
                queued.message.contents = Contents::Whole(RawJson::of(&serde_json::Map::new()));
                senders.push(queued.message.from.clone());
            }
        }
        senders.sort_unstable();
        senders.dedup();
        AckOutcome { before, ack_seq, senders }
    }

    fn claim(&mut self, place: &DeviceSlot, seq: i64) -> bool {
        let unclaimed = |queued: &&mut QueuedMessage| queued.claimed_by.is_none() && !queued.is_received;
        let claimed = self.queue.get_mut(&seq).filter(unclaimed).map(|queued| queued.claimed_by = Some(place.clone()));
        claimed.is_some()
    }

    fn claim_open(&mut self, place: &DeviceSlot, after: i64, upto: i64, now: Timestamp) -> Vec<StoredMessage> {
        let since = queued_since(now);
        let mut claimed = vec![];
        for (seq, queued) in &mut self.queue {
            let is_open = !queued.is_received && queued.claimed_by.as_ref().is_none_or(|by| by == place);
            if *seq > after && *seq <= upto && is_open && queued.message.sent_at > since {
                queued.claimed_by = Some(place.clone());
                claimed.push(queued.message.clone());
            }
        }
        claimed
    }

    fn release(&mut self, place: &DeviceSlot, seq: i64) {
        let claimed = |queued: &&mut QueuedMessage| queued.claimed_by.as_ref() == Some(place) && !queued.is_received;
        if let Some(queued) = self.queue.get_mut(&seq).filter(claimed) {
            queued.claimed_by = None;
        }
    }

    fn expire(&mut self, idle_since: Timestamp, now: Timestamp) {
        self.stored.retain(|_, stored| stored.expires_at > now);
        self.acks.retain(|_, mark| mark.updated_at > idle_since);
        if self.acks.len() > PLACES_MAX as usize {
            let mut newest_first: Vec<(DeviceSlot, Mark)> = self.acks.drain().collect();
            newest_first.sort_unstable_by(|(left, mark), (right, other)| {
                let by_time = other.updated_at.cmp(&mark.updated_at);
                by_time.then_with(|| (&left.device_id, &left.slot_id).cmp(&(&right.device_id, &right.slot_id)))
            });
            self.acks.extend(newest_first.into_iter().take(PLACES_MAX as usize));
        }
        if self.queue.values().any(|queued| queued.message.sent_at <= queued_since(now)) {
            self.trim(now);
        }
    }

    /// The position that a device slot has acknowledged; 0 at first.
    pub fn ack_seq(&self, place: &DeviceSlot) -> i64 {
        self.acks.get(place).map_or(0, |mark| mark.seq)
    }

    /// The stored messages that a device can read, in order.
    pub fn list<'a>(&'a self, device_id: &'a str, after: i64, now: Timestamp) -> impl Iterator<Item = Message> + 'a {
        self.list_stored(after, now).filter_map(|message| message.for_device(device_id))
    }

    /// The stored messages with their copies for all devices, in order.
    pub fn list_stored(&self, after: i64, now: Timestamp) -> impl Iterator<Item = &StoredMessage> {
        let live = move |stored: &&Stored| stored.message.seq > after && !stored.is_recalled && stored.expires_at > now;
        self.stored.values().filter(live).map(|stored| &stored.message)
    }

    pub fn queue(&self, place: &DeviceSlot, now: Timestamp) -> QueueView {
        let since = queued_since(now);
        let mut view = QueueView { dropped: self.dropped, ..QueueView::default() };
        for (seq, queued) in self.queue.iter().filter(|(_, queued)| !queued.is_received) {
            if queued.message.sent_at <= since {
                view.dropped += i64::from(queued.claimed_by.is_none());
                continue;
            }
            view.earliest_seq.get_or_insert(*seq);
            if queued.claimed_by.as_ref().is_none_or(|by| by == place) {
                view.open.push((*seq, queued.message.contents_bytes()));
            }
        }
        view
    }

    /// A queued message that has not been acknowledged.
    pub fn get_queued(&self, seq: i64) -> Option<&StoredMessage> {
        self.queue.get(&seq).filter(|queued| !queued.is_received).map(|queued| &queued.message)
    }

    /// Whether a device slot has claimed the message of the queue.
    pub fn is_claimed(&self, seq: i64) -> bool {
        self.queue.get(&seq).is_some_and(|queued| queued.claimed_by.is_some())
    }

    /// Queued messages that no device slot has claimed.
    pub fn list_unclaimed(&self, now: Timestamp) -> Vec<i64> {
        let since = queued_since(now);
        let unclaimed = |queued: &QueuedMessage| {
            queued.claimed_by.is_none() && !queued.is_received && queued.message.sent_at > since
        };
        self.queue.iter().filter(|(_, queued)| unclaimed(queued)).map(|(seq, _)| *seq).collect()
    }
}
