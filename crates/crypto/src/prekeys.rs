//! Prekeys: keys that a recipient uploads to the server in advance, signed by its identity key, so that a sender can seal
//! messages for it while it is offline. Senders keep using old ones for a while, so their private halves are retained.

use serde::{Deserialize, Serialize};

use crate::{
    certificates::Peer,
    envelope::EnvelopeIdentity,
    keys::{Curve, PrivateKey, PublicKey},
};

/// A sender rejects an older one.
pub const PREKEY_DAYS_MAX: i64 = 30;
/// Private halves are retained at least this long.
pub const PREKEY_KEPT_DAYS: i64 = 7;
/// At least this many of the newest private halves are retained.
pub const PREKEYS_KEPT: usize = 7;
const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// A prekey as uploaded and downloaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prekey {
    pub prekey_id: String,
    pub public_key: String,
    pub signature: String,
    /// Milliseconds.
    pub created_at: i64,
    /// Fingerprint of the certificate whose key signed it.
    pub cert_fingerprint: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub device_id: String,
}

impl Prekey {
    /// Signs the public half of a new key.
    pub fn sign(owner: &EnvelopeIdentity, prekey_id: &str, key: &PrivateKey, created_at: i64, device_id: &str) -> Self {
        let public_key = key.public_key().to_base64();
        Self {
            signature: owner.key().sign_base64(signed_text(prekey_id, &public_key, created_at).as_bytes()),
            prekey_id: prekey_id.to_owned(),
            public_key,
            created_at,
            cert_fingerprint: owner.fingerprint().to_owned(),
            device_id: device_id.to_owned(),
        }
    }

    /// The key to seal with. `None` if the owner did not sign it, or signed it with another certificate.
    pub fn verify(&self, owner: &Peer) -> Option<PublicKey> {
        let certificate = owner.certificate();
        let text = signed_text(&self.prekey_id, &self.public_key, self.created_at);
        let signed = certificate.public_key().verifies_base64(text.as_bytes(), &self.signature);
        let key = PublicKey::from_base64(&self.public_key)?;
        let fits = self.cert_fingerprint == certificate.fingerprint() && key.curve() == Curve::P256;
        (signed && fits).then_some(key)
    }

    /// Whether a sender may use it: it is neither too old nor from the future.
    pub fn is_fresh(&self, now_ms: i64) -> bool {
        let age = now_ms.saturating_sub(self.created_at);
        (-crate::replay::WINDOW_MS..=PREKEY_DAYS_MAX * DAY_MS).contains(&age)
    }
}

fn signed_text(prekey_id: &str, public_key: &str, created_at: i64) -> String {
    format!("{prekey_id}|{public_key}|{created_at}")
}

/// The indices of private halves that may be deleted, given their creation times: those that are neither recent nor among
/// the newest.
pub fn outdated(created_at_ms: &[i64], now_ms: i64) -> Vec<usize> {
    let mut newest_first: Vec<usize> = (0..created_at_ms.len()).collect();
    newest_first.sort_by_key(|&index| std::cmp::Reverse(created_at_ms[index]));
    let old = |&index: &usize| now_ms.saturating_sub(created_at_ms[index]) > PREKEY_KEPT_DAYS * DAY_MS;
    newest_first.into_iter().skip(PREKEYS_KEPT).filter(old).collect()
}
