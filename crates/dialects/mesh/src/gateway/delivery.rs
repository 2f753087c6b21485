//! Gives letters to their owners' connections on this server, to each in the order of the mailbox. The next letter goes out as
//! it was committed; a connection that lacks one before it, or could not be told more, has the mailbox read from where it is.
//! Nothing here is the only copy: what is missed is pulled.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

use futures_util::future::join_all;
use ostler_protocol::{
    Failure,
    mesh::{
        Aid,
        connections::{Mode, Place, Routing},
        messages::{Message, RECEIVED_EVENT},
    },
};
use ostler_store::mesh::{
    messages::{self as store, Contents, Letter},
    queue,
};
use tokio::sync::Notify;

use super::{
    connections::{Connected, ConnectionId, Connections},
    conversation::notification,
};
use crate::{service::presence, state::Mesh, topics::MAILBOX};
use ostler_server::{app::App, net::sockets::Frame};

/// Letters read at once; each may be large.
const LETTERS_MAX: u32 = 20;
/// Mailboxes read from at once.
const READERS: usize = 4;
/// Mailboxes that are asked at once how far they are.
const MAILBOXES_MAX: usize = 500;
/// Agents that left are forgotten when there are this many more than connections.
const FORGOTTEN_AT: usize = 1_024;
/// Senders whose connection is remembered per agent.
const AFFINITIES_MAX: usize = 4_096;

pub struct Delivery {
    connections: Arc<Connections>,
    bound: Mutex<HashMap<Aid, BySender>>,
    behind: Mutex<Behind>,
    some: Notify,
    /// Nobody knows which.
    all: Notify,
}

/// Mailboxes to be read again, and those that are being read: two readers of one would hand things out of order.
/// Whoever has waited longest comes next.
#[derive(Default)]
struct Behind {
    order: VecDeque<Aid>,
    waiting: HashSet<Aid>,
    reading: HashSet<Aid>,
}

/// Which connection of an agent got a sender's last message of the queue, and when.
type BySender = HashMap<Aid, (ConnectionId, i64)>;

/// A letter as it goes over the wire.
enum Frames {
    /// A message of the queue is taken first, which its sender's call or the worker does.
    Queued,
    Whole(Frame),
    /// For each device its own.
    Copies(HashMap<String, Frame>),
}

impl Frames {
    fn of(letter: &Letter) -> Self {
        let frame = |message: Message| notification(RECEIVED_EVENT, &message);
        match &letter.contents {
            _ if letter.mode == Mode::Queue => Self::Queued,
            Contents::Whole(_) => letter.for_device("").map_or(Self::Queued, |message| Self::Whole(frame(message))),
            Contents::Copies(copies) => {
                let devices = copies.iter().map(|copy| &copy.device_id);
                let each = devices.filter_map(|device| Some((device.clone(), frame(letter.for_device(device)?))));
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
        // Past those that are being read, of which there are no more than readers.
        let at = self.order.iter().position(|aid| !self.reading.contains(aid))?;
        let next = self.order.remove(at)?;
        self.waiting.remove(&next);
        self.reading.insert(next.clone());
        Some(next)
    }
}

impl Delivery {
    pub fn new(connections: Arc<Connections>) -> Self {
        let (bound, behind) = Default::default();
        Self { connections, bound, behind, some: Notify::new(), all: Notify::new() }
    }

    /// A letter was made durable here. Whether somebody connected is given it, now or in a moment.
    pub fn deliver(&self, letter: &Letter) -> bool {
        if !self.connections.is_online(&letter.owner) {
            return false;
        }
        let frames = Frames::of(letter);
        let passed = self.connections.pass_on(&letter.owner, letter.seq - 1, letter.seq, |one| frames.to(one));
        if passed.is_behind {
            self.look_again(&letter.owner);
        }
        passed.given > 0 || (passed.is_behind && letter.mode == Mode::Fanout)
    }

    /// There may be something in this mailbox that its connections here were not told.
    pub fn look_again(&self, aid: &Aid) {
        if self.connections.is_online(aid) {
            self.behind().add(aid);
            self.some.notify_one();
        }
    }

    /// Nobody knows what was missed.
    pub fn look_at_all(&self) {
        self.all.notify_one();
    }

    /// Gives a message of the queue to one connection, if one here can have it and nobody else has taken it. Whether somebody
    /// has it now: the worker may have come before its sender's call.
    pub async fn hand_out(&self, app: &App, letter: &Letter) -> Result<bool, Failure> {
        while let Some((chosen, place)) = self.choose(letter, app.now().as_millisecond()) {
            let Some(message) = letter.for_device(&place.device_id) else { return Ok(false) };
            let frame = notification(RECEIVED_EVENT, &message);
            if !queue::claim(&app.db, &letter.owner, letter.seq, &place).await? {
                return Ok(queue::is_taken(&app.db, &letter.owner, letter.seq).await?);
            }
            if self.connections.offer(&letter.owner, chosen, &frame) {
                return Ok(true);
            }
            // It left meanwhile: whoever is next has it, here or elsewhere.
            queue::release(&app.db, &letter.owner, letter.seq, &place).await?;
            app.wake_others(&MAILBOX, &letter.owner);
        }
        Ok(false)
    }

    /// One consumer: the sender's last one for as long as it is bound to it, else whose turn it is. Turns go by the message's
    /// number, so that all who would hand it out at once mean the same consumer.
    fn choose(&self, letter: &Letter, now_ms: i64) -> Option<(ConnectionId, Place)> {
        let consumers = self.connections.ready(&letter.owner);
        let mode = consumers.first()?.live.delivery_mode;
        let next = &consumers[letter.seq as usize % consumers.len()];
        if mode.routing != Routing::SenderAffinity {
            return Some((next.id, next.live.place.clone()));
        }
        let mut bound = self.bound();
        if bound.len() > self.connections.count() + FORGOTTEN_AT {
            bound.retain(|aid, _| self.connections.is_online(aid));
        }
        let by_sender = bound.entry(letter.owner.clone()).or_default();
        let is_bound = |at: i64| mode.affinity_ttl_ms == 0 || now_ms - at < mode.affinity_ttl_ms;
        let last = by_sender.get(&letter.from).filter(|(_, at)| is_bound(*at));
        let chosen = last.and_then(|(id, _)| consumers.iter().find(|one| one.id == *id)).unwrap_or(next);
        if by_sender.len() >= AFFINITIES_MAX {
            by_sender.clear();
        }
        by_sender.insert(letter.from.clone(), (chosen.id, now_ms));
        Some((chosen.id, chosen.live.place.clone()))
    }

    async fn next_behind(&self) -> Aid {
        loop {
            let next = self.behind().take();
            match next {
                Some(aid) => return aid,
                None => self.some.notified().await,
            }
        }
    }

    /// It was read, and may be read again.
    fn leave(&self, aid: &Aid) {
        self.behind().reading.remove(aid);
        self.some.notify_one();
    }

    /// Reads a mailbox from where its connections here are, and tells them as much as they can be told now.
    async fn catch_up(&self, app: &App, aid: &Aid) -> Result<(), Failure> {
        let Some(mailbox) = store::get_mailbox(&app.db, aid).await? else { return Ok(()) };
        if mailbox.mode == Mode::Queue {
            self.hand_out_untaken(app, aid).await?;
        }
        while let Some(mut after) = self.connections.told(aid).filter(|told| *told < mailbox.last_seq) {
            let read = store::list_letters(&app.db, aid, after, LETTERS_MAX, app.now());
            let letters = read.await?;
            for letter in letters.iter().take_while(|letter| letter.seq <= mailbox.last_seq) {
                let frames = Frames::of(letter);
                self.connections.pass_on(aid, after, letter.seq, |one| frames.to(one));
                after = letter.seq;
            }
            let is_all = letters.len() < LETTERS_MAX as usize;
            if is_all || letters.last().is_some_and(|last| last.seq > mailbox.last_seq) {
                // What is not there was recalled, has expired or is in the queue.
                self.connections.pass_on(aid, after, mailbox.last_seq, |_| None);
            }
        }
        Ok(())
    }

    /// Hands out what waits in the queue of an agent, as far as there is somebody to take it.
    async fn hand_out_untaken(&self, app: &App, aid: &Aid) -> Result<(), Failure> {
        for seq in queue::list_untaken(&app.db, aid, app.now()).await? {
            if self.connections.ready(aid).is_empty() {
                break;
            }
            if let Some(letter) = queue::get_queued(&app.db, aid, seq).await? {
                self.hand_out(app, &letter).await?;
            }
        }
        Ok(())
    }

    /// Has those mailboxes read that hold more than was told here, whoever failed to say so. One into whose queue something
    /// was put lately is read in any case: what was handed out may have come back.
    async fn look_for_missed(&self, app: &App) -> Result<(), Failure> {
        for some in self.connections.all_told().chunks(MAILBOXES_MAX) {
            let aids: Vec<&Aid> = some.iter().map(|(aid, _)| aid).collect();
            let mailboxes = store::list_mailboxes(&app.db, &aids).await?;
            for (aid, told) in some {
                if mailboxes.get(aid).is_some_and(|mailbox| mailbox.last_seq > *told || mailbox.may_hold(app.now())) {
                    self.look_again(aid);
                }
            }
        }
        Ok(())
    }

    fn behind(&self) -> MutexGuard<'_, Behind> {
        self.behind.lock().expect("never poisoned")
    }

    fn bound(&self) -> MutexGuard<'_, HashMap<Aid, BySender>> {
        self.bound.lock().expect("never poisoned")
    }
}

/// Reads again what must be read again, and tells the other servers who has left, until the server stops.
pub async fn run(app: App) {
    let recheck = async {
        loop {
            let _ = tokio::time::timeout(app.recheck(), Mesh::of(&app).delivery.all.notified()).await;
            if let Err(failure) = Mesh::of(&app).delivery.look_for_missed(&app).await {
                warn(&failure, "whether somebody missed a message could not be read; it is tried again");
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
        let aid = Mesh::of(app).delivery.next_behind().await;
        if let Err(failure) = Mesh::of(app).delivery.catch_up(app, &aid).await {
            warn(&failure, "a mailbox could not be read; it is tried again");
        }
        Mesh::of(app).delivery.leave(&aid);
    }
}

fn warn(failure: &Failure, what: &str) {
    tracing::warn!(%failure, cause = failure.cause.as_deref(), "{what}");
}

#[cfg(test)]
mod tests;
