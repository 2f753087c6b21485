//! Caches of manifests and of the differences between two of them. A version never changes, so a cached one stays true; only
//! which version is the agent's current one is read from the store each time.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::available_parallelism,
};

use ostler_protocol::{
    Failure, Rule,
    ids::AgentId,
    trust::{
        manifest::{Canonical, Checked, ManifestDiff, diff::diff},
        relations::standing::{Declared, DeclaredSince, Question},
    },
};
use ostler_store::{self as store, Db};
use parking_lot::Mutex;
use quick_cache::{Weighter, sync::Cache};
use tokio::sync::{OwnedMutexGuard, Semaphore};

/// In memory, where a manifest of 128 KiB may be several MiB.
const MANIFESTS_BYTES_MAX: u64 = 64 * 1024 * 1024;
const MANIFESTS_EXPECTED: usize = 256;
/// A diff of ordinary manifests is a few KiB, the largest more than 1 MiB.
const DIFFS_BYTES_MAX: u64 = 16 * 1024 * 1024;
const DIFFS_EXPECTED: usize = 512;
/// A question is a few hundred bytes, the longest 10 KiB: room for the questions of several people who have the maximum of
/// relations, with agents that request the maximum of scopes.
const QUESTIONS_BYTES_MAX: u64 = 32 * 1024 * 1024;
const QUESTIONS_EXPECTED: usize = 4_096;
/// Of the machine's cores, this share at most reads and compares manifests.
const CORES_DIVISOR: usize = 2;

/// A version of an agent's manifest.
pub(crate) struct ManifestVersion {
    pub version: i64,
    pub checked: Checked,
    since: DeclaredSince,
    bytes: u64,
}

impl ManifestVersion {
    pub(crate) fn declared(&self) -> Declared<'_> {
        let Self { version, checked, since, .. } = self;
        Declared { version: *version, hash: &checked.canonical.hash, manifest: &checked.manifest, since }
    }
}

/// The difference between two versions, and its size in memory.
struct CachedDiff {
    diff: Arc<ManifestDiff>,
    bytes: u64,
}

#[derive(Clone)]
struct Bytes;

impl<Key> Weighter<Key, Arc<ManifestVersion>> for Bytes {
    fn weight(&self, _: &Key, version: &Arc<ManifestVersion>) -> u64 {
        version.bytes
    }
}

impl<Key> Weighter<Key, Arc<CachedDiff>> for Bytes {
    fn weight(&self, _: &Key, cached: &Arc<CachedDiff>) -> u64 {
        cached.bytes
    }
}

impl<Key> Weighter<Key, Arc<Option<Question>>> for Bytes {
    fn weight(&self, _: &Key, question: &Arc<Option<Question>>) -> u64 {
        (size_of::<Option<Question>>() + question.as_ref().as_ref().map_or(0, Question::bytes)) as u64
    }
}

pub(crate) struct Manifests {
    versions: Cache<(AgentId, i64), Arc<ManifestVersion>, Bytes>,
    /// From one version to another, as seen by a person who consented to the first one.
    diffs: Cache<(AgentId, i64, i64), Arc<CachedDiff>, Bytes>,
    /// What people have to decide because of those differences: small, so that it stays cached longer than the rest.
    questions: Cache<(AgentId, i64, i64), Arc<Option<Question>>, Bytes>,
    /// Permits to parse or compare a manifest, so that frequent requests for that cannot use all the cores.
    permits: Arc<Semaphore>,
    computed: AtomicU64,
    /// Agents that a request is changing, each with the lock that later changes wait for.
    changing: Mutex<HashMap<AgentId, Weak<tokio::sync::Mutex<()>>>>,
}

impl Default for Manifests {
    fn default() -> Self {
        Self {
            versions: Cache::with_weighter(MANIFESTS_EXPECTED, MANIFESTS_BYTES_MAX, Bytes),
            diffs: Cache::with_weighter(DIFFS_EXPECTED, DIFFS_BYTES_MAX, Bytes),
            questions: Cache::with_weighter(QUESTIONS_EXPECTED, QUESTIONS_BYTES_MAX, Bytes),
            permits: Arc::new(Semaphore::new(permits())),
            computed: AtomicU64::new(0),
            changing: Mutex::default(),
        }
    }
}

fn permits() -> usize {
    available_parallelism().map_or(1, |cores| cores.get().div_ceil(CORES_DIVISOR))
}

impl Manifests {
    /// Waits for this server's other changes of the same agent. Changes of other agents do not wait.
    pub(crate) async fn turn(&self, agent_id: AgentId) -> OwnedMutexGuard<()> {
        let turn = {
            let mut changing = self.changing.lock();
            changing.retain(|_, turn| turn.strong_count() > 0);
            changing.get(&agent_id).and_then(Weak::upgrade).unwrap_or_else(|| {
                let turn = Arc::default();
                changing.insert(agent_id, Arc::downgrade(&turn));
                turn
            })
        };
        turn.lock_owned().await
    }

    /// The agent's current manifest.
    pub(crate) async fn current(&self, db: &Db, agent_id: AgentId) -> Result<Arc<ManifestVersion>, Failure> {
        let version = store::trust::manifests::find_current_version(db, agent_id).await?;
        self.numbered(db, agent_id, version).await
    }

    /// The manifest with this number, which was read as the agent's current one. Fails if the agent has none.
    pub(crate) async fn numbered(
        &self,
        db: &Db,
        agent_id: AgentId,
        version: Option<i64>,
    ) -> Result<Arc<ManifestVersion>, Failure> {
        match version {
            Some(version) => self.get(db, agent_id, version).await,
            None if store::trust::agents::get(db, agent_id).await?.is_none() => Err(Failure::not_found("agent")),
            None => {
                let message = "this agent has no manifest yet, so there is nothing to grant";
                Err(Failure::rule(Rule::ManifestMissing, message))
            }
        }
    }

    pub(crate) async fn get(&self, db: &Db, agent_id: AgentId, version: i64) -> Result<Arc<ManifestVersion>, Failure> {
        // Boxed, as those below are: such futures are nested, and a worker's stack is small.
        let read = Box::pin(async {
            let stored = store::trust::manifests::get(db, agent_id, version).await?;
            let stored = stored.ok_or_else(|| Failure::internal(format!("{agent_id} has no manifest {version}")))?;
            let since = stored.declared_since;
            let canonical = Canonical { text: stored.manifest, hash: stored.hash };
            let checked = self.run_blocking(move || Checked::stored(canonical)).await??;
            let bytes = checked.bytes() as u64;
            Ok(Arc::new(ManifestVersion { version, checked, since, bytes }))
        });
        // Concurrent requests for the same version wait for this read.
        self.versions.get_or_insert_async(&(agent_id, version), read).await
    }

    /// What has changed for a person who consented to a version.
    pub(crate) async fn changed(
        &self,
        db: &Db,
        agent_id: AgentId,
        consented: i64,
        current: &Arc<ManifestVersion>,
    ) -> Result<Arc<ManifestDiff>, Failure> {
        if consented == current.version {
            return Ok(Arc::default());
        }
        let compare = Box::pin(async {
            let (before, current) = (self.get(db, agent_id, consented).await?, current.clone());
            let compare =
                move || current.declared().changed_since(consented, diff(Some(&before.checked), &current.checked));
            let diff = Arc::new(self.run_blocking(compare).await?);
            let bytes = diff.bytes() as u64;
            Ok(Arc::new(CachedDiff { diff, bytes }))
        });
        let cached = self.diffs.get_or_insert_async(&(agent_id, consented, current.version), compare).await;
        cached.map(|cached| cached.diff.clone())
    }

    /// What a person who consented to one version has to decide now that another one is current. `None` if nothing.
    pub(crate) async fn question(
        &self,
        db: &Db,
        agent_id: AgentId,
        consented: i64,
        current: i64,
    ) -> Result<Arc<Option<Question>>, Failure> {
        let work_out = Box::pin(async {
            let current = self.get(db, agent_id, current).await?;
            let changed = self.changed(db, agent_id, consented, &current).await?;
            Ok(Arc::new(current.declared().question(&changed)))
        });
        self.questions.get_or_insert_async(&(agent_id, consented, current), work_out).await
    }

    /// Runs work that may take tens of milliseconds on a blocking thread, when a permit is free.
    pub(crate) async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let permit = self.permits.clone().acquire_owned().await.map_err(Failure::internal)?;
        self.computed.fetch_add(1, Relaxed);
        let work = move || {
            // The work ends even if its caller no longer waits, so it holds the permit itself.
            let _permit = permit;
            work()
        };
        tokio::task::spawn_blocking(work).await.map_err(Failure::internal)
    }

    /// How often manifests were parsed or compared.
    pub(crate) fn computed(&self) -> u64 {
        self.computed.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, future::join_all};
    use ostler_protocol::{
        Timestamp,
        trust::{
            agents::Agent,
            manifest::{Change, DiffRule},
            relations::standing::declared_since,
        },
    };
    use ostler_store::{StoreConfig, Synchronous, trust::manifests::StoredManifest};
    use serde_json::{Value, json};
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
        assert_eq!(manifests.changing.lock().len(), 1, "locks of finished changes are forgotten");
    }

    #[test]
    fn the_caches_are_bounded_by_the_size_of_their_entries() {
        let manifests = Manifests::default();
        let change = Change {
            rule: DiffRule::TextChanged,
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
            manifests.diffs.insert((agent(1), 0, number), Arc::new(CachedDiff { diff: diff.clone(), bytes }));
        }
        assert!(!manifests.diffs.is_empty() && manifests.diffs.weight() <= DIFFS_BYTES_MAX);
        assert!(manifests.diffs.len() as u64 <= DIFFS_BYTES_MAX / bytes);
    }

    fn manifest(scopes: &[&str]) -> Value {
        let scope = |id: &&str| json!({"id": id, "label_i18n_key": "a.b", "label_fallback": id, "description_fallback": "x", "sensitivity": "low"});
        let scopes: Vec<_> = scopes.iter().map(scope).collect();
        json!({"schema_version": "1.0", "agent_version": "1.0.0", "tools": [], "permission_scopes": scopes})
    }

    /// An agent with these manifests, one after the other.
    async fn publish(db: &Db, agent_id: AgentId, manifests: &[Value]) {
        let (now, mut since) = (Timestamp::UNIX_EPOCH, DeclaredSince::default());
        let mut agent = Agent::new(agent_id, "helper".into(), "local".into(), None, now);
        store::trust::agents::insert(db, &agent, None).await.unwrap();
        for (manifest, version) in manifests.iter().zip(1..) {
            let Checked { canonical: Canonical { text, hash }, manifest, .. } =
                Checked::read(&manifest.to_string()).unwrap();
            since = declared_since(&since, &manifest, version);
            let declared_since = since.clone();
            let stored = StoredManifest { agent_id, version, hash, manifest: text, declared_since, created_at: now };
            (agent.capability_manifest_version, agent.revision) = (version, version + 1);
            assert!(store::trust::agents::update(db, &agent, Some(&stored), None).await.unwrap());
        }
    }

    #[tokio::test]
    async fn questions_stay_cached_when_the_manifests_are_evicted() {
        let directory = tempfile::tempdir().unwrap();
        let config = StoreConfig::Sqlite { file: directory.path().join("ostler.db"), synchronous: Synchronous::Full };
        let db = Db::open(&config, Timestamp::UNIX_EPOCH).await.unwrap();
        let (one, two) = (manifest(&["notes:read"]), manifest(&["notes:read", "notes:write"]));
        publish(&db, agent(1), &[one.clone(), two, one]).await;
        let manifests = Manifests::default();
        for (current, expected) in [(2, Some("notes:write")), (3, None)] {
            let ask = || manifests.question(&db, agent(1), 1, current);
            let before = manifests.computed();
            let question = join_all((0..20).map(|_| ask())).await.pop().unwrap().unwrap();
            let computed = manifests.computed();
            assert!(computed - before <= 3, "two manifests and one diff, however many requests");
            let scopes = question.as_ref().as_ref().map(|question| question.scopes.keys().cloned().collect::<Vec<_>>());
            assert_eq!(scopes, expected.map(|id: &str| vec![id.to_owned()]), "version {current}");
            manifests.versions.clear();
            manifests.diffs.clear();
            assert_eq!((ask().await.unwrap(), manifests.computed()), (question, computed));
        }
        db.close().await;
    }

    #[tokio::test]
    async fn work_waits_for_a_permit() {
        let manifests = Manifests::default();
        let mut ends = vec![];
        let mut begin = || {
            let (end, until) = std::sync::mpsc::channel::<()>();
            ends.push(end);
            Box::pin(manifests.run_blocking(move || until.recv().is_err()))
        };
        let mut begun: Vec<_> = (0..permits()).map(|_| begin()).collect();
        assert!(begun.iter_mut().all(|work| work.now_or_never().is_none()));
        let mut next = begin();
        assert!((&mut next).now_or_never().is_none());
        assert_eq!(manifests.computed(), permits() as u64, "the next has not begun");
        ends.clear();
        assert!(join_all(begun).await.into_iter().all(Result::unwrap));
        assert!(next.await.unwrap());
    }
}
