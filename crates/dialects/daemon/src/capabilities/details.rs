//! Tags of what clients read and set of a session beside its prompts.

use ostler_protocol::capabilities::{Capability, capability};

pub(super) const DETAILS: &[Capability] = &[
    capability(
        "session_set_model",
        &["POST /session/{sessionId}/model"],
        "Another backend profile handles the session's next prompt; followers receive the change, also one that failed.",
    ),
    capability(
        "session_context",
        &["GET /session/{sessionId}/context"],
        "The models that the session can use, and the current one.",
    ),
    capability(
        "session_stats",
        &["GET /session/{sessionId}/stats"],
        "What the session has used: prompts, tokens by model, tool calls by name.",
    ),
    capability(
        "session_tasks",
        &["GET /session/{sessionId}/tasks", "POST /session/{sessionId}/tasks/{taskId}/cancel"],
        "The prompts of the session that wait or run; each can be cancelled by itself.",
    ),
    capability(
        "session_language",
        &["POST /session/{sessionId}/language"],
        "The language that clients show, and the one that the agent replies in.",
    ),
];

pub(super) const VOTES: &[Capability] = &[
    capability(
        "session_permission_vote",
        &["POST /session/{sessionId}/permission/{requestId}"],
        "Votes on a permission request of a session.",
    ),
    capability(
        "permission_vote",
        &["POST /permission/{requestId}"],
        "Votes on a permission request, whichever session it belongs to.",
    ),
    capability(
        "permission_mediation",
        &["POST /session/{sessionId}/permission/{requestId}"],
        "The strategy that was in force when a request was made decides whose votes count; `policy.permission` names the current one.",
    )
    .modes(&["first-responder", "designated", "consensus", "local-only"]),
];
