//! Session storage: make, get, refresh, evict, and the sweep that evicts expired storage. The event is stored before the
//! directory is deleted; a directory that a crash in between leaves behind is found by a sweep.

use std::path::PathBuf;

use jiff::SignedDuration;
use ostler_protocol::{
    Failure, FailureKind, Rule, Timestamp,
    ids::SessionId,
    kernel::{
        operations::{ChangeSessionOp, DismissOp, SessionChange},
        session_storage::{
            RefreshStorage, SWEEP_DEFAULT, SWEEP_MAX, SessionStorageView, StorageKind, StorageQuery, SweepStorage,
            SweptStorage, evicted,
        },
        sessions::Session,
    },
    retention::held,
};
use ostler_store as store;

use super::{leases, lookup};
use crate::{app::App, auth::Principal, directories};

/// The author of changes that the server makes by itself.
const MANAGER: &str = "manager";

pub async fn get(
    app: &App,
    caller: &Principal,
    id: &str,
    request: StorageQuery,
) -> Result<SessionStorageView, Failure> {
    Ok(SessionStorageView::of(lookup::session(app, caller, id, request.tenant_id.as_deref()).await?))
}

/// Evicts the session's storage: the session can still be read, and takes no more runs.
pub async fn delete(
    app: &App,
    caller: &Principal,
    id: &str,
    request: StorageQuery,
) -> Result<SessionStorageView, Failure> {
    let session = lookup::session(app, caller, id, request.tenant_id.as_deref()).await?;
    caller.may_control(&session)?;
    Ok(SessionStorageView::of(evict(app, session.session, "deleted", &caller.name()).await?))
}

/// Stores a runner's report of what it found in the storage.
pub async fn refresh(
    app: &App,
    caller: &Principal,
    id: &str,
    found: RefreshStorage,
) -> Result<SessionStorageView, Failure> {
    let run_id = found.run_id.parse().map_err(|_| Failure::not_found("run"))?;
    let run = app.visible_run(caller, run_id).await?;
    caller.may_run(&run)?;
    found.check()?;
    let session = read(app, run.session).await?;
    if session.public_id() != id {
        return Err(Failure::not_found("session"));
    }
    let change = SessionChange::MeasureStorage { found, expires_at: expiry(app) };
    Ok(SessionStorageView::of(submit(app, run.session, change, &caller.name()).await?))
}

/// Evicts expired storage, for the operator.
pub async fn sweep(app: &App, request: SweepStorage) -> Result<SweptStorage, Failure> {
    let limit = request.limit.unwrap_or(SWEEP_DEFAULT);
    if !(1..=SWEEP_MAX).contains(&limit) {
        return Err(Failure::invalid(Rule::SweepLimit, format!("limit must be 1 to {SWEEP_MAX}")));
    }
    evict_expired(app, request.now.unwrap_or_else(|| app.now()), limit).await
}

pub async fn evict_expired(app: &App, now: Timestamp, limit: u32) -> Result<SweptStorage, Failure> {
    let mut expired = store::kernel::sessions::list_expired_storage(&app.db, now, limit + 1).await?;
    let has_more = expired.len() > limit as usize;
    expired.truncate(limit as usize);
    let mut swept = SweptStorage { evicted: vec![], busy: 0, has_more };
    for session in expired {
        match evict(app, session.session, "expired", MANAGER).await {
            Ok(session) => swept.evicted.push(SessionStorageView::of(session)),
            Err(failure) if failure.kind == FailureKind::SessionBusy => swept.busy += 1,
            // The hold was placed after the list was read.
            Err(failure) if failure.broken_rule() == Some(Rule::LegalHold) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(swept)
}

/// Directories whose sessions were evicted before they could be removed, or are unknown to the store.
pub async fn clear_leftovers(app: &App) -> Result<(), Failure> {
    let Ok(entries) = std::fs::read_dir(directories::all_session_storage(app)?) else { return Ok(()) };
    let named = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<SessionId>().ok());
    for id in named.collect::<Vec<_>>() {
        let session = store::kernel::sessions::get(&app.db, id).await?;
        let is_left = session.is_none_or(|session| session.storage.storage_kind != StorageKind::Local);
        if is_left && !store::retention::is_held(&app.db, id).await? {
            directories::clear(directories::session_storage(app, id)?).await?;
        }
    }
    Ok(())
}

/// Creates the session's storage if needed, and returns its path.
pub async fn make(app: &App, id: SessionId) -> Result<PathBuf, Failure> {
    let mut session = read(app, id).await?;
    if session.storage.storage_kind != StorageKind::Local {
        session = submit(app, id, SessionChange::MakeStorage { expires_at: expiry(app) }, MANAGER).await?;
    }
    if is_missing(app, &session)? {
        return Err(evicted());
    }
    let path = directories::session_storage(app, id)?;
    directories::make(&path)?;
    Ok(path)
}

/// Rejects work for a session whose storage is missing although it was not evicted, and records the loss as an event.
pub async fn check_there(app: &App, session: &Session) -> Result<(), Failure> {
    if !is_missing(app, session)? {
        return Ok(());
    }
    submit(app, session.session, SessionChange::EvictStorage { reason: "missing" }, MANAGER).await?;
    Err(evicted())
}

/// Records that the storage is gone, if that is why the kernel refused a command or a job. The refusal itself is returned
/// unchanged. While the session is busy its storage cannot be evicted; a later refusal records it then.
pub async fn record_loss<T>(app: &App, id: SessionId, submitted: Result<T, Failure>) -> Result<T, Failure> {
    if let Err(failure) = &submitted
        && failure.kind == FailureKind::SessionStoreEvicted
    {
        match submit(app, id, SessionChange::EvictStorage { reason: "missing" }, MANAGER).await {
            Err(failure) if failure.kind != FailureKind::SessionBusy => return Err(failure),
            Ok(_) | Err(_) => {}
        }
    }
    submitted
}

/// Whether the session's storage directory does not exist here. That is a loss only if the storage was used.
pub fn is_absent(app: &App, id: SessionId) -> Result<bool, Failure> {
    Ok(!directories::session_storage(app, id)?.is_dir())
}

/// Storage in which nothing was ever reported can be made again; what an agent has left there cannot.
fn is_missing(app: &App, session: &Session) -> Result<bool, Failure> {
    Ok(session.storage.is_used() && is_absent(app, session.session)?)
}

/// When storage that is used now expires, as configured.
pub fn expiry(app: &App) -> Option<Timestamp> {
    let ttl_ms = app.config.sessions.storage_ttl_ms?;
    app.now().checked_add(SignedDuration::from_millis(ttl_ms)).ok()
}

/// Evicts storage that is older than its limit.
pub(crate) async fn evict_unused(app: &App, id: SessionId) -> Result<(), Failure> {
    evict(app, id, "expired", MANAGER).await.map(drop)
}

/// Fails if a hold covers the session. A hold that is placed after the eviction was recorded still keeps the files.
async fn evict(app: &App, id: SessionId, reason: &'static str, by: &str) -> Result<Session, Failure> {
    if store::retention::is_held(&app.db, id).await? {
        return Err(held("the session's storage"));
    }
    // A runner that only waits for another turn does not keep the storage from being evicted.
    let idle = read(app, id).await?.active_run_id.map(|run_id| (id, run_id));
    leases::dismiss(app, idle.into_iter().collect(), DismissOp { only_if_idle: true }).await?;
    let session = submit(app, id, SessionChange::EvictStorage { reason }, by).await?;
    if store::retention::is_held(&app.db, id).await? {
        return Ok(session);
    }
    if let Err(failure) = directories::clear(directories::session_storage(app, id)?).await {
        tracing::warn!(%failure, cause = failure.cause.as_deref(), session = %id, "evicted storage could not be removed");
    }
    Ok(session)
}

/// Changes a session.
pub async fn submit(app: &App, id: SessionId, change: SessionChange, by: &str) -> Result<Session, Failure> {
    let changed = app.try_submit(id, None, ChangeSessionOp { change, by: by.to_owned() }).await?;
    changed.ok_or_else(|| Failure::internal("a key clashed where none is written"))
}

async fn read(app: &App, id: SessionId) -> Result<Session, Failure> {
    let session = store::kernel::sessions::get(&app.db, id).await?;
    session.ok_or_else(|| Failure::not_found("session"))
}
