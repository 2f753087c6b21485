//! What Codex allows its tools, as one of its permission profiles: the run's sandbox and network. Of the directories that
//! are hidden from backends (the server's data directory with other backends' homes, keys and tokens) only the workspace
//! and a directory for temporary files are accessible. The home, which has the provider's key, and the session's storage are
//! hidden wherever they are. Codex confines its tools by this profile; Codex itself is not confined.

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
    let hidden = hidden(environment).into_iter();
    let mut files = Map::new();
    let mut allow = |path: &Path, access: &str| files.insert(path.display().to_string(), access.into());
    let base = match policy.sandbox {
        Sandbox::DangerFullAccess => return Ok(None),
        Sandbox::ReadOnly => {
            // Codex cannot allow reading below a denied directory, so everything beside the workspace is denied instead.
            for hidden in hidden {
                paths_except(&hidden, &workspace)?.iter().for_each(|path| drop(allow(path, "deny")));
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

/// The directories that tools must not see. A directory within another one of them is left out.
fn hidden(environment: &BackendEnvironment) -> Vec<PathBuf> {
    let own = environment.home.iter().chain(&environment.storage);
    let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
    let mut hidden: Vec<PathBuf> = vec![];
    for path in environment.hidden.iter().chain(own).map(real) {
        if !hidden.iter().any(|outer| path.starts_with(outer)) {
            hidden.push(path);
        }
    }
    hidden
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
fn paths_except(directory: &Path, target: &Path) -> io::Result<Vec<PathBuf>> {
    if !target.starts_with(directory) {
        return Ok(vec![directory.to_owned()]);
    }
    let mut found = vec![];
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        match path {
            path if path == target => {}
            path if target.starts_with(&path) => found.extend(paths_except(&path, target)?),
            path => found.push(path),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use ostler_protocol::kernel::provider_profiles::AgentConfig;

    use super::*;

    #[test]
    fn the_home_and_the_storage_are_hidden_wherever_they_are() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let pod = BackendEnvironment {
            workspace: Some(root.join("workspace")),
            home: Some(root.join("home")),
            storage: Some(root.join("storage")),
            hidden: vec![root.join("secrets")],
            ..BackendEnvironment::bare(AgentConfig::Codex)
        };
        let files_of = |sandbox: &str, environment: &BackendEnvironment| {
            let policy = json!({"sandbox": sandbox, "approval": "never", "timeoutMs": 1, "network": "enabled",
                "secretScope": {}});
            let policy: ExecutionPolicy = serde_json::from_str(&policy.to_string()).unwrap();
            profile(&policy, environment).unwrap().unwrap()["filesystem"].take()
        };
        let at = |files: &Value, name: &str| files[root.join(name).display().to_string()].clone();
        for sandbox in ["workspace-write", "read-only"] {
            let files = files_of(sandbox, &pod);
            for name in ["home", "storage", "secrets"] {
                assert_eq!(at(&files, name), "deny", "{sandbox}: {name}");
            }
        }
        assert_eq!(at(&files_of("workspace-write", &pod), "home/scratch"), "write");
        // On a server they are in its data directory.
        let server = BackendEnvironment { hidden: vec![root.clone()], ..pod };
        let files = files_of("workspace-write", &server);
        assert_eq!((&files[root.display().to_string()], at(&files, "home")), (&json!("deny"), Value::Null));
    }

    #[test]
    fn beside_lists_everything_except_the_path_to_the_target() {
        let data = tempfile::tempdir().unwrap();
        for path in ["homes/a", "workspaces/mine/work", "workspaces/theirs"] {
            std::fs::create_dir_all(data.path().join(path)).unwrap();
        }
        std::fs::write(data.path().join("token"), "").unwrap();
        let mut found = paths_except(data.path(), &data.path().join("workspaces/mine/work")).unwrap();
        found.sort();
        assert_eq!(found, ["homes", "token", "workspaces/theirs"].map(|path| data.path().join(path)));
        assert_eq!(paths_except(data.path(), Path::new("/srv/project")).unwrap(), [data.path()]);
        let gone = data.path().join("gone");
        assert!(
            paths_except(&gone, &gone.join("work")).is_err(),
            "a directory that cannot be listed does not count as empty"
        );
    }
}
