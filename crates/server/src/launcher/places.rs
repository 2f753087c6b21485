//! The places of runners in this process. The launcher takes places for the jobs that it claims, and the write lane reserves places
//! for jobs that became pending in the current flush: those are started in the flush, without a claim.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use ostler_protocol::{
    Timestamp,
    ids::{AttemptId, RunnerJobId},
    kernel::{
        operations::{JobPlace, StartedJob},
        provider_profiles::AgentConfig,
        runner_jobs::{Launcher, RunnerJob},
        runs::Run,
    },
};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::held_jobs::{HeldJob, HeldJobs};
use crate::{app::RunRef, clock::Ids, config::Config};

/// Maximum number of profiles whose backend is remembered.
const PROFILES_MAX: usize = 1_024;

/// The places that the write lane may reserve. It may reserve none until the launcher has opened them.
pub(crate) struct ResidentPlaces {
    held_jobs: HeldJobs,
    ids: Ids,
    open: Mutex<Option<OpenPlaces>>,
    /// Tenants and their profiles whose latest runner had no program to prepare and start, so that a turn began at once.
    immediate: Mutex<HashSet<(String, String)>>,
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
    pub(crate) fn new(held_jobs: HeldJobs, ids: Ids) -> Self {
        Self { held_jobs, ids, open: Mutex::default(), immediate: Mutex::default() }
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

    /// Notes whether a runner of the run's profile had to prepare and start a program.
    pub(crate) fn note_backend(&self, run: &RunRef, is_program: bool) {
        let profile = (run.tenant_id.to_string(), run.backend_profile.to_string());
        let mut immediate = self.immediate.lock();
        if is_program {
            immediate.remove(&profile);
        } else if immediate.len() < PROFILES_MAX {
            immediate.insert(profile);
        }
    }

    /// Whether a runner of the run begins a turn as soon as it has its lease. The turn of another one stays pending until then: it can
    /// be cancelled at once, its time does not pass, and the next runner need not assume that the agent has seen it.
    fn begins_at_once(&self, run: &Run) -> bool {
        AgentConfig::of_profile(&run.backend_profile) == Some(AgentConfig::Scripted)
            || self.immediate.lock().contains(&(run.tenant_id.clone(), run.backend_profile.clone()))
    }

    /// A place for the job's runner, if there is one and no other job waits for it.
    pub(crate) fn reserve(&self, job: &RunnerJob, run: &Run) -> Option<JobPlace> {
        let mut open = self.open.lock();
        let places = open.as_mut().filter(|places| places.may_start(job, run))?;
        let slot = places.slots.clone().try_acquire_owned().ok()?;
        // Its former runner may still be reporting its end.
        let held = self.held_jobs.take_up_pending(job.runner_job_id)?;
        places.reserved.insert(job.runner_job_id, Reservation { held, slot });
        let (owner, lease_ms) = (places.owner.clone(), places.lease_ms);
        let attempt_id = AttemptId::new(self.ids.body());
        Some(JobPlace { owner, lease_ms, attempt_id, take_up: self.begins_at_once(run) })
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
            unanswered_at.into_iter().for_each(|at| self.held_jobs.claim_unanswered(at));
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

#[cfg(test)]
mod tests;
