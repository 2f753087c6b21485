//! The changes that a backend makes in its workspace in one turn. They are determined by the system's git, with an index of
//! our own outside the workspace, so that it works in any directory and touches no repository of the backend. Configuration,
//! hooks, filters and other programs of the workspace are ignored.

mod index;
mod patch;
mod snapshots;

pub use snapshots::{Snapshots, TreeChange, TreeEntry};

use std::path::{Path, PathBuf};

use ostler_protocol::kernel::workspaces::{RecordedChanges, WorkspaceChanges, WorkspaceTrees};

use crate::{environment::BackendEnvironment, git::git_missing, text_cutter::TextCutter};
use index::Index;

/// Size of the whole diff. The rest is neither counted nor reported.
const PATCH_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The workspace at the beginning of a turn.
pub(crate) struct TurnChanges {
    index: Index,
    workspace: PathBuf,
    /// Whether it was empty.
    was_empty: bool,
    /// Why its state could not be recorded. `None` if it was.
    problem: Option<String>,
    cutter: TextCutter,
}

impl TurnChanges {
    /// Records the state of the workspace. `None` if there is no workspace.
    pub(crate) async fn begin(environment: &BackendEnvironment) -> Option<Self> {
        let (workspace, index) = (environment.workspace.clone()?, environment.changes.clone()?);
        if !workspace.is_dir() {
            return None;
        }
        let was_empty = is_empty(&workspace);
        let index = Index { directory: index, workspace: Some(workspace.clone()) };
        let cutter = environment.text_cutter();
        let mut changes = Self { index, workspace, was_empty, problem: None, cutter };
        if was_empty && !changes.index.directory.exists() {
            return Some(changes);
        }
        if let Err(error) = changes.record().await {
            let problem = unknown_reason(&error);
            tracing::warn!(problem, "the workspace could not be recorded; this turn's changes are unknown");
            changes.problem = Some(problem);
        }
        Some(changes)
    }

    async fn record(&self) -> std::io::Result<()> {
        if !self.index.directory.exists() {
            self.git(&["init", "--quiet", "--template="]).await?;
        }
        self.git(&["add", "--all", "--ignore-errors"]).await.map(drop)
    }

    /// The changes since the beginning. `None` if there are none. Changes that git could not determine are reported as
    /// unknown.
    pub(crate) async fn end(&self) -> Option<RecordedChanges> {
        // An empty directory that stays empty is the usual case and needs no git.
        if self.was_empty && is_empty(&self.workspace) {
            return None;
        }
        if let Some(problem) = &self.problem {
            return Some(unknown(problem.clone()));
        }
        match self.compare().await {
            Ok(changes) => changes,
            Err(error) => {
                let problem = unknown_reason(&error);
                tracing::warn!(problem, "the workspace could not be compared; this turn's changes are unknown");
                Some(unknown(problem))
            }
        }
    }

    async fn compare(&self) -> std::io::Result<Option<RecordedChanges>> {
        if !self.index.directory.exists() {
            self.git(&["init", "--quiet", "--template="]).await?;
        }
        self.git(&["add", "--intent-to-add", "--ignore-removal", "--ignore-errors", "."]).await?;
        let patch = self.git(&["diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames"]).await?;
        if patch.is_empty() {
            return Ok(None);
        }
        let changes = patch::parse(&self.cutter, &patch, patch.len() as u64 >= PATCH_BYTES_MAX);
        let trees = match self.write_trees().await {
            Ok(trees) => Some(trees),
            Err(error) => {
                tracing::warn!(%error, "the workspace could not be stored; this turn's changes cannot be undone");
                None
            }
        };
        Ok(Some(RecordedChanges { changes, trees }))
    }

    /// Stores the workspace as it was before the turn, and as it is now. Entries that are only intended are in neither.
    async fn write_trees(&self) -> std::io::Result<WorkspaceTrees> {
        let before = self.write_tree().await?;
        self.git(&["add", "--all", "--ignore-errors"]).await?;
        Ok(WorkspaceTrees { before, after: self.write_tree().await? })
    }

    async fn write_tree(&self) -> std::io::Result<String> {
        let id = self.git(&["write-tree"]).await?;
        Ok(String::from_utf8_lossy(&id).trim().to_owned())
    }

    async fn git(&self, arguments: &[&str]) -> std::io::Result<Vec<u8>> {
        self.index.git(arguments, PATCH_BYTES_MAX).await
    }
}

fn unknown(problem: String) -> RecordedChanges {
    RecordedChanges { changes: WorkspaceChanges::unknown(problem), trees: None }
}

/// Why the changes are unknown, for people: git is missing, or git failed.
fn unknown_reason(error: &std::io::Error) -> String {
    git_missing().unwrap_or_else(|| format!("git: {error}"))
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none())
}

#[cfg(test)]
mod tests {
    use ostler_protocol::kernel::provider_profiles::AgentConfig;

    use super::*;

    struct Fixture {
        _directory: tempfile::TempDir,
        environment: BackendEnvironment,
        workspace: PathBuf,
    }

    fn fixture() -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let (workspace, index) = (directory.path().join("work"), directory.path().join("index"));
        std::fs::create_dir(&workspace).unwrap();
        let bare = BackendEnvironment::bare(AgentConfig::Codex);
        let environment = BackendEnvironment { workspace: Some(workspace.clone()), changes: Some(index), ..bare };
        Fixture { _directory: directory, environment, workspace }
    }

    impl Fixture {
        fn write(&self, name: &str, text: &str) {
            let path = self.workspace.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    fn files(changes: &WorkspaceChanges) -> Vec<(&str, &str, i64, i64)> {
        let of = |file: &'_ ostler_protocol::kernel::workspaces::ChangedFile| (file.bytes_added, file.bytes_removed);
        let each = changes.files.iter().map(|file| (file.path.as_str(), file.change.as_str(), of(file)));
        each.map(|(path, change, (added, removed))| (path, change, added, removed)).collect()
    }

    #[tokio::test]
    async fn added_changed_and_removed_files_are_reported() {
        let fixture = fixture();
        fixture.write("changed", "one\ntwo\n");
        fixture.write("removed", "gone\n");
        fixture.write("kept", "kept\n");
        let begun = TurnChanges::begin(&fixture.environment).await.unwrap();
        assert_eq!(begun.end().await, None);
        fixture.write("changed", "one\nthree\n");
        fixture.write("new/file", "new\n");
        std::fs::remove_file(fixture.workspace.join("removed")).unwrap();
        let RecordedChanges { changes, trees } = begun.end().await.unwrap();
        let expected = [("changed", "modified", 6, 4), ("new/file", "added", 4, 0), ("removed", "deleted", 0, 5)];
        assert_eq!(files(&changes), expected);
        assert_eq!((changes.files_changed, changes.bytes_added, changes.bytes_removed), (3, 10, 9));
        assert_eq!((changes.lines_added, changes.lines_removed), (2, 2));
        let snapshots = Snapshots::at(fixture.environment.changes.clone().unwrap());
        let changed = snapshots.changed(&trees.unwrap()).await.unwrap();
        let paths: Vec<_> =
            changed.iter().map(|it| (it.path.as_str(), it.before.is_some(), it.after.is_some())).collect();
        assert_eq!(paths, [("changed", true, true), ("new/file", false, true), ("removed", true, false)]);
        let before = changed[0].before.as_ref().unwrap();
        assert_eq!(snapshots.content(before, 100).await.unwrap().unwrap(), b"one\ntwo\n");
        assert_eq!(snapshots.content(before, 3).await.unwrap(), None);
        assert!(changes.diff.contains("\n-two\n+three\n") && !changes.truncated, "{}", changes.diff);
        // The next turn starts from the current state.
        let begun = TurnChanges::begin(&fixture.environment).await.unwrap();
        assert_eq!(begun.end().await, None);
        fixture.write("new/file", "newer\n");
        assert_eq!(files(&begun.end().await.unwrap().changes), [("new/file", "modified", 6, 4)]);
    }

    #[tokio::test]
    async fn an_empty_workspace_needs_no_git_until_its_first_file() {
        let fixture = fixture();
        let begun = TurnChanges::begin(&fixture.environment).await.unwrap();
        assert_eq!(begun.end().await, None);
        assert!(!fixture.environment.changes.as_ref().unwrap().exists());
        fixture.write("first", "hello\n");
        assert_eq!(files(&begun.end().await.unwrap().changes), [("first", "added", 6, 0)]);
    }

    #[tokio::test]
    async fn a_repository_in_the_workspace_is_neither_used_nor_changed() {
        let fixture = fixture();
        let trap = fixture.workspace.parent().unwrap().join("sprung");
        let run = |arguments: &[&str]| {
            let mut git = std::process::Command::new("git");
            assert!(git.args(arguments).current_dir(&fixture.workspace).output().unwrap().status.success());
        };
        run(&["init", "--quiet"]);
        run(&["config", "filter.trap.clean", &format!("touch {}", trap.display())]);
        run(&["config", "diff.trap.command", &format!("touch {}", trap.display())]);
        run(&["config", "core.fsmonitor", &format!("touch {}", trap.display())]);
        fixture.write(".gitattributes", "* filter=trap diff=trap\n");
        fixture.write(".gitignore", "ignored\n");
        let before = std::fs::read_dir(fixture.workspace.join(".git")).unwrap().count();
        let begun = TurnChanges::begin(&fixture.environment).await.unwrap();
        fixture.write("seen", "seen\n");
        fixture.write("ignored", "ignored\n");
        assert_eq!(files(&begun.end().await.unwrap().changes), [("seen", "added", 5, 0)]);
        assert!(!trap.exists());
        assert_eq!(std::fs::read_dir(fixture.workspace.join(".git")).unwrap().count(), before);
    }

    #[tokio::test]
    async fn a_missing_workspace_has_no_changes() {
        assert!(TurnChanges::begin(&BackendEnvironment::bare(AgentConfig::Codex)).await.is_none());
        let fixture = fixture();
        std::fs::remove_dir(&fixture.workspace).unwrap();
        assert!(TurnChanges::begin(&fixture.environment).await.is_none());
    }
}
