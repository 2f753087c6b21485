//! Write lanes: every hot verb goes through here. While a flush is on its way to the disk new requests queue; the next
//! flush takes them all in one transaction, and an answer means durable. There is no artificial delay.
//!
//! A flush is the same on both engines: load the rows its requests touch, decide each with `protocol::kernel`, write
//! everything back, commit, publish, answer. Only loading and writing have two arms. A dialect whose rows belong to no session
//! has a lane of its own, in its folder: that lane uses the same host and the same limit on what waits.

pub(crate) mod desks;
pub(crate) mod job;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use ostler_protocol::kernel::operations::Request;
use tokio::sync::{mpsc, oneshot};

use self::job::{Answer, Job, offer, overloaded};
pub use self::job::{
    AttachedRows, Committed, FLUSH_BYTES_MAX, FLUSH_REQUESTS_MAX, Host, LaneError, QUEUE_REQUESTS_MAX,
};
use crate::{
    db::{Db, Engine},
    error::StoreError,
    postgres,
    sqlite::Sqlite,
};

/// What may wait altogether. One more is refused as overloaded.
pub const QUEUE_BYTES_MAX: usize = 256 * 1024 * 1024;

/// The way in. Dropping it lets the lanes finish what they hold and end.
pub struct Lanes {
    engine: LaneEngine,
    shared: LaneContext,
}

/// What all lanes of a process share.
#[derive(Clone)]
pub(crate) struct LaneContext {
    pub host: Arc<dyn Host>,
    backlog: Arc<Backlog>,
}

/// What waits for the lanes, or is in one.
#[derive(Default)]
struct Backlog {
    requests: AtomicUsize,
    bytes: AtomicUsize,
}

enum LaneEngine {
    Sqlite(Arc<Sqlite>),
    Postgres(mpsc::Sender<Job>),
}

impl Lanes {
    pub async fn start(db: &Db, host: Arc<dyn Host>) -> Result<Self, StoreError> {
        let engine = match &db.engine {
            Engine::Sqlite(sqlite) => {
                sqlite.host(host.clone());
                LaneEngine::Sqlite(sqlite.clone())
            }
            Engine::Postgres(connections) => {
                // One, as SQLite has by nature: two divide what waits, and commit twice as often for the same work.
                let (requests, receiver) = mpsc::channel(QUEUE_REQUESTS_MAX);
                tokio::spawn(postgres::Lane::connect(connections).await?.run(receiver, host.clone()));
                LaneEngine::Postgres(requests)
            }
        };
        Ok(Self { engine, shared: LaneContext { host, backlog: Arc::default() } })
    }

    /// For a lane of a dialect: what waits for it counts toward the limit of all lanes and is part of [`Lanes::waiting`].
    pub(crate) fn shared(&self) -> LaneContext {
        self.shared.clone()
    }

    /// How many requests wait or are being flushed, and their bytes.
    pub fn waiting(&self) -> (usize, usize) {
        let Backlog { requests, bytes } = &*self.shared.backlog;
        (requests.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed))
    }

    /// Submits a request and waits until it is durable, or refused.
    pub async fn submit(&self, request: Request) -> Answer {
        self.submit_with(request, AttachedRows::default()).await
    }

    /// As [`Lanes::submit`], with rows that become durable together with the request.
    pub async fn submit_with(&self, request: Request, rows: AttachedRows) -> Answer {
        let (answer, answered) = oneshot::channel();
        let job = Job { request, rows, answer };
        let _weight = self.shared.admit(job.bytes())?;
        let queued = match &self.engine {
            LaneEngine::Sqlite(sqlite) => sqlite.submit(job),
            LaneEngine::Postgres(requests) => offer(requests, job),
        };
        queued?;
        answered.await.unwrap_or(Err(LaneError::Store(StoreError::Stopped)))
    }
}

impl LaneContext {
    /// Counts a request of this weight until the returned value is dropped. Refuses it as overloaded if too much waits.
    pub(crate) fn admit(&self, bytes: usize) -> Result<Weight<'_>, LaneError> {
        let weight = Weight::take(&self.backlog, bytes);
        if weight.total > QUEUE_BYTES_MAX { Err(overloaded()) } else { Ok(weight) }
    }
}

/// A request's share of what waits, given back when it is answered or its caller has gone.
pub(crate) struct Weight<'a> {
    backlog: &'a Backlog,
    bytes: usize,
    total: usize,
}

impl<'a> Weight<'a> {
    fn take(backlog: &'a Backlog, bytes: usize) -> Self {
        backlog.requests.fetch_add(1, Ordering::Relaxed);
        Self { backlog, bytes, total: backlog.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes }
    }
}

impl Drop for Weight<'_> {
    fn drop(&mut self) {
        self.backlog.requests.fetch_sub(1, Ordering::Relaxed);
        self.backlog.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
