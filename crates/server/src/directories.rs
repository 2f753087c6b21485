//! Directories of this server's own, within its data directory: who may see them, and how they go. Agents work in some of
//! them and may leave anything there, so nothing that a link points to is ever touched.

use std::{
    io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

use ostler_protocol::{
    Failure, FailureKind,
    ids::{RunId, SessionId},
};

use crate::app::App;

/// Where a session's agent keeps its own account.
pub fn session_storage(app: &App, session: SessionId) -> Result<PathBuf, Failure> {
    Ok(all_session_storage(app)?.join(session.to_string()))
}

pub fn all_session_storage(app: &App) -> Result<PathBuf, Failure> {
    Ok(app.config.data_dir()?.join("sessions"))
}

/// What is made for a run's agent to work in.
pub fn run_workspace(app: &App, run_id: RunId) -> Result<PathBuf, Failure> {
    Ok(all_workspaces(app)?.join(run_id.to_string()))
}

/// What is made for the agent of a session whose runs name no place: the same for all of them, because agents file their
/// conversations by the directory they were held in.
pub fn session_workspace(app: &App, session: SessionId) -> Result<PathBuf, Failure> {
    Ok(all_workspaces(app)?.join(session.to_string()))
}

pub fn all_workspaces(app: &App) -> Result<PathBuf, Failure> {
    Ok(app.config.data_dir()?.join("workspaces"))
}

/// Makes a directory that nobody else may enter, with those above it. One that is there is as good.
pub fn create(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// As [`create`], for what is asked for on the way to an answer.
pub fn make(path: &Path) -> Result<(), Failure> {
    create(path).map_err(|error| failed("directory", path, &error))
}

/// As [`remove`], away from the runtime's own threads: there may be much.
pub async fn clear(path: PathBuf) -> Result<(), Failure> {
    let shown = path.clone();
    let cleared = tokio::task::spawn_blocking(move || remove(&path)).await.map_err(Failure::internal)?;
    cleared.map_err(|error| failed("directory-clear", &shown, &error))
}

/// Removes a directory and all that is in it, whatever an agent made of it. Links are removed and never followed.
pub fn remove(path: &Path) -> io::Result<()> {
    let refused = match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => error,
        done => return done,
    };
    // Tools like to make their caches read-only, and a directory that cannot be written keeps its files.
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

fn failed(rule: &'static str, path: &Path, error: &io::Error) -> Failure {
    let mut failure = Failure::rule(FailureKind::InfraFailed, rule, "a directory of the server could not be changed");
    failure.cause = Some(format!("{}: {error}", path.display()).into());
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_links_point_to_stays_when_a_directory_goes() {
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
