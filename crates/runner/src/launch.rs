//! What a launcher tells a runner process: one line on its standard input. Arguments and environment are visible to
//! others, or handed down to the agent; a pipe is neither. The launcher keeps the pipe open for as long as it lives.

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};

use crate::RunnerOrder;

/// A longer line is no order.
pub const LAUNCH_BYTES_MAX: u64 = 64 * 1024;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Launch {
    pub order: RunnerOrder,
    /// Where the server answers.
    pub server: String,
    #[serde(serialize_with = "exposed")]
    pub token: SecretString,
    /// Go on when the pipe closes, because the server may stop and come back.
    pub outlive_server: bool,
}

/// The pipe's other end is the one that the token is for.
fn exposed<S: Serializer>(token: &SecretString, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(token.expose_secret())
}
