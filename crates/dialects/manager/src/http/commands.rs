//! `/api/v1/runs/{runId}/commands…` and `/api/v1/commands/{commandId}…`.

use axum::{Json, extract::State};
use http::{HeaderMap, StatusCode};
use ostler_protocol::{
    failures::Problem,
    ids::{CommandId, RunId},
    kernel::{
        commands::{AckCommand, Command, CommandPage, CreateCommand, PatchStatus, PollCommands},
        results::RunResult,
        runs::Cancel,
        whole_payloads::CommandPayload,
        workspaces::CommandDiff,
    },
};

use ostler_server::{
    app::App,
    net::{
        extract::{At, Body, Caller, OptionalBody, Params, idempotency_key},
        problem::Refusal,
        responses::created,
    },
    service,
};

/// Create a command: a turn, a steer or an interrupt.
#[utoipa::path(post, path = "/api/v1/runs/{runId}/commands", tag = "commands", security(("token" = ["submit"])),
    params(("runId" = RunId, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "The same as `idempotencyKey` in the body")),
    request_body = CreateCommand,
    responses((status = 201, body = Command), (status = 200, body = Command, description = "the same key again"),
        (status = "4XX", body = Problem)))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(caller): Caller,
    At(run_id): At<RunId>,
    headers: HeaderMap,
    Body(mut request): Body<CreateCommand>,
) -> Result<(StatusCode, Json<Command>), Refusal> {
    request.idempotency_key = idempotency_key(&headers, request.idempotency_key)?;
    Ok(created(service::commands::create(&app, &caller, run_id, request).await?))
}

/// Poll for commands, as the run's runner.
#[utoipa::path(get, path = "/api/v1/runs/{runId}/commands", tag = "runner", security(("token" = ["run"])),
    params(("runId" = RunId, Path), PollCommands),
    responses((status = 200, body = CommandPage), (status = "4XX", body = Problem)))]
pub(crate) async fn poll(
    State(app): State<App>,
    Caller(caller): Caller,
    At(run_id): At<RunId>,
    Params(request): Params<PollCommands>,
) -> Result<Json<CommandPage>, Refusal> {
    Ok(Json(service::commands::poll(&app, &caller, run_id, request).await?))
}

/// Get a command.
#[utoipa::path(get, path = "/api/v1/runs/{runId}/commands/{commandId}", tag = "commands",
    security(("token" = ["read"])),
    params(("runId" = RunId, Path), ("commandId" = CommandId, Path)),
    responses((status = 200, body = Command), (status = "4XX", body = Problem)))]
pub(crate) async fn get(
    State(app): State<App>,
    Caller(caller): Caller,
    At((run_id, command_id)): At<(RunId, CommandId)>,
) -> Result<Json<Command>, Refusal> {
    Ok(Json(service::commands::get(&app, &caller, run_id, command_id).await?))
}

/// Get the whole payload of a command.
///
/// The payload of a command with a large prompt is a short form, with a member `wholePayload`. A runner fetches the whole before
/// it begins the turn.
#[utoipa::path(get, path = "/api/v1/runs/{runId}/commands/{commandId}/payload", tag = "commands",
    security(("token" = ["read"])),
    params(("runId" = RunId, Path), ("commandId" = CommandId, Path)),
    responses((status = 200, body = CommandPayload), (status = "4XX", body = Problem)))]
pub(crate) async fn payload(
    State(app): State<App>,
    Caller(caller): Caller,
    At((run_id, command_id)): At<(RunId, CommandId)>,
) -> Result<Json<CommandPayload>, Refusal> {
    Ok(Json(service::commands::payload(&app, &caller, run_id, command_id).await?))
}

/// Get the result of a command.
#[utoipa::path(get, path = "/api/v1/runs/{runId}/commands/{commandId}/result", tag = "commands",
    security(("token" = ["read"])),
    params(("runId" = RunId, Path), ("commandId" = CommandId, Path)),
    responses((status = 200, body = RunResult), (status = "4XX", body = Problem)))]
pub(crate) async fn result(
    State(app): State<App>,
    Caller(caller): Caller,
    At((run_id, command_id)): At<(RunId, CommandId)>,
) -> Result<Json<RunResult>, Refusal> {
    Ok(Json(service::results::get(&app, &caller, run_id, Some(command_id)).await?))
}

/// Get the changes that a command's agent made in its workspace.
#[utoipa::path(get, path = "/api/v1/runs/{runId}/commands/{commandId}/diff", tag = "commands",
    security(("token" = ["read"])),
    params(("runId" = RunId, Path), ("commandId" = CommandId, Path)),
    responses((status = 200, body = CommandDiff), (status = "4XX", body = Problem)))]
pub(crate) async fn diff(
    State(app): State<App>,
    Caller(caller): Caller,
    At((run_id, command_id)): At<(RunId, CommandId)>,
) -> Result<Json<CommandDiff>, Refusal> {
    Ok(Json(service::results::diff(&app, &caller, run_id, command_id).await?))
}

/// Cancel a command. Idempotent: cancelling a finished command returns how it ended.
#[utoipa::path(post, path = "/api/v1/commands/{commandId}/cancel", tag = "commands", security(("token" = ["submit"])),
    params(("commandId" = CommandId, Path)),
    request_body = Option<Cancel>, responses((status = 200, body = Command), (status = "4XX", body = Problem)))]
pub(crate) async fn cancel(
    State(app): State<App>,
    Caller(caller): Caller,
    At(command_id): At<CommandId>,
    OptionalBody(request): OptionalBody<Cancel>,
) -> Result<Json<Command>, Refusal> {
    Ok(Json(service::commands::cancel(&app, &caller, command_id, request).await?))
}

/// Acknowledge a command, as the run's runner.
#[utoipa::path(post, path = "/api/v1/commands/{commandId}/ack", tag = "runner", security(("token" = ["run"])),
    params(("commandId" = CommandId, Path)),
    request_body = AckCommand, responses((status = 200, body = Command), (status = "4XX", body = Problem)))]
pub(crate) async fn ack(
    State(app): State<App>,
    Caller(caller): Caller,
    At(command_id): At<CommandId>,
    Body(request): Body<AckCommand>,
) -> Result<Json<Command>, Refusal> {
    Ok(Json(service::commands::ack(&app, &caller, command_id, request).await?))
}

/// Report a command's status, as the run's runner.
#[utoipa::path(patch, path = "/api/v1/commands/{commandId}/status", tag = "runner", security(("token" = ["run"])),
    params(("commandId" = CommandId, Path)),
    request_body = PatchStatus, responses((status = 200, body = Command), (status = "4XX", body = Problem)))]
pub(crate) async fn patch_status(
    State(app): State<App>,
    Caller(caller): Caller,
    At(command_id): At<CommandId>,
    Body(request): Body<PatchStatus>,
) -> Result<Json<Command>, Refusal> {
    Ok(Json(service::commands::patch_status(&app, &caller, command_id, request).await?))
}
