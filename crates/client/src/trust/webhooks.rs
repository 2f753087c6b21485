//! Webhooks, for the owners of agents: set, show, remove, and look after what was told to them.

use bytes::Bytes;
use http::Method;
use ostler_protocol::{
    Failure,
    ids::AgentId,
    webhooks::{Delivery, DeliveryId, DeliveryPage, ListDeliveries, NewWebhook, PutWebhook, Webhook},
};

use crate::{Client, answer, json, path::Path};

fn webhook(agent_id: AgentId, rest: &[&str]) -> Path {
    Path::of(&[&["agents", &*agent_id.to_string(), "webhook"], rest].concat())
}

impl Client {
    /// Sets the agent's webhook. The secret in the answer is not shown again.
    pub async fn put_webhook(&self, agent_id: AgentId, asked: &PutWebhook) -> Result<NewWebhook, Failure> {
        answer::parse(&self.call(Method::PUT, webhook(agent_id, &[]), json(asked)?).await?)
    }

    pub async fn get_webhook(&self, agent_id: AgentId) -> Result<Webhook, Failure> {
        self.get(webhook(agent_id, &[])).await
    }

    pub async fn delete_webhook(&self, agent_id: AgentId) -> Result<Webhook, Failure> {
        answer::parse(&self.call(Method::DELETE, webhook(agent_id, &[]), Bytes::new()).await?)
    }

    /// Has the webhook told something that means nothing.
    pub async fn test_webhook(&self, agent_id: AgentId) -> Result<Delivery, Failure> {
        answer::parse(&self.call(Method::POST, webhook(agent_id, &["test"]), Bytes::new()).await?)
    }

    pub async fn list_deliveries(&self, agent_id: AgentId, query: &ListDeliveries) -> Result<DeliveryPage, Failure> {
        self.get(webhook(agent_id, &["deliveries"]).query(query)?).await
    }

    pub async fn get_delivery(&self, agent_id: AgentId, delivery_id: DeliveryId) -> Result<Delivery, Failure> {
        self.get(webhook(agent_id, &["deliveries", &delivery_id.to_string()])).await
    }

    /// Begins again with a dead delivery.
    pub async fn replay_delivery(&self, agent_id: AgentId, delivery_id: DeliveryId) -> Result<Delivery, Failure> {
        let path = webhook(agent_id, &["deliveries", &delivery_id.to_string(), "replay"]);
        answer::parse(&self.call(Method::POST, path, Bytes::new()).await?)
    }
}
