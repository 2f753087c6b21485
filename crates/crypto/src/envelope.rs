//! Messages encrypted end to end, compatible with the mesh's published clients. There are two modes: with a prekey of the
//! recipient (four key agreements; a stolen identity key opens no old message), or with the long-term keys alone (two key
//! agreements). All metadata is bound to the text and signed. Repeated messages are detected by `replay`.

use std::fmt;

use aes_gcm::{
    Aes256Gcm, KeyInit, Nonce,
    aead::{AeadInOut, Tag},
};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use hkdf::Hkdf;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::{
    Fill, canonical,
    certificates::{Certificate, Peer},
    keys::{Curve, PrivateKey, PublicKey},
};

pub const TYPE: &str = "e2ee.encrypted";
pub const VERSION: &str = "1";
pub const SUITE: &str = "P256_HKDF_SHA256_AES_256_GCM";
const NONCE_BYTES: usize = 12;
const TAG_BYTES: usize = 16;
const SHARED_BYTES: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnvelopeMode {
    /// With a prekey: the text stays secret if identity keys are stolen later.
    PrekeyEcdhV2,
    /// Without a prekey: only if the sender accepts the loss of forward secrecy.
    LongTermKey,
}

/// The metadata that is bound to the sealed text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bound {
    pub from: String,
    /// The recipient as the sender named it. In a copy for the sender's own devices this is not the identity that opens it.
    pub to: String,
    pub message_id: String,
    /// Milliseconds, by the sender's clock.
    pub timestamp: i64,
    pub encryption_mode: EnvelopeMode,
    pub suite: String,
    pub ephemeral_public_key: String,
    pub recipient_cert_fingerprint: String,
    pub sender_cert_fingerprint: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prekey_id: Option<String>,
}

impl Bound {
    /// The bytes that are authenticated and signed: all ten fields, a missing prekey as `null`, whichever fields are sent.
    fn bytes(&self) -> Vec<u8> {
        let mut fields = json!(self);
        if let Value::Object(fields) = &mut fields {
            fields.entry("prekey_id").or_insert(Value::Null);
        }
        canonical::json(&fields)
    }
}

/// A sealed message as it is sent. Binary fields are base64 with padding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    #[serde(rename = "type")]
    pub kind: String,
    pub version: String,
    pub encryption_mode: EnvelopeMode,
    pub suite: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prekey_id: Option<String>,
    /// An uncompressed point.
    pub ephemeral_public_key: String,
    pub nonce: String,
    pub ciphertext: String,
    pub tag: String,
    pub aad: Bound,
    pub sender_signature: String,
    pub sender_cert_fingerprint: String,
}

/// A certificate with its private key, which can seal and open messages.
#[derive(Clone, Debug)]
pub struct EnvelopeIdentity {
    key: PrivateKey,
    certificate: Certificate,
    fingerprint: String,
}

impl EnvelopeIdentity {
    /// `None` if the key does not belong to the certificate, or is not on P-256.
    pub fn new(key: PrivateKey, certificate: Certificate) -> Option<Self> {
        let fits = key.curve() == Curve::P256 && key.public_key() == *certificate.public_key();
        fits.then(|| Self { key, fingerprint: certificate.fingerprint(), certificate })
    }

    pub fn name(&self) -> &str {
        self.certificate.name()
    }

    pub fn key(&self) -> &PrivateKey {
        &self.key
    }

    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}

/// The addresses of a message, outside its envelope.
#[derive(Clone, Copy, Debug)]
pub struct Address<'a> {
    pub from: &'a str,
    pub to: &'a str,
    pub message_id: &'a str,
}

/// Seals a text from `sender` for the holder of `recipient`'s key, and of the prekey if one is given. `None` if the
/// recipient's key cannot be used for sealing.
pub fn seal(
    sender: &EnvelopeIdentity,
    recipient: &Peer,
    prekey: Option<(&str, &PublicKey)>,
    (to, message_id, timestamp): (&str, &str, i64),
    text: &[u8],
    fill: Fill<'_>,
) -> Option<Envelope> {
    let ephemeral = PrivateKey::generate(Curve::P256, fill);
    let mut nonce = [0; NONCE_BYTES];
    fill(&mut nonce);

    let peer = recipient.certificate().public_key();
    let agreements: Vec<_> = match prekey {
        Some((_, prekey)) => vec![(&ephemeral, prekey), (&ephemeral, peer), (&sender.key, prekey), (&sender.key, peer)],
        None => vec![(&ephemeral, peer), (&sender.key, peer)],
    };
    let prekey_id = prekey.map(|(id, _)| id);
    let key = message_key(&agreements, prekey_id)?;

    let ephemeral_public_key = BASE64.encode(ephemeral.public_key().point());
    let encryption_mode = if prekey.is_some() { EnvelopeMode::PrekeyEcdhV2 } else { EnvelopeMode::LongTermKey };
    let aad = Bound {
        from: sender.name().to_owned(),
        to: to.to_owned(),
        message_id: message_id.to_owned(),
        timestamp,
        encryption_mode,
        suite: SUITE.to_owned(),
        ephemeral_public_key: ephemeral_public_key.clone(),
        recipient_cert_fingerprint: recipient.certificate().fingerprint(),
        sender_cert_fingerprint: sender.fingerprint.clone(),
        prekey_id: prekey_id.map(str::to_owned),
    };
    let bound = aad.bytes();
    let mut ciphertext = text.to_vec();
    let cipher = Aes256Gcm::new((&*key).into());
    let tag = cipher.encrypt_inout_detached((&nonce).into(), &bound, ciphertext.as_mut_slice().into()).ok()?;
    let signature = sender.key.sign(&[&ciphertext, tag.as_slice(), &bound].concat());
    Some(Envelope {
        kind: TYPE.to_owned(),
        version: VERSION.to_owned(),
        encryption_mode,
        suite: SUITE.to_owned(),
        prekey_id: aad.prekey_id.clone(),
        ephemeral_public_key,
        nonce: BASE64.encode(nonce),
        ciphertext: BASE64.encode(ciphertext),
        tag: BASE64.encode(tag),
        sender_signature: BASE64.encode(signature),
        sender_cert_fingerprint: sender.fingerprint.clone(),
        aad,
    })
}

/// Why an envelope could not be opened. For the log; it reveals nothing new to an attacker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unopened {
    /// An unknown type, version or suite, or a malformed field.
    Shape,
    /// The bound metadata differs from the other fields of the envelope, or from the message around it.
    Mismatch(&'static str),
    /// It was sealed for another certificate.
    NotForUs,
    /// It needs a prekey and none was given, or none is needed and one was given.
    Prekey,
    /// The sender did not sign it.
    Signature,
    /// The text or the bound metadata was changed, or sealed with other keys.
    Sealing,
}

impl fmt::Display for Unopened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape => f.write_str("the envelope is of an unknown kind"),
            Self::Mismatch(field) => write!(f, "the envelope's {field} differs from the message's"),
            Self::NotForUs => f.write_str("the message was sealed for another certificate"),
            Self::Prekey => f.write_str("the message was sealed with a prekey that is not available"),
            Self::Signature => f.write_str("the message was not signed by its sender"),
            Self::Sealing => f.write_str("the message was changed in transit, or sealed with other keys"),
        }
    }
}

impl std::error::Error for Unopened {}

/// Opens an envelope from `sender` with these addresses. The prekey is the private half of the one that the envelope names.
pub fn open(
    envelope: &Envelope,
    address: Address<'_>,
    sender: &Peer,
    recipient: &EnvelopeIdentity,
    prekey: Option<&PrivateKey>,
) -> Result<Zeroizing<Vec<u8>>, Unopened> {
    check_address(envelope, address, sender, recipient)?;
    let bytes = |text: &str| BASE64.decode(text).map_err(|_| Unopened::Shape);
    let (ciphertext, tag) = (bytes(&envelope.ciphertext)?, bytes(&envelope.tag)?);
    let nonce: [u8; NONCE_BYTES] = bytes(&envelope.nonce)?.try_into().map_err(|_| Unopened::Shape)?;
    let ephemeral = PublicKey::from_point(&bytes(&envelope.ephemeral_public_key)?).ok_or(Unopened::Shape)?;
    if tag.len() != TAG_BYTES {
        return Err(Unopened::Shape);
    }

    let (bound, peer) = (envelope.aad.bytes(), sender.certificate().public_key());
    if !peer.verifies_base64(&[&ciphertext[..], &tag, &bound].concat(), &envelope.sender_signature) {
        return Err(Unopened::Signature);
    }

    let own = &recipient.key;
    let agreements = match (envelope.encryption_mode, prekey) {
        (EnvelopeMode::PrekeyEcdhV2, Some(prekey)) => {
            vec![(prekey, &ephemeral), (own, &ephemeral), (prekey, peer), (own, peer)]
        }
        (EnvelopeMode::LongTermKey, None) => vec![(own, &ephemeral), (own, peer)],
        _ => return Err(Unopened::Prekey),
    };
    let key = message_key(&agreements, envelope.prekey_id.as_deref()).ok_or(Unopened::Sealing)?;
    let mut text = Zeroizing::new(ciphertext);
    let tag = Tag::<Aes256Gcm>::try_from(&tag[..]).map_err(|_| Unopened::Shape)?;
    Aes256Gcm::new((&*key).into())
        .decrypt_inout_detached(&Nonce::from(nonce), &bound, text.as_mut_slice().into(), &tag)
        .map_err(|_| Unopened::Sealing)?;
    Ok(text)
}

/// Fields that the envelope contains twice must be equal, and must match the message around it. The timestamp of the
/// message is the server's, so it is not compared.
fn check_address(
    envelope: &Envelope,
    address: Address<'_>,
    sender: &Peer,
    own: &EnvelopeIdentity,
) -> Result<(), Unopened> {
    let aad = &envelope.aad;
    let known = envelope.kind == TYPE && envelope.version == VERSION && envelope.suite == SUITE;
    if !known || envelope.prekey_id.is_some() != (envelope.encryption_mode == EnvelopeMode::PrekeyEcdhV2) {
        return Err(Unopened::Shape);
    }
    let pairs = [
        ("from", aad.from.as_str(), address.from),
        ("from", aad.from.as_str(), sender.certificate().name()),
        ("to", &aad.to, address.to),
        ("message_id", &aad.message_id, address.message_id),
        ("suite", &aad.suite, &envelope.suite),
        ("ephemeral_public_key", &aad.ephemeral_public_key, &envelope.ephemeral_public_key),
        ("sender_cert_fingerprint", &aad.sender_cert_fingerprint, &envelope.sender_cert_fingerprint),
        ("sender_cert_fingerprint", &aad.sender_cert_fingerprint, &sender.certificate().fingerprint()),
    ];
    if let Some((field, ..)) = pairs.iter().find(|(_, bound, beside)| bound != beside) {
        return Err(Unopened::Mismatch(field));
    }
    if aad.encryption_mode != envelope.encryption_mode {
        return Err(Unopened::Mismatch("encryption_mode"));
    }
    if aad.prekey_id != envelope.prekey_id {
        return Err(Unopened::Mismatch("prekey_id"));
    }
    // Addressed to us, or a copy of a message that another device of ours sent.
    let ours = aad.to == own.name() || aad.from == own.name();
    if !ours || aad.recipient_cert_fingerprint != own.fingerprint {
        return Err(Unopened::NotForUs);
    }
    Ok(())
}

/// HKDF-SHA256 without salt over the key agreements, in order.
fn message_key(
    agreements: &[(&PrivateKey, &PublicKey)],
    prekey_id: Option<&str>,
) -> Option<Zeroizing<[u8; SHARED_BYTES]>> {
    let mut secret = Zeroizing::new(Vec::with_capacity(agreements.len() * SHARED_BYTES));
    for (own, peer) in agreements {
        secret.extend_from_slice(&*own.agree(peer)?);
    }
    let info = prekey_id.map_or("aun-longterm-v2".to_owned(), |id| format!("aun-prekey-v2:{id}"));
    let mut key = Zeroizing::new([0; SHARED_BYTES]);
    Hkdf::<Sha256>::new(None, &secret).expand(info.as_bytes(), &mut *key).ok()?;
    Some(key)
}
