//! A follower of an event stream: whatever breaks, it comes back with its last number, and it must see every event
//! once and in order.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};
use std::time::Duration;

use futures_util::StreamExt;
use tokio::{
    runtime::Handle,
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    api::{Api, pause},
    clock::{now, since},
};

const POLL: Duration = Duration::from_millis(100);
/// A silent stream is given up after so many polls, as a server that is frozen neither sends nor closes.
const SILENT_POLLS_MAX: u32 = 20;
const SETTLE_POLL: Duration = Duration::from_millis(5);
const UNKNOWN: i64 = i64::MAX;

pub(crate) struct Follower {
    run_id: String,
    seen: Arc<AtomicI64>,
    /// The last event there will be.
    target: Arc<AtomicI64>,
    task: JoinHandle<Result<(), String>>,
}

impl Follower {
    pub(crate) fn start(runtime: &Handle, api: &Api, run_id: &str) -> Self {
        let (seen, target) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(UNKNOWN)));
        let task = runtime.spawn(follow(api.clone(), run_id.to_owned(), seen.clone(), target.clone()));
        Self { run_id: run_id.to_owned(), seen, target, task }
    }

    pub(crate) fn seen(&self) -> i64 {
        self.seen.load(Ordering::Relaxed)
    }

    /// Waits until it has seen the last event. Fails if it sees nothing new for this long: where many read at once, each
    /// waits for its turn, and how long all of them take depends on the machine. Returns how many it has seen.
    pub(crate) async fn settle(self, last_seq: i64, stalled_after: Duration) -> Result<u64, String> {
        self.target.store(last_seq, Ordering::Relaxed);
        let mut progress = (self.seen(), now());
        while !self.task.is_finished() {
            let seen = self.seen();
            if seen != progress.0 {
                progress = (seen, now());
            } else if since(progress.1) > stalled_after {
                self.task.abort();
                let run_id = &self.run_id;
                return Err(format!(
                    "a follower of {run_id} saw {seen} of {last_seq} events, and no more for {stalled_after:?}"
                ));
            }
            sleep(SETTLE_POLL).await;
        }
        self.task.await.map_err(|error| format!("a follower panicked: {error}"))??;
        Ok(last_seq as u64)
    }
}

/// Follows to the target, from one server to the next. Fails at the first event that is not the next one.
async fn follow(api: Api, run_id: String, seen: Arc<AtomicI64>, target: Arc<AtomicI64>) -> Result<(), String> {
    let mut last = 0;
    loop {
        let opened = timeout(POLL * SILENT_POLLS_MAX, api.client().follow_run(&run_id, last)).await;
        let Ok(Ok(mut stream)) = opened else {
            api.turn_away();
            pause().await;
            continue;
        };
        let mut silent_polls = 0;
        while silent_polls < SILENT_POLLS_MAX {
            if last >= target.load(Ordering::Relaxed) {
                return Ok(());
            }
            match timeout(POLL, stream.next()).await {
                Err(_) => silent_polls += 1,
                Ok(Some(Ok(event))) if event.seq == Some(last + 1) => {
                    (last, silent_polls) = (last + 1, 0);
                    seen.store(last, Ordering::Relaxed);
                }
                Ok(Some(Ok(event))) => return Err(format!("a follower of {run_id} saw {:?} after {last}", event.seq)),
                Ok(_) => break,
            }
        }
    }
}
