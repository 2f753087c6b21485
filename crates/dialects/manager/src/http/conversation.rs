//! `/api/v1/runs/{runId}/commands/{commandId}/conversation`.

use axum::{Json, extract::State};
use ostler_protocol::{
    failures::Problem,
    ids::{CommandId, RunId},
    kernel::conversation::Conversation,
};

use ostler_server::{
    app::App,
    net::{
        extract::{At, Caller},
        problem::Refusal,
    },
    service,
};

/// The messages of user and agent in the session before this command, the newest that fit.
#[utoipa::path(get, path = "/api/v1/runs/{runId}/commands/{commandId}/conversation", tag = "commands",
    security(("token" = ["read"])), params(("runId" = RunId, Path), ("commandId" = CommandId, Path)),
    responses((status = 200, body = Conversation), (status = "4XX", body = Problem)))]
pub(crate) async fn get(
    State(app): State<App>,
    Caller(caller): Caller,
    At((run_id, command_id)): At<(RunId, CommandId)>,
) -> Result<Json<Conversation>, Refusal> {
    Ok(Json(service::conversation::get(&app, &caller, run_id, command_id).await?))
}
