//! What an agent changes in its workspace in one turn: found by the system's git, with an index of our own outside the
//! workspace, so that it works in any directory and no repository of the agent's is touched. It obeys no configuration
//! and runs no hook, filter or other program of the workspace's.

mod patch;

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use ostler_protocol::workspaces::WorkspaceChanges;
use tokio::{
    io::AsyncReadExt,
    process::Command,
    time::{Duration, timeout},
};

use crate::{Outfit, git_missing};

/// For each look at the workspace. One that takes longer is not finished, and the turn's changes are not known.
const LOOK_MS_MAX: u64 = 10_000;
/// Of the whole difference. What is over is neither counted nor shown.
const PATCH_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The workspace as it stood when the turn began.
pub struct Changes {
    index: PathBuf,
    workspace: PathBuf,
    /// It was empty then.
    was_empty: bool,
    /// Why its state could not be recorded, if so.
    problem: Option<String>,
}

impl Changes {
    /// Records the state of the workspace. `None` if there is none.
    pub async fn begin(outfit: &Outfit) -> Option<Self> {
        let (workspace, index) = (outfit.workspace.clone()?, outfit.changes.clone()?);
        if !workspace.is_dir() {
            return None;
        }
        let was_empty = is_empty(&workspace);
        let mut changes = Self { index, workspace, was_empty, problem: None };
        if was_empty && !changes.index.exists() {
            return Some(changes);
        }
        if let Err(error) = changes.note().await {
            tracing::warn!(%error, "the workspace could not be looked at; this turn's changes stay unknown");
            changes.problem = Some(why_unknown(&error));
        }
        Some(changes)
    }

    async fn note(&self) -> std::io::Result<()> {
        if !self.index.exists() {
            self.git(&["init", "--quiet", "--template="]).await?;
        }
        self.git(&["add", "--all", "--ignore-errors"]).await.map(drop)
    }

    /// What has changed since. `None` if nothing has. Changes that git could not determine are reported as unknown.
    pub async fn end(&self) -> Option<WorkspaceChanges> {
        // An empty directory that stays empty is the usual case, and costs nothing.
        if self.was_empty && is_empty(&self.workspace) {
            return None;
        }
        if let Some(problem) = &self.problem {
            return Some(WorkspaceChanges::unknown(problem.clone()));
        }
        match self.compare().await {
            Ok(changes) => changes,
            Err(error) => {
                tracing::warn!(%error, "the workspace could not be compared; this turn's changes stay unknown");
                Some(WorkspaceChanges::unknown(why_unknown(&error)))
            }
        }
    }

    async fn compare(&self) -> std::io::Result<Option<WorkspaceChanges>> {
        if !self.index.exists() {
            self.git(&["init", "--quiet", "--template="]).await?;
        }
        self.git(&["add", "--intent-to-add", "--ignore-removal", "--ignore-errors", "."]).await?;
        let patch = self.git(&["diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames"]).await?;
        Ok((!patch.is_empty()).then(|| patch::read(&patch, patch.len() as u64 >= PATCH_BYTES_MAX)))
    }

    /// Runs git on the workspace and answers with what it says.
    async fn git(&self, arguments: &[&str]) -> std::io::Result<Vec<u8>> {
        let mut child = self.command(arguments).spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| std::io::Error::other("the pipe was asked for"))?;
        let mut said = vec![];
        let look = async {
            stdout.take(PATCH_BYTES_MAX).read_to_end(&mut said).await?;
            if said.len() as u64 >= PATCH_BYTES_MAX {
                child.kill().await?;
                return Ok(true);
            }
            // What cannot be read, or is a repository without a commit, is passed over and told by the exit code.
            let code = child.wait().await?.code();
            Ok(code == Some(0) || arguments[0] == "add" && code == Some(1))
        };
        match timeout(Duration::from_millis(LOOK_MS_MAX), look).await {
            Ok(Ok(true)) => Ok(said),
            Ok(Ok(false)) => Err(std::io::Error::other(format!("git {} failed", arguments[0]))),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(std::io::Error::other(format!("git {} took too long", arguments[0]))),
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("git");
        let settings = [
            "core.quotePath=false",
            "core.hooksPath=/dev/null",
            "core.fsmonitor=false",
            "core.autocrlf=false",
            "core.safecrlf=false",
            "advice.addEmbeddedRepo=false",
            "gc.auto=0",
        ];
        command.args(settings.iter().flat_map(|setting| ["-c", setting])).args(arguments);
        command.current_dir(&self.workspace).env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        command.env("GIT_DIR", &self.index).env("GIT_WORK_TREE", &self.workspace).env("LC_ALL", "C");
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null").env("HOME", "/nonexistent");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        command
    }
}

/// What a person can do something about: git is missing, or what it did not get done.
fn why_unknown(error: &std::io::Error) -> String {
    git_missing().unwrap_or_else(|| error.to_string())
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none())
}

#[cfg(test)]
mod tests {
    use ostler_protocol::provider_profiles::AgentConfig;

    use super::*;

    struct Scene {
        _place: tempfile::TempDir,
        outfit: Outfit,
        workspace: PathBuf,
    }

    fn scene() -> Scene {
        let place = tempfile::tempdir().unwrap();
        let (workspace, index) = (place.path().join("work"), place.path().join("index"));
        std::fs::create_dir(&workspace).unwrap();
        let bare = Outfit::bare(AgentConfig::Codex);
        let outfit = Outfit { workspace: Some(workspace.clone()), changes: Some(index), ..bare };
        Scene { _place: place, outfit, workspace }
    }

    impl Scene {
        fn write(&self, name: &str, text: &str) {
            let path = self.workspace.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    fn files(changes: &WorkspaceChanges) -> Vec<(&str, &str, i64, i64)> {
        let of = |file: &'_ ostler_protocol::workspaces::ChangedFile| (file.bytes_added, file.bytes_removed);
        let each = changes.files.iter().map(|file| (file.path.as_str(), file.change.as_str(), of(file)));
        each.map(|(path, change, (added, removed))| (path, change, added, removed)).collect()
    }

    #[tokio::test]
    async fn what_was_added_changed_and_removed_in_a_turn_is_told_apart() {
        let scene = scene();
        scene.write("changed", "one\ntwo\n");
        scene.write("removed", "gone\n");
        scene.write("kept", "kept\n");
        let begun = Changes::begin(&scene.outfit).await.unwrap();
        assert_eq!(begun.end().await, None);
        scene.write("changed", "one\nthree\n");
        scene.write("new/file", "new\n");
        std::fs::remove_file(scene.workspace.join("removed")).unwrap();
        let changes = begun.end().await.unwrap();
        let told = [("changed", "modified", 6, 4), ("new/file", "added", 4, 0), ("removed", "deleted", 0, 5)];
        assert_eq!(files(&changes), told);
        assert_eq!((changes.files_changed, changes.bytes_added, changes.bytes_removed), (3, 10, 9));
        assert!(changes.diff.contains("\n-two\n+three\n") && !changes.truncated, "{}", changes.diff);
        // The next turn begins where this one ended.
        let begun = Changes::begin(&scene.outfit).await.unwrap();
        assert_eq!(begun.end().await, None);
        scene.write("new/file", "newer\n");
        assert_eq!(files(&begun.end().await.unwrap()), [("new/file", "modified", 6, 4)]);
    }

    #[tokio::test]
    async fn an_empty_workspace_costs_nothing_and_its_first_file_is_seen() {
        let scene = scene();
        let begun = Changes::begin(&scene.outfit).await.unwrap();
        assert_eq!(begun.end().await, None);
        assert!(!scene.outfit.changes.as_ref().unwrap().exists());
        scene.write("first", "hello\n");
        assert_eq!(files(&begun.end().await.unwrap()), [("first", "added", 6, 0)]);
    }

    #[tokio::test]
    async fn a_repository_in_the_workspace_is_neither_used_nor_changed_nor_obeyed() {
        let scene = scene();
        let trap = scene.workspace.parent().unwrap().join("sprung");
        let run = |arguments: &[&str]| {
            let mut git = std::process::Command::new("git");
            assert!(git.args(arguments).current_dir(&scene.workspace).output().unwrap().status.success());
        };
        run(&["init", "--quiet"]);
        run(&["config", "filter.trap.clean", &format!("touch {}", trap.display())]);
        run(&["config", "diff.trap.command", &format!("touch {}", trap.display())]);
        run(&["config", "core.fsmonitor", &format!("touch {}", trap.display())]);
        scene.write(".gitattributes", "* filter=trap diff=trap\n");
        scene.write(".gitignore", "ignored\n");
        let before = std::fs::read_dir(scene.workspace.join(".git")).unwrap().count();
        let begun = Changes::begin(&scene.outfit).await.unwrap();
        scene.write("seen", "seen\n");
        scene.write("ignored", "ignored\n");
        assert_eq!(files(&begun.end().await.unwrap()), [("seen", "added", 5, 0)]);
        assert!(!trap.exists());
        assert_eq!(std::fs::read_dir(scene.workspace.join(".git")).unwrap().count(), before);
    }

    #[tokio::test]
    async fn a_workspace_that_is_not_there_has_no_changes() {
        assert!(Changes::begin(&Outfit::bare(AgentConfig::Codex)).await.is_none());
        let scene = scene();
        std::fs::remove_dir(&scene.workspace).unwrap();
        assert!(Changes::begin(&scene.outfit).await.is_none());
    }
}
