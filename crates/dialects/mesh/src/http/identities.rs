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
        responses::created_status,
    },
};

/// Give a name a certificate: its first, or one for another key. The old one is revoked then.
#[utoipa::path(post, path = "/api/v1/identities", tag = "mesh", security(("token" = ["operate"])),
    request_body = IssueCertificate,
    responses((status = 201, body = Identity), (status = 200, body = Identity, description = "it was there"),
        (status = "4XX", body = Problem)))]
pub async fn issue(
    State(app): State<App>,
    Caller(caller): Caller,
    Body(asked): Body<IssueCertificate>,
) -> Result<(StatusCode, Json<Identity>), Refusal> {
    let (identity, created) = identities::issue(&app, &caller, asked).await?;
    Ok((created_status(created), Json(identity)))
}

/// List names with their newest certificates, the newest first.
#[utoipa::path(get, path = "/api/v1/identities", tag = "mesh", security(("token" = ["operate"])), params(ListIdentities),
    responses((status = 200, body = IdentityPage), (status = "4XX", body = Problem)))]
pub async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    Params(asked): Params<ListIdentities>,
) -> Result<Json<IdentityPage>, Refusal> {
    Ok(Json(identities::list(&app, &caller, asked).await?))
}

/// A name with its newest certificate.
#[utoipa::path(get, path = "/api/v1/identities/{aid}", tag = "mesh", security(("token" = ["operate"])),
    params(("aid" = String, Path)), responses((status = 200, body = Identity), (status = "4XX", body = Problem)))]
pub async fn get(State(app): State<App>, Caller(caller): Caller, At(aid): At<Aid>) -> Result<Json<Identity>, Refusal> {
    Ok(Json(identities::get(&app, &caller, &aid).await?))
}

/// Revoke a name's certificate: its logins end, its connections close, and nobody believes it any more.
#[utoipa::path(post, path = "/api/v1/identities/{aid}/revoke", tag = "mesh", security(("token" = ["operate"])),
    params(("aid" = String, Path)), request_body = Option<RevokeIdentity>,
    responses((status = 200, body = Identity), (status = "4XX", body = Problem)))]
pub async fn revoke(
    State(app): State<App>,
    Caller(caller): Caller,
    At(aid): At<Aid>,
    OptionalBody(asked): OptionalBody<RevokeIdentity>,
) -> Result<Json<Identity>, Refusal> {
    Ok(Json(identities::revoke(&app, &caller, &aid, asked).await?))
}

/// Invite somebody to register a name, where names are given by invitation. The answer is the only place that shows it.
#[utoipa::path(post, path = "/api/v1/identities/invites", tag = "mesh", security(("token" = ["operate"])),
    request_body = Option<CreateInvite>, responses((status = 201, body = Invite), (status = "4XX", body = Problem)))]
pub async fn invite(
    State(app): State<App>,
    Caller(caller): Caller,
    OptionalBody(asked): OptionalBody<CreateInvite>,
) -> Result<(StatusCode, Json<Invite>), Refusal> {
    Ok((StatusCode::CREATED, Json(identities::invite(&app, &caller, &asked)?)))
}
