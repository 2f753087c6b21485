//! The capabilities that this dialect promises to clients.

use ostler_protocol::capabilities::{Capability, capability};

pub(crate) const CAPABILITIES: &[Capability] = &[
    capability("ostler_backends", &["GET /api/v1/backends"], "Lists the backend profiles and what each needs."),
    capability(
        "ostler_runs",
        &["POST /api/v1/runs", "GET /api/v1/runs", "GET /api/v1/runs/{runId}", "POST /api/v1/runs/{runId}/cancel"],
        "Runs: create, alone or with a first command and its job; list in pages, get, cancel.",
    ),
    capability(
        "ostler_labels",
        &["PATCH /api/v1/runs/{runId}", "GET /api/v1/runs", "PATCH /api/v1/sessions/{sessionId}", "GET /api/v1/sessions"],
        "Labels on runs and sessions: set at creation, change later, find by them.",
    ),
    capability(
        "ostler_usage",
        &["GET /api/v1/usage", "GET /api/v1/runs"],
        "What runs have used: tokens, cost, turns and time, by run, and in a period by profile, tenant, user, agent or day.",
    )
    .modes(&["profile", "tenant", "user", "agent", "day"]),
    capability(
        "ostler_run_states",
        &["GET /api/v1/runs", "GET /api/v1/runs/{runId}", "GET /api/v1/runs/{runId}/result"],
        "The state of a run's latest turn in one word, as a field and as a filter; a run names the run that it repeats.",
    )
    .modes(&["waiting", "running", "completed", "failed", "blocked", "cancelled"]),
    capability(
        "ostler_commands",
        &[
            "POST /api/v1/runs/{runId}/commands",
            "GET /api/v1/runs/{runId}/commands/{commandId}",
            "POST /api/v1/commands/{commandId}/cancel",
        ],
        "Turns, steers and interrupts: submit, get, cancel.",
    )
    .modes(&["turn", "steer", "interrupt"]),
    capability(
        "ostler_idempotency_keys",
        &[
            "POST /api/v1/runs",
            "POST /api/v1/runs/{runId}/commands",
            "POST /api/v1/runs/{runId}/runner-jobs",
            "POST /api/v1/sessions",
        ],
        "A create with the key of an earlier one answers with what that made; with another body it is refused.",
    )
    .modes(&["body", "header"]),
    capability(
        "ostler_run_events",
        &["GET /api/v1/runs/{runId}/events"],
        "A run's events by number: in pages, waiting for the next, or as a stream that resumes.",
    )
    .modes(&["page", "wait", "stream"]),
    capability(
        "ostler_results",
        &["GET /api/v1/runs/{runId}/commands/{commandId}/result", "GET /api/v1/runs/{runId}/result"],
        "State or outcome of a command or run: reply, failure, tool calls, liveness.",
    ),
    capability(
        "ostler_conversation",
        &["GET /api/v1/runs/{runId}/commands/{commandId}/conversation"],
        "Messages before a command, for backends without their own history.",
    ),
    capability(
        "ostler_whole_payloads",
        &["GET /api/v1/runs/{runId}/commands/{commandId}/payload"],
        "The whole payload of a command whose own is a short form, because its prompt is large.",
    ),
    capability(
        "ostler_diffs",
        &["GET /api/v1/runs/{runId}/commands/{commandId}/diff"],
        "What an agent changed in its workspace in one turn, as a unified diff.",
    ),
    capability(
        "ostler_permissions",
        &["POST /api/v1/runs/{runId}/permissions/{permissionId}/answer", "GET /api/v1/runs/{runId}/permissions"],
        "Permission requests of agents: list them, and answer each once by the digest of its action.",
    ),
    capability(
        "ostler_runner_jobs",
        &[
            "POST /api/v1/runs/{runId}/runner-jobs",
            "GET /api/v1/runs/{runId}/runner-jobs",
            "GET /api/v1/runs/{runId}/runner-jobs/{runnerJobId}",
            "GET /api/v1/runs/{runId}/runner-jobs/{runnerJobId}/log",
        ],
        "Orders to start a runner: create, list, get, and read the runner's log.",
    ),
    capability(
        "ostler_external_runners",
        &["POST /api/v1/runner-jobs/claim"],
        "Runners elsewhere claim the jobs of their profiles: each job by one runner, in turn, and again if the runner is lost.",
    ),
    capability(
        "ostler_runners",
        &[
            "POST /api/v1/runs/{runId}/claim",
            "POST /api/v1/runners/register",
            "PATCH /api/v1/runs/{runId}/lease",
            "GET /api/v1/runs/{runId}/commands",
            "POST /api/v1/commands/{commandId}/ack",
            "POST /api/v1/runs/{runId}/events",
            "PATCH /api/v1/commands/{commandId}/status",
            "PATCH /api/v1/runs/{runId}/status",
        ],
        "The runner's side: claim under a fenced lease, poll, append, end.",
    ),
    capability(
        "ostler_sessions",
        &[
            "POST /api/v1/sessions",
            "GET /api/v1/sessions",
            "GET /api/v1/sessions/{sessionId}",
            "GET /api/v1/sessions/{sessionId}/output",
            "POST /api/v1/sessions/{sessionId}/read",
            "POST /api/v1/sessions/{sessionId}/control",
        ],
        "Conversations that outlive runs: create, list what runs or is unread, get, read, cancel.",
    ),
    capability(
        "ostler_session_changes",
        &["PATCH /api/v1/sessions/{sessionId}", "POST /api/v1/sessions/{sessionId}/control"],
        "Sessions can be renamed and closed; both are facts of the session, which belong to no run.",
    ),
    capability(
        "ostler_session_storage",
        &[
            "GET /api/v1/sessions/{sessionId}/storage",
            "DELETE /api/v1/sessions/{sessionId}/storage",
            "POST /api/v1/sessions/{sessionId}/storage/refresh",
            "POST /api/v1/sessions/storage/gc",
        ],
        "A session's own directory for its agent: what is in it, its expiry and its eviction.",
    )
    .modes(&["local"]),
    capability(
        "ostler_session_events",
        &["GET /api/v1/sessions/{sessionId}/trace"],
        "All events of a session by number: in pages, or as a stream that resumes.",
    )
    .modes(&["page", "stream"]),
    capability(
        "ostler_caller",
        &["GET /api/v1/caller"],
        "Who the caller is: whose token it sent, for which tenants, and what it may do.",
    ),
    capability(
        "ostler_caller_actions",
        &["GET /api/v1/caller"],
        "Every action that depends on the caller, with a reason where it is not allowed, and the owner of agents it creates.",
    ),
    capability(
        "ostler_service_tokens",
        &["POST /api/v1/tokens", "GET /api/v1/tokens", "DELETE /api/v1/tokens/{tokenId}"],
        "Tokens of platforms and runners, for the operator: make with tenants and a role, list, revoke.",
    )
    .modes(&["client", "runner"]),
    capability(
        "ostler_users",
        &[
            "POST /api/v1/users/{userName}/token",
            "POST /api/v1/users",
            "GET /api/v1/users",
            "DELETE /api/v1/users/{userName}",
            "GET /.well-known/jwks.json",
        ],
        "People, for the operator: add with tenants and a time zone, list, remove, make tokens; the keys of those tokens.",
    ),
    capability(
        "ostler_user_changes",
        &["PATCH /api/v1/users/{userName}"],
        "The operator can change a user's time zone.",
    ),
    capability(
        "ostler_provider_profiles",
        &[
            "PUT /api/v1/provider-profiles/{profile}/credential",
            "GET /api/v1/provider-profiles",
            "GET /api/v1/provider-profiles/{profile}",
            "DELETE /api/v1/provider-profiles/{profile}",
            "GET /api/v1/provider-profiles/{profile}/config",
            "PUT /api/v1/provider-profiles/{profile}/config",
            "POST /api/v1/provider-profiles/{profile}/validate",
            "GET /api/v1/provider-profiles/{profile}/validations/{validationId}",
            "GET /api/v1/provider-profile-changes",
        ],
        "Agents' credentials and configs, the operator's and tenants' own: set, list without a value, try with a run, delete; \
         who changed what.",
    )
    .modes(&["codex", "acp", "model"]),
    capability(
        "ostler_tools",
        &["GET /api/v1/tools", "POST /api/v1/tools/{tool}/calls"],
        "Tools that every backend can call: list them, and call one to try it.",
    ),
    capability(
        "ostler_run_tools",
        &["POST /api/v1/runs/{runId}/tools/calls", "GET /api/v1/runs/{runId}/tools"],
        "The runner's side of tools: list those of a run, and call one. A call is checked, authorised, recorded and executed once.",
    ),
    capability(
        "ostler_retention",
        &[
            "POST /api/v1/retention/sweeps",
            "GET /api/v1/retention",
            "POST /api/v1/retention/holds",
            "GET /api/v1/retention/holds",
            "DELETE /api/v1/retention/holds/{holdId}",
        ],
        "How long each noun is kept, for the operator: limits, what a sweep removes or would remove, legal holds.",
    ),
    capability(
        "ostler_hash_chain",
        &["GET /api/v1/sessions/{sessionId}/trace", "GET /api/v1/sessions/{sessionId}"],
        "A session's events form a hash chain; a client that has read them can compute its head.",
    ),
];
