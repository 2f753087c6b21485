//! The files of the workspace that the server is bound to. [`Workspace`] is the only way in which this dialect reads and writes them:
//! nothing outside the workspace can be reached, whatever path a client sends and whatever links an agent creates.

mod configuration;
mod links;
mod read;
mod root;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
mod walk;
mod write;

use std::{path::PathBuf, sync::Arc};

use ostler_protocol::{
    Failure, Timestamp,
    daemon::files::{Edit, FileError, GlobPattern, TextWrite, WorkspacePath, file_failure, replace_once},
};
use ostler_server::{
    app::App,
    dialect::{Dialects, Location},
};
use tokio::sync::Semaphore;

pub(crate) use self::{
    configuration::WriteScope,
    read::{ByteWindow, Entries, EntryStat, TextFile},
    walk::Matches,
    write::{Expected, PastContent, PastFile, WrittenText},
};
use self::{
    links::ServerFiles,
    root::Root,
    walk::SearchBounds,
    write::{NewText, WriteLocks},
};
use crate::state::DaemonState;

/// How many reads and writes of files go on at once.
const CONCURRENT_FILES: usize = 16;
/// How many searches go on at once. They take longer than anything else.
const CONCURRENT_SEARCHES: usize = 2;
/// How long a search may take.
const SEARCH_MS_MAX: i64 = 5_000;

/// What all requests about files share.
pub(crate) struct FileSlots {
    files: Arc<Semaphore>,
    searches: Arc<Semaphore>,
    locks: Arc<WriteLocks>,
}

impl Default for FileSlots {
    fn default() -> Self {
        Self {
            files: Arc::new(Semaphore::new(CONCURRENT_FILES)),
            searches: Arc::new(Semaphore::new(CONCURRENT_SEARCHES)),
            locks: Arc::default(),
        }
    }
}

/// The workspace of this server.
pub(crate) struct Workspace {
    app: App,
    path: PathBuf,
}

impl Workspace {
    /// Fails if the server is bound to no workspace.
    pub(crate) fn open(app: &App) -> Result<Self, Failure> {
        let path = DaemonState::of(app).workspace()?.clone();
        Ok(Self { app: app.clone(), path })
    }

    /// Another directory of this server that is used in the same way, by its path without symbolic links.
    pub(crate) fn at(app: &App, path: PathBuf) -> Self {
        Self { app: app.clone(), path }
    }

    /// Reads the path of a request: relative to the workspace, or absolute and inside it.
    pub(crate) fn path(&self, text: &str) -> Result<WorkspacePath, Failure> {
        let root = self.path.to_str().ok_or_else(|| file_failure(FileError::Internal, "the workspace is not text"))?;
        WorkspacePath::parse(text, root)
    }

    /// Reads a whole text file of at most this size.
    pub(crate) async fn read_text(&self, path: &WorkspacePath, bytes_max: usize) -> Result<TextFile, Failure> {
        let path = path.clone();
        self.with_root(move |root, _| read::text(root, &path, bytes_max)).await
    }

    pub(crate) async fn read_bytes(
        &self,
        path: &WorkspacePath,
        offset: u64,
        count: usize,
    ) -> Result<ByteWindow, Failure> {
        let path = path.clone();
        self.with_root(move |root, _| read::bytes(root, &path, offset, count)).await
    }

    pub(crate) async fn stat(&self, path: &WorkspacePath) -> Result<EntryStat, Failure> {
        let path = path.clone();
        self.with_root(move |root, _| read::stat(root, &path)).await
    }

    pub(crate) async fn list(&self, path: &WorkspacePath) -> Result<Entries, Failure> {
        let path = path.clone();
        self.with_root(move |root, _| read::list(root, &path)).await
    }

    /// Finds paths below a directory.
    pub(crate) async fn glob(
        &self,
        start: &WorkspacePath,
        pattern: GlobPattern,
        results_max: usize,
    ) -> Result<Matches, Failure> {
        let (start, app) = (start.clone(), self.app.clone());
        let begun_at = app.now();
        let slots = self.slots().searches.clone();
        self.blocking(slots, WriteScope::Everything, move |root, _| {
            let is_late = || elapsed_ms(begun_at, app.now()) >= SEARCH_MS_MAX;
            walk::glob(root, &start, &pattern, &SearchBounds { results_max, is_late: &is_late })
        })
        .await
    }

    /// Writes a text file, whole or not at all. The bytes are the content as it is.
    pub(crate) async fn write_text_atomic(
        &self,
        path: &WorkspacePath,
        content: String,
        expected: Expected,
    ) -> Result<WrittenText, Failure> {
        self.write(path, content, (None, WriteScope::Everything), expected).await
    }

    /// As [`Workspace::write_text_atomic`], encoded as requested, or as the file that it replaces.
    pub(crate) async fn write_text(
        &self,
        path: &WorkspacePath,
        content: String,
        (write, scope): (TextWrite, WriteScope),
        expected: Expected,
    ) -> Result<WrittenText, Failure> {
        self.write(path, content, (Some(write), scope), expected).await
    }

    async fn write(
        &self,
        path: &WorkspacePath,
        content: String,
        (write, scope): (Option<TextWrite>, WriteScope),
        expected: Expected,
    ) -> Result<WrittenText, Failure> {
        let (path, temporary) = (path.clone(), self.temporary_name());
        self.blocking(self.slots().files.clone(), scope, move |root, locks| {
            let new = NewText { content: &content, write, expected: &expected, temporary: &temporary };
            write::text(root, locks, &path, &new)
        })
        .await
    }

    /// Replaces the only occurrence of a text in the file with this digest.
    pub(crate) async fn edit_text(
        &self,
        path: &WorkspacePath,
        (old_text, new_text): (String, String),
        hash: String,
        scope: WriteScope,
    ) -> Result<WrittenText, Failure> {
        let (path, temporary) = (path.clone(), self.temporary_name());
        self.blocking(self.slots().files.clone(), scope, move |root, locks| {
            let edit = Edit { old_text: &old_text, new_text: &new_text };
            write::edit(root, locks, &path, (&hash, &temporary), |text| replace_once(text, edit))
        })
        .await
    }

    /// Deletes a regular file. False if there is none.
    pub(crate) async fn remove_file(&self, path: &WorkspacePath) -> Result<bool, Failure> {
        let path = path.clone();
        self.with_root(move |root, locks| write::remove(root, locks, &path)).await
    }

    /// Makes a file what it was `before`, if it is what it was `after`.
    pub(crate) async fn restore(&self, path: &WorkspacePath, before: PastFile, after: PastFile) -> Result<(), Failure> {
        let (path, temporary) = (path.clone(), self.temporary_name());
        self.with_root(move |root, locks| write::restore(root, locks, &path, (&before, &after), &temporary)).await
    }

    /// Creates a directory and those above it, as far as they do not exist.
    pub(crate) async fn create_directories(&self, path: &WorkspacePath) -> Result<(), Failure> {
        let path = path.clone();
        self.with_root(move |root, _| root.create_directories(&path)).await
    }

    fn slots(&self) -> &FileSlots {
        self.app.state()
    }

    fn temporary_name(&self) -> String {
        format!(".ostler-{}.tmp", self.app.ids.body())
    }

    async fn with_root<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Root, &WriteLocks) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        self.blocking(self.slots().files.clone(), WriteScope::Everything, work).await
    }

    /// Does work on a thread that may block. It goes on to its end if the client hangs up, and counts until then.
    async fn blocking<T: Send + 'static>(
        &self,
        slots: Arc<Semaphore>,
        scope: WriteScope,
        work: impl FnOnce(&Root, &WriteLocks) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let permit = slots.acquire_owned().await.map_err(Failure::internal)?;
        let (path, locks) = (self.path.clone(), self.slots().locks.clone());
        let stored = self.app.state::<Dialects>().holdings().filter_map(|holding| match holding.location {
            Location::Path(name) => Some(name),
            Location::Table(_) => None,
        });
        let server_files = self.app.config.data_dir().ok().map(|data_dir| ServerFiles::new(data_dir, stored));
        let work = move || {
            let _permit = permit;
            work(&Root::open(&path)?.hiding(server_files).scoped(scope), &locks)
        };
        tokio::task::spawn_blocking(work).await.map_err(Failure::internal)?
    }
}

pub(crate) fn elapsed_ms(from: Timestamp, to: Timestamp) -> i64 {
    to.as_millisecond().saturating_sub(from.as_millisecond())
}
