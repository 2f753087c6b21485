//! `/api/v1/automations…`: jobs that start runs on a schedule.

use axum::{Json, extract::State};
use http::{HeaderMap, StatusCode};
use ostler_protocol::{
    ids::AutomationId,
    run_input::{
        automations::{
            Automation, AutomationPage, AutomationStart, AutomationStartPage, CreateAutomation, ListAutomationStarts,
            ListAutomations, ListNextTimes, NextTimes, StartAutomation, UpdateAutomation,
        },
        failures::RunInputProblem,
    },
};

use crate::service::automations::{self, starts};
use ostler_server::{
    app::App,
    net::{
        extract::{At, Body, Caller, OptionalBody, Params, idempotency_key},
        problem::Refusal,
        responses::created,
    },
};

/// Create an automation. Idempotent by `bootstrap_key`: the key of an existing automation returns that automation.
#[utoipa::path(post, path = "/api/v1/automations", tag = "automations", security(("token" = ["own"])),
    request_body = CreateAutomation,
    responses((status = 201, body = Automation), (status = 200, body = Automation, description = "it exists"),
        (status = "4XX", body = RunInputProblem)))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(caller): Caller,
    Body(request): Body<CreateAutomation>,
) -> Result<(StatusCode, Json<Automation>), Refusal> {
    Ok(created(automations::create(&app, &caller, request).await?))
}

/// List the caller's automations, the newest first.
#[utoipa::path(get, path = "/api/v1/automations", tag = "automations", security(("token" = ["own"])),
    params(ListAutomations),
    responses((status = 200, body = AutomationPage), (status = "4XX", body = RunInputProblem)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    Params(request): Params<ListAutomations>,
) -> Result<Json<AutomationPage>, Refusal> {
    Ok(Json(automations::list(&app, &caller, request).await?))
}

/// Get an automation.
#[utoipa::path(get, path = "/api/v1/automations/{automationId}", tag = "automations", security(("token" = ["own"])),
    params(("automationId" = AutomationId, Path)),
    responses((status = 200, body = Automation), (status = "4XX", body = RunInputProblem)))]
pub(crate) async fn get(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<AutomationId>,
) -> Result<Json<Automation>, Refusal> {
    Ok(Json(automations::get(&app, &caller, id).await?))
}

/// Change an automation. What is left out stays as it is; `status` pauses and resumes it.
#[utoipa::path(patch, path = "/api/v1/automations/{automationId}", tag = "automations", security(("token" = ["own"])),
    params(("automationId" = AutomationId, Path)), request_body = UpdateAutomation,
    responses((status = 200, body = Automation), (status = "4XX", body = RunInputProblem)))]
pub(crate) async fn update(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<AutomationId>,
    Body(request): Body<UpdateAutomation>,
) -> Result<Json<Automation>, Refusal> {
    Ok(Json(automations::update(&app, &caller, id, request).await?))
}

/// Delete an automation with its history. Runs that it has started go on, and their threads stay.
#[utoipa::path(delete, path = "/api/v1/automations/{automationId}", tag = "automations", security(("token" = ["own"])),
    params(("automationId" = AutomationId, Path)),
    responses((status = 204, description = "it is gone"), (status = "4XX", body = RunInputProblem)))]
pub(crate) async fn delete(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<AutomationId>,
) -> Result<StatusCode, Refusal> {
    automations::delete(&app, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Start an automation at once, also a paused one. Idempotent by the key, if there is one.
#[utoipa::path(post, path = "/api/v1/automations/{automationId}/start", tag = "automations",
    security(("token" = ["own"])),
    params(("automationId" = AutomationId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = Option<StartAutomation>,
    responses((status = 202, body = AutomationStart), (status = "4XX", body = RunInputProblem)))]
pub(crate) async fn start(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<AutomationId>,
    headers: HeaderMap,
    OptionalBody(request): OptionalBody<StartAutomation>,
) -> Result<(StatusCode, Json<AutomationStart>), Refusal> {
    let key = idempotency_key(&headers, request.idempotency_key)?;
    Ok((StatusCode::ACCEPTED, Json(starts::request(&app, &caller, id, key).await?)))
}

/// List the starts of an automation with their outcomes, the newest first.
#[utoipa::path(get, path = "/api/v1/automations/{automationId}/runs", tag = "automations",
    security(("token" = ["own"])), params(("automationId" = AutomationId, Path), ListAutomationStarts),
    responses((status = 200, body = AutomationStartPage), (status = "4XX", body = RunInputProblem)))]
pub(crate) async fn list_starts(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<AutomationId>,
    Params(request): Params<ListAutomationStarts>,
) -> Result<Json<AutomationStartPage>, Refusal> {
    Ok(Json(starts::list(&app, &caller, id, request).await?))
}

/// Get the next times of an automation. For a paused one, the times that it would have.
#[utoipa::path(get, path = "/api/v1/automations/{automationId}/next", tag = "automations",
    security(("token" = ["own"])), params(("automationId" = AutomationId, Path), ListNextTimes),
    responses((status = 200, body = NextTimes), (status = "4XX", body = RunInputProblem)))]
pub(crate) async fn next(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<AutomationId>,
    Params(request): Params<ListNextTimes>,
) -> Result<Json<NextTimes>, Refusal> {
    Ok(Json(automations::next(&app, &caller, id, &request).await?))
}
