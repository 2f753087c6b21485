//! Checks out a repository as the workspace, where the workspace is the runner's to make: in a pod, which has a new one each time.

use std::path::Path;

use ostler_protocol::{Failure, Rule, kernel::workspaces::WorkspaceRef};
use tokio::time::{Duration, timeout};

use super::{BundleOrder, FETCH_TIMEOUTS};

impl BundleOrder {
    /// Checks out the commit into the workspace, which must be empty, as a repository with this one commit. Neither the fetched
    /// repository nor its credential is left.
    pub(crate) async fn check_out(&self, workspace: &Path) -> Result<(), Failure> {
        let WorkspaceRef::Git(source) = WorkspaceRef::read(&self.reference)? else {
            return Err(Failure::internal("the workspace of the run is no repository"));
        };
        // A runner that was killed may have left a part of it, or an agent its work.
        if std::fs::read_dir(workspace).map_err(Failure::internal)?.next().is_some() {
            return Err(Failure::rule(
                Rule::WorkspaceGit,
                "the workspace is not empty, so nothing is checked out there",
            ));
        }
        let directory = self.make_directory("checkout").map_err(Failure::internal)?;
        let limit = Duration::from_millis(self.timeout_ms).saturating_mul(FETCH_TIMEOUTS);
        let fetched = timeout(limit, self.fetch(&source, &directory, workspace, None)).await.unwrap_or_else(|_| {
            Err(Failure::rule(Rule::WorkspaceGit, "fetching the repository of the workspace took too long"))
        });
        let removed = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(directory)).await;
        if let Err(error) = removed.map_err(std::io::Error::other).flatten() {
            tracing::warn!(%error, "the fetched repository of a workspace could not be deleted");
        }
        fetched
    }
}
