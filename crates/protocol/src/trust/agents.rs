//! Agents: who they are, who owns them, what they claim they can do, and which backend profile runs them. An agent's
//! manifest is public on purpose: people must be able to read what they consent to.

use serde::{Deserialize, Deserializer, Serialize, de::Error};
use utoipa::{IntoParams, ToSchema};

use crate::{
    Failure, RawJson, Rule, Timestamp,
    ids::{AgentId, TokenId, name, slug},
    json::present,
    problems::Problems,
    text::is_plain,
    tokens::check_life,
    trust::manifest::{Checked, Manifest, ManifestDiff, Warning},
};

/// Agents of one owner.
pub const AGENTS_PER_OWNER_MAX: u32 = 1_000;
/// Tokens of one agent that were not revoked.
pub const AGENT_TOKENS_MAX: u32 = 100;

/// An agent, as stored and as sent. A list leaves the manifests out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Agent {
    pub id: AgentId,
    /// Given once: people trust an agent by its name.
    pub name: String,
    /// A user's id, or `local`.
    pub owner_id: String,
    /// What runs it. Shown to its owner, to platforms and to the operator; null for all others.
    pub backend_profile: Option<String>,
    /// In its canonical form.
    #[serde(default)]
    #[schema(value_type = Option<Manifest>)]
    pub capability_manifest: Option<RawJson>,
    /// One more for every manifest; none is left out. Zero: there has been none.
    pub capability_manifest_version: i64,
    /// SHA-256 of the canonical form, in hex.
    pub capability_manifest_hash: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When its public fields last changed.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
    /// It has ended for good.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub retired_at: Option<Timestamp>,
    /// Raised by every change, whatever it is.
    #[serde(skip)]
    pub revision: i64,
}

impl Agent {
    /// An agent that has not published a manifest yet.
    pub fn new(id: AgentId, name: String, owner_id: String, backend_profile: Option<String>, now: Timestamp) -> Self {
        Self {
            id,
            name,
            owner_id,
            backend_profile,
            capability_manifest: None,
            capability_manifest_version: 0,
            capability_manifest_hash: None,
            created_at: now,
            updated_at: now,
            retired_at: None,
            revision: 1,
        }
    }

    /// The manifest as it was checked when it was stored.
    pub fn manifest(&self) -> Result<Option<Checked>, Failure> {
        self.capability_manifest.as_ref().map(|text| Checked::reformatted(text.as_str())).transpose()
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateAgent {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_profile: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Manifest>)]
    pub capability_manifest: Option<RawJson>,
}

impl CreateAgent {
    pub fn check(&self) -> Result<(), Failure> {
        let mut problems = Problems::default();
        problems.note(shown_name(&self.name));
        problems.note(self.backend_profile.as_deref().map(|profile| slug("backend_profile", profile)).transpose());
        problems.check()
    }
}

/// A name by which people distinguish one thing from another.
fn shown_name(text: &str) -> Result<(), Failure> {
    name("name", text)?;
    if is_plain(text) {
        return Ok(());
    }
    let message = "name must be text that can be seen, and nothing that cannot";
    Err(Failure::rule(Rule::NameShape, message).detail("field", "name"))
}

/// What is left out stays as it is.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpdateAgent {
    /// The name it has; another one is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Null: it is no longer run by any profile.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub backend_profile: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Manifest, required = false)]
    pub capability_manifest: Option<RawJson>,
}

impl UpdateAgent {
    pub fn check(&self) -> Result<(), Failure> {
        if self.name.is_none() && self.backend_profile.is_none() && self.capability_manifest.is_none() {
            return Err(Failure::invalid(
                Rule::UpdateEmpty,
                "name, backend_profile or capability_manifest must be given",
            ));
        }
        let mut problems = Problems::default();
        problems.note(self.name.as_deref().map(shown_name).transpose());
        let profile = self.backend_profile.as_ref().and_then(Option::as_deref);
        problems.note(profile.map(|profile| slug("backend_profile", profile)).transpose());
        problems.check()
    }
}

/// What a create or an update answers: the agent, and what to look at in its manifest.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct SavedAgent {
    #[serde(flatten)]
    pub agent: Agent,
    pub warnings: Vec<Warning>,
    /// Whether this gave the agent another manifest than it had.
    pub manifest_changed: bool,
    /// Whether people who consented to what was there before must consent again.
    pub breaking: bool,
    /// The scopes that need their consent again, sorted.
    pub scopes_requiring_reauth: Vec<String>,
}

impl<'de> Deserialize<'de> for SavedAgent {
    /// A manifest stays text, and serde reads no text from what it flattens; so the answer is read once for each part.
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct SaveOutcome {
            warnings: Vec<Warning>,
            #[serde(default)]
            manifest_changed: bool,
            #[serde(default)]
            breaking: bool,
            #[serde(default)]
            scopes_requiring_reauth: Vec<String>,
        }
        let text = RawJson::deserialize(input)?;
        let agent = serde_json::from_str(text.as_str()).map_err(D::Error::custom)?;
        let SaveOutcome { warnings, manifest_changed, breaking, scopes_requiring_reauth } =
            serde_json::from_str(text.as_str()).map_err(D::Error::custom)?;
        Ok(Self { agent, warnings, manifest_changed, breaking, scopes_requiring_reauth })
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListAgents {
    /// Only agents whose name contains this, ignoring the case of ASCII letters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Newest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AgentPage {
    pub agents: Vec<Agent>,
    pub next_cursor: Option<String>,
}

/// A manifest that is only tried.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiffManifest {
    #[schema(value_type = Manifest)]
    pub capability_manifest: RawJson,
}

/// What an update with a manifest would do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TriedManifest {
    #[serde(flatten)]
    pub diff: ManifestDiff,
    pub capability_manifest_hash: String,
    /// The version it would get. The same as now if the manifest is the same.
    pub capability_manifest_version: i64,
    pub warnings: Vec<Warning>,
}

/// A manifest that took effect, for the code that notifies the people who granted something.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    pub agent: Agent,
    pub diff: ManifestDiff,
}

/// A token that acts for an agent. The token itself is returned once, to the client that creates it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AgentToken {
    pub token_id: TokenId,
    pub agent_id: AgentId,
    /// What people call it; it need not be unique.
    pub name: String,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub revoked_at: Option<Timestamp>,
}

impl AgentToken {
    pub fn is_good(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| now < end)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateAgentToken {
    pub name: String,
    /// Left out: it lasts until it is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<i64>,
}

impl CreateAgentToken {
    pub fn check(&self) -> Result<(), Failure> {
        let mut problems = Problems::default();
        problems.note(shown_name(&self.name));
        problems.note(self.expires_in_ms.map(check_life).transpose());
        problems.check()
    }
}

/// The only time the token itself is shown.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CreatedAgentToken {
    #[serde(flatten)]
    pub agent_token: AgentToken,
    pub token: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AgentTokens {
    pub tokens: Vec<AgentToken>,
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn people_see_all_there_is_in_a_name() {
        let named = |name: &str| CreateAgent { name: name.into(), backend_profile: None, capability_manifest: None };
        named("Lecteur d’état 读者").check().unwrap();
        for hidden in ["read\u{200b}er", "\u{2800}", "re\u{202e}daer", "reader\u{fe0f}", "\u{3164}\u{3164}"] {
            let failure = named(hidden).check().unwrap_err();
            assert_eq!(failure.rule_name(), Some("name-shape"), "{hidden:?}");
            let renamed = UpdateAgent { name: Some(hidden.into()), ..UpdateAgent::default() };
            assert!(renamed.check().is_err(), "{hidden:?}");
        }
    }

    #[test]
    fn an_answer_is_read_as_it_was_written() {
        let warning = Warning { rule: "schema-open".into(), pointer: "/tools/0".into(), message: "open".into() };
        let made = Agent::new(AgentId::new(Uuid::nil()), "reader".into(), "local".into(), None, Timestamp::UNIX_EPOCH);
        let agent = Agent {
            capability_manifest: RawJson::parse(r#"{"tools":[]}"#.into()).ok(),
            capability_manifest_version: 1,
            capability_manifest_hash: Some("h".into()),
            // The revision is not part of the response.
            revision: 0,
            ..made
        };
        let saved = SavedAgent {
            agent,
            warnings: vec![warning],
            manifest_changed: true,
            breaking: true,
            scopes_requiring_reauth: vec!["notes:read".into()],
        };
        let text = serde_json::to_string(&saved).unwrap();
        assert_eq!(serde_json::from_str::<SavedAgent>(&text).unwrap(), saved);
    }
}
