//! What Jobs and pods show of runners, in a few words. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{ContainerStatus, Pod, PodStatus},
};
use ostler_protocol::{
    ids::RunnerJobId,
    kernel::{
        cluster_launching::{CONTAINER_STATUS_UNKNOWN, ClusterState, DEADLINE_EXCEEDED},
        runner_jobs::{JobObservation, ObservedPhase},
    },
    text::clip,
};

use super::job_manifest::{CONTAINER, JOB_LABEL, JOB_NAME_LABEL};

/// How long a pod may still be listed after the end of its grace period. If it is listed longer, its node does not respond.
const DELETION_PATIENCE: SignedDuration = SignedDuration::from_secs(30);
/// A runner reports up to 4 KiB.
const MESSAGE_CHARS_MAX: usize = 4_096;
const REASON_CHARS_MAX: usize = 100;

/// What matters of a Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFacts {
    pub name: String,
    pub uid: String,
    pub runner_job_id: RunnerJobId,
    pub created_at: Timestamp,
    /// Its time limit is over: the cluster ends its pod.
    pub is_overdue: bool,
    /// `None` while it is active.
    pub end: Option<JobOutcome>,
}

/// How a Job has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobOutcome {
    pub succeeded: bool,
    pub reason: Option<String>,
    pub message: Option<String>,
    pub at: Timestamp,
}

/// What matters of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    pub name: String,
    pub job_name: String,
    pub created_at: Timestamp,
    pub node_name: Option<String>,
    pub phase: ObservedPhase,
    pub reason: Option<String>,
    pub message: Option<String>,
    /// Set once the runner's container has terminated. `None` if its node does not know how.
    pub exit_code: Option<i32>,
    /// By when it should have ended.
    pub delete_at: Option<Timestamp>,
    /// It was deleted, and this is the last that was seen of it.
    pub is_gone: bool,
}

/// `None` if the Job is not one of a runner job.
pub fn job_facts(job: &Job) -> Option<JobFacts> {
    let labels = job.metadata.labels.as_ref()?;
    let created_at = job.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    let conditions = || {
        let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.filter(|condition| condition.status == "True")
    };
    // `FailureTarget` is set when the cluster begins to end the pod, `Failed` when the pod has ended.
    let is_overdue = conditions().any(|condition| {
        ["FailureTarget", "Failed"].contains(&condition.type_.as_str())
            && condition.reason.as_deref() == Some(DEADLINE_EXCEEDED)
    });
    let end = conditions().find_map(|condition| {
        let succeeded = match condition.type_.as_str() {
            "Complete" => true,
            "Failed" => false,
            _ => return None,
        };
        let at = condition.last_transition_time.as_ref().map_or(created_at, |time| time.0);
        let (reason, message) = (short(&condition.reason), text(&condition.message));
        Some(JobOutcome { succeeded, reason, message, at })
    });
    Some(JobFacts {
        name: job.metadata.name.clone()?,
        uid: job.metadata.uid.clone()?,
        runner_job_id: labels.get(JOB_LABEL)?.parse().ok()?,
        created_at,
        is_overdue,
        end,
    })
}

/// `None` if the pod is not one of a Job.
pub fn pod_facts(pod: &Pod) -> Option<PodFacts> {
    let owners = pod.metadata.owner_references.iter().flatten();
    let owner = owners.filter(|owner| owner.kind == "Job").map(|owner| &owner.name).next();
    let job_name = owner.or_else(|| pod.metadata.labels.as_ref()?.get(JOB_NAME_LABEL))?.clone();
    let nothing = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&nothing);
    let runner = status.container_statuses.iter().flatten().find(|container| container.name == CONTAINER);
    let state = runner.and_then(|container| container.state.as_ref());
    let terminated = state.and_then(|state| state.terminated.as_ref());
    let phase = match status.phase.as_deref() {
        Some("Running") => ObservedPhase::Running,
        Some("Succeeded") => ObservedPhase::Succeeded,
        Some("Failed") => ObservedPhase::Failed,
        Some("Unknown") => ObservedPhase::Unknown,
        _ => ObservedPhase::Pending,
    };
    let exit_code = terminated
        .filter(|ended| ended.reason.as_deref() != Some(CONTAINER_STATUS_UNKNOWN))
        .map(|ended| ended.exit_code);
    let phase = match (terminated, exit_code) {
        (Some(_), Some(0)) => ObservedPhase::Succeeded,
        (Some(_), _) => ObservedPhase::Failed,
        (None, _) if is_unreachable(status) => ObservedPhase::Unknown,
        (None, _) => phase,
    };
    let (reason, message) = why(status, runner);
    Some(PodFacts {
        name: pod.metadata.name.clone()?,
        job_name,
        created_at: pod.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        node_name: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        phase,
        reason,
        message,
        exit_code,
        delete_at: pod.metadata.deletion_timestamp.as_ref().map(|time| time.0),
        is_gone: false,
    })
}

/// The cluster's own reason for the state of a pod, the most specific one, and its message.
fn why(status: &PodStatus, runner: Option<&ContainerStatus>) -> (Option<String>, Option<String>) {
    let state = runner.and_then(|container| container.state.as_ref());
    if let Some(ended) = state.and_then(|state| state.terminated.as_ref()) {
        // `Evicted` is more specific than the `Error` of the container that it ended.
        let evicted = short(&status.reason);
        // The message is what the runner left, or the end of its log. The cluster's own message must not be taken for that.
        return (evicted.or_else(|| short(&ended.reason)), text(&ended.message));
    }
    if status.reason.is_some() {
        return (short(&status.reason), text(&status.message));
    }
    if let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) {
        return (short(&waiting.reason), text(&waiting.message));
    }
    let conditions = || status.conditions.iter().flatten();
    let scheduled = conditions().find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    let disrupted = conditions().find(|condition| condition.type_ == "DisruptionTarget" && condition.status == "True");
    disrupted.or(scheduled).map_or((None, None), |found| (short(&found.reason), text(&found.message)))
}

/// Whether the node of the pod does not report.
fn is_unreachable(status: &PodStatus) -> bool {
    status.reason.as_deref() == Some("NodeLost")
        || status
            .conditions
            .iter()
            .flatten()
            .any(|condition| condition.type_ == "Ready" && condition.status == "Unknown")
}

/// What a Job and its pod together show of a start. `may_be_early`: the end of the Job was seen so recently that the last state of
/// its pod, which comes by another watch, may still arrive.
pub fn cluster_state(job: &JobFacts, pod: Option<&PodFacts>, may_be_early: bool, now: Timestamp) -> ClusterState {
    let mut observed =
        JobObservation { job_name: job.name.clone(), job_uid: job.uid.clone(), ..JobObservation::default() };
    if let Some(pod) = pod {
        observed.pod_name = Some(pod.name.clone());
        observed.node_name = pod.node_name.clone();
        observed.phase = pod.phase;
        (observed.reason, observed.message) = (pod.reason.clone(), pod.message.clone());
        observed.exit_code = pod.exit_code;
        let shows_why_it_waits = pod.phase == ObservedPhase::Pending && pod.reason.is_some();
        if job.is_overdue && pod.exit_code != Some(0) && !shows_why_it_waits {
            // The pod only shows that it was stopped.
            observed.reason = Some(DEADLINE_EXCEEDED.to_owned());
        }
        if pod.exit_code.is_some() {
            return ClusterState::Terminated(observed);
        }
    }
    if let Some(end) = &job.end {
        if may_be_early && !pod.is_some_and(has_last_state) {
            return ClusterState::Ending;
        }
        observed.phase = if end.succeeded { ObservedPhase::Succeeded } else { ObservedPhase::Failed };
        observed.reason = observed.reason.or_else(|| end.reason.clone());
        observed.message = observed.message.or_else(|| end.message.clone());
        if end.succeeded {
            // The cluster counts a pod as complete only if its containers ended with 0.
            observed.exit_code = Some(0);
            return ClusterState::Terminated(observed);
        }
        return ClusterState::Vanished(observed);
    }
    let Some(pod) = pod else { return ClusterState::Active(observed) };
    let is_overdue = |at: Timestamp| at.checked_add(DELETION_PATIENCE).is_ok_and(|at| at < now);
    match pod.phase {
        _ if pod.is_gone => ClusterState::Vanished(observed),
        // The pod has ended, and its container never ran: it was evicted or refused by its node.
        ObservedPhase::Failed => ClusterState::Vanished(observed),
        _ if pod.delete_at.is_some_and(is_overdue) => {
            ClusterState::Active(JobObservation { phase: ObservedPhase::Unknown, ..observed })
        }
        _ => ClusterState::Active(observed),
    }
}

/// Whether nothing more is to be seen of a pod.
fn has_last_state(pod: &PodFacts) -> bool {
    pod.is_gone || matches!(pod.phase, ObservedPhase::Succeeded | ObservedPhase::Failed)
}

fn short(text: &Option<String>) -> Option<String> {
    text.as_deref().filter(|text| !text.is_empty()).map(|text| clip(text, REASON_CHARS_MAX))
}

fn text(text: &Option<String>) -> Option<String> {
    text.as_deref().filter(|text| !text.is_empty()).map(|text| clip(text, MESSAGE_CHARS_MAX))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(status: Value) -> JobFacts {
        let id = format!("job_{:032x}", 1);
        let job = json!({"metadata": {"name": "n", "uid": "u", "labels": {"ostler.dev/job": id},
            "creationTimestamp": "2030-01-01T00:00:00Z"}, "status": status});
        job_facts(&serde_json::from_value(job).unwrap()).unwrap()
    }

    fn pod(status: Value) -> PodFacts {
        let pod = json!({"metadata": {"name": "n-x1y2z", "labels": {"batch.kubernetes.io/job-name": "n"},
            "creationTimestamp": "2030-01-01T00:00:00Z"}, "spec": {"nodeName": "node-1", "containers": []},
            "status": status});
        pod_facts(&serde_json::from_value(pod).unwrap()).unwrap()
    }

    fn runner(phase: &str, state: Value) -> Value {
        json!({"phase": phase, "containerStatuses": [{"name": "runner", "image": "i", "imageID": "", "ready": false,
            "restartCount": 0, "state": state}]})
    }

    fn observed(job: &JobFacts, pod: &PodFacts) -> ClusterState {
        cluster_state(job, Some(pod), false, "2030-01-01T00:05:00Z".parse().unwrap())
    }

    #[test]
    fn a_pod_that_waits_is_active_and_shows_why() {
        let pulling = runner("Pending", json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}));
        let ClusterState::Active(seen) = observed(&job(json!({"active": 1})), &pod(pulling)) else { panic!("active") };
        assert_eq!((seen.phase, seen.reason.as_deref()), (ObservedPhase::Pending, Some("ImagePullBackOff")));
        assert_eq!((seen.pod_name.as_deref(), seen.node_name.as_deref()), (Some("n-x1y2z"), Some("node-1")));
        let unschedulable = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": "0/1 nodes are available"}]});
        assert_eq!(pod(unschedulable).reason.as_deref(), Some("Unschedulable"));
    }

    #[test]
    fn a_terminated_container_has_its_exit_code_whatever_the_job_reports() {
        let killed = runner("Failed", json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}));
        let ClusterState::Terminated(seen) = observed(&job(json!({})), &pod(killed)) else { panic!("terminated") };
        assert_eq!((seen.exit_code, seen.reason.as_deref()), (Some(137), Some("OOMKilled")));
        let mut evicted = runner("Failed", json!({"terminated": {"exitCode": 143, "reason": "Error"}}));
        evicted["reason"] = "Evicted".into();
        assert_eq!(pod(evicted).reason.as_deref(), Some("Evicted"));
        let done = runner("Succeeded", json!({"terminated": {"exitCode": 0, "message": "{\"status\":\"idle\"}"}}));
        let ClusterState::Terminated(seen) = observed(&job(json!({})), &pod(done)) else { panic!("terminated") };
        assert_eq!((seen.phase, seen.message.as_deref()), (ObservedPhase::Succeeded, Some("{\"status\":\"idle\"}")));
    }

    #[test]
    fn a_job_that_failed_without_its_pods_end_shows_nothing_of_the_runner() {
        let failed = job(json!({"conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]}));
        let now = "2030-01-01T00:05:00Z".parse().unwrap();
        let ClusterState::Vanished(seen) = cluster_state(&failed, None, false, now) else { panic!("vanished") };
        assert_eq!((seen.phase, seen.reason.as_deref()), (ObservedPhase::Failed, Some("DeadlineExceeded")));
        let complete = job(json!({"conditions": [{"type": "Complete", "status": "True"}]}));
        assert!(
            matches!(cluster_state(&complete, None, false, now), ClusterState::Terminated(seen) if seen.exit_code == Some(0))
        );
        let gone = PodFacts { is_gone: true, ..pod(runner("Running", json!({"running": {}}))) };
        assert!(matches!(observed(&job(json!({"active": 1})), &gone), ClusterState::Vanished(_)));
        let evicted = pod(json!({"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"}));
        let ClusterState::Vanished(seen) = observed(&job(json!({"active": 1})), &evicted) else { panic!("vanished") };
        assert_eq!(seen.reason.as_deref(), Some("Evicted"));
    }

    #[test]
    fn a_container_that_its_node_does_not_have_shows_no_exit_of_the_runner() {
        let state = json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown",
            "message": "The container could not be located when the pod was terminated"}});
        let unknown = pod(runner("Failed", state));
        let ClusterState::Vanished(seen) = observed(&job(json!({"active": 1})), &unknown) else { panic!("vanished") };
        assert_eq!((seen.exit_code, seen.reason.as_deref()), (None, Some("ContainerStatusUnknown")));
        let ClusterState::Vanished(seen) = observed(&overdue("Failed"), &unknown) else { panic!("vanished") };
        assert_eq!((seen.exit_code, seen.reason.as_deref()), (None, Some("DeadlineExceeded")));
    }

    /// A Job whose time limit is over, by its condition of this type.
    fn overdue(kind: &str) -> JobFacts {
        job(json!({"conditions": [{"type": kind, "status": "True", "reason": "DeadlineExceeded"}]}))
    }

    #[test]
    fn a_pod_that_ends_because_the_time_limit_is_over_shows_that_as_its_reason() {
        let stopped = pod(runner("Failed", json!({"terminated": {"exitCode": 130, "reason": "Error"}})));
        for kind in ["FailureTarget", "Failed"] {
            let ClusterState::Terminated(seen) = observed(&overdue(kind), &stopped) else { panic!("terminated") };
            assert_eq!((seen.exit_code, seen.reason.as_deref()), (Some(130), Some("DeadlineExceeded")), "{kind}");
        }
        // It is still within its grace period.
        let running = pod(runner("Running", json!({"running": {}})));
        let ClusterState::Active(seen) = observed(&overdue("FailureTarget"), &running) else { panic!("active") };
        assert_eq!((seen.phase, seen.reason.as_deref()), (ObservedPhase::Running, Some("DeadlineExceeded")));
        // It waits, and the cluster shows no reason.
        let ClusterState::Active(seen) = observed(&overdue("FailureTarget"), &pod(json!({"phase": "Pending"}))) else {
            panic!("active")
        };
        assert_eq!((seen.phase, seen.reason.as_deref()), (ObservedPhase::Pending, Some("DeadlineExceeded")));
        // Its work was done in time.
        let done = pod(runner("Succeeded", json!({"terminated": {"exitCode": 0, "reason": "Completed"}})));
        let ClusterState::Terminated(seen) = observed(&overdue("FailureTarget"), &done) else { panic!("terminated") };
        assert_eq!(seen.reason.as_deref(), Some("Completed"));
        let failed = |reason: &str| {
            let condition = json!({"type": "Failed", "status": "True", "reason": reason});
            job(json!({"conditions": [condition]}))
        };
        let ClusterState::Terminated(seen) = observed(&failed("BackoffLimitExceeded"), &stopped) else {
            panic!("terminated")
        };
        assert_eq!(seen.reason.as_deref(), Some("Error"));
    }

    #[test]
    fn a_pod_that_has_not_started_shows_why_also_when_the_time_limit_is_over() {
        let pulling = pod(runner("Pending", json!({"waiting": {"reason": "ImagePullBackOff"}})));
        let ClusterState::Active(seen) = observed(&overdue("FailureTarget"), &pulling) else { panic!("active") };
        assert_eq!((seen.phase, seen.reason.as_deref()), (ObservedPhase::Pending, Some("ImagePullBackOff")));
        let gone = PodFacts { is_gone: true, ..pulling };
        let ClusterState::Vanished(seen) = observed(&overdue("Failed"), &gone) else { panic!("vanished") };
        assert_eq!(seen.reason.as_deref(), Some("ImagePullBackOff"));
    }

    #[test]
    fn a_jobs_end_that_arrives_before_its_pods_is_not_taken_for_the_runners() {
        let now = "2030-01-01T00:05:00Z".parse().unwrap();
        for condition in ["Complete", "Failed"] {
            let ended = job(json!({"conditions": [{"type": condition, "status": "True"}]}));
            let early = |pod: Option<&PodFacts>| cluster_state(&ended, pod, true, now);
            let running = pod(runner("Running", json!({"running": {}})));
            assert_eq!((early(None), early(Some(&running))), (ClusterState::Ending, ClusterState::Ending));
            let left = runner("Failed", json!({"terminated": {"exitCode": 3, "message": "m"}}));
            assert!(matches!(early(Some(&pod(left))), ClusterState::Terminated(seen) if seen.exit_code == Some(3)));
            // Nothing more will be seen of these.
            let gone = PodFacts { is_gone: true, ..running };
            let evicted = pod(json!({"phase": "Failed", "reason": "Evicted"}));
            assert!(early(Some(&gone)) != ClusterState::Ending && early(Some(&evicted)) != ClusterState::Ending);
        }
    }

    #[test]
    fn a_node_that_does_not_respond_is_noticed() {
        let running = || pod(runner("Running", json!({"running": {}})));
        let active = job(json!({"active": 1}));
        assert!(
            matches!(observed(&active, &running()), ClusterState::Active(seen) if seen.phase == ObservedPhase::Running)
        );
        let mut lost = runner("Running", json!({"running": {}}));
        lost["conditions"] = json!([{"type": "Ready", "status": "Unknown"}]);
        assert!(
            matches!(observed(&active, &pod(lost)), ClusterState::Active(seen) if seen.phase == ObservedPhase::Unknown)
        );
        let overdue = PodFacts { delete_at: Some("2030-01-01T00:01:00Z".parse().unwrap()), ..running() };
        assert!(
            matches!(observed(&active, &overdue), ClusterState::Active(seen) if seen.phase == ObservedPhase::Unknown)
        );
        let leaving = PodFacts { delete_at: Some("2030-01-01T00:05:10Z".parse().unwrap()), ..running() };
        assert!(
            matches!(observed(&active, &leaving), ClusterState::Active(seen) if seen.phase == ObservedPhase::Running)
        );
    }

    #[test]
    fn objects_of_others_are_left_alone() {
        let foreign = json!({"metadata": {"name": "n", "uid": "u", "labels": {"ostler.dev/job": "not an id"}}});
        assert_eq!(job_facts(&serde_json::from_value(foreign).unwrap()), None);
        let bare = json!({"metadata": {"name": "n", "uid": "u"}});
        assert_eq!(pod_facts(&serde_json::from_value(bare).unwrap()), None);
    }
}
