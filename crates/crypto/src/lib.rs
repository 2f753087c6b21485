//! Bytes in, bytes out: digests, constant-time comparisons, signed tokens and secrets sealed for the disk; for the mesh
//! keys, certificates and their revocation, and messages encrypted end to end; encrypted files in the format of age.
//! No clock, no randomness, no I/O: callers pass them in.

pub mod age;
pub mod canonical;
pub mod certificates;
pub mod crl;
mod encoding;
pub mod envelope;
pub mod jwk;
pub mod jws;
pub mod keys;
pub mod mac;
pub mod ocsp;
pub mod prekeys;
pub mod proofs;
pub mod replay;
pub mod seal;
mod signed;
pub mod trust_list;

use subtle::ConstantTimeEq;

pub use zeroize::Zeroizing;

pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref());
    hash
}

/// Fills a buffer with cryptographically secure randomness.
pub type Fill<'a> = &'a mut dyn FnMut(&mut [u8]);

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Compares secrets in constant time.
pub fn equal(a: &[u8], b: &[u8]) -> bool {
    a.ct_eq(b).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_compares_every_byte() {
        assert!(equal(b"token", b"token"));
        assert!(!equal(b"token", b"tokem") && !equal(b"token", b"toke"));
    }
}
