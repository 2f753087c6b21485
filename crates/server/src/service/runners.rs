//! Runners: register.

use ostler_protocol::{
    Failure, Rule,
    ids::{RunId, slug},
    kernel::runners::{RegisterRunner, Runner, check_placement},
    limits::RUNNER_BYTES_MAX,
};
use ostler_store as store;

use crate::{
    app::App,
    auth::{Access, Principal},
    service::lookup,
};

pub async fn register(app: &App, caller: &Principal, request: RegisterRunner) -> Result<Runner, Failure> {
    app.name("runnerId", &request.runner_id)?;
    slug("backendProfile", &request.backend_profile)?;
    let bytes = request.placement.size() + request.capabilities.size();
    if bytes > RUNNER_BYTES_MAX {
        return Err(Failure::too_large(Rule::RunnerSize, "placement and capabilities", bytes, RUNNER_BYTES_MAX));
    }
    check_placement(&request.placement)?;
    let tenant_id = match request.run_id.as_deref() {
        Some(text) => Some(check_run(app, caller, text, &request.backend_profile).await?),
        None if matches!(caller, Principal::Runner { .. }) => {
            return Err(Failure::rule(Rule::Run, "this token may not register a runner without its run"));
        }
        None => {
            Access::Run.admit(caller)?;
            None
        }
    };
    let now = app.now();
    let runner = Runner {
        runner_id: request.runner_id,
        tenant_id,
        run_id: request.run_id,
        backend_profile: request.backend_profile,
        placement: app.redacted(&request.placement)?,
        capabilities: app.redacted(&request.capabilities)?,
        registered_at: now,
        heartbeat_at: now,
    };
    let registered = store::kernel::runners::insert(&app.db, &runner).await?;
    registered.ok_or_else(|| {
        Failure::rule(Rule::RunnerIdTaken, "this runner id is in use by a runner of another tenant; choose another")
    })
}

/// A runner may only register for a run it may run, with the run's own profile.
async fn check_run(app: &App, caller: &Principal, text: &str, profile: &str) -> Result<String, Failure> {
    let run_id: RunId = text.parse().map_err(|_| Failure::not_found("run"))?;
    let run_ref = app.visible_run(caller, run_id).await?;
    caller.may_run(&run_ref)?;
    let run = lookup::run_unchecked(app, run_id).await?;
    if run.backend_profile != profile {
        let message = format!("the run requires {:?}, the runner offers {profile:?}", run.backend_profile);
        return Err(Failure::invalid(Rule::BackendProfileMismatch, message));
    }
    Ok(run.tenant_id)
}
