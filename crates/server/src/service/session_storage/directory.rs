//! Storage as directories of the server's machine.

use futures_util::future::{BoxFuture, FutureExt, ready};
use ostler_protocol::{
    Failure,
    ids::SessionId,
    kernel::session_storage::{StorageKind, StoragePlace},
};

use super::driver::StorageDriver;
use crate::{app::App, directories};

/// The directories of a server.
pub(super) struct DirectoryDriver<'a>(pub &'a App);

impl StorageDriver for DirectoryDriver<'_> {
    fn kind(&self) -> StorageKind {
        StorageKind::Local
    }

    fn place(&self, _: SessionId) -> StoragePlace {
        StoragePlace::Directory
    }

    fn make<'a>(&'a self, session: SessionId, _: &'a StoragePlace) -> BoxFuture<'a, Result<(), Failure>> {
        let made = directories::session_storage(self.0, session).and_then(|path| directories::make(&path));
        ready(made).boxed()
    }

    fn is_known(&self, session: SessionId) -> bool {
        directories::session_storage(self.0, session).is_ok_and(|path| path.is_dir())
    }

    fn is_absent<'a>(&'a self, session: SessionId, _: &'a StoragePlace) -> BoxFuture<'a, Result<bool, Failure>> {
        ready(directories::session_storage(self.0, session).map(|path| !path.is_dir())).boxed()
    }

    fn remove<'a>(&'a self, session: SessionId, _: &'a StoragePlace) -> BoxFuture<'a, Result<(), Failure>> {
        async move { directories::clear(directories::session_storage(self.0, session)?).await }.boxed()
    }

    fn list(&self) -> Result<Vec<(SessionId, StoragePlace)>, Failure> {
        let Ok(entries) = std::fs::read_dir(directories::all_session_storage(self.0)?) else { return Ok(vec![]) };
        let named = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<SessionId>().ok());
        Ok(named.map(|session| (session, StoragePlace::Directory)).collect())
    }

    /// Nothing else writes to the data directory.
    fn owns_unknown(&self) -> bool {
        true
    }

    fn phase(&self, _: SessionId) -> Option<String> {
        None
    }
}
