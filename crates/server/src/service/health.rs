//! Health: alive, and ready to be trusted with work.

use ostler_protocol::health::{
    ConfinementReadiness, DurabilityReadiness, Health, MeshReadiness, MigrationReadiness, Readiness, SERVICE_ID,
    SecretRefReadiness, StoreReadiness,
};

use crate::app::App;

pub fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

/// The commit this was built from, where the build knew it.
pub fn source_commit() -> String {
    option_env!("OSTLER_SOURCE_COMMIT").unwrap_or("unknown").to_owned()
}

pub fn health() -> Health {
    Health { service_id: SERVICE_ID.into(), status: "ok".into(), version: version(), source_commit: source_commit() }
}

/// Asks the store itself; weak durability is not ready unless that was allowed.
pub async fn readiness(app: &App) -> Readiness {
    let migrations = app.db.migrations().await;
    let durability = app.db.durability().await;
    let reachable = migrations.is_ok() && durability.is_ok();
    let weak_settings = durability.map(|d| d.weak_settings).unwrap_or_default();
    let durable = reachable && weak_settings.is_empty();
    let ready = reachable && (durable || app.config.store.unsafe_durability);
    let status = match (app.is_draining(), ready) {
        (true, _) => "draining",
        (false, true) => "ready",
        (false, false) => "not-ready",
    };
    Readiness {
        service_id: SERVICE_ID.into(),
        status: status.into(),
        version: version(),
        source_commit: source_commit(),
        store: StoreReadiness { engine: app.db.engine_name().into(), reachable, multi_replica: app.db.multi_replica() },
        migrations: MigrationReadiness { ready: migrations.is_ok(), applied: migrations.unwrap_or_default() },
        durability: DurabilityReadiness { durable, weak_settings },
        secret_refs: SecretRefReadiness {
            redacted: true,
            provider_secrets: app.secrets.kind().into(),
            database_url: if app.config.store.database_url.is_some() { "configured" } else { "not configured" }.into(),
        },
        confinement: confinement(app),
        mesh: mesh(app),
    }
}

/// Agents know nothing of our tokens: where everything needs one, the mesh is closed with the rest.
fn mesh(app: &App) -> MeshReadiness {
    let closed = app.config.server.require_auth.then(|| "require_auth closes the mesh, too".to_owned());
    let reason = app.mesh.pki().err().map(|failure| failure.message).or(closed);
    MeshReadiness { open: reason.is_none(), domain: app.config.mesh.issuer.clone(), reason }
}

fn confinement(app: &App) -> ConfinementReadiness {
    let landlock = if app.config.confinement.landlock { ostler_runner::guard::landlock_level() } else { 0 };
    ConfinementReadiness::of(app.config.runner.guard.is_some(), landlock)
}
