//! What turns have changed in their workspaces, and the stored states by which a change can be undone. They are on the machine
//! of the runner, and are deleted with the run's directory.

use ostler_protocol::{
    Failure, RawJson,
    kernel::{turns::SessionTurn, workspaces::RecordedChanges},
};
use ostler_runner::{Snapshots, TreeChange, TreeEntry};
use ostler_store as store;

use crate::{app::App, directories};

/// A file in a stored state.
#[derive(Clone, Debug)]
pub struct StoredFile {
    entry: TreeEntry,
    snapshots: Snapshots,
}

impl PartialEq for StoredFile {
    /// Contents have the same id in every place where states are stored.
    fn eq(&self, other: &Self) -> bool {
        self.entry == other.entry
    }
}

impl StoredFile {
    /// False: a link, or a repository.
    pub fn is_file(&self) -> bool {
        self.entry.is_file
    }

    pub fn is_executable(&self) -> bool {
        self.entry.is_executable
    }

    /// `None` if the content is longer than this, or no longer stored.
    pub async fn content(&self, bytes_max: usize) -> Option<Vec<u8>> {
        let content = self.snapshots.content(&self.entry, bytes_max).await;
        content.inspect_err(|error| tracing::warn!(%error, "a stored file cannot be read")).ok().flatten()
    }
}

/// A file that a turn has changed.
#[derive(Clone, Debug)]
pub struct StoredChange {
    /// Relative to the workspace.
    pub path: String,
    pub before: Option<StoredFile>,
    pub after: Option<StoredFile>,
}

/// What a turn has changed. `None` if it has changed nothing, or its report was erased.
pub async fn changes(app: &App, turn: &SessionTurn) -> Result<Option<RecordedChanges>, Failure> {
    let Some(fold) = &turn.changes else { return Ok(None) };
    let event = store::kernel::events::get(&app.db, turn.session, fold.session_seq).await?;
    let payload = event.and_then(|event| RawJson::parse(event.payload?.to_string()).ok());
    Ok(payload.and_then(|payload| payload.view()))
}

/// The files that a turn has changed. `None` if its states were not stored, or are no longer there.
pub async fn files(
    app: &App,
    turn: &SessionTurn,
    recorded: &RecordedChanges,
) -> Result<Option<Vec<StoredChange>>, Failure> {
    let snapshots = Snapshots::at(directories::run_workspace(app, turn.run_id)?.join("changes"));
    let Some(trees) = &recorded.trees else { return Ok(None) };
    let changed = match snapshots.changed(trees).await {
        Ok(changed) => changed,
        Err(error) => {
            tracing::warn!(%error, run = %turn.run_id, "the files that a turn has changed cannot be read");
            return Ok(None);
        }
    };
    let stored = |entry: TreeEntry| StoredFile { entry, snapshots: snapshots.clone() };
    let change = |TreeChange { path, before, after }| StoredChange {
        path,
        before: before.map(stored),
        after: after.map(stored),
    };
    Ok(Some(changed.into_iter().map(change).collect()))
}
