//! The hash chain of a session's events. Only the payload's digest is chained, so a payload can be erased and the
//! proof stays.

use crate::{
    Timestamp,
    ids::{CommandId, RunId},
    kernel::events::EventType,
    sha256::{Sha256Stream, sha256},
};

pub use crate::sha256::Hash;

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
    sha256(payload)
}

/// More than the bytes of a link, whatever its event.
const LINK_BYTES: usize = 256;

/// Every field has a fixed width or a length before it, so no two links read the same.
pub fn next(previous: &Hash, link: &Link<'_>) -> Hash {
    let mut bytes = Vec::with_capacity(LINK_BYTES);
    bytes.extend_from_slice(previous);
    bytes.extend_from_slice(&link.session_seq.to_be_bytes());
    match &link.run {
        Some((run_id, seq)) => {
            put_text(&mut bytes, &run_id.ascii());
            bytes.extend_from_slice(&seq.to_be_bytes());
        }
        None => put_text(&mut bytes, b""),
    }
    match &link.command_id {
        Some(command_id) => put_text(&mut bytes, &command_id.ascii()),
        None => put_text(&mut bytes, b""),
    }
    put_text(&mut bytes, link.event_type.as_str().as_bytes());
    bytes.extend_from_slice(&link.created_at.as_microsecond().to_be_bytes());
    bytes.extend_from_slice(link.payload_digest);
    sha256(&bytes)
}

/// What names the contents of a batch: types, commands and payloads, in order.
pub fn batch_digest<'a>(events: impl Iterator<Item = (EventType, Option<CommandId>, &'a Hash)>) -> Hash {
    let mut stream = Sha256Stream::default();
    let mut bytes = Vec::with_capacity(LINK_BYTES);
    for (event_type, command_id, payload_digest) in events {
        bytes.clear();
        put_text(&mut bytes, event_type.as_str().as_bytes());
        match command_id {
            Some(command_id) => put_text(&mut bytes, &command_id.ascii()),
            None => put_text(&mut bytes, b""),
        }
        bytes.extend_from_slice(payload_digest);
        stream.update(&bytes);
    }
    stream.finish()
}

fn put_text(bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.push(text.len() as u8);
    bytes.extend_from_slice(text);
}
