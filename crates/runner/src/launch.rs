//! What a launcher passes to a runner process: one line on its standard input. Arguments and environment are visible to
//! other processes or inherited by the backend; a pipe is neither. The launcher keeps the pipe open for as long as it
//! lives.

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};

use crate::runner::RunnerOrder;

/// A longer line is rejected.
pub const LAUNCH_BYTES_MAX: u64 = 64 * 1024;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Launch {
    pub order: RunnerOrder,
    /// The server's base URL.
    pub server: String,
    #[serde(serialize_with = "expose_token")]
    pub token: SecretString,
    /// The certificate of the server's listener, in DER. `None` without TLS. The runner trusts no other one.
    #[serde(default)]
    pub certificate: Option<Vec<u8>>,
    /// Continue when the pipe closes, because the server may stop and come back.
    pub outlive_server: bool,
}

/// The token is serialised in clear: the reader of the pipe is the runner that it is for.
fn expose_token<S: Serializer>(token: &SecretString, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(token.expose_secret())
}
