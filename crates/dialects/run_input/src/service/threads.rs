//! Threads: sessions with an owner, under the ids that chat front ends choose. A request for another user's thread, or for a
//! session of the manager dialect, is rejected.

use ostler_protocol::{
    Failure, FailureKind, Rule,
    ids::SessionId,
    kernel::{
        operations::{ChangeSessionOp, SessionChange},
        sessions::Session,
    },
    retention::{RetentionNoun, under_hold},
    run_input::agui::input::read_thread_id,
};
use ostler_store as store;

use super::attachments;
use crate::state::RunInputState;
use ostler_server::{
    app::App,
    auth::Principal,
    dialect::{Ownership, RemovedItems, RetentionScope, RetentionStep},
    service::session_storage,
    traces::note_session,
};

/// Sessions whose erasure one sweep continues.
const ERASED_AT_ONCE: u32 = 100;

/// The owner of threads that this caller creates.
pub(crate) fn owner(caller: &Principal) -> Result<String, Failure> {
    caller.owner()
}

/// The tenant of threads that this caller creates.
pub(crate) fn tenant<'a>(app: &'a App, caller: &'a Principal) -> Result<&'a str, Failure> {
    let configured = &RunInputState::of(app).config.tenant;
    match caller.tenants() {
        None => Ok(configured),
        Some(own) if own.contains(configured) => Ok(configured),
        Some(own) => {
            own.first().map(String::as_str).ok_or_else(|| Failure::rule(Rule::Tenant, "this user is in no tenant"))
        }
    }
}

/// The caller's own thread with this id. `None` if no user has one; fails if another user does.
pub(crate) async fn find(app: &App, caller: &Principal, thread_id: &str) -> Result<Option<Session>, Failure> {
    let owner = owner(caller)?;
    let named = store::kernel::sessions::find_by_external_id(&app.db, thread_id).await?;
    let exists = !named.is_empty();
    match named.into_iter().find(|session| session.owner.as_ref() == Some(&owner)) {
        Some(own) => {
            caller.may_submit(&own.tenant_id)?;
            note_session(&own.tenant_id, own.session);
            Ok(Some(own))
        }
        None if exists => Err(Failure::rule(Rule::Owner, "this thread belongs to another user")),
        None => Ok(None),
    }
}

/// The caller's newest chat: no automation has started it. `None` if there is none.
pub(crate) async fn find_newest(app: &App, caller: &Principal) -> Result<Option<Session>, Failure> {
    let owner = owner(caller)?;
    let newest = store::run_input::automations::find_latest_chat(&app.db, &owner, caller.tenants()).await?;
    Ok(newest.inspect(|newest| note_session(&newest.tenant_id, newest.session)))
}

/// As [`find`], also for the caller's sessions that another dialect opened without a name: the UUID of their id is their thread
/// id. They can be followed, cancelled and read here. They are continued where they were opened.
pub(crate) async fn find_any(app: &App, caller: &Principal, thread_id: &str) -> Result<Option<Session>, Failure> {
    if let Some(thread) = find(app, caller, thread_id).await? {
        return Ok(Some(thread));
    }
    let (owner, id) = (owner(caller)?, format!("{}{}", SessionId::PREFIX, thread_id.replace('-', "")));
    let Ok(id) = id.parse::<SessionId>() else { return Ok(None) };
    let found = store::kernel::sessions::get(&app.db, id).await?;
    let is_own = |session: &Session| session.external_id.is_none() && session.owner.as_ref() == Some(&owner);
    let Some(own) = found.filter(is_own) else { return Ok(None) };
    caller.may_submit(&own.tenant_id)?;
    note_session(&own.tenant_id, own.session);
    Ok(Some(own))
}

/// As [`find_any`], but fails if the thread does not exist.
pub(crate) async fn get(app: &App, caller: &Principal, thread_id: &str) -> Result<Session, Failure> {
    find_any(app, caller, thread_id).await?.ok_or_else(|| Failure::not_found("thread"))
}

/// Erases the caller's thread, also a session that another dialect opened: its run ends, and only the digests of its events
/// remain. Idempotent; another user's thread is rejected.
pub(crate) async fn erase(app: &App, caller: &Principal, thread_id: &str) -> Result<(), Failure> {
    let (owner, thread_id) = (owner(caller)?, read_thread_id(thread_id)?);
    if let Some(session) = find_any(app, caller, &thread_id).await?
        && store::retention::is_held(&app.db, session.session).await?
    {
        return Err(under_hold("this thread"));
    }
    let session = mark_erased(app, caller, &thread_id).await?;
    app.to_the_end(|app| async move {
        match session {
            Some(session) => finish_erasing(&app, &session).await,
            // Delete what was uploaded for a thread that was never created.
            None => attachments::erase(&app, None, &owner, &thread_id, app.now()).await.map(drop),
        }
    })
    .await
}

/// Marks the thread as erased: from here on no client finds it, and its runner is rejected.
async fn mark_erased(app: &App, caller: &Principal, thread_id: &str) -> Result<Option<Session>, Failure> {
    let mut attempts =
        app.db.attempts(|| Failure::new(FailureKind::Overloaded, "the thread still has running work; try again"));
    loop {
        attempts.start_next()?;
        let Some(session) = find_any(app, caller, thread_id).await? else {
            // A server that then stopped may have marked it before.
            let marked = store::kernel::erasures::find_by_name(&app.db, &owner(caller)?, thread_id).await?;
            return Ok(marked.inspect(|marked| note_session(&marked.tenant_id, marked.session)));
        };
        let op = ChangeSessionOp { change: SessionChange::Erase, by: caller.name() };
        match app.try_submit(session.session, session.active_run_id, op).await {
            Err(failure) if failure.broken_rule() == Some(Rule::SessionMovedOn) => {}
            Err(failure) if failure.kind == FailureKind::NotFound => {}
            outcome => {
                return outcome?.ok_or_else(|| Failure::internal("a key clashed where none is written")).map(Some);
            }
        }
    }
}

/// Deletes the files first: once the rows are deleted, the thread's id is free, and another thread may use it. A hold that is
/// placed concurrently keeps the rest, until it is released.
async fn finish_erasing(app: &App, session: &Session) -> Result<(), Failure> {
    app.forget_session(session.session);
    if let (Some(owner), Some(thread_id)) = (&session.owner, &session.external_id) {
        let erased_at = session.erased_at.unwrap_or_else(|| app.now());
        if !attachments::erase(app, Some(session.session), owner, thread_id, erased_at).await? {
            return Ok(());
        }
    }
    session_storage::finish_erasure(app, session).await
}

/// Finishes erasures that a stopped server had begun. A failure with one thread does not stop the others.
pub(crate) async fn finish_all_erasing(app: &App) -> Result<(), Failure> {
    for session in store::kernel::erasures::list_unfinished(&app.db, ERASED_AT_ONCE).await? {
        if let Err(failure) = finish_erasing(app, &session).await {
            tracing::warn!(%failure, cause = failure.cause.as_deref(), session = %session.session, "erasing a thread failed; the next sweep tries again");
        }
    }
    Ok(())
}

/// Threads are erased after their limit, as if their users had erased them.
pub(crate) fn retention() -> RetentionStep {
    RetentionStep::new(
        RetentionNoun::Threads,
        Ownership::Tenant,
        |app, page| async move {
            store::run_input::threads::list_removable(&app.db, &page.scope, page.after.as_deref(), page.limit).await
        },
        |app, scope, keys| async move { expire(&app, &scope, &keys).await },
    )
    .tables(&["events", "commands", "runs", "attachments"])
}

async fn expire(app: &App, scope: &RetentionScope, keys: &[String]) -> Result<RemovedItems, Failure> {
    let none = RemovedItems::default();
    let Some(id) = keys.first().and_then(|key| key.parse::<SessionId>().ok()) else { return Ok(none) };
    let Some(session) = store::run_input::threads::find_removable(&app.db, scope, id).await? else { return Ok(none) };
    if store::retention::is_held(&app.db, id).await? {
        return Ok(none);
    }
    let bytes = store::run_input::threads::count_bytes(&app.db, id).await?;
    let change = SessionChange::EraseUnchanged { since: scope.before };
    let op = ChangeSessionOp { change, by: "retention".into() };
    match app.try_submit(id, session.active_run_id, op).await {
        // It was used since it was listed.
        Err(failure) if failure.broken_rule() == Some(Rule::SessionMovedOn) => Ok(none),
        Err(failure) if failure.kind == FailureKind::NotFound => Ok(none),
        outcome => {
            let erased = outcome?.ok_or_else(|| Failure::internal("a key clashed where none is written"))?;
            finish_erasing(app, &erased).await?;
            Ok(RemovedItems { items: 1, bytes, has_more: false })
        }
    }
}
