//! The process around the lanes, as a test plays it: its clock is set by hand and it writes down what was published.

use std::{
    collections::BTreeMap,
    sync::{
        Condvar, Mutex,
        atomic::{AtomicI64, Ordering},
    },
};

use ostler_protocol::{
    Timestamp,
    ids::{AttemptId, RunnerJobId, SessionId},
    kernel::{
        events::Event,
        operations::{JobPlace, StartedJob},
        runner_jobs::RunnerJob,
        runs::Run,
    },
};
use ostler_store::{
    lane::{Committed, Host},
    mesh::messages::{Recipients, StoredMessage},
};

/// 2026-01-01, in microseconds.
const START_US: i64 = 1_767_225_600_000_000;

pub(crate) struct TestHost {
    now_us: AtomicI64,
    published: Mutex<BTreeMap<SessionId, Vec<Event>>>,
    /// Messages in the order they were delivered. No client is connected.
    pub stored_messages: Mutex<Vec<StoredMessage>>,
    flushes: Mutex<Vec<usize>>,
    /// Places of runners that flushes may reserve.
    places: Mutex<usize>,
    started: Mutex<Vec<StartedJob>>,
    given_back: Mutex<Vec<(RunnerJobId, Option<Timestamp>)>>,
    shut: Mutex<bool>,
    opened: Condvar,
    /// Where the next flush meets a fault of ours.
    pub fault: Mutex<Option<Fault>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// Before anything is decided.
    AtTheStart,
    /// After the commit, before the replies.
    AfterTheCommit,
}

impl Default for TestHost {
    fn default() -> Self {
        Self {
            now_us: AtomicI64::new(START_US),
            published: Mutex::default(),
            stored_messages: Mutex::default(),
            flushes: Mutex::default(),
            places: Mutex::default(),
            started: Mutex::default(),
            given_back: Mutex::default(),
            shut: Mutex::default(),
            opened: Condvar::new(),
            fault: Mutex::default(),
        }
    }
}

impl TestHost {
    /// A host that goes on where another process stopped.
    pub(crate) fn after(previous: &Self) -> Self {
        let host = Self::default();
        host.now_us.store(previous.now_us.load(Ordering::SeqCst), Ordering::SeqCst);
        *host.published.lock().unwrap() = previous.published.lock().unwrap().clone();
        host
    }

    pub(crate) fn advance_ms(&self, ms: i64) {
        self.advance_us(ms * 1_000);
    }

    pub(crate) fn advance_us(&self, us: i64) {
        self.now_us.fetch_add(us, Ordering::SeqCst);
    }

    /// What was published, by session, in the order it came.
    pub(crate) fn published(&self) -> BTreeMap<SessionId, Vec<Event>> {
        self.published.lock().unwrap().clone()
    }

    /// A crash may lose what was committed and not yet published; followers would read it from the store.
    pub(crate) fn catch_up(&self, stored: BTreeMap<SessionId, Vec<Event>>) {
        *self.published.lock().unwrap() = stored;
    }

    pub(crate) fn offer_places(&self, places: usize) {
        *self.places.lock().unwrap() = places;
    }

    /// The jobs that flushes have started.
    pub(crate) fn started(&self) -> Vec<StartedJob> {
        self.started.lock().unwrap().clone()
    }

    /// The jobs whose places were given back, with the time of a flush that may have been committed.
    pub(crate) fn given_back(&self) -> Vec<(RunnerJobId, Option<Timestamp>)> {
        self.given_back.lock().unwrap().clone()
    }

    /// Holds every lane after its next flush, so that what comes then waits and goes together.
    pub(crate) fn shut(&self) {
        *self.shut.lock().unwrap() = true;
    }

    pub(crate) fn open(&self) {
        *self.shut.lock().unwrap() = false;
        self.opened.notify_all();
    }

    fn meet(&self, here: Fault) {
        let met = self.fault.lock().unwrap().take_if(|fault| *fault == here).is_some();
        assert!(!met, "the injected fault");
    }

    fn hold(&self) {
        if *self.shut.lock().unwrap() {
            match tokio::runtime::Handle::try_current() {
                // A Postgres lane is a task: the runtime must know that its thread is gone for a while.
                Ok(_) => tokio::task::block_in_place(|| self.wait()),
                Err(_) => self.wait(),
            }
        }
    }

    fn wait(&self) {
        let mut shut = self.shut.lock().unwrap();
        while *shut {
            shut = self.opened.wait(shut).unwrap();
        }
    }

    pub(crate) fn flush_count(&self) -> usize {
        self.flushes.lock().unwrap().len()
    }

    /// The most requests that one flush carried.
    pub(crate) fn largest_flush(&self) -> usize {
        self.flushes.lock().unwrap().iter().copied().max().unwrap_or(0)
    }
}

impl Host for TestHost {
    fn now(&self) -> Timestamp {
        self.meet(Fault::AtTheStart);
        Timestamp::from_microsecond(self.now_us.load(Ordering::SeqCst)).unwrap()
    }

    fn committed(&self, committed: Committed) {
        self.flushes.lock().unwrap().push(committed.requests);
        self.started.lock().unwrap().extend(committed.started);
        let mut published = self.published.lock().unwrap();
        for event in committed.events {
            published.entry(event.session).or_default().push(event);
        }
        drop(published);
        self.meet(Fault::AfterTheCommit);
        self.hold();
    }

    fn reserve(&self, _job: &RunnerJob, _run: &Run) -> Option<JobPlace> {
        let mut places = self.places.lock().unwrap();
        *places = places.checked_sub(1)?;
        let attempt_id = AttemptId::new(uuid::Uuid::from_u128(1));
        Some(JobPlace { owner: "launcher".into(), lease_ms: 60_000, attempt_id, take_up: true })
    }

    fn give_back(&self, jobs: &[RunnerJobId], unanswered_at: Option<Timestamp>) {
        *self.places.lock().unwrap() += jobs.len();
        self.given_back.lock().unwrap().extend(jobs.iter().map(|job| (*job, unanswered_at)));
    }
}

impl Recipients for TestHost {
    fn deliver(&self, stored: &StoredMessage) -> bool {
        self.stored_messages.lock().unwrap().push(stored.clone());
        self.hold();
        false
    }
}
