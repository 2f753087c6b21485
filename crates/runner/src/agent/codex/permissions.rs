//! What Codex lets its tools do, as a permission profile of its own: the run's sandbox and network, and nothing of what is
//! hidden from agents (the server's data directory: other agents' homes, keys, tokens) but the workspace and a place for what
//! is temporary. Codex confines its tools by it; Codex itself is not confined.

use std::path::{Path, PathBuf};

use ostler_protocol::{
    FailureKind,
    policy::{ExecutionPolicy, Network, Sandbox},
};
use serde_json::{Map, Value, json};

use super::{SCRATCH_FOLDER, wire::ThreadAnswer};
use crate::{Outfit, agent::TurnEnd};

/// The profile's name; a profile of this name in the agent's own configuration does not count.
pub const PROFILE: &str = "ostler";

/// `None`: the run's tools are not confined.
pub fn profile(policy: &ExecutionPolicy, outfit: &Outfit) -> Option<Value> {
    // Codex knows places by their real names.
    let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
    let workspace = outfit.workspace.as_ref().map(real).unwrap_or_default();
    let hidden = outfit.hidden.iter().map(real);
    let mut files = Map::new();
    let mut allow = |path: &Path, access: &str| files.insert(path.display().to_string(), access.into());
    let base = match policy.sandbox {
        Sandbox::DangerFullAccess => return None,
        Sandbox::ReadOnly => {
            // Codex opens nothing again for reading below what it denies, so what lies beside the workspace is denied.
            hidden.flat_map(|hidden| beside(&hidden, &workspace)).for_each(|path| drop(allow(&path, "deny")));
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
    Some(json!({"extends": base, "filesystem": files, "network": network}))
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
fn beside(directory: &Path, place: &Path) -> Vec<PathBuf> {
    if !place.starts_with(directory) {
        return vec![directory.to_owned()];
    }
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let entries = entries.filter(|entry| entry != place);
    entries.flat_map(|entry| if place.starts_with(&entry) { beside(&entry, place) } else { vec![entry] }).collect()
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
        let mut found = beside(data.path(), &data.path().join("workspaces/mine/work"));
        found.sort();
        assert_eq!(found, ["homes", "token", "workspaces/theirs"].map(|path| data.path().join(path)));
        assert_eq!(beside(data.path(), Path::new("/srv/project")), [data.path()]);
    }
}
