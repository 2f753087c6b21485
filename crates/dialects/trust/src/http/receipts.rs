//! The consent ledger on the wire: pages of one relation's receipts, and a person's whole chain as JSON lines.

use axum::{
    Json,
    body::{Body as AxumBody, Bytes},
    extract::State,
    response::{IntoResponse, Response},
};
use futures_util::{StreamExt, stream};
use http::header;
use ostler_protocol::{
    ids::RelationId,
    trust::{
        failures::TrustProblem,
        receipts::{ListReceipts, ReceiptPage},
    },
};

use crate::service;
use ostler_server::{
    app::App,
    net::{
        extract::{At, Caller, Params},
        problem::Refusal,
    },
};

/// Read the receipts of a relation, by number.
#[utoipa::path(get, path = "/h2a/relations/{relationId}/receipts", tag = "relations",
    security(("token" = ["own"])), params(("relationId" = RelationId, Path), ListReceipts),
    responses((status = 200, body = ReceiptPage), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    At(relation_id): At<RelationId>,
    Params(request): Params<ListReceipts>,
) -> Result<Json<ReceiptPage>, Refusal> {
    Ok(Json(service::receipts::list(&app, &caller, relation_id, request).await?))
}

/// Export the caller's whole consent ledger, a receipt per line. It can be verified without this server.
#[utoipa::path(get, path = "/h2a/receipts", tag = "relations", security(("token" = ["own"])),
    responses((status = 200, body = String, content_type = "application/jsonl"), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn ledger(State(app): State<App>, Caller(caller): Caller) -> Result<Response, Refusal> {
    let user_id = caller.owner()?;
    let first = service::receipts::lines(&app, &user_id, 0).await?;
    let rest = stream::try_unfold((app, user_id, first), |(app, user_id, next)| async move {
        let Some((last, text)) = next else { return Ok::<_, ostler_protocol::Failure>(None) };
        let next = service::receipts::lines(&app, &user_id, last).await?;
        Ok(Some((Bytes::from(text), (app, user_id, next))))
    });
    let body = AxumBody::from_stream(rest.boxed());
    Ok(([(header::CONTENT_TYPE, "application/jsonl")], body).into_response())
}
