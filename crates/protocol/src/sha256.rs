//! SHA-256, by `ring`: on processors without instructions for it, its code takes a third of the time of portable code.

use ring::digest::{Context, SHA256, digest};

/// A SHA-256 digest.
pub type Hash = [u8; 32];

pub fn sha256(bytes: impl AsRef<[u8]>) -> Hash {
    hash_of(&digest(&SHA256, bytes.as_ref()))
}

/// The digest of bytes that come in parts.
#[derive(Clone)]
pub struct Sha256Stream(Context);

impl Default for Sha256Stream {
    fn default() -> Self {
        Self(Context::new(&SHA256))
    }
}

impl Sha256Stream {
    pub fn update(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.update(bytes.as_ref());
    }

    pub fn finish(self) -> Hash {
        hash_of(&self.0.finish())
    }
}

fn hash_of(digest: &ring::digest::Digest) -> Hash {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest.as_ref());
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::hex;

    #[test]
    fn digests_are_those_of_the_standard_also_in_parts() {
        assert_eq!(hex(&sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        let mut stream = Sha256Stream::default();
        stream.update("a");
        stream.update(b"bc");
        assert_eq!(stream.finish(), sha256("abc"));
        assert_eq!(hex(&sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
