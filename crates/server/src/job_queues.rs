//! Runners elsewhere that wait for a job, in the order in which they came. Of the runners that want the same jobs only the first
//! one looks into the store, so that a runner that comes back often cannot get ahead of the others.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use ostler_protocol::Timestamp;
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
pub struct JobQueues {
    queues: Mutex<HashMap<WantedJobs, Weak<FairMutex<()>>>>,
    /// When a runner last requested a job, by profile and the runner's tenants. The profiles are those of the config, and the
    /// tenants those of tokens.
    last_claims: Mutex<HashMap<WantedJobs, Timestamp>>,
}

impl JobQueues {
    /// Waits until this runner is the first of those that want the same. Dropping the guard lets the next one look.
    pub async fn wait_for_turn(&self, wanted: &WantedJobs) -> OwnedMutexGuard<()> {
        self.queue(wanted).lock_owned().await
    }

    /// A runner requests a job of these profiles.
    pub fn record_claim(&self, wanted: &WantedJobs, now: Timestamp) {
        let one = |profile: &String| WantedJobs { profiles: vec![profile.clone()], tenants: wanted.tenants.clone() };
        self.last_claims.lock().extend(wanted.profiles.iter().map(|profile| (one(profile), now)));
    }

    /// When a runner that runs one of these tenants' runs last requested a job of the profile. `None` as tenants: all.
    pub fn last_claim_at(&self, profile: &str, tenants: Option<&[String]>) -> Option<Timestamp> {
        let serves = |runner: &WantedJobs| match (&runner.tenants, tenants) {
            (Some(runners), Some(tenants)) => runners.iter().any(|tenant| tenants.contains(tenant)),
            _ => true,
        };
        let claims = self.last_claims.lock();
        let found = claims.iter().filter(|(runner, _)| runner.profiles[0] == profile && serves(runner));
        found.map(|(_, at)| *at).max()
    }

    fn queue(&self, wanted: &WantedJobs) -> Arc<FairMutex<()>> {
        let mut queues = self.queues.lock();
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
    fn a_claim_is_shown_to_the_tenants_that_the_runner_serves() {
        let queues = JobQueues::default();
        let (now, tenant) = (Timestamp::UNIX_EPOCH, |name: &str| vec![name.to_owned()]);
        queues.record_claim(&WantedJobs { profiles: vec!["a".into(), "b".into()], tenants: Some(tenant("x")) }, now);
        assert_eq!(queues.last_claim_at("a", Some(&tenant("x"))), Some(now));
        assert_eq!(queues.last_claim_at("b", None), Some(now));
        assert_eq!(queues.last_claim_at("a", Some(&tenant("y"))), None);
        assert_eq!(queues.last_claim_at("c", None), None);
    }

    #[test]
    fn queues_without_a_runner_are_forgotten() {
        let queues = JobQueues::default();
        (0..3 * SWEPT_AT).for_each(|n| drop(queues.queue(&wanted(&n.to_string()))));
        assert!(queues.queues.lock().len() <= SWEPT_AT);
    }
}
