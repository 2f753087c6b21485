//! Sends and acknowledgements on their way through a lane.

use std::sync::Arc;

use ostler_protocol::{
    Timestamp,
    mesh::{
        Aid,
        connections::{DeviceSlot, Mode},
        mailbox::{SendOp, StoredMessage},
        messages::Direction,
    },
};
use tokio::sync::oneshot;

use crate::lane::job::LaneError;

/// Who receives messages in this process.
pub trait Recipients: Send + Sync + 'static {
    /// Called for each message once it is durable, in the order of its mailbox, before its sender is answered. Returns whether
    /// a connection was given it.
    fn deliver(&self, stored: &StoredMessage) -> bool;
}

/// A device slot has received every message up to a number.
#[derive(Clone, Debug)]
pub struct Ack {
    pub aid: Aid,
    pub place: DeviceSlot,
    pub seq: i64,
}

/// A write that goes through a lane.
#[derive(Clone, Debug)]
pub enum MailboxRequest {
    Send(Box<SendOp>),
    Ack(Ack),
}

impl MailboxRequest {
    /// About how many bytes it holds while it waits.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Send(outgoing) => outgoing.payload.as_str().len() + outgoing.message_id.len(),
            Self::Ack(_) => 0,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum MailboxOutcome {
    Sent(Sent),
    /// Nothing was sent: a mailbox that it goes to has no room.
    Full,
    Acked(Acked),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Sent {
    /// The recipient. It may differ from the requested one if the sender has used the id before.
    pub to: Aid,
    pub seq: i64,
    pub sent_at: Timestamp,
    pub mode: Mode,
    /// The message was sent before; the other fields describe that send.
    pub duplicate: bool,
    /// A connection to this server has received it, or is about to.
    pub delivered: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Acked {
    /// The acknowledged position before, …
    pub before: i64,
    /// … and after. It never moves back, nor beyond the last message.
    pub ack_seq: i64,
    /// The senders of the messages that this acknowledges.
    pub senders: Vec<Aid>,
}

/// A write that waits for a lane, and who waits for its outcome.
pub(crate) struct MailboxJob {
    pub post: MailboxRequest,
    pub recipients: Arc<dyn Recipients>,
    pub answer: oneshot::Sender<Result<MailboxOutcome, LaneError>>,
}

/// Delivers what is durable now. Returns whether its recipient got it.
pub(crate) fn delivered(
    recipients: &dyn Recipients,
    mut posted: MailboxOutcome,
    stored_messages: &[StoredMessage],
) -> MailboxOutcome {
    for stored in stored_messages {
        let given = recipients.deliver(stored);
        if let MailboxOutcome::Sent(sent) = &mut posted {
            sent.delivered |= given && stored.direction == Direction::Inbound;
        }
    }
    posted
}
