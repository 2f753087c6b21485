//! Threads: sessions that somebody owns, by the ids that chat front ends choose; found, and erased. What is somebody else's is refused, whether
//! it is another user's thread or a session of the manager dialect.

use ostler_protocol::{
    Failure, FailureKind,
    kernel::{
        operations::{ChangeSessionOp, SESSION_MOVED_ON, SessionChange},
        sessions::Session,
    },
    run_input::agui::input::read_thread_id,
};
use ostler_store as store;

use super::attachments;
use crate::state::RunInputState;
use ostler_server::{
    app::App,
    auth::{Principal, forbidden},
    directories,
};

/// Sessions that one sweep goes on erasing.
const ERASED_AT_ONCE: u32 = 100;

/// Who owns what this caller starts.
pub fn owner(caller: &Principal) -> Result<String, Failure> {
    caller.owner()
}

/// Where this caller's new threads belong.
pub fn tenant<'a>(app: &'a App, caller: &'a Principal) -> Result<&'a str, Failure> {
    let configured = &RunInputState::of(app).config.tenant;
    match caller.tenants() {
        None => Ok(configured),
        Some(own) if own.contains(configured) => Ok(configured),
        Some(own) => own.first().map(String::as_str).ok_or_else(|| forbidden("tenant", "this user is in no tenant")),
    }
}

/// The caller's own thread of this id. `None`: nobody has one.
pub async fn find(app: &App, caller: &Principal, thread_id: &str) -> Result<Option<Session>, Failure> {
    let owner = owner(caller)?;
    let named = store::kernel::sessions::find_by_external_id(&app.db, thread_id).await?;
    let others = !named.is_empty();
    match named.into_iter().find(|session| session.owner.as_ref() == Some(&owner)) {
        Some(own) => caller.may_submit(&own.tenant_id).map(|()| Some(own)),
        None if others => Err(forbidden("owner", "this thread is somebody else's")),
        None => Ok(None),
    }
}

/// The caller's newest thread. `None`: they have none.
pub async fn find_newest(app: &App, caller: &Principal) -> Result<Option<Session>, Failure> {
    let owner = owner(caller)?;
    Ok(store::kernel::sessions::find_newest_by_owner(&app.db, &owner, caller.tenants()).await?)
}

/// As [`find`], of a thread that must be there.
pub async fn get(app: &App, caller: &Principal, thread_id: &str) -> Result<Session, Failure> {
    find(app, caller, thread_id).await?.ok_or_else(|| Failure::not_found("thread"))
}

/// Erases the caller's thread: what runs in it ends, and nothing of it is left but the digests of its events. Idempotent;
/// somebody else's is refused.
pub async fn erase(app: &App, caller: &Principal, thread_id: &str) -> Result<(), Failure> {
    let (owner, thread_id) = (owner(caller)?, read_thread_id(thread_id)?);
    let session = mark_erased(app, caller, &thread_id).await?;
    app.to_the_end(|app| async move {
        match session {
            Some(session) => finish_erasing(&app, &session).await,
            // What was uploaded for a thread that never came to be.
            None => attachments::erase(&app, &owner, &thread_id, app.now()).await,
        }
    })
    .await
}

/// From here on nobody finds the thread, and whoever works in it is refused.
async fn mark_erased(app: &App, caller: &Principal, thread_id: &str) -> Result<Option<Session>, Failure> {
    let mut attempts =
        app.attempts(|| Failure::new(FailureKind::Overloaded, "the thread did not come to rest; try again"));
    loop {
        attempts.start_next()?;
        let Some(session) = find(app, caller, thread_id).await? else {
            // It may have been marked before, by a server that then stopped.
            let marked = store::kernel::erasures::find_by_name(&app.db, &owner(caller)?, thread_id).await;
            return Ok(marked?);
        };
        let op = ChangeSessionOp { change: SessionChange::Erase, by: caller.name() };
        match app.try_submit(session.session, session.active_run_id, op).await {
            Err(failure) if failure.rule_name() == Some(SESSION_MOVED_ON) => {}
            Err(failure) if failure.kind == FailureKind::NotFound => {}
            outcome => {
                return outcome?.ok_or_else(|| Failure::internal("a key clashed where none is written")).map(Some);
            }
        }
    }
}

/// Files first: once the rows are gone, so is the name that leads to them, and another thread may have it.
async fn finish_erasing(app: &App, session: &Session) -> Result<(), Failure> {
    app.forget_session(session.session);
    if let (Some(owner), Some(thread_id)) = (&session.owner, &session.external_id) {
        attachments::erase(app, owner, thread_id, session.erased_at.unwrap_or_else(|| app.now())).await?;
    }
    directories::clear(directories::session_storage(app, session.session)?).await?;
    store::kernel::erasures::finish(&app.db, session).await?;
    app.forget_session(session.session);
    Ok(())
}

/// Goes on with erasing what a server that stopped had begun. One that cannot be finished does not hold up the others.
pub async fn finish_all_erasing(app: &App) -> Result<(), Failure> {
    for session in store::kernel::erasures::list_unfinished(&app.db, ERASED_AT_ONCE).await? {
        if let Err(failure) = finish_erasing(app, &session).await {
            tracing::warn!(%failure, cause = failure.cause.as_deref(), session = %session.session, "erasing a thread failed; the next sweep tries again");
        }
    }
    Ok(())
}
