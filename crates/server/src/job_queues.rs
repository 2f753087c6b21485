//! Runners elsewhere that wait for a job, in the order in which they came. Of the runners that want the same jobs only the first
//! one looks into the store, so that a runner that comes back often cannot get ahead of the others.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::{Mutex as FairMutex, OwnedMutexGuard};

/// How many queues are remembered before those without a runner are forgotten.
const SWEPT_AT: usize = 256;

/// The jobs that a runner wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WantedJobs {
    /// Sorted.
    pub profiles: Vec<String>,
    /// `None`: those of every tenant.
    pub tenants: Option<Vec<String>>,
}

#[derive(Default)]
pub struct JobQueues(Mutex<HashMap<WantedJobs, Weak<FairMutex<()>>>>);

impl JobQueues {
    /// Waits until this runner is the first of those that want the same. Dropping the guard lets the next one look.
    pub async fn wait_for_turn(&self, wanted: &WantedJobs) -> OwnedMutexGuard<()> {
        self.queue(wanted).lock_owned().await
    }

    fn queue(&self, wanted: &WantedJobs) -> Arc<FairMutex<()>> {
        let mut queues = self.0.lock();
        if let Some(existing) = queues.get(wanted).and_then(Weak::upgrade) {
            return existing;
        }
        if queues.len() >= SWEPT_AT {
            queues.retain(|_, queue| queue.strong_count() > 0);
        }
        let queue = Arc::<FairMutex<()>>::default();
        queues.insert(wanted.clone(), Arc::downgrade(&queue));
        queue
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn wanted(profile: &str) -> WantedJobs {
        WantedJobs { profiles: vec![profile.to_owned()], tenants: None }
    }

    #[tokio::test]
    async fn runners_that_want_the_same_take_turns_in_their_order() {
        let (queues, same) = (JobQueues::default(), wanted("a"));
        let first = queues.wait_for_turn(&same).await;
        let mut second = Box::pin(queues.wait_for_turn(&same));
        assert!(second.as_mut().now_or_never().is_none());
        assert!(queues.wait_for_turn(&wanted("b")).now_or_never().is_some(), "another queue");
        drop(first);
        let mut back = Box::pin(queues.wait_for_turn(&same));
        assert!(back.as_mut().now_or_never().is_none(), "behind the one that waited");
        let second = second.await;
        assert!(back.as_mut().now_or_never().is_none());
        drop(second);
        back.await;
    }

    #[test]
    fn queues_without_a_runner_are_forgotten() {
        let queues = JobQueues::default();
        (0..3 * SWEPT_AT).for_each(|n| drop(queues.queue(&wanted(&n.to_string()))));
        assert!(queues.0.lock().len() <= SWEPT_AT);
    }
}
