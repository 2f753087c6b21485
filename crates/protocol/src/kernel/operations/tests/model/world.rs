//! One state of the model, and what can happen in it. Time has two lengths: too short to matter, and long enough for
//! every lease and heartbeat that is not renewed to run out.

mod starts;
mod state;

use jiff::SignedDuration;

use super::super::*;
use crate::{
    FailureKind,
    kernel::launching::{AfterFinish, LauncherJobs, Owned, after_finish, is_abandoned},
    limits::JOB_ATTEMPTS_MAX,
};

/// What launchers go by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rules {
    Current,
    /// A heartbeat vouches for every job of its owner, and a report that is not answered is given up.
    ByOwner,
    /// The same heartbeat, with reports that are repeated.
    ByOwnerRepeating,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub rules: Rules,
    pub launcher: Launcher,
    pub standing: bool,
    pub servers: usize,
    /// The client submits a second turn at some time.
    pub second_turn: bool,
    /// The client cancels the first turn at some time.
    pub cancels: bool,
    /// A cluster ends a runner whose time limit is over.
    pub has_time_limit: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Answer {
    Received,
    /// The store carried the request out, and the answer was lost.
    Lost,
    /// The request was lost.
    NeverSent,
    /// The store carried the request out after its sender had stopped looking for an outcome.
    TooLate,
}

use Answer::*;

/// Whose runner: of the server with this number, or one that outlived its server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Whose {
    Server(usize),
    Orphaned,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Action {
    ClaimJob(usize, Answer),
    /// The flush that makes the job wait starts it in a place of its own server. This may happen whenever the job waits.
    StartJob(usize, Answer),
    RecoverClaim(usize),
    FinishJob(usize, Answer),
    RunnerClaims(Whose, Answer),
    RunnerWorks(Whose, Answer),
    RunnerDies(Whose),
    RunnerExceedsLimit(Whose),
    SweepLease,
    SweeperLooks(usize),
    SweeperAbandons,
    /// Long enough for what is not renewed to run out.
    TimePasses,
    /// The same, while no heartbeat and no renewal reaches the store.
    TimePassesUnheard,
    ServerCrashes(usize),
    Cancel,
    SubmitSecond,
}

impl Action {
    /// Whether the system does this by itself when nothing goes wrong any more.
    pub(super) fn is_systems_own(self) -> bool {
        use Action::*;
        match self {
            ClaimJob(_, answer)
            | StartJob(_, answer)
            | FinishJob(_, answer)
            | RunnerClaims(_, answer)
            | RunnerWorks(_, answer) => answer == Received,
            RecoverClaim(_) | SweepLease | SweeperLooks(_) | SweeperAbandons | TimePasses => true,
            RunnerDies(_) | RunnerExceedsLimit(_) | TimePassesUnheard | ServerCrashes(_) | Cancel | SubmitSecond => {
                false
            }
        }
    }
}

#[derive(Clone)]
struct Server {
    owner: String,
    launcher_jobs: LauncherJobs,
    work: Work,
}

#[derive(Clone, Copy, PartialEq)]
enum Work {
    Idle,
    Runs(Runner),
    /// The runner has ended, and the end is not stored yet.
    Ended(JobEnd),
}

/// A runner, with the epoch it was given.
#[derive(Clone, Copy, PartialEq)]
struct Runner {
    epoch: Option<i64>,
}

#[derive(Clone)]
pub(super) struct World {
    setting: Setting,
    scene: Scene,
    run: RunId,
    job: RunnerJobId,
    servers: Vec<Server>,
    orphan: Option<Runner>,
    /// What a sweeper has read and not acted on yet: the job's owner and heartbeat.
    seen: Option<(String, Option<Timestamp>)>,
    may_cancel: bool,
    may_submit: bool,
    /// Owners are never used twice.
    owners: usize,
}

const SILENCE_MS: i64 = LEASE_MS;
/// Starts that the job has left, so that there is less to explore.
const STARTS_LEFT: i64 = 2;
const RUNNER: &str = "runner";

impl World {
    pub(super) fn new(setting: Setting) -> Self {
        let mut scene = Scene::new();
        let mut op = scene.new_run();
        // No deadline of its own ends a turn that everything else has forgotten.
        op.run.execution_policy.timeout_ms = i64::MAX / 2;
        let run = op.run.run_id;
        scene.apply(run, Op::CreateRun(Box::new(op))).unwrap();
        scene.turn(run);
        let op = scene.new_job(run);
        let job_id = op.job.runner_job_id;
        let (standing, launcher) = (setting.standing, setting.launcher);
        let job = RunnerJob { standing, launcher, attempt: JOB_ATTEMPTS_MAX - STARTS_LEFT, ..op.job };
        scene.apply(run, Op::CreateJob(Box::new(CreateJobOp { job, ..op }))).unwrap();
        let mut world = Self {
            setting,
            scene,
            run,
            job: job_id,
            servers: vec![],
            orphan: None,
            seen: None,
            may_cancel: setting.cancels,
            may_submit: setting.second_turn,
            owners: 0,
        };
        world.servers = (0..setting.servers).map(|_| world.new_server()).collect();
        world
    }

    fn new_server(&mut self) -> Server {
        self.owners += 1;
        Server { owner: format!("launcher-{}", self.owners), launcher_jobs: LauncherJobs::default(), work: Work::Idle }
    }

    pub(super) fn actions(&self) -> Vec<Action> {
        use Action::*;
        let mut actions = vec![SweepLease, SweeperAbandons, TimePasses, TimePassesUnheard, Cancel, SubmitSecond];
        let mut runners = vec![Whose::Orphaned];
        for server in 0..self.servers.len() {
            actions.extend([Received, Lost, TooLate].map(|answer| ClaimJob(server, answer)));
            actions.extend([Received, Lost].map(|answer| StartJob(server, answer)));
            actions.extend([Received, Lost, NeverSent].map(|answer| FinishJob(server, answer)));
            actions.extend([RecoverClaim(server), SweeperLooks(server), ServerCrashes(server)]);
            runners.push(Whose::Server(server));
        }
        for whose in runners {
            actions.extend([Received, Lost].map(|answer| RunnerClaims(whose, answer)));
            actions.extend([Received, Lost].map(|answer| RunnerWorks(whose, answer)));
            actions.extend([RunnerDies(whose), RunnerExceedsLimit(whose)]);
        }
        actions
    }

    /// The state after the action. `None` if it cannot happen here.
    pub(super) fn after(&self, action: Action) -> Option<Self> {
        use Action::*;
        let mut next = self.clone();
        next.scene.desk.events.clear();
        next.scene.now = self.scene.now + SignedDuration::from_micros(1);
        let happened = match action {
            ClaimJob(server, answer) => next.claim_job(server, answer),
            StartJob(server, answer) => next.start_job(server, answer),
            RecoverClaim(server) => next.recover_claim(server),
            FinishJob(server, answer) => next.finish_job(server, answer),
            RunnerClaims(whose, answer) => next.runner_claims(whose, answer),
            RunnerWorks(whose, answer) => next.runner_works(whose, answer),
            RunnerDies(whose) => next.runner(whose).is_some() && next.runner_ends(whose, JobEnd::Failed),
            RunnerExceedsLimit(whose) => {
                self.setting.has_time_limit && next.runner(whose).is_some() && next.runner_ends(whose, JobEnd::Overdue)
            }
            SweepLease => next.sweep_lease(),
            SweeperLooks(server) => next.sweeper_looks(server),
            SweeperAbandons => next.sweeper_abandons(),
            TimePasses => next.time_passes(),
            TimePassesUnheard => {
                next.scene.advance_ms(LEASE_MS);
                true
            }
            ServerCrashes(server) => next.server_crashes(server),
            Cancel => next.cancel(),
            SubmitSecond => next.submit_second(),
        };
        happened.then_some(next)
    }

    fn row(&self) -> &RunnerJob {
        &self.scene.rows(self.run).jobs[&self.job]
    }

    fn row_mut(&mut self) -> &mut RunnerJob {
        self.scene.desk.run_mut(self.run).jobs.get_mut(&self.job).unwrap()
    }

    fn keeps_track(&self) -> bool {
        self.setting.rules == Rules::Current
    }

    /// As `runner_jobs::claim` does it in the store.
    fn claim_job(&mut self, server: usize, answer: Answer) -> bool {
        if self.row().phase != JobPhase::Pending || self.servers[server].work != Work::Idle {
            return false;
        }
        let (now, owner) = (self.scene.now, self.servers[server].owner.clone());
        let job = self.row_mut();
        (job.phase, job.owner, job.attempt) = (JobPhase::Running, Some(owner), job.attempt + 1);
        (job.heartbeat_at, job.updated_at) = (Some(now), now);
        match answer {
            Received => self.start(server, None),
            Lost => self.servers[server].launcher_jobs.claim_unanswered(now),
            _ => {}
        }
        true
    }

    fn start(&mut self, server: usize, epoch: Option<i64>) {
        let server = &mut self.servers[server];
        assert!(server.launcher_jobs.take_up(self.job), "a job in hand is not started a second time");
        server.work = Work::Runs(Runner { epoch });
    }

    fn recover_claim(&mut self, server: usize) -> bool {
        let found = self.servers[server].launcher_jobs.on_owned(self.row(), &self.servers[server].owner);
        let can = self.keeps_track() && self.servers[server].work == Work::Idle && found == Owned::TakeUp;
        if can {
            self.start(server, None);
        }
        can
    }

    fn finish_job(&mut self, server: usize, answer: Answer) -> bool {
        let Work::Ended(end) = self.servers[server].work else { return false };
        let owner = self.servers[server].owner.clone();
        let mut answered = Err(Failure::new(FailureKind::InfraFailed, "the store did not answer"));
        if answer != NeverSent {
            let stored = self.finish(owner, end, None);
            if answer == Received {
                answered = stored;
            }
        }
        let gives_up = self.setting.rules == Rules::ByOwner;
        if gives_up || after_finish(&answered) == AfterFinish::PutDown {
            self.servers[server].work = Work::Idle;
            self.servers[server].launcher_jobs.put_down(self.job);
        }
        true
    }

    fn finish(&mut self, owner: String, end: JobEnd, heartbeat_at: Option<Timestamp>) -> Result<Reply, Failure> {
        let op = FinishJobOp { runner_job_id: self.job, owner, end, heartbeat_at, summary: RawJson::null() };
        self.scene.apply(self.run, Op::FinishJob(op))
    }

    fn runner(&self, whose: Whose) -> Option<Runner> {
        match whose {
            Whose::Orphaned => self.orphan,
            Whose::Server(server) => match self.servers[server].work {
                Work::Runs(runner) => Some(runner),
                _ => None,
            },
        }
    }

    fn runner_goes_on(&mut self, whose: Whose, runner: Runner) -> bool {
        match whose {
            Whose::Orphaned => self.orphan = Some(runner),
            Whose::Server(server) => self.servers[server].work = Work::Runs(runner),
        }
        true
    }

    fn runner_ends(&mut self, whose: Whose, end: JobEnd) -> bool {
        match whose {
            Whose::Orphaned => self.orphan = None,
            Whose::Server(server) => self.servers[server].work = Work::Ended(end),
        }
        true
    }

    fn runner_claims(&mut self, whose: Whose, answer: Answer) -> bool {
        let Some(Runner { epoch: None }) = self.runner(whose) else { return false };
        let attempt_id = AttemptId::new(self.scene.body());
        let op = ClaimOp { runner_id: RUNNER.into(), lease_ms: LEASE_MS, attempt_id, take_up: true };
        match (self.scene.apply(self.run, Op::Claim(op)), answer) {
            (_, Lost) => true,
            (Ok(Reply::Claimed(claimed)), _) => self.runner_goes_on(whose, Runner { epoch: Some(claimed.lease_epoch) }),
            (Err(failure), _) => self.runner_is_refused(whose, &failure),
            (Ok(other), _) => panic!("a claim was answered with {other:?}"),
        }
    }

    /// Takes up the next turn, ends it, or leaves when there is none.
    fn runner_works(&mut self, whose: Whose, answer: Answer) -> bool {
        let Some(runner @ Runner { epoch: Some(epoch) }) = self.runner(whose) else { return false };
        let rows = self.scene.rows(self.run);
        let next = rows.unfinished_ids().first().map(|id| &*rows.commands[id]);
        let taken_up =
            |command: &&Command| command.state != CommandState::Pending && command.attempt_id == rows.run.attempt_id;
        let op = match next {
            None => Op::PatchLease(patch(epoch, true)),
            Some(command) if !taken_up(&command) => {
                let command_id = command.command_id;
                Op::Ack(AckOp { command_id, runner_id: RUNNER.into(), lease_epoch: epoch, attempt_id: None })
            }
            Some(command) => {
                let status = if command.cancel_requested_at.is_some() { "cancelled" } else { "completed" };
                Op::Append(AppendOp {
                    runner_id: RUNNER.into(),
                    lease_epoch: epoch,
                    attempt_id: None,
                    batch_no: None,
                    release_if_idle: true,
                    voting: VotingRules::default(),
                    known_calls: None,
                    ends_job: Some((self.job, RawJson::null())),
                    events: vec![ends(command.command_id, status)],
                })
            }
        };
        let before = (self.scene.rows(self.run).run.last_seq, self.may_write(epoch));
        let outcome = self.scene.apply(self.run, op);
        let wrote = self.scene.rows(self.run).run.last_seq > before.0;
        assert!(!wrote || before.1, "a runner wrote without the live lease");
        match outcome {
            _ if answer == Lost => true,
            Ok(Reply::Lease(state)) if state.released => self.runner_ends(whose, JobEnd::Succeeded),
            Ok(Reply::Appended(appended)) if appended.job_ended => self.runner_has_ended_its_job(whose),
            Ok(Reply::Appended(appended)) if appended.released => self.runner_ends(whose, JobEnd::Succeeded),
            Ok(_) => self.runner_goes_on(whose, runner),
            Err(failure) => self.runner_is_refused(whose, &failure),
        }
    }

    fn may_write(&self, epoch: i64) -> bool {
        let rows = self.scene.rows(self.run);
        rows.live_lease(self.scene.now).is_some_and(|lease| lease.epoch == epoch && rows.run.lease_epoch == epoch)
    }

    /// As the runner takes a refusal (`runner::tenure`).
    fn runner_is_refused(&mut self, whose: Whose, failure: &Failure) -> bool {
        match (failure.kind, failure.rule_name()) {
            (_, Some("lease-released" | "run-cancelled" | "run-terminal")) => {
                self.runner_ends(whose, JobEnd::Succeeded)
            }
            (_, Some("command-terminal" | "command-cancelled")) => true,
            _ => self.runner_ends(whose, JobEnd::Failed),
        }
    }

    fn sweep_lease(&mut self) -> bool {
        let now = self.scene.now;
        let due = self.scene.rows(self.run).lease.as_deref().is_some_and(|lease| !lease.ended && !lease.is_live(now));
        if due {
            self.scene.sweep(self.run);
        }
        due
    }

    fn silent_before(&self) -> Timestamp {
        self.scene.now - SignedDuration::from_millis(SILENCE_MS)
    }

    fn sweeper_looks(&mut self, server: usize) -> bool {
        let nothing = LauncherJobs::default();
        let launcher_jobs = if self.keeps_track() { &self.servers[server].launcher_jobs } else { &nothing };
        let job = self.row();
        if self.seen.is_some() || !is_abandoned(job, self.silent_before(), launcher_jobs) {
            return false;
        }
        self.seen = job.owner.clone().map(|owner| (owner, job.heartbeat_at));
        true
    }

    fn sweeper_abandons(&mut self) -> bool {
        let Some((owner, heartbeat_at)) = self.seen.take() else { return false };
        self.finish(owner, JobEnd::Lost, heartbeat_at).unwrap();
        true
    }

    /// Every live process renews what it holds, several times.
    fn time_passes(&mut self) -> bool {
        for _ in 0..3 {
            self.scene.advance_ms(LEASE_MS * 2 / 5);
            let held = self.servers.iter().map(|server| server.work).filter_map(|work| match work {
                Work::Runs(runner) => runner.epoch,
                _ => None,
            });
            for epoch in held.chain(self.orphan.and_then(|runner| runner.epoch)).collect::<Vec<_>>() {
                // One that was refused hears of it when it writes.
                let _ = self.scene.apply(self.run, Op::PatchLease(patch(epoch, false)));
            }
            for server in 0..self.servers.len() {
                self.vouch(server);
            }
        }
        let until = self.silent_before();
        self.servers.iter_mut().for_each(|server| server.launcher_jobs.forget_unanswered(until));
        true
    }

    fn vouch(&mut self, server: usize) {
        let Server { owner, launcher_jobs, .. } = &self.servers[server];
        let ours = self.row().phase == JobPhase::Running && self.row().owner.as_ref() == Some(owner);
        if ours && (!self.keeps_track() || launcher_jobs.held_ids().contains(&self.job)) {
            self.row_mut().heartbeat_at = Some(self.scene.now);
        }
    }

    /// It comes back at once, under another name and with nothing in hand.
    fn server_crashes(&mut self, server: usize) -> bool {
        if let Work::Runs(runner) = self.servers[server].work
            && self.setting.launcher.outlives_server()
            && self.orphan.is_none()
        {
            self.orphan = Some(runner);
        }
        self.servers[server] = self.new_server();
        true
    }

    fn cancel(&mut self) -> bool {
        let first = self.scene.rows(self.run).unfinished_ids().first().copied();
        let Some(command) = first.filter(|_| std::mem::take(&mut self.may_cancel)) else { return false };
        self.scene.cancel(self.run, command);
        true
    }

    fn submit_second(&mut self) -> bool {
        let may = std::mem::take(&mut self.may_submit);
        if may {
            self.scene.turn(self.run);
        }
        may
    }
}

fn patch(lease_epoch: i64, release: bool) -> PatchLeaseOp {
    PatchLeaseOp { runner_id: RUNNER.into(), lease_epoch, lease_ms: None, release, only_if_idle: true }
}
