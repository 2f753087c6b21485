//! What a client may rely on, told before it asks for anything. A tag is a promise of behaviour: it is advertised exactly
//! while the behaviour is there, and new behaviour gets a new tag. Nothing here decides anything else.
//!
//! Three versions move independently: of the envelope's shape, of the protocol's features, of an event's frame.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The shape of the envelope. It rises only when a reader of the old shape would break.
pub const ENVELOPE_VERSION: u32 = 1;
/// The shape of one streamed event.
pub const EVENT_SCHEMA_VERSION: u32 = 1;
/// How clients attach: over HTTP, to agents that run behind this server.
pub const MODE: &str = "http-bridge";

/// Features are added inside a version; one is taken away, or a frame changes its shape, only with the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProtocolVersion {
    V1,
}

impl ProtocolVersion {
    pub const CURRENT: Self = Self::V1;
    pub const SUPPORTED: &'static [Self] = &[Self::V1];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "v1",
        }
    }
}

/// What the operator of a server switches on, as far as clients can tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Toggles {
    pub require_auth: bool,
    pub allow_origin: bool,
    pub rate_limit: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toggle {
    RequireAuth,
    AllowOrigin,
    RateLimit,
}

impl Toggle {
    pub const ALL: &'static [Self] = &[Self::RequireAuth, Self::AllowOrigin, Self::RateLimit];

    pub fn is_on(self, toggles: Toggles) -> bool {
        match self {
            Self::RequireAuth => toggles.require_auth,
            Self::AllowOrigin => toggles.allow_origin,
            Self::RateLimit => toggles.rate_limit,
        }
    }

    /// The flag that switches it on.
    pub fn flag(self) -> &'static str {
        match self {
            Self::RequireAuth => "--require-auth",
            Self::AllowOrigin => "--allow-origin",
            Self::RateLimit => "--rate-limit",
        }
    }
}

/// One row of the registry.
#[derive(Debug)]
pub struct Capability {
    pub tag: &'static str,
    pub since: ProtocolVersion,
    /// Where it has several ways of working: all that this build has.
    pub modes: &'static [&'static str],
    /// Advertised only while this is on; without one, always.
    pub when: Option<Toggle>,
    /// What it consists of. The first one proves it.
    pub operations: &'static [&'static str],
    pub promise: &'static str,
}

const fn tag(tag: &'static str, operations: &'static [&'static str], promise: &'static str) -> Capability {
    Capability { tag, since: ProtocolVersion::V1, modes: &[], when: None, operations, promise }
}

impl Capability {
    const fn modes(self, modes: &'static [&'static str]) -> Self {
        Self { modes, ..self }
    }

    const fn when(self, toggle: Toggle) -> Self {
        Self { when: Some(toggle), ..self }
    }

    fn is_advertised(&self, version: ProtocolVersion, toggles: Toggles) -> bool {
        self.since <= version && self.when.is_none_or(|toggle| toggle.is_on(toggles))
    }
}

/// Every capability of this build. Each operation of the OpenAPI document stands in at least one row; a test of the
/// server holds every row against a running one.
pub const REGISTRY: &[Capability] = &[
    tag(
        "health",
        &["GET /health", "GET /health/live", "GET /health/readiness"],
        "Says that the server lives, and whether it can be trusted with work.",
    ),
    tag("capabilities", &["GET /capabilities"], "Says what a client may rely on."),
    tag("ostler_metrics", &["GET /metrics"], "Counts what happens, as Prometheus reads it."),
    tag("require_auth", &["GET /health", "GET /capabilities"], "Nothing answers without a token, not even health.")
        .when(Toggle::RequireAuth),
    tag("allow_origin", &["GET /health"], "Web pages of the configured origins may call, and read the answers.")
        .when(Toggle::AllowOrigin),
    tag(
        "rate_limit",
        &["GET /health"],
        "Answers say how often one may still come, and whoever comes too often when again.",
    )
    .when(Toggle::RateLimit),
    tag(
        "ostler_agents",
        &[
            "POST /agents",
            "GET /agents",
            "GET /agents/{agentId}",
            "PATCH /agents/{agentId}",
            "DELETE /agents/{agentId}",
            "POST /agents/{agentId}/manifest/diff",
        ],
        "Agents with manifests: make, find, read (by entity tag), change, retire; what a change would break, before it is made.",
    ),
    tag(
        "ostler_agent_tokens",
        &[
            "POST /agents/{agentId}/tokens",
            "GET /agents/{agentId}/tokens",
            "DELETE /agents/{agentId}/tokens/{agentTokenId}",
        ],
        "Tokens that speak for an agent: make, list, revoke.",
    ),
    tag("ostler_backends", &["GET /api/v1/backends"], "Lists the backend profiles and what each needs."),
    tag(
        "ostler_runs",
        &["POST /api/v1/runs", "GET /api/v1/runs", "GET /api/v1/runs/{runId}", "POST /api/v1/runs/{runId}/cancel"],
        "Runs: create, alone or with a first command and its job; list in pages, get, cancel.",
    ),
    tag(
        "ostler_commands",
        &[
            "POST /api/v1/runs/{runId}/commands",
            "GET /api/v1/runs/{runId}/commands/{commandId}",
            "POST /api/v1/commands/{commandId}/cancel",
        ],
        "Turns, steers and interrupts: submit, get, cancel.",
    )
    .modes(&["turn", "steer", "interrupt"]),
    tag(
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
    tag(
        "ostler_run_events",
        &["GET /api/v1/runs/{runId}/events"],
        "A run's events by number: in pages, waiting for the next, or as a stream that resumes.",
    )
    .modes(&["page", "wait", "stream"]),
    tag(
        "ostler_results",
        &["GET /api/v1/runs/{runId}/commands/{commandId}/result", "GET /api/v1/runs/{runId}/result"],
        "How a command or run stands or ended: reply, failure, tool calls, liveness.",
    ),
    tag(
        "ostler_conversation",
        &["GET /api/v1/runs/{runId}/commands/{commandId}/conversation"],
        "What was said in a session before a command, for agents that keep no account of their own.",
    ),
    tag(
        "ostler_diffs",
        &["GET /api/v1/runs/{runId}/commands/{commandId}/diff"],
        "What an agent changed in its workspace in one turn, as a unified diff.",
    ),
    tag(
        "ostler_permissions",
        &["POST /api/v1/runs/{runId}/permissions/{permissionId}/answer", "GET /api/v1/runs/{runId}/permissions"],
        "What agents ask leave for: list, and answer once, naming the digest of what will run.",
    ),
    tag(
        "ostler_runner_jobs",
        &[
            "POST /api/v1/runs/{runId}/runner-jobs",
            "GET /api/v1/runs/{runId}/runner-jobs",
            "GET /api/v1/runs/{runId}/runner-jobs/{runnerJobId}",
        ],
        "Orders to start a runner: create, list, get.",
    ),
    tag(
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
    tag(
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
    tag(
        "ostler_session_changes",
        &["PATCH /api/v1/sessions/{sessionId}", "POST /api/v1/sessions/{sessionId}/control"],
        "Sessions can be renamed and closed; both are facts of the session, which belong to no run.",
    ),
    tag(
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
    tag(
        "ostler_session_events",
        &["GET /api/v1/sessions/{sessionId}/trace"],
        "All events of a session by number: in pages, or as a stream that resumes.",
    )
    .modes(&["page", "stream"]),
    tag(
        "ostler_service_tokens",
        &["POST /api/v1/tokens", "GET /api/v1/tokens", "DELETE /api/v1/tokens/{tokenId}"],
        "Tokens of platforms and runners, for the operator: make with tenants and a role, list, revoke.",
    )
    .modes(&["client", "runner"]),
    tag(
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
    tag(
        "ostler_user_changes",
        &["PATCH /api/v1/users/{userName}"],
        "The operator can change a user's time zone.",
    ),
    tag(
        "ostler_consent",
        &[
            "POST /h2a/relations",
            "GET /h2a/relations",
            "GET /h2a/relations/{relationId}",
            "PATCH /h2a/relations/{relationId}",
            "DELETE /h2a/relations/{relationId}",
            "GET /h2a/relations/{relationId}/changes",
            "GET /h2a/pending",
            "POST /h2a/relations/{relationId}/uses",
            "GET /h2a/relations/{relationId}/receipts",
            "GET /h2a/receipts",
        ],
        "People grant agents scopes, answer again when an agent changes, take grants back, and have receipts of it all.",
    ),
    tag(
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
    tag(
        "ostler_agent_runs",
        &[
            "POST /api/v1/agent/runs",
            "GET /api/v1/agent/runs/{threadId}/events",
            "POST /api/v1/agent/runs/{threadId}/cancel",
        ],
        "Chat front ends: post a message or the answers to interrupts, follow AG-UI 1.0 events that resume, cancel.",
    )
    .modes(&["queued", "streamed"]),
    tag(
        "ostler_agent_attachments",
        &[
            "POST /api/v1/agent/attachments",
            "GET /api/v1/agent/attachments/signed-url",
            "GET /api/v1/agent/attachments/object/{bucket}/agent-inputs/{owner}/{threadId}/{runId}/{file}",
        ],
        "Pictures for messages: uploaded once, shown by signed URLs that end.",
    ),
    tag("ostler_agent_history", &["GET /api/v1/agent/history"], "What was said in a thread, a day at a time."),
    tag(
        "ostler_agent_erase",
        &["DELETE /api/v1/agent/sessions/{threadId}"],
        "Erases a thread: nobody knows of it any more, and only digests stay.",
    ),
    tag(
        "ostler_identities",
        &[
            "POST /api/v1/identities",
            "GET /api/v1/identities",
            "GET /api/v1/identities/{aid}",
            "POST /api/v1/identities/{aid}/revoke",
            "POST /api/v1/identities/invites",
        ],
        "Names of the mesh, for the operator: certify, list, revoke, invite.",
    ),
    tag(
        "ostler_mesh_gateway",
        &["GET /.well-known/aun-gateway"],
        "The mesh's gateway, a WebSocket at /aun: register, log in, connect; docs/generated/methods.md lists its methods.",
    ),
    tag(
        "ostler_mesh_pki",
        &[
            "GET /pki/chain",
            "GET /pki/root.crt",
            "GET /pki/cert/{aid}",
            "GET /pki/crl.json",
            "GET /pki/crl",
            "GET /pki/ocsp/{serial}",
            "POST /pki/ocsp",
            "GET /pki/trust-roots.json",
        ],
        "Who may be believed in the mesh: the chain, certificates and their versions, what was revoked, the signed list of roots.",
    ),
    tag("ostler_agent_md", &["GET /agent.md", "PUT /agent.md"], "What agents of the mesh say of themselves."),
    tag(
        "ostler_webhooks",
        &[
            "PUT /agents/{agentId}/webhook",
            "GET /agents/{agentId}/webhook",
            "DELETE /agents/{agentId}/webhook",
            "POST /agents/{agentId}/webhook/test",
            "GET /agents/{agentId}/webhook/deliveries",
            "GET /agents/{agentId}/webhook/deliveries/{deliveryId}",
            "POST /agents/{agentId}/webhook/deliveries/{deliveryId}/replay",
        ],
        "Agents' own servers are told by signed requests, again until they answer; what was given up can be replayed.",
    ),
    tag(
        "ostler_hash_chain",
        &["GET /api/v1/sessions/{sessionId}/trace", "GET /api/v1/sessions/{sessionId}"],
        "A session's events form a hash chain; whoever has read them can compute its head.",
    ),
];

/// The tags a server of this build advertises.
pub fn advertised(version: ProtocolVersion, toggles: Toggles) -> impl Iterator<Item = &'static str> {
    REGISTRY.iter().filter(move |row| row.is_advertised(version, toggles)).map(|row| row.tag)
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProtocolVersions {
    pub current: String,
    pub supported: Vec<String>,
}

impl ProtocolVersions {
    pub fn of_this_build() -> Self {
        let supported = ProtocolVersion::SUPPORTED.iter().map(|version| version.as_str().to_owned()).collect();
        Self { current: ProtocolVersion::CURRENT.as_str().to_owned(), supported }
    }
}

/// The policies in force where a capability can work by several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Policies {
    /// Whose answer to a permission request counts.
    pub permission: String,
}

/// The envelope of `GET /capabilities`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    /// The version of this envelope.
    pub v: u32,
    pub mode: String,
    pub features: Vec<String>,
    pub workspace_cwd: String,
    pub protocol: ProtocolVersions,
    /// The same again, under the name that published clients read.
    pub protocol_versions: ProtocolVersions,
    pub policy: Policies,
    /// Published clients want the field; models are chosen by backend profile here.
    pub model_services: Vec<String>,
    pub event_schema_version: u32,
    pub ostler_version: String,
}

impl Capabilities {
    pub fn of_this_build(toggles: Toggles, workspace_cwd: String, ostler_version: String) -> Self {
        Self {
            v: ENVELOPE_VERSION,
            mode: MODE.to_owned(),
            features: advertised(ProtocolVersion::CURRENT, toggles).map(str::to_owned).collect(),
            workspace_cwd,
            protocol: ProtocolVersions::of_this_build(),
            protocol_versions: ProtocolVersions::of_this_build(),
            // The first valid answer of somebody with the right stands.
            policy: Policies { permission: "first-responder".to_owned() },
            model_services: vec![],
            event_schema_version: EVENT_SCHEMA_VERSION,
            ostler_version,
        }
    }

    pub fn has(&self, tag: &str) -> bool {
        self.features.iter().any(|feature| feature == tag)
    }
}

/// The envelope as a client reads it, of a server that may be older, newer or not ours: everything may be missing.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SeenCapabilities {
    pub v: Option<u32>,
    pub features: Vec<String>,
    pub protocol_versions: Option<ProtocolVersions>,
    pub protocol: Option<ProtocolVersions>,
    pub ostler_version: Option<String>,
}

impl SeenCapabilities {
    /// Whether it speaks this version, as far as it says which it speaks.
    pub fn may_speak(&self, version: ProtocolVersion) -> bool {
        let versions = self.protocol_versions.as_ref().or(self.protocol.as_ref());
        versions.is_none_or(|versions| versions.supported.iter().any(|known| known == version.as_str()))
    }

    pub fn has(&self, tag: &str) -> bool {
        self.features.iter().any(|feature| feature == tag)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn with(toggle: Toggle) -> Toggles {
        Toggles {
            require_auth: toggle == Toggle::RequireAuth,
            allow_origin: toggle == Toggle::AllowOrigin,
            rate_limit: toggle == Toggle::RateLimit,
        }
    }

    #[test]
    fn every_tag_has_one_row_with_a_proof() {
        let tags: BTreeSet<_> = REGISTRY.iter().map(|row| row.tag).collect();
        assert_eq!(tags.len(), REGISTRY.len());
        for row in REGISTRY {
            assert!(!row.operations.is_empty(), "{} is proved by nothing", row.tag);
            assert!(row.tag.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{}", row.tag);
        }
    }

    #[test]
    fn each_toggle_adds_exactly_its_own_tags() {
        let always: Vec<_> = REGISTRY.iter().filter(|row| row.when.is_none()).map(|row| row.tag).collect();
        assert_eq!(advertised(ProtocolVersion::V1, Toggles::default()).collect::<Vec<_>>(), always);
        for toggle in Toggle::ALL {
            let on = with(*toggle);
            assert!(toggle.is_on(on) && Toggle::ALL.iter().filter(|other| other.is_on(on)).count() == 1);
            let added: Vec<_> = advertised(ProtocolVersion::V1, on).filter(|tag| !always.contains(tag)).collect();
            let own: Vec<_> = REGISTRY.iter().filter(|row| row.when == Some(*toggle)).map(|row| row.tag).collect();
            assert_eq!(added, own);
            assert!(!own.is_empty(), "{toggle:?} changes nothing a client can see");
        }
    }
}
