//! The runner's life: register, claim (waiting for a stale lease if it must), work through the commands, and leave when
//! nothing is left to do.

use ostler_client::{Client, is_transient};
use ostler_protocol::{
    Failure, FailureKind, RawJson,
    ids::RunId,
    leases::{ClaimRun, Claimed},
    limits::LEASE_MS_DEFAULT,
    runners::RegisterRunner,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::{Duration, Instant, sleep};

use crate::{
    Outfit,
    agent::{self, Agent, TurnEnd},
    storage,
    tenure::{Halt, Tenure, insist},
    turn,
};

/// The shortest pause between two claims.
const CLAIM_PAUSE_MS_MIN: u64 = 10;
const REGISTER_MS_MAX: u64 = 10_000;
const IDLE_POLL_MS_MAX: u64 = 25_000;
/// A release that is refused this often although no turn can be found is repeated without its condition.
const FRUITLESS_MAX: u32 = 3;

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
    /// Make oneself known before claiming.
    pub register: bool,
    /// While another runner holds the run: ask again at least this often.
    pub claim_retry_ms: u64,
    /// … and give up after this long.
    pub claim_wait_ms: u64,
    /// How long an agent that keeps its lease waits for another command.
    pub idle_timeout_ms: u64,
    pub outfit: Outfit,
}

impl RunnerOrder {
    /// An order for the resident runner, with the usual waits.
    pub fn resident(run_id: RunId, runner_id: String, backend_profile: String, outfit: Outfit) -> Self {
        Self {
            run_id,
            runner_id,
            backend_profile,
            placement: "resident".into(),
            lease_ms: LEASE_MS_DEFAULT,
            register: false,
            claim_retry_ms: 1_000,
            claim_wait_ms: 90_000,
            idle_timeout_ms: 600_000,
            outfit,
        }
    }

    /// An order for a runner in a process of its own, which makes itself known first.
    pub fn host_process(run_id: RunId, runner_id: String, backend_profile: String, outfit: Outfit) -> Self {
        let resident = Self::resident(run_id, runner_id, backend_profile, outfit);
        Self { placement: "host-process".into(), register: true, ..resident }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunnerStatus {
    /// Nothing was left to do; the lease is given back.
    Idle,
    /// The run has ended or was cancelled.
    RunEnded,
    /// Another runner kept the run for too long.
    NotClaimed,
    /// Another claim came into force; nothing was written since.
    FencedOut,
    /// The agent asked for a crash: everything was dropped as it stood.
    Crashed,
    Failed,
}

impl RunnerStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::RunEnded => "run-ended",
            Self::NotClaimed => "not-claimed",
            Self::FencedOut => "fenced-out",
            Self::Crashed => "crashed",
            Self::Failed => "failed",
        }
    }
}

/// How a runner ended, for whoever started it.
#[derive(Clone, Debug)]
pub struct RunnerOutcome {
    pub status: RunnerStatus,
    /// Turns it worked on.
    pub turns: u32,
    pub failure: Option<Failure>,
    /// How the last of them ended.
    pub last_end: Option<TurnEnd>,
}

impl RunnerOutcome {
    /// Whether the runner left nothing undone.
    pub fn succeeded(&self) -> bool {
        matches!(self.status, RunnerStatus::Idle | RunnerStatus::RunEnded)
    }

    /// For the job's terminal summary.
    pub fn summary(&self) -> RawJson {
        let (failure, end) = (self.failure.as_ref(), self.last_end.as_ref());
        let kind = failure.map(|f| f.kind).or(end.and_then(|end| end.failure_kind));
        let message = failure.map(|f| &f.message).or(end.and_then(|end| end.message.as_ref()));
        let turn_status = end.map(|end| end.status.as_str());
        RawJson::of(&json!({"status": self.status.as_str(), "turnStatus": turn_status, "failureKind": kind,
            "message": message, "turns": self.turns}))
    }
}

/// Runs the agent of the order's profile.
pub async fn run(order: RunnerOrder, client: Client) -> RunnerOutcome {
    let agent = agent::in_outfit(&order.outfit);
    run_with(order, client, agent).await
}

/// Runs a given agent.
pub async fn run_with(order: RunnerOrder, client: Client, mut agent: Box<dyn Agent>) -> RunnerOutcome {
    let mut turns = 0;
    let claimed = match enter(&order, &client).await {
        Ok(claimed) => claimed,
        Err(failure) => {
            let waited = matches!(failure.kind, FailureKind::RunnerLeaseConflict | FailureKind::SessionBusy);
            let halt = if waited { None } else { Some(Halt::from(failure.clone())) };
            return halt.map_or_else(|| outcome(RunnerStatus::NotClaimed, 0, Some(failure)), |halt| halted(halt, 0));
        }
    };
    let run_id = claimed.run.run_id;
    let mut tenure = Tenure::new(client, order.runner_id.clone(), order.lease_ms, claimed);
    let served = serve(&order, &mut tenure, agent.as_mut(), &mut turns).await;
    agent.close().await;
    let outcome = match served {
        Ok(()) => outcome(RunnerStatus::Idle, turns, None),
        Err(halt) => {
            tracing::debug!(%run_id, ?halt, "the runner stops");
            halted(halt, turns)
        }
    };
    RunnerOutcome { last_end: tenure.last_end, ..outcome }
}

fn outcome(status: RunnerStatus, turns: u32, failure: Option<Failure>) -> RunnerOutcome {
    RunnerOutcome { status, turns, failure, last_end: None }
}

fn halted(halt: Halt, turns: u32) -> RunnerOutcome {
    match halt {
        Halt::RunEnded(failure) => outcome(RunnerStatus::RunEnded, turns, Some(failure)),
        // Nothing was left to do, and the server let us go.
        Halt::FencedOut(failure) if failure.rule_name() == Some("lease-released") => {
            outcome(RunnerStatus::Idle, turns, None)
        }
        Halt::FencedOut(failure) => outcome(RunnerStatus::FencedOut, turns, Some(failure)),
        Halt::Crashed => outcome(RunnerStatus::Crashed, turns, None),
        Halt::Failed(failure) => outcome(RunnerStatus::Failed, turns, Some(failure)),
    }
}

async fn enter(order: &RunnerOrder, client: &Client) -> Result<Claimed, Failure> {
    if order.register {
        let runner = RegisterRunner {
            runner_id: order.runner_id.clone(),
            run_id: Some(order.run_id.to_string()),
            backend_profile: order.backend_profile.clone(),
            placement: RawJson::of(&order.placement),
            capabilities: RawJson::null(),
        };
        insist(Duration::from_millis(REGISTER_MS_MAX), || client.register_runner(&runner)).await?;
    }
    claim(order, client).await
}

/// Claims the run. While somebody else holds it, waits for that lease to run out, within the order's bounds.
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
        tracing::debug!(%run_id, %failure, "waiting to claim");
        sleep(pause).await;
    }
}

/// As long as the failure says, but never longer than the order does: a lease can end early.
fn claim_pause(failure: &Failure, retry_ms: u64) -> Duration {
    let said = failure.details.as_ref().and_then(|details| details.get("retryAfterMs")).and_then(|ms| ms.as_u64());
    Duration::from_millis(said.unwrap_or(retry_ms).min(retry_ms).max(CLAIM_PAUSE_MS_MIN))
}

async fn serve(order: &RunnerOrder, tenure: &mut Tenure, agent: &mut dyn Agent, turns: &mut u32) -> Result<(), Halt> {
    if tenure.run.backend_profile != order.backend_profile {
        let message =
            format!("the run is for {:?}, this runner for {:?}", tenure.run.backend_profile, order.backend_profile);
        tenure.release(false).await?;
        return Err(Halt::Failed(Failure::invalid("backend-profile-mismatch", message)));
    }
    tenure.leaves_when_idle = !agent.keeps_lease();
    let mut fruitless = 0;
    loop {
        while let Some(command) = tenure.backlog.next_turn() {
            fruitless = 0;
            *turns += 1;
            turn::work(tenure, &order.outfit, agent, command).await?;
            report_storage(order, tenure).await;
        }
        if tenure.has_left {
            return Ok(());
        }
        if agent.keeps_lease() && linger(order, tenure).await? {
            continue;
        }
        match tenure.release(fruitless < FRUITLESS_MAX).await.map_err(Halt::from) {
            Ok(true) => return Ok(()),
            Ok(false) => fruitless += 1,
            // A run that was cancelled ended with its last command.
            Err(halt) => return Err(halt),
        }
        tenure.refill(0).await?;
    }
}

/// Says what the agent has left in its session's storage. The turn has ended by now; that this failed is no reason to fail.
async fn report_storage(order: &RunnerOrder, tenure: &Tenure) {
    let Some(storage) = order.outfit.storage.clone() else { return };
    let run_id = order.run_id.to_string();
    let measured = tokio::task::spawn_blocking(move || storage::measure(&storage, run_id)).await;
    let found = match measured.map_err(std::io::Error::other).flatten() {
        Ok(found) => found,
        Err(error) => return tracing::warn!(%error, run_id = %order.run_id, "the storage could not be measured"),
    };
    if let Err(failure) = tenure.refresh_storage(&found).await {
        tracing::warn!(%failure, run_id = %order.run_id, "the storage could not be reported");
    }
}

/// Waits for another command with the lease in hand. False: none came.
async fn linger(order: &RunnerOrder, tenure: &mut Tenure) -> Result<bool, Halt> {
    let until = Instant::now() + Duration::from_millis(order.idle_timeout_ms);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let wait = left.min(tenure.beat_every()).min(Duration::from_millis(IDLE_POLL_MS_MAX));
        let known = tenure.backlog.after_seq;
        tenure.refill(wait.as_millis() as u64).await?;
        if tenure.backlog.after_seq > known {
            return Ok(true);
        }
        let patience = tenure.beat_every();
        if insist(patience, || tenure.heartbeat()).await?.run_cancel_requested {
            return Ok(false);
        }
        tenure.beaten();
    }
}
