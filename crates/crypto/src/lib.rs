//! Bytes in, bytes out: digests, comparisons that tell an attacker nothing, signed tokens, and secrets sealed for the disk.
//! No clock, no randomness, no I/O; identity keys and certificates join it with the mesh.

pub mod jwk;
pub mod jws;
pub mod seal;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Compares secrets in constant time.
pub fn equal(a: &[u8], b: &[u8]) -> bool {
    a.ct_eq(b).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_means_every_byte() {
        assert!(equal(b"token", b"token"));
        assert!(!equal(b"token", b"tokem") && !equal(b"token", b"toke"));
    }
}
