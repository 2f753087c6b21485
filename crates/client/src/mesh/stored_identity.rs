//! An agent as it is kept between two sessions: whom it believes, its keys, and the prekeys that senders may still use. It
//! serialises as one secret; where that lies is its caller's affair.

use ostler_crypto::{
    certificates::Certificate,
    envelope::Identity,
    keys::{Curve, PrivateKey},
    prekeys::outdated,
};
use ostler_protocol::{
    Failure, FailureKind,
    mesh::{
        Aid,
        connections::{DeliveryMode, Place},
    },
};
use serde::{Deserialize, Serialize};

use super::{Ambient, Gateway, Keys, OwnPrekey, Sealer, Unregistered};

/// Certificates of the same key that are kept: what was sealed for the one before can still be opened.
const CERTIFICATES_KEPT: usize = 4;

#[derive(Serialize, Deserialize)]
pub struct Member {
    pub aid: Aid,
    pub server: String,
    /// PEM.
    pub root: String,
    #[serde(with = "hidden_key")]
    key: PrivateKey,
    /// PEM, the newest first. None: its name is not registered yet.
    certificates: Vec<String>,
    device_id: String,
    prekeys: Vec<KeptPrekey>,
}

#[derive(Serialize, Deserialize)]
struct KeptPrekey {
    prekey_id: String,
    #[serde(with = "hidden_key")]
    key: PrivateKey,
    created_at: i64,
}

impl Member {
    /// Somebody with a new key, whose name is not registered yet.
    pub fn new(aid: Aid, server: &str, root: String, ambient: Ambient) -> Self {
        let key = PrivateKey::generate(Curve::P256, &mut |bytes| (ambient.fill)(bytes));
        let server = server.to_owned();
        Self { aid, server, root, key, certificates: vec![], device_id: ambient.id(), prekeys: vec![] }
    }

    pub fn is_registered(&self) -> bool {
        !self.certificates.is_empty()
    }

    /// Registers the name: see [`Member::adopt`]. Again with the same key it is the same name, so whoever keeps the key first
    /// loses nothing.
    pub async fn register(&self, gateway: &Gateway, invite: Option<String>) -> Result<Certificate, Unregistered> {
        let identity = gateway.register(&self.aid, &self.key, invite).await?;
        Ok(identity.certificate().clone())
    }

    /// As the mesh sends keys.
    pub fn public_key(&self) -> String {
        self.key.public_key().to_base64()
    }

    pub fn certificate(&self) -> Option<Certificate> {
        self.certificates.first().and_then(|pem| Certificate::from_pem(pem))
    }

    /// Takes a certificate for its newest.
    pub fn adopt(&mut self, certificate: &Certificate) {
        let pem = certificate.to_pem();
        self.certificates.retain(|kept| *kept != pem);
        self.certificates.insert(0, pem);
        self.certificates.truncate(CERTIFICATES_KEPT);
    }

    /// Keeps the private half of a prekey, and forgets those that nobody uses any more.
    pub fn keep_prekey(&mut self, own: &OwnPrekey, ambient: Ambient) {
        let OwnPrekey { prekey_id, key, created_at } = own.clone();
        self.prekeys.push(KeptPrekey { prekey_id, key, created_at });
        let times: Vec<i64> = self.prekeys.iter().map(|kept| kept.created_at).collect();
        let mut old = outdated(&times, ambient.now().as_millisecond());
        old.sort_unstable_by(|a, b| b.cmp(a));
        old.into_iter().for_each(|index| drop(self.prekeys.remove(index)));
    }

    /// Logs in, and connects from one of its device's slots. A login may bring the next certificate: see
    /// [`Sealer::certificate`].
    pub async fn enter(&self, gateway: &Gateway, slot_id: &str) -> Result<Sealer, Failure> {
        let mut identities = self.identities()?;
        let identity = identities.first().ok_or_else(|| unfit(&self.aid, "is not registered yet"))?;
        let tokens = gateway.login(identity).await?;
        if let Some(renewed) = tokens.new_certificate {
            let identity = Identity::new(self.key.clone(), renewed);
            identities.insert(0, identity.ok_or_else(|| unfit(&self.aid, "got a certificate for another key"))?);
        }
        let place = Place { device_id: self.device_id.clone(), slot_id: slot_id.to_owned() };
        let session = gateway.connect(&tokens.access, &place, DeliveryMode::default()).await?;
        let prekeys = self.prekeys.iter().map(|kept| OwnPrekey {
            prekey_id: kept.prekey_id.clone(),
            key: kept.key.clone(),
            created_at: kept.created_at,
        });
        let keys = Keys { identity: identities.remove(0), earlier: identities, prekeys: prekeys.collect() };
        Sealer::new(gateway.clone(), session, keys, &self.device_id)
    }

    fn identities(&self) -> Result<Vec<Identity>, Failure> {
        let identity = |pem: &String| Identity::new(self.key.clone(), Certificate::from_pem(pem)?);
        let all: Option<Vec<Identity>> = self.certificates.iter().map(identity).collect();
        all.ok_or_else(|| unfit(&self.aid, "has a kept key that does not fit its certificate"))
    }
}

fn unfit(aid: &Aid, why: &str) -> Failure {
    Failure::rule(FailureKind::SchemaInvalid, "mesh-keys", format!("{aid} {why}"))
}

/// A key as text, without a copy of it that is not wiped.
mod hidden_key {
    use std::fmt;

    use ostler_crypto::keys::PrivateKey;
    use serde::{Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(key: &PrivateKey, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&key.to_base64())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<PrivateKey, D::Error> {
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

    /// Not random, which no test here needs.
    fn ambient() -> Ambient {
        Ambient { now: || jiff::Timestamp::UNIX_EPOCH, fill: |bytes| bytes.fill(7) }
    }

    #[test]
    fn a_kept_agent_reads_back_whole_and_a_damaged_one_is_refused_without_being_shown() {
        let mut member = Member::new("alice.probe.test".parse().unwrap(), "http://x", "root".into(), ambient());
        let key = PrivateKey::generate(Curve::P256, &mut |bytes| bytes.fill(9));
        member.keep_prekey(&OwnPrekey { prekey_id: "p".into(), key, created_at: 0 }, ambient());
        let text = serde_json::to_string(&member).unwrap();
        let read: Member = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        let secret = member.key.to_base64();
        let damaged = text.replace(secret.as_str(), &secret[1..]);
        let refused = serde_json::from_str::<Member>(&damaged).err().unwrap().to_string();
        assert!(!refused.contains(&secret[1..]), "{refused}");
    }
}
