//! The capabilities that this dialect promises to clients.

use ostler_protocol::capabilities::{Capability, capability};

pub(crate) const CAPABILITIES: &[Capability] = &[
    capability(
        "ostler_agent_runs",
        &[
            "POST /api/v1/agent/runs",
            "GET /api/v1/agent/runs/{threadId}/events",
            "POST /api/v1/agent/runs/{threadId}/cancel",
        ],
        "Chat front ends: post a message or the answers to interrupts, follow AG-UI 1.0 events that resume, cancel.",
    )
    .modes(&["queued", "streamed"]),
    capability(
        "ostler_agent_attachments",
        &[
            "POST /api/v1/agent/attachments",
            "GET /api/v1/agent/attachments/signed-url",
            "GET /api/v1/agent/attachments/object/{bucket}/agent-inputs/{owner}/{threadId}/{runId}/{file}",
        ],
        "Pictures for messages: uploaded once, shown by signed URLs that end.",
    ),
    capability("ostler_agent_history", &["GET /api/v1/agent/history"], "What was said in a thread, a day at a time."),
    capability(
        "ostler_agent_erase",
        &["DELETE /api/v1/agent/sessions/{threadId}"],
        "Erases a thread: nobody knows of it any more, and only digests stay.",
    ),
];
