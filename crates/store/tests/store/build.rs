//! Well-formed requests with ids from a counter, so that the same script makes the same rows on every engine.

use ostler_protocol::{
    RawJson, Timestamp,
    ids::{AttemptId, CommandId, PermissionId, RunId, RunnerJobId, SessionId},
    json::canonical_hash,
    kernel::{
        commands::{Command, CommandState, CommandType},
        events::{EventType, NewEvent},
        fold::CommandFold,
        labels::Labels,
        operations::{
            AppendOp, ChangeSessionOp, ClaimOp, CreateCommandOp, CreateJobOp, CreateRunOp, CreateSessionOp, Op,
            Request, SessionChange,
        },
        permissions::VotingRules,
        policy::{Approval, Budgets, ExecutionPolicy, Network, Sandbox, SecretScope},
        runner_jobs::{JobPhase, JobPoll, Launcher, RunnerJob},
        runs::{Run, RunStatus},
        sessions::Session,
        usage::RunUsage,
    },
};
use serde_json::{Value, json};
use uuid::Uuid;

pub(crate) const TENANT: &str = "local";
pub(crate) const LAUNCHER: Launcher = Launcher::Resident;

/// Mints ids that rise.
#[derive(Default)]
pub(crate) struct Mint(u128);

impl Mint {
    /// A mint whose ids no other one gives out.
    pub(crate) fn numbered(number: u128) -> Self {
        Self(number << 64)
    }

    pub(crate) fn body(&mut self) -> Uuid {
        self.0 += 1;
        Uuid::from_u128(self.0)
    }

    pub(crate) fn attempt(&mut self) -> AttemptId {
        AttemptId::new(self.body())
    }

    pub(crate) fn permission(&mut self) -> PermissionId {
        PermissionId::new(self.body())
    }

    pub(crate) fn session(&mut self, name: Option<&str>, now: Timestamp) -> Session {
        let id = SessionId::new(self.body());
        Session::new(id, TENANT.into(), name.map(str::to_owned), "scripted".into(), now)
    }

    /// A run in a session that is known, or new with it.
    pub(crate) fn run(&mut self, session: &Session, is_new: bool, key: Option<String>, now: Timestamp) -> CreateRunOp {
        let run = Run {
            run_id: RunId::new(self.body()),
            session_id: session.public_id(),
            session: session.session,
            tenant_id: TENANT.into(),
            project_id: "project".into(),
            workspace_ref: RawJson::of(&json!({"kind": "none"})),
            provider_id: "provider".into(),
            backend_profile: "scripted".into(),
            agent_id: None,
            execution_policy: policy(),
            trace_sink: RawJson::null(),
            idempotency_key: key,
            request_hash: "hash".into(),
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
            created_at: now,
            updated_at: now,
        };
        let audit = NewEvent::written(EventType::Audit, None, &json!({"action": "run.create"}));
        CreateRunOp { run, session: is_new.then(|| session.clone()), audit, start: None }
    }

    pub(crate) fn command(
        &mut self,
        run: &RunRef,
        command_type: CommandType,
        text: &str,
        key: Option<String>,
        now: Timestamp,
    ) -> CreateCommandOp {
        let command_id = CommandId::new(self.body());
        let payload = json!({"prompt": text});
        let message = NewEvent::written(EventType::UserMessage, Some(command_id), &payload);
        let command = Command {
            command_id,
            run_id: run.run_id,
            session: run.session,
            seq: 0,
            command_type,
            payload_hash: canonical_hash(&payload),
            payload: RawJson::of(&payload),
            idempotency_key: key,
            origin: None,
            submitted_by: Some("test".into()),
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
            created_at: now,
            updated_at: now,
        };
        let storage_missing = Default::default();
        CreateCommandOp { command, message, facts: vec![], storage_missing, unsteerable: None }
    }

    pub(crate) fn job(
        &mut self,
        run: &RunRef,
        command_id: Option<CommandId>,
        standing: bool,
        key: Option<String>,
        now: Timestamp,
    ) -> CreateJobOp {
        let runner_job_id = RunnerJobId::new(self.body());
        let nobody = CommandId::new(Uuid::nil());
        let job = RunnerJob {
            runner_job_id,
            run_id: run.run_id,
            session: run.session,
            command_id: nobody,
            attempt_id: self.attempt(),
            attempt: 0,
            job_name: "job".into(),
            namespace: "test".into(),
            launcher: LAUNCHER,
            runner_id: format!("runner-of-{runner_job_id}"),
            pod_name: Some("pod".into()),
            log_path: None,
            standing,
            phase: JobPhase::Pending,
            terminal_summary: RawJson::of(&json!({})),
            observed: RawJson::empty_object(),
            retention: None,
            backend_image_ref: None,
            transient_env: vec![],
            extras: RawJson::empty_object(),
            starts: 0,
            idempotency_key: key,
            request_hash: format!("standing-{standing}"),
            owner: None,
            heartbeat_at: None,
            token_hash: None,
            placement: None,
            poll: JobPoll::of(run.run_id, runner_job_id, nobody),
            created_at: now,
            updated_at: now,
        };
        CreateJobOp { job, command_id, storage_missing: Default::default() }
    }
}

/// A run and the session it is in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RunRef {
    pub run_id: RunId,
    pub session: SessionId,
}

impl RunRef {
    pub(crate) fn of(op: &CreateRunOp) -> Self {
        Self { run_id: op.run.run_id, session: op.run.session }
    }

    pub(crate) fn request(&self, op: Op) -> Request {
        Request { session: self.session, run_id: Some(self.run_id), op }
    }

    pub(crate) fn claim(&self, runner: &str, lease_ms: i64, attempt_id: AttemptId) -> Request {
        self.request(Op::Claim(ClaimOp { runner_id: runner.into(), lease_ms, attempt_id, take_up: false }))
    }

    pub(crate) fn append(&self, runner: &str, epoch: i64, batch_no: Option<i64>, events: Vec<NewEvent>) -> Request {
        let op = AppendOp {
            runner_id: runner.into(),
            lease_epoch: epoch,
            attempt_id: None,
            batch_no,
            release_if_idle: false,
            ends_job: None,
            voting: VotingRules::default(),
            known_calls: None,
            events,
        };
        self.request(Op::Append(op))
    }
}

pub(crate) fn create_run(op: CreateRunOp) -> Request {
    Request { session: op.run.session, run_id: None, op: Op::CreateRun(Box::new(op)) }
}

/// A session before its first run.
pub(crate) fn create_session(session: Session) -> Request {
    let op = CreateSessionOp { session, by: "test".into(), participant: None };
    Request { session: op.session.session, run_id: None, op: Op::CreateSession(Box::new(op)) }
}

pub(crate) fn change_session(session: SessionId, change: SessionChange) -> Request {
    Request { session, run_id: None, op: Op::ChangeSession(ChangeSessionOp { change, by: "test".into() }) }
}

/// An event as a runner sends it.
pub(crate) fn event(event_type: EventType, command_id: Option<CommandId>, payload: Value) -> NewEvent {
    NewEvent::written(event_type, command_id, &payload)
}

fn policy() -> ExecutionPolicy {
    ExecutionPolicy {
        sandbox: Sandbox::WorkspaceWrite,
        approval: Approval::Never,
        timeout_ms: 60_000,
        network: Network::Enabled,
        secret_scope: SecretScope::default(),
        permission_strategy: None,
        permission_timeout_ms: None,
        max_open_permissions: None,
        budgets: Budgets::default(),
    }
}
