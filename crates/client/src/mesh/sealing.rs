//! Messages sealed for their recipients and opened by them. A sender seals one copy for each device that has left a prekey,
//! and one for each other device of its own; a recipient opens what its own prekeys were used for, once.

use ostler_crypto::{
    certificates::{Chain, Peer},
    envelope::{self, Address, Envelope, Identity},
    keys::{Curve, PrivateKey, PublicKey},
    prekeys,
    replay::ReplayGuard,
};
use ostler_protocol::{
    Failure, FailureKind,
    mesh::{
        Aid,
        messages::{AckParams, AckResult, MULTI_DEVICE, Message, PullParams, PullResult, SEALED, SendResult},
        prekeys::{GetPrekeyParams, GetPrekeyResult, Prekey, PutPrekeyResult},
    },
};
use serde_json::{Value, json};

use super::{Gateway, Heard, Session};

/// A prekey of ours, with its private half. Senders go on using it for days.
#[derive(Clone)]
pub struct OwnPrekey {
    pub prekey_id: String,
    pub key: PrivateKey,
    /// Milliseconds.
    pub created_at: i64,
}

/// A message that came, and what it says; or why it stays shut.
#[derive(Debug)]
pub struct Opened {
    pub message: Message,
    pub contents: Result<Value, String>,
}

/// An agent on one device, in session: it sends sealed and opens what is sealed for it.
pub struct Sealer {
    gateway: Gateway,
    session: Session,
    identity: Identity,
    aid: Aid,
    device_id: String,
    prekeys: Vec<OwnPrekey>,
    chain: Chain,
    replays: ReplayGuard,
}

impl Sealer {
    pub async fn new(
        gateway: Gateway,
        session: Session,
        identity: Identity,
        device_id: &str,
        prekeys: Vec<OwnPrekey>,
    ) -> Result<Self, Failure> {
        let aid = identity.name().parse().map_err(Failure::internal)?;
        let chain = gateway.chain().await?;
        let (device_id, replays) = (device_id.to_owned(), ReplayGuard::default());
        Ok(Self { gateway, session, identity, aid, device_id, prekeys, chain, replays })
    }

    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    pub async fn close(self) {
        self.session.close().await;
    }

    /// Leaves a new prekey for senders. Its caller keeps the private half.
    pub async fn put_prekey(&mut self) -> Result<OwnPrekey, Failure> {
        let ambient = self.gateway.ambient();
        let own = OwnPrekey {
            prekey_id: ambient.id(),
            key: PrivateKey::generate(Curve::P256, &mut |bytes| (ambient.fill)(bytes)),
            created_at: ambient.now().as_millisecond(),
        };
        let signed = prekeys::Prekey::sign(&self.identity, &own.prekey_id, &own.key, own.created_at, &self.device_id);
        let put = Prekey {
            prekey_id: signed.prekey_id,
            public_key: signed.public_key,
            signature: signed.signature,
            created_at: signed.created_at,
            cert_fingerprint: signed.cert_fingerprint,
            device_id: Some(self.device_id.clone()),
        };
        let _: PutPrekeyResult = self.session.call("message.e2ee.put_prekey", &put).await?;
        self.prekeys.push(own.clone());
        Ok(own)
    }

    /// Seals a message for every device of its recipient, and for the sender's own others, and sends it.
    pub async fn send(&mut self, to: &Aid, contents: &Value) -> Result<SendResult, Failure> {
        let ambient = self.gateway.ambient();
        let (message_id, now_ms) = (ambient.id(), ambient.now().as_millisecond());
        let text = contents.to_string();
        let theirs = self.sealed_for(to, to, &message_id, now_ms, &text).await?;
        if theirs.is_empty() {
            let message = format!("{to} has left no prekey, so nothing can be sealed for it that stays sealed");
            return Err(Failure::rule(FailureKind::StateConflict, "mesh-no-prekey", message));
        }
        let own = self.aid.clone();
        let mut copies = self.sealed_for(&own, to, &message_id, now_ms, &text).await?;
        copies.retain(|(device_id, _)| *device_id != self.device_id);
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

    /// One copy for each device of an agent that has left a prekey which can be believed.
    async fn sealed_for(
        &mut self,
        owner: &Aid,
        to: &Aid,
        message_id: &str,
        now_ms: i64,
        text: &str,
    ) -> Result<Vec<(String, Envelope)>, Failure> {
        let ambient = self.gateway.ambient();
        let found: GetPrekeyResult =
            self.session.call("message.e2ee.get_prekey", &GetPrekeyParams { aid: owner.clone() }).await?;
        let prekeys =
            if found.device_prekeys.is_empty() { found.prekey.into_iter().collect() } else { found.device_prekeys };
        let mut sealed = vec![];
        for prekey in prekeys {
            let Some(peer) = self.gateway.peer(&self.chain, owner, Some(&prekey.cert_fingerprint)).await? else {
                continue;
            };
            let Some(key) = usable(&prekey, &peer, now_ms) else { continue };
            let named = Some((prekey.prekey_id.as_str(), &key));
            let letter = (to.as_str(), message_id, now_ms);
            let fill = &mut |bytes: &mut [u8]| (ambient.fill)(bytes);
            if let Some(envelope) = envelope::seal(&self.identity, &peer, named, letter, text.as_bytes(), fill) {
                sealed.push((prekey.device_id.unwrap_or_default(), envelope));
            }
        }
        Ok(sealed)
    }

    /// What came after a number, opened.
    pub async fn pull(&mut self, after_seq: i64) -> Result<(Vec<Opened>, PullResult), Failure> {
        let params = PullParams { after_seq, device_id: Some(self.device_id.clone()), ..PullParams::default() };
        let mut result: PullResult = self.session.call("message.pull", &params).await?;
        let mut opened = vec![];
        for message in std::mem::take(&mut result.messages) {
            let contents = self.open(&message).await;
            opened.push(Opened { message, contents });
        }
        Ok((opened, result))
    }

    /// What is pushed next: a message, opened, or something else.
    pub async fn hear(&mut self) -> Result<Result<Opened, Heard>, Failure> {
        match self.session.hear().await? {
            Heard::Message(message) => {
                let contents = self.open_pushed(&message).await;
                Ok(Ok(Opened { message: *message, contents }))
            }
            other => Ok(Err(other)),
        }
    }

    /// Says that this message and all before it were received.
    pub async fn ack(&mut self, seq: i64) -> Result<i64, Failure> {
        let params = AckParams { seq, device_id: Some(self.device_id.clone()), slot_id: None };
        let result: AckResult = self.session.call("message.ack", &params).await?;
        Ok(result.ack_seq)
    }

    async fn open(&self, message: &Message) -> Result<Value, String> {
        let Some(envelope) = envelope_of(message)? else { return Ok(message.payload.to_value()) };
        let sender = self.sender(message, &envelope).await?;
        read(self.unseal(message, &envelope, &sender).map_err(|why| why.to_string())?.as_slice())
    }

    /// As [`Sealer::open`], but once, and only near the time that its sender signed.
    async fn open_pushed(&mut self, message: &Message) -> Result<Value, String> {
        let Some(envelope) = envelope_of(message)? else { return Ok(message.payload.to_value()) };
        let sender = self.sender(message, &envelope).await?;
        let now_ms = self.gateway.ambient().now().as_millisecond();
        let mut replays = std::mem::take(&mut self.replays);
        let opened = replays.admit(&envelope, now_ms, || self.unseal(message, &envelope, &sender));
        self.replays = replays;
        read(opened.map_err(|refused| format!("{refused:?}"))?.as_slice())
    }

    async fn sender(&self, message: &Message, envelope: &Envelope) -> Result<Peer, String> {
        let named = Some(envelope.sender_cert_fingerprint.as_str());
        let peer = self.gateway.peer(&self.chain, &message.from, named).await.map_err(|failure| failure.message)?;
        peer.ok_or_else(|| format!("nobody has the name {}", message.from))
    }

    fn unseal(
        &self,
        message: &Message,
        envelope: &Envelope,
        sender: &Peer,
    ) -> Result<zeroize::Zeroizing<Vec<u8>>, envelope::Unopened> {
        let named = envelope.prekey_id.as_ref();
        let prekey = named.and_then(|id| self.prekeys.iter().find(|own| own.prekey_id == *id));
        let (from, to, message_id) = (message.from.as_str(), message.to.as_str(), message.message_id.as_str());
        let address = Address { from, to, message_id };
        envelope::open(envelope, address, sender, &self.identity, prekey.map(|own| &own.key))
    }
}

fn read(text: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(text).map_err(|_| "what was sealed is not JSON".to_owned())
}

/// `None`: the message is not sealed.
fn envelope_of(message: &Message) -> Result<Option<Envelope>, String> {
    if !message.encrypted {
        return Ok(None);
    }
    let read = serde_json::from_str(message.payload.as_str());
    read.map(Some).map_err(|_| "not an envelope of a kind that we know".to_owned())
}

/// The key of a prekey that its owner signed and that is not too old.
fn usable(prekey: &Prekey, owner: &Peer, now_ms: i64) -> Option<PublicKey> {
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
