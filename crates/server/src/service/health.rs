//! Health: alive, and ready to be trusted with work.

mod store_check;
pub use store_check::{StoreCheck, StoreState};

use ostler_protocol::health::{
    ConfinementReadiness, DurabilityReadiness, Health, MigrationReadiness, Readiness, SERVICE_ID, SecretRefReadiness,
    StoreReadiness, WorkspaceReadiness,
};
use ostler_runner::guard::Isolation;
use ostler_store::{Durability, StoreError, StoreFault, probe};
use serde_json::{Map, Value};
use tokio::time::{Duration, Instant, timeout_at};

use crate::{app::App, dialect::Dialects, launcher::isolation};

/// Readiness and metrics respond within 2 s, whatever the store does.
const CHECK_WITHIN: Duration = Duration::from_millis(1_500);
/// A result is reused for this long, so that the probes of many callers cost the store no more than one.
const CHECK_FRESH: Duration = Duration::from_millis(500);
/// After this long without a write, the check makes one to see whether it works.
const WRITES_QUIET: Duration = Duration::from_secs(10);

/// Reads the store's migrations and settings when the server starts, so that readiness never has to guess them.
pub async fn read_settings(app: &App) -> Result<(), StoreError> {
    let settings = (app.db.migrations().await?, app.db.durability().await?.weak_settings);
    *app.store_check.settings.lock() = settings;
    Ok(())
}

fn reason_of(error: &StoreError) -> &'static str {
    StoreFault::of(error).map_or("failed", StoreFault::as_str)
}

/// Whether the store reads and writes. Concurrent callers share one check.
pub async fn store_state(app: &App) -> StoreState {
    let until = Instant::now() + CHECK_WITHIN;
    let Ok(mut last) = timeout_at(until, app.store_check.last.lock()).await else {
        return StoreState::failed(&app.store_check, StoreFault::Silent.as_str());
    };
    if let Some((at, state)) = last.as_ref()
        && at.elapsed() < CHECK_FRESH
        && !is_outdated(app, state)
    {
        return state.clone();
    }
    let looked = timeout_at(until, look(app)).await;
    let state = looked.unwrap_or_else(|_| StoreState::failed(&app.store_check, StoreFault::Silent.as_str()));
    *last = Some((Instant::now(), state.clone()));
    state
}

/// Whether a later write had the other outcome: readiness must not lag behind what callers see.
fn is_outdated(app: &App, state: &StoreState) -> bool {
    state.reachable && state.writable != app.db.write_health().fault().is_none()
}

async fn look(app: &App) -> StoreState {
    let health = app.db.write_health();
    let probe = async {
        match health.is_in_doubt(WRITES_QUIET) {
            true => probe::probe(&app.db, app.now()).await,
            false => Ok(()),
        }
    };
    let (migrations, durability, probed) = tokio::join!(app.db.migrations(), app.db.durability(), probe);
    let (migrations, Durability { weak_settings }) = match (migrations, durability) {
        (Ok(migrations), Ok(durability)) => (migrations, durability),
        (Err(error), _) | (_, Err(error)) => return StoreState::failed(&app.store_check, reason_of(&error)),
    };
    *app.store_check.settings.lock() = (migrations.clone(), weak_settings.clone());
    let reason = probed.err().map(|error| reason_of(&error)).or_else(|| health.fault().map(StoreFault::as_str));
    StoreState { reachable: true, writable: reason.is_none(), reason, migrations, weak_settings }
}

pub fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

/// The commit that the program was built from, if the program knows it.
fn source_commit(app: &App) -> String {
    app.config.server.source_commit.clone().unwrap_or_else(|| "unknown".to_owned())
}

pub fn health(app: &App) -> Health {
    Health {
        service_id: SERVICE_ID.into(),
        status: "ok".into(),
        version: version(),
        source_commit: source_commit(app),
        counts: Map::new(),
    }
}

/// As [`health`], with the counts of dialects. `degraded` if one of them cannot be read in time.
pub async fn deep_health(app: &App) -> Health {
    let until = Instant::now() + CHECK_WITHIN;
    let mut health = health(app);
    for deep in Dialects::of(app).iter().filter_map(|dialect| dialect.deep_health.as_ref()) {
        match timeout_at(until, (deep.count)(app.clone())).await {
            Ok(Ok(Value::Object(counts))) => health.counts.extend(counts),
            _ => health.status = "degraded".into(),
        }
    }
    health
}

/// Looks at the store itself. A store that does not write is not ready; nor is weak durability, unless it was allowed.
pub async fn readiness(app: &App) -> Readiness {
    let StoreState { reachable, writable, reason, migrations, weak_settings } = store_state(app).await;
    let durable = weak_settings.is_empty();
    let ready = writable && (durable || app.config.store.unsafe_durability);
    let status = match (app.is_draining(), ready) {
        (true, _) => "draining",
        (false, true) => "ready",
        (false, false) => "not-ready",
    };
    Readiness {
        service_id: SERVICE_ID.into(),
        status: status.into(),
        version: version(),
        source_commit: source_commit(app),
        store: StoreReadiness {
            engine: app.db.engine_name().into(),
            reachable,
            writable,
            reason: reason.map(str::to_owned),
            multi_replica: app.db.multi_replica(),
        },
        migrations: MigrationReadiness { ready: !migrations.is_empty(), applied: migrations },
        durability: DurabilityReadiness { durable, weak_settings },
        secret_refs: SecretRefReadiness {
            redacted: true,
            provider_secrets: app.secrets.kind().into(),
            database_url: if app.config.store.database_url.is_some() { "configured" } else { "not configured" }.into(),
        },
        confinement: confinement(app),
        workspaces: workspaces(),
        dialects: Dialects::of(app)
            .iter()
            .flat_map(|dialect| &dialect.readiness)
            .map(|section| (section.name.to_owned(), (section.read)(app)))
            .collect(),
    }
}

fn confinement(app: &App) -> ConfinementReadiness {
    let landlock = if app.config.confinement.landlock { ostler_runner::guard::landlock_level() } else { 0 };
    // The server starts the probe when it starts; until its result is known, isolation is reported as absent.
    let isolated = app.isolation.get().is_some_and(|isolation| *isolation != Isolation::None);
    ConfinementReadiness::of(app.config.runner.guard.is_some(), landlock, isolated, isolation::is_root())
}

fn workspaces() -> WorkspaceReadiness {
    let reason = ostler_runner::git_missing();
    WorkspaceReadiness { git: reason.is_none(), reason }
}
