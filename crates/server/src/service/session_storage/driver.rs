//! What every kind of storage can do.

use futures_util::future::BoxFuture;
use ostler_protocol::{
    Failure,
    ids::SessionId,
    kernel::session_storage::{StorageKind, StoragePlace},
};

/// Makes, finds and deletes storage. Every call can be repeated, by this server or another one.
pub(crate) trait StorageDriver: Send + Sync {
    fn kind(&self) -> StorageKind;

    /// Where new storage of a session is made.
    fn place(&self, session: SessionId) -> StoragePlace;

    /// Makes the storage, unless it exists. A cluster that does not respond makes it when a runner first needs it.
    fn make<'a>(&'a self, session: SessionId, place: &'a StoragePlace) -> BoxFuture<'a, Result<(), Failure>>;

    /// Whether the storage is known to exist, without a call.
    fn is_known(&self, session: SessionId) -> bool;

    /// Whether the storage does not exist. False if that cannot be found out now.
    fn is_absent<'a>(&'a self, session: SessionId, place: &'a StoragePlace) -> BoxFuture<'a, Result<bool, Failure>>;

    /// Deletes the storage with all that is in it. Succeeds if there is none.
    fn remove<'a>(&'a self, session: SessionId, place: &'a StoragePlace) -> BoxFuture<'a, Result<(), Failure>>;

    /// All storage that this server sees.
    fn list(&self) -> Result<Vec<(SessionId, StoragePlace)>, Failure>;

    /// Whether storage of a session that the store has never had belongs to this installation all the same.
    fn owns_unknown(&self) -> bool;

    /// The cluster's word for the state of the storage. `None` if there is no such word.
    fn phase(&self, session: SessionId) -> Option<String>;
}
