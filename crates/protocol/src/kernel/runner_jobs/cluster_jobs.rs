//! Runner jobs as Jobs of a cluster: their names, what is observed of them, and how long they are kept.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::RunnerJobId;

/// Characters of the configured beginning of a Job's name. The names of its pods and labels must fit into 63.
const NAME_PREFIX_CHARS_MAX: usize = 20;

/// The name of the Job of one start. It follows from the runner job and the number of the start alone, so that servers which
/// create it concurrently, or again after a lost response, create one Job.
pub fn cluster_job_name(prefix: &str, job_id: RunnerJobId, start: i64) -> String {
    let id = job_id.to_string();
    let body = id.rsplit('_').next().unwrap_or(&id);
    match start {
        ..=1 => format!("{prefix}-{body}"),
        later => format!("{prefix}-{body}-{later}"),
    }
}

/// Whether names of Jobs can begin with this text: lower-case letters, digits and dashes, a letter first.
pub fn is_cluster_name_part(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=NAME_PREFIX_CHARS_MAX).contains(&text.len())
        && text.bytes().all(is_plain)
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && !text.ends_with('-')
}

/// What the cluster shows of a runner's pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ObservedPhase {
    /// It waits for a node, an image or a volume.
    #[default]
    Pending,
    Running,
    Succeeded,
    Failed,
    /// Its node does not report any more.
    Unknown,
}

/// What a server has observed of one start, as it is stored and sent. It has no times, so that servers which observe the same
/// store the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobObservation {
    pub job_name: String,
    /// The Job's own identity in the cluster. Another Job of the same name has another one.
    pub job_uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    pub phase: ObservedPhase,
    /// The cluster's own word for it: `ImagePullBackOff`, `OOMKilled`, `Evicted`, `DeadlineExceeded`, `Unschedulable`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The exit code of the runner, once it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

/// How long the cluster keeps a finished Job, and how many there may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobRetention {
    /// The cluster deletes a Job this long after it has finished.
    pub ttl_seconds_after_finished: u32,
    /// `ttl-after-finished`: the cluster deletes finished Jobs, not this server.
    pub ttl_policy: String,
    /// How long the runner waits for another turn before it ends.
    pub runner_idle_timeout_ms: u64,
    pub pre_create_cleanup: JobCleanup,
}

/// What happens before a Job is created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobCleanup {
    /// Above this many finished Jobs, the oldest are deleted.
    pub finished_jobs_max: u32,
    /// With this many unfinished Jobs, which are never deleted, the request is refused.
    pub active_jobs_max: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_start_has_a_name_that_fits_and_that_any_server_can_work_out() {
        let job_id: RunnerJobId = format!("job_{:032x}", 0x1f).parse().unwrap();
        let first = cluster_job_name("ostler-run", job_id, 1);
        assert_eq!(first, format!("ostler-run-{:032x}", 0x1f));
        assert_eq!(cluster_job_name("ostler-run", job_id, 0), first, "the name is known before the start");
        assert_eq!(cluster_job_name("ostler-run", job_id, 12), format!("{first}-12"));
        let longest = "p".repeat(NAME_PREFIX_CHARS_MAX);
        // The cluster appends six characters for the pod.
        assert!(cluster_job_name(&longest, job_id, 999).len() <= 63 - 6);
    }

    #[test]
    fn a_prefix_is_the_beginning_of_a_dns_label() {
        for good in ["ostler-run", "a", "agentrun-v01"] {
            assert!(is_cluster_name_part(good), "{good}");
        }
        for bad in ["", "1a", "-a", "a-", "A", "a_b", "a.b", "abcdefghijklmnopqrstu"] {
            assert!(!is_cluster_name_part(bad), "{bad}");
        }
    }

    #[test]
    fn an_observation_leaves_out_what_is_unknown() {
        let observed = JobObservation { job_name: "n".into(), job_uid: "u".into(), ..JobObservation::default() };
        let text = serde_json::to_string(&observed).unwrap();
        assert_eq!(text, r#"{"jobName":"n","jobUid":"u","phase":"pending"}"#);
        assert_eq!(serde_json::from_str::<JobObservation>(&text).unwrap(), observed);
        assert_eq!(serde_json::from_str::<JobObservation>("{}").unwrap(), JobObservation::default());
    }
}
