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
    capability(
        "ostler_agent_transcribe",
        &["POST /api/v1/agent/transcribe"],
        "Speech to text: a WAV recording, by the configured endpoint.",
    ),
    capability("ostler_agent_history", &["GET /api/v1/agent/history"], "What was said in a thread, a day at a time."),
    capability(
        "ostler_agent_erase",
        &["DELETE /api/v1/agent/sessions/{threadId}"],
        "Erases a thread: it is not found any more, and only digests stay.",
    ),
    capability(
        "ostler_automations",
        &[
            "POST /api/v1/automations",
            "GET /api/v1/automations",
            "GET /api/v1/automations/{automationId}",
            "PATCH /api/v1/automations/{automationId}",
            "DELETE /api/v1/automations/{automationId}",
            "POST /api/v1/automations/{automationId}/start",
            "GET /api/v1/automations/{automationId}/runs",
            "GET /api/v1/automations/{automationId}/next",
        ],
        "Jobs that start runs on a schedule of local times, each time exactly once.",
    ),
    capability(
        "ostler_calendar",
        &[
            "POST /api/v1/calendar-events",
            "GET /api/v1/calendar-events",
            "GET /api/v1/calendar-events/occurrences",
            "GET /api/v1/calendar-events/export",
            "GET /api/v1/calendar-events/{eventId}",
            "PATCH /api/v1/calendar-events/{eventId}",
            "DELETE /api/v1/calendar-events/{eventId}",
        ],
        "A person's calendar: events with a zone that recur by RFC 5545, and an iCalendar export.",
    ),
];
