//! How much of one caller's requests is worked on at once, by the bytes of their bodies. On by default: whatever a caller
//! sends, and whether it is accepted or not, others get their turn.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use ostler_protocol::{Failure, FailureKind};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::{config::LimitsSection, rates::Whose};

/// A smaller body costs too little to be counted.
const FREE_BYTES: usize = 16 * 1024;
/// Permits are counted in this unit, because a semaphore takes no more than `u32` of them at once.
const UNIT_BYTES: usize = 1024;
/// A request waits this long for the caller's other requests before it is refused.
const WAIT: Duration = Duration::from_secs(2);
const RETRY_AFTER_MS: u64 = 1_000;
/// How many callers are tracked before those without a request in flight are forgotten.
const SWEPT_AT: usize = 1_024;

pub struct Work {
    all: Arc<Semaphore>,
    all_units: usize,
    per_caller_units: usize,
    by_caller: Mutex<HashMap<Whose, Weak<Semaphore>>>,
}

/// Held while a request is worked on.
pub struct Admitted {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Work {
    pub fn new(limits: &LimitsSection) -> Self {
        let all_units = limits.work_bytes_max.div_ceil(UNIT_BYTES);
        Self {
            all: Arc::new(Semaphore::new(all_units)),
            all_units,
            per_caller_units: limits.work_per_caller_bytes_max.div_ceil(UNIT_BYTES).min(all_units),
            by_caller: Mutex::default(),
        }
    }

    /// Waits until a request with a body of this size may be worked on. `None` if it is too small to count. A body larger than
    /// the caller's bound counts as the bound, so that it can pass alone.
    pub async fn admit(&self, caller: Whose, bytes: usize) -> Result<Option<Admitted>, Failure> {
        if bytes <= FREE_BYTES {
            return Ok(None);
        }
        let units = bytes.div_ceil(UNIT_BYTES).min(self.per_caller_units);
        let own = take(self.own(caller), units).await.ok_or_else(|| {
            let bytes_max = self.per_caller_units * UNIT_BYTES;
            refused("work-per-caller", "too many bytes of this caller's requests are in flight", bytes_max)
        })?;
        let all = take(self.all.clone(), units)
            .await
            .ok_or_else(|| refused("work", "too many bytes of requests are in flight", self.all_units * UNIT_BYTES))?;
        Ok(Some(Admitted { _own: own, _all: all }))
    }

    fn own(&self, caller: Whose) -> Arc<Semaphore> {
        let mut by_caller = self.by_caller.lock().expect("never poisoned");
        if let Some(known) = by_caller.get(&caller).and_then(Weak::upgrade) {
            return known;
        }
        if by_caller.len() >= SWEPT_AT {
            by_caller.retain(|_, own| own.strong_count() > 0);
        }
        let own = Arc::new(Semaphore::new(self.per_caller_units));
        by_caller.insert(caller, Arc::downgrade(&own));
        own
    }
}

async fn take(from: Arc<Semaphore>, units: usize) -> Option<OwnedSemaphorePermit> {
    let units = u32::try_from(units).unwrap_or(u32::MAX);
    timeout(WAIT, from.acquire_many_owned(units)).await.ok()?.ok()
}

fn refused(rule: &'static str, message: &str, bytes_max: usize) -> Failure {
    let failure = Failure::rule(FailureKind::RateLimited, rule, message);
    failure.detail("bytesMax", bytes_max).detail("retryAfterMs", RETRY_AFTER_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    fn caller(name: &str) -> Whose {
        Whose::Caller(name.into())
    }

    #[tokio::test(start_paused = true)]
    async fn one_caller_cannot_take_it_all_and_waits_for_its_own_turn() {
        let limits =
            LimitsSection { work_bytes_max: 10 * MIB, work_per_caller_bytes_max: 4 * MIB, ..LimitsSection::default() };
        let work = Work::new(&limits);
        let first = work.admit(caller("a"), 3 * MIB).await.unwrap();
        let refused = work.admit(caller("a"), 2 * MIB).await.err().unwrap();
        assert_eq!(refused.rule_name(), Some("work-per-caller"));
        assert!(work.admit(caller("a"), FREE_BYTES).await.unwrap().is_none(), "small requests pass");
        let _other = work.admit(caller("b"), 4 * MIB).await.unwrap();
        drop(first);
        let _huge = work.admit(caller("a"), 100 * MIB).await.unwrap();
        assert_eq!(work.admit(caller("c"), 4 * MIB).await.err().unwrap().rule_name(), Some("work"));
    }

    #[tokio::test(start_paused = true)]
    async fn callers_without_a_request_are_forgotten() {
        let work = Work::new(&LimitsSection::default());
        for n in 0..2 * SWEPT_AT {
            drop(work.admit(caller(&n.to_string()), MIB).await.unwrap());
        }
        assert!(work.by_caller.lock().unwrap().len() <= SWEPT_AT);
    }
}
