//! The kernel's rules, each as a sentence, on a desk without a store.

mod budgets;
mod calls;
mod cancels;
mod commands;
mod jobs;
mod leases;
mod model;
mod permissions;
mod sessions;
mod starts;
mod submissions;
mod unneeded_jobs;
mod usage;
mod votes;

use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::{
    FailureKind, RawJson,
    ids::{AttemptId, CommandId, PermissionId, RunId, RunnerJobId, SessionId},
    kernel::{
        commands::{Command, CommandState, CommandType},
        events::{Appended, EventType, NewEvent},
        fold::CommandFold,
        labels::Labels,
        permissions::{Voter, VotingRules},
        policy::{Approval, Budgets, ExecutionPolicy, Network, Sandbox, SecretScope},
        runner_jobs::{JobEnd, JobPhase, JobPoll, Launcher, RunnerJob},
        runs::{Run, RunStatus},
        sessions::Session,
        usage::RunUsage,
    },
};

const LEASE_MS: i64 = 1_000;

/// A session on its desk, a clock that is moved by hand, and ids from a counter.
#[derive(Clone)]
pub(super) struct Scene {
    pub desk: Desk,
    pub now: Timestamp,
    minted: u128,
}

impl Scene {
    pub(super) fn new() -> Self {
        let now = Timestamp::from_second(1_767_225_600).unwrap();
        let id = SessionId::new(Uuid::from_u128(1));
        let session = Session::new(id, "local".into(), None, "scripted".into(), now);
        Self { desk: Desk::new(Tracked::new(session)), now, minted: 1 }
    }

    pub(super) fn body(&mut self) -> Uuid {
        self.minted += 1;
        Uuid::from_u128(self.minted)
    }

    pub(super) fn advance_ms(&mut self, ms: i64) {
        self.now = super::lease::after(self.now, ms);
    }

    pub(super) fn apply(&mut self, run_id: RunId, op: Op) -> Result<Reply, Failure> {
        let session = self.desk.session.session;
        apply(&mut self.desk, Request { session, run_id: Some(run_id), op }, self.now)
    }

    /// An operation that must be refused and must not change a thing. Answers the rule that refused it.
    pub(super) fn refused(&mut self, run_id: RunId, op: Op) -> String {
        let before = (self.desk.events.len(), format!("{:?}", self.desk.runs.get(&run_id)));
        let failure = self.apply(run_id, op).expect_err("the operation is refused");
        assert_eq!((self.desk.events.len(), format!("{:?}", self.desk.runs.get(&run_id))), before);
        failure.rule_name().unwrap_or(failure.kind.as_str()).to_owned()
    }

    pub(super) fn new_run(&mut self) -> CreateRunOp {
        let run = Run {
            run_id: RunId::new(self.body()),
            session_id: "session".into(),
            session: self.desk.session.session,
            tenant_id: "local".into(),
            project_id: "project".into(),
            workspace_ref: RawJson::null(),
            provider_id: "provider".into(),
            backend_profile: "scripted".into(),
            agent_id: None,
            execution_policy: ExecutionPolicy {
                sandbox: Sandbox::ReadOnly,
                approval: Approval::Never,
                timeout_ms: 1_000,
                network: Network::Disabled,
                secret_scope: SecretScope::default(),
                permission_strategy: None,
                permission_timeout_ms: None,
                max_open_permissions: None,
                budgets: Budgets::default(),
            },
            trace_sink: RawJson::null(),
            idempotency_key: None,
            request_hash: String::new(),
            retry_of: None,
            resource_bundle_ref: None,
            created_by: None,
            status: RunStatus::Pending,
            terminal: None,
            cancel_requested_at: None,
            cancel_reason: None,
            last_seq: 0,
            command_count: 0,
            unfinished_commands: 0,
            lease_epoch: 0,
            open_permissions: 0,
            offered_attempt_id: None,
            attempt_id: None,
            standing_job_id: None,
            labels: Labels::default(),
            usage: RunUsage::default(),
            created_at: self.now,
            updated_at: self.now,
        };
        let audit = NewEvent::written(EventType::Audit, None, &json!({}));
        CreateRunOp { run, session: None, audit, start: None }
    }

    pub(super) fn run(&mut self) -> RunId {
        let op = self.new_run();
        let run_id = op.run.run_id;
        self.apply(run_id, Op::CreateRun(Box::new(op))).unwrap();
        run_id
    }

    pub(super) fn new_command(&mut self, run_id: RunId, command_type: CommandType, key: Option<&str>) -> Op {
        let command_id = CommandId::new(self.body());
        let command = Command {
            command_id,
            run_id,
            session: self.desk.session.session,
            seq: 0,
            command_type,
            payload: RawJson::of(&json!({"prompt": "do it"})),
            payload_hash: "hash".into(),
            idempotency_key: key.map(str::to_owned),
            origin: None,
            submitted_by: None,
            state: CommandState::Pending,
            target_command_id: None,
            cancel_requested_at: None,
            cancel_reason: None,
            rolled_back_at: None,
            acked_at: None,
            deadline_at: None,
            attempt_id: None,
            terminal: None,
            fold: CommandFold::default(),
            created_at: self.now,
            updated_at: self.now,
        };
        let message = NewEvent::written(EventType::UserMessage, Some(command_id), &json!({}));
        Op::CreateCommand(Box::new(CreateCommandOp {
            command,
            message,
            facts: vec![],
            storage_missing: Default::default(),
            unsteerable: None,
        }))
    }

    pub(super) fn command_of(&mut self, run_id: RunId, command_type: CommandType) -> CommandId {
        let op = self.new_command(run_id, command_type, None);
        match self.apply(run_id, op) {
            Ok(Reply::Command(command, true)) => command.command_id,
            other => panic!("a command was answered with {other:?}"),
        }
    }

    pub(super) fn turn(&mut self, run_id: RunId) -> CommandId {
        self.command_of(run_id, CommandType::Turn)
    }

    pub(super) fn new_claim(&mut self, runner: &str) -> Op {
        let attempt_id = AttemptId::new(self.body());
        Op::Claim(ClaimOp { runner_id: runner.into(), lease_ms: LEASE_MS, attempt_id, take_up: false })
    }

    /// Claims the run; answers the epoch.
    pub(super) fn claim(&mut self, run_id: RunId, runner: &str) -> i64 {
        let op = self.new_claim(runner);
        match self.apply(run_id, op) {
            Ok(Reply::Claimed(claimed)) => claimed.lease_epoch,
            other => panic!("a claim was answered with {other:?}"),
        }
    }

    pub(super) fn append_op(runner: &str, epoch: i64, batch_no: Option<i64>, events: Vec<NewEvent>) -> Op {
        Op::Append(AppendOp {
            runner_id: runner.into(),
            lease_epoch: epoch,
            attempt_id: None,
            batch_no,
            release_if_idle: false,
            voting: VotingRules::default(),
            known_calls: None,
            ends_job: None,
            events,
        })
    }

    /// Appends as the holder of the run's last lease.
    pub(super) fn append(&mut self, run_id: RunId, events: Vec<NewEvent>) -> Result<Reply, Failure> {
        let lease = self.rows(run_id).lease.as_deref().expect("a run that was claimed").clone();
        self.apply(run_id, Self::append_op(&lease.runner_id, lease.epoch, None, events))
    }

    /// Lets the runner start the command and say something for it.
    pub(super) fn work(&mut self, run_id: RunId, command_id: CommandId) {
        self.append(run_id, vec![says(command_id)]).unwrap();
        assert_eq!(self.state(run_id, command_id), CommandState::Running);
    }

    pub(super) fn cancel(&mut self, run_id: RunId, command_id: CommandId) {
        let op = CancelCommandOp { command_id, by: "test".into(), reason: None, origin: None, with_jobs: false };
        self.apply(run_id, Op::CancelCommand(op)).unwrap();
    }

    pub(super) fn cancel_run(&mut self, run_id: RunId) {
        self.apply(run_id, Op::CancelRun(CancelRunOp { by: "test".into(), reason: None })).unwrap();
    }

    pub(super) fn patch(&self, run_id: RunId, release: bool, only_if_idle: bool) -> Op {
        let lease = self.rows(run_id).lease.as_deref().expect("a run that was claimed");
        let (runner_id, lease_epoch) = (lease.runner_id.clone(), lease.epoch);
        Op::PatchLease(PatchLeaseOp { runner_id, lease_epoch, lease_ms: None, release, only_if_idle })
    }

    pub(super) fn sweep(&mut self, run_id: RunId) {
        self.apply(run_id, Op::Sweep(SweepOp::default())).unwrap();
    }

    /// A job, as a launcher sees it once it has taken it.
    pub(super) fn running_job(&mut self, run_id: RunId, standing: bool) -> RunnerJobId {
        let op = self.new_job(run_id);
        let runner_job_id = op.job.runner_job_id;
        let job = RunnerJob { standing, ..op.job };
        self.apply(run_id, Op::CreateJob(Box::new(CreateJobOp { job, ..op }))).unwrap();
        self.take_job(run_id, runner_job_id);
        runner_job_id
    }

    pub(super) fn new_job(&mut self, run_id: RunId) -> CreateJobOp {
        let runner_job_id = RunnerJobId::new(self.body());
        let unknown = CommandId::new(Uuid::nil());
        let job = RunnerJob {
            runner_job_id,
            run_id,
            session: self.desk.session.session,
            command_id: unknown,
            attempt_id: AttemptId::new(self.body()),
            attempt: 0,
            job_name: String::new(),
            namespace: String::new(),
            launcher: Launcher::Resident,
            runner_id: "runner".into(),
            pod_name: None,
            log_path: None,
            standing: true,
            phase: JobPhase::Pending,
            terminal_summary: RawJson::null(),
            observed: RawJson::empty_object(),
            retention: None,
            backend_image_ref: None,
            transient_env: vec![],
            extras: RawJson::empty_object(),
            starts: 0,
            idempotency_key: None,
            request_hash: String::new(),
            owner: None,
            heartbeat_at: None,
            token_hash: None,
            placement: None,
            poll: JobPoll::of(run_id, runner_job_id, unknown),
            created_at: self.now,
            updated_at: self.now,
        };
        CreateJobOp { job, command_id: None, storage_missing: Default::default() }
    }

    /// What `runner_jobs::claim` does in the store.
    pub(super) fn take_job(&mut self, run_id: RunId, job_id: RunnerJobId) {
        let now = self.now;
        let job = self.desk.run_mut(run_id).jobs.get_mut(&job_id).unwrap();
        assert_eq!(job.phase, JobPhase::Pending);
        job.phase = JobPhase::Running;
        job.attempt += 1;
        job.owner = Some("launcher".into());
        job.heartbeat_at = Some(now);
        job.updated_at = now;
    }

    pub(super) fn finish_job(&mut self, run_id: RunId, runner_job_id: RunnerJobId, end: JobEnd) -> JobPhase {
        let owner = "launcher".to_owned();
        let heartbeat_at = self.rows(run_id).jobs[&runner_job_id].heartbeat_at;
        let op = FinishJobOp { runner_job_id, owner, end, heartbeat_at, summary: RawJson::null() };
        self.apply(run_id, Op::FinishJob(op)).unwrap();
        self.rows(run_id).jobs[&runner_job_id].phase
    }

    pub(super) fn rows(&self, run_id: RunId) -> &RunDesk {
        self.desk.run(run_id).unwrap()
    }

    pub(super) fn command(&self, run_id: RunId, command_id: CommandId) -> &Command {
        &self.rows(run_id).commands[&command_id]
    }

    pub(super) fn state(&self, run_id: RunId, command_id: CommandId) -> CommandState {
        self.command(run_id, command_id).state
    }

    pub(super) fn status(&self, run_id: RunId) -> RunStatus {
        self.rows(run_id).run.status
    }

    /// Why the command ended.
    pub(super) fn failure_kind(&self, run_id: RunId, command_id: CommandId) -> Option<FailureKind> {
        self.command(run_id, command_id).terminal.as_ref().expect("the command has ended").failure_kind
    }

    /// The payloads of one type of events, in their order.
    pub(super) fn facts(&self, event_type: EventType) -> Vec<Value> {
        let of_type = self.desk.events.iter().filter(|event| event.event_type == event_type);
        of_type.map(|event| serde_json::from_str(event.payload.as_deref().unwrap()).unwrap()).collect()
    }
}

pub(super) fn says(command_id: CommandId) -> NewEvent {
    NewEvent::written(EventType::AssistantMessage, Some(command_id), &json!({"text": "hello"}))
}

pub(super) fn ends(command_id: CommandId, status: &str) -> NewEvent {
    NewEvent::written(EventType::TerminalStatus, Some(command_id), &json!({"status": status}))
}

pub(super) fn ends_run(status: &str) -> NewEvent {
    NewEvent::written(EventType::TerminalStatus, None, &json!({"status": status}))
}

pub(super) fn voter(client: Option<&str>) -> Voter {
    Voter { principal: "me".into(), client: client.map(str::to_owned), is_local: false }
}

pub(super) fn asks(command_id: CommandId, permission_id: PermissionId) -> NewEvent {
    let options = json!([{"optionId": "yes", "name": "Yes", "kind": "allow_once"},
        {"optionId": "no", "name": "No", "kind": "reject_once"}]);
    let request = json!({"permissionId": permission_id, "title": "may I?", "options": options,
        "digest": "ab".repeat(32), "waitMs": 5_000});
    NewEvent::written(EventType::PermissionRequest, Some(command_id), &request)
}
