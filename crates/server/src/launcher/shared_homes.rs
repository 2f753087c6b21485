//! What all sessions of a tenant and a profile share of their agent's home: extensions and subagents that clients gave to the agent.
//! Each process of the agent gets a copy, so that no session can change what the others run.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use ostler_protocol::{Failure, json::canonical_hash, kernel::provider_profiles::AgentConfig};
use serde_json::json;

use super::environment::{run_blocking, unusable};
use crate::{app::App, directories};

/// The directory of shared homes, in the data directory.
const SHARED_HOMES: &str = "agent-homes";
const LOCK: &str = ".lock";
/// Maximum number of files and bytes of one shared home.
const FILES_MAX: usize = 20_000;
const BYTES_MAX: u64 = 512 * 1024 * 1024;
const DEPTH_MAX: usize = 32;

/// The shared home of a tenant's agents of this profile. It exists once something was stored in it.
pub(crate) fn directory(app: &App, tenant_id: &str, profile: &str) -> Result<PathBuf, Failure> {
    let name = canonical_hash(&json!([tenant_id, profile]));
    Ok(app.config.data_dir()?.join(SHARED_HOMES).join(&name[..32]))
}

/// Copies the shared folders into a new home.
pub(super) async fn copy_into(
    app: &App,
    tenant_id: &str,
    profile: &str,
    agent: &AgentConfig,
    home: &Path,
) -> Result<(), Failure> {
    let Some(family) = agent.extensions() else { return Ok(()) };
    let (shared, home) = (directory(app, tenant_id, profile)?, home.to_owned());
    let copy = move || {
        if !shared.exists() {
            return Ok(());
        }
        let lock = lock(&shared)?;
        lock.lock_shared()?;
        copy_folders(&shared, &home, family.shared_folders())
    };
    run_blocking(copy).await.map_err(unusable)
}

/// Replaces these folders of the shared home by those of a home in which the agent's program has changed them.
pub(crate) async fn store(
    app: &App,
    tenant_id: &str,
    profile: &str,
    home: &Path,
    folders: &'static [&'static str],
) -> Result<(), Failure> {
    let (shared, home) = (directory(app, tenant_id, profile)?, home.to_owned());
    let next = shared.join(format!(".next-{}", app.ids.body().simple()));
    let replace = move || {
        directories::create(&shared)?;
        let lock = lock(&shared)?;
        lock.lock()?;
        let replaced = copy_folders(&home, &next, folders).and_then(|()| swap(&shared, &next, folders));
        // Also what an earlier server that was killed has left.
        for entry in fs::read_dir(&shared)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(".next-") {
                directories::remove(&entry.path())?;
            }
        }
        replaced
    };
    run_blocking(replace).await.map_err(unusable)
}

fn lock(shared: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).write(true).open(shared.join(LOCK))
}

fn swap(shared: &Path, next: &Path, folders: &[&str]) -> io::Result<()> {
    for folder in folders {
        let (current, new, old) = (shared.join(folder), next.join(folder), next.join("old").join(folder));
        for path in [&current, &old] {
            path.parent().map(directories::create).transpose()?;
        }
        if current.exists() {
            fs::rename(&current, &old)?;
        }
        if new.exists() {
            fs::rename(&new, &current)?;
        }
    }
    Ok(())
}

fn copy_folders(from: &Path, to: &Path, folders: &[&str]) -> io::Result<()> {
    let mut left = (FILES_MAX, BYTES_MAX);
    for folder in folders {
        let (from, to) = (from.join(folder), to.join(folder));
        if fs::symlink_metadata(&from).is_ok_and(|found| found.is_dir()) {
            copy_tree(&from, &to, DEPTH_MAX, &mut left)?;
        }
    }
    Ok(())
}

/// Copies regular files and directories. Links, sockets and devices are left out.
fn copy_tree(from: &Path, to: &Path, depth: usize, left: &mut (usize, u64)) -> io::Result<()> {
    if depth == 0 {
        return Err(io::Error::other("the shared home nests too deeply"));
    }
    directories::create(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            copy_tree(&entry.path(), &target, depth - 1, left)?;
        } else if kind.is_file() {
            let bytes = entry.metadata()?.len();
            let too_large = || io::Error::other("the shared home is too large");
            *left = (left.0.checked_sub(1).ok_or_else(too_large)?, left.1.checked_sub(bytes).ok_or_else(too_large)?);
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_copied_without_links_and_replaced_whole() {
        let scratch = tempfile::tempdir().unwrap();
        let [home, shared, next] = ["home", "shared", "shared/.next-1"].map(|name| scratch.path().join(name));
        fs::create_dir_all(home.join("a/deep")).unwrap();
        fs::write(home.join("a/deep/file"), "new").unwrap();
        fs::write(home.join("other"), "not shared").unwrap();
        std::os::unix::fs::symlink("/etc", home.join("a/link")).unwrap();
        fs::create_dir_all(shared.join("a")).unwrap();
        fs::write(shared.join("a/gone"), "old").unwrap();
        copy_folders(&home, &next, &["a", "absent"]).unwrap();
        swap(&shared, &next, &["a", "absent"]).unwrap();
        assert_eq!(fs::read_to_string(shared.join("a/deep/file")).unwrap(), "new");
        assert!(!shared.join("a/gone").exists() && !shared.join("a/link").exists() && !shared.join("other").exists());
    }

    #[test]
    fn a_home_that_is_too_large_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        fs::write(scratch.path().join("file"), "12345").unwrap();
        let to = scratch.path().join("to");
        copy_tree(scratch.path(), &to, 1, &mut (1, 4)).unwrap_err();
        copy_tree(scratch.path(), &to, 0, &mut (9, 9)).unwrap_err();
    }
}
