//! An identity as it is stored between sessions: the root that it trusts, its keys, and the prekeys that senders may still
//! use. It serialises as one secret; the caller decides where to store it.

use ostler_crypto::{
    certificates::Certificate,
    envelope::EnvelopeIdentity,
    keys::{Curve, PrivateKey},
    prekeys::outdated,
};
use ostler_protocol::{
    Failure, Rule,
    mesh::{
        Aid,
        connections::{DeliveryMode, DeviceSlot},
    },
};
use serde::{Deserialize, Serialize};

use super::{
    ambient::Ambient,
    gateway::{GatewayClient, RegisterError},
    sealing::{IdentityKeys, OwnPrekey, Sealer},
};

/// Certificates of the same key that are stored, so that messages sealed for an earlier one can still be opened.
const CERTIFICATES_STORED: usize = 4;

#[derive(Serialize, Deserialize)]
pub struct StoredIdentity {
    pub aid: Aid,
    pub server: String,
    /// PEM.
    pub root: String,
    #[serde(with = "hidden_key")]
    key: PrivateKey,
    /// PEM, the newest first. Empty if the name is not registered yet.
    certificates: Vec<String>,
    device_id: String,
    prekeys: Vec<StoredPrekey>,
}

#[derive(Serialize, Deserialize)]
struct StoredPrekey {
    prekey_id: String,
    #[serde(with = "hidden_key")]
    key: PrivateKey,
    created_at: i64,
}

impl StoredIdentity {
    /// A new identity with a new key, whose name is not registered yet.
    pub fn new(aid: Aid, server: &str, root: String, ambient: Ambient) -> Self {
        let key = PrivateKey::generate(Curve::P256, &mut |bytes| (ambient.fill)(bytes));
        let server = server.to_owned();
        Self { aid, server, root, key, certificates: vec![], device_id: ambient.id(), prekeys: vec![] }
    }

    pub fn is_registered(&self) -> bool {
        !self.certificates.is_empty()
    }

    /// Registers the name; see [`StoredIdentity::adopt`]. Idempotent with the same key, so a caller that stores the key first
    /// loses nothing.
    pub async fn register(
        &self,
        gateway: &GatewayClient,
        invite: Option<String>,
    ) -> Result<Certificate, RegisterError> {
        let identity = gateway.register(&self.aid, &self.key, invite).await?;
        Ok(identity.certificate().clone())
    }

    /// The public key as the mesh sends it.
    pub fn public_key(&self) -> String {
        self.key.public_key().to_base64()
    }

    pub fn certificate(&self) -> Option<Certificate> {
        self.certificates.first().and_then(|pem| Certificate::from_pem(pem))
    }

    /// Adds a certificate as the newest one.
    pub fn adopt(&mut self, certificate: &Certificate) {
        let pem = certificate.to_pem();
        self.certificates.retain(|stored| *stored != pem);
        self.certificates.insert(0, pem);
        self.certificates.truncate(CERTIFICATES_STORED);
    }

    /// Stores the private half of a prekey, and deletes those that are no longer used.
    pub fn keep_prekey(&mut self, own: &OwnPrekey, ambient: Ambient) {
        let OwnPrekey { prekey_id, key, created_at } = own.clone();
        self.prekeys.push(StoredPrekey { prekey_id, key, created_at });
        let times: Vec<i64> = self.prekeys.iter().map(|stored| stored.created_at).collect();
        let mut old = outdated(&times, ambient.now().as_millisecond());
        old.sort_unstable_by(|a, b| b.cmp(a));
        old.into_iter().for_each(|index| drop(self.prekeys.remove(index)));
    }

    /// Logs in, and connects from one of its device's slots. A login may return the next certificate; see
    /// [`Sealer::certificate`].
    pub async fn enter(&self, gateway: &GatewayClient, slot_id: &str) -> Result<Sealer, Failure> {
        let mut identities = self.identities()?;
        let identity = identities.first().ok_or_else(|| invalid_keys(&self.aid, "is not registered yet"))?;
        let tokens = gateway.login(identity).await?;
        if let Some(renewed) = tokens.new_certificate {
            let identity = EnvelopeIdentity::new(self.key.clone(), renewed);
            identities
                .insert(0, identity.ok_or_else(|| invalid_keys(&self.aid, "received a certificate for another key"))?);
        }
        let place = DeviceSlot { device_id: self.device_id.clone(), slot_id: slot_id.to_owned() };
        let session = gateway.connect(&tokens.access, &place, DeliveryMode::default()).await?;
        let prekeys = self.prekeys.iter().map(|stored| OwnPrekey {
            prekey_id: stored.prekey_id.clone(),
            key: stored.key.clone(),
            created_at: stored.created_at,
        });
        let keys = IdentityKeys { identity: identities.remove(0), earlier: identities, prekeys: prekeys.collect() };
        Sealer::new(gateway.clone(), session, keys, &self.device_id)
    }

    fn identities(&self) -> Result<Vec<EnvelopeIdentity>, Failure> {
        let identity = |pem: &String| EnvelopeIdentity::new(self.key.clone(), Certificate::from_pem(pem)?);
        let all: Option<Vec<EnvelopeIdentity>> = self.certificates.iter().map(identity).collect();
        all.ok_or_else(|| invalid_keys(&self.aid, "has a stored key that does not belong to its certificate"))
    }
}

fn invalid_keys(aid: &Aid, why: &str) -> Failure {
    Failure::rule(Rule::MeshKeys, format!("{aid} {why}"))
}

/// A key as text, without unwiped copies of it.
mod hidden_key {
    use std::fmt;

    use ostler_crypto::keys::PrivateKey;
    use serde::{Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(key: &PrivateKey, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&key.to_base64())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<PrivateKey, D::Error> {
        struct Text;

        impl de::Visitor<'_> for Text {
            type Value = PrivateKey;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a private key")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<PrivateKey, E> {
                PrivateKey::from_base64(text).ok_or_else(|| E::custom("not a private key"))
            }
        }
        input.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fixed values: no test here needs randomness.
    fn ambient() -> Ambient {
        Ambient { now: || jiff::Timestamp::UNIX_EPOCH, fill: |bytes| bytes.fill(7) }
    }

    #[test]
    fn a_stored_identity_round_trips_and_a_damaged_one_is_rejected_without_revealing_it() {
        let mut identity =
            StoredIdentity::new("alice.probe.test".parse().unwrap(), "http://x", "root".into(), ambient());
        let key = PrivateKey::generate(Curve::P256, &mut |bytes| bytes.fill(9));
        identity.keep_prekey(&OwnPrekey { prekey_id: "p".into(), key, created_at: 0 }, ambient());
        let text = serde_json::to_string(&identity).unwrap();
        let read: StoredIdentity = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        let secret = identity.key.to_base64();
        let damaged = text.replace(secret.as_str(), &secret[1..]);
        let error = serde_json::from_str::<StoredIdentity>(&damaged).err().unwrap().to_string();
        assert!(!error.contains(&secret[1..]), "{error}");
    }
}
