//! Relations between people and agents: which scopes of an agent's manifest a person has granted, and what they saw
//! when they did. Whatever the agent's owner changes afterwards, a grant never covers more than was consented to.
//!
//! [`standing`] derives the state of a relation under the agent's current manifest; [`answering`] is what a person can
//! do to a relation. Both are pure: the store keeps what they return.

pub mod answering;
mod notifications;
pub mod standing;

pub use notifications::{CAPABILITY_CHANGED, ESTABLISHED, REVOKED, RelationNotification};

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{
    Timestamp,
    ids::{AgentId, RelationId},
    trust::{
        i18n::Language,
        manifest::{Change, Sensitivity},
    },
};

/// Agents that one person can have relations with at a time.
pub const RELATIONS_PER_USER_MAX: i64 = 1_000;
/// How long a grant that ends by itself may last: ten years, as the longest token.
pub const GRANT_LIFE_MS_MAX: i64 = crate::limits::TOKEN_LIFE_MS_MAX;

/// A relation as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Relation {
    pub relation_id: RelationId,
    pub agent_id: AgentId,
    /// Never changes, so that no consent can be moved to another name.
    pub agent_name: String,
    pub agent_owner_id: String,
    /// A user's id, or `local`.
    pub user_id: String,
    pub consented: Consented,
    /// The answer to each scope. One that is not here was never answered, or its grant was used up.
    pub answers: BTreeMap<String, Answer>,
    /// Raised by every change.
    pub revision: i64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub revoked_at: Option<Timestamp>,
}

/// The manifest that the person was shown when they last consented.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consented {
    pub version: i64,
    pub hash: String,
}

/// A person's answer to a scope.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    Granted {
        /// The declared sensitivity of the scope at that time. The manifest may lower it later; it is treated as no
        /// less.
        sensitivity: Sensitivity,
        /// For a single call.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        once: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_at: Option<Timestamp>,
    },
    /// Remembered, so that the person need not refuse again.
    Denied,
}

/// Limits of one grant. Left out: it holds until it is revoked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Terms {
    /// Ends with the first call that uses it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub once: bool,
    /// Ends after this long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<i64>,
}

/// Establishes a relation: with whom, and what [`Answers`] has. Written out, because a body that holds another flattened
/// cannot refuse the fields it does not know.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateRelation {
    pub agent_id: AgentId,
    /// Left out: none yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted_scopes: Option<Vec<String>>,
    /// Refused for good.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denied_scopes: Vec<String>,
    /// Limits of single grants, by scope.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub terms: BTreeMap<String, Terms>,
    /// The hash of the manifest that the person saw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest_hash: Option<String>,
    /// The language in which they saw its texts.
    #[serde(default)]
    pub language: Language,
}

impl CreateRelation {
    pub fn new(agent_id: AgentId, answers: Answers) -> Self {
        let Answers { granted_scopes, denied_scopes, terms, manifest_hash, language } = answers;
        Self { agent_id, granted_scopes, denied_scopes, terms, manifest_hash, language }
    }

    pub fn into_answers(self) -> (AgentId, Answers) {
        let Self { agent_id, granted_scopes, denied_scopes, terms, manifest_hash, language } = self;
        (agent_id, Answers { granted_scopes, denied_scopes, terms, manifest_hash, language })
    }
}

/// What a person answers, at first and again later: the scopes they grant, all of them, and nothing that is not listed. A later
/// answer that does not only take grants back names the manifest that the person saw.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Answers {
    /// Required, even if it is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted_scopes: Option<Vec<String>>,
    /// Refused for good. Earlier refusals stay unless the scope is granted now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denied_scopes: Vec<String>,
    /// Limits of single grants, by scope. A grant that stays without a word about its limits keeps those it has; `{}` lifts them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub terms: BTreeMap<String, Terms>,
    /// The hash of the manifest that the person saw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest_hash: Option<String>,
    /// The language in which they saw its texts.
    #[serde(default)]
    pub language: Language,
}

impl Answers {
    pub fn granted(&self) -> &[String] {
        self.granted_scopes.as_deref().unwrap_or_default()
    }
}

/// A call that a person's client let happen under a grant.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UseScope {
    pub scope: String,
    /// The same call again uses nothing more.
    pub call_id: String,
}

/// The state of a scope of the agent's manifest for one person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScopeState {
    Granted,
    /// Granted once, of no effect until the person has answered to what changed.
    Suspended,
    /// Granted for a time that is over.
    Expired,
    Denied,
    Unanswered,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScopeStanding {
    pub id: String,
    pub state: ScopeState,
    /// The level in force: the higher of the level at the consent and that of the current manifest.
    pub sensitivity: Sensitivity,
    pub once: bool,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
}

/// The state of a relation under the agent's current manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RelationView {
    pub id: RelationId,
    pub agent_id: AgentId,
    pub agent_name: String,
    pub agent_owner_id: String,
    pub user_id: String,
    /// What the agent may use now.
    pub granted_scopes: Vec<String>,
    /// Granted, but of no effect until the person answers.
    pub suspended_scopes: Vec<String>,
    pub denied_scopes: Vec<String>,
    /// Every scope that the manifest declares.
    pub scopes: Vec<ScopeStanding>,
    pub consented_manifest_version: i64,
    pub consented_manifest_hash: String,
    pub manifest_version: i64,
    pub manifest_hash: String,
    /// The agent has changed so that the person must consent again.
    pub reauth_required: bool,
    pub scopes_requiring_reauth: Vec<String>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub revoked_at: Option<Timestamp>,
}

/// `h2a.reauth_required`: an agent has changed, and this person must consent again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReauthRequired {
    #[serde(rename = "type")]
    pub event_type: String,
    pub agent_id: AgentId,
    pub new_manifest_version: i64,
    pub new_manifest_hash: String,
    pub scopes_requiring_reauth: Vec<String>,
    pub relation_id: RelationId,
    /// Of those, what this person had granted and the agent may not use until they answer.
    pub suspended_scopes: Vec<String>,
    /// Of those, what this person has never answered to.
    pub unanswered_scopes: Vec<String>,
}

pub const REAUTH_REQUIRED: &str = "h2a.reauth_required";

/// The same as sent to the agent's own side, by WebSocket and by webhook: there are people who must consent again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReauthAnnounced {
    pub agent_id: AgentId,
    pub new_manifest_version: i64,
    pub new_manifest_hash: String,
    pub scopes_requiring_reauth: Vec<String>,
}

/// What waits for a person's answer, one for each agent: the frames that a WebSocket sends, for people who have none
/// open.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PendingConsents {
    pub pending: Vec<ReauthRequired>,
}

/// What has changed since a person last consented.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RelationChanges {
    pub relation_id: RelationId,
    pub agent_id: AgentId,
    pub consented_manifest_version: i64,
    pub consented_manifest_hash: String,
    pub manifest_version: i64,
    pub manifest_hash: String,
    pub breaking: bool,
    pub changes: Vec<Change>,
    pub scopes_requiring_reauth: Vec<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListRelations {
    /// Only with this agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// `true`: relations that have ended, instead of those that are in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RelationPage {
    pub relations: Vec<RelationView>,
    pub next_cursor: Option<String>,
}

#[cfg(test)]
mod tests;
