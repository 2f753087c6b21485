//! The server's own directories within its data directory: their permissions, and how they are deleted. Agents work in some of
//! them and may leave anything there, so links are never followed.

mod create;
pub use create::create;

use std::{
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use ostler_protocol::{
    Failure, Rule,
    ids::{RunId, SessionId},
    json::canonical_hash,
};

use crate::app::App;

/// The directory in which a session's agent keeps its own history.
pub fn session_storage(app: &App, session: SessionId) -> Result<PathBuf, Failure> {
    Ok(all_session_storage(app)?.join(session.to_string()))
}

pub fn all_session_storage(app: &App) -> Result<PathBuf, Failure> {
    Ok(app.config.data_dir()?.join("sessions"))
}

/// The working directory that is created for a run's agent.
pub fn run_workspace(app: &App, run_id: RunId) -> Result<PathBuf, Failure> {
    Ok(all_workspaces(app)?.join(run_id.to_string()))
}

/// The working directory of a session whose runs name none: the same for all of them, because agents store their
/// conversations by working directory.
pub fn session_workspace(app: &App, session: SessionId) -> Result<PathBuf, Failure> {
    Ok(all_workspaces(app)?.join(session.to_string()))
}

pub fn all_workspaces(app: &App) -> Result<PathBuf, Failure> {
    Ok(app.config.data_dir()?.join("workspaces"))
}

/// Where it is recorded what resource bundles have placed in a directory of the machine. Kept with the directory, not with a run.
pub fn local_bundles(app: &App, directory: &Path) -> Result<PathBuf, Failure> {
    let hash = canonical_hash(&directory.to_string_lossy().into());
    Ok(all_workspaces(app)?.join(format!("local-{}", &hash[..32])))
}

/// As [`create`], with a failure that a request can return.
pub fn make(path: &Path) -> Result<(), Failure> {
    create(path).map_err(|error| failed(Rule::Directory, path, &error))
}

/// As [`remove`], outside the threads of the async runtime, because there may be many files.
pub async fn clear(path: PathBuf) -> Result<(), Failure> {
    let shown = path.clone();
    let cleared = tokio::task::spawn_blocking(move || remove(&path)).await.map_err(Failure::internal)?;
    cleared.map_err(|error| failed(Rule::DirectoryClear, &shown, &error))
}

/// Removes a directory and everything in it, whatever an agent has made of it. Links are removed and never followed.
pub fn remove(path: &Path) -> io::Result<()> {
    let refused = match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => error,
        done => return done,
    };
    // Some tools make their caches read-only, and files in a read-only directory cannot be deleted.
    open_up(path).map_err(|_| refused)?;
    std::fs::remove_dir_all(path)
}

fn open_up(path: &Path) -> io::Result<()> {
    if !path.symlink_metadata()?.is_dir() {
        return Ok(());
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))?;
    for entry in std::fs::read_dir(path)? {
        open_up(&entry?.path())?;
    }
    Ok(())
}

fn failed(rule: Rule, path: &Path, error: &io::Error) -> Failure {
    let mut failure = Failure::rule(rule, "a directory of the server could not be changed");
    failure.cause = Some(format!("{}: {error}", path.display()).into());
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn removing_a_directory_keeps_the_targets_of_links() {
        let place = tempfile::tempdir().unwrap();
        let (ours, outside) = (place.path().join("ours"), place.path().join("outside"));
        make(&ours.join("deep")).unwrap();
        assert_eq!(ours.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("kept"), "kept").unwrap();
        std::os::unix::fs::symlink(&outside, ours.join("deep/link")).unwrap();
        std::os::unix::fs::symlink(outside.join("kept"), ours.join("file")).unwrap();
        std::fs::set_permissions(ours.join("deep"), std::fs::Permissions::from_mode(0o500)).unwrap();
        clear(ours.clone()).await.unwrap();
        assert!(!ours.exists());
        assert_eq!(std::fs::read_to_string(outside.join("kept")).unwrap(), "kept");
        clear(ours).await.unwrap();
        // A directory that was replaced by a link is a link.
        let link = place.path().join("link");
        std::os::unix::fs::symlink(&outside, &link).unwrap();
        clear(link.clone()).await.unwrap();
        assert!(!link.exists() && outside.join("kept").exists());
    }
}
