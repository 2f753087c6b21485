//! What Codex allows its tools, as one of its permission profiles: the run's sandbox and network. Of the directories that
//! are hidden from backends (the server's data directory with other backends' homes, keys and tokens) only the workspace
//! and a directory for temporary files are accessible. Codex confines its tools by this profile; Codex itself is not
//! confined.

use std::{
    io,
    path::{Path, PathBuf},
};

use ostler_protocol::{
    FailureKind,
    kernel::policy::{ExecutionPolicy, Network, Sandbox},
};
use serde_json::{Map, Value, json};

use super::wire::ThreadReply;
use crate::{backend::turn::TurnEnd, environment::BackendEnvironment};

/// Where tools put temporary files, inside the home. Not `tmp`, where Codex stores programs of its own.
pub(super) const SCRATCH_FOLDER: &str = "scratch";
/// The profile's name. It overrides a profile of this name in the backend's own configuration.
pub(super) const PROFILE: &str = "ostler";

/// The permission profile. `None` if the run's tools are not confined. An error if a hidden directory cannot be listed: its
/// content could then not be hidden.
pub(super) fn profile(policy: &ExecutionPolicy, environment: &BackendEnvironment) -> io::Result<Option<Value>> {
    // Codex resolves symbolic links in paths.
    let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
    let workspace = environment.workspace.as_ref().map(real).unwrap_or_default();
    let hidden = environment.hidden.iter().map(real);
    let mut files = Map::new();
    let mut allow = |path: &Path, access: &str| files.insert(path.display().to_string(), access.into());
    let base = match policy.sandbox {
        Sandbox::DangerFullAccess => return Ok(None),
        Sandbox::ReadOnly => {
            // Codex cannot allow reading below a denied directory, so everything beside the workspace is denied instead.
            for hidden in hidden {
                beside(&hidden, &workspace)?.iter().for_each(|path| drop(allow(path, "deny")));
            }
            ":read-only"
        }
        Sandbox::WorkspaceWrite => {
            hidden.for_each(|path| drop(allow(&path, "deny")));
            allow(&workspace, "write");
            if let Some(home) = &environment.home {
                allow(&real(home).join(SCRATCH_FOLDER), "write");
            }
            // The shared `/tmp` is not writable.
            files.insert(":tmpdir".into(), "read".into());
            files.insert(":slash_tmp".into(), "read".into());
            ":workspace"
        }
    };
    let network = json!({"enabled": policy.network == Network::Enabled});
    Ok(Some(json!({"extends": base, "filesystem": files, "network": network})))
}

/// Fails if Codex did not activate the profile. A version that does not support profiles would confine its tools only by
/// its own configuration.
pub(super) fn check_active_profile(policy: &ExecutionPolicy, reply: &ThreadReply) -> Result<(), TurnEnd> {
    let is_active = reply.active_permission_profile.as_ref().is_some_and(|active| active.id == PROFILE);
    match policy.sandbox {
        Sandbox::DangerFullAccess => Ok(()),
        _ if is_active => Ok(()),
        _ => {
            let message = "this Codex does not confine its tools to the run's sandbox; version 0.166.0 does";
            Err(TurnEnd::failed(FailureKind::InfraFailed, message))
        }
    }
}

/// Everything in a directory except the path to `target` within it.
fn beside(directory: &Path, target: &Path) -> io::Result<Vec<PathBuf>> {
    if !target.starts_with(directory) {
        return Ok(vec![directory.to_owned()]);
    }
    let mut found = vec![];
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        match path {
            path if path == target => {}
            path if target.starts_with(&path) => found.extend(beside(&path, target)?),
            path => found.push(path),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beside_lists_everything_except_the_path_to_the_target() {
        let data = tempfile::tempdir().unwrap();
        for path in ["homes/a", "workspaces/mine/work", "workspaces/theirs"] {
            std::fs::create_dir_all(data.path().join(path)).unwrap();
        }
        std::fs::write(data.path().join("token"), "").unwrap();
        let mut found = beside(data.path(), &data.path().join("workspaces/mine/work")).unwrap();
        found.sort();
        assert_eq!(found, ["homes", "token", "workspaces/theirs"].map(|path| data.path().join(path)));
        assert_eq!(beside(data.path(), Path::new("/srv/project")).unwrap(), [data.path()]);
        let gone = data.path().join("gone");
        assert!(
            beside(&gone, &gone.join("work")).is_err(),
            "a directory that cannot be listed does not count as empty"
        );
    }
}
