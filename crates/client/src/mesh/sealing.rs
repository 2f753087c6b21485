//! Messages sealed for their recipients and opened by them. A sender seals one copy for each device that has left a prekey,
//! and one for each other device of its own; a recipient opens what its own prekeys were used for, once.

use std::time::Duration;

use ostler_crypto::{
    certificates::{Certificate, Peer},
    envelope::{self, Address, Envelope, Identity},
    keys::{Curve, PrivateKey, PublicKey},
    prekeys,
    replay::{Refused, ReplayGuard},
};
use ostler_protocol::{
    Failure, FailureKind,
    mesh::{
        Aid,
        auth::not_registered,
        messages::{AckParams, AckResult, MULTI_DEVICE, Message, PullParams, PullResult, SEALED, SendResult},
        prekeys::{GetPrekeyParams, GetPrekeyResult, Prekey, PutPrekeyResult},
    },
};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Gateway, Heard, Session, Standing, not_believed};

/// After so long without a word it is time to see whether the gateway is still there.
const QUIET_MAX: Duration = Duration::from_secs(30);
/// A prekey is left anew after this long: what was sealed with an older one is opened by fewer stolen keys.
const PREKEY_MS_MAX: i64 = 24 * 60 * 60 * 1_000;

/// A prekey of ours, with its private half. Senders go on using it for days.
#[derive(Clone)]
pub struct OwnPrekey {
    pub prekey_id: String,
    pub key: PrivateKey,
    /// Milliseconds.
    pub created_at: i64,
}

/// What an agent opens messages with.
pub struct Keys {
    pub identity: Identity,
    /// The same key under the certificates it had before: some may still have sealed for those.
    pub earlier: Vec<Identity>,
    pub prekeys: Vec<OwnPrekey>,
}

/// A message that came, and what it says; or why it stays shut.
#[derive(Debug)]
pub struct Opened {
    pub message: Message,
    pub contents: Result<Value, Shut>,
}

/// Why a message stays shut.
#[derive(Debug)]
pub enum Shut {
    /// Nobody will ever open it here.
    ForGood(String),
    /// Whether it can be opened could not be found out. Whoever acknowledges it loses it.
    ForNow(Failure),
}

impl From<Failure> for Shut {
    fn from(failure: Failure) -> Self {
        Self::ForNow(failure)
    }
}

/// What comes while one listens.
#[derive(Debug)]
pub enum Came {
    Message(Box<Opened>),
    Other(Heard),
    /// Nothing, for a while.
    Nothing,
}

/// An agent on one device, in session: it sends sealed and opens what is sealed for it.
pub struct Sealer {
    gateway: Gateway,
    session: Session,
    keys: Keys,
    aid: Aid,
    device_id: String,
    replays: ReplayGuard,
}

impl Sealer {
    pub fn new(gateway: Gateway, session: Session, keys: Keys, device_id: &str) -> Result<Self, Failure> {
        let aid = keys.identity.name().parse().map_err(Failure::internal)?;
        let (device_id, replays) = (device_id.to_owned(), ReplayGuard::default());
        Ok(Self { gateway, session, keys, aid, device_id, replays })
    }

    /// The one that is in use.
    pub fn certificate(&self) -> &Certificate {
        self.keys.identity.certificate()
    }

    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    pub async fn close(self) {
        self.session.close().await;
    }

    /// Whether senders need a new prekey of this device: they have none of ours, or one that is old or of an earlier
    /// certificate.
    pub async fn needs_prekey(&mut self) -> Result<bool, Failure> {
        let asked = GetPrekeyParams { aid: self.aid.clone() };
        let left: GetPrekeyResult = self.session.call("message.e2ee.get_prekey", &asked).await?;
        let now_ms = self.gateway.ambient().now().as_millisecond();
        let serves = |left: &Prekey| {
            left.device_id.as_ref() == Some(&self.device_id)
                && left.cert_fingerprint == self.keys.identity.fingerprint()
                && now_ms.saturating_sub(left.created_at) < PREKEY_MS_MAX
                && self.keys.prekeys.iter().any(|own| own.prekey_id == left.prekey_id)
        };
        Ok(!left.device_prekeys.iter().any(serves))
    }

    /// Draws a prekey. Its caller keeps the private half, and then leaves it with [`Sealer::put_prekey`]: what is sealed with
    /// it opens with nothing else.
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

    /// Leaves a prekey for senders.
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

    /// Seals a message for every device of its recipient, and for the sender's own others, and sends it.
    pub async fn send(&mut self, to: &Aid, contents: &Value) -> Result<SendResult, Failure> {
        let ambient = self.gateway.ambient();
        let (message_id, now_ms) = (ambient.id(), ambient.now().as_millisecond());
        let text = contents.to_string();
        let (theirs, doubt) = self.sealed_for(to, to, &message_id, now_ms, &text).await?;
        if theirs.is_empty() {
            return Err(self.nothing_sealed(to, doubt).await?);
        }
        let copies = self.sealed_for_others(to, &message_id, now_ms, &text).await?;
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

    /// Copies for the sender's other devices, unless the message is for them in any case.
    async fn sealed_for_others(
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
        let (mut copies, _) = self.sealed_for(&own, to, message_id, now_ms, text).await?;
        copies.retain(|(device_id, _)| *device_id != self.device_id);
        Ok(copies)
    }

    /// Why there is nobody to seal for.
    async fn nothing_sealed(&self, to: &Aid, doubt: Option<String>) -> Result<Failure, Failure> {
        Ok(match (doubt, self.gateway.standing(to, None).await?) {
            (_, Standing::Unknown) => not_registered(to),
            (_, Standing::NotBelieved { why, .. }) | (Some(why), _) => not_believed(&why),
            (None, Standing::Believed(_)) => {
                let message = format!("{to} has left no prekey, so nothing can be sealed for it that stays sealed");
                Failure::rule(FailureKind::StateConflict, "mesh-no-prekey", message)
            }
        })
    }

    /// One copy for each device of an agent that has left a prekey which can be believed. The others get none; why, for one
    /// of them.
    async fn sealed_for(
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
        let (mut sealed, mut doubt) = (vec![], None);
        for prekey in prekeys {
            let peer = match self.gateway.standing(owner, Some(&prekey.cert_fingerprint)).await? {
                Standing::Believed(peer) => peer,
                Standing::NotBelieved { why, .. } => {
                    doubt = Some(why);
                    continue;
                }
                Standing::Unknown => continue,
            };
            let Some(key) = usable(&prekey, &peer, now_ms) else {
                doubt = Some(format!("a prekey of {owner} is too old, or not signed by it"));
                continue;
            };
            let named = Some((prekey.prekey_id.as_str(), &key));
            let letter = (to.as_str(), message_id, now_ms);
            let fill = &mut |bytes: &mut [u8]| (ambient.fill)(bytes);
            if let Some(envelope) = envelope::seal(&self.keys.identity, &peer, named, letter, text.as_bytes(), fill) {
                sealed.push((prekey.device_id.unwrap_or_default(), envelope));
            }
        }
        Ok((sealed, doubt))
    }

    /// What came after a number and was not acknowledged yet, opened.
    pub async fn pull(&mut self, after_seq: i64) -> Result<(Vec<Opened>, PullResult), Failure> {
        let params = PullParams { after_seq, device_id: Some(self.device_id.clone()), ..PullParams::default() };
        let mut result: PullResult = self.session.call("message.pull", &params).await?;
        let mut opened = vec![];
        let messages = std::mem::take(&mut result.messages).into_iter();
        for message in messages.filter(|message| message.seq > result.server_ack_seq) {
            let contents = self.open(&message).await;
            opened.push(Opened { message, contents });
        }
        Ok((opened, result))
    }

    /// What is pushed next: a message, opened, or something else.
    pub async fn hear(&mut self) -> Result<Came, Failure> {
        let Ok(heard) = timeout(QUIET_MAX, self.session.hear()).await else { return Ok(Came::Nothing) };
        Ok(match heard? {
            Heard::Message(message) => {
                let contents = self.open_pushed(&message).await;
                Came::Message(Box::new(Opened { message: *message, contents }))
            }
            other => Came::Other(other),
        })
    }

    /// Says that this message and all before it were received.
    pub async fn ack(&mut self, seq: i64) -> Result<i64, Failure> {
        let params = AckParams { seq, device_id: Some(self.device_id.clone()), slot_id: None };
        let result: AckResult = self.session.call("message.ack", &params).await?;
        Ok(result.ack_seq)
    }

    async fn open(&self, message: &Message) -> Result<Value, Shut> {
        let Some(envelope) = envelope_of(message)? else { return Ok(message.payload.to_value()) };
        let sender = self.sender(message, &envelope).await?;
        let text = self.unseal(message, &envelope, &sender).map_err(|why| Shut::ForGood(why.to_string()))?;
        read(&text)
    }

    /// As [`Sealer::open`], but once, and only near the time that its sender signed; what comes later is for pulling.
    async fn open_pushed(&mut self, message: &Message) -> Result<Value, Shut> {
        let Some(envelope) = envelope_of(message)? else { return Ok(message.payload.to_value()) };
        let sender = self.sender(message, &envelope).await?;
        let now_ms = self.gateway.ambient().now().as_millisecond();
        let mut replays = std::mem::take(&mut self.replays);
        let opened = replays.admit(&envelope, now_ms, || self.unseal(message, &envelope, &sender));
        self.replays = replays;
        read(&opened.map_err(|refused| match refused {
            Refused::OutsideWindow => Shut::ForNow(Failure::rule(
                FailureKind::InfraFailed,
                "mesh-window",
                "it was pushed long after it was sealed, or before",
            )),
            Refused::Replayed => Shut::ForGood("it came before".to_owned()),
            Refused::Unopened(why) => Shut::ForGood(why.to_string()),
        })?)
    }

    async fn sender(&self, message: &Message, envelope: &Envelope) -> Result<Peer, Shut> {
        match self.gateway.standing(&message.from, Some(&envelope.sender_cert_fingerprint)).await? {
            Standing::Believed(peer) => Ok(*peer),
            Standing::NotBelieved { why, .. } => Err(Shut::ForGood(why)),
            Standing::Unknown => Err(Shut::ForGood(format!("{} has no such certificate", message.from))),
        }
    }

    fn unseal(
        &self,
        message: &Message,
        envelope: &Envelope,
        sender: &Peer,
    ) -> Result<zeroize::Zeroizing<Vec<u8>>, envelope::Unopened> {
        let Keys { identity, earlier, prekeys } = &self.keys;
        let named = envelope.prekey_id.as_ref();
        let prekey = named.and_then(|id| prekeys.iter().find(|own| own.prekey_id == *id));
        let sealed_for = &envelope.aad.recipient_cert_fingerprint;
        let identity = earlier.iter().find(|earlier| earlier.fingerprint() == sealed_for).unwrap_or(identity);
        let (from, to, message_id) = (message.from.as_str(), message.to.as_str(), message.message_id.as_str());
        let address = Address { from, to, message_id };
        envelope::open(envelope, address, sender, identity, prekey.map(|own| &own.key))
    }
}

fn read(text: &[u8]) -> Result<Value, Shut> {
    serde_json::from_slice(text).map_err(|_| Shut::ForGood("what was sealed is not JSON".to_owned()))
}

/// `None`: the message is not sealed.
fn envelope_of(message: &Message) -> Result<Option<Envelope>, Shut> {
    if !message.encrypted {
        return Ok(None);
    }
    let read = serde_json::from_str(message.payload.as_str());
    read.map(Some).map_err(|_| Shut::ForGood("not an envelope of a kind that we know".to_owned()))
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
