//! Events of calendars: create, read, change, delete, list their occurrences, export. A calendar belongs to one user; to others
//! its events do not exist.

use ostler_protocol::{
    Failure, FailureKind, Rule,
    cursors::{Cursor, Page, PageRequest},
    ids::CalendarEventId,
    retention::under_hold,
    run_input::calendar::{
        CalendarEvent, CalendarEventPage, CalendarOccurrences, CreateCalendarEvent, EVENTS_PER_USER_MAX, EventFields,
        ListCalendarEvents, OCCURRENCES_MAX, UpdateCalendarEvent, Window, export, occurrences as event_occurrences,
    },
};
use ostler_store::{self as store, run_input::calendar_events::EventSpan};

use super::threads;
use ostler_server::{app::App, auth::Principal, traces::note_tenant};

/// Events of removed users that are deleted at once.
const ORPHANS_AT_ONCE: u32 = 500;
/// The work for one event, as bytes of text that take as long.
const BYTES_PER_EVENT: usize = 1_024;

pub(crate) async fn create(
    app: &App,
    caller: &Principal,
    request: &CreateCalendarEvent,
) -> Result<CalendarEvent, Failure> {
    let (new, span) = read_new(app, caller, request)?;
    if !store::run_input::calendar_events::insert(&app.db, &new, span, EVENTS_PER_USER_MAX).await? {
        let message = format!("you have the most calendar events that are allowed, {EVENTS_PER_USER_MAX}");
        return Err(Failure::rule(Rule::CalendarQuota, message));
    }
    Ok(new)
}

/// Checks a request as [`create`] does, and creates nothing. Only the quota is not checked: whether there is room is decided when
/// the event is stored.
pub(crate) fn check_create(app: &App, caller: &Principal, request: &CreateCalendarEvent) -> Result<(), Failure> {
    read_new(app, caller, request).map(drop)
}

/// The event that a request creates.
fn read_new(
    app: &App,
    caller: &Principal,
    request: &CreateCalendarEvent,
) -> Result<(CalendarEvent, EventSpan), Failure> {
    let (owner_id, tenant_id) = (threads::owner(caller)?, threads::tenant(app, caller)?.to_owned());
    caller.may_submit(&tenant_id)?;
    note_tenant(&tenant_id);
    let fields = request.read()?;
    let new = CalendarEvent {
        id: CalendarEventId::new(app.ids.body()),
        owner_id,
        tenant_id,
        title: String::new(),
        description: None,
        location: None,
        starts_at: fields.starts_at,
        ends_at: fields.ends_at,
        all_day: false,
        event_timezone: String::new(),
        recurrence: None,
        revision: 1,
        created_at: app.now(),
        updated_at: app.now(),
    };
    let new = with_fields(app, new, fields);
    let span = check(&new)?;
    Ok((new, span))
}

/// The event with these fields, without credentials in its texts.
fn with_fields(app: &App, event: CalendarEvent, fields: EventFields) -> CalendarEvent {
    let redacted = |text: String| app.redactor.redact(&text).into_owned();
    let EventFields { title, description, location, starts_at, ends_at, all_day, event_timezone, recurrence } = fields;
    CalendarEvent {
        title: redacted(title),
        description: description.map(redacted),
        location: location.map(redacted),
        starts_at,
        ends_at,
        all_day,
        event_timezone,
        recurrence,
        ..event
    }
}

fn check(event: &CalendarEvent) -> Result<EventSpan, Failure> {
    event.check()?;
    let (first, _) = event.first(&event.zone()?)?;
    Ok(EventSpan { first_at: first.at, last_at: event.last_end()? })
}

/// The caller's event. Another user's is reported like an absent one.
pub(crate) async fn get(app: &App, caller: &Principal, id: CalendarEventId) -> Result<CalendarEvent, Failure> {
    let owner_id = threads::owner(caller)?;
    let found = store::run_input::calendar_events::get(&app.db, id).await?;
    let own = found.filter(|found| found.owner_id == owner_id && caller.is_of(&found.tenant_id).is_ok());
    let own = own.ok_or_else(|| Failure::rule(Rule::CalendarEventUnknown, "your calendar has no such event"))?;
    note_tenant(&own.tenant_id);
    Ok(own)
}

pub(crate) async fn list(
    app: &App,
    caller: &Principal,
    request: ListCalendarEvents,
) -> Result<CalendarEventPage, Failure> {
    let owner_id = threads::owner(caller)?;
    let page = PageRequest::new("calendar_events", &owner_id, request.limit, request.cursor.as_deref())?;
    let found =
        store::run_input::calendar_events::list(&app.db, &owner_id, page.after.as_ref(), page.rows_max()).await?;
    let Page { items, next_cursor } = page.page(found, |last| Cursor::after(last.created_at, last.id));
    let events = items.into_iter().filter(|found| caller.is_of(&found.tenant_id).is_ok()).collect();
    Ok(CalendarEventPage { events, next_cursor })
}

/// The occurrences of the caller's events in a window, in order.
pub(crate) async fn occurrences(app: &App, caller: &Principal, window: Window) -> Result<CalendarOccurrences, Failure> {
    let owner_id = threads::owner(caller)?;
    let limit = EVENTS_PER_USER_MAX as u32;
    let mut events = store::run_input::calendar_events::list_in_window(&app.db, &owner_id, window, limit).await?;
    events.retain(|(event, _)| caller.is_of(&event.tenant_id).is_ok());
    let find = || event_occurrences::list(&events, &window, OCCURRENCES_MAX);
    app.compute(events.len() * BYTES_PER_EVENT, find).await
}

/// The caller's calendar as RFC 5545 text.
pub(crate) async fn export(app: &App, caller: &Principal) -> Result<String, Failure> {
    let owner_id = threads::owner(caller)?;
    let limit = EVENTS_PER_USER_MAX as u32;
    let mut events = store::run_input::calendar_events::list_with_ends(&app.db, &owner_id, limit).await?;
    events.retain(|(event, _)| caller.is_of(&event.tenant_id).is_ok());
    let now = app.wall();
    app.compute(events.len() * BYTES_PER_EVENT, || export::write(&events, now)).await
}

pub(crate) async fn update(
    app: &App,
    caller: &Principal,
    id: CalendarEventId,
    request: &UpdateCalendarEvent,
) -> Result<CalendarEvent, Failure> {
    let mut attempts =
        app.db.attempts(|| Failure::new(FailureKind::Overloaded, "the event was changed too often; try again"));
    loop {
        attempts.start_next()?;
        let old = get(app, caller, id).await?;
        let mut new = with_fields(app, old.clone(), request.read(&old)?);
        if new == old {
            return Ok(old);
        }
        let span = check(&new)?;
        (new.revision, new.updated_at) = (old.revision + 1, app.now());
        if store::run_input::calendar_events::update(&app.db, &new, span, old.revision).await? {
            return Ok(new);
        }
    }
}

/// Checks a change as [`update`] does, and changes nothing.
pub(crate) async fn check_update(
    app: &App,
    caller: &Principal,
    id: CalendarEventId,
    request: &UpdateCalendarEvent,
) -> Result<(), Failure> {
    let old = get(app, caller, id).await?;
    let fields = request.read(&old)?;
    check(&with_fields(app, old, fields)).map(drop)
}

pub(crate) async fn delete(app: &App, caller: &Principal, id: CalendarEventId) -> Result<(), Failure> {
    let tenant_id = get(app, caller, id).await?.tenant_id;
    let is_deleted = store::run_input::calendar_events::delete(&app.db, id, &tenant_id).await?;
    if !is_deleted && store::retention::is_tenant_held(&app.db, &tenant_id).await? {
        return Err(under_hold("this event"));
    }
    Ok(())
}

/// Deletes the events of removed users.
pub(crate) async fn delete_orphaned(app: &App) -> Result<(), Failure> {
    while store::run_input::calendar_events::delete_orphaned(&app.db, ORPHANS_AT_ONCE).await? > 0 {}
    Ok(())
}
