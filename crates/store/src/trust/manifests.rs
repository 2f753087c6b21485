//! Manifests of agents, each version as it was submitted. None is ever changed.

use ostler_protocol::{Timestamp, ids::AgentId, trust::relations::standing::DeclaredSince};

use crate::{
    db::Db,
    error::StoreError,
    record::{self, Statement, record, text},
};

/// A version of an agent's manifest.
#[derive(Clone, Debug)]
pub struct StoredManifest {
    pub agent_id: AgentId,
    pub version: i64,
    pub hash: String,
    /// Canonical JSON.
    pub manifest: String,
    pub declared_since: DeclaredSince,
    pub created_at: Timestamp,
}

record! {
    StoredManifest, manifest in "manifests";
    key {
        agent_id: id;
        version: int;
    }
    fixed {
        hash: text;
        manifest: text;
        declared_since: json;
        created_at: time;
    }
    state {}
}

/// Written together with the agent that it is the manifest of.
pub(crate) fn inserted(manifest: &StoredManifest) -> Statement {
    record::insert(manifest, vec![], "")
}

pub async fn get(db: &Db, agent_id: AgentId, version: i64) -> Result<Option<StoredManifest>, StoreError> {
    Ok(db.select("WHERE agent_id = $1 AND version = $2", vec![text(agent_id), version.into()]).await?.pop())
}

/// The scopes that the agent's current manifest declares. `None` if the agent is unknown or has no manifest.
pub async fn find_declared(db: &Db, agent_id: AgentId) -> Result<Option<DeclaredSince>, StoreError> {
    let sql = "SELECT declared_since FROM manifests WHERE agent_id = $1 ORDER BY version DESC LIMIT 1";
    db.read_one(sql, vec![text(agent_id)], |row| row.json()).await
}

/// The number of the agent's current manifest. `None` if the agent is unknown or has no manifest.
pub async fn find_current_version(db: &Db, agent_id: AgentId) -> Result<Option<i64>, StoreError> {
    let sql = "SELECT version FROM manifests WHERE agent_id = $1 ORDER BY version DESC LIMIT 1";
    db.read_one(sql, vec![text(agent_id)], |row| row.int()).await
}
