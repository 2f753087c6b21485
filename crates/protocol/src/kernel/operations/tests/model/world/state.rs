//! What the explorer reads of a world: whether it is at its end, whether a step was legal, and the key that identifies it among others.

use super::*;

impl World {
    /// Nothing is unfinished, and nothing is held or running for it.
    pub(crate) fn is_at_end(&self) -> bool {
        let rows = self.scene.rows(self.run);
        let held = rows.lease.as_deref().is_some_and(|lease| !lease.ended);
        let idle = self.servers.iter().all(|server| server.work == Work::Idle);
        rows.unfinished().next().is_none() && self.row().phase.is_finished() && !held && idle
    }

    /// What must hold of every step.
    pub(crate) fn check_step(&self, before: &Self) -> Result<(), String> {
        let (old, new) = (before.scene.rows(self.run), self.scene.rows(self.run));
        for (id, command) in &old.commands {
            if command.terminal.is_some() && new.commands[id].terminal != command.terminal {
                return Err(format!("{id} ended twice"));
            }
        }
        if new.run.lease_epoch < old.run.lease_epoch {
            return Err("an epoch was used again".into());
        }
        if self.row().attempt > JOB_ATTEMPTS_MAX {
            return Err(format!("the job was started {} times", self.row().attempt));
        }
        Ok(())
    }

    /// The state, without what makes no difference: how late it is, and what ids and epochs are called.
    pub(crate) fn key(&self) -> Vec<u8> {
        let (rows, job, now) = (self.scene.rows(self.run), self.row(), self.scene.now);
        let mut key = vec![
            rows.run.status as u8,
            rows.run.cancel_requested_at.is_some().into(),
            rows.run.offered_attempt_id.is_some().into(),
            job.phase as u8,
            job.attempt as u8,
            self.named(job.owner.as_deref()),
            job.heartbeat_at.is_some_and(|at| at < self.silent_before()).into(),
            self.may_cancel.into(),
            self.may_submit.into(),
        ];
        let has_advanced = self.scene.desk.session.ended_at.is_some_and(|at| at >= job.updated_at);
        key.push((self.setting.has_time_limit && has_advanced).into());
        key.extend(
            rows.lease.as_deref().map_or([0, 0, 0], |lease| {
                [1 + u8::from(lease.is_live(now)), lease.ended.into(), lease.expired.into()]
            }),
        );
        for id in rows.commands.keys() {
            let command = &rows.commands[id];
            key.extend([
                command.state as u8,
                command.cancel_requested_at.is_some().into(),
                (command.attempt_id == rows.run.attempt_id).into(),
                (command.created_at < job.updated_at).into(),
            ]);
        }
        let runner = |runner: Runner| match runner.epoch {
            None => 1,
            Some(epoch) if epoch == rows.run.lease_epoch => 2,
            Some(_) => 3,
        };
        for server in &self.servers {
            let work = match server.work {
                Work::Idle => 0,
                Work::Runs(running) => runner(running),
                Work::Ended(end) => 4 + end as u8,
            };
            let recoverable = server.launcher_jobs.on_owned(job, &server.owner) == Owned::TakeUp;
            key.extend([work, server.launcher_jobs.holds(self.job).into(), recoverable.into()]);
        }
        key.push(self.orphan.map_or(0, runner));
        key.extend(match &self.seen {
            None => [0, 0],
            Some((owner, heartbeat_at)) => {
                let current = job.owner.as_ref() == Some(owner) && job.heartbeat_at == *heartbeat_at;
                [1, current.into()]
            }
        });
        key
    }

    fn named(&self, owner: Option<&str>) -> u8 {
        let Some(owner) = owner else { return 0 };
        self.servers.iter().position(|server| server.owner == owner).map_or(1, |server| 2 + server as u8)
    }
}
