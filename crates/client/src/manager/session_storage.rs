//! Session storage: read what is known of it, report it, evict it, and sweep what has expired.

use http::Method;
use ostler_protocol::{
    Failure,
    session_storage::{RefreshStorage, SessionStorageView, StorageQuery, SweepStorage, SweptStorage},
};

use crate::{Client, answer, path::Path};

impl Client {
    pub async fn session_storage(&self, session_id: &str, query: &StorageQuery) -> Result<SessionStorageView, Failure> {
        self.get(Path::api(&["sessions", session_id, "storage"]).query(query)?).await
    }

    /// For good: the session takes no run any more.
    pub async fn delete_session_storage(
        &self,
        session_id: &str,
        query: &StorageQuery,
    ) -> Result<SessionStorageView, Failure> {
        let path = Path::api(&["sessions", session_id, "storage"]).query(query)?;
        answer::parse(&self.call(Method::DELETE, path, Default::default()).await?)
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
