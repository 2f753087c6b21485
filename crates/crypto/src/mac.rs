//! Message authentication: proof that a text was written by whoever holds the key. HMAC with SHA-256.

use ring::hmac::{self, HMAC_SHA256};

pub struct MacKey(hmac::Key);

impl MacKey {
    pub fn new(bytes: &[u8]) -> Self {
        Self(hmac::Key::new(HMAC_SHA256, bytes))
    }

    /// A key for one purpose, made from one that serves several.
    pub fn derived(bytes: &[u8], purpose: &str) -> Self {
        Self::new(hmac::sign(&Self::new(bytes).0, purpose.as_bytes()).as_ref())
    }

    /// Over the parts in their order, told apart: no other parts have the same tag.
    pub fn tag(&self, parts: &[&[u8]]) -> Vec<u8> {
        hmac::sign(&self.0, &joined(parts)).as_ref().to_vec()
    }

    /// In constant time.
    pub fn verify(&self, parts: &[&[u8]], tag: &[u8]) -> bool {
        hmac::verify(&self.0, &joined(parts), tag).is_ok()
    }
}

fn joined(parts: &[&[u8]]) -> Vec<u8> {
    parts.iter().flat_map(|part| [&(part.len() as u64).to_be_bytes()[..], part].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_good_for_its_parts_and_its_key_only() {
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

    /// RFC 4231, test case 2, over one part whose length stands before it.
    #[test]
    fn it_is_hmac_sha_256() {
        let text = b"what do ya want for nothing?";
        let tag = hmac::sign(&MacKey::new(b"Jefe").0, text);
        let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }
}
