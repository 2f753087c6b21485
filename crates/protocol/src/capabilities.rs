//! What a client may rely on, published before it sends any request. A tag is a promise of behaviour: it is advertised
//! exactly while the behaviour is there, and new behaviour gets a new tag. Nothing here decides anything else.
//!
//! Three versions move independently: of the envelope's shape, of the protocol's features, of an event's frame.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::kernel::permissions::PermissionStrategy;

/// The shape of the envelope. It rises only when a reader of the old shape would break.
pub const ENVELOPE_VERSION: u32 = 1;
/// The shape of one streamed event.
pub const EVENT_SCHEMA_VERSION: u32 = 1;
/// How clients attach: over HTTP, to agents that run behind this server.
pub const MODE: &str = "http-bridge";

/// Features are added inside a version; one is removed, or a frame changes its shape, only with the next.
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

/// A switch of the operator, as far as it is visible to clients. The engine declares those of its own sections here, and each
/// dialect its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Toggle {
    pub name: &'static str,
    /// What switches it on: a flag of `ostler serve`, or a key of the configuration.
    pub switch: &'static str,
}

impl Toggle {
    pub const REQUIRE_AUTH: Self = Self::new("require auth", "--require-auth");
    pub const ALLOW_ORIGIN: Self = Self::new("allow origin", "--allow-origin");
    pub const RATE_LIMIT: Self = Self::new("rate limit", "--rate-limit");
    /// Sessions share connections to MCP servers.
    pub const MCP_POOL: Self = Self::new("mcp pool", "mcp.no_pool = false");

    pub const fn new(name: &'static str, switch: &'static str) -> Self {
        Self { name, switch }
    }
}

/// The toggles that are on.
pub type Toggles = BTreeSet<Toggle>;

/// One row of the registry.
#[derive(Debug)]
pub struct Capability {
    pub tag: &'static str,
    pub since: ProtocolVersion,
    /// Where it has several ways of working: all that this build has.
    pub modes: &'static [&'static str],
    /// Advertised only while all of these are on; without any, always.
    pub when: &'static [Toggle],
    /// What it consists of. The first one proves it.
    pub operations: &'static [&'static str],
    pub promise: &'static str,
}

/// A capability of the first version that is always advertised.
pub const fn capability(tag: &'static str, operations: &'static [&'static str], promise: &'static str) -> Capability {
    Capability { tag, since: ProtocolVersion::V1, modes: &[], when: &[], operations, promise }
}

impl Capability {
    pub const fn modes(self, modes: &'static [&'static str]) -> Self {
        Self { modes, ..self }
    }

    /// Advertised only while all of these toggles are on.
    pub const fn when(self, toggles: &'static [Toggle]) -> Self {
        Self { when: toggles, ..self }
    }

    fn is_advertised(&self, version: ProtocolVersion, toggles: &Toggles) -> bool {
        self.since <= version && self.when.iter().all(|toggle| toggles.contains(toggle))
    }
}

/// Capabilities of the engine itself. Those of a dialect are in its crate.
pub const ENGINE: &[Capability] = &[
    capability(
        "health",
        &["GET /health", "GET /health/live", "GET /health/readiness"],
        "States that the server lives, with `?deep=1` also how much it has to do, and whether it can be trusted with work.",
    ),
    capability("capabilities", &["GET /capabilities"], "States what a client may rely on."),
    capability("ostler_metrics", &["GET /metrics"], "Counts what happens, as Prometheus reads it."),
    capability(
        "require_auth",
        &["GET /health", "GET /capabilities"],
        "Every request needs a token, also for health; without a valid one it gets the same 401 in every case.",
    )
    .when(&[Toggle::REQUIRE_AUTH]),
    capability(
        "allow_origin",
        &["GET /health", "GET /capabilities"],
        "Web pages of the configured origins may call, with a preflight, and read the responses; others get 403.",
    )
    .when(&[Toggle::ALLOW_ORIGIN]),
    capability(
        "rate_limit",
        &["GET /health", "GET /capabilities"],
        "Callers have limits, and so have clients where a dialect sets some; one over its limit receives 429 with the tier and the time to retry.",
    )
    .when(&[Toggle::RATE_LIMIT]),
];

/// The tags a server of this build advertises.
pub fn advertised<'a>(
    rows: impl IntoIterator<Item = &'a Capability>,
    version: ProtocolVersion,
    toggles: &Toggles,
) -> impl Iterator<Item = &'static str> {
    rows.into_iter().filter(move |row| row.is_advertised(version, toggles)).map(|row| row.tag)
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
    pub permission: PermissionStrategy,
}

/// What else clients have to know before they attach. Dialects state it, as the server is configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTerms {
    pub limits: ClientLimits,
    pub supported_languages: Vec<String>,
}

/// Limits of what a client may have open. One that is absent has no meaning on this server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientLimits {
    /// Prompts of one session that wait or run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_pending_prompts_per_session: Option<u32>,
}

/// How clients talk to this server beside events: plain requests.
const TRANSPORTS: [&str; 1] = ["rest"];

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
    pub transports: Vec<String>,
    pub limits: ClientLimits,
    /// Codes of languages that a session can have.
    pub supported_languages: Vec<String>,
    pub event_schema_version: u32,
    pub ostler_version: String,
}

impl Capabilities {
    pub fn new<'a>(
        rows: impl IntoIterator<Item = &'a Capability>,
        toggles: Toggles,
        permission: PermissionStrategy,
        workspace_cwd: String,
        ostler_version: String,
    ) -> Self {
        Self {
            v: ENVELOPE_VERSION,
            mode: MODE.to_owned(),
            features: advertised(rows, ProtocolVersion::CURRENT, &toggles).map(str::to_owned).collect(),
            workspace_cwd,
            protocol: ProtocolVersions::of_this_build(),
            protocol_versions: ProtocolVersions::of_this_build(),
            policy: Policies { permission },
            model_services: vec![],
            transports: TRANSPORTS.map(str::to_owned).to_vec(),
            limits: ClientLimits::default(),
            supported_languages: vec![],
            event_schema_version: EVENT_SCHEMA_VERSION,
            ostler_version,
        }
    }

    #[must_use]
    pub fn with_terms(self, terms: ClientTerms) -> Self {
        let ClientTerms { limits, supported_languages } = terms;
        Self { limits, supported_languages, ..self }
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
    /// Whether it supports this version, as far as it lists the versions it supports.
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
    use super::*;

    #[test]
    fn every_tag_has_one_row_with_a_proof() {
        let tags: BTreeSet<_> = ENGINE.iter().map(|row| row.tag).collect();
        assert_eq!(tags.len(), ENGINE.len());
        for row in ENGINE {
            assert!(!row.operations.is_empty(), "{} is proved by nothing", row.tag);
            assert!(row.tag.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{}", row.tag);
        }
    }

    /// The tags that a server with these rows advertises while these toggles are on.
    fn tags(rows: &[Capability], on: &[Toggle]) -> Vec<&'static str> {
        advertised(rows, ProtocolVersion::V1, &on.iter().copied().collect()).collect()
    }

    #[test]
    fn each_toggle_adds_exactly_its_own_tags() {
        let always: Vec<_> = ENGINE.iter().filter(|row| row.when.is_empty()).map(|row| row.tag).collect();
        assert_eq!(tags(ENGINE, &[]), always);
        for toggle in [Toggle::REQUIRE_AUTH, Toggle::ALLOW_ORIGIN, Toggle::RATE_LIMIT, Toggle::MCP_POOL] {
            let added: Vec<_> = tags(ENGINE, &[toggle]).into_iter().filter(|tag| !always.contains(tag)).collect();
            let own: Vec<_> = ENGINE.iter().filter(|row| row.when == [toggle]).map(|row| row.tag).collect();
            assert_eq!(added, own);
        }
    }

    #[test]
    fn a_tag_with_several_toggles_needs_all_of_them() {
        let rows = [capability("both", &["GET /both"], "").when(&[Toggle::MCP_POOL, Toggle::RATE_LIMIT])];
        assert!(tags(&rows, &[Toggle::MCP_POOL]).is_empty() && tags(&rows, &[Toggle::RATE_LIMIT]).is_empty());
        assert_eq!(tags(&rows, &[Toggle::RATE_LIMIT, Toggle::MCP_POOL]), ["both"]);
    }
}
