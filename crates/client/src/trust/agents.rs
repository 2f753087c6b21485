//! Agents: create, get, list, update, retire, and compare a manifest before an update.

use bytes::Bytes;
use http::Method;
use ostler_protocol::{
    Failure,
    trust::agents::{
        Agent, AgentPage, CreateAgent, CreateAgentToken, CreatedAgentToken, DiffManifest, ListAgents, SavedAgent,
        TriedManifest, UpdateAgent,
    },
};

use crate::{client::Client, path::Path, response};

impl Client {
    pub async fn create_agent(&self, agent: &CreateAgent) -> Result<SavedAgent, Failure> {
        self.post(Path::of(&["agents"]), agent).await
    }

    pub async fn get_agent(&self, id: &str) -> Result<Agent, Failure> {
        self.get(Path::of(&["agents", id])).await
    }

    pub async fn list_agents(&self, query: &ListAgents) -> Result<AgentPage, Failure> {
        self.get(Path::of(&["agents"]).query(query)?).await
    }

    pub async fn update_agent(&self, id: &str, change: &UpdateAgent) -> Result<SavedAgent, Failure> {
        self.patch(Path::of(&["agents", id]), change).await
    }

    pub async fn retire_agent(&self, id: &str) -> Result<Agent, Failure> {
        response::parse(&self.call(Method::DELETE, Path::of(&["agents", id]), Bytes::new()).await?)
    }

    /// The effect that an update with this manifest would have.
    pub async fn diff_manifest(&self, id: &str, manifest: &DiffManifest) -> Result<TriedManifest, Failure> {
        self.post(Path::of(&["agents", id, "manifest", "diff"]), manifest).await
    }

    /// The response contains the token, which is not displayed again.
    pub async fn create_agent_token(&self, id: &str, token: &CreateAgentToken) -> Result<CreatedAgentToken, Failure> {
        self.post(Path::of(&["agents", id, "tokens"]), token).await
    }
}
