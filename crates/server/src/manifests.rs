//! Manifests that were read lately, and what lies between two of them. A version never changes, so what was read once stays
//! true; only which version is the agent's of now is asked of the store each time.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
};

use ostler_protocol::{
    Failure, FailureKind,
    ids::AgentId,
    manifest::{Canonical, Checked, ManifestDiff, diff::diff},
    relations::standing::{Declared, DeclaredSince},
};
use ostler_store::{self as store, Db};
use quick_cache::{Weighter, sync::Cache};
use tokio::sync::OwnedMutexGuard;

use crate::app::store_failure;

/// In memory, where a manifest of 128 KiB may be several MiB.
const MANIFESTS_BYTES_MAX: u64 = 64 * 1024 * 1024;
const MANIFESTS_EXPECTED: usize = 256;
/// A diff of ordinary manifests is a few KiB, the largest more than 1 MiB.
const DIFFS_BYTES_MAX: u64 = 16 * 1024 * 1024;
const DIFFS_EXPECTED: usize = 512;

/// A version of an agent's manifest.
pub struct Version {
    pub version: i64,
    pub checked: Checked,
    since: DeclaredSince,
    bytes: u64,
}

impl Version {
    pub fn declared(&self) -> Declared<'_> {
        let Self { version, checked, since, .. } = self;
        Declared { version: *version, hash: &checked.canonical.hash, manifest: &checked.manifest, since }
    }
}

/// What lies between two versions, and what it takes to remember it.
struct Between {
    diff: Arc<ManifestDiff>,
    bytes: u64,
}

#[derive(Clone)]
struct Bytes;

impl<Key> Weighter<Key, Arc<Version>> for Bytes {
    fn weight(&self, _: &Key, version: &Arc<Version>) -> u64 {
        version.bytes
    }
}

impl<Key> Weighter<Key, Arc<Between>> for Bytes {
    fn weight(&self, _: &Key, between: &Arc<Between>) -> u64 {
        between.bytes
    }
}

pub struct Manifests {
    versions: Cache<(AgentId, i64), Arc<Version>, Bytes>,
    /// From one version to another, as somebody who consented to the first one sees it.
    diffs: Cache<(AgentId, i64, i64), Arc<Between>, Bytes>,
    /// Agents that somebody is changing, each with those who wait for their turn.
    changing: Mutex<HashMap<AgentId, Weak<tokio::sync::Mutex<()>>>>,
}

impl Default for Manifests {
    fn default() -> Self {
        Self {
            versions: Cache::with_weighter(MANIFESTS_EXPECTED, MANIFESTS_BYTES_MAX, Bytes),
            diffs: Cache::with_weighter(DIFFS_EXPECTED, DIFFS_BYTES_MAX, Bytes),
            changing: Mutex::default(),
        }
    }
}

impl Manifests {
    /// Waits for this server's other changes of the same agent. Nobody waits for another agent's.
    pub async fn turn(&self, agent_id: AgentId) -> OwnedMutexGuard<()> {
        let turn = {
            let mut changing = self.changing.lock().expect("never poisoned");
            changing.retain(|_, turn| turn.strong_count() > 0);
            changing.get(&agent_id).and_then(Weak::upgrade).unwrap_or_else(|| {
                let turn = Arc::default();
                changing.insert(agent_id, Arc::downgrade(&turn));
                turn
            })
        };
        turn.lock_owned().await
    }

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
        let canonical = Canonical { text: kept.manifest, hash: kept.hash };
        let checked = aside(move || Checked::stored(canonical)).await??;
        let bytes = checked.bytes() as u64;
        let known = Arc::new(Version { version, checked, since, bytes });
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
            return Ok(known.diff.clone());
        }
        let before = self.get(db, agent_id, consented).await?;
        let current = current.clone();
        let compare =
            move || current.declared().changed_since(consented, diff(Some(&before.checked), &current.checked));
        let diff = Arc::new(aside(compare).await?);
        let bytes = diff.bytes() as u64;
        self.diffs.insert(key, Arc::new(Between { diff: diff.clone(), bytes }));
        Ok(diff)
    }
}

/// Does what may take tens of milliseconds where nobody else waits for it.
pub async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.map_err(Failure::internal)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use ostler_protocol::manifest::{Change, Rule};
    use uuid::Uuid;

    use super::*;

    fn agent(number: u128) -> AgentId {
        AgentId::new(Uuid::from_u128(number))
    }

    #[tokio::test]
    async fn only_changes_of_the_same_agent_wait_for_each_other() {
        let manifests = Manifests::default();
        let first = manifests.turn(agent(1)).await;
        let other = manifests.turn(agent(2)).now_or_never();
        assert!(other.is_some() && manifests.turn(agent(1)).now_or_never().is_none());
        drop((first, other));
        assert!(manifests.turn(agent(1)).now_or_never().is_some());
        drop(manifests.turn(agent(3)).await);
        assert_eq!(manifests.changing.lock().unwrap().len(), 1, "who is done is forgotten");
    }

    #[test]
    fn what_is_remembered_is_bounded_by_its_size() {
        let manifests = Manifests::default();
        let change = Change {
            rule: Rule::TextChanged,
            pointer: "x".repeat(512 * 1024),
            old: serde_json::Value::Null,
            new: serde_json::Value::Null,
            breaking: false,
            scope: None,
            tool: None,
        };
        let diff = Arc::new(ManifestDiff { changes: vec![change], ..ManifestDiff::default() });
        let bytes = diff.bytes() as u64;
        for number in 0..200 {
            manifests.diffs.insert((agent(1), 0, number), Arc::new(Between { diff: diff.clone(), bytes }));
        }
        assert!(!manifests.diffs.is_empty() && manifests.diffs.weight() <= DIFFS_BYTES_MAX);
        assert!(manifests.diffs.len() as u64 <= DIFFS_BYTES_MAX / bytes);
    }
}
