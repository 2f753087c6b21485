//! Tokens of our own making: a prefix that says what they are, and 256 random bits. Only the hash of one is ever kept,
//! but for the operator's, which lies in the data directory for its owner alone.

use std::{
    io::Write,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use ostler_protocol::{Failure, FailureKind};
use secrecy::{ExposeSecret, SecretString};

use crate::clock;

/// What every token of ours begins with.
pub const PREFIX: &str = "ost_";
/// The kinds of token, as they follow the prefix: a service's, and a runner's for one run.
pub const SERVICE: &str = "svc";
pub const RUN: &str = "run";
const OPERATOR: &str = "op";

pub fn token_hash(token: &str) -> String {
    ostler_protocol::json::hex(&ostler_crypto::sha256(token.as_bytes()))
}

/// A new token: a prefix that names its kind, and 256 random bits.
pub fn mint(kind: &str) -> SecretString {
    let mut random = [0; 32];
    clock::fill(&mut random);
    SecretString::from(format!("{PREFIX}{kind}_{}", ostler_protocol::json::hex(&random)))
}

/// The operator's token: made on the first start, readable by the owner only.
pub fn operator_token(data_dir: &Path) -> Result<(SecretString, PathBuf), Failure> {
    let path = data_dir.join("token");
    match std::fs::read_to_string(&path) {
        Ok(text) if text.trim().len() >= 32 => {
            let mode = std::fs::metadata(&path).map_err(Failure::internal)?.permissions().mode();
            if mode & 0o077 != 0 {
                let message = format!("{} can be read by others; run: chmod 600 {0}", path.display());
                return Err(Failure::rule(FailureKind::InfraFailed, "token-file-mode", message));
            }
            return Ok((SecretString::from(text.trim().to_owned()), path));
        }
        Ok(_) => {
            let message = format!("{} does not hold a token; remove it to have one made", path.display());
            return Err(Failure::rule(FailureKind::InfraFailed, "token-file", message));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => {
            return Err(Failure::rule(FailureKind::InfraFailed, "token-file", format!("{}: {error}", path.display())));
        }
    }
    let token = mint(OPERATOR);
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .map_err(|e| Failure::rule(FailureKind::InfraFailed, "token-file", format!("{}: {e}", path.display())))?;
    let written = writeln!(file, "{}", token.expose_secret()).and_then(|()| file.sync_all());
    written.map_err(|e| Failure::rule(FailureKind::InfraFailed, "token-file", format!("{}: {e}", path.display())))?;
    Ok((token, path))
}
