//! Who a caller is, as the server sees it: whose token it sent, and what that token is for.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::tokens::TokenRole;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CallerKind {
    /// The owner of the installation.
    Operator,
    /// A platform.
    Service,
    /// A person.
    User,
    /// An agent that people grant something.
    Agent,
    /// The runner of one run.
    Runner,
}

impl CallerKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Service => "service",
            Self::User => "user",
            Self::Agent => "agent",
            Self::Runner => "runner",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CallerView {
    pub kind: CallerKind,
    /// The name by which audit events refer to the caller.
    pub name: String,
    /// The role of a service's token.
    pub role: Option<TokenRole>,
    /// The tenants that the caller may see; null for all.
    pub tenants: Option<Vec<String>>,
    /// The tenants of this server that the caller may name, in the order of the configuration.
    #[serde(default)]
    pub known_tenants: Vec<String>,
    /// The tenant of new work if the caller names none: `local` if it is one of the caller's, else the caller's only one.
    /// Null if the caller has no tenant, or several without `local`; then new work has to name its tenant.
    pub default_tenant: Option<String>,
    /// What the caller may do, in the words of the operations' `security`.
    pub access: Vec<String>,
    /// Every action that depends on the caller, and whether the caller may do it.
    #[serde(default)]
    #[schema(required)]
    pub actions: Vec<CallerAction>,
    /// The owner of agents that the caller creates: the id of a user, or `local`. Null if the caller cannot own any.
    #[serde(default)]
    pub owner_id: Option<String>,
}

/// An action, in the words of the operations' `security`, and whether the caller may do it. Whether it may do it with a certain
/// run or tenant depends on that as well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CallerAction {
    pub action: String,
    /// What the action covers.
    pub description: String,
    pub allowed: bool,
    /// Why the caller may not do it; null if it may.
    pub reason: Option<String>,
}
