//! `/workspace/agents`: subagents, in files of the workspace and of the agent's home.

use axum::{Json, extract::State, http::StatusCode};
use ostler_protocol::daemon::{
    agents::{AgentBody, AgentChanged, AgentDetail, AgentList, AgentScope, GenerateAgent, GeneratedAgent},
    failures::DaemonProblem,
};
use ostler_server::{
    app::App,
    net::{
        api_router::ApiRouter,
        extract::{At, Body, Caller, Params},
        problem::Refusal,
    },
    routes,
};

use crate::{
    http::callers::{ClientId, Strict},
    service,
};

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new().routes(routes!(list, create)).routes(routes!(generate)).routes(routes!(get, update, delete))
}

/// List the subagents: built-in ones, those of the workspace, and those of the agent's home.
#[utoipa::path(get, path = "/workspace/agents", tag = "daemon", security(("token" = ["browse"])),
    responses((status = 200, body = AgentList), (status = "4XX", body = DaemonProblem)))]
async fn list(State(app): State<App>, Caller(caller): Caller) -> Result<Json<AgentList>, Refusal> {
    Ok(Json(service::agents::list(&app, &caller).await?))
}

/// Create a subagent.
#[utoipa::path(post, path = "/workspace/agents", tag = "daemon", security(("token" = ["provide"])),
    request_body = AgentBody,
    responses((status = 201, body = AgentChanged), (status = "4XX", body = DaemonProblem)))]
async fn create(
    State(app): State<App>,
    Strict(caller): Strict,
    ClientId(client): ClientId,
    Body(request): Body<AgentBody>,
) -> Result<(StatusCode, Json<AgentChanged>), Refusal> {
    Ok((StatusCode::CREATED, Json(service::agents::create(&app, &caller, client, request).await?)))
}

/// Let the agent's model write the definition of a subagent. It is not stored.
#[utoipa::path(post, path = "/workspace/agents/generate", tag = "daemon", security(("token" = ["submit"])),
    request_body = GenerateAgent,
    responses((status = 200, body = GeneratedAgent), (status = "4XX", body = DaemonProblem)))]
async fn generate(
    State(app): State<App>,
    Strict(caller): Strict,
    ClientId(client): ClientId,
    Body(request): Body<GenerateAgent>,
) -> Result<Json<GeneratedAgent>, Refusal> {
    Ok(Json(service::agents::generate(&app, &caller, client.as_deref(), &request).await?))
}

/// One subagent, with its system prompt.
#[utoipa::path(get, path = "/workspace/agents/{agentType}", tag = "daemon", security(("token" = ["browse"])),
    params(("agentType" = String, Path), AgentScope),
    responses((status = 200, body = AgentDetail), (status = "4XX", body = DaemonProblem)))]
async fn get(
    State(app): State<App>,
    Caller(caller): Caller,
    At(agent_type): At<String>,
    Params(scope): Params<AgentScope>,
) -> Result<Json<AgentDetail>, Refusal> {
    Ok(Json(service::agents::get(&app, &caller, &agent_type, &scope).await?))
}

/// Change a subagent. What the body does not name stays as it is.
#[utoipa::path(post, path = "/workspace/agents/{agentType}", tag = "daemon", security(("token" = ["provide"])),
    params(("agentType" = String, Path), AgentScope), request_body = AgentBody,
    responses((status = 200, body = AgentChanged), (status = "4XX", body = DaemonProblem)))]
async fn update(
    State(app): State<App>,
    Strict(caller): Strict,
    ClientId(client): ClientId,
    At(agent_type): At<String>,
    Params(scope): Params<AgentScope>,
    Body(request): Body<AgentBody>,
) -> Result<Json<AgentChanged>, Refusal> {
    Ok(Json(service::agents::update(&app, &caller, client, (&agent_type, &scope), request).await?))
}

/// Delete a subagent: at one level, or wherever it is defined.
#[utoipa::path(delete, path = "/workspace/agents/{agentType}", tag = "daemon", security(("token" = ["provide"])),
    params(("agentType" = String, Path), AgentScope),
    responses((status = 204), (status = "4XX", body = DaemonProblem)))]
async fn delete(
    State(app): State<App>,
    Strict(caller): Strict,
    ClientId(client): ClientId,
    At(agent_type): At<String>,
    Params(scope): Params<AgentScope>,
) -> Result<StatusCode, Refusal> {
    service::agents::delete(&app, &caller, client, &agent_type, &scope).await?;
    Ok(StatusCode::NO_CONTENT)
}
