//! Updates the cache: lists the objects of this server, then follows their changes. A watch that ends is continued where it
//! was; if the API server no longer knows that position, the objects are listed again.

use std::{pin::pin, time::Duration};

use futures_util::StreamExt;
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{PersistentVolumeClaim, Pod},
};
use kube::api::WatchEvent;
use tokio::time::{sleep, timeout};

use super::{
    cache::ClusterCache,
    claims::{ClaimFacts, claim_facts},
    cluster::{Cluster, ClusterError, WATCH_S, Watched, status_error},
    observe::{JobFacts, PodFacts, job_facts, pod_facts},
};

/// Pause after a failed call: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// How long a watch may be silent. The API server ends it earlier.
const SILENCE: Duration = Duration::from_secs(WATCH_S as u64 + 10);

/// Follows Jobs, pods and the claims of sessions. Never returns.
pub(crate) async fn watch(cluster: &Cluster, cache: &ClusterCache) {
    tokio::join!(
        follow::<Job>(cluster, cache),
        follow::<Pod>(cluster, cache),
        follow::<PersistentVolumeClaim>(cluster, cache)
    );
}

/// How objects of a kind are stored in the cache.
trait Cached: Watched {
    /// The few words that are kept of an object. Objects are large.
    type Facts: Send;

    /// `None` if the object is none of a runner.
    fn facts(&self) -> Option<Self::Facts>;
    fn put(facts: Self::Facts, cache: &ClusterCache);
    fn remove(facts: Self::Facts, cache: &ClusterCache);
    fn replace(all: Vec<Self::Facts>, cache: &ClusterCache);
    fn version(&self) -> Option<String>;
}

impl Cached for Job {
    type Facts = JobFacts;

    fn facts(&self) -> Option<JobFacts> {
        job_facts(self)
    }

    fn put(facts: JobFacts, cache: &ClusterCache) {
        cache.put_job(facts);
    }

    fn remove(facts: JobFacts, cache: &ClusterCache) {
        cache.remove_job(&facts.name);
    }

    fn replace(all: Vec<JobFacts>, cache: &ClusterCache) {
        cache.replace_jobs(all);
    }

    fn version(&self) -> Option<String> {
        self.metadata.resource_version.clone()
    }
}

impl Cached for Pod {
    type Facts = PodFacts;

    fn facts(&self) -> Option<PodFacts> {
        pod_facts(self)
    }

    fn put(facts: PodFacts, cache: &ClusterCache) {
        cache.put_pod(facts);
    }

    fn remove(facts: PodFacts, cache: &ClusterCache) {
        cache.remove_pod(facts);
    }

    fn replace(all: Vec<PodFacts>, cache: &ClusterCache) {
        cache.replace_pods(all);
    }

    fn version(&self) -> Option<String> {
        self.metadata.resource_version.clone()
    }
}

impl Cached for PersistentVolumeClaim {
    type Facts = ClaimFacts;

    fn facts(&self) -> Option<ClaimFacts> {
        claim_facts(self)
    }

    fn put(facts: ClaimFacts, cache: &ClusterCache) {
        cache.put_claim(facts);
    }

    fn remove(facts: ClaimFacts, cache: &ClusterCache) {
        cache.remove_claim(facts.session);
    }

    fn replace(all: Vec<ClaimFacts>, cache: &ClusterCache) {
        cache.replace_claims(all);
    }

    fn version(&self) -> Option<String> {
        self.metadata.resource_version.clone()
    }
}

async fn follow<K: Cached>(cluster: &Cluster, cache: &ClusterCache) {
    let kind = K::LIST.resource();
    let (mut version, mut pause) = (None, PAUSE.0);
    loop {
        let outcome = match version.take() {
            None => list::<K>(cluster, cache).await.map(Some),
            Some(at) => changes::<K>(cluster, cache, at).await,
        };
        match outcome {
            Ok(next) => (version, pause) = (next, PAUSE.0),
            Err((_, ClusterError::Gone)) => {
                tracing::info!(kind, "the API server forgot the position of a watch; listing again");
            }
            Err((at, error)) => {
                // A watch whose connection broke is no failed call.
                if matches!(error, ClusterError::Later { .. }) {
                    cluster.note_unavailable();
                }
                version = at;
                let after = match &error {
                    ClusterError::Later { after: Some(after), .. } => (*after).max(pause),
                    _ => pause,
                };
                tracing::warn!(kind, %error, "watching the cluster failed; trying again");
                sleep(after).await;
                pause = (pause * 2).min(PAUSE.1);
            }
        }
    }
}

/// A failed call, and from which version to continue. `None` if the objects must be listed again.
type Interrupted = (Option<String>, ClusterError);

/// Lists all objects, page by page. Returns the version of the list.
async fn list<K: Cached>(cluster: &Cluster, cache: &ClusterCache) -> Result<String, Interrupted> {
    let (mut all, mut next): (Vec<K::Facts>, Option<String>) = (vec![], None);
    loop {
        let page = cluster.list::<K>(next.as_deref()).await.map_err(|error| (None, error))?;
        all.extend(page.items.iter().filter_map(K::facts));
        next = page.metadata.continue_.filter(|token| !token.is_empty());
        if next.is_none() {
            K::replace(all, cache);
            return Ok(page.metadata.resource_version.unwrap_or_default());
        }
    }
}

/// Follows changes until the API server ends the watch. Returns the version to continue from.
async fn changes<K: Cached>(
    cluster: &Cluster,
    cache: &ClusterCache,
    from: String,
) -> Result<Option<String>, Interrupted> {
    let mut at = from;
    let stream = cluster.watch::<K>(&at).await.map_err(|error| (Some(at.clone()), error))?;
    let mut stream = pin!(stream);
    loop {
        let event = match timeout(SILENCE, stream.next()).await {
            Ok(Some(Ok(event))) => event,
            Ok(Some(Err(error))) => return Err((Some(at), error.into())),
            // The end of a watch, or a connection that was cut without a sign.
            Ok(None) | Err(_) => return Ok(Some(at)),
        };
        let changed = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                object.facts().into_iter().for_each(|facts| K::put(facts, cache));
                object.version()
            }
            WatchEvent::Deleted(object) => {
                object.facts().into_iter().for_each(|facts| K::remove(facts, cache));
                object.version()
            }
            WatchEvent::Bookmark(bookmark) => Some(bookmark.metadata.resource_version),
            WatchEvent::Error(status) => {
                let after_s = status.details.as_ref().map(|details| details.retry_after_seconds);
                return Err((Some(at), status_error(status.code, &status.reason, &status.message, after_s)));
            }
        };
        at = changed.filter(|version| !version.is_empty()).unwrap_or(at);
    }
}
