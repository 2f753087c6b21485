//! A message on its way into mailboxes: what its sender hands in, and what each mailbox that it goes to receives.

use jiff::SignedDuration;

use crate::{
    RawJson, Timestamp,
    mesh::{
        Aid,
        connections::Mode,
        messages::{DeviceCopy, Direction, MESSAGE_OVERHEAD_BYTES, Message, SEALED, SendContents},
    },
};

/// A message to be sent.
#[derive(Clone, Debug)]
pub struct SendOp {
    pub message_id: String,
    pub from: Aid,
    pub to: Aid,
    pub kind: Option<String>,
    pub encrypted: bool,
    /// The payload of a message that is the same for every device.
    pub payload: RawJson,
    pub contents: SendContents,
    pub life: SignedDuration,
}

/// The part of a send that goes into one mailbox.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredMessage {
    /// The identity that the mailbox belongs to.
    pub owner: Aid,
    /// The mailbox's number for it; 0 until it has one.
    pub seq: i64,
    pub message_id: String,
    pub from: Aid,
    pub to: Aid,
    pub direction: Direction,
    pub kind: Option<String>,
    pub encrypted: bool,
    pub mode: Mode,
    pub sent_at: Timestamp,
    pub contents: Contents,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Contents {
    /// The same for every device.
    Whole(RawJson),
    /// One copy per device. Such a message is never queued: it is for all of them, not for one consumer.
    Copies(Vec<DeviceCopy>),
}

impl SendOp {
    /// The message for the recipient's mailbox, and the copy for the sender's other devices if there is one.
    pub fn stored_messages(&self, now: Timestamp) -> (StoredMessage, Option<StoredMessage>) {
        let message = |owner: &Aid, direction, contents: Contents| StoredMessage {
            owner: owner.clone(),
            seq: 0,
            message_id: self.message_id.clone(),
            from: self.from.clone(),
            to: self.to.clone(),
            direction,
            kind: match contents {
                Contents::Whole(_) => self.kind.clone(),
                Contents::Copies(_) => Some(SEALED.to_owned()),
            },
            encrypted: self.encrypted,
            mode: Mode::Fanout,
            sent_at: now,
            contents,
        };
        match &self.contents {
            SendContents::Whole => (message(&self.to, Direction::Inbound, Contents::Whole(self.payload.clone())), None),
            SendContents::Copies { recipient, own } => {
                let to = message(&self.to, Direction::Inbound, Contents::Copies(recipient.clone()));
                let own = (!own.is_empty())
                    .then(|| message(&self.from, Direction::OutboundSync, Contents::Copies(own.clone())));
                (to, own)
            }
        }
    }

    pub fn expires_at(&self, now: Timestamp) -> Timestamp {
        now.checked_add(self.life).unwrap_or(Timestamp::MAX)
    }
}

impl StoredMessage {
    /// The message as a device receives it. `None` if there is no copy for the device.
    pub fn for_device(&self, device_id: &str) -> Option<Message> {
        let (payload, device_id) = match &self.contents {
            Contents::Whole(payload) => (payload, None),
            Contents::Copies(copies) => {
                let copy = copies.iter().find(|copy| copy.device_id == device_id)?;
                (&copy.envelope, Some(device_id.to_owned()))
            }
        };
        Some(Message {
            message_id: self.message_id.clone(),
            seq: self.seq,
            from: self.from.clone(),
            to: self.to.clone(),
            timestamp: self.sent_at.as_millisecond(),
            kind: self.kind.clone(),
            payload: payload.clone(),
            delivery_mode: self.mode,
            encrypted: self.encrypted,
            direction: self.direction,
            device_id,
        })
    }

    /// Whether it is queued for one consumer if its owner's mode is [`Mode::Queue`].
    pub fn may_queue(&self) -> bool {
        self.direction == Direction::Inbound && matches!(self.contents, Contents::Whole(_))
    }

    /// The bytes of its payload, or of all its copies.
    pub fn contents_bytes(&self) -> usize {
        match &self.contents {
            Contents::Whole(payload) => payload.as_str().len(),
            Contents::Copies(copies) => copies.iter().map(|copy| copy.envelope.as_str().len()).sum(),
        }
    }

    /// What storing it uses of the mailbox's allowance, in bytes.
    pub fn weight(&self) -> i64 {
        self.contents_bytes() as i64 + MESSAGE_OVERHEAD_BYTES
    }

    /// `None` if it has copies for devices instead.
    pub fn payload(&self) -> Option<&RawJson> {
        match &self.contents {
            Contents::Whole(payload) => Some(payload),
            Contents::Copies(_) => None,
        }
    }

    pub fn copies(&self) -> &[DeviceCopy] {
        match &self.contents {
            Contents::Whole(_) => &[],
            Contents::Copies(copies) => copies,
        }
    }
}
