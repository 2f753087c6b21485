//! The tools with which an agent writes and reads the user's calendar. The zone of a new event is resolved in a fixed order: the
//! call's own, the device's, the user's, UTC. An update keeps the event's own zone, unless it names another. A final call with a time
//! always has a zone, and the result names where it came from.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::{CreateCalendarEvent, UpdateCalendarEvent};
use crate::{
    Failure, Rule,
    ids::CalendarEventId,
    run_input::local_times::{find_zone, zone_name},
};

pub const CALENDAR_WRITE: &str = "calendar_write";
pub const CALENDAR_READ: &str = "calendar_read";
/// The argument with the zone of the event.
pub const EVENT_TIMEZONE: &str = "event_timezone";

/// A tool as a model gets it.
#[derive(Clone, Debug, PartialEq)]
pub struct CalendarTool {
    pub name: &'static str,
    pub description: &'static str,
    /// JSON Schema of the arguments.
    pub parameters: Value,
    /// Whether a call changes anything.
    pub changes: bool,
}

/// Where the zone of an event came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ZoneSource {
    /// `event_timezone` of the call.
    Argument,
    /// `forwardedProps.client_time.device_timezone` of the run.
    Device,
    /// The zone of the user.
    User,
    /// No zone is known.
    Utc,
    /// The zone of the event that is updated.
    Event,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WriteAction {
    Create,
    Update,
    Delete,
}

/// A call of `calendar_write`, read and complete.
#[derive(Clone, Debug)]
pub enum CalendarWrite {
    Create(FinalCall<CreateCalendarEvent>),
    Update(CalendarEventId, FinalCall<UpdateCalendarEvent>),
    Delete(CalendarEventId),
}

/// A call with its zone.
#[derive(Clone, Debug)]
pub struct FinalCall<T> {
    pub call: T,
    /// `None` if an update leaves the event's own zone.
    pub zone_source: Option<ZoneSource>,
}

/// The zones that a call falls back to.
#[derive(Clone, Copy, Debug, Default)]
pub struct KnownZones<'a> {
    pub device: Option<&'a str>,
    pub user: Option<&'a str>,
    /// Of the event that is updated.
    pub event: Option<&'a str>,
}

fn wrong(message: impl Into<String>) -> Failure {
    Failure::invalid(Rule::CalendarShape, format!("{CALENDAR_WRITE}: {}", message.into()))
}

/// The zone of a new event, by the fixed order. A zone of the call that does not exist is rejected; one of the device or the user
/// that does not exist is passed over.
pub fn resolve_zone(argument: Option<&str>, zones: KnownZones<'_>) -> Result<(String, ZoneSource), Failure> {
    if let Some(name) = argument {
        return Ok((zone_name(&find_zone(name)?).to_owned(), ZoneSource::Argument));
    }
    let known = |name: Option<&str>, source| {
        let zone = name.and_then(|name| find_zone(name).ok())?;
        Some((zone_name(&zone).to_owned(), source))
    };
    let found = known(zones.device, ZoneSource::Device).or_else(|| known(zones.user, ZoneSource::User));
    Ok(found.unwrap_or_else(|| ("UTC".to_owned(), ZoneSource::Utc)))
}

/// The zone that a call of `calendar_write` needs and does not name: of a new event by the fixed order, of an update the event's own.
/// `None` if the call names one or needs none, or the event is not known.
pub fn missing_zone(arguments: &Map<String, Value>, zones: KnownZones<'_>) -> Option<(String, ZoneSource)> {
    let is_given = |name: &str| arguments.get(name).is_some_and(|value| !value.is_null());
    if is_given(EVENT_TIMEZONE) {
        return None;
    }
    match arguments.get("action").and_then(Value::as_str) {
        Some("create") => resolve_zone(None, zones).ok(),
        Some("update") if is_given("starts_at") || is_given("ends_at") => {
            Some((zones.event?.to_owned(), ZoneSource::Event))
        }
        _ => None,
    }
}

/// The event that a call of `calendar_write` updates. `None` if it updates none.
pub fn updated_event(arguments: &Map<String, Value>) -> Option<CalendarEventId> {
    let text = |name: &str| arguments.get(name).and_then(Value::as_str);
    text("action").filter(|action| *action == "update")?;
    text("event_id")?.parse().ok()
}

/// Reads a call of `calendar_write` and completes it: the final call of a new event always names its zone.
pub fn read_write(arguments: &Value, zones: KnownZones<'_>) -> Result<CalendarWrite, Failure> {
    let Value::Object(mut fields) = arguments.clone() else { return Err(wrong("the arguments must be an object")) };
    let action = fields.remove("action").unwrap_or_default();
    let action: WriteAction =
        serde_json::from_value(action).map_err(|_| wrong("action must be create, update or delete"))?;
    let event_id = match fields.remove("event_id") {
        None | Some(Value::Null) => None,
        Some(id) => {
            let id = id.as_str().and_then(|id| id.parse::<CalendarEventId>().ok());
            Some(id.ok_or_else(|| Failure::rule(Rule::CalendarEventUnknown, "your calendar has no such event"))?)
        }
    };
    // Models send null for what they leave out.
    fields.retain(|_, value| !value.is_null());
    let argument = match fields.get("event_timezone") {
        None => None,
        Some(Value::String(name)) => Some(name.clone()),
        Some(_) => return Err(wrong("event_timezone must be the name of a time zone")),
    };
    let needs_id = || wrong("update and delete need an event_id");
    match action {
        WriteAction::Create => {
            if event_id.is_some() {
                return Err(wrong("a new event has no event_id"));
            }
            let (zone, zone_source) = resolve_zone(argument.as_deref(), zones)?;
            fields.insert("event_timezone".into(), zone.into());
            let call = serde_json::from_value(fields.into()).map_err(|error| wrong(error.to_string()))?;
            Ok(CalendarWrite::Create(FinalCall { call, zone_source: Some(zone_source) }))
        }
        WriteAction::Update => {
            let id = event_id.ok_or_else(needs_id)?;
            // A local time of a call without a zone is one of the event's own zone, as everywhere else.
            let has_time = fields.contains_key("starts_at") || fields.contains_key("ends_at");
            let zone_source = match &argument {
                None => has_time.then_some(ZoneSource::Event),
                Some(name) => {
                    fields.insert("event_timezone".into(), zone_name(&find_zone(name)?).into());
                    Some(ZoneSource::Argument)
                }
            };
            let call = serde_json::from_value(fields.into()).map_err(|error| wrong(error.to_string()))?;
            Ok(CalendarWrite::Update(id, FinalCall { call, zone_source }))
        }
        WriteAction::Delete => Ok(CalendarWrite::Delete(event_id.ok_or_else(needs_id)?)),
    }
}

/// The definitions of the tools.
pub fn definitions() -> [CalendarTool; 2] {
    let text = |description: &str| json!({"type": "string", "description": description});
    let write = json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["action"],
        "properties": {
            "action": {"type": "string", "enum": ["create", "update", "delete"]},
            "event_id": text("The event to update or delete."),
            "title": text("Required for a new event."),
            "description": text("More about the event."),
            "location": text("Where it takes place."),
            "starts_at": text("Local time of event_timezone without an offset, such as 2026-03-16T09:00. Required for a new event."),
            "ends_at": text("Local time of event_timezone. Left out: an hour after the start of a new event; if the clocks repeat that hour, when they have repeated it. An update of the start keeps the length."),
            "all_day": {"type": "boolean", "description": "The event lasts whole days; starts_at and ends_at are dates, the end is the day after the last."},
            "event_timezone": text("IANA time zone of the event, such as America/Los_Angeles. Left out for a new event: that of the user's device, else the user's own. Left out for an update: the event keeps its zone, and new times are times of it."),
            "recurrence": text("RFC 5545 rule, such as FREQ=WEEKLY;BYDAY=MO. A further line such as EXDATE:20260323 leaves dates out. Empty to remove it."),
        },
    });
    let read = json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["from", "to"],
        "properties": {
            "from": text("Events that end after this instant, such as 2026-03-16T00:00:00Z."),
            "to": text("Events that start before this instant, at most 400 days later."),
        },
    });
    [
        CalendarTool {
            name: CALENDAR_WRITE,
            description: "Create, update or delete an event of the user's calendar. The result shows the event as it is \
                stored, its time zone and where that came from, its instants in UTC, and whether its local time is missing \
                or ambiguous on that day.",
            parameters: write,
            changes: true,
        },
        CalendarTool {
            name: CALENDAR_READ,
            description: "List the events of the user's calendar in a window of time, with every occurrence of those that \
                recur.",
            parameters: read,
            changes: false,
        },
    ]
}
