//! The lane of sends and acknowledgements. They touch mailboxes and no session: on SQLite they are part of the kernel's flushes,
//! on Postgres they have flushes and a connection of their own.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::{
    postgres::PostLane,
    posts::{MailboxJob, MailboxOutcome, MailboxRequest, Recipients},
    sqlite,
};
use crate::{
    db::{Db, Engine},
    error::StoreError,
    lane::{
        LaneContext, Lanes,
        job::{LaneError, QUEUE_REQUESTS_MAX, offer},
    },
    sqlite::Sqlite,
};

/// The way in for sends and acknowledgements. Dropping it lets the lane finish what it holds and end.
pub struct MailboxLane {
    queue: MailboxQueue,
    shared: LaneContext,
}

enum MailboxQueue {
    Sqlite(Arc<Sqlite>),
    Postgres(mpsc::Sender<MailboxJob>),
}

impl MailboxLane {
    /// Starts the lane in the process of `lanes`: it has the same clock, and what waits for it counts toward the same limit.
    /// Must be called within a Tokio runtime.
    pub fn start(db: &Db, lanes: &Lanes) -> Self {
        let shared = lanes.shared();
        let queue = match &db.engine {
            Engine::Sqlite(sqlite) => MailboxQueue::Sqlite(sqlite.clone()),
            Engine::Postgres(connections) => {
                let (jobs, receiver) = mpsc::channel(QUEUE_REQUESTS_MAX);
                tokio::spawn(PostLane::new(connections).run(receiver, shared.host.clone()));
                MailboxQueue::Postgres(jobs)
            }
        };
        Self { queue, shared }
    }

    /// Submits a message or an acknowledgement and waits until it is durable, or refused. A message is delivered to
    /// `recipients` once it is durable.
    pub async fn submit(
        &self,
        post: MailboxRequest,
        recipients: Arc<dyn Recipients>,
    ) -> Result<MailboxOutcome, LaneError> {
        let _weight = self.shared.admit(post.bytes())?;
        let (answer, answered) = oneshot::channel();
        let job = MailboxJob { post, recipients, answer };
        let queued = match &self.queue {
            MailboxQueue::Sqlite(sqlite) => sqlite::post(sqlite, job, self.shared.host.clone()),
            MailboxQueue::Postgres(jobs) => offer(jobs, job),
        };
        queued?;
        answered.await.unwrap_or(Err(LaneError::Store(StoreError::Stopped)))
    }
}
