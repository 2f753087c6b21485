//! Recipients (`age1…`) and identities (`AGE-SECRET-KEY-1…`): X25519 keys, written in Bech32.

use std::{fmt, str::FromStr};

use bech32::{Bech32, Hrp, primitives::decode::CheckedHrpstring};
use curve25519_dalek::MontgomeryPoint;
use zeroize::Zeroizing;

use crate::Fill;

const RECIPIENT: &str = "age";
const IDENTITY: &str = "age-secret-key-";

/// A public key that files are encrypted to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AgeRecipient(pub(super) [u8; 32]);

/// The private key of a recipient.
pub struct AgeIdentity(Zeroizing<[u8; 32]>);

impl AgeIdentity {
    pub fn generate(fill: Fill<'_>) -> Self {
        let mut secret = Zeroizing::new([0; 32]);
        fill(&mut secret[..]);
        Self(secret)
    }

    pub fn recipient(&self) -> AgeRecipient {
        AgeRecipient(MontgomeryPoint::mul_base_clamped(*self.0).to_bytes())
    }

    /// The secret that this key shares with another public key. `None` if that key is of low order: then it is no secret.
    pub(super) fn shared_secret(&self, other: &[u8; 32]) -> Option<Zeroizing<[u8; 32]>> {
        let shared = Zeroizing::new(MontgomeryPoint(*other).mul_clamped(*self.0).to_bytes());
        (!crate::equal(&shared[..], &[0; 32])).then_some(shared)
    }

    /// The text of an identity file.
    pub fn to_text(&self) -> Zeroizing<String> {
        Zeroizing::new(encode(IDENTITY, &self.0).to_ascii_uppercase())
    }
}

impl FromStr for AgeRecipient {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        // The tools of age write recipients in small letters only.
        let is_lower = !text.bytes().any(|byte| byte.is_ascii_uppercase());
        decode(RECIPIENT, text).filter(|_| is_lower).map(Self).ok_or(())
    }
}

impl FromStr for AgeIdentity {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let is_upper = !text.bytes().any(|byte| byte.is_ascii_lowercase());
        decode(IDENTITY, text).filter(|_| is_upper).map(|secret| Self(Zeroizing::new(secret))).ok_or(())
    }
}

impl fmt::Display for AgeRecipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&encode(RECIPIENT, &self.0))
    }
}

fn encode(prefix: &str, bytes: &[u8; 32]) -> String {
    let encoded = Hrp::parse(prefix).ok().and_then(|prefix| bech32::encode::<Bech32>(prefix, bytes).ok());
    encoded.unwrap_or_default()
}

fn decode(prefix: &str, text: &str) -> Option<[u8; 32]> {
    let checked = CheckedHrpstring::new::<Bech32>(text).ok()?;
    let fits = checked.hrp().as_str().eq_ignore_ascii_case(prefix);
    let bytes = Zeroizing::new(checked.byte_iter().collect::<Vec<_>>());
    if fits { bytes.as_slice().try_into().ok() } else { None }
}
