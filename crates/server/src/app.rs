//! The state that every service function gets: the store, the lanes, the hub, time, ids, policy and the state of the dialects.

mod calling_commands;
mod redacting;
mod run_ref;
pub use calling_commands::{CallingCommand, CallingCommands};
pub use run_ref::RunRef;

use std::{sync::Arc, time::Duration};

use ostler_protocol::{
    Failure, FailureKind, Timestamp,
    ids::{CommandId, RunId, RunnerJobId, SessionId},
    kernel::{
        events::{Event, EventType},
        operations::{JobPlace, Operation, Request},
        runner_jobs::RunnerJob,
        runs::{Run, TerminalStatus},
        sessions::Session,
    },
    redaction::Redactor,
};
use ostler_runner::guard::Isolation;
use ostler_store::{
    Db,
    lane::{AttachedRows, Committed, Host, LaneError, Lanes},
};
use quick_cache::sync::Cache;
use serde::Deserialize;
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::Semaphore,
};
use tracing::Instrument;

use crate::{
    auth::{Authenticator, Principal},
    clock::{Clock, Ids, fill},
    config::{Config, LimitsSection},
    dialect::States,
    hub::Hub,
    job_queues::JobQueues,
    job_redactors::JobRedactors,
    launcher::{HeldJobs, ResidentPlaces},
    metrics::Metrics,
    net::{
        body_budget::BodyBudget,
        permits::{PermitPool, SIDE_QUERIES, STREAMS},
        refusals::Refusals,
        waiting_connections::{Bounds, WaitingConnections},
    },
    secrets::SecretStore,
    service::{codex_program::CodexProbe, health::StoreCheck, replay_throttle::ReplayThrottle},
    traces::{Span, Traces, inherit_subject, note_run},
    worker::wakeups::Pending,
};

/// When to retry: by then another replica, or this one after a restart, is likely to respond.
const DRAINING_RETRY_MS: i64 = 1_000;
/// Whole payloads of commands that are read at once. Each has up to 24 MiB.
const WHOLE_PAYLOADS_MAX: usize = 8;
const RUNS_REMEMBERED: usize = 8_192;
/// Parsing and redacting this much takes less than a millisecond or two.
const INLINE_BYTES_MAX: usize = 32 * 1024;

/// How long a WebSocket may take to introduce itself while many do.
const PRESSED_WAIT: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub struct App(Arc<AppInner>);

pub struct AppInner {
    pub db: Db,
    pub lanes: Lanes,
    pub hub: Arc<Hub>,
    pub clock: Arc<dyn Clock>,
    pub ids: Ids,
    pub config: Config,
    pub redactor: Redactor,
    pub auth: Authenticator,
    pub secrets: SecretStore,
    pub followers: Arc<PermitPool>,
    pub replays: ReplayThrottle,
    /// Questions beside sessions that are being answered.
    pub side_queries: Arc<PermitPool>,
    /// The request bodies that are being worked on.
    pub body_budget: Arc<BodyBudget>,
    /// Decides which failures are logged one by one.
    pub refusals: Arc<Refusals>,
    /// Held by long computations, so that no more of them run at once than there are cores.
    computing: Semaphore,
    /// Held while the whole payload of a command is read and checked.
    pub whole_payloads: Semaphore,
    /// The name of the workspace that this server is bound to, by which launchers find their jobs: its canonical path. `None` if it
    /// is bound to none, or the store has no other server. Servers that are bound to the same path of different machines must not
    /// share a store.
    pub placement: Option<String>,
    /// The dialects and the state that they have opened.
    states: States,
    /// This server's number among those of the store.
    pub server_number: i64,
    /// WebSockets whose peer has not introduced itself.
    pub fresh_sockets: Arc<WaitingConnections>,
    /// Wake-ups for other servers, if the store can have others.
    others: Option<Arc<Pending>>,
    /// The jobs of this server's launcher.
    pub held_jobs: HeldJobs,
    pub(crate) places: Arc<ResidentPlaces>,
    /// Runners elsewhere that wait for a job.
    pub job_queues: JobQueues,
    pub job_redactors: JobRedactors,
    pub metrics: Arc<Metrics>,
    pub store_check: StoreCheck,
    pub traces: Traces,
    /// Whether Codex can be run on this machine.
    pub codex: CodexProbe,
    /// The namespaces that agents get, once probed.
    pub isolation: tokio::sync::OnceCell<Isolation>,
    runs: Cache<RunId, RunRef>,
    commands: Cache<CommandId, RunRef>,
    pub calling_commands: CallingCommands,
    /// The certificate of the listener in DER, as it was read at the start. `None` without TLS.
    pub tls_certificate: Option<Vec<u8>>,
    stage: tokio::sync::watch::Receiver<Stage>,
}

/// The stages of a server's life, in order.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub enum Stage {
    Serving,
    /// Accepts no new work; long polls and streams have ended, runners finish.
    Draining,
    Stopping,
}

/// The lanes' view of this process.
pub struct LaneHost {
    pub clock: Arc<dyn Clock>,
    pub hub: Arc<Hub>,
    /// Wake-ups for other servers, if the store can have others.
    pub others: Option<Arc<Pending>>,
    pub metrics: Arc<Metrics>,
    pub(crate) places: Arc<ResidentPlaces>,
}

impl Host for LaneHost {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn committed(&self, mut committed: Committed) {
        self.places.send_started(std::mem::take(&mut committed.started));
        let took = self.clock.now().duration_since(committed.began_at);
        self.metrics.flushed(committed.requests, committed.events.len(), took.as_micros() as i64);
        committed.events.iter().filter_map(outcome).for_each(|(status, is_run)| self.metrics.ended(status, is_run));
        if let Some(others) = &self.others {
            others.add_committed(&committed);
        }
        self.hub.publish(committed.events);
        committed.deadlines.into_iter().for_each(|at| self.hub.deadlines.announce(at));
        if committed.jobs_waiting {
            self.hub.wake_for_jobs();
        }
    }

    fn reserve(&self, job: &RunnerJob, run: &Run) -> Option<JobPlace> {
        self.places.reserve(job, run)
    }

    fn give_back(&self, jobs: &[RunnerJobId], unanswered_at: Option<Timestamp>) {
        self.places.give_back(jobs, unanswered_at);
        // A concurrent claim may have found no slot.
        self.hub.wake_for_jobs();
    }
}

/// How a command or a run has ended, if the event is its end.
fn outcome(event: &Event) -> Option<(TerminalStatus, bool)> {
    #[derive(Deserialize)]
    struct End {
        status: TerminalStatus,
    }
    if event.event_type != EventType::TerminalStatus {
        return None;
    }
    let end: End = serde_json::from_str(event.payload.as_deref()?).ok()?;
    Some((end.status, event.command_id.is_none()))
}

pub struct Parts {
    pub db: Db,
    pub lanes: Lanes,
    pub hub: Arc<Hub>,
    pub clock: Arc<dyn Clock>,
    pub config: Config,
    pub redactor: Redactor,
    pub auth: Authenticator,
    pub secrets: SecretStore,
    pub states: States,
    pub metrics: Arc<Metrics>,
    pub traces: Traces,
    pub others: Option<Arc<Pending>>,
    pub(crate) places: (HeldJobs, Arc<ResidentPlaces>),
    pub tls_certificate: Option<Vec<u8>>,
    pub stage: tokio::sync::watch::Receiver<Stage>,
}

impl std::ops::Deref for App {
    type Target = AppInner;

    fn deref(&self) -> &AppInner {
        &self.0
    }
}

impl App {
    pub fn new(parts: Parts) -> Self {
        let (held_jobs, places) = parts.places;
        let body_budget = BodyBudget::new(&parts.config.limits);
        let fresh_sockets = fresh_sockets(&parts.config.limits);
        let placement = parts.config.server.workspace.as_deref().filter(|_| parts.db.multi_replica());
        let placement = placement.and_then(|bound| Some(bound.canonicalize().ok()?.to_string_lossy().into_owned()));
        let mut server_number = [0; 8];
        fill(&mut server_number);
        Self(Arc::new(AppInner {
            db: parts.db,
            lanes: parts.lanes,
            hub: parts.hub,
            ids: Ids::new(parts.clock.clone()),
            clock: parts.clock,
            config: parts.config,
            redactor: parts.redactor,
            auth: parts.auth,
            secrets: parts.secrets,
            followers: PermitPool::new(STREAMS),
            replays: ReplayThrottle::default(),
            side_queries: PermitPool::new(SIDE_QUERIES),
            body_budget,
            refusals: Arc::default(),
            computing: Semaphore::new(cores()),
            whole_payloads: Semaphore::new(WHOLE_PAYLOADS_MAX),
            placement,
            states: parts.states,
            server_number: i64::from_ne_bytes(server_number),
            fresh_sockets,
            others: parts.others,
            held_jobs,
            places,
            job_queues: JobQueues::default(),
            job_redactors: JobRedactors::default(),
            metrics: parts.metrics,
            store_check: StoreCheck::default(),
            traces: parts.traces,
            codex: CodexProbe::default(),
            isolation: tokio::sync::OnceCell::new(),
            runs: Cache::new(RUNS_REMEMBERED),
            commands: Cache::new(RUNS_REMEMBERED),
            calling_commands: CallingCommands::default(),
            tls_certificate: parts.tls_certificate,
            stage: parts.stage,
        }))
    }

    /// The state that a dialect has opened.
    ///
    /// # Panics
    /// If no dialect of this server has opened such a state.
    pub fn state<T: Send + Sync + 'static>(&self) -> &T {
        self.states.get()
    }

    /// Whether other servers may use this store.
    pub fn has_others(&self) -> bool {
        self.others.is_some()
    }

    /// Wake-ups for other servers, if the store can have others.
    pub(crate) fn others(&self) -> Option<&Pending> {
        self.others.as_deref()
    }

    /// Sends a span to the collector, or counts it as dropped.
    pub fn trace(&self, span: Span) {
        self.metrics.spans_dropped(usize::from(!self.traces.put(span)));
    }

    /// Runs `work` to completion in its own task, so that a client disconnect does not cancel it.
    pub async fn to_the_end<T: Send + 'static, F: Future<Output = Result<T, Failure>> + Send + 'static>(
        &self,
        work: impl FnOnce(App) -> F,
    ) -> Result<T, Failure> {
        tokio::spawn(inherit_subject(work(self.clone())).in_current_span()).await.map_err(Failure::internal)?
    }

    /// Runs work that revokes a right to completion, then clears the cache of authenticated callers.
    pub async fn taking_rights<T: Send + 'static, F: Future<Output = Result<T, Failure>> + Send + 'static>(
        &self,
        take: impl FnOnce(App) -> F,
    ) -> Result<T, Failure> {
        self.to_the_end(|app| {
            let taking = take(app.clone());
            async move {
                let taken = taking.await;
                app.auth.forget_callers();
                taken
            }
        })
        .await
    }

    /// Runs a computation over this many bytes. A long one does not block the threads of the async runtime.
    pub async fn compute<T>(&self, bytes: usize, work: impl FnOnce() -> T + Send) -> T {
        if bytes <= INLINE_BYTES_MAX {
            return work();
        }
        let _permit = self.computing.acquire().await;
        match Handle::current().runtime_flavor() {
            RuntimeFlavor::MultiThread => tokio::task::block_in_place(work),
            _ => work(),
        }
    }

    /// The server's time, for durations and for what is recorded. A jump of the wall clock does not move it.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The machine's wall clock, for expiries that are dates: tokens, certificates, signed URLs, grants.
    pub fn wall(&self) -> Timestamp {
        self.clock.wall()
    }

    /// The earlier of both times. What has expired by it may be deleted: neither clock would still accept it.
    pub fn surely_past(&self) -> Timestamp {
        self.now().min(self.wall())
    }

    /// Submits one operation. `None` if a concurrent operation has used the same unique key.
    pub async fn try_submit<O: Operation>(
        &self,
        session: SessionId,
        run_id: impl Into<Option<RunId>>,
        op: O,
    ) -> Result<Option<O::Reply>, Failure> {
        self.try_submit_with(session, run_id, op, AttachedRows::default()).await
    }

    /// As [`App::try_submit`], with rows of a dialect that become durable together with the operation. `None` also if one of
    /// them cannot be written.
    pub async fn try_submit_with<O: Operation>(
        &self,
        session: SessionId,
        run_id: impl Into<Option<RunId>>,
        op: O,
        rows: AttachedRows,
    ) -> Result<Option<O::Reply>, Failure> {
        let request = Request { session, run_id: run_id.into(), op: op.into_op() };
        match self.lanes.submit_with(request, rows).await {
            Ok(reply) => match O::read(reply) {
                Some(reply) => Ok(Some(reply)),
                None => Err(Failure::internal("the kernel gave the reply of another operation")),
            },
            Err(LaneError::Taken) => Ok(None),
            Err(LaneError::Refused(failure)) => Err(failure),
            Err(LaneError::Store(error)) => Err(error.into()),
        }
    }

    pub async fn submit<O: Operation>(&self, run: &RunRef, op: O) -> Result<O::Reply, Failure> {
        self.try_submit(run.session, run.run_id, op)
            .await?
            .ok_or_else(|| Failure::internal("a key clashed under its own lock"))
    }

    pub async fn run_ref(&self, run_id: RunId) -> Result<RunRef, Failure> {
        match self.runs.get(&run_id) {
            Some(cached) => Ok(cached),
            // On the heap: it is rare, and the futures of most requests would have room for it.
            None => Box::pin(self.read_run_ref(run_id)).await,
        }
    }

    async fn read_run_ref(&self, run_id: RunId) -> Result<RunRef, Failure> {
        let run = ostler_store::kernel::runs::get(&self.db, run_id).await?;
        let run = run.ok_or_else(|| Failure::not_found("run"))?;
        let session = ostler_store::kernel::sessions::get(&self.db, run.session).await?;
        let session = session.ok_or_else(|| Failure::not_found("run"))?;
        Ok(self.remember_run(&run, &session))
    }

    /// The run, if the caller may see it. A run of another tenant or user is reported like an absent one, so that ids
    /// cannot be probed.
    pub async fn visible_run(&self, caller: &Principal, run_id: RunId) -> Result<RunRef, Failure> {
        let run = self.readable_run(caller, run_id).await?;
        note_run(&run.tenant_id, run.session, run.run_id);
        Ok(run)
    }

    /// As [`App::visible_run`], for a run that the operation reads and is not about.
    pub(crate) async fn readable_run(&self, caller: &Principal, run_id: RunId) -> Result<RunRef, Failure> {
        let run = self.run_ref(run_id).await?;
        caller.may_read(&run).map_err(|_| Failure::not_found("run"))?;
        Ok(run)
    }

    /// The run of a command, if the caller may see it; like [`App::visible_run`].
    pub async fn visible_command(&self, caller: &Principal, command_id: CommandId) -> Result<RunRef, Failure> {
        let run = self.command_ref(command_id).await?;
        caller.may_read(&run).map_err(|_| Failure::not_found("command"))?;
        note_run(&run.tenant_id, run.session, run.run_id);
        Ok(run)
    }

    /// Caches a run that this operation has created.
    pub fn created_run(&self, run: &Run, session: &Session) -> RunRef {
        let run = self.remember_run(run, session);
        note_run(&run.tenant_id, run.session, run.run_id);
        run
    }

    fn remember_run(&self, run: &Run, session: &Session) -> RunRef {
        let run_ref = RunRef::of(run, session);
        self.runs.insert(run.run_id, run_ref.clone());
        run_ref
    }

    /// The run a command belongs to.
    pub async fn command_ref(&self, command_id: CommandId) -> Result<RunRef, Failure> {
        if let Some(cached) = self.commands.get(&command_id) {
            return Ok(cached);
        }
        let command = ostler_store::kernel::commands::get(&self.db, command_id).await?;
        let run_id = command.ok_or_else(|| Failure::not_found("command"))?.run_id;
        let run = self.run_ref(run_id).await?;
        self.remember_command(command_id, &run);
        Ok(run)
    }

    pub fn remember_command(&self, command_id: CommandId, run: &RunRef) {
        self.commands.insert(command_id, run.clone());
    }

    /// Removes an erased session from the caches.
    pub fn forget_session(&self, session: SessionId) {
        self.runs.retain(|_, run| run.session != session);
        self.commands.retain(|_, run| run.session != session);
        self.calling_commands.forget_session(session);
    }

    /// Resolves when the server accepts no new work any more.
    pub async fn drained(&self) {
        self.wait_for_stage(Stage::Draining).await;
    }

    /// Resolves when the server is stopping.
    pub async fn stopped(&self) {
        self.wait_for_stage(Stage::Stopping).await;
    }

    async fn wait_for_stage(&self, stage: Stage) {
        let mut current = self.stage.clone();
        let _ = current.wait_for(|now| *now >= stage).await;
    }

    pub fn is_draining(&self) -> bool {
        *self.stage.borrow() >= Stage::Draining
    }

    /// Fails while the server drains: new work is for another replica, or for this one after a restart.
    pub fn accepting(&self) -> Result<(), Failure> {
        if !self.is_draining() {
            return Ok(());
        }
        let failure = Failure::new(FailureKind::Draining, "this server is stopping and takes no new work");
        Err(failure.detail("retryAfterMs", DRAINING_RETRY_MS))
    }
}

fn fresh_sockets(limits: &LimitsSection) -> Arc<WaitingConnections> {
    WaitingConnections::new(Bounds {
        all_max: limits.sockets_fresh_max,
        per_address_max: limits.sockets_fresh_per_address_max,
        pressed_wait: PRESSED_WAIT,
    })
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
