//! The environment of a backend outside of a job, for work that is no turn of a run: a question beside a session, or a request
//! that a service makes for itself. Its home is made from the profile as that of a job, and is deleted when the environment is
//! dropped. A lock on the home shows other servers that it is in use, and ends with the process.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    ops::Deref,
    path::{Path, PathBuf},
};

use ostler_protocol::{Failure, kernel::provider_profiles::AgentConfig};
use ostler_runner::BackendEnvironment;
use secrecy::SecretString;
use tokio::runtime::Handle;

use super::{
    environment::{HOMES, STANDALONE_PREFIX, fill, of_profile, run_blocking, unusable},
    shared_homes, workspaces,
};
use crate::{app::App, directories};

/// How often a home is made if a sweep of another server deletes it before it is locked.
const ATTEMPTS_MAX: usize = 3;

/// The environment of a backend that belongs to no job. Keep it until the backend has ended: dropping it deletes the home.
pub(crate) struct StandaloneEnvironment {
    environment: BackendEnvironment,
    /// `None` for a backend that uses no files.
    _directory: Option<LockedDirectory>,
}

impl Deref for StandaloneEnvironment {
    type Target = BackendEnvironment;

    fn deref(&self) -> &BackendEnvironment {
        &self.environment
    }
}

/// A directory that is locked while it is in use, and deleted when this is dropped.
struct LockedDirectory {
    path: PathBuf,
    _lock: File,
}

impl LockedDirectory {
    /// Creates and locks the directory.
    fn create(path: &Path) -> io::Result<Self> {
        directories::create(path)?;
        let lock = File::open(path)?;
        lock.try_lock()?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }
}

impl Drop for LockedDirectory {
    fn drop(&mut self) {
        let path = std::mem::take(&mut self.path);
        let delete = move || {
            if let Err(error) = directories::remove(&path) {
                tracing::warn!(%error, "a home outside of a job could not be deleted; the next sweep tries again");
            }
        };
        // There may be many files: not on a thread of the async runtime.
        match Handle::try_current() {
            Ok(handle) => drop(handle.spawn_blocking(delete)),
            Err(_) => delete(),
        }
    }
}

/// The environment of a profile's backend, without directories, and the files of its home, for work that starts no program. Nothing is
/// written.
pub(crate) async fn describe(
    app: &App,
    tenant_id: &str,
    profile: &str,
) -> Result<(BackendEnvironment, BTreeMap<String, SecretString>), Failure> {
    if AgentConfig::of_profile(profile) == Some(AgentConfig::Scripted) {
        return Ok((BackendEnvironment::bare(AgentConfig::Scripted), BTreeMap::new()));
    }
    of_profile(app, tenant_id, profile).await
}

/// Prepares the environment of a backend of this profile, as a run of the tenant would get it. The backend works in `workspace`,
/// which must be a directory that runs of the tenant may use.
pub(crate) async fn make(
    app: &App,
    tenant_id: &str,
    profile: &str,
    workspace: &Path,
) -> Result<StandaloneEnvironment, Failure> {
    if AgentConfig::of_profile(profile) == Some(AgentConfig::Scripted) {
        let environment = BackendEnvironment::bare(AgentConfig::Scripted);
        return Ok(StandaloneEnvironment { environment, _directory: None });
    }
    let workspace = workspaces::check_directory(app, tenant_id, workspace)?;
    let (mut environment, files) = of_profile(app, tenant_id, profile).await?;
    let directory = create(app, files).await?;
    let home = directory.path.join("home");
    shared_homes::copy_into(app, tenant_id, profile, &environment.backend, &home).await?;
    environment.home = Some(home);
    if environment.backend.is_program() {
        environment.workspace = Some(workspace);
    }
    Ok(StandaloneEnvironment { environment, _directory: Some(directory) })
}

/// A new directory with a home of these files.
async fn create(app: &App, files: BTreeMap<String, SecretString>) -> Result<LockedDirectory, Failure> {
    let homes = app.config.data_dir()?.join(HOMES);
    let paths = (0..ATTEMPTS_MAX).map(|_| homes.join(format!("{STANDALONE_PREFIX}{}", app.ids.body().simple())));
    let paths: Vec<_> = paths.collect();
    let attempt = move |path: &PathBuf| {
        let directory = LockedDirectory::create(path)?;
        fill(&path.join("home"), &files)?;
        Ok(directory)
    };
    let create = move || {
        let mut last = Err(io::ErrorKind::NotFound.into());
        for path in &paths {
            last = attempt(path);
            if last.is_ok() {
                break;
            }
        }
        last
    };
    run_blocking(create).await.map_err(unusable)
}

/// Deletes directories whose server has died. Those in use are locked.
pub(super) async fn sweep(app: &App) {
    let Ok(homes) = app.config.data_dir().map(|data| data.join(HOMES)) else { return };
    let swept = run_blocking(move || {
        for entry in std::fs::read_dir(homes).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(STANDALONE_PREFIX)) {
                delete_unlocked(&entry.path())?;
            }
        }
        Ok(())
    });
    if let Err(error) = swept.await {
        tracing::warn!(%error, "a home outside of a job that was left behind could not be deleted");
    }
}

fn delete_unlocked(path: &Path) -> io::Result<()> {
    let lock = match File::open(path) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    // Held until the directory is deleted, so that no server starts to use it.
    match lock.try_lock() {
        Ok(()) => directories::remove(path),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_is_deleted_once_its_user_is_gone_and_never_before() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("homes/outside-1");
        let held = LockedDirectory::create(&path).unwrap();
        std::fs::write(path.join("auth.json"), "secret").unwrap();
        delete_unlocked(&path).unwrap();
        assert!(path.join("auth.json").exists(), "it is in use");
        drop(held);
        assert!(!path.exists());
        // A server that was killed left it: the lock is gone, the files are not.
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("auth.json"), "secret").unwrap();
        delete_unlocked(&path).unwrap();
        assert!(!path.exists());
        delete_unlocked(&path).unwrap();
    }
}
