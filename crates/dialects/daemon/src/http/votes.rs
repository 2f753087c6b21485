//! Votes on permission requests.

use axum::{Json, extract::State};
use ostler_protocol::daemon::{
    failures::DaemonProblem,
    votes::{CastVote, VoteAccepted},
};
use ostler_server::{
    app::App,
    net::{
        Locality,
        api_router::ApiRouter,
        extract::{At, Body, Caller},
        problem::Refusal,
    },
    routes,
};

use super::callers::ClientId;
use crate::service::votes::{self, VoteCaller};

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new().routes(routes!(in_session)).routes(routes!(anywhere))
}

/// Vote on a permission request of a session.
#[utoipa::path(post, path = "/session/{sessionId}/permission/{requestId}", tag = "daemon",
    security(("token" = ["submit"])), params(("sessionId" = String, Path), ("requestId" = String, Path)),
    request_body = CastVote, responses((status = 200, body = VoteAccepted), (status = "4XX", body = DaemonProblem)))]
async fn in_session(
    State(app): State<App>,
    Caller(caller): Caller,
    ClientId(client): ClientId,
    locality: Locality,
    At((session_id, request_id)): At<(String, String)>,
    Body(vote): Body<CastVote>,
) -> Result<Json<VoteAccepted>, Refusal> {
    let vote_caller = VoteCaller { caller: &caller, client: client.as_deref(), locality };
    votes::cast(&app, vote_caller, Some(&session_id), &request_id, &vote).await?;
    Ok(Json(VoteAccepted {}))
}

/// Vote on a permission request, whichever session it belongs to.
#[utoipa::path(post, path = "/permission/{requestId}", tag = "daemon", security(("token" = ["submit"])),
    params(("requestId" = String, Path)), request_body = CastVote,
    responses((status = 200, body = VoteAccepted), (status = "4XX", body = DaemonProblem)))]
async fn anywhere(
    State(app): State<App>,
    Caller(caller): Caller,
    ClientId(client): ClientId,
    locality: Locality,
    At(request_id): At<String>,
    Body(vote): Body<CastVote>,
) -> Result<Json<VoteAccepted>, Refusal> {
    let vote_caller = VoteCaller { caller: &caller, client: client.as_deref(), locality };
    votes::cast(&app, vote_caller, None, &request_id, &vote).await?;
    Ok(Json(VoteAccepted {}))
}
