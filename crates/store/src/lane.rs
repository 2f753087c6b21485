//! Write lanes: every hot verb goes through here. While a flush is on its way to the disk new requests queue; the next
//! flush takes them all in one transaction, and an answer means durable. There is no artificial delay.
//!
//! A flush is the same on both engines: load the rows its requests touch, decide each with `protocol::kernel`, write
//! everything back, commit, publish, answer. Only loading and writing have two arms. Messages of the mesh touch mailboxes,
//! not sessions: on SQLite they fall into the same flushes, on Postgres they have a lane of their own.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use ostler_protocol::{
    Failure, Rule, Timestamp,
    ids::{RunId, SessionId},
    kernel::aliases::CommandAlias,
    kernel::{
        commands::Command,
        events::Event,
        leases::Lease,
        operations::{Batch, Desk, Reply, Request, RowChange, Tracked},
        permissions::PermissionRequest,
        runner_jobs::RunnerJob,
        runs::Run,
        sessions::Session,
    },
    mesh::messages::Direction,
};
use tokio::sync::{mpsc, oneshot};

use crate::{
    db::{Db, Engine, StoreError},
    health::StoreFault,
    mesh::messages::{Letter, Post, Posted, Recipients},
    postgres,
};

/// Requests that may wait for one lane. One more is refused as overloaded.
pub const QUEUE_REQUESTS_MAX: usize = 8_192;
/// Requests one flush takes.
pub const FLUSH_REQUESTS_MAX: usize = 512;
/// … and about how much of them: the next flush takes what is over.
pub const FLUSH_BYTES_MAX: usize = 16 * 1024 * 1024;
/// What may wait altogether. One more is refused as overloaded.
pub const QUEUE_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Sessions whose rows a lane keeps between flushes.
const WARM_SESSIONS_MAX: usize = 1_024;

/// What a lane needs of its process.
pub trait Host: Send + Sync + 'static {
    fn now(&self) -> Timestamp;
    /// Called once per flush, after its commit and before its answers.
    fn committed(&self, committed: Committed);
}

/// What a flush made durable.
pub struct Committed {
    /// In order within each session.
    pub events: Vec<Event>,
    pub jobs_waiting: bool,
    pub requests: usize,
    /// When the flush was taken up.
    pub began_at: Timestamp,
}

#[derive(Debug)]
pub enum LaneError {
    /// The kernel said no; nothing of this request was written.
    Refused(Failure),
    /// Another request took a unique key first: read again and decide again.
    Taken,
    Store(StoreError),
}

impl From<StoreError> for LaneError {
    fn from(error: StoreError) -> Self {
        if error.is_unique_violation() { Self::Taken } else { Self::Store(error) }
    }
}

pub(crate) type Answer = Result<Reply, LaneError>;

pub(crate) struct Job {
    pub request: Request,
    pub answer: oneshot::Sender<Answer>,
}

/// A message, or how far one has received them.
pub(crate) struct PostJob {
    pub post: Post,
    pub recipients: Arc<dyn Recipients>,
    pub answer: oneshot::Sender<Result<Posted, LaneError>>,
}

/// Delivers what is durable now, and says whether its recipient got it.
pub(crate) fn delivered(recipients: &dyn Recipients, mut posted: Posted, letters: &[Letter]) -> Posted {
    for letter in letters {
        let given = recipients.deliver(letter);
        if let Posted::Sent(sent) = &mut posted {
            sent.delivered |= given && letter.direction == Direction::Inbound;
        }
    }
    posted
}

/// The way in. Dropping it lets the lanes finish what they hold and end.
pub struct Lanes {
    way: Way,
    queued: Queued,
}

/// What waits for the lanes, or is in one.
#[derive(Default)]
struct Queued {
    requests: AtomicUsize,
    bytes: AtomicUsize,
}

enum Way {
    Sqlite(Arc<crate::sqlite::Sqlite>),
    Postgres { requests: mpsc::Sender<Job>, posts: mpsc::Sender<PostJob> },
}

impl Lanes {
    pub async fn start(db: &Db, host: Arc<dyn Host>) -> Result<Self, StoreError> {
        let way = match &db.engine {
            Engine::Sqlite(sqlite) => {
                sqlite.host(host);
                Way::Sqlite(sqlite.clone())
            }
            Engine::Postgres(connections) => {
                // One, as SQLite has by nature: two divide what waits, and commit twice as often for the same work.
                let (requests, receiver) = mpsc::channel(QUEUE_REQUESTS_MAX);
                tokio::spawn(postgres::Lane::connect(connections).await?.run(receiver, host.clone()));
                let (posts, receiver) = mpsc::channel(QUEUE_REQUESTS_MAX);
                tokio::spawn(postgres::PostLane::new(connections).run(receiver, host));
                Way::Postgres { requests, posts }
            }
        };
        Ok(Self { way, queued: Queued::default() })
    }

    /// How many requests wait or are being flushed, and what they weigh.
    pub fn waiting(&self) -> (usize, usize) {
        (self.queued.requests.load(Ordering::Relaxed), self.queued.bytes.load(Ordering::Relaxed))
    }

    /// Submits a request and waits until it is durable, or refused.
    pub async fn submit(&self, request: Request) -> Answer {
        let weight = Weight::take(&self.queued, request.bytes());
        if weight.total > QUEUE_BYTES_MAX {
            return Err(overloaded());
        }
        let (answer, answered) = oneshot::channel();
        let job = Job { request, answer };
        let queued = match &self.way {
            Way::Sqlite(sqlite) => sqlite.submit(job),
            Way::Postgres { requests, .. } => offer(requests, job),
        };
        queued?;
        answered.await.unwrap_or(Err(LaneError::Store(StoreError::Stopped)))
    }

    /// As [`Lanes::submit`], for a message or an acknowledgement.
    /// Sends or acknowledges messages. What is sent is delivered to `recipients` once it is durable.
    pub async fn post(&self, post: Post, recipients: Arc<dyn Recipients>) -> Result<Posted, LaneError> {
        let weight = Weight::take(&self.queued, post.bytes());
        if weight.total > QUEUE_BYTES_MAX {
            return Err(overloaded());
        }
        let (answer, answered) = oneshot::channel();
        let job = PostJob { post, recipients, answer };
        let queued = match &self.way {
            Way::Sqlite(sqlite) => sqlite.post(job),
            Way::Postgres { posts, .. } => offer(posts, job),
        };
        queued?;
        answered.await.unwrap_or(Err(LaneError::Store(StoreError::Stopped)))
    }
}

fn offer<T>(lane: &mpsc::Sender<T>, job: T) -> Result<(), LaneError> {
    lane.try_send(job).map_err(|error| match error {
        mpsc::error::TrySendError::Full(_) => overloaded(),
        mpsc::error::TrySendError::Closed(_) => LaneError::Store(StoreError::Stopped),
    })
}

/// A request's share of what waits, given back when it is answered or its caller has gone.
struct Weight<'a> {
    queued: &'a Queued,
    bytes: usize,
    total: usize,
}

impl<'a> Weight<'a> {
    fn take(queued: &'a Queued, bytes: usize) -> Self {
        queued.requests.fetch_add(1, Ordering::Relaxed);
        Self { queued, bytes, total: queued.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes }
    }
}

impl Drop for Weight<'_> {
    fn drop(&mut self) {
        self.queued.requests.fetch_sub(1, Ordering::Relaxed);
        self.queued.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

pub(crate) fn overloaded() -> LaneError {
    LaneError::Refused(Failure::rule(Rule::LaneQueue, "the write queue is full; try again shortly"))
}

pub(crate) type Desks = HashMap<SessionId, Desk>;

/// A flush that the database refused is decided again one request at a time, so that what one caller sent never fails
/// another's request. A new run's key or session name is the usual reason: they are unique beyond its session's lock.
/// A lost connection is no reason: there nobody knows what was committed.
pub(crate) fn apart(requests: &[Request], error: &StoreError) -> bool {
    requests.len() > 1 && refused(error)
}

/// The database rejected a value, or a stored row cannot be read.
pub(crate) fn refused(error: &StoreError) -> bool {
    // A full or failing disk fails every part of a flush alike.
    if StoreFault::of(error).is_some() {
        return false;
    }
    let said_no = match error {
        StoreError::Sqlite(_) => true,
        StoreError::Postgres(error) => postgres::is_refusal(error),
        _ => false,
    };
    said_no || error.is_corrupt()
}

/// The rows a flush has to write.
#[derive(Default)]
pub(crate) struct Changes<'a> {
    pub sessions: Rows<'a, Session>,
    pub runs: Rows<'a, Run>,
    pub leases: Rows<'a, Lease>,
    pub commands: Rows<'a, Command>,
    pub permissions: Rows<'a, PermissionRequest>,
    pub jobs: Rows<'a, RunnerJob>,
    pub batches: Vec<&'a Batch>,
    pub forget_batches: Vec<(RunId, i64)>,
    pub events: Vec<&'a Event>,
    pub aliases: Vec<&'a CommandAlias>,
    /// Sessions that were decided on and stay as they are.
    pub consulted: Vec<&'a Session>,
}

/// One table's part of them.
pub(crate) struct Rows<'a, T> {
    pub new: Vec<&'a T>,
    pub changed: Vec<&'a T>,
}

impl<T> Default for Rows<'_, T> {
    fn default() -> Self {
        Self { new: vec![], changed: vec![] }
    }
}

impl<'a, T> Rows<'a, T> {
    fn add(&mut self, row: &'a Tracked<T>) {
        self.new.extend(row.if_to_write(RowChange::New));
        self.changed.extend(row.if_to_write(RowChange::Changed));
    }
}

impl<'a> Changes<'a> {
    pub fn of(desks: &'a Desks) -> Self {
        let mut changes = Self::default();
        for desk in desks.values() {
            changes.sessions.add(&desk.session);
            changes.consulted.extend((!desk.session.is_to_write()).then_some(&*desk.session));
            changes.events.extend(&desk.events);
            changes.aliases.extend(desk.aliases.values().filter_map(|row| row.if_to_write(RowChange::New)));
            for rows in desk.runs.values() {
                changes.runs.add(&rows.run);
                rows.lease.iter().for_each(|row| changes.leases.add(row));
                rows.commands.values().for_each(|row| changes.commands.add(row));
                rows.permissions.values().for_each(|row| changes.permissions.add(row));
                rows.jobs.values().for_each(|row| changes.jobs.add(row));
                changes.batches.extend(rows.batches.iter().filter_map(|row| row.if_to_write(RowChange::New)));
                changes.forget_batches.extend(rows.forget_batches_before.map(|epoch| (rows.run.run_id, epoch)));
            }
        }
        // Keys are taken in one order everywhere, so that two processes never wait for each other in a circle.
        changes.sessions.changed.sort_unstable_by_key(|session| session.session);
        changes.sessions.new.sort_unstable_by_key(|session| (&session.tenant_id, &session.external_id));
        changes.runs.new.sort_unstable_by_key(|run| (&run.tenant_id, &run.idempotency_key));
        changes
    }
}

/// Desks of earlier flushes, so that a session in steady use is not read again and again. On SQLite nobody else can
/// have changed their rows; on Postgres the session's revision tells.
#[derive(Default)]
pub(crate) struct Warm(Desks);

impl Warm {
    pub fn take(&mut self, session: SessionId) -> Option<Desk> {
        self.0.remove(&session)
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// What there is to publish now that the desks are durable; the rest is kept for the next flush.
    pub fn keep(&mut self, mut desks: Desks, requests: usize, began_at: Timestamp) -> Committed {
        let jobs_waiting = desks.values().any(|desk| desk.jobs_waiting);
        let events = desks.values_mut().flat_map(|desk| std::mem::take(&mut desk.events)).collect();
        if self.0.len() > WARM_SESSIONS_MAX {
            self.0.clear();
        }
        self.0.extend(desks.into_iter().filter_map(|(id, mut desk)| desk.keep_warm().then_some((id, desk))));
        Committed { events, jobs_waiting, requests, began_at }
    }
}
