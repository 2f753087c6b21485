//! The caller in whose name a child runs: the one who created the parent, and with no more rights than that caller has now.

use std::sync::Arc;

use ostler_protocol::{
    Failure,
    ids::{TokenId, UserId},
    kernel::runs::Run,
    tokens::TokenRole,
};
use ostler_store as store;

use crate::{app::App, auth::Principal};

/// The caller who created the parent, in its tenant. `None` if there is no such caller.
pub(super) async fn creator_of(app: &App, parent: &Run) -> Result<Option<Principal>, Failure> {
    let tenants: Arc<[String]> = [parent.tenant_id.clone()].into();
    let Some((kind, name)) = parent.created_by.as_deref().map(|by| by.split_once(':').unwrap_or((by, ""))) else {
        return Ok(None);
    };
    Ok(match kind {
        "operator" => Some(Principal::Operator),
        "service" => {
            let token_id = name.parse::<TokenId>().ok();
            token_id.map(|token_id| Principal::Service { token_id, tenants, role: TokenRole::Client })
        }
        "user" => {
            let user = store::users::find_by_name(&app.db, name).await?;
            let named = |user_id: UserId| Principal::User { user_id, name: name.into(), tenants };
            user.filter(|user| user.removed_at.is_none()).map(|user| named(user.user_id))
        }
        _ => None,
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
