//! Notifications to an agent about one of its relations.

use serde::{Deserialize, Serialize};

use crate::{
    ids::{AgentId, RelationId},
    trust::{
        receipts::ReceiptAction,
        relations::{
            Relation, ScopeState,
            standing::{DeclaredSince, scope_state},
        },
    },
};

pub const ESTABLISHED: &str = "relation.established";
pub const REVOKED: &str = "relation.revoked";
pub const CAPABILITY_CHANGED: &str = "agent.capability_changed";

/// What the agent's own side receives about a person's act, by WebSocket and by webhook.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RelationNotification {
    pub agent_id: AgentId,
    pub relation_id: RelationId,
    pub user_id: String,
    /// What the person has granted and the agent still declares; what waits for their answer is among it.
    pub granted_scopes: Vec<String>,
    /// What they last consented to.
    pub manifest_version: i64,
    pub manifest_hash: String,
}

impl RelationNotification {
    /// The notification about this act, with its event name; `declared` are the scopes that the agent declares, if that
    /// is known. `None` if the act concerns the person's side alone.
    pub fn of(
        act: ReceiptAction,
        relation: &Relation,
        declared: Option<&DeclaredSince>,
    ) -> Option<(&'static str, Self)> {
        let event_type = match act {
            ReceiptAction::Established => ESTABLISHED,
            ReceiptAction::Consented | ReceiptAction::Narrowed => CAPABILITY_CHANGED,
            ReceiptAction::Revoked | ReceiptAction::Ended => REVOKED,
            ReceiptAction::Used => return None,
        };
        let since = |id: &str| declared.map_or(Some(relation.consented.version), |declared| declared.get(id).copied());
        let is_granted = |id: &&String| {
            let state = |since| scope_state(relation, id, since, false, relation.updated_at);
            since(id).map(state) == Some(ScopeState::Granted)
        };
        let granted = relation.answers.keys().filter(is_granted);
        let notification = Self {
            agent_id: relation.agent_id,
            relation_id: relation.relation_id,
            user_id: relation.user_id.clone(),
            granted_scopes: granted.cloned().collect(),
            manifest_version: relation.consented.version,
            manifest_hash: relation.consented.hash.clone(),
        };
        Some((event_type, notification))
    }
}
