//! Tags of questions beside a session.

use ostler_protocol::capabilities::{Capability, capability};

use crate::toggles;

pub(super) const ASIDES: &[Capability] = &[
    capability(
        "session_recap",
        &["POST /session/{sessionId}/recap"],
        "The session's model states in a sentence or two where the work is, without tools and without an event.",
    )
    .when(&[toggles::SIDE_QUERIES]),
    capability(
        "session_btw",
        &["POST /session/{sessionId}/btw"],
        "The session's model answers a question beside the work, without tools and without an event.",
    )
    .when(&[toggles::SIDE_QUERIES]),
    capability(
        "session_context_usage",
        &["GET /session/{sessionId}/context-usage"],
        "How much of its model's context window the session takes.",
    ),
];
