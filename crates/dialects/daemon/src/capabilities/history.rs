//! Tags of what a client does with the history of a session.

use ostler_protocol::capabilities::{Capability, capability};

use crate::toggles;

pub(super) const HISTORY: &[Capability] = &[
    capability(
        "session_rewind",
        &["POST /session/{sessionId}/rewind", "GET /session/{sessionId}/rewind/snapshots"],
        "The conversation continues before one of its turns; files that later turns have changed are restored.",
    ),
    capability(
        "session_branch",
        &["POST /session/{sessionId}/branch"],
        "Opens a session that continues the conversation of another one.",
    ),
    capability(
        "session_shell_command",
        &["POST /session/{sessionId}/shell"],
        "Runs a shell command in the workspace, confined as the tools of agents are; the agent gets its output.",
    )
    .when(&[toggles::SESSION_SHELL]),
];
