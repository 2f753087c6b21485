//! Restores the files that turns have changed. A file is restored only if it is still as the last of the turns left it.

use ostler_protocol::{
    Failure,
    daemon::{
        files::FILE_WRITE_BYTES_MAX,
        rewinds::{FileRestore, restores},
    },
    kernel::turns::NumberedTurn,
    text::clip,
};
use ostler_server::{
    app::App,
    service::snapshots::{self, StoredFile},
};

use crate::{
    files::{PastContent, PastFile, Workspace},
    service::{lookup::OpenSession, restores::RestoreLock},
    state::DaemonState,
};

/// Files that one rewind restores. Others are reported as failed.
const RESTORED_FILES_MAX: usize = 500;
/// Entries of the lists in the response and in the frame, and characters of each.
const LISTED_MAX: usize = 500;
const LISTED_CHARS_MAX: usize = 150;

#[derive(Debug, Default)]
pub(super) struct Restored {
    pub changed: Vec<String>,
    pub failed: Vec<String>,
}

/// Undoes what the turns have changed in the workspace.
pub(super) async fn restore(
    app: &App,
    open: &OpenSession,
    undone: &[NumberedTurn],
    lock: &mut RestoreLock,
) -> Result<Restored, Failure> {
    let (mut restored, mut changes) = (Restored::default(), vec![]);
    for numbered in undone {
        if !lock.extend(app).await? {
            restored.failed.push(format!("changes of turn {}: the rewind took too long", numbered.number));
            continue;
        }
        let Some(recorded) = snapshots::changes(app, &numbered.turn).await? else { continue };
        match snapshots::files(app, &numbered.turn, &recorded).await? {
            Some(files) => changes.extend(files.into_iter().map(|file| (file.path, file.before, file.after))),
            None => {
                let reason = recorded.changes.reason.unwrap_or_else(|| "they were not stored".to_owned());
                let reason = app.redactor.redact(&reason).into_owned();
                restored.failed.push(format!("changes of turn {}: {reason}", numbered.number));
            }
        }
    }
    let changes = restores(changes);
    if changes.is_empty() {
        return Ok(restored);
    }
    let is_bound = DaemonState::of(app).workspace().is_ok_and(|bound| bound.to_string_lossy() == open.daemon.workspace);
    for (number, file) in changes.into_iter().enumerate() {
        let path = clip(&file.path, LISTED_CHARS_MAX);
        let is_wanted = is_bound && number < RESTORED_FILES_MAX && lock.extend(app).await?;
        let is_restored = is_wanted && restore_file(app, file).await;
        let list = if is_restored { &mut restored.changed } else { &mut restored.failed };
        if list.len() < LISTED_MAX {
            list.push(path);
        }
    }
    Ok(restored)
}

/// False: the file is left as it is.
async fn restore_file(app: &App, file: FileRestore<StoredFile>) -> bool {
    let is_file = |stored: &Option<StoredFile>| stored.as_ref().is_none_or(StoredFile::is_file);
    if file.is_interrupted || !is_file(&file.before) || !is_file(&file.after) {
        return false;
    }
    let Some((before, after)) = past(file.before).await.zip(past(file.after).await) else { return false };
    let restored = async {
        let workspace = Workspace::open(app)?;
        workspace.restore(&workspace.path(&file.path)?, before, after).await
    };
    restored.await.inspect_err(|failure| tracing::info!(%failure, "a file was not restored")).is_ok()
}

/// `None` if the content is too large, or no longer stored.
async fn past(stored: Option<StoredFile>) -> Option<PastFile> {
    let Some(stored) = stored else { return Some(None) };
    let bytes = stored.content(FILE_WRITE_BYTES_MAX).await?;
    Some(Some(PastContent { bytes, is_executable: stored.is_executable() }))
}
