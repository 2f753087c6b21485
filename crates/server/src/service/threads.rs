//! Threads: sessions that somebody owns, by the ids that chat front ends choose. What is somebody else's is refused, whether
//! it is another user's thread or a session of the manager dialect.

use ostler_protocol::{Failure, sessions::Session};
use ostler_store as store;

use crate::{
    app::{App, store_failure},
    auth::{Access, Principal, forbidden},
};

/// The user that the operator's token speaks for.
const OPERATORS_USER: &str = "local";

/// Who owns what this caller starts.
pub fn owner(caller: &Principal) -> Result<String, Failure> {
    Access::Chat.admit(caller)?;
    Ok(match caller {
        Principal::User { user_id, .. } => user_id.to_string(),
        _ => OPERATORS_USER.to_owned(),
    })
}

/// Where this caller's new threads belong.
pub fn tenant<'a>(app: &'a App, caller: &'a Principal) -> Result<&'a str, Failure> {
    let configured = &app.config.agent_runs.tenant;
    match caller.tenants() {
        None => Ok(configured),
        Some(own) if own.contains(configured) => Ok(configured),
        Some(own) => own.first().map(String::as_str).ok_or_else(|| forbidden("tenant", "this user is in no tenant")),
    }
}

/// The caller's own thread of this id. `None`: nobody has one.
pub async fn find(app: &App, caller: &Principal, thread_id: &str) -> Result<Option<Session>, Failure> {
    let owner = owner(caller)?;
    let named = store::sessions::find_by_external_id(&app.db, thread_id).await.map_err(store_failure)?;
    let others = !named.is_empty();
    match named.into_iter().find(|session| session.owner.as_ref() == Some(&owner)) {
        Some(own) => caller.may_submit(&own.tenant_id).map(|()| Some(own)),
        None if others => Err(forbidden("owner", "this thread is somebody else's")),
        None => Ok(None),
    }
}

/// As [`find`], of a thread that must be there.
pub async fn get(app: &App, caller: &Principal, thread_id: &str) -> Result<Session, Failure> {
    find(app, caller, thread_id).await?.ok_or_else(|| Failure::not_found("thread"))
}
