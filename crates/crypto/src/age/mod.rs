//! The file format of age, version 1 (`age-encryption.org/v1`): a stream encrypted to X25519 recipients or to a passphrase.
//! Any tool that implements the format can decrypt the output. Plug-ins, SSH keys and ASCII armour are not supported.
//!
//! The format is implemented here because the crate `age` brings a stack of translations that nothing here needs.

mod header;
mod keys;
mod stream;

pub use header::Unlock;
pub use keys::{AgeIdentity, AgeRecipient};
pub use stream::{AgeDecryptor, AgeEncryptor};

use zeroize::Zeroizing;

/// The first bytes of every encrypted file.
pub const MAGIC: &[u8] = b"age-encryption.org/v1\n";
/// The base-2 logarithm of scrypt's cost when a passphrase is set: 256 MiB and about a second.
const WORK: u8 = 18;
/// Files that cost more are rejected, because the file chooses the cost: 4 GiB and about a quarter of a minute.
const WORK_MAX: u8 = 22;

/// What opens the file.
pub enum Lock {
    Recipients(Vec<AgeRecipient>),
    Passphrase(Zeroizing<String>),
}

#[derive(Debug, PartialEq)]
pub enum AgeError {
    /// The file is not in this format, or is damaged.
    Malformed,
    /// None of the identities, or not this passphrase, opens the file.
    WrongKey,
    /// The file is encrypted to a passphrase, and an identity was given.
    NeedsPassphrase,
    /// The file is encrypted to recipients, and a passphrase was given.
    NeedsIdentity,
    /// The passphrase's cost is higher than this program accepts.
    TooCostly,
    Io(std::io::ErrorKind),
}

impl std::fmt::Display for AgeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Malformed => f.write_str("the file is damaged, or is not an age file"),
            Self::WrongKey => f.write_str("the passphrase or identity does not open the file"),
            Self::NeedsPassphrase => f.write_str("the file is encrypted to a passphrase"),
            Self::NeedsIdentity => f.write_str("the file is encrypted to recipients and needs an identity"),
            Self::TooCostly => f.write_str("the file's passphrase would take too much memory to check"),
            Self::Io(kind) => write!(f, "{kind}"),
        }
    }
}

impl std::error::Error for AgeError {}

impl From<std::io::Error> for AgeError {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::UnexpectedEof => Self::Malformed,
            kind => Self::Io(kind),
        }
    }
}

#[cfg(test)]
mod tests;
