//! `/api/v1/agent/sessions…`: threads as a whole.

use axum::extract::State;
use http::StatusCode;
use ostler_protocol::run_input::failures::RunInputProblem;

use crate::service;
use ostler_server::{
    app::App,
    net::{
        extract::{At, Caller},
        problem::Refusal,
    },
};

/// Erase a thread, with its messages, attachments and storage. Only digests stay, so that the log can still be verified.
///
/// Idempotent. The id is then unknown and can be used again: a message under it begins a new thread.
#[utoipa::path(delete, path = "/api/v1/agent/sessions/{threadId}", tag = "agent", security(("token" = ["own"])),
    params(("threadId" = String, Path)),
    responses((status = 204, description = "it is gone, or was never there"), (status = "4XX", body = RunInputProblem)))]
pub(crate) async fn erase(
    State(app): State<App>,
    Caller(caller): Caller,
    At(thread_id): At<String>,
) -> Result<StatusCode, Refusal> {
    service::threads::erase(&app, &caller, &thread_id).await?;
    Ok(StatusCode::NO_CONTENT)
}
