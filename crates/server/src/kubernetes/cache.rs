//! What a server has seen of the cluster: a few fields of each Job, pod and volume claim, updated by three watches.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use ostler_protocol::{
    ids::{RunnerJobId, SessionId},
    kernel::cluster_launching::ClusterState,
};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{
    claims::ClaimFacts,
    observe::{JobFacts, PodFacts, cluster_state},
};

/// How long the last state of a pod may arrive after the end of its Job. They come by different watches.
const POD_LATE: Duration = Duration::from_secs(5);

#[derive(Default)]
pub struct ClusterCache {
    seen: Mutex<Seen>,
    changed: Notify,
    claims: Mutex<SeenClaims>,
}

/// No runner job follows from a change of a claim.
#[derive(Default)]
struct SeenClaims {
    by_session: HashMap<SessionId, ClaimFacts>,
    /// Whether all of them were listed once, and changes are followed.
    is_watched: bool,
}

#[derive(Default)]
struct Seen {
    /// By name.
    jobs: HashMap<Arc<str>, SeenJob>,
    /// By the name of their Job. A Job has one pod.
    pods: HashMap<Arc<str>, PodFacts>,
    has_jobs: bool,
    has_pods: bool,
    /// Runner jobs whose objects have changed since the last look.
    changed: BTreeSet<RunnerJobId>,
}

struct SeenJob {
    facts: JobFacts,
    /// When this server first saw its end. Not the time of the end itself, which is one of another clock.
    end_seen_at: Option<Instant>,
    /// Its Secret is known to exist.
    has_secret: bool,
}

impl SeenJob {
    fn new(facts: JobFacts, before: Option<&Self>) -> Self {
        let before = before.filter(|before| before.facts.uid == facts.uid);
        let first_seen = || before.and_then(|before| before.end_seen_at).unwrap_or_else(Instant::now);
        let end_seen_at = facts.end.as_ref().map(|_| first_seen());
        Self { facts, end_seen_at, has_secret: before.is_some_and(|before| before.has_secret) }
    }

    fn state(&self, pod: Option<&PodFacts>, now: Timestamp) -> ClusterState {
        let may_be_early = self.end_seen_at.is_some_and(|at| at.elapsed() < POD_LATE);
        cluster_state(&self.facts, pod, may_be_early, now)
    }
}

/// A Job that has finished.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FinishedJob {
    pub at: Timestamp,
    pub name: String,
    pub uid: String,
    pub runner_job_id: RunnerJobId,
}

/// How many objects the cache has, also those of other installations in the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedObjects {
    pub active_jobs: usize,
    pub finished_jobs: usize,
    pub pods: usize,
}

impl ClusterCache {
    pub fn count(&self) -> CachedObjects {
        let seen = self.seen.lock();
        let finished_jobs = seen.jobs.values().filter(|job| job.facts.end.is_some()).count();
        CachedObjects { active_jobs: seen.jobs.len() - finished_jobs, finished_jobs, pods: seen.pods.len() }
    }

    /// Whether all Jobs and pods were listed once. Before, nothing follows from the absence of one.
    pub fn is_complete(&self) -> bool {
        let seen = self.seen.lock();
        seen.has_jobs && seen.has_pods
    }

    /// What is seen of a start. Its Job may have been created or deleted a moment ago.
    pub fn state(&self, job_name: &str, now: Timestamp) -> ClusterState {
        let seen = self.seen.lock();
        match seen.jobs.get(job_name) {
            Some(job) => job.state(seen.pods.get(job_name), now),
            None => ClusterState::Absent,
        }
    }

    /// The Jobs of this installation that have finished, the oldest first.
    pub fn finished(&self, prefix: &str) -> Vec<FinishedJob> {
        let seen = self.seen.lock();
        let ours = seen.jobs.values().map(|job| &job.facts).filter(|job| is_named_by(&job.name, prefix));
        let finished = ours.filter_map(|job| {
            let at = job.end.as_ref()?.at;
            let (name, uid) = (job.name.clone(), job.uid.clone());
            Some(FinishedJob { at, name, uid, runner_job_id: job.runner_job_id })
        });
        let mut finished: Vec<_> = finished.collect();
        finished.sort();
        finished
    }

    /// How many Jobs of this installation have not finished.
    pub fn count_active(&self, prefix: &str) -> usize {
        self.seen.lock().active(prefix).count()
    }

    /// The Jobs of this installation whose runners may be at work, except those named. A Job whose runner has terminated is none of
    /// them: the cluster is about to finish it.
    pub fn active_except(&self, prefix: &str, except: &BTreeSet<String>, now: Timestamp) -> Vec<JobFacts> {
        let seen = self.seen.lock();
        let others = seen.active(prefix).filter(|job| !except.contains(&job.facts.name));
        let has_ended = |job: &SeenJob| {
            let state = job.state(seen.pods.get(job.facts.name.as_str()), now);
            matches!(state, ClusterState::Terminated(_))
        };
        others.filter(|job| !has_ended(job)).map(|job| job.facts.clone()).collect()
    }

    /// Waits until objects of runner jobs have changed, and takes the ids of these jobs.
    pub async fn changed(&self) -> BTreeSet<RunnerJobId> {
        loop {
            let changed = std::mem::take(&mut self.seen.lock().changed);
            if !changed.is_empty() {
                return changed;
            }
            self.changed.notified().await;
        }
    }

    /// Has a runner job looked at again.
    pub fn touch(&self, job_id: RunnerJobId) {
        self.update(|seen| seen.changed.extend([job_id]));
    }

    pub fn put_job(&self, job: JobFacts) {
        self.update(|seen| {
            seen.changed.insert(job.runner_job_id);
            let before = seen.jobs.get(job.name.as_str());
            let job = SeenJob::new(job, before);
            seen.jobs.insert(job.facts.name.as_str().into(), job);
        });
    }

    /// The Secret of a Job exists.
    pub fn note_secret(&self, job_name: &str) {
        if let Some(job) = self.seen.lock().jobs.get_mut(job_name) {
            job.has_secret = true;
        }
    }

    /// Whether this server knows that the Secret of a Job exists.
    pub fn has_secret(&self, job_name: &str) -> bool {
        self.seen.lock().jobs.get(job_name).is_some_and(|job| job.has_secret)
    }

    pub fn remove_job(&self, name: &str) {
        self.update(|seen| {
            seen.changed.extend(seen.jobs.remove(name).map(|job| job.facts.runner_job_id));
            seen.pods.remove(name);
        });
    }

    pub fn put_pod(&self, pod: PodFacts) {
        self.update(|seen| seen.put_pod(pod));
    }

    /// A pod is gone. How it ended is stored for as long as its Job exists.
    pub fn remove_pod(&self, last: PodFacts) {
        self.update(|seen| {
            let job_name = last.job_name.as_str();
            if seen.pods.get(job_name).is_some_and(|known| known.name != last.name) {
                return;
            }
            if seen.jobs.contains_key(job_name) {
                seen.put_pod(PodFacts { is_gone: true, ..last });
            } else {
                seen.pods.remove(job_name);
            }
        });
    }

    /// All Jobs that the cluster has.
    pub fn replace_jobs(&self, jobs: Vec<JobFacts>) {
        self.update(|seen| {
            let listed = jobs;
            let Seen { jobs, pods, changed, .. } = seen;
            let listed = listed.into_iter().map(|job| {
                let before = jobs.get(job.name.as_str());
                let job = SeenJob::new(job, before);
                (Arc::<str>::from(job.facts.name.as_str()), job)
            });
            let listed: HashMap<Arc<str>, SeenJob> = listed.collect();
            // The jobs that no server has reported as ended are looked at in any case, from time to time.
            let is_same = |name: &Arc<str>, job: &SeenJob| listed.get(name).is_some_and(|new| new.facts == job.facts);
            let differing = jobs.iter().filter(|(name, job)| !is_same(name, job));
            changed.extend(differing.map(|(_, job)| job.facts.runner_job_id));
            *jobs = listed;
            pods.retain(|job_name, _| jobs.contains_key(job_name));
            seen.has_jobs = true;
        });
    }

    /// All pods that the cluster has.
    pub fn replace_pods(&self, pods: Vec<PodFacts>) {
        self.update(|seen| {
            // The end of a pod that is gone stays known, for as long as its Job is.
            let Seen { jobs, pods: seen_pods, .. } = &mut *seen;
            seen_pods.retain(|job_name, pod| jobs.contains_key(job_name) && (pod.is_gone || pod.exit_code.is_some()));
            pods.into_iter().for_each(|pod| seen.put_pod(pod));
            seen.has_pods = true;
        });
    }

    /// What this server has last seen of a session's claim.
    pub fn claim(&self, session: SessionId) -> Option<ClaimFacts> {
        self.claims.lock().by_session.get(&session).cloned()
    }

    /// Whether a session's claim exists, as the watch shows it. False if this server does not watch claims.
    pub fn has_claim(&self, session: SessionId) -> bool {
        let claims = self.claims.lock();
        claims.is_watched && claims.by_session.get(&session).is_some_and(|claim| !claim.is_deleted)
    }

    pub fn claims(&self) -> Vec<ClaimFacts> {
        self.claims.lock().by_session.values().cloned().collect()
    }

    /// Adds a claim that a call has returned. What a watch has shown of it is at least as new.
    pub fn add_claim(&self, claim: ClaimFacts) {
        let mut claims = self.claims.lock();
        if !claims.is_watched || !claims.by_session.contains_key(&claim.session) {
            claims.by_session.insert(claim.session, claim);
        }
    }

    pub fn put_claim(&self, claim: ClaimFacts) {
        self.claims.lock().by_session.insert(claim.session, claim);
    }

    pub fn remove_claim(&self, session: SessionId) {
        self.claims.lock().by_session.remove(&session);
    }

    /// All claims that the cluster has.
    pub fn replace_claims(&self, claims: Vec<ClaimFacts>) {
        let by_session = claims.into_iter().map(|claim| (claim.session, claim)).collect();
        *self.claims.lock() = SeenClaims { by_session, is_watched: true };
    }

    fn update(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.seen.lock());
        self.changed.notify_one();
    }
}

impl Seen {
    fn active<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a SeenJob> {
        self.jobs.values().filter(move |job| job.facts.end.is_none() && is_named_by(&job.facts.name, prefix))
    }

    fn put_pod(&mut self, pod: PodFacts) {
        let is_older = |known: &PodFacts| known.name != pod.name && known.created_at > pod.created_at;
        if self.pods.get(pod.job_name.as_str()).is_some_and(is_older) {
            return;
        }
        self.changed.extend(self.jobs.get(pod.job_name.as_str()).map(|job| job.facts.runner_job_id));
        self.pods.insert(pod.job_name.as_str().into(), pod);
    }
}

fn is_named_by(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use ostler_protocol::kernel::runner_jobs::ObservedPhase;

    use super::*;
    use crate::kubernetes::observe::JobOutcome;

    fn job(number: u32, ended_s: Option<i64>) -> JobFacts {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let outcome = |seconds| JobOutcome { succeeded: true, reason: None, message: None, at: at(seconds) };
        JobFacts {
            name: format!("ostler-run-{number}"),
            uid: format!("uid-{number}"),
            runner_job_id: format!("job_{number:032x}").parse().unwrap(),
            created_at: at(0),
            is_overdue: false,
            end: ended_s.map(outcome),
        }
    }

    fn pod(number: u32, exit_code: Option<i32>) -> PodFacts {
        PodFacts {
            name: format!("ostler-run-{number}-x"),
            job_name: format!("ostler-run-{number}"),
            created_at: Timestamp::UNIX_EPOCH,
            node_name: None,
            phase: ObservedPhase::Running,
            reason: None,
            message: None,
            exit_code,
            delete_at: None,
            is_gone: false,
        }
    }

    #[tokio::test]
    async fn a_change_names_its_runner_job_once() {
        let cache = ClusterCache::default();
        cache.put_job(job(1, None));
        cache.put_pod(pod(1, None));
        assert_eq!(cache.changed().await, BTreeSet::from([job(1, None).runner_job_id]));
        cache.remove_job("ostler-run-1");
        assert_eq!(cache.changed().await.len(), 1);
        assert_eq!(cache.state("ostler-run-1", Timestamp::UNIX_EPOCH), ClusterState::Absent);
    }

    #[test]
    fn the_end_of_a_pod_stays_known_after_it_was_deleted() {
        let cache = ClusterCache::default();
        cache.put_job(job(1, None));
        cache.put_pod(pod(1, Some(3)));
        cache.remove_pod(pod(1, Some(3)));
        cache.replace_pods(vec![]);
        let state = cache.state("ostler-run-1", Timestamp::UNIX_EPOCH);
        assert!(matches!(state, ClusterState::Terminated(seen) if seen.exit_code == Some(3)));
        cache.replace_jobs(vec![]);
        assert!(!cache.is_complete() || cache.finished("ostler-run").is_empty());
        assert!(cache.is_complete());
    }

    #[test]
    fn the_watch_knows_the_phase_of_a_claim_better_than_a_call() {
        let cache = ClusterCache::default();
        let session: SessionId = format!("ses_{:032x}", 1).parse().unwrap();
        let claim = |phase: &str| ClaimFacts { name: "c".into(), session, phase: phase.into(), is_deleted: false };
        cache.add_claim(claim("Pending"));
        cache.add_claim(claim("Bound"));
        assert_eq!((cache.claim(session), cache.has_claim(session)), (Some(claim("Bound")), false));
        cache.replace_claims(vec![claim("Bound")]);
        cache.add_claim(claim("Pending"));
        assert_eq!((cache.claims(), cache.has_claim(session)), (vec![claim("Bound")], true));
        cache.put_claim(ClaimFacts { is_deleted: true, ..claim("Bound") });
        assert!(!cache.has_claim(session));
        cache.remove_claim(session);
        assert_eq!(cache.claim(session), None);
    }

    #[test]
    fn the_secret_of_a_job_stays_known_until_another_job_has_its_name() {
        let cache = ClusterCache::default();
        cache.note_secret("ostler-run-1");
        cache.put_job(job(1, None));
        assert!(!cache.has_secret("ostler-run-1"), "the Job was not known then");
        cache.note_secret("ostler-run-1");
        cache.put_job(job(1, Some(1)));
        cache.replace_jobs(vec![job(1, Some(1))]);
        assert!(cache.has_secret("ostler-run-1"));
        cache.put_job(JobFacts { uid: "uid-other".into(), ..job(1, None) });
        assert!(!cache.has_secret("ostler-run-1"));
    }

    #[test]
    fn finished_jobs_of_this_installation_are_listed_oldest_first() {
        let cache = ClusterCache::default();
        let foreign = JobFacts { name: "ostler-runs-9".into(), ..job(9, Some(1)) };
        cache.replace_jobs(vec![job(1, Some(30)), job(2, Some(20)), job(3, None), foreign]);
        let names: Vec<_> = cache.finished("ostler-run").into_iter().map(|job| job.name).collect();
        assert_eq!(names, ["ostler-run-2", "ostler-run-1"]);
        assert_eq!(cache.count_active("ostler-run"), 1);
        cache.put_pod(pod(3, None));
        assert_eq!(cache.count(), CachedObjects { active_jobs: 1, finished_jobs: 3, pods: 1 });
    }

    #[test]
    fn a_job_whose_runner_has_terminated_is_not_active_before_its_condition_arrives() {
        let (cache, now) = (ClusterCache::default(), Timestamp::UNIX_EPOCH);
        cache.replace_jobs(vec![job(1, None), job(2, None), job(3, None)]);
        cache.put_pod(pod(1, Some(0)));
        cache.put_pod(pod(2, None));
        let needed = BTreeSet::from(["ostler-run-3".to_owned()]);
        let active = |cache: &ClusterCache| -> Vec<String> {
            cache.active_except("ostler-run", &needed, now).into_iter().map(|job| job.name).collect()
        };
        assert_eq!(active(&cache), ["ostler-run-2"]);
        // It still takes room in the cluster.
        assert_eq!(cache.count_active("ostler-run"), 3);
        cache.put_job(job(2, Some(1)));
        assert_eq!(active(&cache), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_job_waits_a_few_seconds_for_the_last_state_of_its_pod() {
        let cache = ClusterCache::default();
        let state = |cache: &ClusterCache| cache.state("ostler-run-1", Timestamp::UNIX_EPOCH);
        cache.put_job(job(1, Some(1)));
        cache.put_pod(pod(1, None));
        assert_eq!(state(&cache), ClusterState::Ending);
        tokio::time::advance(POD_LATE / 2).await;
        // The same end again does not begin the wait again.
        cache.replace_jobs(vec![job(1, Some(1))]);
        assert_eq!(state(&cache), ClusterState::Ending);
        tokio::time::advance(POD_LATE / 2).await;
        assert!(matches!(state(&cache), ClusterState::Terminated(seen) if seen.message.is_none()));
        cache.put_pod(PodFacts { message: Some("m".into()), ..pod(1, Some(0)) });
        assert!(matches!(state(&cache), ClusterState::Terminated(seen) if seen.message.is_some()));
    }

    #[test]
    fn nothing_is_left_of_a_pod_whose_job_was_deleted_before() {
        let cache = ClusterCache::default();
        cache.put_job(job(1, None));
        cache.put_pod(pod(1, None));
        cache.remove_job("ostler-run-1");
        cache.put_pod(pod(1, Some(143)));
        cache.remove_pod(pod(1, Some(143)));
        assert!(cache.seen.lock().pods.is_empty());
    }
}
