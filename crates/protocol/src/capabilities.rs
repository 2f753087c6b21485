//! What a client may rely on, published before it sends any request. A tag is a promise of behaviour: it is advertised
//! exactly while the behaviour is there, and new behaviour gets a new tag. Nothing here decides anything else.
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

/// What the operator of a server switches on, as far as it is visible to clients.
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

/// A capability of the first version that is always advertised.
pub const fn capability(tag: &'static str, operations: &'static [&'static str], promise: &'static str) -> Capability {
    Capability { tag, since: ProtocolVersion::V1, modes: &[], when: None, operations, promise }
}

impl Capability {
    pub const fn modes(self, modes: &'static [&'static str]) -> Self {
        Self { modes, ..self }
    }

    pub const fn when(self, toggle: Toggle) -> Self {
        Self { when: Some(toggle), ..self }
    }

    fn is_advertised(&self, version: ProtocolVersion, toggles: Toggles) -> bool {
        self.since <= version && self.when.is_none_or(|toggle| toggle.is_on(toggles))
    }
}

/// Capabilities of the engine itself. Those of a dialect are in its crate.
pub const ENGINE: &[Capability] = &[
    capability(
        "health",
        &["GET /health", "GET /health/live", "GET /health/readiness"],
        "Says that the server lives, and whether it can be trusted with work.",
    ),
    capability("capabilities", &["GET /capabilities"], "Says what a client may rely on."),
    capability("ostler_metrics", &["GET /metrics"], "Counts what happens, as Prometheus reads it."),
    capability(
        "require_auth",
        &["GET /health", "GET /capabilities"],
        "Nothing answers without a token, not even health.",
    )
    .when(Toggle::RequireAuth),
    capability("allow_origin", &["GET /health"], "Web pages of the configured origins may call, and read the answers.")
        .when(Toggle::AllowOrigin),
    capability(
        "rate_limit",
        &["GET /health"],
        "Responses state how many requests remain; a client over the limit receives the time to retry.",
    )
    .when(Toggle::RateLimit),
];

/// The tags a server of this build advertises.
pub fn advertised<'a>(
    rows: impl IntoIterator<Item = &'a Capability>,
    version: ProtocolVersion,
    toggles: Toggles,
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
    pub fn new<'a>(
        rows: impl IntoIterator<Item = &'a Capability>,
        toggles: Toggles,
        workspace_cwd: String,
        ostler_version: String,
    ) -> Self {
        Self {
            v: ENVELOPE_VERSION,
            mode: MODE.to_owned(),
            features: advertised(rows, ProtocolVersion::CURRENT, toggles).map(str::to_owned).collect(),
            workspace_cwd,
            protocol: ProtocolVersions::of_this_build(),
            protocol_versions: ProtocolVersions::of_this_build(),
            // The first valid answer of a person with the right counts.
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
        let tags: BTreeSet<_> = ENGINE.iter().map(|row| row.tag).collect();
        assert_eq!(tags.len(), ENGINE.len());
        for row in ENGINE {
            assert!(!row.operations.is_empty(), "{} is proved by nothing", row.tag);
            assert!(row.tag.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{}", row.tag);
        }
    }

    #[test]
    fn each_toggle_adds_exactly_its_own_tags() {
        let always: Vec<_> = ENGINE.iter().filter(|row| row.when.is_none()).map(|row| row.tag).collect();
        assert_eq!(advertised(ENGINE, ProtocolVersion::V1, Toggles::default()).collect::<Vec<_>>(), always);
        for toggle in Toggle::ALL {
            let on = with(*toggle);
            assert!(toggle.is_on(on) && Toggle::ALL.iter().filter(|other| other.is_on(on)).count() == 1);
            let added: Vec<_> =
                advertised(ENGINE, ProtocolVersion::V1, on).filter(|tag| !always.contains(tag)).collect();
            let own: Vec<_> = ENGINE.iter().filter(|row| row.when == Some(*toggle)).map(|row| row.tag).collect();
            assert_eq!(added, own);
            assert!(!own.is_empty(), "{toggle:?} changes nothing a client can see");
        }
    }
}
