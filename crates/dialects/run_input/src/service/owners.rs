//! Owners of threads, automations and calendars as callers, for work that no request of theirs starts.

use ostler_protocol::{Failure, ids::UserId};
use ostler_store as store;

use ostler_server::{
    app::App,
    auth::{LOCAL, Principal},
};

/// The owner as a caller, with the rights that their requests have. `None` if the user was removed.
pub(crate) async fn principal(app: &App, owner_id: &str) -> Result<Option<Principal>, Failure> {
    if owner_id == LOCAL {
        return Ok(Some(Principal::Operator));
    }
    let Ok(user_id) = owner_id.parse::<UserId>() else { return Ok(None) };
    let user = store::users::get(&app.db, user_id).await?.filter(|user| user.removed_at.is_none());
    Ok(user.map(|user| Principal::User { user_id, name: user.name.into(), tenants: user.tenants.into() }))
}
