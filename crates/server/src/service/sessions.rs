//! Sessions: create, list, get, rename, trace, output, read, control.

use ostler_protocol::{
    Failure, FailureKind,
    cursors::{self, Cursor},
    ids::{RunId, SessionId, UserId, name},
    json::canonical_hash,
    kernel::{
        events::page_json,
        liveness::Liveness,
        operations::{CreateSessionOp, SessionChange},
        provider_profiles::AgentConfig,
        runs::Cancel,
        session_storage::{SessionStorage, StorageKind},
        sessions::{
            ControlSession, CreateSession, DEFAULT_READER, ListSessions, ReadSession, Session, SessionEventsQuery,
            SessionPage, SessionQuery, SessionView, UpdateSession, title,
        },
    },
};
use ostler_store as store;

use super::{
    commands,
    follow::{self, Follower},
    runs::{self},
    session_storage,
};
use crate::{
    app::App,
    auth::{Principal, forbidden},
};

/// Makes a session before its first run. The same id or key again, with the same body, answers with the same session.
pub async fn create(app: &App, caller: &Principal, asked: CreateSession) -> Result<(SessionView, bool), Failure> {
    app.accepting()?;
    let tenant_id = asked.tenant_id.as_deref();
    let tenant_id = tenant_id.ok_or_else(|| Failure::invalid("tenant-id-required", "tenantId is required"))?;
    app.config.policy.tenant(tenant_id)?;
    caller.may_submit(tenant_id)?;
    let profile = asked.backend_profile.as_deref();
    let profile = profile.ok_or_else(|| Failure::invalid("backend-profile-required", "backendProfile is required"))?;
    app.config.policy.profile(profile)?;
    let chosen = asked.session_id.as_deref().map(|id| app.name("sessionId", id)).transpose()?;
    chosen.map_or(Ok(()), check_chosen)?;
    let title = asked.title.as_deref().map(|text| shown_title(app, text)).transpose()?.flatten();
    let key = asked.idempotency_key.as_deref().map(|key| runs::check_key(app, key)).transpose()?;
    let storage = storage(app, profile, &asked)?;
    let request_hash = request_hash(&asked);
    let mut attempts = app.attempts(|| {
        Failure::new(FailureKind::Overloaded, "too many sessions were created under this id or key at once")
    });
    loop {
        attempts.start_next()?;
        if let Some(known) = find_made(app, tenant_id, chosen, key, &request_hash).await? {
            caller.may_see(&known)?;
            return Ok((view(app, known, &reader(caller, None)?).await?, false));
        }
        let id = SessionId::new(app.ids.body());
        let new = Session::new(id, tenant_id.to_owned(), chosen.map(str::to_owned), profile.to_owned(), app.now());
        let session = Session {
            idempotency_key: key.map(str::to_owned),
            request_hash: Some(request_hash.clone()),
            title: title.clone(),
            storage: storage.clone(),
            ..new
        };
        let op = CreateSessionOp { session, by: caller.name() };
        if let Some(session) = app.try_submit(id, None, op).await? {
            if storage.storage_kind == StorageKind::Local {
                session_storage::make(app, id).await?;
            }
            return Ok((SessionView::of(session, 0, None), true));
        }
    }
}

/// The storage it begins with: made at once where its agent is a program, unless the caller says otherwise.
fn storage(app: &App, profile: &str, asked: &CreateSession) -> Result<SessionStorage, Failure> {
    let by_profile = match AgentConfig::of_profile(profile).is_some_and(|agent| agent.is_program()) {
        true => StorageKind::Local,
        false => StorageKind::None,
    };
    let storage_kind = asked.storage_kind.unwrap_or(by_profile);
    if storage_kind == StorageKind::Evicted {
        return Err(Failure::invalid("storage-kind", "storageKind must be none or local"));
    }
    let by_use = session_storage::expiry(app).filter(|_| storage_kind == StorageKind::Local);
    Ok(SessionStorage { storage_kind, expires_at: asked.expires_at.or(by_use), ..SessionStorage::default() })
}

fn request_hash(asked: &CreateSession) -> String {
    let body = serde_json::to_value(CreateSession { idempotency_key: None, ..asked.clone() });
    canonical_hash(&body.expect("our own types serialise"))
}

/// The session of this key, else of this id; refused where it was made otherwise.
async fn find_made(
    app: &App,
    tenant_id: &str,
    chosen: Option<&str>,
    key: Option<&str>,
    request_hash: &str,
) -> Result<Option<Session>, Failure> {
    let mut known = None;
    if let Some(key) = key {
        known = store::kernel::sessions::find_by_key(&app.db, tenant_id, key).await?;
    }
    if let (None, Some(chosen)) = (&known, chosen) {
        known = store::kernel::sessions::find_by_name(&app.db, tenant_id, chosen).await?;
    }
    // One that came with a run was not asked for with any body.
    match known {
        Some(session) if session.request_hash.as_ref().is_some_and(|hash| hash != request_hash) => {
            let message = "this session id or idempotency key was used for another session";
            Err(Failure::rule(FailureKind::IdempotencyConflict, "payload-hash", message)
                .detail("sessionId", session.public_id()))
        }
        known => Ok(known),
    }
}

/// A title as it may be kept.
fn shown_title(app: &App, text: &str) -> Result<Option<String>, Failure> {
    title(&app.redactor.redact(text))
}

/// Gives the session another title.
pub async fn update(app: &App, caller: &Principal, id: &str, asked: UpdateSession) -> Result<SessionView, Failure> {
    let text = asked.title.ok_or_else(|| Failure::invalid("title-required", "title is required"))?;
    let title = shown_title(app, &text)?;
    change(app, caller, id, asked.tenant_id.as_deref(), SessionChange::Rename(title)).await
}

async fn change(
    app: &App,
    caller: &Principal,
    id: &str,
    tenant_id: Option<&str>,
    change: SessionChange,
) -> Result<SessionView, Failure> {
    let session = find(app, caller, id, tenant_id).await?;
    caller.may_control(&session)?;
    let changed = session_storage::submit(app, session.session, change, &caller.name()).await?;
    view(app, changed, &reader(caller, None)?).await
}

pub async fn list(app: &App, caller: &Principal, asked: ListSessions) -> Result<SessionPage, Failure> {
    let limit = cursors::limit(asked.limit.or(Some(50)))?;
    let tenants = caller.tenants_within(asked.tenant_id.as_deref())?;
    let only_open = match asked.state.as_deref().unwrap_or("default") {
        "default" => true,
        "all" => false,
        _ => return Err(Failure::invalid("session-state", "state must be default or all")),
    };
    let reader_id = reader(caller, asked.reader_id.as_deref())?;
    let ids = runs::id_range(SessionId::PREFIX, asked.id_prefix.as_deref())?;
    let threads_of = caller.sees_threads_of();
    let filters = (&tenants, &threads_of, &asked.backend_profile, &reader_id, only_open, &ids);
    let fingerprint = cursors::fingerprint("sessions", &filters);
    let after = asked.cursor.as_deref().map(|text| Cursor::decode(text, &fingerprint)).transpose()?;
    let open = match only_open {
        true => Some(store::kernel::readers::settle(&app.db, &reader_id, app.now()).await?),
        false => None,
    };
    let filter = store::kernel::sessions::Filter {
        tenants,
        threads_of,
        backend_profile: asked.backend_profile,
        reader_id,
        open,
        ids,
    };
    let mut found = store::kernel::sessions::list(&app.db, &filter, after.as_ref(), limit + 1).await?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let next_cursor = found.last().filter(|_| more).map(|(session, _)| {
        Cursor { created_at_us: session.created_at.as_microsecond(), id: session.session.to_string() }
            .encode(&fingerprint)
    });
    let sessions = found.into_iter().map(|(session, read)| SessionView::of(session, read, None)).collect();
    Ok(SessionPage { sessions, next_cursor })
}

pub async fn get(app: &App, caller: &Principal, id: &str, asked: SessionQuery) -> Result<SessionView, Failure> {
    let session = find(app, caller, id, asked.tenant_id.as_deref()).await?;
    view(app, session, &reader(caller, asked.reader_id.as_deref())?).await
}

/// Everything, a page at a time, as JSON text.
pub async fn trace(app: &App, caller: &Principal, id: &str, asked: SessionEventsQuery) -> Result<String, Failure> {
    let (session, run_id, after, limit) = scope(app, caller, id, &asked).await?;
    let page = match run_id {
        Some(run_id) => store::kernel::events::list_by_run(&app.db, session.session, run_id, after, limit).await,
        None => store::kernel::events::list_by_session(&app.db, session.session, after, limit).await,
    };
    Ok(written(page?, run_id, after))
}

/// Everything as it happens: of the session, or of one of its runs.
pub async fn follow(app: &App, caller: &Principal, id: &str, asked: SessionEventsQuery) -> Result<Follower, Failure> {
    let (session, run_id, after, _) = scope(app, caller, id, &asked).await?;
    match run_id {
        Some(run_id) => follow::run(app, caller, run_id, after).await,
        None => follow::session(app, caller, &session, after),
    }
}

/// What people read: the agent's messages and its tools' output.
pub async fn output(app: &App, caller: &Principal, id: &str, asked: SessionEventsQuery) -> Result<String, Failure> {
    let (session, run_id, after, limit) = scope(app, caller, id, &asked).await?;
    let page = store::kernel::events::list_output(&app.db, session.session, run_id, after, limit).await;
    Ok(written(page?, run_id, after))
}

/// Hides the session from this reader's default list until something ends in it again.
pub async fn read(app: &App, caller: &Principal, id: &str, asked: ReadSession) -> Result<SessionView, Failure> {
    let session = find(app, caller, id, asked.tenant_id.as_deref()).await?;
    let reader_id = reader(caller, asked.reader_id.as_deref())?;
    let version = asked.version.unwrap_or(session.version);
    if !(0..=session.version).contains(&version) {
        return Err(Failure::invalid("read-version", "version must be one the session has had"));
    }
    let marked = store::kernel::readers::update_version(&app.db, session.session, &reader_id, version, app.now()).await;
    marked?;
    view(app, session, &reader_id).await
}

/// Closes the session, or cancels the active command, else the active run; with neither there is nothing to do.
pub async fn control(app: &App, caller: &Principal, id: &str, asked: ControlSession) -> Result<SessionView, Failure> {
    match asked.action.as_str() {
        "cancel" => {}
        "close" => return change(app, caller, id, asked.tenant_id.as_deref(), SessionChange::Close).await,
        _ => return Err(Failure::invalid("session-action", "action must be cancel or close")),
    }
    let session = find(app, caller, id, asked.tenant_id.as_deref()).await?;
    caller.may_cancel(&session)?;
    let cancel = Cancel { reason: asked.reason };
    // A lease that has run out and was not swept yet makes no run active.
    match (session.active_command_id, session.busy_with_other(None, app.now())) {
        (Some(command_id), _) => drop(commands::cancel(app, caller, command_id, cancel).await?),
        (None, Some(run_id)) => drop(runs::cancel(app, caller, run_id, cancel).await?),
        (None, None) => {}
    }
    get(app, caller, id, SessionQuery { tenant_id: Some(session.tenant_id), ..SessionQuery::default() }).await
}

/// The one session of this id that the caller may see.
pub async fn find(app: &App, caller: &Principal, id: &str, tenant_id: Option<&str>) -> Result<Session, Failure> {
    let tenants = caller.tenants_within(tenant_id)?;
    let mut found = store::kernel::sessions::find_in_tenants(&app.db, tenants.as_deref(), id).await?;
    // A thread of another user answers like an absent one, alone and beside others of its id.
    found.retain(|session| caller.may_see(session).is_ok());
    if found.len() > 1 {
        let message = "several tenants have a session of this id; name one with tenantId";
        return Err(Failure::rule(FailureKind::StateConflict, "tenant-ambiguous", message));
    }
    found.pop().ok_or_else(|| Failure::not_found("session"))
}

/// An id that a caller chooses for a session that is not there yet.
pub fn check_chosen(id: &str) -> Result<(), Failure> {
    if !id.starts_with(SessionId::PREFIX) {
        return Ok(());
    }
    if id.parse::<SessionId>().is_ok() {
        return Err(Failure::not_found("session"));
    }
    Err(Failure::invalid("session-id-reserved", "session ids that begin with ses_ are the server's to give"))
}

/// Whose marks: a user's are their own, and nobody else's but the operator's to set; services name theirs.
fn reader(caller: &Principal, asked: Option<&str>) -> Result<String, Failure> {
    let asked = asked.map(|asked| name("readerId", asked)).transpose()?;
    let whose = asked.unwrap_or(DEFAULT_READER).to_owned();
    match caller {
        Principal::Operator => Ok(whose),
        Principal::User { user_id, .. } => match asked {
            Some(asked) if asked != user_id.to_string() => Err(forbidden("reader", "a user reads for themselves only")),
            _ => Ok(user_id.to_string()),
        },
        _ if whose.starts_with(UserId::PREFIX) => {
            Err(forbidden("reader", "reader ids that begin with usr_ are users' own"))
        }
        _ => Ok(whose),
    }
}

async fn view(app: &App, session: Session, reader_id: &str) -> Result<SessionView, Failure> {
    let read = store::kernel::readers::get_version(&app.db, session.session, reader_id).await?;
    let liveness = match session.active_run_id.or(session.last_run_id) {
        None => None,
        Some(run_id) => {
            let row = store::kernel::results::get(&app.db, run_id, None).await?;
            row.map(|row| {
                let open = row.run.open_permissions;
                Liveness::of(&row.run, row.command.as_ref(), row.lease.as_ref(), open, app.now())
            })
        }
    };
    Ok(SessionView::of(session, read, liveness))
}

async fn scope(
    app: &App,
    caller: &Principal,
    id: &str,
    asked: &SessionEventsQuery,
) -> Result<(Session, Option<RunId>, i64, u32), Failure> {
    let session = find(app, caller, id, asked.tenant_id.as_deref()).await?;
    let (after, limit) = (cursors::after_seq(asked.after_seq)?, cursors::limit(asked.limit)?);
    let run_id = run_within(app, &session, asked.run_id.as_deref()).await?;
    Ok((session, run_id, after, limit))
}

/// The run of this session that was asked for, if one was.
async fn run_within(app: &App, session: &Session, asked: Option<&str>) -> Result<Option<RunId>, Failure> {
    let Some(text) = asked else { return Ok(None) };
    let run = app.run_ref(text.parse().map_err(|_| Failure::not_found("run"))?).await?;
    if run.session != session.session {
        return Err(Failure::not_found("run"));
    }
    Ok(Some(run.run_id))
}

fn written(page: store::kernel::events::Page, run_id: Option<RunId>, after: i64) -> String {
    let number =
        |event: &ostler_protocol::kernel::events::Event| if run_id.is_some() { event.seq() } else { event.session_seq };
    let next = page.events.last().map_or(after, number);
    page_json(&page.events, next, page.has_more)
}
