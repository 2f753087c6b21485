//! Prepares the environment of a job's backend, and deletes it afterwards. The agent's home is made from its profile, private to
//! the job, and exists only while the job runs.

use std::{
    collections::BTreeMap,
    fs::OpenOptions,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use ostler_protocol::{
    Failure, Rule,
    ids::RunnerJobId,
    kernel::{
        provider_profiles::{AgentConfig, ProfileOwner},
        runner_jobs::{JobPhase, RunnerJob},
    },
};
use ostler_runner::BackendEnvironment;
use ostler_store::{self as store, failures::is_of_store};
use secrecy::{ExposeSecret, SecretString};

use super::{bundles, guard::guard, shared_homes, workspaces};
use crate::{
    app::{App, RunRef},
    auth, directories, mcp,
    service::{
        lookup,
        provider_profiles::{self, Furnishing},
        session_storage,
    },
};

/// The kind of the token with which a program calls the tools of its run, at its own runner.
const TOOLS: &str = "tool";
/// The directory of homes, in the data directory.
pub(super) const HOMES: &str = "homes";
/// How the names of homes begin that belong to no job. `outside` deletes them.
pub(super) const STANDALONE_PREFIX: &str = "outside-";

/// The environment of a job's backend. If something is missing, the run's turns fail with the reason. Fails only if the store
/// does not respond.
pub(super) async fn make(app: &App, run: &RunRef, job: &RunnerJob) -> Result<BackendEnvironment, Failure> {
    // The common case costs nothing: such a backend uses no files.
    if AgentConfig::of_profile(&run.backend_profile) == Some(AgentConfig::Scripted) {
        return Ok(BackendEnvironment::bare(AgentConfig::Scripted));
    }
    match furnish(app, run, job).await {
        Ok(environment) => Ok(environment),
        Err(failure) if is_of_store(&failure) => Err(failure),
        Err(failure) => {
            tracing::warn!(%failure, cause = failure.cause.as_deref(), job = %job.runner_job_id, "the agent could not be started; its turn fails with this reason");
            Ok(BackendEnvironment::unavailable(AgentConfig::default(), failure))
        }
    }
}

async fn furnish(app: &App, run: &RunRef, job: &RunnerJob) -> Result<BackendEnvironment, Failure> {
    let (mut environment, files) = of_profile(app, &run.tenant_id, &run.backend_profile).await?;
    if environment.backend.is_program() {
        environment.storage = Some(session_storage::make(app, run.session).await?);
        environment.tool_token = Some(auth::mint(TOOLS));
        let stored_run = lookup::run_unchecked(app, run.run_id).await?;
        let workspace = workspaces::ready(app, &stored_run).await?;
        environment.resource_bundle = bundles::order(app, &stored_run, Some(&workspace)).await?;
        // MCP servers have the operator's credentials, so only agents in the operator's workspace get them.
        if app.config.server.workspace.as_ref() == Some(&workspace.directory) {
            environment.mcp_servers = mcp::offers::for_backend(app).await?;
            environment.disabled_tools = mcp::disabled_tools(app).await?.into_iter().collect();
        }
        (environment.workspace, environment.changes) = (Some(workspace.directory), Some(workspace.changes));
    }
    let home = home(app, job.runner_job_id)?;
    let path = home.clone();
    run_blocking(move || build(&path, &files)).await.map_err(unusable)?;
    shared_homes::copy_into(app, &run.tenant_id, &run.backend_profile, &environment.backend, &home).await?;
    Ok(BackendEnvironment { home: Some(home), ..environment })
}

/// What a backend of the profile gets wherever it runs, without directories, and the files of its home.
pub(super) async fn of_profile(
    app: &App,
    tenant_id: &str,
    profile: &str,
) -> Result<(BackendEnvironment, BTreeMap<String, SecretString>), Failure> {
    let Furnishing { config, files, owner } = provider_profiles::furnish_run(app, tenant_id, profile).await?;
    let agents = &app.config.agents;
    let program = agents.codex.clone().filter(|_| config.agent == AgentConfig::Codex);
    let bare = BackendEnvironment { prices: config.prices, ..BackendEnvironment::bare(config.agent) };
    let mut environment =
        BackendEnvironment { program, retry_policy: agents.patience(), guard: guard(app).await, ..bare };
    if owner != ProfileOwner::Operator {
        environment.outgoing = Some(app.config.outgoing.rules()?);
    }
    // It contains the operator's token, and the homes of other agents.
    environment.hidden = vec![app.config.data_dir()?];
    Ok((environment, files))
}

/// Deletes the files that were made for a job, after its runner has ended.
pub(super) async fn clear(app: &App, job: &RunnerJob) {
    let Ok(home) = home(app, job.runner_job_id) else { return };
    if !home.exists() {
        return;
    }
    if let Err(error) = run_blocking(move || directories::remove(&home)).await {
        tracing::warn!(%error, job = %job.runner_job_id, "an agent's home could not be wiped; the next sweep tries again");
    }
}

/// Wipes the homes of jobs that do not run: their server was killed, or their runner outlived it and has ended.
pub(super) async fn sweep(app: &App) {
    let Ok(homes) = app.config.data_dir().map(|data| data.join(HOMES)) else { return };
    for home in std::fs::read_dir(homes).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let name = home.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(STANDALONE_PREFIX) {
            continue;
        }
        let job_id = name.parse::<RunnerJobId>().ok();
        let job = match job_id {
            Some(job_id) => store::kernel::runner_jobs::get(&app.db, job_id).await,
            None => Ok(None),
        };
        // A store that does not respond proves nothing about the runner.
        let in_use = job.map_or(true, |job| job.is_some_and(|job| job.phase == JobPhase::Running));
        if !in_use && let Err(error) = run_blocking(move || directories::remove(&home)).await {
            tracing::warn!(%error, "a home that was left behind could not be wiped");
        }
    }
}

fn home(app: &App, job_id: RunnerJobId) -> Result<PathBuf, Failure> {
    Ok(app.config.data_dir()?.join(HOMES).join(job_id.to_string()))
}

pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)?
}

pub(super) fn unusable(error: std::io::Error) -> Failure {
    let mut failure = Failure::rule(Rule::AgentHome, "the agent's home could not be made");
    failure.cause = Some(error.to_string().into());
    failure
}

/// A new home with these files, readable by its owner only.
fn build(home: &Path, files: &BTreeMap<String, SecretString>) -> std::io::Result<()> {
    directories::remove(home)?;
    fill(home, files)
}

/// Writes the files of a home into a directory.
pub(super) fn fill(home: &Path, files: &BTreeMap<String, SecretString>) -> std::io::Result<()> {
    directories::create(home)?;
    for (path, text) in files {
        let path = home.join(path);
        path.parent().map(directories::create).transpose()?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(text.expose_secret().as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_home_is_private_and_leaves_nothing_behind() {
        let scratch = tempfile::tempdir().unwrap();
        let home = scratch.path().join("homes/job");
        let files =
            |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), "secret".to_owned().into())).collect();
        build(&home, &files(&["auth.json", ".q/deep/settings.json"])).unwrap();
        for directory in ["", ".q", ".q/deep"] {
            assert_eq!(mode(&home.join(directory)), 0o700);
        }
        assert_eq!((mode(&home.join("auth.json")), mode(&home.join(".q/deep/settings.json"))), (0o600, 0o600));
        // What an agent leaves: a link out of its home, and a directory that it closed.
        let outside = scratch.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("kept"), "").unwrap();
        std::os::unix::fs::symlink(&outside, home.join("sessions")).unwrap();
        std::fs::set_permissions(home.join(".q/deep"), Permissions::from_mode(0o000)).unwrap();
        build(&home, &files(&["config.toml"])).unwrap();
        assert_eq!(std::fs::read_dir(&home).unwrap().count(), 1, "the next home has nothing of the previous one");
        directories::remove(&home).unwrap();
        directories::remove(&home).unwrap();
        assert!(!home.exists() && outside.join("kept").exists());
    }
}
