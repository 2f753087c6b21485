//! The hash chain of a session's events. Only the payload's digest is chained, so a payload can be erased and the
//! proof stays.

use sha2::{Digest, Sha256};

use crate::{
    Timestamp,
    ids::{CommandId, RunId},
    kernel::events::EventType,
};

pub type Hash = [u8; 32];

/// The head of a session without events.
pub const GENESIS: Hash = [0; 32];

/// What a link covers, apart from the link before it.
pub struct Link<'a> {
    pub session_seq: i64,
    pub run: Option<(RunId, i64)>,
    pub command_id: Option<CommandId>,
    pub event_type: EventType,
    pub created_at: Timestamp,
    pub payload_digest: &'a Hash,
}

pub fn payload_digest(payload: &str) -> Hash {
    Sha256::digest(payload.as_bytes()).into()
}

/// Every field has a fixed width or a length before it, so no two links read the same.
pub fn next(previous: &Hash, link: &Link<'_>) -> Hash {
    let mut hasher = Sha256::new();
    hasher.update(previous);
    hasher.update(link.session_seq.to_be_bytes());
    match &link.run {
        Some((run_id, seq)) => {
            text(&mut hasher, &run_id.to_string());
            hasher.update(seq.to_be_bytes());
        }
        None => text(&mut hasher, ""),
    }
    match &link.command_id {
        Some(command_id) => text(&mut hasher, &command_id.to_string()),
        None => text(&mut hasher, ""),
    }
    text(&mut hasher, link.event_type.as_str());
    hasher.update(link.created_at.as_microsecond().to_be_bytes());
    hasher.update(link.payload_digest);
    hasher.finalize().into()
}

/// What names the contents of a batch: types, commands and payloads, in order.
pub fn batch_digest<'a>(events: impl Iterator<Item = (EventType, Option<CommandId>, &'a Hash)>) -> Hash {
    let mut hasher = Sha256::new();
    for (event_type, command_id, payload_digest) in events {
        text(&mut hasher, event_type.as_str());
        text(&mut hasher, &command_id.map(|id| id.to_string()).unwrap_or_default());
        hasher.update(payload_digest);
    }
    hasher.finalize().into()
}

fn text(hasher: &mut Sha256, value: &str) {
    hasher.update([value.len() as u8]);
    hasher.update(value.as_bytes());
}
