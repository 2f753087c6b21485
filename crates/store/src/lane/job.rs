//! What waits for a lane, what a lane needs of its process, and how a request ends. The engines' lanes are built on it.

use ostler_protocol::{
    Failure, Rule, Timestamp,
    ids::RunnerJobId,
    kernel::{
        events::Event,
        operations::{JobPlace, Reply, Request, StartedJob},
        runner_jobs::RunnerJob,
        runs::Run,
    },
};
use tokio::sync::{mpsc, oneshot};

use crate::{
    error::{StoreError, StoreFault, is_refusal},
    record::{ColumnValue, Statement},
};

/// Requests that may wait for one lane. One more is refused as overloaded.
pub const QUEUE_REQUESTS_MAX: usize = 8_192;
/// Requests one flush takes.
pub const FLUSH_REQUESTS_MAX: usize = 512;
/// … and about how much of them: the next flush takes what is over.
pub const FLUSH_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What a lane needs of its process.
pub trait Host: Send + Sync + 'static {
    fn now(&self) -> Timestamp;
    /// A place for the runner of a job that waits. `None`: the job waits for a launcher. Called before the commit.
    fn reserve(&self, _job: &RunnerJob, _run: &Run) -> Option<JobPlace> {
        None
    }
    /// These jobs got places, and were not started. `unanswered_at` is the time of their flush if the database may have committed it:
    /// then only its response was lost.
    fn give_back(&self, _jobs: &[RunnerJobId], _unanswered_at: Option<Timestamp>) {}
    /// Called once per flush, after its commit and before its answers.
    fn committed(&self, committed: Committed);
}

/// The host of a lane that has not started, and so has only plain writes.
pub(crate) struct NoHost;

impl Host for NoHost {
    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }

    fn committed(&self, _committed: Committed) {}
}

/// What a flush made durable.
pub struct Committed {
    /// In order within each session.
    pub events: Vec<Event>,
    /// Of new commands.
    pub deadlines: Vec<Timestamp>,
    pub jobs_waiting: bool,
    /// Jobs that the flush started, in places of this process.
    pub started: Vec<StartedJob>,
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

/// Rows of a dialect that are written in the transaction of a request to the kernel, or not at all. If a row that must be
/// written finds its place taken, the request ends as [`LaneError::Taken`].
#[derive(Default)]
pub struct AttachedRows(pub(crate) Vec<Statement>);

impl AttachedRows {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Approximate bytes in memory.
    fn bytes(&self) -> usize {
        let text = |value: &ColumnValue<'_>| if let ColumnValue::Text(Some(text)) = value { text.len() } else { 0 };
        self.0.iter().flat_map(|statement| &statement.args).map(text).sum()
    }
}

pub(crate) struct Job {
    pub request: Request,
    pub rows: AttachedRows,
    pub answer: oneshot::Sender<Answer>,
}

impl Job {
    pub(crate) fn bytes(&self) -> usize {
        self.request.bytes() + self.rows.bytes()
    }
}

pub(crate) fn offer<T>(lane: &mpsc::Sender<T>, job: T) -> Result<(), LaneError> {
    lane.try_send(job).map_err(|error| match error {
        mpsc::error::TrySendError::Full(_) => overloaded(),
        mpsc::error::TrySendError::Closed(_) => LaneError::Store(StoreError::Stopped),
    })
}

pub(crate) fn overloaded() -> LaneError {
    LaneError::Refused(Failure::rule(Rule::LaneQueue, "the write queue is full; try again shortly"))
}

/// A flush that the database refused is decided again one request at a time, so that what one caller sent never fails
/// another's request. A new run's key or session name is the usual reason: they are unique beyond its session's lock.
/// A lost connection is no reason: there it is not known what was committed.
pub(crate) fn must_decide_separately(requests: &[Request], error: &StoreError) -> bool {
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
        StoreError::Postgres(error) => is_refusal(error),
        _ => false,
    };
    said_no || error.is_corrupt()
}

/// A job and those that have come in the meantime, as many as one flush takes.
pub(crate) fn gather<T>(
    first: T,
    inbox: &mut mpsc::Receiver<T>,
    jobs_max: usize,
    bytes: impl Fn(&T) -> usize,
) -> Vec<T> {
    let (mut weight, mut jobs) = (bytes(&first), vec![first]);
    while jobs.len() < jobs_max
        && weight < FLUSH_BYTES_MAX
        && let Ok(job) = inbox.try_recv()
    {
        weight += bytes(&job);
        jobs.push(job);
    }
    jobs
}
