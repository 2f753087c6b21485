//! `/agents…`.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use ostler_protocol::{
    ids::{AgentId, TokenId},
    trust::{
        agents::{
            Agent, AgentPage, AgentToken, AgentTokens, CreateAgent, CreateAgentToken, CreatedAgentToken, DiffManifest,
            ListAgents, SavedAgent, TriedManifest, UpdateAgent,
        },
        failures::TrustProblem,
    },
};

use crate::service;
use ostler_server::{
    app::App,
    net::{
        extract::{At, Body, Caller, MaybeCaller, Params},
        problem::Refusal,
    },
};

/// Create an agent, with or without a manifest. The caller owns it.
#[utoipa::path(post, path = "/agents", tag = "agents", security(("token" = ["own"])), request_body = CreateAgent,
    responses((status = 201, body = SavedAgent), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(caller): Caller,
    Body(request): Body<CreateAgent>,
) -> Result<(StatusCode, Json<SavedAgent>), Refusal> {
    Ok((StatusCode::CREATED, Json(service::agents::create(&app, &caller, request).await?)))
}

/// List agents, newest first, without their manifests; with `name`, those whose name contains it.
#[utoipa::path(get, path = "/agents", tag = "agents", security(()), params(ListAgents),
    responses((status = 200, body = AgentPage), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn list(
    State(app): State<App>,
    MaybeCaller(caller): MaybeCaller,
    Params(request): Params<ListAgents>,
) -> Result<Json<AgentPage>, Refusal> {
    Ok(Json(service::agents::list(&app, caller.as_ref(), request).await?))
}

/// Get an agent with its manifest. The entity tag is the manifest's hash, because no other public field of an agent ever
/// changes: send it in `If-None-Match`, and the response has no body if the manifest is the same.
#[utoipa::path(get, path = "/agents/{agentId}", tag = "agents", security(()), params(("agentId" = AgentId, Path)),
    responses((status = 200, body = Agent), (status = 304, description = "the manifest is the one that was named"),
        (status = "4XX", body = TrustProblem)))]
pub(crate) async fn get(
    State(app): State<App>,
    MaybeCaller(caller): MaybeCaller,
    At(id): At<AgentId>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let agent = service::agents::show(&app, caller.as_ref(), id).await?;
    let Some(tag) = agent.capability_manifest_hash.as_ref().map(|hash| format!("\"{hash}\"")) else {
        return Ok(Json(agent).into_response());
    };
    let cached = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let is_cached = cached.flat_map(|tags| tags.split(',')).any(|cached| {
        let cached = cached.trim();
        cached == "*" || cached.strip_prefix("W/").unwrap_or(cached) == tag
    });
    let mut response = if is_cached { StatusCode::NOT_MODIFIED.into_response() } else { Json(agent).into_response() };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("authorization"));
    Ok(response)
}

/// Change an agent's backend profile or manifest, as its owner. Its name cannot change.
#[utoipa::path(patch, path = "/agents/{agentId}", tag = "agents", security(("token" = ["own"])),
    params(("agentId" = AgentId, Path)), request_body = UpdateAgent,
    responses((status = 200, body = SavedAgent), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn update(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<AgentId>,
    Body(request): Body<UpdateAgent>,
) -> Result<Json<SavedAgent>, Refusal> {
    Ok(Json(service::agents::update(&app, &caller, id, request).await?))
}

/// Retire an agent permanently: its tokens and its webhook are deleted, and every relation with it ends. Later requests for it
/// are rejected with 410.
#[utoipa::path(delete, path = "/agents/{agentId}", tag = "agents", security(("token" = ["own"])),
    params(("agentId" = AgentId, Path)), responses((status = 200, body = Agent), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn retire(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<AgentId>,
) -> Result<Json<Agent>, Refusal> {
    Ok(Json(service::agents::retire(&app, &caller, id).await?))
}

/// Compare a manifest with the current one, without publishing it.
#[utoipa::path(post, path = "/agents/{agentId}/manifest/diff", tag = "agents", security(("token" = ["own"])),
    params(("agentId" = AgentId, Path)), request_body = DiffManifest,
    responses((status = 200, body = TriedManifest), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn diff(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<AgentId>,
    Body(request): Body<DiffManifest>,
) -> Result<Json<TriedManifest>, Refusal> {
    Ok(Json(service::agents::try_manifest(&app, &caller, id, request).await?))
}

/// Create a token of the agent. Only this response contains it.
#[utoipa::path(post, path = "/agents/{agentId}/tokens", tag = "agents", security(("token" = ["own"])),
    params(("agentId" = AgentId, Path)), request_body = CreateAgentToken,
    responses((status = 201, body = CreatedAgentToken), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn create_token(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<AgentId>,
    Body(request): Body<CreateAgentToken>,
) -> Result<(StatusCode, Json<CreatedAgentToken>), Refusal> {
    Ok((StatusCode::CREATED, Json(service::agents::create_token(&app, &caller, id, request).await?)))
}

/// List the agent's tokens, newest first, without the tokens themselves.
#[utoipa::path(get, path = "/agents/{agentId}/tokens", tag = "agents", security(("token" = ["own"])),
    params(("agentId" = AgentId, Path)),
    responses((status = 200, body = AgentTokens), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn list_tokens(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<AgentId>,
) -> Result<Json<AgentTokens>, Refusal> {
    Ok(Json(service::agents::list_tokens(&app, &caller, id).await?))
}

/// Revoke a token of the agent. On this server it stops working at once, on others of the same store within five seconds.
#[utoipa::path(delete, path = "/agents/{agentId}/tokens/{agentTokenId}", tag = "agents", security(("token" = ["own"])),
    params(("agentId" = AgentId, Path), ("agentTokenId" = TokenId, Path)),
    responses((status = 200, body = AgentToken), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn revoke_token(
    State(app): State<App>,
    Caller(caller): Caller,
    At((id, token_id)): At<(AgentId, TokenId)>,
) -> Result<Json<AgentToken>, Refusal> {
    Ok(Json(service::agents::revoke_token(&app, &caller, id, token_id).await?))
}
