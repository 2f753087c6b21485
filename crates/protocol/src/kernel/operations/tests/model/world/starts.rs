//! Jobs that flushes start and end, without a claim and a report of a launcher.

use super::*;

impl World {
    /// As the write lane does it, for runners in the server's process.
    pub(super) fn start_job(&mut self, server: usize, answer: Answer) -> bool {
        let Server { owner, launcher_jobs, work } = &self.servers[server];
        let is_free = *work == Work::Idle && !launcher_jobs.holds(self.job);
        if self.setting.launcher != Launcher::Resident || !self.keeps_track() || !is_free {
            return false;
        }
        let attempt_id = AttemptId::new(self.scene.body());
        // Both kinds of runners: those that begin at once, and those that are prepared first.
        let take_up = !self.setting.standing;
        let place = JobPlace { owner: owner.clone(), lease_ms: LEASE_MS, attempt_id, take_up };
        // The flush knows no pauses between starts: they are about time, and the model has none.
        let (job_id, attempt) = (self.job, self.row().attempt);
        self.row_mut().attempt = attempt.min(1);
        self.scene.desk.waiting_jobs = vec![(self.run, job_id)];
        let started = self.scene.desk.start_jobs(self.scene.now, |_, _| Some(place.clone())).pop();
        let counted = i64::from(started.is_some());
        self.row_mut().attempt = attempt + counted;
        let Some(StartedJob { claimed, .. }) = started else { return false };
        match answer {
            Received => self.start(server, Some(claimed.lease_epoch)),
            _ => self.servers[server].launcher_jobs.claim_unanswered(self.scene.now),
        }
        true
    }

    /// Its launcher has nothing to report.
    pub(super) fn runner_has_ended_its_job(&mut self, whose: Whose) -> bool {
        if let Whose::Server(server) = whose {
            self.servers[server].work = Work::Idle;
            self.servers[server].launcher_jobs.put_down(self.job);
        } else {
            self.orphan = None;
        }
        true
    }
}
