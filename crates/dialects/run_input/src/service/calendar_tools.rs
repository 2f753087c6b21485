//! The calendar as tools of an agent: plain functions that a toolkit registers. A call acts for the user of the run.

use ostler_protocol::{
    Failure, Rule,
    ids::CalendarEventId,
    run_input::{
        agui::input::ClientTime,
        calendar::{
            CalendarEvent, ListOccurrences,
            tool::{
                CalendarTool, CalendarWrite, KnownZones, ZoneSource, definitions, missing_zone, read_write,
                updated_event,
            },
        },
        local_times::{LocalTimeKind, local_text, resolve},
    },
};
use ostler_server::{app::App, auth::Principal, service::users};
use serde_json::{Map, Value, json};

use super::calendar_events;

/// What a call takes from the run that it belongs to.
#[derive(Clone, Debug, Default)]
pub struct CalendarCallContext {
    /// `forwardedProps.client_time` of the run.
    pub client_time: Option<ClientTime>,
}

impl CalendarCallContext {
    fn device(&self) -> Option<&str> {
        self.client_time.as_ref().map(|time| time.device_timezone.as_str())
    }
}

/// The zone of the caller's user. `None` if the caller is none.
async fn user_zone(app: &App, caller: &Principal) -> Result<Option<String>, Failure> {
    Ok(match caller {
        Principal::User { .. } => users::time_zone(app, caller).await?.iana_name().map(str::to_owned),
        _ => None,
    })
}

/// The zone that a call of `calendar_write` needs and does not name, and where it comes from.
pub(super) async fn missing_zone_of(
    app: &App,
    caller: &Principal,
    context: &CalendarCallContext,
    arguments: &Map<String, Value>,
) -> Result<Option<(String, ZoneSource)>, Failure> {
    let user = user_zone(app, caller).await?;
    let event = match updated_event(arguments) {
        Some(id) => own_event(app, caller, id).await?,
        None => None,
    };
    let event = event.as_ref().map(|event| event.event_timezone.as_str());
    Ok(missing_zone(arguments, KnownZones { device: context.device(), user: user.as_deref(), event }))
}

/// The caller's event. `None` if the calendar has no such event.
async fn own_event(app: &App, caller: &Principal, id: CalendarEventId) -> Result<Option<CalendarEvent>, Failure> {
    match calendar_events::get(app, caller, id).await {
        Ok(event) => Ok(Some(event)),
        Err(failure) if failure.broken_rule() == Some(Rule::CalendarEventUnknown) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// The definitions of the tools `calendar_write` and `calendar_read`.
pub fn calendar_tools() -> [CalendarTool; 2] {
    definitions()
}

/// Creates, updates or deletes an event. The result shows the event, its instants, the zone and where the zone came from.
pub async fn write_calendar(
    app: &App,
    caller: &Principal,
    context: &CalendarCallContext,
    arguments: &Value,
) -> Result<Value, Failure> {
    let user = user_zone(app, caller).await?;
    let device = context.device();
    match read_write(arguments, KnownZones { device, user: user.as_deref(), event: None })? {
        CalendarWrite::Create(made) => {
            let event = calendar_events::create(app, caller, &made.call).await?;
            written("created", &event, made.zone_source)
        }
        CalendarWrite::Update(id, change) => {
            let event = calendar_events::update(app, caller, id, &change.call).await?;
            written("updated", &event, change.zone_source)
        }
        CalendarWrite::Delete(id) => {
            calendar_events::delete(app, caller, id).await?;
            Ok(json!({"action": "deleted", "event_id": id}))
        }
    }
}

/// Checks a call of `calendar_write` as [`write_calendar`] does, and writes nothing. The number of the user's events is not checked.
pub(super) async fn check_write(
    app: &App,
    caller: &Principal,
    context: &CalendarCallContext,
    arguments: &Value,
) -> Result<(), Failure> {
    let user = user_zone(app, caller).await?;
    match read_write(arguments, KnownZones { device: context.device(), user: user.as_deref(), event: None })? {
        CalendarWrite::Create(made) => calendar_events::check_create(app, caller, &made.call),
        CalendarWrite::Update(id, change) => calendar_events::check_update(app, caller, id, &change.call).await,
        CalendarWrite::Delete(id) => calendar_events::get(app, caller, id).await.map(drop),
    }
}

/// Checks a call of `calendar_read`.
pub(super) fn check_read(arguments: &Value) -> Result<(), Failure> {
    let request: ListOccurrences = serde_json::from_value(arguments.clone()).unwrap_or_default();
    request.window().map(drop)
}

/// Lists the occurrences of a window.
pub async fn read_calendar(app: &App, caller: &Principal, arguments: &Value) -> Result<Value, Failure> {
    let request: ListOccurrences = serde_json::from_value(arguments.clone()).unwrap_or_default();
    let found = calendar_events::occurrences(app, caller, request.window()?).await?;
    serde_json::to_value(found).map_err(Failure::internal)
}

fn written(action: &str, event: &CalendarEvent, source: Option<ZoneSource>) -> Result<Value, Failure> {
    let zone = event.zone()?;
    let (start, end) = event.first(&zone)?;
    let end_kind = resolve(event.ends_at, &zone).map_or(LocalTimeKind::Exact, |resolved| resolved.kind);
    let notes: Vec<_> = [note(start.kind, "start"), note(end_kind, "end")].into_iter().flatten().collect();
    let note = Some(notes.join("; ")).filter(|note| !note.is_empty());
    Ok(json!({
        "action": action, "event_id": event.id, "event": event, "event_timezone": event.event_timezone,
        "timezone_source": source, "starts_at_utc": start.at, "ends_at_utc": end,
        "starts_at_local": local_text(start.at, &zone), "local_time": start.kind,
        "ends_at_local": local_text(end, &zone), "end_local_time": end_kind, "note": note,
    }))
}

/// What a model has to know about a local time that the clocks do not show exactly once. `verb`: what the event does then.
fn note(kind: LocalTimeKind, verb: &str) -> Option<String> {
    match kind {
        LocalTimeKind::Exact => None,
        LocalTimeKind::Missing => Some(format!(
            "the clocks skip the local time of the {verb}; the event {verb}s as much later as the clocks are moved"
        )),
        LocalTimeKind::Ambiguous => {
            Some(format!("the clocks show the local time of the {verb} twice; the event {verb}s at the first"))
        }
    }
}
