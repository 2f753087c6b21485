//! The places of runners in this process. The launcher takes places for the jobs that it claims, and the write lane reserves places
//! for jobs that wait since its current flush: those are started in the flush, without a claim.

use std::{collections::HashMap, sync::Arc};

use ostler_protocol::{
    Timestamp,
    ids::{AttemptId, RunnerJobId},
    kernel::{
        operations::{JobPlace, StartedJob},
        runner_jobs::{Launcher, RunnerJob},
        runs::Run,
    },
};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::hand::{HeldJob, InHand};
use crate::{clock::Ids, config::Config};

/// The places that the write lane may reserve. It may reserve none until the launcher has opened them.
pub(crate) struct ResidentPlaces {
    in_hand: InHand,
    ids: Ids,
    open: Mutex<Option<OpenPlaces>>,
}

struct OpenPlaces {
    owner: String,
    lease_ms: i64,
    external_profiles: Vec<String>,
    placement: Option<String>,
    slots: Arc<Semaphore>,
    /// The server stops.
    is_closed: bool,
    /// Jobs wait already. A later one must not be started before them.
    are_jobs_waiting: bool,
    reserved: HashMap<RunnerJobId, Reservation>,
    started: mpsc::UnboundedSender<ResidentJob>,
}

struct Reservation {
    held: HeldJob,
    slot: OwnedSemaphorePermit,
}

/// A job that was started in a flush, in a place of its own.
pub(crate) struct ResidentJob {
    pub(crate) start: StartedJob,
    pub(crate) held: HeldJob,
    pub(crate) slot: OwnedSemaphorePermit,
}

impl ResidentPlaces {
    pub(crate) fn new(in_hand: InHand, ids: Ids) -> Self {
        Self { in_hand, ids, open: Mutex::default() }
    }

    /// Lets the lane reserve places, once [`Self::note_waiting`] has reported that no job waits. Jobs that it starts are sent to the
    /// receiver; each has a slot, which bounds their number.
    pub(crate) fn open(
        &self,
        (config, placement): (&Config, Option<&str>),
        owner: &str,
        slots: &Arc<Semaphore>,
    ) -> mpsc::UnboundedReceiver<ResidentJob> {
        let (started, receiver) = mpsc::unbounded_channel();
        *self.open.lock() = Some(OpenPlaces {
            owner: owner.to_owned(),
            lease_ms: config.runner.lease_ms,
            external_profiles: config.runner.external_profiles.clone(),
            placement: placement.map(str::to_owned),
            slots: slots.clone(),
            is_closed: false,
            are_jobs_waiting: true,
            reserved: HashMap::new(),
            started,
        });
        receiver
    }

    /// From now on no place is reserved. Jobs whose flush has reserved one are still sent.
    pub(crate) fn stop_reserving(&self) {
        if let Some(places) = self.open.lock().as_mut() {
            places.is_closed = true;
        }
    }

    /// Whether a flush has reserved a place and is not committed.
    pub(crate) fn has_reservations(&self) -> bool {
        self.open.lock().as_ref().is_some_and(|places| !places.reserved.is_empty())
    }

    /// The launcher has claimed all jobs that wait, or it could not.
    pub(crate) fn note_waiting(&self, are_jobs_waiting: bool) {
        if let Some(places) = self.open.lock().as_mut() {
            places.are_jobs_waiting = are_jobs_waiting;
        }
    }

    /// A place for the job's runner, if there is one and no other job waits for it.
    pub(crate) fn reserve(&self, job: &RunnerJob, run: &Run) -> Option<JobPlace> {
        let mut open = self.open.lock();
        let places = open.as_mut().filter(|places| places.may_start(job, run))?;
        let slot = places.slots.clone().try_acquire_owned().ok()?;
        // Its former runner may still be reporting its end.
        let held = self.in_hand.take_up_pending(job.runner_job_id)?;
        places.reserved.insert(job.runner_job_id, Reservation { held, slot });
        let attempt_id = AttemptId::new(self.ids.body());
        Some(JobPlace { owner: places.owner.clone(), lease_ms: places.lease_ms, attempt_id })
    }

    /// Hands started jobs to the launcher.
    pub(crate) fn send_started(&self, jobs: Vec<StartedJob>) {
        if jobs.is_empty() {
            return;
        }
        let mut open = self.open.lock();
        let Some(places) = open.as_mut() else { return };
        for start in jobs {
            if let Some(Reservation { held, slot }) = places.reserved.remove(&start.job.runner_job_id) {
                // Without a launcher nothing renews the job's heartbeat, and a sweeper returns the job.
                let _ = places.started.send(ResidentJob { start, held, slot });
            }
        }
    }

    /// Frees the places of jobs whose flush failed. `unanswered_at` is its time if the store may have committed it all the same: then
    /// the launcher looks for the jobs.
    pub(crate) fn give_back(&self, jobs: &[RunnerJobId], unanswered_at: Option<Timestamp>) {
        if let Some(places) = self.open.lock().as_mut() {
            unanswered_at.into_iter().for_each(|at| self.in_hand.claim_unanswered(at));
            jobs.iter().for_each(|job_id| drop(places.reserved.remove(job_id)));
        }
    }
}

impl OpenPlaces {
    fn may_start(&self, job: &RunnerJob, run: &Run) -> bool {
        let is_elsewhere = self.external_profiles.contains(&run.backend_profile);
        let fits = job.placement.is_none() || job.placement == self.placement;
        let accepts = !self.is_closed && !self.are_jobs_waiting;
        accepts && job.launcher == Launcher::Resident && fits && !is_elsewhere
    }
}
