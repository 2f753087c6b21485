//! Write lanes: every hot verb goes through here. While a flush is on its way to the disk new requests queue; the next
//! flush takes them all in one transaction, and an answer means durable. There is no artificial delay.
//!
//! A flush is the same on both engines: load the rows its requests touch, decide each with `protocol::kernel`, write
//! everything back, commit, publish, answer. Only loading and writing have two arms. Messages of the mesh touch mailboxes,
//! not sessions: on SQLite they fall into the same flushes, on Postgres they have a lane of their own.

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
    mesh::messages::{
        self,
        posts::{MailboxJob, MailboxOutcome, MailboxRequest, Recipients},
    },
    postgres,
    sqlite::Sqlite,
};

/// What may wait altogether. One more is refused as overloaded.
pub const QUEUE_BYTES_MAX: usize = 256 * 1024 * 1024;

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
    Sqlite(Arc<Sqlite>),
    Postgres { requests: mpsc::Sender<Job>, posts: mpsc::Sender<MailboxJob> },
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
                tokio::spawn(messages::postgres::PostLane::new(connections).run(receiver, host));
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
        self.submit_with(request, AttachedRows::default()).await
    }

    /// As [`Lanes::submit`], with rows that become durable together with the request.
    pub async fn submit_with(&self, request: Request, rows: AttachedRows) -> Answer {
        let (answer, answered) = oneshot::channel();
        let job = Job { request, rows, answer };
        let weight = Weight::take(&self.queued, job.bytes());
        if weight.total > QUEUE_BYTES_MAX {
            return Err(overloaded());
        }
        let queued = match &self.way {
            Way::Sqlite(sqlite) => sqlite.submit(job),
            Way::Postgres { requests, .. } => offer(requests, job),
        };
        queued?;
        answered.await.unwrap_or(Err(LaneError::Store(StoreError::Stopped)))
    }

    /// As [`Lanes::submit`], for a message or an acknowledgement. What is sent is delivered to `recipients` once it is durable.
    pub async fn post(
        &self,
        post: MailboxRequest,
        recipients: Arc<dyn Recipients>,
    ) -> Result<MailboxOutcome, LaneError> {
        let weight = Weight::take(&self.queued, post.bytes());
        if weight.total > QUEUE_BYTES_MAX {
            return Err(overloaded());
        }
        let (answer, answered) = oneshot::channel();
        let job = MailboxJob { post, recipients, answer };
        let queued = match &self.way {
            Way::Sqlite(sqlite) => messages::sqlite::post(sqlite, job),
            Way::Postgres { posts, .. } => offer(posts, job),
        };
        queued?;
        answered.await.unwrap_or(Err(LaneError::Store(StoreError::Stopped)))
    }
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
