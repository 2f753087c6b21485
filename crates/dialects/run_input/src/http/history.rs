//! `/api/v1/agent/history`: the messages of a thread, a day at a time.

use axum::{Json, extract::State};
use ostler_protocol::run_input::{
    failures::RunInputProblem,
    history::{HistoryQuery, HistorySnapshot},
};

use crate::service;
use ostler_server::{
    app::App,
    net::{
        extract::{Caller, Params},
        problem::Refusal,
    },
};

/// Read a day of a thread: the last day with a message, or the last such day before a given one.
#[utoipa::path(get, path = "/api/v1/agent/history", tag = "agent", security(("token" = ["own"])), params(HistoryQuery),
    responses((status = 200, body = HistorySnapshot), (status = "4XX", body = RunInputProblem)))]
pub(crate) async fn get(
    State(app): State<App>,
    Caller(caller): Caller,
    Params(query): Params<HistoryQuery>,
) -> Result<Json<HistorySnapshot>, Refusal> {
    Ok(Json(service::history::get(&app, &caller, query).await?))
}
