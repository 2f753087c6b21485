//! The rules of a launcher whose runners are Jobs of a cluster, pure: what a server does about one started job, given what the
//! cluster shows of it. Every server applies them to every job, without a leader; each step can be repeated, and two servers
//! that take it do no harm.
//!
//! Only a container that is known to have terminated ends a start for certain. Whatever else is missing, such as the Job, the
//! pod or its node, is no proof: the runner may still be at work. Then the lease decides, as for a launcher that is silent.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::{
    RawJson,
    kernel::{
        leases::Lease,
        runner_jobs::{JOB_OBSERVE_FAILED, JobEnd, JobObservation, Launcher, ObservedPhase, RunnerJob},
    },
    text::clip,
};

const MESSAGE_CHARS_MAX: usize = 300;
/// How a runner ends that received a signal and has handed back its run: the status of its summary, and its exit code.
const STOPPED: (&str, i32) = ("stopped", 130);
/// Bytes of the end of a log that a cluster reports of a container without a message. A log with as many was cut, most likely.
const LOG_TAIL_BYTES_MAX: usize = 2_048;
/// The cluster's reason for ending a Job whose time limit is over.
pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
/// The cluster's reason for the end of a container that its node does not have: it never started, or the node has lost it. The exit
/// code beside it, 137, is not one of the runner.
pub const CONTAINER_STATUS_UNKNOWN: &str = "ContainerStatusUnknown";

/// The cluster's reason for a container that ended with another code than 0 by itself.
const PLAIN_ERROR: &str = "Error";

/// The observed reason of a start whose objects exceed a quota of the cluster.
pub const QUOTA_EXCEEDED: &str = "QuotaExceeded";
/// The observed reason of a start that waits for the API server.
pub const CLUSTER_UNAVAILABLE: &str = "ClusterUnavailable";

/// What the cluster shows of one start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterState {
    /// There is no such Job.
    Absent,
    /// The Job exists, and its runner has not ended as far as is known.
    Active(JobObservation),
    /// The Job has ended, and the last state of its pod, which shows how the runner ended, has not arrived yet.
    Ending,
    /// The runner's container has terminated. The observation has its exit code.
    Terminated(JobObservation),
    /// The Job has failed or its pod is gone, and nothing shows how the runner ended: deleted, evicted or past its deadline.
    Vanished(JobObservation),
}

impl ClusterState {
    /// Keeps the reason why a pod waited if the pod was stopped before its container started: its node then reports no other reason.
    /// `last`: what was recorded before, by this rule or while the pod waited. `was_held`: the runner has held its run, so it has started.
    pub fn with_reason_of_wait(self, last: &JobObservation, was_held: bool) -> Self {
        let is_unknown = |seen: &JobObservation| seen.reason.as_deref() == Some(CONTAINER_STATUS_UNKNOWN);
        let has_waited = matches!(last.phase, ObservedPhase::Pending | ObservedPhase::Failed)
            && last.exit_code.is_none()
            && last.pod_name.is_some()
            && last.reason.is_some()
            && !was_held;
        match self {
            Self::Vanished(seen) if has_waited && is_unknown(&seen) && seen.job_uid == last.job_uid => {
                Self::Vanished(JobObservation { reason: last.reason.clone(), message: last.message.clone(), ..seen })
            }
            state => state,
        }
    }
}

/// What else a step depends on.
#[derive(Clone, Copy, Debug)]
pub struct StartFacts {
    /// The Job was seen before, so that its absence means that it was deleted.
    pub is_recorded: bool,
    /// A pod was seen before.
    pub has_pod: bool,
    /// The job's runner holds the run, or that was not read.
    pub is_held: bool,
    /// The run has unfinished commands, and the job is needed for them: [`is_needed`].
    pub has_work: bool,
    /// How long ago the job was claimed.
    pub age: Duration,
    /// The runner has held the run since its pod runs.
    pub was_held: bool,
    /// How long the pod has been seen running without a lease.
    pub unheld_for: Duration,
}

/// How long a start may take.
#[derive(Clone, Copy, Debug)]
pub struct StartLimits {
    /// From the claim until the runner runs.
    pub start: Duration,
    /// From then on until the runner holds the run.
    pub until_lease: Duration,
    /// From the end of its lease until it has left.
    pub after_lease: Duration,
}

impl StartLimits {
    fn unheld(self, facts: StartFacts) -> Duration {
        if facts.was_held { self.after_lease } else { self.until_lease }
    }
}

/// What to do about a start.
#[derive(Clone, Debug, PartialEq)]
pub enum ClusterStep {
    /// Nothing, until the lease of the runner has ended.
    Wait,
    /// Create the Job, or whatever of it is missing.
    Create,
    /// Store what was observed, if it is new.
    Record(JobObservation),
    /// Report the end of the runner.
    Finish { end: JobEnd, summary: RawJson },
    /// Delete the Job first: its runner does no work. Then report.
    Remove { end: JobEnd, summary: RawJson },
}

/// Whether a job needs a runner while its run has unfinished commands. A job is ordered for one command. If that command has ended
/// before any runner came, no runner is started: the other commands have orders of their own. A runner that has held the run may
/// have taken up other commands too, which are its job's from then on. `is_command_open`: the job's command has not ended.
/// `last_lease`: the latest lease of the run.
pub fn is_needed(job: &RunnerJob, is_command_open: bool, last_lease: Option<&Lease>) -> bool {
    let has_had_runner = last_lease.is_some_and(|lease| lease.runner_id == job.runner_id);
    job.launcher != Launcher::Kubernetes || job.standing || is_command_open || has_had_runner
}

/// What a server does about a start.
pub fn next_step(state: ClusterState, facts: StartFacts, limits: StartLimits) -> ClusterStep {
    let nothing_left = || summary_of("idle", None, "there was nothing left to do", None);
    match state {
        ClusterState::Absent if facts.is_recorded => lost("the Job was deleted before its runner ended", None, facts),
        ClusterState::Absent if facts.has_work => ClusterStep::Create,
        ClusterState::Absent => ClusterStep::Finish { end: JobEnd::Succeeded, summary: nothing_left() },
        ClusterState::Ending => ClusterStep::Wait,
        ClusterState::Terminated(observed) => {
            let own = own_summary(&observed);
            let is_stopped = own.as_ref().is_some_and(|own| own.get("status").is_some_and(|one| one == STOPPED.0));
            let is_overdue = observed.reason.as_deref() == Some(DEADLINE_EXCEEDED);
            let end = match observed.exit_code {
                Some(0) => JobEnd::Succeeded,
                // Counted although the runner has handed back its run: work that takes longer would be started again for ever.
                _ if is_overdue => JobEnd::Overdue,
                // Its pod was deleted, or its node is drained.
                Some(code) if code == STOPPED.1 && is_stopped => JobEnd::Returned,
                _ => JobEnd::Failed,
            };
            ClusterStep::Finish { end, summary: ended_summary(own, &observed) }
        }
        ClusterState::Vanished(observed) => lost("the pod of the runner is gone", Some(observed), facts),
        ClusterState::Active(observed) => match observed.phase {
            ObservedPhase::Unknown => lost("the node of the runner does not respond", Some(observed), facts),
            ObservedPhase::Pending if facts.has_pod && observed.pod_name.is_none() => {
                // What was recorded of the pod stays.
                lost("the pod of the runner was deleted", None, facts)
            }
            ObservedPhase::Pending if !facts.has_work && !facts.is_held => {
                ClusterStep::Remove { end: JobEnd::Succeeded, summary: nothing_left() }
            }
            ObservedPhase::Pending if facts.age > limits.start && !facts.is_held => {
                let message = "the runner's pod did not start in time";
                let summary = summary_of("not-started", Some("infra-failed"), message, Some(&observed));
                ClusterStep::Remove { end: JobEnd::Failed, summary }
            }
            ObservedPhase::Running if !facts.is_held && facts.unheld_for > limits.unheld(facts) => {
                let message = "the runner ran without its lease";
                let summary = summary_of("stuck", Some("infra-failed"), message, Some(&observed));
                // Not a failure by itself: a runner that has released its run may have ended while the cluster was away.
                ClusterStep::Remove { end: JobEnd::Lost, summary }
            }
            _ => ClusterStep::Record(observed),
        },
    }
}

/// Nothing shows how the runner ended. While it holds its run, it may be at work.
fn lost(message: &str, observed: Option<JobObservation>, facts: StartFacts) -> ClusterStep {
    if facts.is_held {
        return observed.map_or(ClusterStep::Wait, ClusterStep::Record);
    }
    let mut fields = summary_fields("lost", Some("infra-failed"), message, observed.as_ref());
    fields.insert("category".into(), JOB_OBSERVE_FAILED.into());
    ClusterStep::Finish { end: JobEnd::Lost, summary: RawJson::of(&fields) }
}

/// The summary that the runner left.
fn own_summary(observed: &JobObservation) -> Option<Map<String, Value>> {
    observed.message.as_deref().and_then(|text| serde_json::from_str(text).ok())
}

/// The summary of a runner that has ended: its own, if it left one, with what the cluster shows. Otherwise its message is the end of
/// its log, which the cluster reports instead.
fn ended_summary(own: Option<Map<String, Value>>, observed: &JobObservation) -> RawJson {
    let mut fields = own.unwrap_or_else(|| {
        let mut fields = match observed.exit_code {
            Some(0) => summary_fields("exited", None, "the runner ended", None),
            code => {
                let code = code.map_or_else(|| "an unknown code".to_owned(), |code| format!("code {code}"));
                let reason = observed.reason.as_deref().filter(|reason| *reason != PLAIN_ERROR);
                let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
                summary_fields("exited", Some("infra-failed"), &format!("the runner ended with {code}{reason}"), None)
            }
        };
        let tail = observed.message.as_deref().map(whole_lines).filter(|tail| !tail.is_empty());
        fields.extend(tail.map(|tail| ("logTail".to_owned(), tail.into())));
        fields
    });
    fields.extend(cluster_fields(observed));
    RawJson::of(&fields)
}

/// The end of a log without a first line that may have been cut. The end of a secret in it would not be recognised as one.
fn whole_lines(tail: &str) -> &str {
    match tail.split_once('\n') {
        _ if tail.len() < LOG_TAIL_BYTES_MAX => tail,
        Some((_, whole)) => whole,
        None => "",
    }
}

fn summary_of(status: &str, failure_kind: Option<&str>, message: &str, observed: Option<&JobObservation>) -> RawJson {
    RawJson::of(&summary_fields(status, failure_kind, message, observed))
}

fn summary_fields(
    status: &str,
    failure_kind: Option<&str>,
    message: &str,
    observed: Option<&JobObservation>,
) -> Map<String, Value> {
    let why = observed.and_then(|observed| observed.reason.as_deref().or(observed.message.as_deref()));
    let message = why.map_or_else(|| message.to_owned(), |why| format!("{message}: {why}"));
    let mut fields = Map::new();
    fields.insert("status".into(), status.into());
    if let Some(kind) = failure_kind {
        fields.insert("failureKind".into(), kind.into());
    }
    fields.insert("message".into(), clip(&message, MESSAGE_CHARS_MAX).into());
    fields.extend(observed.into_iter().flat_map(cluster_fields));
    fields
}

/// The part of a summary about the pod.
fn cluster_fields(observed: &JobObservation) -> impl Iterator<Item = (String, Value)> + use<> {
    let fields = [
        ("exitCode", json!(observed.exit_code)),
        ("reason", json!(observed.reason)),
        ("jobName", json!(observed.job_name)),
        ("podName", json!(observed.pod_name)),
        ("nodeName", json!(observed.node_name)),
    ];
    fields.into_iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: StartLimits = StartLimits {
        start: Duration::from_secs(600),
        until_lease: Duration::from_secs(150),
        after_lease: Duration::from_secs(30),
    };
    const FACTS: StartFacts = StartFacts {
        is_recorded: true,
        has_pod: false,
        is_held: false,
        has_work: true,
        age: Duration::ZERO,
        was_held: false,
        unheld_for: Duration::ZERO,
    };
    const LATER: Duration = Duration::from_secs(3_600);

    fn observed(phase: ObservedPhase) -> JobObservation {
        JobObservation { job_name: "n".into(), job_uid: "u".into(), phase, ..JobObservation::default() }
    }

    fn end_of(step: ClusterStep) -> (JobEnd, Value) {
        match step {
            ClusterStep::Finish { end, summary } | ClusterStep::Remove { end, summary } => (end, summary.to_value()),
            other => panic!("no end: {other:?}"),
        }
    }

    #[test]
    fn a_job_is_created_once_and_only_while_there_is_work() {
        let unseen = StartFacts { is_recorded: false, ..FACTS };
        assert_eq!(next_step(ClusterState::Absent, unseen, LIMITS), ClusterStep::Create);
        let idle = StartFacts { has_work: false, ..unseen };
        assert_eq!(end_of(next_step(ClusterState::Absent, idle, LIMITS)).0, JobEnd::Succeeded);
        // A Job that was seen and is not there any more was deleted. It is not made again behind the kernel's back.
        let (end, summary) = end_of(next_step(ClusterState::Absent, FACTS, LIMITS));
        assert_eq!((end, &summary["category"]), (JobEnd::Lost, &json!(JOB_OBSERVE_FAILED)));
    }

    #[test]
    fn only_a_terminated_container_ends_a_start_for_certain() {
        let ended = |exit_code| {
            let observed = JobObservation { exit_code: Some(exit_code), ..observed(ObservedPhase::Failed) };
            end_of(next_step(ClusterState::Terminated(observed), FACTS, LIMITS))
        };
        assert_eq!(ended(0).0, JobEnd::Succeeded);
        let (end, summary) = ended(137);
        assert_eq!((end, &summary["exitCode"], &summary["jobName"]), (JobEnd::Failed, &json!(137), &json!("n")));
        for (reason, message) in [
            ("OOMKilled", "the runner ended with code 137: OOMKilled"),
            (PLAIN_ERROR, "the runner ended with code 137"),
        ] {
            let (reason, exit_code) = (Some(reason.to_owned()), Some(137));
            let killed = JobObservation { reason, exit_code, ..observed(ObservedPhase::Failed) };
            assert_eq!(end_of(next_step(ClusterState::Terminated(killed), FACTS, LIMITS)).1["message"], message);
        }
        let evicted = JobObservation { reason: Some("Evicted".into()), ..observed(ObservedPhase::Failed) };
        let (end, summary) = end_of(next_step(ClusterState::Vanished(evicted), FACTS, LIMITS));
        assert_eq!((end, &summary["reason"]), (JobEnd::Lost, &json!("Evicted")));
        let (end, summary) = end_of(next_step(ClusterState::Active(observed(ObservedPhase::Unknown)), FACTS, LIMITS));
        assert_eq!((end, &summary["status"]), (JobEnd::Lost, &json!("lost")));
        let had_pod = StartFacts { has_pod: true, ..FACTS };
        let pending = ClusterState::Active(observed(ObservedPhase::Pending));
        assert_eq!(end_of(next_step(pending, had_pod, LIMITS)).0, JobEnd::Lost);
    }

    #[test]
    fn a_pod_that_was_stopped_before_its_container_started_shows_why_it_waited() {
        let seen = |phase, reason: &str| {
            let (pod_name, reason) = (Some("n-x1y2z".into()), Some(reason.into()));
            JobObservation { pod_name, reason, ..observed(phase) }
        };
        let reason_after = |last: &JobObservation, reason: &str, was_held: bool| {
            let stopped = ClusterState::Vanished(seen(ObservedPhase::Failed, reason));
            match stopped.with_reason_of_wait(last, was_held) {
                ClusterState::Vanished(seen) => seen.reason.unwrap(),
                other => panic!("{other:?}"),
            }
        };
        let pulling = seen(ObservedPhase::Pending, "ImagePullBackOff");
        // While the lease lasts, the first look records what the next one sees again.
        for last in [&pulling, &seen(ObservedPhase::Failed, "ImagePullBackOff")] {
            assert_eq!(reason_after(last, CONTAINER_STATUS_UNKNOWN, false), "ImagePullBackOff");
        }
        // It ran, or was one of another start, or had no pod yet.
        let others = [
            seen(ObservedPhase::Running, "ImagePullBackOff"),
            JobObservation { job_uid: "another".into(), ..pulling.clone() },
            JobObservation { pod_name: None, reason: Some(QUOTA_EXCEEDED.into()), ..pulling.clone() },
            JobObservation { exit_code: Some(1), ..seen(ObservedPhase::Failed, "Error") },
        ];
        for last in others {
            assert_eq!(reason_after(&last, CONTAINER_STATUS_UNKNOWN, false), CONTAINER_STATUS_UNKNOWN);
        }
        assert_eq!(reason_after(&pulling, CONTAINER_STATUS_UNKNOWN, true), CONTAINER_STATUS_UNKNOWN);
        // Starts that exceed their time limit are counted by this reason.
        for reason in [DEADLINE_EXCEEDED, "Evicted"] {
            assert_eq!(reason_after(&pulling, reason, false), reason);
        }
    }

    #[test]
    fn a_runner_that_holds_its_run_is_not_given_up() {
        let held = StartFacts { is_held: true, ..FACTS };
        assert_eq!(next_step(ClusterState::Absent, held, LIMITS), ClusterStep::Wait);
        let gone = observed(ObservedPhase::Running);
        assert_eq!(next_step(ClusterState::Vanished(gone.clone()), held, LIMITS), ClusterStep::Record(gone));
        let unknown = observed(ObservedPhase::Unknown);
        assert_eq!(next_step(ClusterState::Active(unknown.clone()), held, LIMITS), ClusterStep::Record(unknown));
    }

    #[test]
    fn the_summary_is_the_runners_own_if_it_left_one() {
        let message = Some(r#"{"status":"idle","turns":2}"#.to_owned());
        let left = JobObservation { message, exit_code: Some(0), ..observed(ObservedPhase::Succeeded) };
        let (_, summary) = end_of(next_step(ClusterState::Terminated(left), FACTS, LIMITS));
        assert_eq!(summary, json!({"status": "idle", "turns": 2, "exitCode": 0, "jobName": "n"}));
        // Without one, the cluster reports the end of the log.
        let message = Some("thread 'main' panicked".to_owned());
        let left = JobObservation { message, exit_code: Some(101), ..observed(ObservedPhase::Failed) };
        let (end, summary) = end_of(next_step(ClusterState::Terminated(left), FACTS, LIMITS));
        assert_eq!((end, &summary["status"]), (JobEnd::Failed, &json!("exited")));
        assert_eq!(summary["logTail"], "thread 'main' panicked");
    }

    /// The kubelet takes the last bytes of a log, so the first line may begin in the middle of a secret.
    #[test]
    fn the_first_line_of_a_full_log_tail_is_left_out() {
        let tail_of = |message: String| {
            let left = JobObservation { message: Some(message), exit_code: Some(1), ..observed(ObservedPhase::Failed) };
            end_of(next_step(ClusterState::Terminated(left), FACTS, LIMITS)).1["logTail"].clone()
        };
        let rest = format!("{}\nlast", "x".repeat(LOG_TAIL_BYTES_MAX));
        assert_eq!(tail_of(format!("half-of-a-secret\n{rest}")), rest.as_str());
        assert_eq!(tail_of("half-of-a-secret".repeat(LOG_TAIL_BYTES_MAX / 16)), Value::Null, "one line only");
        assert_eq!(tail_of("first\nlast".into()), "first\nlast", "a short log is whole");
    }

    #[test]
    fn a_runner_that_is_stopped_returns_its_job() {
        let ended = |exit_code, message: &str| {
            let message = Some(message.to_owned());
            let left = JobObservation { message, exit_code: Some(exit_code), ..observed(ObservedPhase::Failed) };
            end_of(next_step(ClusterState::Terminated(left), FACTS, LIMITS)).0
        };
        assert_eq!(ended(130, r#"{"status":"stopped","turns":0}"#), JobEnd::Returned);
        assert_eq!(ended(137, r#"{"status":"stopped","turns":0}"#), JobEnd::Failed, "it was killed");
        assert_eq!(ended(130, r#"{"status":"crashed"}"#), JobEnd::Failed);
        assert_eq!(ended(130, "stopped"), JobEnd::Failed);
    }

    #[test]
    fn a_runner_that_is_stopped_because_its_time_limit_is_over_is_overdue() {
        let message = Some(r#"{"status":"stopped","turns":0}"#.to_owned());
        let reason = Some(DEADLINE_EXCEEDED.to_owned());
        let stopped = JobObservation { reason, message, exit_code: Some(STOPPED.1), ..observed(ObservedPhase::Failed) };
        let (end, summary) = end_of(next_step(ClusterState::Terminated(stopped.clone()), FACTS, LIMITS));
        assert_eq!((end, &summary["reason"]), (JobEnd::Overdue, &json!(DEADLINE_EXCEEDED)));
        // It was killed at the end of its grace period.
        let killed = JobObservation { message: None, exit_code: Some(137), ..stopped.clone() };
        assert_eq!(end_of(next_step(ClusterState::Terminated(killed), FACTS, LIMITS)).0, JobEnd::Overdue);
        // Its work was done in time.
        let done = JobObservation { exit_code: Some(0), ..stopped };
        assert_eq!(end_of(next_step(ClusterState::Terminated(done), FACTS, LIMITS)).0, JobEnd::Succeeded);
    }

    #[test]
    fn a_job_that_has_ended_waits_for_the_last_state_of_its_pod() {
        let idle = StartFacts { has_work: false, has_pod: true, age: LATER, ..FACTS };
        assert_eq!(next_step(ClusterState::Ending, idle, LIMITS), ClusterStep::Wait);
    }

    #[test]
    fn a_pod_that_never_starts_and_a_runner_without_a_lease_are_removed() {
        let pending = || {
            let reason = Some("ImagePullBackOff".into());
            ClusterState::Active(JobObservation { reason, ..observed(ObservedPhase::Pending) })
        };
        assert!(matches!(next_step(pending(), FACTS, LIMITS), ClusterStep::Record(_)));
        let late = StartFacts { age: LATER, ..FACTS };
        let (end, summary) = end_of(next_step(pending(), late, LIMITS));
        assert_eq!((end, &summary["status"]), (JobEnd::Failed, &json!("not-started")));
        assert!(summary["message"].as_str().unwrap().ends_with(": ImagePullBackOff"), "{summary}");
        let cancelled = StartFacts { has_work: false, ..FACTS };
        assert_eq!(end_of(next_step(pending(), cancelled, LIMITS)).0, JobEnd::Succeeded);
        let running = || ClusterState::Active(observed(ObservedPhase::Running));
        let short = StartFacts { unheld_for: Duration::from_secs(60), age: LATER, ..FACTS };
        assert!(matches!(next_step(running(), short, LIMITS), ClusterStep::Record(_)), "it waits for the lease");
        let left = StartFacts { was_held: true, ..short };
        let (end, summary) = end_of(next_step(running(), left, LIMITS));
        assert_eq!((end, &summary["status"]), (JobEnd::Lost, &json!("stuck")));
        let long = StartFacts { unheld_for: LATER, ..short };
        assert_eq!(end_of(next_step(running(), long, LIMITS)).1["status"], "stuck");
        let held = StartFacts { is_held: true, ..long };
        assert!(matches!(next_step(running(), held, LIMITS), ClusterStep::Record(_)));
    }
}
