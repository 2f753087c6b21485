//! Backends: which agents this server can run, and whether a run of each profile can start. Whether a profile is ready, and why
//! not, is decided by `provider_profiles`; here it is only shown together with the backend that the profile uses.

use ostler_protocol::{
    Failure,
    kernel::{
        backends::{Backend, BackendCapacity, BackendHealth, BackendList, CodexProgram, ExternalBackend, Isolation},
        provider_profiles::{AgentKind, ProviderProfile},
        runner_jobs::Launcher,
    },
};
use ostler_store as store;

use super::provider_profiles::{self, codex_program, external_note, is_external};
use crate::{app::App, auth::Principal};

/// The backends of this build, then the other profiles.
///
/// A user sees only what a run of theirs may name: every profile of the operator that the policy lists, and the profiles of their
/// own tenants. A service of role `runner` submits nothing, and sees the built-in and the external profiles. `docs/callers.md`
/// states the rule.
pub async fn list(app: &App, caller: &Principal) -> Result<BackendList, Failure> {
    let stored = store::kernel::backends::list(&app.db).await?;
    let codex = codex_program(app).await;
    let tenants = caller.tenants_within(None)?.unwrap_or_else(|| app.config.policy.tenants.clone());
    let mut profiles = provider_profiles::list_of(app, caller, &tenants).await?;
    profiles.retain(|profile| provider_profiles::is_shown(app, caller, profile));
    // The scripted backend has no profile to configure.
    let scripted = stored.iter().filter(|backend| backend.profile == "scripted").cloned();
    let scripted = scripted.map(|backend| Backend { ready: true, ..backend });
    let others = profiles.iter().map(|profile| of_profile(profile, &stored, &codex));
    let capacity = capacity(app).await?;
    let backends = scripted.chain(others).map(|backend| match is_external(app, &backend.profile) {
        true => with_last_claim(app, caller, backend),
        false => Backend { capacity: Some(capacity), health: Some(BackendHealth::of(backend.ready)), ..backend },
    });
    Ok(BackendList { backends: backends.collect(), codex })
}

/// The places for runners, and how many of them are in use. In a cluster, an order is refused when they are all in use.
async fn capacity(app: &App) -> Result<BackendCapacity, Failure> {
    if app.config.runner.launcher == Launcher::Kubernetes {
        return Ok(BackendCapacity {
            runners_max: app.config.kubernetes.active_jobs_max.into(),
            runners_active: store::kernel::runner_jobs::count_open_of(&app.db, Launcher::Kubernetes).await?,
        });
    }
    let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    Ok(BackendCapacity {
        runners_max: count(app.config.runner.slots),
        runners_active: count(app.held_jobs.snapshot().held_ids().len()),
    })
}

/// An external profile with the time at which a runner last requested a job of it.
fn with_last_claim(app: &App, caller: &Principal, backend: Backend) -> Backend {
    let last_claim_at = app.job_queues.last_claim_at(&backend.profile, caller.tenants());
    let message = Some(external_note(app, last_claim_at));
    Backend { available: true, ready: true, message, external: Some(ExternalBackend { last_claim_at }), ..backend }
}

/// The backend that a profile uses, with the state of the profile.
fn of_profile(profile: &ProviderProfile, stored: &[Backend], codex: &CodexProgram) -> Backend {
    let built_in = |name: &str| stored.iter().find(|backend| backend.profile == name).cloned().unwrap_or_default();
    let backend = match profile.agent {
        AgentKind::Codex => {
            let name = if profile.built_in { profile.profile.as_str() } else { "codex" };
            Backend { available: codex.is_available(), ..built_in(name) }
        }
        AgentKind::Acp => acp(profile),
        AgentKind::Model => built_in("model"),
        AgentKind::Scripted => built_in("scripted"),
        AgentKind::External => external(),
    };
    Backend {
        profile: profile.profile.clone(),
        tenant_id: profile.tenant_id.clone(),
        ready: profile.ready,
        // The message of a profile that is ready is about its latest trial.
        message: profile.message.clone().filter(|_| !profile.ready),
        ..backend
    }
}

/// A profile of a tenant or the operator whose agent speaks the Agent Client Protocol.
fn acp(profile: &ProviderProfile) -> Backend {
    Backend {
        backend_kind: "acp-stdio".into(),
        protocol: "agent-client-protocol".into(),
        transport: "stdio".into(),
        isolation: Isolation { home: "per-run".into(), credential: "own-profile".into(), process: "own-group".into() },
        available: profile.ready,
        capabilities: ["turn", "steer", "interrupt", "permission", "resume"].map(String::from).to_vec(),
        ..Backend::default()
    }
}

/// A profile that the server leaves to runners elsewhere. The server does not know which program such a runner starts.
fn external() -> Backend {
    Backend {
        backend_kind: "external".into(),
        protocol: "ostler-runner".into(),
        transport: "https".into(),
        isolation: Isolation { home: "none".into(), credential: "none".into(), process: "in-runner".into() },
        ..Backend::default()
    }
}

/// Stores the backends of this build. Run once at start.
pub async fn record(db: &store::Db) -> Result<(), store::StoreError> {
    for (position, backend) in ostler_protocol::kernel::backends::built_in().iter().enumerate() {
        store::kernel::backends::insert(db, position as i64, backend).await?;
    }
    Ok(())
}
