//! Message authentication: proof that the holder of the key wrote a text. HMAC with SHA-256; tags are compared in constant
//! time.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use ring::hmac::{self, HMAC_SHA256};

pub const SECRET_BYTES_MIN: usize = 32;

pub struct MacKey(hmac::Key);

impl MacKey {
    pub fn new(bytes: &[u8]) -> Self {
        Self(hmac::Key::new(HMAC_SHA256, bytes))
    }

    /// Derives a key for one purpose from a key that serves several.
    pub fn derived(bytes: &[u8], purpose: &str) -> Self {
        Self::new(hmac::sign(&Self::new(bytes).0, purpose.as_bytes()).as_ref())
    }

    /// Parses a shared secret, which is written as base64. The key is the decoded bytes, not the text. `None` if it is not
    /// base64, or too short to be a secret.
    pub fn from_base64(text: &str) -> Option<Self> {
        let bytes = BASE64.decode(text).ok().filter(|bytes| bytes.len() >= SECRET_BYTES_MIN)?;
        Some(Self::new(&bytes))
    }

    /// Signs the bytes as they are.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        hmac::sign(&self.0, message).as_ref().to_vec()
    }

    pub fn verifies(&self, message: &[u8], tag: &[u8]) -> bool {
        hmac::verify(&self.0, message, tag).is_ok()
    }

    /// Signs the parts in order, with their lengths, so that no other parts have the same tag.
    pub fn tag(&self, parts: &[&[u8]]) -> Vec<u8> {
        self.sign(&joined(parts))
    }

    pub fn verify(&self, parts: &[&[u8]], tag: &[u8]) -> bool {
        self.verifies(&joined(parts), tag)
    }
}

/// The text of a new shared secret.
pub fn secret_text(random: &[u8; SECRET_BYTES_MIN]) -> String {
    BASE64.encode(random)
}

fn joined(parts: &[&[u8]]) -> Vec<u8> {
    parts.iter().flat_map(|part| [&(part.len() as u64).to_be_bytes()[..], part].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn a_tag_verifies_with_its_parts_and_key_only() {
        let key = MacKey::new(b"key");
        let tag = key.tag(&[b"ab", b"c"]);
        assert!(key.verify(&[b"ab", b"c"], &tag));
        assert!(!key.verify(&[b"a", b"bc"], &tag) && !key.verify(&[b"abc"], &tag));
        assert!(!MacKey::new(b"other").verify(&[b"ab", b"c"], &tag));
        assert!(!MacKey::derived(b"key", "purpose").verify(&[b"ab", b"c"], &tag));
        for at in 0..tag.len() {
            let mut changed = tag.clone();
            changed[at] ^= 1;
            assert!(!key.verify(&[b"ab", b"c"], &changed) && !key.verify(&[b"ab", b"c"], &tag[..at]));
        }
    }

    /// RFC 4231, test cases 2 and 6.
    #[test]
    fn tags_are_hmac_sha_256() {
        let short = MacKey::new(b"Jefe").sign(b"what do ya want for nothing?");
        assert_eq!(hex(&short), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        let long = MacKey::from_base64(&BASE64.encode([0xaa; 131])).unwrap();
        let long = long.sign(b"Test Using Larger Than Block-Size Key - Hash Key First");
        assert_eq!(hex(&long), "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    }

    #[test]
    fn a_shared_secret_is_base64_of_at_least_32_bytes() {
        assert!(MacKey::from_base64(&secret_text(&[7; 32])).is_some());
        assert!(MacKey::from_base64(&BASE64.encode([1; 31])).is_none());
        assert!(MacKey::from_base64("not base64!").is_none());
    }
}
