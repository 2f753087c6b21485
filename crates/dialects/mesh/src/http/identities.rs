//! `/api/v1/identities…`: names of the mesh, for the operator.

use axum::{Json, extract::State};
use http::StatusCode;
use ostler_protocol::{
    failures::Problem,
    mesh::{
        Aid,
        identities::{CreateInvite, Identity, IdentityPage, Invite, IssueCertificate, ListIdentities, RevokeIdentity},
    },
};

use crate::service::identities;
use ostler_server::{
    app::App,
    net::{
        extract::{At, Body, Caller, OptionalBody, Params},
        problem::Refusal,
        responses::created,
    },
};

/// Issue a certificate for a name: its first, or one for another key. The old certificate is then revoked.
#[utoipa::path(post, path = "/api/v1/identities", tag = "mesh", security(("token" = ["operate"])),
    request_body = IssueCertificate,
    responses((status = 201, body = Identity), (status = 200, body = Identity, description = "it was there"),
        (status = "4XX", body = Problem)))]
pub(crate) async fn issue(
    State(app): State<App>,
    Caller(caller): Caller,
    Body(request): Body<IssueCertificate>,
) -> Result<(StatusCode, Json<Identity>), Refusal> {
    Ok(created(identities::issue(&app, &caller, request).await?))
}

/// List names with their newest certificates, the newest first.
#[utoipa::path(get, path = "/api/v1/identities", tag = "mesh", security(("token" = ["operate"])), params(ListIdentities),
    responses((status = 200, body = IdentityPage), (status = "4XX", body = Problem)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    Params(request): Params<ListIdentities>,
) -> Result<Json<IdentityPage>, Refusal> {
    Ok(Json(identities::list(&app, &caller, request).await?))
}

/// Get a name with its newest certificate.
#[utoipa::path(get, path = "/api/v1/identities/{aid}", tag = "mesh", security(("token" = ["operate"])),
    params(("aid" = String, Path)), responses((status = 200, body = Identity), (status = "4XX", body = Problem)))]
pub(crate) async fn get(
    State(app): State<App>,
    Caller(caller): Caller,
    At(aid): At<Aid>,
) -> Result<Json<Identity>, Refusal> {
    Ok(Json(identities::get(&app, &caller, &aid).await?))
}

/// Revoke a name's certificate: its logins end, its connections close, and peers no longer trust it.
#[utoipa::path(post, path = "/api/v1/identities/{aid}/revoke", tag = "mesh", security(("token" = ["operate"])),
    params(("aid" = String, Path)), request_body = Option<RevokeIdentity>,
    responses((status = 200, body = Identity), (status = "4XX", body = Problem)))]
pub(crate) async fn revoke(
    State(app): State<App>,
    Caller(caller): Caller,
    At(aid): At<Aid>,
    OptionalBody(request): OptionalBody<RevokeIdentity>,
) -> Result<Json<Identity>, Refusal> {
    Ok(Json(identities::revoke(&app, &caller, &aid, request).await?))
}

/// Create an invitation to register a name, for servers where registration needs one. Only this response contains it.
#[utoipa::path(post, path = "/api/v1/identities/invites", tag = "mesh", security(("token" = ["operate"])),
    request_body = Option<CreateInvite>, responses((status = 201, body = Invite), (status = "4XX", body = Problem)))]
pub(crate) async fn invite(
    State(app): State<App>,
    Caller(caller): Caller,
    OptionalBody(request): OptionalBody<CreateInvite>,
) -> Result<(StatusCode, Json<Invite>), Refusal> {
    Ok((StatusCode::CREATED, Json(identities::invite(&app, &caller, &request)?)))
}
