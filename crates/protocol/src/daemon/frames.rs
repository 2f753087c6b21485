//! Frames: what clients receive on a session's event stream. A frame that translates an event of the session has an id; one that
//! concerns only this stream has none, so that a client which reconnects does not look for it.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::{
    Timestamp,
    kernel::conversation::{ConversationMessage, Role},
};

/// The version of the envelope.
pub const FRAME_VERSION: u32 = 1;
/// How many ids belong to one event: event `n` has the ids `2n - 1` and `2n`.
pub const FRAMES_PER_EVENT: i64 = 2;
/// The largest number of an event whose frames have ids that JavaScript can represent.
const SEQ_MAX: i64 = (1 << 52) - 1;

/// The last frame of a session that was closed.
pub const SESSION_CLOSED: &str = "session_closed";
pub const SESSION_UPDATE: &str = "session_update";

/// The frame types of the protocol, without those that are only sent on one stream.
pub const EVENT_FRAMES: [&str; 39] = [
    SESSION_UPDATE,
    "session_metadata_updated",
    "session_died",
    SESSION_CLOSED,
    "permission_request",
    "permission_resolved",
    "permission_already_resolved",
    "permission_partial_vote",
    "permission_forbidden",
    "model_switched",
    "model_switch_failed",
    "mcp_budget_warning",
    "mcp_child_refused_batch",
    "mcp_server_restarted",
    "mcp_server_restart_refused",
    "mcp_server_added",
    "mcp_server_removed",
    "memory_changed",
    "agent_changed",
    "approval_mode_changed",
    "tool_toggled",
    "settings_changed",
    "settings_reloaded",
    "workspace_initialized",
    "auth_device_flow_started",
    "auth_device_flow_throttled",
    "auth_device_flow_authorized",
    "auth_device_flow_failed",
    "auth_device_flow_cancelled",
    "prompt_cancelled",
    "turn_complete",
    "turn_error",
    "session_rewound",
    "session_branched",
    "followup_suggestion",
    "user_shell_command",
    "user_shell_result",
    "terminal_sequence",
    "pending_prompt_added",
];

/// One frame.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Frame {
    /// Absent if the frame concerns only this stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub id: Option<i64>,
    pub v: u32,
    #[serde(rename = "type")]
    pub frame_type: Cow<'static, str>,
    #[schema(value_type = Object)]
    pub data: Value,
    /// The client whose request caused the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub originator_client_id: Option<String>,
    /// The prompt that the event belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub prompt_id: Option<String>,
    #[serde(rename = "_meta")]
    pub meta: FrameMeta,
}

#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FrameMeta {
    /// When the event was recorded, in milliseconds since 1970.
    pub server_timestamp: i64,
}

impl Frame {
    pub fn new(frame_type: impl Into<Cow<'static, str>>, data: Value, at: Timestamp) -> Self {
        Self {
            id: None,
            v: FRAME_VERSION,
            frame_type: frame_type.into(),
            data,
            originator_client_id: None,
            prompt_id: None,
            meta: FrameMeta { server_timestamp: at.as_millisecond() },
        }
    }

    /// The frame as it is sent: its id, its type, and the envelope in one line.
    pub fn to_sse(&self) -> String {
        let id = self.id.map(|id| format!("id: {id}\n")).unwrap_or_default();
        let envelope = serde_json::to_string(self).unwrap_or_default();
        format!("{id}event: {}\ndata: {envelope}\n\n", self.frame_type)
    }

    /// Whether no frame follows it on any stream.
    pub fn is_last(&self) -> bool {
        self.frame_type == SESSION_CLOSED
    }
}

/// Messages of a conversation as frames without ids: a client shows them before those of the session's own stream.
pub fn message_frames(messages: &[ConversationMessage], session_id: &str, at: Timestamp) -> Vec<Value> {
    let frame = |message: &ConversationMessage| {
        let kind = match message.role {
            Role::User => "user_message_chunk",
            Role::Assistant => "agent_message_chunk",
        };
        let update = json!({"sessionUpdate": kind, "content": {"type": "text", "text": message.text}});
        let frame = Frame::new(SESSION_UPDATE, json!({"sessionId": session_id, "update": update}), at);
        serde_json::to_value(frame).unwrap_or_default()
    };
    messages.iter().map(frame).collect()
}

/// The id of the first frame of event `seq`.
pub fn first_id(seq: i64) -> i64 {
    seq.clamp(1, SEQ_MAX) * FRAMES_PER_EVENT - 1
}

/// The highest id that a frame of the first `seq` events can have.
pub fn last_id(seq: i64) -> i64 {
    seq.clamp(0, SEQ_MAX) * FRAMES_PER_EVENT
}

/// The number of the event that a frame of this id belongs to. 0 if it belongs to none.
pub fn seq_of(id: i64) -> i64 {
    id.max(0) / FRAMES_PER_EVENT + id.max(0) % FRAMES_PER_EVENT
}

/// The largest integer that every reader of JSON keeps exactly. A client may name a larger id.
const JSON_INTEGER_MAX: i64 = (1 << 53) - 1;

/// Why a client must load the session again: the stream does not continue where the client was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resync {
    /// The client was ahead of this log: it followed another one.
    EpochReset { last_delivered_id: i64, earliest_available_id: i64 },
    /// Frames between these ids can no longer be replayed.
    RingEvicted { last_delivered_id: i64, earliest_available_id: i64 },
}

pub fn resync_required(resync: Resync, at: Timestamp) -> Frame {
    let (reason, last_delivered_id, earliest_available_id) = match resync {
        Resync::EpochReset { last_delivered_id, earliest_available_id } => {
            ("epoch_reset", last_delivered_id.min(JSON_INTEGER_MAX), earliest_available_id)
        }
        Resync::RingEvicted { last_delivered_id, earliest_available_id } => {
            ("ring_evicted", last_delivered_id, earliest_available_id)
        }
    };
    let data = json!({"reason": reason, "lastDeliveredId": last_delivered_id,
        "earliestAvailableId": earliest_available_id});
    Frame::new("state_resync_required", data, at)
}

pub fn replay_complete(replayed: u64, at: Timestamp) -> Frame {
    Frame::new("replay_complete", json!({"replayedCount": replayed}), at)
}

pub fn slow_client_warning(queue_size: usize, max_queued: usize, last_event_id: i64, at: Timestamp) -> Frame {
    let data = json!({"queueSize": queue_size, "maxQueued": max_queued, "lastEventId": last_event_id});
    Frame::new("slow_client_warning", data, at)
}

/// The client did not read fast enough; the frames after this id are dropped.
pub fn evicted_for_overflow(dropped_after: i64, at: Timestamp) -> Frame {
    Frame::new("client_evicted", json!({"reason": "queue_overflow", "droppedAfter": dropped_after}), at)
}

/// No write to the client has succeeded for too long.
pub fn evicted_for_idle_writer(idle_for_ms: u64, timeout_ms: u64, at: Timestamp) -> Frame {
    let reason = "writer_idle_timeout";
    let data = json!({"reason": reason, "errorKind": reason, "idleForMs": idle_for_ms, "timeoutMs": timeout_ms});
    Frame::new("client_evicted", data, at)
}

/// The stream cannot go on, for a reason of the server's.
pub fn stream_error(message: &str, at: Timestamp) -> Frame {
    Frame::new("stream_error", json!({"error": message}), at)
}

/// The server stops. Nothing is recorded in the session's log, because the session goes on when a server runs again.
pub fn server_stops(session_id: &str, at: Timestamp) -> Frame {
    Frame::new("session_died", json!({"sessionId": session_id, "reason": "daemon_shutdown"}), at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_start_at_one_and_belong_to_one_event() {
        assert_eq!((first_id(1), last_id(1), first_id(2), last_id(2)), (1, 2, 3, 4));
        assert_eq!([0, 1, 2, 3, 4, 5].map(seq_of), [0, 1, 1, 2, 2, 3]);
        assert_eq!((last_id(0), seq_of(-7)), (0, 0));
        assert!(seq_of(i64::MAX) > 0 && last_id(i64::MAX) < 1 << 53);
    }

    #[test]
    fn a_frame_is_one_line_of_json() {
        let mut frame = Frame::new(SESSION_UPDATE, json!({"text": "a\nb"}), Timestamp::UNIX_EPOCH);
        frame.id = Some(7);
        let sent = frame.to_sse();
        let expected = "id: 7\nevent: session_update\ndata: {\"id\":7,\"v\":1,\"type\":\"session_update\",\
            \"data\":{\"text\":\"a\\nb\"},\"_meta\":{\"serverTimestamp\":0}}\n\n";
        assert_eq!(sent, expected);
    }

    #[test]
    fn frames_of_one_stream_have_no_id() {
        let at = Timestamp::UNIX_EPOCH;
        let gap = Resync::RingEvicted { last_delivered_id: 3, earliest_available_id: 9 };
        for frame in [
            resync_required(gap, at),
            replay_complete(0, at),
            slow_client_warning(12, 16, 4, at),
            evicted_for_overflow(4, at),
            evicted_for_idle_writer(1, 1, at),
            stream_error("the store did not respond", at),
            server_stops("s", at),
        ] {
            assert!(frame.to_sse().starts_with("event: "), "{frame:?}");
            assert_eq!(frame.v, 1);
        }
    }
}
