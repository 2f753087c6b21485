//! Session storage: make, get, refresh, evict, and the sweep that evicts expired storage. The event is stored before the
//! directory or the volume claim is deleted; what a crash in between leaves behind is found by a sweep.

#[cfg(feature = "kubernetes")]
pub(crate) mod claims;
mod directory;
mod driver;
mod drivers;

use std::path::PathBuf;

use jiff::SignedDuration;
use ostler_protocol::{
    Failure, FailureKind, Rule, Timestamp,
    ids::SessionId,
    kernel::{
        operations::{ChangeSessionOp, DismissOp, SessionChange},
        session_storage::{
            MissingStorage, RefreshStorage, SWEEP_DEFAULT, SWEEP_MAX, SessionStorageView, StorageKind, StoragePlace,
            StorageQuery, SweepStorage, SweptStorage, elsewhere, evicted,
        },
        sessions::Session,
    },
    retention::under_hold,
};
use ostler_store as store;

use super::{leases, lookup};
use crate::{app::App, auth::Principal, dialect::Dialects, directories};

/// The author of changes that the server makes by itself.
const MANAGER: &str = "manager";

pub async fn get(
    app: &App,
    caller: &Principal,
    id: &str,
    request: StorageQuery,
) -> Result<SessionStorageView, Failure> {
    let session = lookup::session(app, caller, id, request.tenant_id.as_deref()).await?;
    // A claim that the server has not seen yet may exist all the same. Without a response, its phase is unknown.
    if let Err(failure) = is_absent(app, &session).await {
        tracing::warn!(%failure, session = %session.session, "the state of the session's storage is unknown");
    }
    Ok(view(app, session))
}

fn view(app: &App, session: Session) -> SessionStorageView {
    let phase = phase(app, &session);
    SessionStorageView::of(session, phase)
}

/// The cluster's word for the state of the session's volume claim. `None` if there is none, or the server has not seen it.
pub fn phase(app: &App, session: &Session) -> Option<String> {
    drivers::of_kind(app, session.storage.storage_kind)?.phase(session.session)
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
    Ok(view(app, evict(app, session.session, "deleted", &caller.name()).await?))
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
    Ok(view(app, submit(app, run.session, change, &caller.name()).await?))
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
            Ok(session) => swept.evicted.push(view(app, session)),
            Err(failure) if failure.kind == FailureKind::SessionBusy => swept.busy += 1,
            // The hold was placed after the list was read.
            Err(failure) if failure.broken_rule() == Some(Rule::LegalHold) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(swept)
}

/// Deletes storage whose sessions were evicted or erased before it could be deleted, and directories that are unknown to the
/// store.
pub async fn clear_leftovers(app: &App) -> Result<(), Failure> {
    for driver in drivers::all(app) {
        for (id, place) in driver.list()? {
            let is_left = match store::kernel::sessions::get(&app.db, id).await? {
                Some(session) => session.storage.storage_kind != driver.kind(),
                None => driver.owns_unknown() || is_erased(app, id).await?,
            };
            if !is_left || store::retention::is_held(&app.db, id).await? {
                continue;
            }
            // One that cannot be deleted must not keep the others.
            if let Err(failure) = driver.remove(id, &place).await {
                tracing::warn!(%failure, session = %id, "storage that is left could not be deleted; the next sweep tries again");
            }
        }
    }
    Ok(())
}

/// Whether the session was erased. False if the store has never had it.
async fn is_erased(app: &App, id: SessionId) -> Result<bool, Failure> {
    Ok(store::kernel::sessions::is_known(&app.db, id).await?)
}

/// Deletes the storage and the rows of a session that is erased, unless a hold covers it.
pub async fn finish_erasure(app: &App, session: &Session) -> Result<(), Failure> {
    if store::retention::is_held(&app.db, session.session).await? {
        return Ok(());
    }
    clear(app, session).await?;
    store::kernel::erasures::finish(&app.db, session, &Dialects::of(app).session_tables()).await?;
    app.forget_session(session.session);
    Ok(())
}

/// Deletes the storage of a session that is erased.
async fn clear(app: &App, session: &Session) -> Result<(), Failure> {
    // A session that changed its kind of storage may have left an empty directory.
    directories::clear(directories::session_storage(app, session.session)?).await?;
    match (session.storage.place(), drivers::of_kind(app, session.storage.storage_kind)) {
        (Some(place), Some(driver)) => driver.remove(session.session, &place).await,
        // A server that has a cluster deletes the claim.
        _ => Ok(()),
    }
}

/// The storage of a new session: where runners of this server reach it.
pub fn new_place(app: &App, id: SessionId) -> StoragePlace {
    drivers::of_runners(app).place(id)
}

/// The kind of storage that runners of this server reach.
pub fn runners_kind(app: &App) -> StorageKind {
    drivers::of_runners(app).kind()
}

/// Makes the storage of a session that has been created with some. Idempotent; what was used before is not made again.
pub async fn make_new(app: &App, session: &Session) -> Result<(), Failure> {
    let storage = &session.storage;
    let (Some(place), Some(driver)) = (storage.place(), drivers::of_kind(app, storage.storage_kind)) else {
        return Ok(());
    };
    match storage.is_used() || driver.is_known(session.session) {
        true => Ok(()),
        false => driver.make(session.session, &place).await,
    }
}

/// Records that the storage of a session is at this place, unless it is at one of the same kind. Makes nothing.
pub(crate) async fn assign(app: &App, id: SessionId, place: StoragePlace) -> Result<Session, Failure> {
    let session = read(app, id).await?;
    if session.storage.storage_kind == place.kind() {
        return Ok(session);
    }
    submit(app, id, SessionChange::MakeStorage { place, expires_at: expiry(app) }, MANAGER).await
}

/// Creates the directory of the session's storage if needed, and returns its path.
pub async fn make(app: &App, id: SessionId) -> Result<PathBuf, Failure> {
    let session = assign(app, id, StoragePlace::Directory).await?;
    if is_missing(app, &session).await? {
        return Err(evicted());
    }
    let path = directories::session_storage(app, id)?;
    directories::make(&path)?;
    Ok(path)
}

/// Rejects work for a session whose storage is missing although it was not evicted, and records the loss as an event.
pub async fn check_there(app: &App, session: &Session) -> Result<(), Failure> {
    if !is_missing(app, session).await? {
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

/// Whether the directory of the session's storage does not exist. That is a loss only if the storage was used.
pub fn missing_directory(app: &App, id: SessionId) -> Result<MissingStorage, Failure> {
    let directory = !directories::session_storage(app, id)?.is_dir();
    Ok(MissingStorage { directory, claim: false })
}

/// As [`missing_directory`], and whether the volume claim does not exist. The cluster is called only if the claim was not seen.
pub async fn find_missing(app: &App, id: SessionId) -> Result<MissingStorage, Failure> {
    let missing = missing_directory(app, id)?;
    let Some(driver) = drivers::of_kind(app, StorageKind::Pvc).filter(|driver| !driver.is_known(id)) else {
        return Ok(missing);
    };
    let Some(session) = store::kernel::sessions::get(&app.db, id).await? else { return Ok(missing) };
    let claim = match session.storage.place() {
        Some(place) if session.storage.is_used() && place.kind() == driver.kind() => {
            driver.is_absent(id, &place).await?
        }
        _ => false,
    };
    Ok(MissingStorage { claim, ..missing })
}

/// Storage in which nothing was ever reported can be made again; what an agent has left there cannot.
async fn is_missing(app: &App, session: &Session) -> Result<bool, Failure> {
    Ok(session.storage.is_used() && is_absent(app, session).await?)
}

/// Whether the session has storage that does not exist. Fails if this server cannot reach such storage at all.
async fn is_absent(app: &App, session: &Session) -> Result<bool, Failure> {
    let storage = &session.storage;
    match (storage.place(), drivers::of_kind(app, storage.storage_kind)) {
        (None, _) => Ok(false),
        (Some(place), Some(driver)) => driver.is_absent(session.session, &place).await,
        (Some(place), None) => Err(elsewhere(place.kind())),
    }
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
        return Err(under_hold("the session's storage"));
    }
    // A runner that only waits for another turn does not keep the storage from being evicted.
    let before = read(app, id).await?;
    let idle = before.active_run_id.map(|run_id| (id, run_id));
    leases::dismiss(app, idle.into_iter().collect(), DismissOp { only_if_idle: true }).await?;
    let session = submit(app, id, SessionChange::EvictStorage { reason }, by).await?;
    if store::retention::is_held(&app.db, id).await? {
        return Ok(session);
    }
    // Where this server cannot delete it, another one or the next sweep does.
    let place = before.storage.place().unwrap_or(StoragePlace::Directory);
    if let Some(driver) = drivers::of_kind(app, place.kind())
        && let Err(failure) = driver.remove(id, &place).await
    {
        tracing::warn!(%failure, cause = failure.cause.as_deref(), session = %id, "evicted storage could not be removed");
    }
    Ok(session)
}

/// Changes a session.
pub async fn submit(app: &App, id: SessionId, change: SessionChange, by: &str) -> Result<Session, Failure> {
    let changed = app.try_submit(id, None, ChangeSessionOp { change, by: by.to_owned() }).await?;
    changed.ok_or_else(|| Failure::internal("a key clashed where none is written"))
}

pub(crate) async fn read(app: &App, id: SessionId) -> Result<Session, Failure> {
    let session = store::kernel::sessions::get(&app.db, id).await?;
    session.ok_or_else(|| Failure::not_found("session"))
}
