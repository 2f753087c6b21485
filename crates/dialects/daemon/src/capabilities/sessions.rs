//! Sessions, clients and prompts.

use ostler_protocol::capabilities::{Capability, capability};

use crate::toggles;

pub(super) const SESSIONS: &[Capability] = &[
    capability("session_create", &["POST /session"], "Opens a session, or attaches to the one that clients share."),
    capability(
        "session_scope_override",
        &["POST /session"],
        "A client chooses whether it shares the session or gets one of its own.",
    )
    .modes(&["single", "thread"]),
    capability(
        "session_load",
        &["POST /session/{sessionId}/load"],
        "Opens a session again; its history is on the event stream.",
    ),
    capability(
        "session_resume",
        &["POST /session/{sessionId}/resume"],
        "Opens a session again, for a client that needs no history.",
    ),
    capability("unstable_session_resume", &["POST /session/{sessionId}/resume"], "The former name of session_resume."),
    capability(
        "session_list",
        &["GET /workspace/{cwd}/sessions"],
        "Lists the sessions of the workspace, open and closed, a page at a time.",
    )
    .when(&[toggles::WORKSPACE]),
    capability(
        "session_prompt",
        &["POST /session/{sessionId}/prompt"],
        "Sends a prompt to the agent. Prompts of a session run in order.",
    ),
    capability(
        "non_blocking_prompt",
        &["POST /session/{sessionId}/prompt"],
        "A prompt is accepted at once; its result arrives on the event stream.",
    ),
    capability(
        "prompt_absolute_deadline",
        &["POST /session/{sessionId}/prompt"],
        "A prompt that is not done in time is cancelled. A client can shorten the time.",
    )
    .when(&[toggles::PROMPT_DEADLINE]),
    capability(
        "session_cancel",
        &["POST /session/{sessionId}/cancel"],
        "Cancels the prompt that runs; prompts that wait go on.",
    ),
    capability(
        "session_close",
        &["DELETE /session/{sessionId}"],
        "Closes a session. Its conversation stays and can be loaded again.",
    ),
    capability("session_metadata", &["PATCH /session/{sessionId}/metadata"], "Renames a session."),
    capability(
        "client_identity",
        &["POST /session"],
        "Each client gets an id by which the other clients of the session know it.",
    ),
    capability(
        "client_heartbeat",
        &["POST /session/{sessionId}/heartbeat"],
        "A client reports that it is still there.",
    ),
];
