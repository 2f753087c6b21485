//! The life of a runner: register, claim the run (waiting for a stale lease if necessary), work through the commands, and
//! leave when nothing is left to do.

use std::{
    future::pending,
    pin::{Pin, pin},
};

use ostler_client::{Client, is_transient};
use ostler_protocol::{
    Failure, FailureKind, RawJson, Rule,
    ids::RunId,
    kernel::{
        commands::Command,
        events::PHASE_STORAGE_MOUNTED,
        leases::{ClaimRun, Claimed},
        provider_profiles::AgentConfig,
        runners::RegisterRunner,
        session_storage::CODEX_ROLLOUT_SUBDIR,
    },
    limits::LEASE_MS_DEFAULT,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep, timeout};

use crate::{
    backend::{self, interface::Backend},
    environment::BackendEnvironment,
    lease_session::{Halt, LeaseSession},
    leave_order::{self, LeaveOrder},
    outcome::{RunnerOutcome, RunnerStatus},
    place_bundle::prepare_workspace,
    retries::retry,
    session_storage, turn_driver,
};

/// The placement of a runner in the server's process.
const RESIDENT: &str = "resident";
/// The shortest pause between two attempts to claim.
const CLAIM_PAUSE_MS_MIN: u64 = 10;
const REGISTER_MS_MAX: u64 = 10_000;
const IDLE_POLL_MS_MAX: u64 = 25_000;
/// After this many conditional releases that the server rejected although no turn could be fetched, the release becomes
/// unconditional.
const EMPTY_FETCHES_MAX: u32 = 3;

/// What a runner is started for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunnerOrder {
    pub run_id: RunId,
    pub runner_id: String,
    pub backend_profile: String,
    /// `resident`, `host-process` or `kubernetes-job`.
    pub placement: String,
    pub lease_ms: i64,
    /// Register with the server before claiming.
    pub register: bool,
    /// While another runner holds the run, retry the claim at least this often.
    pub claim_retry_ms: u64,
    /// Give up claiming after this long.
    pub claim_wait_ms: u64,
    /// How long a backend that keeps its lease waits for another command.
    pub idle_timeout_ms: u64,
    #[serde(rename = "outfit")]
    pub environment: BackendEnvironment,
    /// The volume that the storage is on, if whatever started the runner mounted one.
    #[serde(default)]
    pub storage_claim: Option<StorageClaim>,
}

/// A mounted volume claim, as whatever mounted it names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StorageClaim {
    pub name: String,
    pub namespace: String,
    pub mount_path: String,
}

impl RunnerOrder {
    /// An order for the resident runner, with the usual waits.
    pub fn resident(
        run_id: RunId,
        runner_id: String,
        backend_profile: String,
        environment: BackendEnvironment,
    ) -> Self {
        Self {
            run_id,
            runner_id,
            backend_profile,
            placement: RESIDENT.into(),
            lease_ms: LEASE_MS_DEFAULT,
            register: false,
            claim_retry_ms: 1_000,
            claim_wait_ms: 90_000,
            idle_timeout_ms: 600_000,
            environment,
            storage_claim: None,
        }
    }

    /// An order for a runner in its own process, which registers first.
    pub fn host_process(
        run_id: RunId,
        runner_id: String,
        backend_profile: String,
        environment: BackendEnvironment,
    ) -> Self {
        let resident = Self::resident(run_id, runner_id, backend_profile, environment);
        Self { placement: "host-process".into(), register: true, ..resident }
    }
}

/// Runs the backend of the order's environment.
pub async fn run(order: RunnerOrder, client: Client) -> RunnerOutcome {
    let backend = backend::for_environment(&order.environment);
    run_with(order, client, backend).await
}

/// As [`run`], for a run that was claimed for the runner already.
pub async fn run_claimed(order: RunnerOrder, client: Client, claimed: Claimed) -> RunnerOutcome {
    let mut backend = backend::for_environment(&order.environment);
    work_under(claimed, (order, client), backend.as_mut(), (pin!(pending()), Duration::ZERO)).await
}

/// Runs the given backend.
pub async fn run_with(order: RunnerOrder, client: Client, backend: Box<dyn Backend>) -> RunnerOutcome {
    run_with_until(order, client, backend, pending(), Duration::ZERO).await
}

/// As [`run`], until `stopped` resolves. Then the turn is left unfinished, the backend is closed and the lease is released within
/// `grace`, so that another runner can continue at once. If the backend does not end in time, the lease is left to expire.
pub async fn run_until(
    order: RunnerOrder,
    client: Client,
    stopped: impl Future<Output = ()>,
    grace: Duration,
) -> RunnerOutcome {
    let backend = backend::for_environment(&order.environment);
    run_with_until(order, client, backend, stopped, grace).await
}

/// As [`run_until`], with the given backend.
pub async fn run_with_until(
    order: RunnerOrder,
    client: Client,
    mut backend: Box<dyn Backend>,
    stopped: impl Future<Output = ()>,
    grace: Duration,
) -> RunnerOutcome {
    let mut stopped = pin!(stopped);
    let claimed = tokio::select! {
        biased;
        claimed = register_and_claim(&order, &client) => claimed,
        // A lease that the server grants at this moment expires by itself.
        () = stopped.as_mut() => return outcome(RunnerStatus::Stopped, 0, None),
    };
    let claimed = match claimed {
        Ok(claimed) => claimed,
        Err(failure) => {
            let waited = matches!(failure.kind, FailureKind::RunnerLeaseConflict | FailureKind::SessionBusy);
            let halt = if waited { None } else { Some(Halt::from(failure.clone())) };
            return halt
                .map_or_else(|| outcome(RunnerStatus::NotClaimed, 0, Some(failure)), |halt| halt_outcome(halt, 0));
        }
    };
    work_under(claimed, (order, client), backend.as_mut(), (stopped, grace)).await
}

/// Works under a claim until nothing is left to do.
async fn work_under(
    claimed: Claimed,
    (order, client): (RunnerOrder, Client),
    backend: &mut dyn Backend,
    (mut stopped, grace): (Pin<&mut impl Future<Output = ()>>, Duration),
) -> RunnerOutcome {
    let run_id = claimed.run.run_id;
    let mut lease = LeaseSession::new(client, order.runner_id.clone(), order.lease_ms, claimed);
    lease.redactor = order.environment.redactor();
    lease.cutter = order.environment.text_cutter();
    lease.ends_job = order.placement == RESIDENT;
    let (leave, leave_order) = leave_order::channel();
    let worked = {
        let mut working = pin!(work(&order, &mut lease, backend, &leave_order));
        tokio::select! {
            biased;
            worked = working.as_mut() => Some(worked),
            () = stopped.as_mut() => {
                leave.send();
                timeout(grace, working.as_mut()).await.ok()
            }
        }
    };
    let turns = lease.turns;
    let outcome = match worked {
        Some(Ok(())) => outcome(RunnerStatus::Idle, turns, None),
        Some(Err(halt)) => {
            tracing::debug!(%run_id, ?halt, "the runner stops");
            halt_outcome(halt, turns)
        }
        // The backend may still be at work, and another one must not start beside it: the lease expires by itself.
        None => {
            tracing::warn!(%run_id, "the runner was stopped, and had no time to release its lease");
            outcome(RunnerStatus::Stopped, turns, None)
        }
    };
    let outcome = RunnerOutcome { last_end: lease.last_end, is_job_ended: lease.is_job_ended, ..outcome };
    outcome.redacted(&lease.cutter)
}

/// Works on the run and closes the backend. After an order to leave, also releases the lease.
async fn work(
    order: &RunnerOrder,
    lease: &mut LeaseSession,
    backend: &mut dyn Backend,
    leave: &LeaveOrder,
) -> Result<(), Halt> {
    let served = serve(order, lease, backend, leave).await;
    match served {
        Err(Halt::Stopped) => hand_back(lease, backend).await,
        _ => backend.close().await,
    }
    served
}

/// Closes the backend, then releases the lease with whatever is unfinished.
async fn hand_back(lease: &LeaseSession, backend: &mut dyn Backend) {
    close_under_lease(lease, backend).await;
    // The end of the last turn may have released it.
    if lease.is_released {
        return;
    }
    match lease.release(false).await {
        Ok(_) => tracing::info!("the runner was stopped, and has released its lease"),
        Err(failure) => tracing::warn!(%failure, "the runner was stopped, and could not release its lease"),
    }
}

/// Closes the backend and renews the lease in the meantime, so that no other runner starts a backend beside it.
async fn close_under_lease(lease: &LeaseSession, backend: &mut dyn Backend) {
    let mut closing = backend.close();
    tokio::select! {
        biased;
        () = &mut closing => return,
        () = lease.renew_until_rejected() => {}
    }
    closing.await;
}

fn outcome(status: RunnerStatus, turns: u32, failure: Option<Failure>) -> RunnerOutcome {
    RunnerOutcome { status, turns, failure, last_end: None, is_job_ended: false }
}

fn halt_outcome(halt: Halt, turns: u32) -> RunnerOutcome {
    match halt {
        Halt::RunEnded(failure) => outcome(RunnerStatus::RunEnded, turns, Some(failure)),
        // Nothing was left to do, and the server released the lease.
        Halt::FencedOut(failure) if failure.broken_rule() == Some(Rule::LeaseReleased) => {
            outcome(RunnerStatus::Idle, turns, None)
        }
        Halt::FencedOut(failure) => outcome(RunnerStatus::FencedOut, turns, Some(failure)),
        Halt::Crashed => outcome(RunnerStatus::Crashed, turns, None),
        Halt::Stopped => outcome(RunnerStatus::Stopped, turns, None),
        Halt::Failed(failure) => outcome(RunnerStatus::Failed, turns, Some(failure)),
    }
}

async fn register_and_claim(order: &RunnerOrder, client: &Client) -> Result<Claimed, Failure> {
    if order.register {
        let runner = RegisterRunner {
            runner_id: order.runner_id.clone(),
            run_id: Some(order.run_id.to_string()),
            backend_profile: order.backend_profile.clone(),
            placement: RawJson::of(&order.placement),
            capabilities: RawJson::null(),
        };
        retry(Duration::from_millis(REGISTER_MS_MAX), || client.register_runner(&runner)).await?;
    }
    claim(order, client).await
}

/// Claims the run. While another runner holds it, waits for that lease to expire, within the order's limits.
async fn claim(order: &RunnerOrder, client: &Client) -> Result<Claimed, Failure> {
    let run_id = order.run_id.to_string();
    let claim = ClaimRun { runner_id: order.runner_id.clone(), lease_ms: Some(order.lease_ms), take_up: true };
    let until = Instant::now() + Duration::from_millis(order.claim_wait_ms);
    loop {
        let failure = match client.claim_run(&run_id, &claim).await {
            Ok(claimed) => return Ok(claimed),
            Err(failure) => failure,
        };
        let held = matches!(failure.kind, FailureKind::RunnerLeaseConflict | FailureKind::SessionBusy);
        let pause = claim_pause(&failure, order.claim_retry_ms);
        if !(held || is_transient(&failure)) || Instant::now() + pause > until {
            return Err(failure);
        }
        tracing::debug!(%run_id, %failure, "waiting to claim the run");
        sleep(pause).await;
    }
}

/// The pause that the server asks for, but never longer than the order's, because a lease can end early.
fn claim_pause(failure: &Failure, retry_ms: u64) -> Duration {
    let requested = failure.details.as_ref().and_then(|details| details.get("retryAfterMs")).and_then(|ms| ms.as_u64());
    Duration::from_millis(requested.unwrap_or(retry_ms).min(retry_ms).max(CLAIM_PAUSE_MS_MIN))
}

async fn serve(
    order: &RunnerOrder,
    lease: &mut LeaseSession,
    backend: &mut dyn Backend,
    leave: &LeaveOrder,
) -> Result<(), Halt> {
    if lease.run.backend_profile != order.backend_profile {
        let message =
            format!("the run is for {:?}, this runner for {:?}", lease.run.backend_profile, order.backend_profile);
        lease.release(false).await?;
        return Err(Halt::Failed(Failure::invalid(Rule::BackendProfileMismatch, message)));
    }
    lease.storage_mounted = storage_mounted(order);
    let mut unavailable: Box<dyn Backend>;
    let backend: &mut dyn Backend = match prepare_workspace(&order.environment, lease, leave).await? {
        None => backend,
        Some(failure) => {
            unavailable = backend::unavailable(failure);
            unavailable.as_mut()
        }
    };
    lease.releases_when_idle = !backend.keeps_lease();
    loop {
        let next = tokio::select! {
            biased;
            () = leave.wait() => return Err(Halt::Stopped),
            next = next_turn(order, lease, backend) => next?,
        };
        let Some(command) = next else { return Ok(()) };
        lease.turns += 1;
        turn_driver::drive_turn(lease, &order.environment, backend, command, leave).await?;
        report_storage(order, lease).await;
    }
}

/// The next turn to work on. `None` if nothing was left to do, and the lease was released. Cancel safe: no turn is lost.
async fn next_turn(
    order: &RunnerOrder,
    lease: &mut LeaseSession,
    backend: &dyn Backend,
) -> Result<Option<Command>, Halt> {
    let mut empty_fetches = 0;
    loop {
        if let Some(command) = lease.pending.take_next_turn() {
            return Ok(Some(command));
        }
        if lease.is_released {
            return Ok(None);
        }
        // Before the first turn, no program has been started yet.
        let is_waiting = backend.keeps_lease() && (lease.turns == 0 || backend.is_open());
        if is_waiting && wait_for_command(order, lease).await? {
            continue;
        }
        match lease.release(empty_fetches < EMPTY_FETCHES_MAX).await.map_err(Halt::from) {
            Ok(true) => return Ok(None),
            Ok(false) => empty_fetches += 1,
            // A cancelled run ends with its last command.
            Err(halt) => return Err(halt),
        }
        lease.fetch_commands(0).await?;
    }
}

/// The payload that records where the session's storage is, and on which volume. `None` if the backend has no rollouts there.
fn storage_mounted(order: &RunnerOrder) -> Option<Value> {
    let RunnerOrder { storage_claim, environment, .. } = order;
    let directory = environment.storage.as_ref().filter(|_| environment.backend == AgentConfig::Codex);
    match (storage_claim, directory) {
        (Some(StorageClaim { name, namespace, mount_path }), _) => {
            Some(json!({"phase": PHASE_STORAGE_MOUNTED, "pvcName": name, "pvcNamespace": namespace,
                "mountPath": mount_path, "codexRolloutSubdir": CODEX_ROLLOUT_SUBDIR, "valuesPrinted": false}))
        }
        (None, Some(directory)) => Some(json!({"phase": PHASE_STORAGE_MOUNTED, "mountPath": directory,
            "codexRolloutSubdir": CODEX_ROLLOUT_SUBDIR, "valuesPrinted": false})),
        (None, None) => None,
    }
}

/// Reports what the backend has left in its session's storage. The turn has already ended, so a failure is only logged.
async fn report_storage(order: &RunnerOrder, lease: &LeaseSession) {
    let Some(storage) = order.environment.storage.clone() else { return };
    let run_id = order.run_id.to_string();
    let measured = tokio::task::spawn_blocking(move || session_storage::measure(&storage, run_id)).await;
    let found = match measured.map_err(std::io::Error::other).flatten() {
        Ok(found) => found,
        Err(error) => {
            return tracing::warn!(%error, run_id = %order.run_id, "the session's storage could not be measured");
        }
    };
    if let Err(failure) = lease.report_storage(&found).await {
        tracing::warn!(%failure, run_id = %order.run_id, "the session's storage could not be reported");
    }
}

/// Waits for another command while holding the lease. Returns false if none arrived.
async fn wait_for_command(order: &RunnerOrder, lease: &mut LeaseSession) -> Result<bool, Halt> {
    let until = Instant::now() + Duration::from_millis(order.idle_timeout_ms);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let wait = left.min(lease.heartbeat_interval()).min(Duration::from_millis(IDLE_POLL_MS_MAX));
        let before = lease.pending.after_seq;
        lease.fetch_commands(wait.as_millis() as u64).await?;
        if lease.pending.after_seq > before {
            return Ok(true);
        }
        let limit = lease.heartbeat_interval();
        if retry(limit, || lease.heartbeat()).await?.run_cancel_requested {
            return Ok(false);
        }
        lease.schedule_heartbeat();
    }
}
