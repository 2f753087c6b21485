//! `/api/v1/calendar-events…`: the caller's calendar.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header};
use ostler_protocol::{
    ids::CalendarEventId,
    run_input::{
        calendar::{
            CalendarEvent, CalendarEventPage, CalendarOccurrences, CreateCalendarEvent, ListCalendarEvents,
            ListOccurrences, UpdateCalendarEvent,
        },
        failures::RunInputProblem,
    },
};

use crate::service::calendar_events;
use ostler_server::{
    app::App,
    net::{
        extract::{At, Body, Caller, Params},
        problem::Refusal,
    },
};

const TEXT_CALENDAR: HeaderValue = HeaderValue::from_static("text/calendar; charset=utf-8");

/// Create an event of the caller's calendar.
#[utoipa::path(post, path = "/api/v1/calendar-events", tag = "calendar", security(("token" = ["own"])),
    request_body = CreateCalendarEvent,
    responses((status = 201, body = CalendarEvent), (status = "4XX", body = RunInputProblem)))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(caller): Caller,
    Body(request): Body<CreateCalendarEvent>,
) -> Result<(StatusCode, Json<CalendarEvent>), Refusal> {
    Ok((StatusCode::CREATED, Json(calendar_events::create(&app, &caller, &request).await?)))
}

/// List the events of the caller's calendar, the newest first.
#[utoipa::path(get, path = "/api/v1/calendar-events", tag = "calendar", security(("token" = ["own"])),
    params(ListCalendarEvents),
    responses((status = 200, body = CalendarEventPage), (status = "4XX", body = RunInputProblem)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    Params(request): Params<ListCalendarEvents>,
) -> Result<Json<CalendarEventPage>, Refusal> {
    Ok(Json(calendar_events::list(&app, &caller, request).await?))
}

/// List what takes place in a window of time: every occurrence of events that recur, in order.
#[utoipa::path(get, path = "/api/v1/calendar-events/occurrences", tag = "calendar", security(("token" = ["own"])),
    params(ListOccurrences),
    responses((status = 200, body = CalendarOccurrences), (status = "4XX", body = RunInputProblem)))]
pub(crate) async fn occurrences(
    State(app): State<App>,
    Caller(caller): Caller,
    Params(request): Params<ListOccurrences>,
) -> Result<Json<CalendarOccurrences>, Refusal> {
    Ok(Json(calendar_events::occurrences(&app, &caller, request.window()?).await?))
}

/// Export the caller's calendar as iCalendar text (RFC 5545).
#[utoipa::path(get, path = "/api/v1/calendar-events/export", tag = "calendar", security(("token" = ["own"])),
    responses((status = 200, content_type = "text/calendar", body = String), (status = "4XX", body = RunInputProblem)))]
pub(crate) async fn export(State(app): State<App>, Caller(caller): Caller) -> Result<Response, Refusal> {
    let text = calendar_events::export(&app, &caller).await?;
    let disposition = HeaderValue::from_static("attachment; filename=\"calendar.ics\"");
    let headers = [(header::CONTENT_TYPE, TEXT_CALENDAR), (header::CONTENT_DISPOSITION, disposition)];
    Ok((headers, text).into_response())
}

/// Get an event.
#[utoipa::path(get, path = "/api/v1/calendar-events/{eventId}", tag = "calendar", security(("token" = ["own"])),
    params(("eventId" = CalendarEventId, Path)),
    responses((status = 200, body = CalendarEvent), (status = "4XX", body = RunInputProblem)))]
pub(crate) async fn get(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<CalendarEventId>,
) -> Result<Json<CalendarEvent>, Refusal> {
    Ok(Json(calendar_events::get(&app, &caller, id).await?))
}

/// Change an event. What is left out stays as it is.
#[utoipa::path(patch, path = "/api/v1/calendar-events/{eventId}", tag = "calendar", security(("token" = ["own"])),
    params(("eventId" = CalendarEventId, Path)), request_body = UpdateCalendarEvent,
    responses((status = 200, body = CalendarEvent), (status = "4XX", body = RunInputProblem)))]
pub(crate) async fn update(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<CalendarEventId>,
    Body(request): Body<UpdateCalendarEvent>,
) -> Result<Json<CalendarEvent>, Refusal> {
    Ok(Json(calendar_events::update(&app, &caller, id, &request).await?))
}

/// Delete an event, with all of its occurrences.
#[utoipa::path(delete, path = "/api/v1/calendar-events/{eventId}", tag = "calendar", security(("token" = ["own"])),
    params(("eventId" = CalendarEventId, Path)),
    responses((status = 204, description = "it is gone"), (status = "4XX", body = RunInputProblem)))]
pub(crate) async fn delete(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<CalendarEventId>,
) -> Result<StatusCode, Refusal> {
    calendar_events::delete(&app, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
