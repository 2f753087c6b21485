//! `/agents/{agentId}/webhook…`, for the agent's owner.

use axum::{Json, extract::State};
use http::StatusCode;
use ostler_protocol::{
    ids::AgentId,
    trust::{
        failures::TrustProblem,
        webhooks::{Delivery, DeliveryId, DeliveryPage, ListDeliveries, NewWebhook, PutWebhook, Webhook},
    },
};

use crate::service;
use ostler_server::{
    app::App,
    net::{
        extract::{At, Body, Caller, Params},
        problem::Refusal,
    },
};

/// Set an agent's webhook. Only this response contains its secret; setting the webhook again makes a new one.
#[utoipa::path(put, path = "/agents/{agentId}/webhook", tag = "webhooks", security(("token" = ["own"])),
    params(("agentId" = AgentId, Path)), request_body = PutWebhook,
    responses((status = 200, body = NewWebhook), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn put(
    State(app): State<App>,
    Caller(caller): Caller,
    At(agent_id): At<AgentId>,
    Body(request): Body<PutWebhook>,
) -> Result<Json<NewWebhook>, Refusal> {
    Ok(Json(service::webhooks::put(&app, &caller, agent_id, request).await?))
}

/// Get an agent's webhook, without its secret.
#[utoipa::path(get, path = "/agents/{agentId}/webhook", tag = "webhooks", security(("token" = ["own"])),
    params(("agentId" = AgentId, Path)), responses((status = 200, body = Webhook), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn get(
    State(app): State<App>,
    Caller(caller): Caller,
    At(agent_id): At<AgentId>,
) -> Result<Json<Webhook>, Refusal> {
    Ok(Json(service::webhooks::get(&app, &caller, agent_id).await?))
}

/// Delete an agent's webhook. Its pending deliveries become dead.
#[utoipa::path(delete, path = "/agents/{agentId}/webhook", tag = "webhooks", security(("token" = ["own"])),
    params(("agentId" = AgentId, Path)), responses((status = 200, body = Webhook), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn delete(
    State(app): State<App>,
    Caller(caller): Caller,
    At(agent_id): At<AgentId>,
) -> Result<Json<Webhook>, Refusal> {
    Ok(Json(service::webhooks::delete(&app, &caller, agent_id).await?))
}

/// Send a test event (`webhook.test`) to the webhook.
#[utoipa::path(post, path = "/agents/{agentId}/webhook/test", tag = "webhooks", security(("token" = ["own"])),
    params(("agentId" = AgentId, Path)), responses((status = 202, body = Delivery), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn test(
    State(app): State<App>,
    Caller(caller): Caller,
    At(agent_id): At<AgentId>,
) -> Result<(StatusCode, Json<Delivery>), Refusal> {
    Ok((StatusCode::ACCEPTED, Json(service::webhooks::test(&app, &caller, agent_id).await?)))
}

/// List the deliveries to an agent's webhook, newest first.
#[utoipa::path(get, path = "/agents/{agentId}/webhook/deliveries", tag = "webhooks",
    security(("token" = ["own"])), params(("agentId" = AgentId, Path), ListDeliveries),
    responses((status = 200, body = DeliveryPage), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn list_deliveries(
    State(app): State<App>,
    Caller(caller): Caller,
    At(agent_id): At<AgentId>,
    Params(request): Params<ListDeliveries>,
) -> Result<Json<DeliveryPage>, Refusal> {
    Ok(Json(service::webhooks::list_deliveries(&app, &caller, agent_id, request).await?))
}

/// Get one delivery.
#[utoipa::path(get, path = "/agents/{agentId}/webhook/deliveries/{deliveryId}", tag = "webhooks",
    security(("token" = ["own"])), params(("agentId" = AgentId, Path), ("deliveryId" = DeliveryId, Path)),
    responses((status = 200, body = Delivery), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn get_delivery(
    State(app): State<App>,
    Caller(caller): Caller,
    At((agent_id, delivery_id)): At<(AgentId, DeliveryId)>,
) -> Result<Json<Delivery>, Refusal> {
    Ok(Json(service::webhooks::get_delivery(&app, &caller, agent_id, delivery_id).await?))
}

/// Send a dead delivery again, under the same id.
#[utoipa::path(post, path = "/agents/{agentId}/webhook/deliveries/{deliveryId}/replay", tag = "webhooks",
    security(("token" = ["own"])), params(("agentId" = AgentId, Path), ("deliveryId" = DeliveryId, Path)),
    responses((status = 202, body = Delivery), (status = "4XX", body = TrustProblem)))]
pub(crate) async fn replay(
    State(app): State<App>,
    Caller(caller): Caller,
    At((agent_id, delivery_id)): At<(AgentId, DeliveryId)>,
) -> Result<(StatusCode, Json<Delivery>), Refusal> {
    Ok((StatusCode::ACCEPTED, Json(service::webhooks::replay(&app, &caller, agent_id, delivery_id).await?)))
}
