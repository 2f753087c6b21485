//! The caller in whose name a child runs: the one who created the parent, and with no more rights than that caller has now.

use std::sync::Arc;

use ostler_protocol::{
    Failure,
    ids::{TokenId, UserId},
    kernel::{commands::Command, runs::Run},
    tokens::TokenRole,
};
use ostler_store as store;

use crate::{app::App, auth::Principal};

/// The caller who created the parent, in its tenant. `None` if there is no such caller, or if another caller submitted the command to
/// a run of the operator: a child would have the operator's rights.
pub(super) async fn creator_of(app: &App, parent: &Run, command: &Command) -> Result<Option<Principal>, Failure> {
    let tenants: Arc<[String]> = [parent.tenant_id.clone()].into();
    let Some(created_by) = parent.created_by.as_deref() else { return Ok(None) };
    // A user is recorded by the id, every other caller by its name.
    if let Ok(user_id) = created_by.parse::<UserId>() {
        let user = store::users::get(&app.db, user_id).await?.filter(|user| user.removed_at.is_none());
        return Ok(user.map(|user| Principal::User { user_id, name: user.name.into(), tenants }));
    }
    let service = created_by.strip_prefix("service:").and_then(|id| id.parse::<TokenId>().ok());
    Ok(match service {
        Some(token_id) => Some(Principal::Service { token_id, tenants, role: TokenRole::Client }),
        None => {
            let operator = Principal::Operator.name();
            let is_operators = created_by == operator && command.submitted_by.as_ref() == Some(&operator);
            is_operators.then_some(Principal::Operator)
        }
    })
}

/// Whether the caller could still create a run in the tenant. A run may take longer than the token lasts with which it was created,
/// and goes on then; it starts no others. A child that exists is waited for in any case.
pub(super) async fn may_start(app: &App, creator: &Principal, tenant_id: &str) -> Result<bool, Failure> {
    let has_tenant = |tenants: &[String]| tenants.iter().any(|tenant| tenant == tenant_id);
    Ok(match creator {
        Principal::Service { token_id, .. } => {
            let token = store::tokens::get(&app.db, *token_id).await?;
            token.is_some_and(|token| token.is_good(app.now()) && has_tenant(&token.tenants))
        }
        Principal::User { user_id, .. } => {
            let user = store::users::get(&app.db, *user_id).await?;
            user.is_some_and(|user| user.removed_at.is_none() && has_tenant(&user.tenants))
        }
        _ => true,
    })
}
