//! Event streams.

use ostler_protocol::capabilities::{Capability, capability};

use crate::toggles;

const EVENTS: &[&str] = &["GET /session/{sessionId}/events"];

pub(super) const STREAMING: &[Capability] = &[
    capability(
        "session_events",
        EVENTS,
        "Follow a session by server-sent events: replayed from the log after Last-Event-ID, then live.",
    ),
    capability("slow_client_warning", EVENTS, "A client is warned before its queue of frames overflows."),
    capability("typed_event_schema", EVENTS, "Every frame is an envelope of version 1 with a type and its data."),
    capability(
        "writer_idle_timeout",
        EVENTS,
        "An event stream to which nothing could be written for a while is closed.",
    )
    .when(&[toggles::WRITER_IDLE]),
];
