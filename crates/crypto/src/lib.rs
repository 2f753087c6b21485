//! Bytes in, bytes out: digests, comparisons that tell an attacker nothing, and signed tokens. No clock, no I/O; identity
//! keys, certificates and sealing join it with the mesh.

pub mod jwk;
pub mod jws;

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
