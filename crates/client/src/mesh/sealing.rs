//! Messages encrypted end to end. A sender seals one copy for each device of the recipient that has uploaded a prekey, and one
//! for each other device of its own. A recipient opens each message that was sealed with its prekeys, once.

use std::time::Duration;

use ostler_crypto::{
    certificates::{Certificate, Peer},
    envelope::{self, Address, Envelope, EnvelopeIdentity},
    keys::{Curve, PrivateKey, PublicKey},
    prekeys,
    replay::{ReplayError, ReplayGuard},
};
use ostler_protocol::{
    Failure, Rule,
    mesh::{
        Aid,
        auth::not_registered,
        messages::{AckParams, AckResult, MULTI_DEVICE, Message, PullParams, PullResult, SEALED, SendResult},
        prekeys::{GetPrekeyParams, GetPrekeyResult, Prekey, PutPrekeyResult},
    },
};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    gateway::GatewayClient,
    pki::{CertificateTrust, untrusted},
    session::{GatewayEvent, MeshSession},
};

/// After this long without an event, the caller checks whether the gateway is still there.
const QUIET_MAX: Duration = Duration::from_secs(30);
/// A new prekey is uploaded after this long, so that a stolen prekey opens fewer messages.
const PREKEY_MS_MAX: i64 = 24 * 60 * 60 * 1_000;

/// A prekey of ours, with its private half. Senders keep using it for days.
#[derive(Clone)]
pub struct OwnPrekey {
    pub prekey_id: String,
    pub key: PrivateKey,
    /// Milliseconds.
    pub created_at: i64,
}

/// The keys that an identity opens messages with.
pub struct IdentityKeys {
    pub identity: EnvelopeIdentity,
    /// The same key under its earlier certificates, because senders may have sealed for those.
    pub earlier: Vec<EnvelopeIdentity>,
    pub prekeys: Vec<OwnPrekey>,
}

/// A received message with its contents, or the reason why it could not be opened.
#[derive(Debug)]
pub struct OpenedMessage {
    pub message: Message,
    pub contents: Result<Value, OpenError>,
}

/// Why a message could not be opened.
#[derive(Debug)]
pub enum OpenError {
    /// It can never be opened here.
    Permanent(String),
    /// Whether it can be opened could not be determined. If it is acknowledged, it is lost.
    Temporary(Failure),
}

impl From<Failure> for OpenError {
    fn from(failure: Failure) -> Self {
        Self::Temporary(failure)
    }
}

/// What a sealer receives.
#[derive(Debug)]
pub enum SealerEvent {
    Message(Box<OpenedMessage>),
    Other(GatewayEvent),
    /// Nothing, for a while.
    Nothing,
}

/// An identity on one device, in a session: seals the messages it sends and opens those it receives.
pub struct Sealer {
    gateway: GatewayClient,
    session: MeshSession,
    keys: IdentityKeys,
    aid: Aid,
    device_id: String,
    replays: ReplayGuard,
}

impl Sealer {
    pub fn new(
        gateway: GatewayClient,
        session: MeshSession,
        keys: IdentityKeys,
        device_id: &str,
    ) -> Result<Self, Failure> {
        let aid = keys.identity.name().parse().map_err(Failure::internal)?;
        let (device_id, replays) = (device_id.to_owned(), ReplayGuard::default());
        Ok(Self { gateway, session, keys, aid, device_id, replays })
    }

    /// The certificate in use.
    pub fn certificate(&self) -> &Certificate {
        self.keys.identity.certificate()
    }

    pub fn session(&mut self) -> &mut MeshSession {
        &mut self.session
    }

    pub async fn close(self) {
        self.session.close().await;
    }

    /// Whether senders need a new prekey of this device: the server has none of ours, or one that is old or of an earlier
    /// certificate.
    pub async fn needs_prekey(&mut self) -> Result<bool, Failure> {
        let params = GetPrekeyParams { aid: self.aid.clone() };
        let uploaded: GetPrekeyResult = self.session.call("message.e2ee.get_prekey", &params).await?;
        let now_ms = self.gateway.ambient().now().as_millisecond();
        let is_usable = |prekey: &Prekey| {
            prekey.device_id.as_ref() == Some(&self.device_id)
                && prekey.cert_fingerprint == self.keys.identity.fingerprint()
                && now_ms.saturating_sub(prekey.created_at) < PREKEY_MS_MAX
                && self.keys.prekeys.iter().any(|own| own.prekey_id == prekey.prekey_id)
        };
        Ok(!uploaded.device_prekeys.iter().any(is_usable))
    }

    /// Generates a prekey. The caller stores the private half and then uploads the prekey with [`Sealer::put_prekey`]: a
    /// message that is sealed with it cannot be opened otherwise.
    pub fn new_prekey(&mut self) -> OwnPrekey {
        let ambient = self.gateway.ambient();
        let own = OwnPrekey {
            prekey_id: ambient.id(),
            key: PrivateKey::generate(Curve::P256, &mut |bytes| (ambient.fill)(bytes)),
            created_at: ambient.now().as_millisecond(),
        };
        self.keys.prekeys.push(own.clone());
        own
    }

    /// Uploads a prekey for senders.
    pub async fn put_prekey(&mut self, own: &OwnPrekey) -> Result<(), Failure> {
        let identity = &self.keys.identity;
        let signed = prekeys::Prekey::sign(identity, &own.prekey_id, &own.key, own.created_at, &self.device_id);
        let put = Prekey {
            prekey_id: signed.prekey_id,
            public_key: signed.public_key,
            signature: signed.signature,
            created_at: signed.created_at,
            cert_fingerprint: signed.cert_fingerprint,
            device_id: Some(self.device_id.clone()),
        };
        let _: PutPrekeyResult = self.session.call("message.e2ee.put_prekey", &put).await?;
        Ok(())
    }

    /// Seals a message for every device of its recipient, and for the sender's other devices, and sends it.
    pub async fn send(&mut self, to: &Aid, contents: &Value) -> Result<SendResult, Failure> {
        let ambient = self.gateway.ambient();
        let (message_id, now_ms) = (ambient.id(), ambient.now().as_millisecond());
        let text = contents.to_string();
        let (theirs, reason) = self.seal_for(to, to, &message_id, now_ms, &text).await?;
        if theirs.is_empty() {
            return Err(self.no_copies_failure(to, reason).await?);
        }
        let copies = self.seal_for_own_devices(to, &message_id, now_ms, &text).await?;
        let (kind, payload) = match theirs.as_slice() {
            [(_, envelope)] if copies.is_empty() => (SEALED, json!(envelope)),
            _ => {
                let list = |copies: &[(String, Envelope)]| -> Vec<Value> {
                    copies.iter().map(|(id, envelope)| json!({"device_id": id, "envelope": envelope})).collect()
                };
                let (recipient, own) = (list(&theirs), list(&copies));
                let container = json!({"type": MULTI_DEVICE, "logical_message_id": message_id,
                    "recipient_copies": recipient, "self_copies": own});
                (MULTI_DEVICE, container)
            }
        };
        let params = json!({"to": to, "payload": payload, "type": kind, "encrypted": true, "message_id": message_id,
            "timestamp": now_ms});
        self.session.call("message.send", &params).await
    }

    /// Copies for the sender's other devices, unless the message is addressed to them anyway.
    async fn seal_for_own_devices(
        &mut self,
        to: &Aid,
        message_id: &str,
        now_ms: i64,
        text: &str,
    ) -> Result<Vec<(String, Envelope)>, Failure> {
        if *to == self.aid {
            return Ok(vec![]);
        }
        let own = self.aid.clone();
        let (mut copies, _) = self.seal_for(&own, to, message_id, now_ms, text).await?;
        copies.retain(|(device_id, _)| *device_id != self.device_id);
        Ok(copies)
    }

    /// Why no copy could be sealed.
    async fn no_copies_failure(&self, to: &Aid, reason: Option<String>) -> Result<Failure, Failure> {
        Ok(match (reason, self.gateway.check_certificate(to, None).await?) {
            (_, CertificateTrust::Unknown) => not_registered(to),
            (_, CertificateTrust::Untrusted { why, .. }) | (Some(why), _) => untrusted(&why),
            (None, CertificateTrust::Trusted(_)) => {
                let message =
                    format!("{to} has uploaded no prekey, so no message can be sealed for it with forward secrecy");
                Failure::rule(Rule::MeshNoPrekey, message)
            }
        })
    }

    /// Seals one copy for each device of an identity that has uploaded a valid prekey. The other devices get none; the second
    /// value is the reason for one of them.
    async fn seal_for(
        &mut self,
        owner: &Aid,
        to: &Aid,
        message_id: &str,
        now_ms: i64,
        text: &str,
    ) -> Result<(Vec<(String, Envelope)>, Option<String>), Failure> {
        let ambient = self.gateway.ambient();
        let found: GetPrekeyResult =
            self.session.call("message.e2ee.get_prekey", &GetPrekeyParams { aid: owner.clone() }).await?;
        let prekeys =
            if found.device_prekeys.is_empty() { found.prekey.into_iter().collect() } else { found.device_prekeys };
        let (mut sealed, mut reason) = (vec![], None);
        for prekey in prekeys {
            let peer = match self.gateway.check_certificate(owner, Some(&prekey.cert_fingerprint)).await? {
                CertificateTrust::Trusted(peer) => peer,
                CertificateTrust::Untrusted { why, .. } => {
                    reason = Some(why);
                    continue;
                }
                CertificateTrust::Unknown => continue,
            };
            let Some(key) = verified_prekey(&prekey, &peer, now_ms) else {
                reason = Some(format!("a prekey of {owner} is too old, or not signed by it"));
                continue;
            };
            let named = Some((prekey.prekey_id.as_str(), &key));
            let header = (to.as_str(), message_id, now_ms);
            let fill = &mut |bytes: &mut [u8]| (ambient.fill)(bytes);
            if let Some(envelope) = envelope::seal(&self.keys.identity, &peer, named, header, text.as_bytes(), fill) {
                sealed.push((prekey.device_id.unwrap_or_default(), envelope));
            }
        }
        Ok((sealed, reason))
    }

    /// Pulls and opens the unacknowledged messages after a sequence number.
    pub async fn pull(&mut self, after_seq: i64) -> Result<(Vec<OpenedMessage>, PullResult), Failure> {
        let params = PullParams { after_seq, device_id: Some(self.device_id.clone()), ..PullParams::default() };
        let mut result: PullResult = self.session.call("message.pull", &params).await?;
        let mut opened = vec![];
        let messages = std::mem::take(&mut result.messages).into_iter();
        for message in messages.filter(|message| message.seq > result.server_ack_seq) {
            let contents = self.open(&message).await;
            opened.push(OpenedMessage { message, contents });
        }
        Ok((opened, result))
    }

    /// The next pushed event: an opened message, or another event.
    pub async fn next_event(&mut self) -> Result<SealerEvent, Failure> {
        let Ok(event) = timeout(QUIET_MAX, self.session.next_event()).await else { return Ok(SealerEvent::Nothing) };
        Ok(match event? {
            GatewayEvent::Message(message) => {
                let contents = self.open_pushed(&message).await;
                SealerEvent::Message(Box::new(OpenedMessage { message: *message, contents }))
            }
            other => SealerEvent::Other(other),
        })
    }

    /// Acknowledges this message and all before it.
    pub async fn ack(&mut self, seq: i64) -> Result<i64, Failure> {
        let params = AckParams { seq, device_id: Some(self.device_id.clone()), slot_id: None };
        let result: AckResult = self.session.call("message.ack", &params).await?;
        Ok(result.ack_seq)
    }

    async fn open(&self, message: &Message) -> Result<Value, OpenError> {
        let Some(envelope) = parse_envelope(message)? else { return Ok(message.payload.to_value()) };
        let sender = self.sender(message, &envelope).await?;
        let text = self.unseal(message, &envelope, &sender).map_err(|why| OpenError::Permanent(why.to_string()))?;
        parse_contents(&text)
    }

    /// The same as [`Sealer::open`], but only once per message, and only near the time that its sender signed. Later messages
    /// have to be pulled.
    async fn open_pushed(&mut self, message: &Message) -> Result<Value, OpenError> {
        let Some(envelope) = parse_envelope(message)? else { return Ok(message.payload.to_value()) };
        let sender = self.sender(message, &envelope).await?;
        let now_ms = self.gateway.ambient().now().as_millisecond();
        let mut replays = std::mem::take(&mut self.replays);
        let opened = replays.admit(&envelope, now_ms, || self.unseal(message, &envelope, &sender));
        self.replays = replays;
        parse_contents(&opened.map_err(|error| match error {
            ReplayError::OutsideWindow => OpenError::Temporary(Failure::rule(
                Rule::MeshWindow,
                "the message was pushed too long after, or before, the time at which it was sealed",
            )),
            ReplayError::Replayed => OpenError::Permanent("the message was received before".to_owned()),
            ReplayError::Unopened(why) => OpenError::Permanent(why.to_string()),
        })?)
    }

    async fn sender(&self, message: &Message, envelope: &Envelope) -> Result<Peer, OpenError> {
        match self.gateway.check_certificate(&message.from, Some(&envelope.sender_cert_fingerprint)).await? {
            CertificateTrust::Trusted(peer) => Ok(*peer),
            CertificateTrust::Untrusted { why, .. } => Err(OpenError::Permanent(why)),
            CertificateTrust::Unknown => Err(OpenError::Permanent(format!("{} has no such certificate", message.from))),
        }
    }

    fn unseal(
        &self,
        message: &Message,
        envelope: &Envelope,
        sender: &Peer,
    ) -> Result<zeroize::Zeroizing<Vec<u8>>, envelope::Unopened> {
        let IdentityKeys { identity, earlier, prekeys } = &self.keys;
        let named = envelope.prekey_id.as_ref();
        let prekey = named.and_then(|id| prekeys.iter().find(|own| own.prekey_id == *id));
        let sealed_for = &envelope.aad.recipient_cert_fingerprint;
        let identity = earlier.iter().find(|earlier| earlier.fingerprint() == sealed_for).unwrap_or(identity);
        let (from, to, message_id) = (message.from.as_str(), message.to.as_str(), message.message_id.as_str());
        let address = Address { from, to, message_id };
        envelope::open(envelope, address, sender, identity, prekey.map(|own| &own.key))
    }
}

fn parse_contents(text: &[u8]) -> Result<Value, OpenError> {
    serde_json::from_slice(text).map_err(|_| OpenError::Permanent("the sealed text is not JSON".to_owned()))
}

/// The envelope of a message. `None` if the message is not sealed.
fn parse_envelope(message: &Message) -> Result<Option<Envelope>, OpenError> {
    if !message.encrypted {
        return Ok(None);
    }
    let read = serde_json::from_str(message.payload.as_str());
    read.map(Some).map_err(|_| OpenError::Permanent("the envelope is of an unknown kind".to_owned()))
}

/// The key of a prekey, if its owner signed it and it is not too old.
fn verified_prekey(prekey: &Prekey, owner: &Peer, now_ms: i64) -> Option<PublicKey> {
    let signed = prekeys::Prekey {
        prekey_id: prekey.prekey_id.clone(),
        public_key: prekey.public_key.clone(),
        signature: prekey.signature.clone(),
        created_at: prekey.created_at,
        cert_fingerprint: prekey.cert_fingerprint.clone(),
        device_id: prekey.device_id.clone().unwrap_or_default(),
    };
    signed.verify(owner).filter(|_| signed.is_fresh(now_ms))
}
