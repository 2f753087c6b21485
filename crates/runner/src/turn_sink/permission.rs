//! A permission request that waits for its decision.

use ostler_protocol::{
    ids::PermissionId,
    kernel::permissions::{AskPermission, EditableArguments, PermissionRequest, PermissionStatus},
};
use serde_json::Value;
use tokio::{
    sync::oneshot,
    time::{Duration, timeout},
};

/// A permission request on its way to the server.
pub struct PendingPermission {
    pub permission_id: PermissionId,
    digest: String,
    editable: Option<EditableArguments>,
    /// `None` if the request was malformed, which counts as denied.
    resolved: Option<oneshot::Receiver<PermissionRequest>>,
    wait_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PermissionDecision {
    Allowed {
        option_id: Option<String>,
        /// Arguments that replace those of the request.
        edited: Option<Value>,
    },
    Denied {
        option_id: Option<String>,
    },
    /// The request expired, or is no longer needed.
    Cancelled,
}

impl PendingPermission {
    pub(super) fn new(
        ask: &AskPermission,
        resolved: Option<oneshot::Receiver<PermissionRequest>>,
        wait_ms: u64,
    ) -> Self {
        let AskPermission { permission_id, digest, editable, .. } = ask.clone();
        Self { permission_id, digest, editable, resolved, wait_ms }
    }

    /// Waits for the decision. A decision that does not name exactly this request and digest counts as a denial, and so does
    /// one with edits that were not offered, do not fit, or are not what their digest names.
    pub async fn decision(self) -> PermissionDecision {
        let Some(resolved) = self.resolved else { return PermissionDecision::Denied { option_id: None } };
        let Ok(Ok(resolved)) = timeout(Duration::from_millis(self.wait_ms), resolved).await else {
            return PermissionDecision::Cancelled;
        };
        let same = resolved.permission_id == self.permission_id && resolved.digest.eq_ignore_ascii_case(&self.digest);
        match resolved.status {
            PermissionStatus::Allowed if same => match (resolved.edited, self.editable) {
                (None, _) => PermissionDecision::Allowed { option_id: resolved.option_id, edited: None },
                (Some(edited), Some(editable))
                    if edited.is_sound() && editable.edit(edited.arguments.clone()).is_ok() =>
                {
                    PermissionDecision::Allowed { option_id: resolved.option_id, edited: Some(edited.arguments) }
                }
                _ => PermissionDecision::Denied { option_id: None },
            },
            PermissionStatus::Cancelled => PermissionDecision::Cancelled,
            PermissionStatus::Denied if same => PermissionDecision::Denied { option_id: resolved.option_id },
            _ => PermissionDecision::Denied { option_id: None },
        }
    }
}
