//! `/api/v1/tokens…`: service tokens, for the operator.

use axum::{Json, extract::State};
use http::{HeaderMap, StatusCode};
use ostler_protocol::{
    failures::Problem,
    ids::TokenId,
    tokens::{CreateToken, CreatedToken, ListTokens, ServiceToken, TokenPage},
};

use ostler_server::{
    app::App,
    net::{
        extract::{At, Body, Caller, Params, idempotency_key},
        problem::Refusal,
    },
    service,
};

/// Create a service token. Only this response contains it.
#[utoipa::path(post, path = "/api/v1/tokens", tag = "callers",
    security(("token" = ["operate"])), request_body = CreateToken,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same as `idempotencyKey` in the body")),
    responses((status = 201, body = CreatedToken), (status = "4XX", body = Problem)))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(caller): Caller,
    headers: HeaderMap,
    Body(mut request): Body<CreateToken>,
) -> Result<(StatusCode, Json<CreatedToken>), Refusal> {
    request.idempotency_key = idempotency_key(&headers, request.idempotency_key)?;
    Ok((StatusCode::CREATED, Json(service::tokens::create(&app, &caller, request).await?)))
}

/// List service tokens, newest first, without the tokens themselves.
#[utoipa::path(get, path = "/api/v1/tokens", tag = "callers", security(("token" = ["operate"])), params(ListTokens),
    responses((status = 200, body = TokenPage), (status = "4XX", body = Problem)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    Params(request): Params<ListTokens>,
) -> Result<Json<TokenPage>, Refusal> {
    Ok(Json(service::tokens::list(&app, &caller, request).await?))
}

/// Revoke a service token. On this server it stops working at once, on others of the same store within five seconds.
#[utoipa::path(delete, path = "/api/v1/tokens/{tokenId}", tag = "callers", security(("token" = ["operate"])),
    params(("tokenId" = TokenId, Path)),
    responses((status = 200, body = ServiceToken), (status = "4XX", body = Problem)))]
pub(crate) async fn revoke(
    State(app): State<App>,
    Caller(caller): Caller,
    At(token_id): At<TokenId>,
) -> Result<Json<ServiceToken>, Refusal> {
    Ok(Json(service::tokens::revoke(&app, &caller, token_id).await?))
}
