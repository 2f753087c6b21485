//! Agents: make, read, find, change, retire, and try a manifest first.

use bytes::Bytes;
use http::Method;
use ostler_protocol::{
    Failure,
    agents::{
        Agent, AgentPage, CreateAgent, CreateAgentToken, CreatedAgentToken, DiffManifest, ListAgents, SavedAgent,
        TriedManifest, UpdateAgent,
    },
};

use crate::{Client, answer, path::Path};

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
        answer::parse(&self.call(Method::DELETE, Path::of(&["agents", id]), Bytes::new()).await?)
    }

    /// What an update with this manifest would do.
    pub async fn diff_manifest(&self, id: &str, asked: &DiffManifest) -> Result<TriedManifest, Failure> {
        self.post(Path::of(&["agents", id, "manifest", "diff"]), asked).await
    }

    /// The answer is the only place where the token is shown.
    pub async fn create_agent_token(&self, id: &str, asked: &CreateAgentToken) -> Result<CreatedAgentToken, Failure> {
        self.post(Path::of(&["agents", id, "tokens"]), asked).await
    }
}
