//! The mesh's part of the readiness response.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whether identities can connect to this server's gateway.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MeshReadiness {
    pub open: bool,
    pub domain: String,
    /// Why not, if not.
    pub reason: Option<String>,
}
