//! `/api/v1/users…`, for the operator, and the public keys of users' tokens.

use axum::{Json, extract::State};
use http::StatusCode;
use ostler_protocol::{
    failures::Problem,
    users::{CreateUser, CreateUserToken, KeySet, ListUsers, UpdateUser, User, UserPage, UserToken},
};

use ostler_server::{
    app::App,
    net::{
        extract::{At, Body, Caller, OptionalBody, Params},
        problem::Refusal,
        responses::created,
    },
    service,
};

/// Create a user: one of this server, or one of an identity issuer in the configuration.
#[utoipa::path(post, path = "/api/v1/users", tag = "callers", security(("token" = ["operate"])), request_body = CreateUser,
    responses((status = 201, body = User), (status = 200, body = User, description = "it was there"),
        (status = "4XX", body = Problem)))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(caller): Caller,
    Body(request): Body<CreateUser>,
) -> Result<(StatusCode, Json<User>), Refusal> {
    Ok(created(service::users::create(&app, &caller, request).await?))
}

/// List users, newest first.
#[utoipa::path(get, path = "/api/v1/users", tag = "callers", security(("token" = ["operate"])), params(ListUsers),
    responses((status = 200, body = UserPage), (status = "4XX", body = Problem)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    Params(request): Params<ListUsers>,
) -> Result<Json<UserPage>, Refusal> {
    Ok(Json(service::users::list(&app, &caller, request).await?))
}

/// Change a user's time zone.
#[utoipa::path(patch, path = "/api/v1/users/{userName}", tag = "callers", security(("token" = ["operate"])),
    params(("userName" = String, Path)), request_body = UpdateUser,
    responses((status = 200, body = User), (status = "4XX", body = Problem)))]
pub(crate) async fn update(
    State(app): State<App>,
    Caller(caller): Caller,
    At(name): At<String>,
    Body(request): Body<UpdateUser>,
) -> Result<Json<User>, Refusal> {
    Ok(Json(service::users::update(&app, &caller, &name, request).await?))
}

/// Remove a user. Their tokens stop working: here at once, on other servers of the same store within five seconds.
#[utoipa::path(delete, path = "/api/v1/users/{userName}", tag = "callers", security(("token" = ["operate"])),
    params(("userName" = String, Path)), responses((status = 200, body = User), (status = "4XX", body = Problem)))]
pub(crate) async fn remove(
    State(app): State<App>,
    Caller(caller): Caller,
    At(name): At<String>,
) -> Result<Json<User>, Refusal> {
    Ok(Json(service::users::remove(&app, &caller, &name).await?))
}

/// Create a token for a user of this server: a JWT, signed with the server's key and not stored.
#[utoipa::path(post, path = "/api/v1/users/{userName}/token", tag = "callers", security(("token" = ["operate"])),
    params(("userName" = String, Path)), request_body = Option<CreateUserToken>,
    responses((status = 201, body = UserToken), (status = "4XX", body = Problem)))]
pub(crate) async fn create_token(
    State(app): State<App>,
    Caller(caller): Caller,
    At(name): At<String>,
    OptionalBody(request): OptionalBody<CreateUserToken>,
) -> Result<(StatusCode, Json<UserToken>), Refusal> {
    Ok((StatusCode::CREATED, Json(service::users::create_token(&app, &caller, &name, request).await?)))
}

/// The public keys for the signatures of this server's user tokens.
#[utoipa::path(get, path = "/.well-known/jwks.json", tag = "callers", security(()),
    responses((status = 200, body = KeySet), (status = "4XX", body = Problem)))]
pub(crate) async fn key_set(State(app): State<App>) -> Result<Json<KeySet>, Refusal> {
    Ok(Json(service::users::key_set(&app).await?))
}
