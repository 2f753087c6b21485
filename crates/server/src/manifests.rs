//! Manifests that were read lately, and what lies between two of them. A version never changes, so what was read once stays
//! true; only which version is the agent's of now is asked of the store each time.

use std::sync::Arc;

use ostler_protocol::{
    Failure, FailureKind,
    ids::AgentId,
    manifest::{Checked, ManifestDiff, diff::diff},
    relations::standing::{Declared, DeclaredSince},
};
use ostler_store::{self as store, Db};
use quick_cache::sync::Cache;

use crate::app::store_failure;

/// Each is 128 KiB of text at most, and a few times that in memory.
const MANIFESTS_REMEMBERED: usize = 64;
const DIFFS_REMEMBERED: usize = 512;

/// A version of an agent's manifest.
pub struct Version {
    pub version: i64,
    pub checked: Checked,
    since: DeclaredSince,
}

impl Version {
    pub fn declared(&self) -> Declared<'_> {
        let Self { version, checked, since } = self;
        Declared { version: *version, hash: &checked.canonical.hash, manifest: &checked.manifest, since }
    }
}

pub struct Manifests {
    versions: Cache<(AgentId, i64), Arc<Version>>,
    /// From one version to another, as somebody who consented to the first one sees it.
    diffs: Cache<(AgentId, i64, i64), Arc<ManifestDiff>>,
}

impl Default for Manifests {
    fn default() -> Self {
        Self { versions: Cache::new(MANIFESTS_REMEMBERED), diffs: Cache::new(DIFFS_REMEMBERED) }
    }
}

impl Manifests {
    /// The agent's manifest of now.
    pub async fn current(&self, db: &Db, agent_id: AgentId) -> Result<Arc<Version>, Failure> {
        let version = store::manifests::find_current_version(db, agent_id).await.map_err(store_failure)?;
        match version {
            Some(version) => self.get(db, agent_id, version).await,
            None if store::agents::get(db, agent_id).await.map_err(store_failure)?.is_none() => {
                Err(Failure::not_found("agent"))
            }
            None => {
                let message = "this agent has no manifest yet, so there is nothing to grant";
                Err(Failure::rule(FailureKind::StateConflict, "manifest-missing", message))
            }
        }
    }

    pub async fn get(&self, db: &Db, agent_id: AgentId, version: i64) -> Result<Arc<Version>, Failure> {
        if let Some(known) = self.versions.get(&(agent_id, version)) {
            return Ok(known);
        }
        let kept = store::manifests::get(db, agent_id, version).await.map_err(store_failure)?;
        let kept = kept.ok_or_else(|| Failure::internal(format!("{agent_id} has no manifest {version}")))?;
        let since = kept.declared_since;
        let checked = aside(move || Checked::stored(&kept.manifest)).await??;
        let known = Arc::new(Version { version, checked, since });
        self.versions.insert((agent_id, version), known.clone());
        Ok(known)
    }

    /// What has changed for somebody who consented to a version.
    pub async fn changed(
        &self,
        db: &Db,
        agent_id: AgentId,
        consented: i64,
        current: &Arc<Version>,
    ) -> Result<Arc<ManifestDiff>, Failure> {
        if consented == current.version {
            return Ok(Arc::default());
        }
        let key = (agent_id, consented, current.version);
        if let Some(known) = self.diffs.get(&key) {
            return Ok(known);
        }
        let before = self.get(db, agent_id, consented).await?;
        let current = current.clone();
        let compare =
            move || current.declared().changed_since(consented, diff(Some(&before.checked), &current.checked));
        let changed = Arc::new(aside(compare).await?);
        self.diffs.insert(key, changed.clone());
        Ok(changed)
    }
}

/// Does what may take tens of milliseconds where nobody else waits for it.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.map_err(Failure::internal)
}
