//! Permission requests: what agents ask, and the answers.

use ostler_protocol::{
    Failure,
    permissions::{AnswerPermission, PermissionList, PermissionRequest},
};

use crate::{Client, path::Path};

impl Client {
    pub async fn list_permissions(&self, run_id: &str) -> Result<PermissionList, Failure> {
        self.get(Path::api(&["runs", run_id, "permissions"])).await
    }

    /// Answers once; the digest must be that of the request, so that nobody answers to something they have not seen.
    pub async fn answer_permission(
        &self,
        run_id: &str,
        permission_id: &str,
        answer: &AnswerPermission,
    ) -> Result<PermissionRequest, Failure> {
        self.post(Path::api(&["runs", run_id, "permissions", permission_id, "answer"]), answer).await
    }
}
