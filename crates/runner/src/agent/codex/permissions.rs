//! What Codex lets its tools do, as a permission profile of its own: the run's sandbox and network, and nothing of what is
//! hidden from agents (the server's data directory: other agents' homes, keys, tokens) but the workspace and a place for what
//! is temporary. Codex confines its tools by it; Codex itself is not confined.

use std::{
    io,
    path::{Path, PathBuf},
};

use ostler_protocol::{
    FailureKind,
    policy::{ExecutionPolicy, Network, Sandbox},
};
use serde_json::{Map, Value, json};

use super::{SCRATCH_FOLDER, wire::ThreadAnswer};
use crate::{Outfit, agent::TurnEnd};

/// The profile's name; a profile of this name in the agent's own configuration does not count.
pub const PROFILE: &str = "ostler";

/// `None`: the run's tools are not confined. What cannot be looked into cannot be hidden, so then there is no turn.
pub fn profile(policy: &ExecutionPolicy, outfit: &Outfit) -> io::Result<Option<Value>> {
    // Codex knows places by their real names.
    let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
    let workspace = outfit.workspace.as_ref().map(real).unwrap_or_default();
    let hidden = outfit.hidden.iter().map(real);
    let mut files = Map::new();
    let mut allow = |path: &Path, access: &str| files.insert(path.display().to_string(), access.into());
    let base = match policy.sandbox {
        Sandbox::DangerFullAccess => return Ok(None),
        Sandbox::ReadOnly => {
            // Codex opens nothing again for reading below what it denies, so what lies beside the workspace is denied.
            for hidden in hidden {
                beside(&hidden, &workspace)?.iter().for_each(|path| drop(allow(path, "deny")));
            }
            ":read-only"
        }
        Sandbox::WorkspaceWrite => {
            hidden.for_each(|path| drop(allow(&path, "deny")));
            allow(&workspace, "write");
            if let Some(home) = &outfit.home {
                allow(&real(home).join(SCRATCH_FOLDER), "write");
            }
            // Not everybody's `/tmp`.
            files.insert(":tmpdir".into(), "read".into());
            files.insert(":slash_tmp".into(), "read".into());
            ":workspace"
        }
    };
    let network = json!({"enabled": policy.network == Network::Enabled});
    Ok(Some(json!({"extends": base, "filesystem": files, "network": network})))
}

/// A Codex that does not know such profiles would hold its tools to whatever its own configuration says.
pub fn check_taken(policy: &ExecutionPolicy, answer: &ThreadAnswer) -> Result<(), TurnEnd> {
    let is_taken = answer.active_permission_profile.as_ref().is_some_and(|active| active.id == PROFILE);
    match policy.sandbox {
        Sandbox::DangerFullAccess => Ok(()),
        _ if is_taken => Ok(()),
        _ => {
            let message = "this Codex does not hold its tools to the run's sandbox; 0.166.0 is known to";
            Err(TurnEnd::failed(FailureKind::InfraFailed, message))
        }
    }
}

/// All of a directory but the way to a place within it.
fn beside(directory: &Path, place: &Path) -> io::Result<Vec<PathBuf>> {
    if !place.starts_with(directory) {
        return Ok(vec![directory.to_owned()]);
    }
    let mut found = vec![];
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        match path {
            path if path == place => {}
            path if place.starts_with(&path) => found.extend(beside(&path, place)?),
            path => found.push(path),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beside_a_place_is_everything_but_the_way_to_it() {
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
        assert!(beside(&gone, &gone.join("work")).is_err(), "what cannot be looked into is not taken for empty");
    }
}
