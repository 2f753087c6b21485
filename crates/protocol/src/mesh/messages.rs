//! Messages between identities: their parameters, results and events, and the few fields of a payload that a server
//! reads.
//! Sealed contents stay sealed; of an envelope the server reads only its kind, and of the container for several devices
//! which copy is for which.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Aid,
    connections::{Mode, is_place_id},
};
use crate::{Failure, RawJson, Rule};

/// The longest frame that the published client accepts; a longer one ends its connection.
pub const CLIENT_FRAME_BYTES_MAX: usize = 1024 * 1024;
/// A megabyte, as the protocol's documents specify. The fields around a payload in a frame still fit beside it.
pub const PAYLOAD_BYTES_MAX: usize = 1_000_000;
/// The size limit of one `message.pull` response, unless its first message alone is larger.
pub const PULL_BYTES_MAX: usize = 640 * 1024;
pub const MESSAGE_ID_BYTES_MAX: usize = 128;
pub const TYPE_BYTES_MAX: usize = 128;
pub const COPIES_MAX: usize = 32;
pub const PULL_ITEMS_DEFAULT: u32 = 100;
pub const PULL_ITEMS_MAX: u32 = 200;
pub const RECALL_IDS_MAX: usize = 100;
pub const RECALL_MS_MAX: i64 = 120_000;
pub const QUERY_AIDS_MAX: usize = 100;
/// How long a durable message is kept.
pub const MESSAGE_LIFE_MS_DEFAULT: i64 = 86_400_000;
/// A leaky bucket: a mailbox accepts this much at once, and more as the bucket drains, which takes as long as a message
/// is stored. So a mailbox never holds more than twice as much, and nothing has to be counted when messages expire.
pub const MAILBOX_BYTES_MAX: i64 = MAILBOX_DRAIN_BYTES_PER_MS * MESSAGE_LIFE_MS_DEFAULT;
pub const MAILBOX_DRAIN_BYTES_PER_MS: i64 = 6;
/// What a message counts beside its payload, so that many small ones count, too.
pub const MESSAGE_OVERHEAD_BYTES: i64 = 512;
/// How long, …
pub const QUEUED_MS_MAX: i64 = 300_000;
/// … and how many messages that wait for one consumer are stored per identity.
pub const QUEUED_MAX: usize = 200;

pub const SEALED: &str = "e2ee.encrypted";
pub const MULTI_DEVICE: &str = "e2ee.multi_device";
pub const RECEIVED_EVENT: &str = "event/message.received";
pub const ACK_EVENT: &str = "event/message.ack";
pub const RECALLED_EVENT: &str = "event/message.recalled";

/// Other fields that a caller sends, such as a time or a delivery mode of its own, are ignored: the server's time and
/// the connection's mode count.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct SendParams {
    #[schema(value_type = String)]
    pub to: Aid,
    /// An object; its meaning is up to the identities.
    #[schema(value_type = Object)]
    pub payload: RawJson,
    /// The kind of envelope; business types are in the payload.
    #[serde(default, rename = "type")]
    pub kind: Option<String>,
    /// Sealed from end to end.
    #[serde(default)]
    pub encrypted: bool,
    /// Sent again under the same id, a message is the same message.
    #[serde(default)]
    pub message_id: Option<String>,
}

/// What a server does with a payload.
#[derive(Clone, Debug, PartialEq)]
pub enum SendContents {
    /// Passed on as it is.
    Whole,
    /// Taken apart: each device gets its copy.
    Copies { recipient: Vec<DeviceCopy>, own: Vec<DeviceCopy> },
}

/// One device's envelope.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct DeviceCopy {
    pub device_id: String,
    pub envelope: RawJson,
}

#[derive(Deserialize)]
struct PayloadKind {
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Deserialize)]
struct Container {
    logical_message_id: Option<String>,
    recipient_copies: Vec<DeviceCopy>,
    #[serde(default)]
    self_copies: Vec<DeviceCopy>,
}

impl SendParams {
    /// Checks the sizes and the envelope, and returns how it is delivered.
    pub fn check(&self) -> Result<SendContents, Failure> {
        if !self.payload.is_object() {
            return Err(
                Failure::invalid(Rule::PayloadNotAnObject, "payload: expected an object").detail("field", "payload")
            );
        }
        let size = self.payload.size();
        if size > PAYLOAD_BYTES_MAX {
            return Err(Failure::too_large(Rule::PayloadSize, "payload", size, PAYLOAD_BYTES_MAX));
        }
        if self.to.is_built_in_service() {
            let message = "to: this service receives no messages; it has methods of its own";
            return Err(Failure::invalid(Rule::ToAService, message));
        }
        if self.message_id.as_deref().is_some_and(|id| !is_printable(id, MESSAGE_ID_BYTES_MAX)) {
            let message = format!("message_id: 1 to {MESSAGE_ID_BYTES_MAX} bytes without control characters");
            return Err(Failure::invalid(Rule::MessageId, message).detail("field", "message_id"));
        }
        if self.kind.as_deref().is_some_and(|kind| !is_printable(kind, TYPE_BYTES_MAX)) {
            let message = format!("type: 1 to {TYPE_BYTES_MAX} bytes without control characters");
            return Err(Failure::invalid(Rule::MessageType, message).detail("field", "type"));
        }
        self.contents()
    }

    fn contents(&self) -> Result<SendContents, Failure> {
        let inner = kind_of(&self.payload);
        let wrong = |message: &str| Err(Failure::invalid(Rule::Envelope, message));
        match (self.encrypted, inner.as_deref()) {
            (true, Some(SEALED)) => self.named(SEALED).map(|()| SendContents::Whole),
            (true, Some(MULTI_DEVICE)) => self.named(MULTI_DEVICE).and_then(|()| self.copies()),
            // Only the recipient can read it, so only the recipient can check whether it knows this envelope.
            (true, _) => Ok(SendContents::Whole),
            // A container that no recipient may open would reach clients who cannot read it.
            (false, Some(MULTI_DEVICE)) => wrong("a payload of copies for devices is sent with encrypted: true"),
            (false, _) => Ok(SendContents::Whole),
        }
    }

    /// The `type` outside the envelope, if there is one, must match the envelope's own.
    fn named(&self, kind: &str) -> Result<(), Failure> {
        match &self.kind {
            Some(outer) if outer != kind => Err(Failure::invalid(Rule::Envelope, "type is not the payload's")),
            _ => Ok(()),
        }
    }

    fn copies(&self) -> Result<SendContents, Failure> {
        let wrong = |message: &str| Failure::invalid(Rule::EnvelopeCopies, message);
        let container: Container =
            self.payload.view().ok_or_else(|| wrong("recipient_copies: a list of device_id and envelope"))?;
        let named = container.logical_message_id.is_none() || container.logical_message_id == self.message_id;
        if !named {
            return Err(wrong("logical_message_id is not the message's"));
        }
        let Container { recipient_copies: recipient, self_copies: own, .. } = container;
        if recipient.is_empty() || recipient.len() > COPIES_MAX || own.len() > COPIES_MAX {
            return Err(wrong("1 to 32 copies for the recipient, at most 32 for the sender's own devices"));
        }
        if !recipient.iter().chain(&own).all(|copy| is_place_id(&copy.device_id)) {
            return Err(wrong("device_id: up to 128 of A-Z, a-z, 0-9, ., _ and -"));
        }
        for copies in [&recipient, &own] {
            let mut devices: Vec<&str> = copies.iter().map(|copy| copy.device_id.as_str()).collect();
            devices.sort_unstable();
            devices.dedup();
            let sealed = |copy: &DeviceCopy| kind_of(&copy.envelope).as_deref() == Some(SEALED);
            if devices.len() != copies.len() || !copies.iter().all(sealed) {
                return Err(wrong("each device has one copy, and each copy is sealed"));
            }
        }
        Ok(SendContents::Copies { recipient, own })
    }
}

/// Whether a text is neither empty nor too long, and has no invisible characters.
pub(super) fn is_printable(text: &str, bytes_max: usize) -> bool {
    (1..=bytes_max).contains(&text.len()) && !text.chars().any(char::is_control)
}

fn kind_of(payload: &RawJson) -> Option<String> {
    payload.view::<PayloadKind>()?.kind
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SendStatus {
    /// It is stored.
    Sent,
    /// It was also sent to a connection.
    Delivered,
    /// It had been sent before.
    Duplicate,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SendResult {
    pub message_id: String,
    /// The message's number among those to its recipient.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<i64>,
    /// The server's time, in milliseconds.
    pub timestamp: i64,
    pub status: SendStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_mode: Option<Mode>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    Inbound,
    /// A copy of what another device of the same identity sent.
    OutboundSync,
}

enum_words!(Direction { Inbound => "inbound", OutboundSync => "outbound_sync" });

/// A message as it is pushed and pulled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Message {
    pub message_id: String,
    pub seq: i64,
    #[schema(value_type = String)]
    pub from: Aid,
    #[schema(value_type = String)]
    pub to: Aid,
    /// The server's time, in milliseconds.
    pub timestamp: i64,
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[schema(value_type = Object)]
    pub payload: RawJson,
    pub delivery_mode: Mode,
    pub encrypted: bool,
    pub direction: Direction,
    /// The device that this copy is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_id: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PullParams {
    #[serde(default)]
    pub after_seq: i64,
    /// 100 by default, at most 200.
    #[serde(default)]
    pub limit: Option<u32>,
    #[serde(default)]
    pub device_id: Option<String>,
    #[serde(default)]
    pub slot_id: Option<String>,
}

impl PullParams {
    pub fn limit(&self) -> Result<u32, Failure> {
        match self.limit.unwrap_or(PULL_ITEMS_DEFAULT) {
            limit @ 1..=PULL_ITEMS_MAX if self.after_seq >= 0 => Ok(limit),
            1..=PULL_ITEMS_MAX => {
                Err(Failure::invalid(Rule::PullAfter, "after_seq: 0 or more").detail("field", "after_seq"))
            }
            _ => {
                Err(Failure::invalid(Rule::PullLimit, format!("limit: 1 to {PULL_ITEMS_MAX}")).detail("field", "limit"))
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PullResult {
    pub messages: Vec<Message>,
    pub count: usize,
    /// The highest number in this answer.
    pub latest_seq: i64,
    /// The position this place has acknowledged, or a later one: up to here there is nothing to wait for.
    pub server_ack_seq: i64,
    /// The oldest message of the queue that is still there.
    pub ephemeral_earliest_available_seq: Option<i64>,
    /// How many messages of the queue are not.
    pub ephemeral_dropped_count: i64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AckParams {
    /// This and all before it have been received.
    pub seq: i64,
    #[serde(default)]
    pub device_id: Option<String>,
    #[serde(default)]
    pub slot_id: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AckResult {
    pub success: bool,
    /// The current position of the mark; it never goes back.
    pub ack_seq: i64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RecallParams {
    /// At most 100.
    pub message_ids: Vec<String>,
}

impl RecallParams {
    pub fn check(&self) -> Result<(), Failure> {
        let fits = (1..=RECALL_IDS_MAX).contains(&self.message_ids.len())
            && self.message_ids.iter().all(|id| is_printable(id, MESSAGE_ID_BYTES_MAX));
        let message = || {
            format!(
                "message_ids: 1 to {RECALL_IDS_MAX} ids of 1 to {MESSAGE_ID_BYTES_MAX} bytes without control characters"
            )
        };
        if fits { Ok(()) } else { Err(Failure::invalid(Rule::RecallIds, message()).detail("field", "message_ids")) }
    }
}

/// Why a message is not recalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecallError {
    NotFound,
    NotSender,
    AlreadyRecalled,
    Expired,
}

/// The fields of a message that decide whether it can be recalled.
#[derive(Clone, Copy, Debug)]
pub struct Recallable<'a> {
    pub from: &'a Aid,
    pub sent_ms: i64,
    pub recalled: bool,
}

/// Whether its caller may take a message back now. One that was never there and one of the queue, which has no history, are both
/// not found.
pub fn recall(message: Option<Recallable<'_>>, caller: &Aid, now_ms: i64) -> Result<(), RecallError> {
    match message {
        None => Err(RecallError::NotFound),
        Some(message) if message.from != caller => Err(RecallError::NotSender),
        Some(message) if message.recalled => Err(RecallError::AlreadyRecalled),
        Some(message) if now_ms.saturating_sub(message.sent_ms) > RECALL_MS_MAX => Err(RecallError::Expired),
        Some(_) => Ok(()),
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RecallFailure {
    pub message_id: String,
    pub error: RecallError,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RecallResult {
    pub success: bool,
    pub accepted: usize,
    pub recalled: usize,
    /// `null` when there are none.
    pub errors: Option<Vec<RecallFailure>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueryOnlineParams {
    /// At most 100. Names of other domains, and invalid names, are not online here.
    pub aids: Vec<String>,
}

impl QueryOnlineParams {
    pub fn check(&self) -> Result<(), Failure> {
        let message = || format!("aids: 1 to {QUERY_AIDS_MAX}");
        let fits = (1..=QUERY_AIDS_MAX).contains(&self.aids.len());
        if fits { Ok(()) } else { Err(Failure::invalid(Rule::QueryAids, message()).detail("field", "aids")) }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueryOnlineResult {
    /// Keyed by the names as they were requested.
    pub online: std::collections::BTreeMap<String, bool>,
}

/// Sent to the identities whose messages were acknowledged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AckEvent {
    /// Who acknowledged.
    #[schema(value_type = String)]
    pub to: Aid,
    pub device_id: String,
    pub slot_id: String,
    pub ack_seq: i64,
    /// Milliseconds.
    pub timestamp: i64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RecalledEvent {
    #[schema(value_type = String)]
    pub from: Aid,
    #[schema(value_type = String)]
    pub to: Aid,
    pub message_ids: Vec<String>,
    /// Milliseconds.
    pub timestamp: i64,
}

#[cfg(test)]
mod tests;
