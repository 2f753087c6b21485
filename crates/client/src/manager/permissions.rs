//! Permission requests of backends, and the decisions on them.

use ostler_protocol::{
    Failure,
    kernel::permissions::{AnswerPermission, PermissionList, PermissionRequest},
};

use crate::{client::Client, path::Path};

impl Client {
    pub async fn list_permissions(&self, run_id: &str) -> Result<PermissionList, Failure> {
        self.get(Path::api(&["runs", run_id, "permissions"])).await
    }

    /// Decides a request, once. The digest must be the request's, so that a user decides only on what was displayed.
    pub async fn answer_permission(
        &self,
        run_id: &str,
        permission_id: &str,
        answer: &AnswerPermission,
    ) -> Result<PermissionRequest, Failure> {
        self.post(Path::api(&["runs", run_id, "permissions", permission_id, "answer"]), answer).await
    }
}
