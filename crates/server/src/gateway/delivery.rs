//! Gives letters to their owners' connections on this server, in the order of the mailbox. The next letter goes out as it was
//! committed; one that is not the next, because another server gave out the numbers between, has the mailbox read again.
//! Nothing here is the only copy: what is missed is pulled.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use ostler_protocol::{
    Failure,
    mesh::{
        Aid,
        connections::{Mode, Place, Routing},
        messages::{Message, RECEIVED_EVENT},
    },
};
use ostler_store::mesh_messages::{self as store, Contents, Letter};
use tokio::sync::Notify;

use super::{
    connections::{Connected, ConnectionId, Connections},
    conversation::notification,
};
use crate::{
    app::{App, store_failure},
    service::mesh_messages,
};

/// Letters read at once; each may be large.
const LETTERS_MAX: u32 = 50;
/// Agents that left are forgotten when there are this many more than connections.
const FORGOTTEN_AT: usize = 1_024;
/// Senders whose connection is remembered per agent.
const AFFINITIES_MAX: usize = 4_096;
const PRESENT_EVERY: Duration = Duration::from_secs(5);

pub struct Delivery {
    connections: Arc<Connections>,
    progress: Mutex<HashMap<Aid, Progress>>,
    /// Mailboxes to be read again.
    behind: Mutex<BTreeSet<Aid>>,
    some: Notify,
}

/// How far the connections of an agent here were told.
#[derive(Default)]
struct Progress {
    seq: i64,
    /// The mailbox is being read; meanwhile nothing goes past it.
    is_reading: bool,
    /// The connection that last got a message of the queue.
    last: Option<ConnectionId>,
    /// Which connection got this sender's last message, and when.
    by_sender: HashMap<Aid, (ConnectionId, i64)>,
}

impl Delivery {
    pub fn new(connections: Arc<Connections>) -> Self {
        Self { connections, progress: Mutex::default(), behind: Mutex::default(), some: Notify::new() }
    }

    /// What comes after this number is for the connections that an agent has now.
    pub fn begin(&self, aid: &Aid, last_seq: i64) {
        let mut progress = self.progress();
        if progress.len() > self.connections.count() + FORGOTTEN_AT {
            progress.retain(|aid, _| self.connections.is_online(aid));
        }
        let own = progress.entry(aid.clone()).or_default();
        own.seq = own.seq.max(last_seq);
    }

    /// A letter was made durable here. Whether somebody connected is given it, now or in a moment.
    pub fn deliver(&self, letter: &Letter) -> bool {
        if !self.connections.is_online(&letter.owner) {
            return false;
        }
        let mut progress = self.progress();
        let own = progress
            .entry(letter.owner.clone())
            .or_insert_with(|| Progress { seq: letter.seq - 1, ..Progress::default() });
        if letter.seq <= own.seq {
            return true;
        }
        if own.is_reading || letter.seq > own.seq + 1 {
            drop(progress);
            self.look_again(&letter.owner);
            return true;
        }
        own.seq = letter.seq;
        // A message of the queue is taken first, which its sender's call or the worker does.
        letter.mode == Mode::Fanout && self.push(letter) > 0
    }

    /// Another server may have put something into this mailbox.
    pub fn look_again(&self, aid: &Aid) {
        if self.connections.is_online(aid) {
            self.behind.lock().expect("never poisoned").insert(aid.clone());
            self.some.notify_one();
        }
    }

    /// Nobody knows what was missed.
    pub fn look_at_all(&self) {
        let all: Vec<Aid> = self.progress().keys().cloned().collect();
        all.iter().for_each(|aid| self.look_again(aid));
    }

    /// Tells every device what is for it, and says how many.
    fn push(&self, letter: &Letter) -> usize {
        match &letter.contents {
            Contents::Whole(_) => letter.for_device("").map_or(0, |message| self.tell(letter, &message, |_| true)),
            Contents::Copies(copies) => {
                let devices = copies.iter().filter_map(|copy| letter.for_device(&copy.device_id));
                devices
                    .map(|message| {
                        let device_id = message.device_id.clone().unwrap_or_default();
                        self.tell(letter, &message, |one| one.live.place.device_id == device_id)
                    })
                    .sum()
            }
        }
    }

    fn tell(&self, letter: &Letter, message: &Message, is_meant: impl Fn(&Connected) -> bool) -> usize {
        self.connections.push(&letter.owner, is_meant, &notification(RECEIVED_EVENT, message))
    }

    /// Gives a message of the queue to one connection, if there is one here and nobody else has taken it.
    pub async fn hand_out(&self, app: &App, letter: &Letter) -> Result<bool, Failure> {
        let Some((chosen, place)) = self.choose(letter, app.now().as_millisecond()) else { return Ok(false) };
        let claimed = store::claim(&app.db, &letter.owner, letter.seq, &place).await.map_err(store_failure)?;
        let message = letter.for_device(&place.device_id).filter(|_| claimed);
        Ok(message.is_some_and(|message| self.tell(letter, &message, |one| one.id == chosen) > 0))
    }

    /// One consumer: the sender's last one for as long as it is bound to it, else the next in turn.
    fn choose(&self, letter: &Letter, now_ms: i64) -> Option<(ConnectionId, Place)> {
        let consumers = self.connections.of(&letter.owner);
        let first = consumers.first()?;
        let mode = first.live.delivery_mode;
        let mut progress = self.progress();
        let own = progress.entry(letter.owner.clone()).or_default();
        let bound = own.by_sender.get(&letter.from).filter(|(_, at)| {
            mode.routing == Routing::SenderAffinity && (mode.affinity_ttl_ms == 0 || now_ms - at < mode.affinity_ttl_ms)
        });
        let next = || consumers.iter().find(|one| own.last.is_none_or(|last| one.id > last)).unwrap_or(first);
        let chosen = bound.and_then(|(id, _)| consumers.iter().find(|one| one.id == *id)).unwrap_or_else(next);
        own.last = Some(chosen.id);
        if mode.routing == Routing::SenderAffinity {
            if own.by_sender.len() >= AFFINITIES_MAX {
                own.by_sender.clear();
            }
            own.by_sender.insert(letter.from.clone(), (chosen.id, now_ms));
        }
        Some((chosen.id, chosen.live.place.clone()))
    }

    async fn next_behind(&self) -> Aid {
        loop {
            let next = self.behind.lock().expect("never poisoned").pop_first();
            match next {
                Some(aid) => return aid,
                None => self.some.notified().await,
            }
        }
    }

    /// Reads a mailbox from where its connections here are, and tells them.
    async fn catch_up(&self, app: &App, aid: &Aid) -> Result<(), Failure> {
        let Some(mut after) = self.progress().get_mut(aid).map(|own| {
            own.is_reading = true;
            own.seq
        }) else {
            return Ok(());
        };
        let read = self.read_on(app, aid, &mut after).await;
        if let Some(own) = self.progress().get_mut(aid) {
            own.is_reading = false;
            own.seq = own.seq.max(after);
        }
        read
    }

    async fn read_on(&self, app: &App, aid: &Aid, after: &mut i64) -> Result<(), Failure> {
        let began_after = *after;
        let Some(mailbox) = store::get_mailbox(&app.db, aid).await.map_err(store_failure)? else { return Ok(()) };
        while *after < mailbox.last_seq {
            let read = store::list_letters(&app.db, aid, *after, LETTERS_MAX, app.now());
            let letters = read.await.map_err(store_failure)?;
            let known = letters.iter().filter(|letter| letter.seq <= mailbox.last_seq);
            for letter in known {
                self.push(letter);
            }
            let last = letters.last().filter(|_| letters.len() == LETTERS_MAX as usize);
            // What is not there was recalled, has expired or is in the queue.
            *after = last.map_or(mailbox.last_seq, |last| last.seq.min(mailbox.last_seq));
        }
        if mailbox.mode == Mode::Queue {
            self.hand_out_untaken(app, aid, began_after).await?;
        }
        Ok(())
    }

    /// Hands out what waits in the queue of an agent.
    pub async fn hand_out_untaken(&self, app: &App, aid: &Aid, after: i64) -> Result<(), Failure> {
        for seq in store::list_untaken(&app.db, aid, after, app.now()).await.map_err(store_failure)? {
            if let Some(letter) = store::get_queued(&app.db, aid, seq).await.map_err(store_failure)? {
                self.hand_out(app, &letter).await?;
            }
        }
        Ok(())
    }

    fn progress(&self) -> MutexGuard<'_, HashMap<Aid, Progress>> {
        self.progress.lock().expect("never poisoned")
    }
}

/// Reads again what must be read again, and keeps the other servers informed of who is here, until the server stops.
pub async fn run(app: App) {
    let read = async {
        loop {
            let aid = app.mesh.delivery.next_behind().await;
            if let Err(failure) = app.mesh.delivery.catch_up(&app, &aid).await {
                let cause = failure.cause.as_deref();
                tracing::warn!(%failure, cause, "a mailbox could not be read; its agent pulls it");
            }
        }
    };
    let present = async {
        while app.db.multi_replica() {
            if let Err(failure) = mesh_messages::keep_present(&app).await {
                tracing::warn!(%failure, cause = failure.cause.as_deref(), "the other servers do not know who is here");
            }
            tokio::time::sleep(PRESENT_EVERY).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = read => {}
        () = present => {}
        () = app.stopped() => {}
    }
}
