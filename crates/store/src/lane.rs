//! Write lanes: every hot verb goes through here. While a flush is on its way to the disk new requests queue; the next
//! flush takes them all in one transaction, and an answer means durable. There is no artificial delay.
//!
//! A flush is the same on both engines: load the rows its requests touch, decide each with `protocol::kernel`, write
//! everything back, commit, publish, answer. Only loading and writing have two arms.

use std::{collections::HashMap, hash::BuildHasher, sync::Arc};

use ostler_protocol::{
    Failure, FailureKind, Timestamp,
    commands::Command,
    events::Event,
    ids::{RunId, SessionId},
    kernel::{Batch, Desk, Reply, Request},
    leases::Lease,
    permissions::PermissionRequest,
    runner_jobs::RunnerJob,
    runs::Run,
    sessions::Session,
};
use tokio::sync::{mpsc, oneshot};

use crate::{
    db::{Db, Engine, StoreError},
    postgres,
};

/// Requests that may wait for one lane. One more is refused as overloaded.
pub const QUEUE_REQUESTS_MAX: usize = 8_192;
/// Requests one flush takes.
pub const FLUSH_REQUESTS_MAX: usize = 512;
/// Postgres lanes, by session; SQLite has one writer by nature.
const POSTGRES_LANES: usize = 2;

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
}

#[derive(Debug)]
pub enum LaneError {
    /// The kernel said no; nothing of this request was written.
    Refused(Failure),
    /// A unique key was taken by somebody else meanwhile: read again and decide anew.
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

/// The way in. Dropping it lets the lanes finish what they hold and end.
pub struct Lanes {
    way: Way,
}

enum Way {
    Sqlite(Arc<crate::sqlite::Sqlite>),
    Postgres(Vec<mpsc::Sender<Job>>),
}

impl Lanes {
    pub async fn start(db: &Db, host: Arc<dyn Host>) -> Result<Self, StoreError> {
        let way = match &db.engine {
            Engine::Sqlite(sqlite) => {
                sqlite.host(host);
                Way::Sqlite(sqlite.clone())
            }
            Engine::Postgres(pool) => {
                let mut senders = vec![];
                for _ in 0..POSTGRES_LANES {
                    let (sender, receiver) = mpsc::channel(QUEUE_REQUESTS_MAX);
                    tokio::spawn(postgres::Lane::connect(pool).await?.run(receiver, host.clone()));
                    senders.push(sender);
                }
                Way::Postgres(senders)
            }
        };
        Ok(Self { way })
    }

    /// Submits a request and waits until it is durable, or refused.
    pub async fn submit(&self, request: Request) -> Answer {
        let (answer, answered) = oneshot::channel();
        let session = request.session;
        let job = Job { request, answer };
        let queued = match &self.way {
            Way::Sqlite(sqlite) => sqlite.submit(job),
            Way::Postgres(senders) => senders[lane_of(session, senders.len())].try_send(job).map_err(|e| match e {
                mpsc::error::TrySendError::Full(_) => overloaded(),
                mpsc::error::TrySendError::Closed(_) => LaneError::Store(StoreError::Stopped),
            }),
        };
        queued?;
        answered.await.unwrap_or(Err(LaneError::Store(StoreError::Stopped)))
    }
}

pub(crate) fn overloaded() -> LaneError {
    LaneError::Refused(Failure::rule(
        FailureKind::Overloaded,
        "lane-queue",
        "the write queue is full; try again shortly",
    ))
}

/// The same lane for the same session, always.
fn lane_of(session: SessionId, lanes: usize) -> usize {
    let hasher = std::hash::BuildHasherDefault::<std::collections::hash_map::DefaultHasher>::default();
    (hasher.hash_one(session) % lanes as u64) as usize
}

pub(crate) type Desks = HashMap<SessionId, Desk>;

/// A flush that the database refused is decided again one request at a time, so that what one caller sent never fails
/// another's request. A new run's key or session name is the usual reason: they are unique beyond its session's lock.
/// A lost connection is no reason: there nobody knows what was committed.
pub(crate) fn apart(requests: &[Request], error: &StoreError) -> bool {
    requests.len() > 1 && refused(error)
}

/// The database said no to what it was given, or what it holds for somebody does not read back.
pub(crate) fn refused(error: &StoreError) -> bool {
    matches!(error, StoreError::Sqlite(_) | StoreError::Postgres(sqlx::Error::Database(_))) || error.is_corrupt()
}

/// The rows a flush has to write.
#[derive(Default)]
pub(crate) struct Changes<'a> {
    pub sessions: Vec<&'a Session>,
    pub runs: Vec<&'a Run>,
    pub leases: Vec<&'a Lease>,
    pub commands: Vec<&'a Command>,
    pub permissions: Vec<&'a PermissionRequest>,
    pub jobs: Vec<&'a RunnerJob>,
    pub batches: Vec<&'a Batch>,
    pub forget_batches: Vec<(RunId, i64)>,
    pub events: Vec<&'a Event>,
}

impl<'a> Changes<'a> {
    pub fn of(desks: &'a Desks) -> Self {
        let mut changes = Self::default();
        for desk in desks.values() {
            changes.sessions.extend(desk.session.dirty());
            changes.events.extend(&desk.events);
            for rows in desk.runs.values() {
                changes.runs.extend(rows.run.dirty());
                changes.leases.extend(rows.lease.as_ref().and_then(|lease| lease.dirty()));
                changes.commands.extend(rows.commands.values().filter_map(|row| row.dirty()));
                changes.permissions.extend(rows.permissions.values().filter_map(|row| row.dirty()));
                changes.jobs.extend(rows.jobs.values().filter_map(|row| row.dirty()));
                changes.batches.extend(rows.batches.iter().filter_map(|row| row.dirty()));
                changes.forget_batches.extend(rows.forget_batches_before.map(|epoch| (rows.run.run_id, epoch)));
            }
        }
        changes
    }

    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.runs.is_empty() && self.jobs.is_empty() && self.events.is_empty()
    }
}

/// What there is to publish once the desks are durable.
pub(crate) fn committed(desks: Desks, requests: usize) -> Committed {
    let jobs_waiting = desks.values().any(|desk| desk.jobs_waiting);
    let events = desks.into_values().flat_map(|desk| desk.events).collect();
    Committed { events, jobs_waiting, requests }
}
