//! The listener's TLS.

use std::path::PathBuf;

use ostler_protocol::{Failure, Rule};

use super::Config;

impl Config {
    /// How the listener is reached.
    pub fn scheme(&self) -> &'static str {
        if self.server.tls_cert.is_some() { "https" } else { "http" }
    }

    /// Certificate and key of the listener's TLS, if it speaks TLS. One without the other is a mistake.
    pub fn tls_files(&self) -> Result<Option<(&PathBuf, &PathBuf)>, Failure> {
        match (&self.server.tls_cert, &self.server.tls_key) {
            (Some(cert), Some(key)) => Ok(Some((cert, key))),
            (None, None) => Ok(None),
            _ => Err(Failure::invalid(Rule::Config, "server.tls_cert and server.tls_key go together")),
        }
    }
}
