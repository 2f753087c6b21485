//! `time_now`: the time where the user is.

use futures_util::future::BoxFuture;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use ostler_protocol::{ids::UserId, tools::ToolDefinition};
use ostler_store as store;
use serde_json::json;

use super::definitions::{define, text};
use crate::{
    app::App,
    tools::source::{Invocation, ToolContext, ToolError},
};

pub(super) fn definition() -> Option<ToolDefinition> {
    let zone =
        json!({"type": "string", "description": "IANA time zone, such as Europe/Berlin. By default the user's."});
    let schema = json!({"type": "object", "properties": {"timezone": zone}, "additionalProperties": false});
    let description = "Returns the current date and time, the day of the week and the time zone of the user.";
    Some(define("time_now", description, schema)?.reads_only())
}

pub(super) fn call<'a>(app: &'a App, invocation: &'a Invocation) -> BoxFuture<'a, Result<String, ToolError>> {
    Box::pin(async move {
        let zone = match text(invocation, "timezone") {
            Some(name) => find(name).ok_or_else(|| ToolError::invalid(format!("there is no time zone {name:?}")))?,
            None => zone_of(app, &invocation.context).await?,
        };
        let now = app.wall().to_zoned(zone);
        let name = now.time_zone().iana_name().unwrap_or("UTC").to_owned();
        let local = now.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string();
        let utc = now.timestamp().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        Ok(json!({"now": local, "timezone": name, "weekday": now.strftime("%A").to_string(), "utc": utc}).to_string())
    })
}

/// A zone of the bundled database. `Etc/Unknown`, which the library accepts, is no zone of the database and has no name.
fn find(name: &str) -> Option<TimeZone> {
    TimeZoneDatabase::bundled().get(name).ok().filter(|zone| zone.iana_name().is_some())
}

/// The zone of the user's device, else the user's own, else UTC. Never that of the server.
async fn zone_of(app: &App, context: &ToolContext) -> Result<TimeZone, ToolError> {
    if let Some(zone) = context.device_timezone().as_deref().and_then(find) {
        return Ok(zone);
    }
    let user_id = context.owner.as_deref().and_then(|owner| owner.parse::<UserId>().ok());
    let Some(user_id) = user_id else { return Ok(TimeZone::UTC) };
    let user = store::users::get(&app.db, user_id).await;
    let user = user.map_err(|_| ToolError::failed("the time zone of the user could not be read"))?;
    Ok(user.and_then(|user| find(&user.timezone)).unwrap_or(TimeZone::UTC))
}
