//! Companions: processes of agents outside of turns, which answer requests about a workspace. There is at most one for each tenant,
//! profile and workspace. It starts with the first request that needs it, ends when it was idle for a while or when the server stops,
//! and is started again if it died or if its profile has changed. The callers of these functions authorise.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ostler_protocol::{
    Failure, FailureKind, RawJson, Rule,
    json::canonical_hash,
    kernel::{
        policy::Sandbox,
        provider_profiles::{AgentConfig, AgentExtensions},
    },
};
pub use ostler_runner::backend::acp::verbs::VerbOutput;
use ostler_runner::backend::acp::{
    companion::{Companion, CompanionError},
    verbs::run_verb,
};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::provider_profiles::{self, Furnishing};
use crate::{
    app::App,
    launcher::{
        shared_homes,
        standalone::{self, StandaloneEnvironment},
    },
};

/// Companions of this server at once.
const COMPANIONS_MAX: usize = 16;
/// A companion that answered nothing for this long is closed.
const IDLE: Duration = Duration::from_secs(600);
const LOOK_EVERY: Duration = Duration::from_secs(20);
/// How long a failed start is reported to other requests instead of being tried again.
const FAILED_FOR: Duration = Duration::from_secs(5);
/// Requests that change nothing, and can be repeated.
const STATUS: &str = "qwen/status/";

/// Whose companion: that of a tenant's profile in a workspace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CompanionKey {
    pub tenant_id: String,
    pub profile: String,
    pub workspace: PathBuf,
}

/// A running companion with its home.
struct RunningCompanion {
    companion: Companion,
    /// Dropped after the companion: that deletes the home.
    _environment: StandaloneEnvironment,
    /// Of the profile that it was started with.
    fingerprint: String,
}

#[derive(Default)]
struct Slot {
    running: tokio::sync::Mutex<SlotState>,
    last_used: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct SlotState {
    running: Option<Arc<RunningCompanion>>,
    failed: Option<(Instant, Failure)>,
}

/// The companions of this server. A dialect that uses them opens it as a state and runs [`close_unused`].
#[derive(Default)]
pub struct Companions {
    slots: Mutex<HashMap<CompanionKey, Arc<Slot>>>,
}

impl Companions {
    fn slots(&self) -> std::sync::MutexGuard<'_, HashMap<CompanionKey, Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot(&self, key: &CompanionKey) -> Result<Arc<Slot>, Failure> {
        let mut slots = self.slots();
        if let Some(slot) = slots.get(key) {
            return Ok(slot.clone());
        }
        if slots.len() >= COMPANIONS_MAX {
            return Err(Failure::new(
                FailureKind::Overloaded,
                "the server runs as many agents outside of turns as it may",
            ));
        }
        Ok(slots.entry(key.clone()).or_default().clone())
    }

    fn existing(&self, key: &CompanionKey) -> Option<Arc<Slot>> {
        self.slots().get(key).cloned()
    }
}

impl RunningCompanion {
    /// Ends the process, and deletes its home afterwards.
    async fn close(self: Arc<Self>) {
        self.companion.close().await;
    }
}

/// Closes companions that are idle, and all of them when the server stops.
pub async fn close_unused(app: App) {
    let mut look = tokio::time::interval(LOOK_EVERY);
    loop {
        tokio::select! {
            _ = look.tick() => close_where(&app, |slot| slot.is_idle()).await,
            () = app.stopped() => break,
        }
    }
    close_where(&app, |_| true).await;
}

impl Slot {
    /// The companion that runs. `None` while one starts.
    fn current(&self) -> Option<Arc<RunningCompanion>> {
        let state = self.running.try_lock().ok()?;
        state.running.clone().filter(|running| running.companion.is_running())
    }

    fn touch(&self) {
        *self.last_used.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn is_idle(&self) -> bool {
        let last_used = *self.last_used.lock().unwrap_or_else(PoisonError::into_inner);
        last_used.is_some_and(|at| at.elapsed() >= IDLE)
    }
}

async fn close_where(app: &App, is_due: impl Fn(&Slot) -> bool) {
    let due: Vec<_> = {
        let mut slots = app.state::<Companions>().slots();
        slots.extract_if(|_, slot| is_due(slot)).map(|(_, slot)| slot).collect()
    };
    for slot in due {
        let running = slot.running.lock().await.running.take();
        if let Some(running) = running {
            running.close().await;
        }
    }
}

/// The requests beyond its protocol that the agent of a profile answers. `None` if it answers none, or if the profile cannot be used.
pub async fn extensions(app: &App, tenant_id: &str, profile: &str) -> Result<Option<AgentExtensions>, Failure> {
    if AgentConfig::of_profile(profile) == Some(AgentConfig::Scripted) {
        return Ok(None);
    }
    match provider_profiles::furnish(app, tenant_id, profile).await {
        Ok(furnishing) => Ok(furnishing.config.agent.extensions()),
        Err(failure) if failure.kind.row().retry => Err(failure),
        Err(_) => Ok(None),
    }
}

/// Sends a request to the companion, which is started if it does not run. `params` gets the id of the companion's own session.
pub async fn ask(
    app: &App,
    key: &CompanionKey,
    method: &str,
    params: impl Fn(&str) -> Value,
    limit: Duration,
) -> Result<Value, Failure> {
    let slot = app.state::<Companions>().slot(key)?;
    let mut attempts = if method.starts_with(STATUS) { 2 } else { 1 };
    loop {
        attempts -= 1;
        let running = ensure(app, key, &slot).await?;
        slot.touch();
        let companion = &running.companion;
        match companion.ask(method, params(companion.session_id()), limit).await {
            Ok(reply) => return readable(app, &reply),
            // It died, maybe before it read the request.
            Err(CompanionError::Gone) if attempts > 0 => {}
            Err(error) => return Err(failure(&error)),
        }
    }
}

/// Whether a companion runs. One that starts right now does not run yet.
pub fn is_running(app: &App, key: &CompanionKey) -> bool {
    app.state::<Companions>().existing(key).and_then(|slot| slot.current()).is_some()
}

/// As [`ask`], but `None` if no companion runs.
pub async fn ask_running(
    app: &App,
    key: &CompanionKey,
    method: &str,
    params: impl Fn(&str) -> Value,
    limit: Duration,
) -> Result<Option<Value>, Failure> {
    let Some(slot) = app.state::<Companions>().existing(key) else { return Ok(None) };
    let Some(running) = slot.current() else { return Ok(None) };
    slot.touch();
    let companion = &running.companion;
    match companion.ask(method, params(companion.session_id()), limit).await {
        Ok(reply) => readable(app, &reply).map(Some),
        Err(CompanionError::Gone) => Ok(None),
        Err(error) => Err(failure(&error)),
    }
}

/// Closes the companion and starts another one, which sees what has changed in the agent's shared home.
pub async fn restart(app: &App, key: &CompanionKey) -> Result<(), Failure> {
    let slot = app.state::<Companions>().slot(key)?;
    let running = slot.running.lock().await.running.take();
    if let Some(running) = running {
        running.close().await;
    }
    ensure(app, key, &slot).await.map(drop)
}

/// A run of the agent's program that changes what its sessions share.
pub struct SharedChange<'a> {
    pub arguments: &'a [String],
    /// The folders of the home that the program changes.
    pub folders: &'static [&'static str],
    pub limit: Duration,
}

/// Runs the agent's program once, in a home of its own that has what the agent's sessions share. If `is_done` accepts the output, the
/// changed folders are stored as those of later sessions.
pub async fn change_shared_home(
    app: &App,
    key: &CompanionKey,
    change: SharedChange<'_>,
    is_done: impl Fn(&VerbOutput) -> bool,
) -> Result<VerbOutput, Failure> {
    let environment = standalone::make(app, &key.tenant_id, &key.profile, &key.workspace).await?;
    let ran = run_verb(&environment, Sandbox::ReadOnly, change.arguments, change.limit, &app.redactor).await;
    let output = ran.map_err(|error| failure(&error))?;
    if let Some(home) = environment.home.as_deref().filter(|_| is_done(&output)) {
        shared_homes::store(app, &key.tenant_id, &key.profile, home, change.folders).await?;
    }
    Ok(output)
}

/// The directory with what all sessions of a tenant's agents of this profile share of their home. It may not exist.
pub fn shared_home(app: &App, tenant_id: &str, profile: &str) -> Result<PathBuf, Failure> {
    shared_homes::directory(app, tenant_id, profile)
}

/// The companion, started if it does not run or if its profile has changed.
async fn ensure(app: &App, key: &CompanionKey, slot: &Slot) -> Result<Arc<RunningCompanion>, Failure> {
    app.accepting()?;
    let furnishing = provider_profiles::furnish(app, &key.tenant_id, &key.profile).await?;
    let fingerprint = fingerprint(&furnishing);
    let mut state = slot.running.lock().await;
    if let Some(running) = state.running.take() {
        if running.companion.is_running() && running.fingerprint == fingerprint {
            state.running = Some(running.clone());
            return Ok(running);
        }
        running.close().await;
    }
    if let Some((at, failure)) = &state.failed
        && at.elapsed() < FAILED_FOR
    {
        return Err(failure.clone());
    }
    slot.touch();
    match start(app, key, fingerprint).await {
        Ok(running) => {
            let running = Arc::new(running);
            (state.running, state.failed) = (Some(running.clone()), None);
            Ok(running)
        }
        Err(failure) => {
            state.failed = Some((Instant::now(), failure.clone()));
            Err(failure)
        }
    }
}

async fn start(app: &App, key: &CompanionKey, fingerprint: String) -> Result<RunningCompanion, Failure> {
    let environment = standalone::make(app, &key.tenant_id, &key.profile, &key.workspace).await?;
    let companion = Companion::start(&environment, Sandbox::ReadOnly).await.map_err(|error| failure(&error))?;
    tracing::info!(profile = key.profile, "an agent was started outside of turns");
    Ok(RunningCompanion { companion, _environment: environment, fingerprint })
}

/// Changes with the agent's command and with every file of its home.
fn fingerprint(furnishing: &Furnishing) -> String {
    let files: HashMap<_, _> = furnishing.files.iter().map(|(path, text)| (path, text.expose_secret())).collect();
    canonical_hash(&json!({"agent": furnishing.config.agent, "files": files}))
}

fn readable(app: &App, reply: &RawJson) -> Result<Value, Failure> {
    Ok(app.redacted(reply)?.to_value())
}

fn failure(error: &CompanionError) -> Failure {
    match error {
        CompanionError::NotStarted { kind: FailureKind::NotImplemented, message } => lacking(message),
        CompanionError::Unknown => lacking("the agent of this profile does not have this request"),
        CompanionError::NotStarted { .. } | CompanionError::Gone | CompanionError::TimedOut | CompanionError::Busy => {
            Failure::rule(Rule::AcpChannelUnavailable, error.to_string())
        }
        CompanionError::TooLarge | CompanionError::Refused { .. } => {
            Failure::rule(Rule::AgentRequestFailed, error.to_string())
        }
    }
}

/// The failure of a request that the backend of a profile does not have.
pub fn lacking(message: &str) -> Failure {
    Failure::new(FailureKind::NotImplemented, message)
}
