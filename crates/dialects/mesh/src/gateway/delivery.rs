//! Pushes messages to their owners' connections on this server, to each in the order of the mailbox. The next message is pushed
//! as it was committed. For a connection that lacks an earlier one, or whose queue was full, the mailbox is read from its
//! sequence number. Nothing here is the only copy: a client pulls what it has missed.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use futures_util::future::join_all;
use ostler_protocol::{
    Failure,
    mesh::{
        Aid,
        connections::{DeviceSlot, Mode, Routing},
        messages::{Message, RECEIVED_EVENT},
    },
};
use ostler_store::mesh::{
    messages::{self as store, Contents, StoredMessage},
    queue,
};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::{
    connections::{Connected, ConnectionId, Connections},
    frames::notification,
};
use crate::{service::presence, state::Mesh};
use ostler_server::{
    app::App,
    dialect::{LegacyWord, Topic},
    net::sockets::Frame,
    recheck::Recheck,
};

/// Messages read at once; each may be large.
const MESSAGES_READ_MAX: u32 = 20;
/// Mailboxes read from at once.
const READERS: usize = 4;
/// Mailboxes whose last numbers are read at once.
const MAILBOXES_MAX: usize = 500;
/// Identities without a connection are forgotten when there are this many more than connections.
const FORGOTTEN_AT: usize = 1_024;
/// Senders whose connection is remembered per identity.
const AFFINITIES_MAX: usize = 4_096;

/// An identity's mailbox has a new message; a frame is for all connections of the identity.
pub(crate) const MAILBOX: Topic =
    Topic::new("mesh.mailbox", wake_mailbox, |app| MessageDelivery::of(app).look_at_all())
        .receive(|app, key, frame| {
            if let Ok(aid) = key.parse::<Aid>() {
                Mesh::of(app).connections.push(&aid, &frame);
            }
        })
        .legacy(|word| match word {
            LegacyWord::Listener(name) | LegacyWord::Frame(name, _) => is_aid(name).then(|| name.clone()),
            LegacyWord::Urgent(_) => None,
        });

pub(crate) struct MessageDelivery {
    connections: Arc<Connections>,
    bound: Mutex<HashMap<Aid, BySender>>,
    behind: Mutex<Behind>,
    added: Notify,
    /// Notified when any mailbox may be behind.
    all: Notify,
}

/// Mailboxes to be read again, and those that are being read: two readers of one mailbox would push out of order. The one that
/// has waited longest is next.
#[derive(Default)]
struct Behind {
    order: VecDeque<Aid>,
    waiting: HashSet<Aid>,
    reading: HashSet<Aid>,
}

/// Which connection of an identity received a sender's last message of the queue, and when.
type BySender = HashMap<Aid, (ConnectionId, i64)>;

/// A message as it goes over the wire.
enum Frames {
    /// A message of the queue must be claimed first, which its sender's call or the worker does.
    Queued,
    Whole(Frame),
    /// One frame for each device.
    Copies(HashMap<String, Frame>),
}

impl Frames {
    fn of(stored: &StoredMessage) -> Self {
        let frame = |message: Message| notification(RECEIVED_EVENT, &message);
        match &stored.contents {
            _ if stored.mode == Mode::Queue => Self::Queued,
            Contents::Whole(_) => stored.for_device("").map_or(Self::Queued, |message| Self::Whole(frame(message))),
            Contents::Copies(copies) => {
                let devices = copies.iter().map(|copy| &copy.device_id);
                let each = devices.filter_map(|device| Some((device.clone(), frame(stored.for_device(device)?))));
                Self::Copies(each.collect())
            }
        }
    }

    fn to(&self, one: &Connected) -> Option<&Frame> {
        match self {
            Self::Queued => None,
            Self::Whole(frame) => Some(frame),
            Self::Copies(each) => each.get(&one.live.place.device_id),
        }
    }
}

impl Behind {
    fn add(&mut self, aid: &Aid) {
        if self.waiting.insert(aid.clone()) {
            self.order.push_back(aid.clone());
        }
    }

    fn take(&mut self) -> Option<Aid> {
        // Skip those that are being read; there are at most as many as readers.
        let at = self.order.iter().position(|aid| !self.reading.contains(aid))?;
        let next = self.order.remove(at)?;
        self.waiting.remove(&next);
        self.reading.insert(next.clone());
        Some(next)
    }
}

impl MessageDelivery {
    pub(crate) fn of(app: &App) -> &Self {
        app.state()
    }

    pub(crate) fn new(connections: Arc<Connections>) -> Self {
        let (bound, behind) = Default::default();
        Self { connections, bound, behind, added: Notify::new(), all: Notify::new() }
    }

    /// Pushes a message that this server has committed. True if a connection has it, or will have it in a moment.
    pub(crate) fn deliver(&self, stored: &StoredMessage) -> bool {
        if !self.connections.is_online(&stored.owner) {
            return false;
        }
        let frames = Frames::of(stored);
        let outcome = self.connections.push_in_order(&stored.owner, stored.seq - 1, stored.seq, |one| frames.to(one));
        if outcome.is_behind {
            self.look_again(&stored.owner);
        }
        outcome.pushed > 0 || (outcome.is_behind && stored.mode == Mode::Fanout)
    }

    /// Has a mailbox read again: it may hold messages that its connections to this server have not received.
    pub(crate) fn look_again(&self, aid: &Aid) {
        if self.connections.is_online(aid) {
            self.behind().add(aid);
            self.added.notify_one();
        }
    }

    /// Has all mailboxes checked, after wake-ups may have been lost.
    pub(crate) fn look_at_all(&self) {
        self.all.notify_one();
    }

    /// Pushes a message of the queue to one connection, if one on this server can receive it and no other has claimed it. True
    /// if a connection has it now: the worker may have handed it out before its sender's call does.
    pub(crate) async fn hand_out(&self, app: &App, stored: &StoredMessage) -> Result<bool, Failure> {
        while let Some((chosen, place)) = self.choose(stored, app.now().as_millisecond()) {
            let Some(message) = stored.for_device(&place.device_id) else { return Ok(false) };
            let frame = notification(RECEIVED_EVENT, &message);
            if !queue::claim(&app.db, &stored.owner, stored.seq, &place).await? {
                return Ok(queue::is_taken(&app.db, &stored.owner, stored.seq).await?);
            }
            if self.connections.offer(&stored.owner, chosen, &frame) {
                return Ok(true);
            }
            // The connection has closed in the meantime: release the message for the next one, on this server or another.
            queue::release(&app.db, &stored.owner, stored.seq, &place).await?;
            MAILBOX.wake_others(app, &stored.owner);
        }
        Ok(false)
    }

    /// Chooses one consumer: the sender's last one while the affinity lasts, else the next in turn. The turn follows from the
    /// message's number, so that concurrent callers choose the same consumer.
    fn choose(&self, stored: &StoredMessage, now_ms: i64) -> Option<(ConnectionId, DeviceSlot)> {
        let consumers = self.connections.ready(&stored.owner);
        let mode = consumers.first()?.live.delivery_mode;
        let next = &consumers[stored.seq as usize % consumers.len()];
        if mode.routing != Routing::SenderAffinity {
            return Some((next.id, next.live.place.clone()));
        }
        let mut bound = self.bound();
        if bound.len() > self.connections.count() + FORGOTTEN_AT {
            bound.retain(|aid, _| self.connections.is_online(aid));
        }
        let by_sender = bound.entry(stored.owner.clone()).or_default();
        let is_bound = |at: i64| mode.affinity_ttl_ms == 0 || now_ms - at < mode.affinity_ttl_ms;
        let last = by_sender.get(&stored.from).filter(|(_, at)| is_bound(*at));
        let chosen = last.and_then(|(id, _)| consumers.iter().find(|one| one.id == *id)).unwrap_or(next);
        if by_sender.len() >= AFFINITIES_MAX {
            by_sender.clear();
        }
        by_sender.insert(stored.from.clone(), (chosen.id, now_ms));
        Some((chosen.id, chosen.live.place.clone()))
    }

    async fn next_behind(&self) -> Aid {
        loop {
            let next = self.behind().take();
            match next {
                Some(aid) => return aid,
                None => self.added.notified().await,
            }
        }
    }

    /// Ends the reading of a mailbox, so that it may be read again.
    fn finish_reading(&self, aid: &Aid) {
        self.behind().reading.remove(aid);
        self.added.notify_one();
    }

    /// Reads a mailbox from where its connections to this server are, and pushes as much as their queues have room for.
    async fn catch_up(&self, app: &App, aid: &Aid) -> Result<(), Failure> {
        let Some(mailbox) = store::get_mailbox(&app.db, aid).await? else { return Ok(()) };
        if mailbox.mode == Mode::Queue {
            self.hand_out_untaken(app, aid).await?;
        }
        while let Some(mut after) = self.connections.pushed_seq(aid).filter(|pushed| *pushed < mailbox.last_seq) {
            let read = store::list_stored(&app.db, aid, after, MESSAGES_READ_MAX, app.now());
            let stored_messages = read.await?;
            for stored in stored_messages.iter().take_while(|stored| stored.seq <= mailbox.last_seq) {
                let frames = Frames::of(stored);
                self.connections.push_in_order(aid, after, stored.seq, |one| frames.to(one));
                after = stored.seq;
            }
            let is_all = stored_messages.len() < MESSAGES_READ_MAX as usize;
            if is_all || stored_messages.last().is_some_and(|last| last.seq > mailbox.last_seq) {
                // The missing numbers were recalled, have expired or are in the queue.
                self.connections.push_in_order(aid, after, mailbox.last_seq, |_| None);
            }
        }
        Ok(())
    }

    /// Hands out the messages in an identity's queue, as long as a connection can receive one.
    async fn hand_out_untaken(&self, app: &App, aid: &Aid) -> Result<(), Failure> {
        for seq in queue::list_untaken(&app.db, aid, app.now()).await? {
            if self.connections.ready(aid).is_empty() {
                break;
            }
            if let Some(stored) = queue::get_queued(&app.db, aid, seq).await? {
                self.hand_out(app, &stored).await?;
            }
        }
        Ok(())
    }

    /// Has those mailboxes read that hold more than was pushed here, whatever wake-up was lost. A mailbox whose queue received
    /// a message lately is read in any case: a message that was handed out may have been released.
    async fn look_for_missed(&self, app: &App) -> Result<(), Failure> {
        for some in self.connections.all_pushed_seqs().chunks(MAILBOXES_MAX) {
            let aids: Vec<&Aid> = some.iter().map(|(aid, _)| aid).collect();
            let mailboxes = store::list_mailboxes(&app.db, &aids).await?;
            for (aid, pushed) in some {
                if mailboxes.get(aid).is_some_and(|mailbox| mailbox.last_seq > *pushed || mailbox.may_hold(app.now())) {
                    self.look_again(aid);
                }
            }
        }
        Ok(())
    }

    fn behind(&self) -> MutexGuard<'_, Behind> {
        self.behind.lock()
    }

    fn bound(&self) -> MutexGuard<'_, HashMap<Aid, BySender>> {
        self.bound.lock()
    }
}

fn wake_mailbox(app: &App, key: &str) {
    if let Ok(aid) = key.parse::<Aid>() {
        MessageDelivery::of(app).look_again(&aid);
    }
}

/// Names of the mesh have a dot in them; in the former format no other names had one.
fn is_aid(name: &str) -> bool {
    name.parse::<Aid>().is_ok()
}

/// Reads mailboxes that are behind, and deletes closed connections from the store, until the server stops.
pub(crate) async fn run(app: App) {
    let recheck = async {
        loop {
            Recheck::new(&app).or_woken(None, MessageDelivery::of(&app).all.notified()).await;
            if let Err(failure) = MessageDelivery::of(&app).look_for_missed(&app).await {
                warn(&failure, "mailboxes could not be checked for missed messages; trying again");
            }
        }
    };
    tokio::select! {
        _ = join_all((0..READERS).map(|_| read(&app))) => {}
        () = recheck => {}
        () = presence::run(&app) => {}
        () = app.stopped() => {}
    }
}

async fn read(app: &App) {
    loop {
        let aid = MessageDelivery::of(app).next_behind().await;
        if let Err(failure) = MessageDelivery::of(app).catch_up(app, &aid).await {
            warn(&failure, "a mailbox could not be read; trying again");
        }
        MessageDelivery::of(app).finish_reading(&aid);
    }
}

fn warn(failure: &Failure, what: &str) {
    tracing::warn!(%failure, cause = failure.cause.as_deref(), "{what}");
}

#[cfg(test)]
mod tests;
