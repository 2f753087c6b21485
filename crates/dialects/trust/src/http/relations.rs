//! `/h2a/relations…`: what people grant agents, each for themselves.

use axum::{Json, extract::State};
use http::StatusCode;
use ostler_protocol::{
    ids::RelationId,
    trust::{
        failures::TrustProblem,
        relations::{
            Answers, CreateRelation, ListRelations, PendingConsents, RelationChanges, RelationPage, RelationView,
            UseScope,
        },
    },
};

use crate::service;
use ostler_server::{
    app::App,
    net::{
        extract::{At, Body, Caller, Params},
        problem::Refusal,
        responses::created,
    },
};

/// Establish a relation: grant an agent some of the scopes it declares, or none yet.
#[utoipa::path(post, path = "/h2a/relations", tag = "relations", security(("token" = ["own"])),
    request_body = CreateRelation, responses((status = 201, body = RelationView),
        (status = 200, body = RelationView, description = "it was there"), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(caller): Caller,
    Body(request): Body<CreateRelation>,
) -> Result<(StatusCode, Json<RelationView>), Refusal> {
    Ok(created(service::relations::create(&app, &caller, request).await?))
}

/// List the caller's relations, newest first, with their state under the agents' current manifests.
#[utoipa::path(get, path = "/h2a/relations", tag = "relations", security(("token" = ["own"])),
    params(ListRelations), responses((status = 200, body = RelationPage), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    Params(request): Params<ListRelations>,
) -> Result<Json<RelationPage>, Refusal> {
    Ok(Json(service::relations::list(&app, &caller, request).await?))
}

/// List pending consents: an event for each agent whose manifest has changed so that the caller must consent again.
#[utoipa::path(get, path = "/h2a/pending", tag = "relations", security(("token" = ["own"])),
    responses((status = 200, body = PendingConsents), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn pending(State(app): State<App>, Caller(caller): Caller) -> Result<Json<PendingConsents>, Refusal> {
    let pending = service::relations::pending(&app, &caller.owner()?).await?;
    Ok(Json(PendingConsents { pending }))
}

/// Get a relation.
#[utoipa::path(get, path = "/h2a/relations/{relationId}", tag = "relations", security(("token" = ["own"])),
    params(("relationId" = RelationId, Path)),
    responses((status = 200, body = RelationView), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn get(
    State(app): State<App>,
    Caller(caller): Caller,
    At(relation_id): At<RelationId>,
) -> Result<Json<RelationView>, Refusal> {
    Ok(Json(service::relations::get(&app, &caller, relation_id).await?))
}

/// Decide on the agent's current manifest, whose hash the request must contain, or revoke grants, which needs no hash.
#[utoipa::path(patch, path = "/h2a/relations/{relationId}", tag = "relations", security(("token" = ["own"])),
    params(("relationId" = RelationId, Path)), request_body = Answers,
    responses((status = 200, body = RelationView), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn update(
    State(app): State<App>,
    Caller(caller): Caller,
    At(relation_id): At<RelationId>,
    Body(request): Body<Answers>,
) -> Result<Json<RelationView>, Refusal> {
    Ok(Json(service::relations::update(&app, &caller, relation_id, request).await?))
}

/// End a relation and everything granted in it.
#[utoipa::path(delete, path = "/h2a/relations/{relationId}", tag = "relations", security(("token" = ["own"])),
    params(("relationId" = RelationId, Path)),
    responses((status = 200, body = RelationView), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn revoke(
    State(app): State<App>,
    Caller(caller): Caller,
    At(relation_id): At<RelationId>,
) -> Result<Json<RelationView>, Refusal> {
    Ok(Json(service::relations::revoke(&app, &caller, relation_id).await?))
}

/// List what has changed since the caller last consented.
#[utoipa::path(get, path = "/h2a/relations/{relationId}/changes", tag = "relations", security(("token" = ["own"])),
    params(("relationId" = RelationId, Path)),
    responses((status = 200, body = RelationChanges), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn changes(
    State(app): State<App>,
    Caller(caller): Caller,
    At(relation_id): At<RelationId>,
) -> Result<Json<RelationChanges>, Refusal> {
    Ok(Json(service::relations::changes(&app, &caller, relation_id).await?))
}

/// Record a call under a grant. A grant for a single call is spent by it.
#[utoipa::path(post, path = "/h2a/relations/{relationId}/uses", tag = "relations", security(("token" = ["own"])),
    params(("relationId" = RelationId, Path)), request_body = UseScope,
    responses((status = 200, body = RelationView), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn use_scope(
    State(app): State<App>,
    Caller(caller): Caller,
    At(relation_id): At<RelationId>,
    Body(request): Body<UseScope>,
) -> Result<Json<RelationView>, Refusal> {
    Ok(Json(service::relations::use_scope(&app, &caller, relation_id, request).await?))
}
