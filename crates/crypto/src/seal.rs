//! Sealing: a secret at rest, readable only with the key and only under the name that it was sealed for. AES-256-GCM with a
//! random nonce; a key seals far fewer than the 2^32 texts up to which random nonces are safe.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use zeroize::Zeroizing;

pub const KEY_BYTES: usize = 32;
pub const NONCE_BYTES: usize = NONCE_LEN;

pub struct SealingKey(LessSafeKey);

impl SealingKey {
    /// `None` if the key has another length.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        UnboundKey::new(&AES_256_GCM, bytes).ok().map(|key| Self(LessSafeKey::new(key)))
    }

    /// Seals a text. Returns the nonce followed by the ciphertext. The nonce must be random and must not be used again.
    #[expect(clippy::expect_used, reason = "only a text of more than 64 GiB is too long")]
    pub fn seal(&self, nonce: [u8; NONCE_BYTES], name: &[u8], text: &[u8]) -> Vec<u8> {
        let mut hidden = text.to_vec();
        let sealed = self.0.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(name), &mut hidden);
        sealed.expect("a text of any length we hold in memory can be sealed");
        [&nonce[..], &hidden].concat()
    }

    /// Opens a sealed text. `None` if it was changed, cut, or sealed with another key or for another name.
    pub fn open(&self, name: &[u8], sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let (nonce, hidden) = sealed.split_first_chunk::<NONCE_BYTES>()?;
        let mut text = Zeroizing::new(hidden.to_vec());
        let opened = self.0.open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::from(name), &mut text).ok()?.len();
        text.truncate(opened);
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> SealingKey {
        SealingKey::new(&[byte; KEY_BYTES]).unwrap()
    }

    #[test]
    fn a_sealed_text_opens_with_the_same_key_and_name_only() {
        let sealed = key(1).seal([7; NONCE_BYTES], b"codex", b"a secret");
        assert_eq!(key(1).open(b"codex", &sealed), Some(b"a secret".to_vec().into()));
        assert_eq!(key(2).open(b"codex", &sealed), None);
        assert_eq!(key(1).open(b"deepseek", &sealed), None);
        assert!(!sealed.windows(6).any(|part| part == b"secret"));
        assert!(SealingKey::new(&[1; 31]).is_none());
    }

    #[test]
    fn a_single_changed_or_missing_byte_is_detected() {
        let sealed = key(1).seal([7; NONCE_BYTES], b"codex", b"a secret");
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(key(1).open(b"codex", &changed), None, "byte {at}");
            assert_eq!(key(1).open(b"codex", &sealed[..at]), None, "cut at {at}");
        }
    }
}
