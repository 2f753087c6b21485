//! The rows of messages and mailboxes.

use ostler_protocol::{
    Timestamp,
    mesh::{
        Aid,
        connections::{DeviceSlot, Mode},
        mailbox::{Contents, StoredMessage, queued_since},
        messages::{DeviceCopy, Direction},
    },
};

use crate::record::record;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mailbox {
    pub last_seq: i64,
    pub mode: Mode,
    pub dropped: i64,
    /// When its queue last received a message.
    pub queued_at: Option<Timestamp>,
}

impl Mailbox {
    /// Whether its queue can hold a message.
    pub fn may_hold(&self, now: Timestamp) -> bool {
        self.queued_at.is_some_and(|at| at > queued_since(now))
    }
}

record! {
    StoredMessage, stored in "mesh_messages";
    key {
        owner: id;
        seq: int;
    }
    fixed {
        message_id: text;
        sender: id from stored.from;
        recipient: id from stored.to;
        direction: named(Direction);
        kind = "type": opt_text;
        encrypted: flag;
        // A message without a payload has copies, which are in another table.
        payload: opt_raw_json from stored.payload();
        sent_at: time;
    }
    state {}
    beside { expires_at recalled_at }
    build StoredMessage {
        owner,
        seq,
        message_id,
        from: sender,
        to: recipient,
        direction,
        kind,
        encrypted,
        mode: Mode::Fanout,
        sent_at,
        contents: payload.map_or(Contents::Copies(vec![]), Contents::Whole),
    };
}

/// The copy of a message for one device.
pub(crate) struct MessageCopy {
    pub owner: Aid,
    pub seq: i64,
    pub copy: DeviceCopy,
    pub expires_at: Timestamp,
}

record! {
    MessageCopy, stored in "mesh_message_copies";
    key {
        owner: id;
        seq: int;
        device_id: text from stored.copy.device_id;
    }
    fixed {
        payload: raw_json from stored.copy.envelope;
        expires_at: time;
    }
    state {}
    build MessageCopy { owner, seq, copy: DeviceCopy { device_id, envelope: payload }, expires_at };
}

/// The position that a device slot has acknowledged.
pub(crate) struct AckCursor {
    pub aid: Aid,
    pub place: DeviceSlot,
    pub ack_seq: i64,
    pub updated_at: Timestamp,
}

record! {
    AckCursor, cursor in "mesh_cursors";
    key {
        aid: id;
        device_id: text from cursor.place.device_id;
        slot_id: text from cursor.place.slot_id;
    }
    fixed {}
    state {
        ack_seq: int;
        updated_at: time;
    }
    build AckCursor { aid, place: DeviceSlot { device_id, slot_id }, ack_seq, updated_at };
}

/// A mailbox with how much of its allowance was in use, and when.
pub(crate) struct MailboxRow {
    pub aid: Aid,
    pub mailbox: Mailbox,
    pub used_bytes: i64,
    pub used_at: Timestamp,
}

record! {
    MailboxRow, row in "mesh_mailboxes";
    key {
        aid: id;
    }
    fixed {}
    state {
        last_seq: int from row.mailbox.last_seq;
        mode: named(Mode) from row.mailbox.mode;
        dropped: int from row.mailbox.dropped;
        queued_at: opt_time from row.mailbox.queued_at;
        used_bytes: int;
        used_at: time;
    }
    build MailboxRow { aid, mailbox: Mailbox { last_seq, mode, dropped, queued_at }, used_bytes, used_at };
}

/// A message of the queue.
pub(crate) struct Queued(pub StoredMessage);

record! {
    Queued, queued in "mesh_queue";
    key {
        owner: id from queued.0.owner;
        seq: int from queued.0.seq;
    }
    fixed {
        message_id: text from queued.0.message_id;
        sender: id from queued.0.from;
        recipient: id from queued.0.to;
        kind = "type": opt_text from queued.0.kind;
        encrypted: flag from queued.0.encrypted;
        payload: opt_raw_json from queued.0.payload();
        sent_at: time from queued.0.sent_at;
    }
    state {}
    beside { taken_by received }
    build Queued(StoredMessage {
        owner,
        seq,
        message_id,
        from: sender,
        to: recipient,
        direction: Direction::Inbound,
        kind,
        encrypted,
        mode: Mode::Queue,
        sent_at,
        contents: payload.map_or(Contents::Copies(vec![]), Contents::Whole),
    });
}

/// A device slot, as it is written in `taken_by`.
pub(crate) fn place_name(place: &DeviceSlot) -> String {
    format!("{}/{}", place.device_id, place.slot_id)
}
