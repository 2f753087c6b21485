//! Limits the request bodies that are worked on at once, by their bytes. On by default: whatever one caller sends, other callers
//! are still served.
//!
//! Against its own bound a caller's body counts with the size that it may have, from the start. Against the bound of all it
//! counts only with the bytes that have arrived, so that a body that is announced and does not come costs others nothing. If
//! that bound is reached, a body that arrives slowly makes room: the oldest of the caller that has the most.

use std::{
    collections::{BTreeMap, HashMap},
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};

use ostler_protocol::{Failure, Rule};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};

use crate::{config::LimitsSection, net::rates::RateOwner};

/// A smaller body costs too little to be counted.
const FREE_BYTES: usize = 16 * 1024;
/// Permits are counted in this unit, because a semaphore takes no more than `u32` of them at once.
const UNIT_BYTES: usize = 1024;
/// A request waits this long for other requests before it is rejected.
const WAIT: Duration = Duration::from_secs(2);
/// A body that has been arriving for this long makes room for others if there is none.
const SLOW_AFTER: Duration = Duration::from_secs(1);
/// How often a request that waits looks for such a body.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const RETRY_AFTER_MS: u64 = 1_000;
/// How many callers are tracked before those without a request in flight are forgotten.
const SWEPT_AT: usize = 1_024;

pub struct BodyBudget {
    all: Arc<Semaphore>,
    all_units: usize,
    per_caller_units: usize,
    by_caller: Mutex<HashMap<RateOwner, Weak<Semaphore>>>,
    arriving: Mutex<Arriving>,
}

/// Bodies that have not arrived completely.
#[derive(Default)]
struct Arriving {
    next: u64,
    /// By number, so that the oldest come first.
    bodies: BTreeMap<u64, ArrivingBody>,
}

struct ArrivingBody {
    caller: RateOwner,
    since: Instant,
    units: usize,
    dropped: Arc<Notify>,
}

/// The share of one request in the budget. Dropping it releases the share.
pub struct BodyShare {
    budget: Arc<BodyBudget>,
    caller: RateOwner,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    own: Option<OwnedSemaphorePermit>,
    all: Option<OwnedSemaphorePermit>,
}

/// A body that is being read.
pub struct Reading<'a> {
    share: &'a BodyShare,
    number: u64,
    units: usize,
    dropped: Arc<Notify>,
}

impl BodyBudget {
    pub fn new(limits: &LimitsSection) -> Arc<Self> {
        let all_units = limits.work_bytes_max.div_ceil(UNIT_BYTES);
        Arc::new(Self {
            all: Arc::new(Semaphore::new(all_units)),
            all_units,
            per_caller_units: limits.work_per_caller_bytes_max.div_ceil(UNIT_BYTES).min(all_units),
            by_caller: Mutex::default(),
            arriving: Mutex::default(),
        })
    }

    /// A share for one request of this caller, empty at first.
    pub fn share(self: &Arc<Self>, caller: RateOwner) -> Arc<BodyShare> {
        Arc::new(BodyShare { budget: self.clone(), caller, held: Mutex::default() })
    }

    fn caller_semaphore(&self, caller: &RateOwner) -> Arc<Semaphore> {
        let mut by_caller = self.by_caller.lock();
        if let Some(existing) = by_caller.get(caller).and_then(Weak::upgrade) {
            return existing;
        }
        if by_caller.len() >= SWEPT_AT {
            by_caller.retain(|_, own| own.strong_count() > 0);
        }
        let own = Arc::new(Semaphore::new(self.per_caller_units));
        by_caller.insert(caller.clone(), Arc::downgrade(&own));
        own
    }

    /// Waits for room among the bodies of all callers, and drops slow ones while there is none.
    async fn take_room(&self, units: usize) -> Option<OwnedSemaphorePermit> {
        let mut room = pin!(self.all.clone().acquire_many_owned(permits(units)));
        let until = Instant::now() + WAIT;
        while Instant::now() < until {
            if self.all.available_permits() < units {
                self.arriving().drop_slow_one();
            }
            if let Ok(taken) = timeout(LOOK_EVERY, &mut room).await {
                return taken.ok();
            }
        }
        None
    }

    fn units_of(&self, bytes: usize) -> usize {
        bytes.div_ceil(UNIT_BYTES).min(self.per_caller_units)
    }

    fn arriving(&self) -> MutexGuard<'_, Arriving> {
        self.arriving.lock()
    }
}

impl Arriving {
    /// Drops the oldest slow body of the caller whose slow bodies hold the most.
    fn drop_slow_one(&mut self) {
        let mut by_caller: HashMap<&RateOwner, (usize, u64)> = HashMap::new();
        let is_slow = |body: &ArrivingBody| body.since.elapsed() >= SLOW_AFTER;
        for (number, body) in self.bodies.iter().filter(|(_, body)| body.units > 0 && is_slow(body)) {
            by_caller.entry(&body.caller).or_insert((0, *number)).0 += body.units;
        }
        let Some((_, oldest)) = by_caller.into_values().max() else { return };
        if let Some(body) = self.bodies.remove(&oldest) {
            body.dropped.notify_one();
        }
    }
}

impl BodyShare {
    /// Waits until the caller's other requests leave room for a body of up to this size. One that is larger than the caller's
    /// bound counts as the bound, so that it can pass alone.
    pub async fn reserve(&self, bytes: usize) -> Result<(), Failure> {
        if bytes <= FREE_BYTES {
            return Ok(());
        }
        let units = self.budget.units_of(bytes);
        let own = timeout(WAIT, self.budget.caller_semaphore(&self.caller).acquire_many_owned(permits(units))).await;
        let Ok(Ok(own)) = own else {
            let bytes_max = self.budget.per_caller_units * UNIT_BYTES;
            return Err(refused(
                Rule::WorkPerCaller,
                "too many bytes of this caller's requests are in flight",
                bytes_max,
            ));
        };
        self.held().own = Some(own);
        Ok(())
    }

    pub fn start_reading(&self) -> Reading<'_> {
        let dropped = Arc::<Notify>::default();
        let mut arriving = self.budget.arriving();
        let number = arriving.next;
        arriving.next += 1;
        let body =
            ArrivingBody { caller: self.caller.clone(), since: Instant::now(), units: 0, dropped: dropped.clone() };
        arriving.bodies.insert(number, body);
        Reading { share: self, number, units: 0, dropped }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock()
    }
}

impl Reading<'_> {
    /// Counts the body as this large, before its bytes are stored. Waits for room.
    pub async fn grow_to(&mut self, bytes: usize) -> Result<(), Failure> {
        let budget = &self.share.budget;
        let more = budget.units_of(bytes).saturating_sub(self.units);
        if bytes <= FREE_BYTES || more == 0 {
            return Ok(());
        }
        let room = tokio::select! {
            room = budget.take_room(more) => room,
            () = self.dropped.notified() => None,
        };
        let room = room.ok_or_else(|| too_much(budget))?;
        self.units += more;
        if let Some(body) = budget.arriving().bodies.get_mut(&self.number) {
            body.units = self.units;
        }
        match &mut self.share.held().all {
            Some(all) => all.merge(room),
            none => *none = Some(room),
        }
        Ok(())
    }

    /// Resolves when the body must make room for others.
    pub async fn dropped(&self) -> Failure {
        self.dropped.notified().await;
        too_much(&self.share.budget)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.share.budget.arriving().bodies.remove(&self.number);
    }
}

fn permits(units: usize) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

fn too_much(budget: &BodyBudget) -> Failure {
    refused(Rule::Work, "too many bytes of requests are in flight", budget.all_units * UNIT_BYTES)
}

fn refused(rule: Rule, message: &str, bytes_max: usize) -> Failure {
    let failure = Failure::rule(rule, message);
    failure.detail("bytesMax", bytes_max).detail("retryAfterMs", RETRY_AFTER_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    fn caller(name: &str) -> RateOwner {
        RateOwner::Caller(name.into())
    }

    fn budget(all: usize, per_caller: usize) -> Arc<BodyBudget> {
        let limits = LimitsSection { work_bytes_max: all, work_per_caller_bytes_max: per_caller, ..Default::default() };
        BodyBudget::new(&limits)
    }

    /// A share whose body was announced, and arrived, with this size.
    async fn arrived(budget: &Arc<BodyBudget>, name: &str, bytes: usize) -> Result<Arc<BodyShare>, Failure> {
        let share = budget.share(caller(name));
        share.reserve(bytes).await?;
        share.start_reading().grow_to(bytes).await?;
        Ok(share)
    }

    #[tokio::test(start_paused = true)]
    async fn one_caller_cannot_use_the_whole_limit_and_waits_for_its_own_requests() {
        let budget = budget(10 * MIB, 4 * MIB);
        let first = arrived(&budget, "a", 3 * MIB).await.unwrap();
        let refused = arrived(&budget, "a", 2 * MIB).await.err().unwrap();
        assert_eq!(refused.rule_name(), Some("work-per-caller"));
        arrived(&budget, "a", FREE_BYTES).await.expect("small requests pass");
        let _other = arrived(&budget, "b", 4 * MIB).await.unwrap();
        drop(first);
        let _huge = arrived(&budget, "a", 100 * MIB).await.unwrap();
        assert_eq!(arrived(&budget, "c", 4 * MIB).await.err().unwrap().rule_name(), Some("work"));
    }

    #[tokio::test(start_paused = true)]
    async fn announced_bytes_cost_other_callers_nothing() {
        let budget = budget(4 * MIB, MIB);
        let shares: Vec<_> = (0..100).map(|n| budget.share(caller(&n.to_string()))).collect();
        for share in &shares {
            share.reserve(MIB).await.unwrap();
        }
        let _readings: Vec<_> = shares.iter().map(|share| share.start_reading()).collect();
        arrived(&budget, "other", MIB).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn slow_bodies_of_the_caller_with_the_most_make_room() {
        let budget = budget(4 * MIB, 3 * MIB);
        let shares = ["greedy", "greedy", "modest"].map(|name| budget.share(caller(name)));
        let [first, second, modest] = &shares;
        let mut readings = vec![];
        for (share, bytes) in [(modest, MIB), (first, 2 * MIB), (second, MIB)] {
            let mut reading = share.start_reading();
            reading.grow_to(bytes).await.unwrap();
            readings.push(reading);
        }
        tokio::time::sleep(SLOW_AFTER).await;
        let waiting = tokio::spawn({
            let budget = budget.clone();
            async move { arrived(&budget, "new", 2 * MIB).await }
        });
        assert_eq!(readings[1].dropped().await.rule_name(), Some("work"));
        drop(readings);
        let [first, _second, _modest] = shares;
        drop(first);
        waiting.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn callers_without_a_request_are_forgotten() {
        let budget = budget(256 * MIB, 32 * MIB);
        for n in 0..2 * SWEPT_AT {
            drop(arrived(&budget, &n.to_string(), MIB).await.unwrap());
        }
        assert!(budget.by_caller.lock().len() <= SWEPT_AT);
    }
}
