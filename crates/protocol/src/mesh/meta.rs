//! The metadata of a gateway and of a connection.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Aid;

/// A method without parameters. Parameters that are sent are ignored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NoParams {}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PingResult {
    pub pong: bool,
    /// Milliseconds.
    pub timestamp: i64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StatusResult {
    /// `gateway`.
    pub mode: String,
    #[schema(value_type = String)]
    pub aid: Aid,
    pub role: String,
    /// Milliseconds.
    pub connected_at: i64,
    pub protocol_version: String,
}

/// The signed list of trusted roots, as it was signed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TrustRootsResult {
    pub version: u64,
    pub issued_at: String,
    pub next_update: String,
    /// By the authority whose key clients have pinned.
    pub authority_signature: String,
    #[schema(value_type = Vec<Object>)]
    pub root_cas: Vec<serde_json::Value>,
}
