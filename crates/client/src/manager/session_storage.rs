//! Session storage: get its state, report it, evict it, and sweep expired storage.

use http::Method;
use ostler_protocol::{
    Failure,
    kernel::session_storage::{RefreshStorage, SessionStorageView, StorageQuery, SweepStorage, SweptStorage},
};

use crate::{client::Client, path::Path, response};

impl Client {
    pub async fn session_storage(&self, session_id: &str, query: &StorageQuery) -> Result<SessionStorageView, Failure> {
        self.get(Path::api(&["sessions", session_id, "storage"]).query(query)?).await
    }

    /// Deletes the storage permanently. The session then accepts no more runs.
    pub async fn delete_session_storage(
        &self,
        session_id: &str,
        query: &StorageQuery,
    ) -> Result<SessionStorageView, Failure> {
        let path = Path::api(&["sessions", session_id, "storage"]).query(query)?;
        response::parse(&self.call(Method::DELETE, path, Default::default()).await?)
    }

    /// A runner's report.
    pub async fn refresh_session_storage(
        &self,
        session_id: &str,
        found: &RefreshStorage,
    ) -> Result<SessionStorageView, Failure> {
        self.post(Path::api(&["sessions", session_id, "storage", "refresh"]), found).await
    }

    pub async fn sweep_session_storage(&self, sweep: &SweepStorage) -> Result<SweptStorage, Failure> {
        self.post(Path::api(&["sessions", "storage", "gc"]), sweep).await
    }
}
