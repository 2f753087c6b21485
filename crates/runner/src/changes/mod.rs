//! The changes that a backend makes in its workspace in one turn. They are determined by the system's git, with an index of
//! our own outside the workspace, so that it works in any directory and touches no repository of the backend. Configuration,
//! hooks, filters and other programs of the workspace are ignored.

mod patch;

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use ostler_protocol::kernel::workspaces::WorkspaceChanges;
use tokio::{
    io::AsyncReadExt,
    process::Command,
    time::{Duration, timeout},
};

use crate::{environment::BackendEnvironment, git::git_missing};

/// Limit for each run of git. If one takes longer, the turn's changes are unknown.
const GIT_MS_MAX: u64 = 10_000;
/// Size of the whole diff. The rest is neither counted nor reported.
const PATCH_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The workspace at the beginning of a turn.
pub(crate) struct TurnChanges {
    index: PathBuf,
    workspace: PathBuf,
    /// Whether it was empty.
    was_empty: bool,
    /// Why its state could not be recorded. `None` if it was.
    problem: Option<String>,
}

impl TurnChanges {
    /// Records the state of the workspace. `None` if there is no workspace.
    pub(crate) async fn begin(environment: &BackendEnvironment) -> Option<Self> {
        let (workspace, index) = (environment.workspace.clone()?, environment.changes.clone()?);
        if !workspace.is_dir() {
            return None;
        }
        let was_empty = is_empty(&workspace);
        let mut changes = Self { index, workspace, was_empty, problem: None };
        if was_empty && !changes.index.exists() {
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
        if !self.index.exists() {
            self.git(&["init", "--quiet", "--template="]).await?;
        }
        self.git(&["add", "--all", "--ignore-errors"]).await.map(drop)
    }

    /// The changes since the beginning. `None` if there are none. Changes that git could not determine are reported as
    /// unknown.
    pub(crate) async fn end(&self) -> Option<WorkspaceChanges> {
        // An empty directory that stays empty is the usual case and needs no git.
        if self.was_empty && is_empty(&self.workspace) {
            return None;
        }
        if let Some(problem) = &self.problem {
            return Some(WorkspaceChanges::unknown(problem.clone()));
        }
        match self.compare().await {
            Ok(changes) => changes,
            Err(error) => {
                let problem = unknown_reason(&error);
                tracing::warn!(problem, "the workspace could not be compared; this turn's changes are unknown");
                Some(WorkspaceChanges::unknown(problem))
            }
        }
    }

    async fn compare(&self) -> std::io::Result<Option<WorkspaceChanges>> {
        if !self.index.exists() {
            self.git(&["init", "--quiet", "--template="]).await?;
        }
        self.git(&["add", "--intent-to-add", "--ignore-removal", "--ignore-errors", "."]).await?;
        let patch = self.git(&["diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames"]).await?;
        Ok((!patch.is_empty()).then(|| patch::parse(&patch, patch.len() as u64 >= PATCH_BYTES_MAX)))
    }

    /// Runs git on the workspace and returns its output.
    async fn git(&self, arguments: &[&str]) -> std::io::Result<Vec<u8>> {
        let mut child = self.command(arguments).spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| std::io::Error::other("git has no output pipe"))?;
        let mut output = vec![];
        let run = async {
            stdout.take(PATCH_BYTES_MAX).read_to_end(&mut output).await?;
            if output.len() as u64 >= PATCH_BYTES_MAX {
                child.kill().await?;
                return Ok(true);
            }
            // `git add` skips unreadable files and repositories without a commit, and exits with 1.
            let code = child.wait().await?.code();
            Ok(code == Some(0) || arguments[0] == "add" && code == Some(1))
        };
        match timeout(Duration::from_millis(GIT_MS_MAX), run).await {
            Ok(Ok(true)) => Ok(output),
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
        let changes = begun.end().await.unwrap();
        let expected = [("changed", "modified", 6, 4), ("new/file", "added", 4, 0), ("removed", "deleted", 0, 5)];
        assert_eq!(files(&changes), expected);
        assert_eq!((changes.files_changed, changes.bytes_added, changes.bytes_removed), (3, 10, 9));
        assert!(changes.diff.contains("\n-two\n+three\n") && !changes.truncated, "{}", changes.diff);
        // The next turn starts from the current state.
        let begun = TurnChanges::begin(&fixture.environment).await.unwrap();
        assert_eq!(begun.end().await, None);
        fixture.write("new/file", "newer\n");
        assert_eq!(files(&begun.end().await.unwrap()), [("new/file", "modified", 6, 4)]);
    }

    #[tokio::test]
    async fn an_empty_workspace_needs_no_git_until_its_first_file() {
        let fixture = fixture();
        let begun = TurnChanges::begin(&fixture.environment).await.unwrap();
        assert_eq!(begun.end().await, None);
        assert!(!fixture.environment.changes.as_ref().unwrap().exists());
        fixture.write("first", "hello\n");
        assert_eq!(files(&begun.end().await.unwrap()), [("first", "added", 6, 0)]);
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
        assert_eq!(files(&begun.end().await.unwrap()), [("seen", "added", 5, 0)]);
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
