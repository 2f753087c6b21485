//! Webhooks, for the owners of agents: set, get, delete, test, and manage their deliveries.

use bytes::Bytes;
use http::Method;
use ostler_protocol::{
    Failure,
    ids::AgentId,
    trust::webhooks::{Delivery, DeliveryId, DeliveryPage, ListDeliveries, NewWebhook, PutWebhook, Webhook},
};

use crate::{
    client::{Client, json},
    path::Path,
    response,
};

fn webhook_path(agent_id: AgentId, rest: &[&str]) -> Path {
    Path::of(&[&["agents", &*agent_id.to_string(), "webhook"], rest].concat())
}

impl Client {
    /// Sets the agent's webhook. The secret in the response is not displayed again.
    pub async fn put_webhook(&self, agent_id: AgentId, webhook: &PutWebhook) -> Result<NewWebhook, Failure> {
        response::parse(&self.call(Method::PUT, webhook_path(agent_id, &[]), json(webhook)?).await?)
    }

    pub async fn get_webhook(&self, agent_id: AgentId) -> Result<Webhook, Failure> {
        self.get(webhook_path(agent_id, &[])).await
    }

    pub async fn delete_webhook(&self, agent_id: AgentId) -> Result<Webhook, Failure> {
        response::parse(&self.call(Method::DELETE, webhook_path(agent_id, &[]), Bytes::new()).await?)
    }

    /// Sends a test delivery to the webhook.
    pub async fn test_webhook(&self, agent_id: AgentId) -> Result<Delivery, Failure> {
        response::parse(&self.call(Method::POST, webhook_path(agent_id, &["test"]), Bytes::new()).await?)
    }

    pub async fn list_deliveries(&self, agent_id: AgentId, query: &ListDeliveries) -> Result<DeliveryPage, Failure> {
        self.get(webhook_path(agent_id, &["deliveries"]).query(query)?).await
    }

    pub async fn get_delivery(&self, agent_id: AgentId, delivery_id: DeliveryId) -> Result<Delivery, Failure> {
        self.get(webhook_path(agent_id, &["deliveries", &delivery_id.to_string()])).await
    }

    /// Retries a dead delivery.
    pub async fn replay_delivery(&self, agent_id: AgentId, delivery_id: DeliveryId) -> Result<Delivery, Failure> {
        let path = webhook_path(agent_id, &["deliveries", &delivery_id.to_string(), "replay"]);
        response::parse(&self.call(Method::POST, path, Bytes::new()).await?)
    }
}
