//! Sessions: create, list, get, rename, trace, output, read, control.

use std::sync::Arc;

use ostler_protocol::{
    Failure, FailureKind, Rule, Timestamp,
    created::Created,
    cursors::{self, Cursor, Page, PageRequest},
    ids::{RunId, SessionId, UserId, name},
    json::{canonical_hash, text_of, value_of},
    kernel::{
        events::page_json,
        labels::Labels,
        liveness::Liveness,
        operations::{CreateSessionOp, SessionChange},
        provider_profiles::AgentConfig,
        runs::{Cancel, RunState},
        session_storage::{SessionStorage, StorageKind},
        sessions::{
            ControlSession, CreateSession, DEFAULT_READER, ListSessions, ReadSession, Session, SessionEventsQuery,
            SessionPage, SessionQuery, SessionView, UpdateSession, check_metadata, title,
        },
    },
    problems::Problems,
};
use ostler_store::{
    self as store,
    kernel::{results::ResultRow, sessions::SessionRow},
};
use serde_json::{Map, Value};

use super::{
    commands,
    follow::{self, Follower},
    lookup, provider_profiles,
    requests::{check_chosen, check_key, id_range},
    runner_jobs, runs, session_storage,
};
use crate::{
    app::App,
    auth::Principal,
    traces::{note_run, note_session, note_tenant},
};

const LIST_LIMIT_DEFAULT: u32 = 50;

/// Creates a session before its first run. Idempotent: the same id or key with the same body returns the same session.
pub async fn create(app: &App, caller: &Principal, request: CreateSession) -> Result<Created<SessionView>, Failure> {
    app.accepting()?;
    let mut problems = Problems::default();
    let tenant_id = request.tenant_id.as_deref();
    let tenant_id = tenant_id.ok_or_else(|| Failure::invalid(Rule::TenantIdRequired, "tenantId is required"));
    let tenant_id = problems.note(tenant_id.and_then(|tenant_id| app.config.policy.tenant(tenant_id)));
    if let Some(tenant_id) = tenant_id {
        caller.may_submit(tenant_id)?;
        note_tenant(tenant_id);
    }
    let profile = request.backend_profile.as_deref();
    let profile = profile.ok_or_else(|| Failure::invalid(Rule::BackendProfileRequired, "backendProfile is required"));
    let profile = problems.note(profile.and_then(|profile| app.config.policy.profile(profile)));
    let chosen = request.session_id.as_deref().map(|id| {
        let chosen = app.name("sessionId", id)?;
        check_chosen(chosen).map(|()| chosen)
    });
    let chosen = problems.note(chosen.transpose()).flatten();
    let title = request.title.as_deref().map(|text| redacted_title(app, text)).transpose();
    let title = problems.note(title).flatten().flatten();
    let labels = request.labels.as_ref().map_or(Ok(Labels::default()), |labels| {
        labels.check()?;
        runs::redacted_labels(app, labels)
    });
    let labels = problems.note(labels).unwrap_or_default();
    let key = problems.note(request.idempotency_key.as_deref().map(|key| check_key(app, key)).transpose()).flatten();
    let conversation_id = request.conversation_id.as_deref().map(|id| app.name("conversationId", id)).transpose();
    let conversation_id = problems.note(conversation_id).flatten();
    let metadata = request.metadata.as_ref().map(|metadata| redacted_metadata(app, metadata)).transpose();
    let metadata = problems.note(metadata).flatten();
    let has_storage = problems.note(has_storage(app, profile.unwrap_or_default(), &request)).unwrap_or_default();
    let (Some(tenant_id), Some(profile)) = (tenant_id, profile) else { return Err(problems.into_failure()) };
    problems.check()?;
    let request_hash = request_hash(&request);
    let mut attempts = app.db.attempts(|| {
        Failure::new(FailureKind::Overloaded, "too many sessions were created under this id or key at once")
    });
    loop {
        attempts.start_next()?;
        if let Some(found) = find_made(app, tenant_id, chosen, key, &request_hash).await? {
            caller.may_see(&found)?;
            note_session(tenant_id, found.session);
            // The request that created it may have failed before the storage was made.
            session_storage::make_new(app, &found).await?;
            return Ok(Created::existing(view(app, found, &reader(caller, None)?).await?));
        }
        let id = SessionId::new(app.ids.body());
        let new = Session::new(id, tenant_id.to_owned(), chosen.map(str::to_owned), profile.to_owned(), app.now());
        let session = Session {
            idempotency_key: key.map(str::to_owned),
            request_hash: Some(request_hash.clone()),
            title: title.clone(),
            conversation_id: conversation_id.map(str::to_owned),
            metadata: metadata.clone(),
            labels: labels.clone(),
            storage: storage(app, id, has_storage, request.expires_at),
            ..new
        };
        let op = CreateSessionOp { session, by: caller.name(), participant: None };
        if let Some(session) = app.try_submit(id, None, op).await? {
            note_session(tenant_id, id);
            session_storage::make_new(app, &session).await?;
            let storage_pvc_phase = session_storage::phase(app, &session);
            let view = SessionView::of(session, 0, None, None);
            return Ok(Created::new(SessionView { storage_pvc_phase, ..view }));
        }
    }
}

/// Whether the session gets storage at once: if its backend is a program, unless the caller chooses.
fn has_storage(app: &App, profile: &str, request: &CreateSession) -> Result<bool, Failure> {
    let kind = session_storage::runners_kind(app);
    match request.storage_kind {
        None => Ok(AgentConfig::of_profile(profile).is_some_and(|agent| agent.is_program())),
        Some(StorageKind::None) => Ok(false),
        Some(chosen) if chosen == kind => Ok(true),
        Some(_) => {
            let message = format!("storageKind must be none or {}", kind.as_str());
            Err(Failure::invalid(Rule::StorageKind, message))
        }
    }
}

/// The session's first storage.
fn storage(app: &App, id: SessionId, has_storage: bool, expires_at: Option<Timestamp>) -> SessionStorage {
    match has_storage {
        true => {
            SessionStorage::at(session_storage::new_place(app, id), expires_at.or_else(|| session_storage::expiry(app)))
        }
        false => SessionStorage { expires_at, ..SessionStorage::default() },
    }
}

fn request_hash(request: &CreateSession) -> String {
    canonical_hash(&value_of(&CreateSession { idempotency_key: None, ..request.clone() }))
}

/// The session with this key, or else with this id. Fails if it was created with another body.
async fn find_made(
    app: &App,
    tenant_id: &str,
    chosen: Option<&str>,
    key: Option<&str>,
    request_hash: &str,
) -> Result<Option<Session>, Failure> {
    let mut found = None;
    if let Some(key) = key {
        found = store::kernel::sessions::find_by_key(&app.db, tenant_id, key).await?;
    }
    if let (None, Some(chosen)) = (&found, chosen) {
        found = store::kernel::sessions::find_by_name(&app.db, tenant_id, chosen).await?;
    }
    // A session that was created together with a run has no request body to compare.
    match found {
        Some(session) if session.request_hash.as_ref().is_some_and(|hash| hash != request_hash) => {
            let message = "this session id or idempotency key was used for another session";
            Err(Failure::rule(Rule::PayloadHash, message).detail("sessionId", session.public_id()))
        }
        found => Ok(found),
    }
}

/// A title, redacted.
fn redacted_title(app: &App, text: &str) -> Result<Option<String>, Failure> {
    title(&app.redactor.redact(text))
}

/// The metadata of a session, redacted, as text. Its size is checked as it was sent.
fn redacted_metadata(app: &App, metadata: &Map<String, Value>) -> Result<Arc<str>, Failure> {
    check_metadata(metadata)?;
    let text = text_of(metadata);
    let redacted: Map<String, Value> =
        serde_json::from_str(&app.redactor.redact_json(&text)).map_err(Failure::internal)?;
    Ok(text_of(&redacted).into())
}

/// Gives the session another title, other labels, or both at once.
pub async fn update(app: &App, caller: &Principal, id: &str, request: UpdateSession) -> Result<SessionView, Failure> {
    let title = request.title.as_deref().map(|text| redacted_title(app, text)).transpose()?;
    let labels = request.labels.as_ref().map(|patch| runs::redacted_patch(app, patch)).transpose()?;
    let tenant_id = request.tenant_id.as_deref();
    let update = match (title, labels) {
        (title, Some(labels)) => SessionChange::Label { labels, title },
        (Some(title), None) => SessionChange::Rename { title, origin: None },
        (None, None) => return Err(Failure::invalid(Rule::TitleRequired, "a title or labels are required")),
    };
    change(app, caller, id, tenant_id, update).await
}

async fn change(
    app: &App,
    caller: &Principal,
    id: &str,
    tenant_id: Option<&str>,
    change: SessionChange,
) -> Result<SessionView, Failure> {
    let session = lookup::session(app, caller, id, tenant_id).await?;
    caller.may_control(&session)?;
    let changed = session_storage::submit(app, session.session, change, &caller.name()).await?;
    view(app, changed, &reader(caller, None)?).await
}

pub async fn list(app: &App, caller: &Principal, request: ListSessions) -> Result<SessionPage, Failure> {
    let tenants = caller.tenants_within(request.tenant_id.as_deref())?;
    let (only_open, states) = match request.state.as_deref().unwrap_or("default") {
        "default" => (true, vec![]),
        "all" => (false, vec![]),
        words => (false, RunState::parse_list(words).ok_or_else(no_such_state)?),
    };
    let reader_id = reader(caller, request.reader_id.as_deref())?;
    let ids = id_range(SessionId::PREFIX, request.id_prefix.as_deref())?;
    let labels = request.label.as_deref().map(Labels::parse_filter).transpose()?.unwrap_or_default();
    let threads_of = caller.sees_threads_of();
    let filters = (&tenants, &threads_of, &request.backend_profile, &reader_id, (only_open, &states), &ids, &labels);
    let limit = request.limit.or(Some(LIST_LIMIT_DEFAULT));
    let page = PageRequest::new("sessions", &filters, limit, request.cursor.as_deref())?;
    let open = match only_open {
        true => Some(store::kernel::readers::settle(&app.db, &reader_id, app.now()).await?),
        false => None,
    };
    let filter = store::kernel::sessions::SessionFilter {
        tenants,
        threads_of,
        backend_profile: request.backend_profile,
        labels,
        reader_id,
        open,
        states,
        ids,
    };
    // Whether a session is open for a reader follows from the reader's marks, which must not be older than the last one.
    let db = if only_open { app.db.clone() } else { app.db.tolerating_lag() };
    let found = store::kernel::sessions::list(&db, &filter, page.after.as_ref(), page.rows_max()).await?;
    let Page { items, next_cursor } =
        page.page(found, |row| Cursor::after(row.session.created_at, row.session.session));
    // A page of sessions with their metadata would be large.
    let list_view = |row: SessionRow| {
        let session = Session { metadata: None, ..row.session };
        let storage_pvc_phase = session_storage::phase(app, &session);
        SessionView { storage_pvc_phase, ..SessionView::of(session, row.read_version, row.state, None) }
    };
    let sessions = items.into_iter().map(list_view).collect();
    Ok(SessionPage { sessions, next_cursor })
}

fn no_such_state() -> Failure {
    let words = RunState::ALL.map(RunState::as_str).join(", ");
    Failure::invalid(Rule::SessionState, format!("state must be default, all, or one or more of {words}"))
}

pub async fn get(app: &App, caller: &Principal, id: &str, request: SessionQuery) -> Result<SessionView, Failure> {
    let session = lookup::session(app, caller, id, request.tenant_id.as_deref()).await?;
    view(app, session, &reader(caller, request.reader_id.as_deref())?).await
}

/// All events, a page at a time, as JSON text.
pub async fn trace(app: &App, caller: &Principal, id: &str, request: SessionEventsQuery) -> Result<String, Failure> {
    let (session, run_id, after, limit) = scope(app, caller, id, &request).await?;
    let db = app.db.tolerating_lag();
    let page = match run_id {
        Some(run_id) => store::kernel::events::list_by_run(&db, session.session, run_id, after, limit).await,
        None => store::kernel::events::list_by_session(&db, session.session, after, limit).await,
    };
    Ok(written(page?, run_id, after))
}

/// Follows the events of the session, or of one of its runs.
pub async fn follow(app: &App, caller: &Principal, id: &str, request: SessionEventsQuery) -> Result<Follower, Failure> {
    let (session, run_id, after, _) = scope(app, caller, id, &request).await?;
    match run_id {
        Some(run_id) => follow::run(app, caller, run_id, after).await,
        None => follow::session(app, caller, &session, after),
    }
}

/// What people read: the agent's messages and its tools' output.
pub async fn output(app: &App, caller: &Principal, id: &str, request: SessionEventsQuery) -> Result<String, Failure> {
    let (session, run_id, after, limit) = scope(app, caller, id, &request).await?;
    let db = app.db.tolerating_lag();
    let page = store::kernel::events::list_output(&db, session.session, run_id, after, limit).await;
    Ok(written(page?, run_id, after))
}

/// Hides the session from this reader's default list until something ends in it again.
pub async fn read(app: &App, caller: &Principal, id: &str, request: ReadSession) -> Result<SessionView, Failure> {
    let session = lookup::session(app, caller, id, request.tenant_id.as_deref()).await?;
    let reader_id = reader(caller, request.reader_id.as_deref())?;
    let version = request.version.unwrap_or(session.version);
    if !(0..=session.version).contains(&version) {
        return Err(Failure::invalid(Rule::ReadVersion, "version must be one the session has had"));
    }
    let marked = store::kernel::readers::update_version(&app.db, session.session, &reader_id, version, app.now()).await;
    marked?;
    view(app, session, &reader_id).await
}

/// Closes the session, or cancels the active command, else the active run; with neither there is nothing to do.
pub async fn control(app: &App, caller: &Principal, id: &str, request: ControlSession) -> Result<SessionView, Failure> {
    match request.action.as_str() {
        "cancel" => {}
        "close" => return change(app, caller, id, request.tenant_id.as_deref(), SessionChange::Close).await,
        _ => return Err(Failure::invalid(Rule::SessionAction, "action must be cancel or close")),
    }
    let session = lookup::session(app, caller, id, request.tenant_id.as_deref()).await?;
    caller.may_cancel(&session)?;
    let cancel = Cancel { reason: request.reason };
    // A run whose lease has expired is not active, even before the sweeper ends the lease.
    match (session.active_command_id, session.busy_with_other(None, app.now())) {
        (Some(command_id), _) => drop(commands::cancel_with(app, caller, command_id, cancel, true).await?),
        (None, Some(run_id)) => drop(runs::cancel(app, caller, run_id, cancel).await?),
        (None, None) => {}
    }
    get(app, caller, id, SessionQuery { tenant_id: Some(session.tenant_id), ..SessionQuery::default() }).await
}

/// The reader whose read marks a request is about. A user has their own, which only the user and the operator may set;
/// services choose their reader ids.
fn reader(caller: &Principal, reader_id: Option<&str>) -> Result<String, Failure> {
    let requested = reader_id.map(|id| name("readerId", id)).transpose()?;
    let reader_id = requested.unwrap_or(DEFAULT_READER).to_owned();
    match caller {
        Principal::Operator => Ok(reader_id),
        Principal::User { user_id, .. } => match requested {
            Some(id) if id != user_id.to_string() => {
                Err(Failure::rule(Rule::Reader, "a user reads for themselves only"))
            }
            _ => Ok(user_id.to_string()),
        },
        _ if reader_id.starts_with(UserId::PREFIX) => {
            Err(Failure::rule(Rule::Reader, "reader ids that begin with usr_ are users' own"))
        }
        _ => Ok(reader_id),
    }
}

async fn view(app: &App, session: Session, reader_id: &str) -> Result<SessionView, Failure> {
    let read = store::kernel::readers::get_version(&app.db, session.session, reader_id).await?;
    let row = match session.active_run_id.or(session.last_run_id) {
        None => None,
        Some(run_id) => store::kernel::results::get(&app.db, run_id, None).await?,
    };
    let storage_pvc_phase = session_storage::phase(app, &session);
    let Some(ResultRow { run, command, lease, .. }) = row else {
        return Ok(SessionView { storage_pvc_phase, ..SessionView::of(session, read, None, None) });
    };
    let turn_end = command.as_ref().and_then(|turn| turn.terminal.as_ref()).map(|end| end.status);
    let mut liveness = Liveness::of(&run, command.as_ref(), lease.as_ref(), run.open_permissions, app.now());
    provider_profiles::set_external_profile(app, &run.backend_profile, &mut liveness);
    runner_jobs::set_other_workspace(app, run.standing_job_id, &mut liveness).await?;
    runner_jobs::set_pod_reason(app, run.run_id, &mut liveness).await?;
    let state = RunState::of(run.status, run.open_permissions, turn_end);
    Ok(SessionView { storage_pvc_phase, ..SessionView::of(session, read, Some(state), Some(liveness)) })
}

async fn scope(
    app: &App,
    caller: &Principal,
    id: &str,
    request: &SessionEventsQuery,
) -> Result<(Session, Option<RunId>, i64, u32), Failure> {
    let session = lookup::session(app, caller, id, request.tenant_id.as_deref()).await?;
    let (after, limit) = (cursors::after_seq(request.after_seq)?, cursors::limit(request.limit)?);
    let run_id = run_within(app, &session, request.run_id.as_deref()).await?;
    Ok((session, run_id, after, limit))
}

/// The requested run, if it belongs to this session. `None` if no run was requested.
async fn run_within(app: &App, session: &Session, run_id: Option<&str>) -> Result<Option<RunId>, Failure> {
    let Some(text) = run_id else { return Ok(None) };
    let run = app.run_ref(text.parse().map_err(|_| Failure::not_found("run"))?).await?;
    if run.session != session.session {
        return Err(Failure::not_found("run"));
    }
    note_run(&run.tenant_id, run.session, run.run_id);
    Ok(Some(run.run_id))
}

fn written(page: store::kernel::events::StoredEvents, run_id: Option<RunId>, after: i64) -> String {
    let number =
        |event: &ostler_protocol::kernel::events::Event| if run_id.is_some() { event.seq() } else { event.session_seq };
    let next = page.events.last().map_or(after, number);
    page_json(&page.events, next, page.has_more)
}
