//! The log of a job's runner: of its pod, or the end of its process's.

use ostler_protocol::{
    Failure, Rule,
    kernel::runner_jobs::{JobLogQuery, RunnerJob, RunnerJobLog, is_log_position},
    limits::{LOG_LINES_DEFAULT, LOG_LINES_MAX},
};

use super::job_extras;
use crate::app::App;

/// A part of the log. Redacted, and bounded however much the runner writes. The caller may read the job's run.
pub async fn read(app: &App, job: RunnerJob, query: JobLogQuery) -> Result<RunnerJobLog, Failure> {
    let lines_max = query.tail_lines.unwrap_or(LOG_LINES_DEFAULT);
    if !(1..=LOG_LINES_MAX).contains(&lines_max) {
        return Err(Failure::invalid(Rule::LogLines, format!("tailLines must be 1 to {LOG_LINES_MAX}")));
    }
    if query.after.as_deref().is_some_and(|after| !is_log_position(after)) {
        return Err(Failure::invalid(Rule::LogAfter, "after must be the nextAfter of an earlier response"));
    }
    match pod_log(app, &job, &query, lines_max).await? {
        Some(log) => Ok(log),
        None => Ok(stored(app, job, &query, lines_max)),
    }
}

/// What the terminal summary has of the log. It has no times, so it is sent once.
fn stored(app: &App, job: RunnerJob, query: &JobLogQuery, lines_max: u32) -> RunnerJobLog {
    let summary = job.terminal_summary.to_value();
    let tail = summary["logTail"].as_str().filter(|_| query.after.is_none()).unwrap_or_default();
    let tail = job_extras::redact(app, &job, tail);
    let lines: Vec<&str> = tail.lines().collect();
    let from = lines.len().saturating_sub(lines_max as usize);
    RunnerJobLog {
        runner_job_id: job.runner_job_id,
        pod_name: job.pod_name,
        text: joined(&lines[from..]),
        truncated: from > 0,
        next_after: None,
        finished: job.phase.is_finished(),
    }
}

/// Whole lines.
fn joined(lines: &[impl AsRef<str>]) -> String {
    lines.iter().flat_map(|line| [line.as_ref(), "\n"]).collect()
}

#[cfg(feature = "kubernetes")]
mod of_pods {
    use kube::api::LogParams;
    use ostler_protocol::{
        Failure,
        kernel::runner_jobs::{JobLogQuery, RunnerJob, RunnerJobLog},
        limits::LOG_BYTES_MAX,
    };

    use super::{super::job_extras, joined};
    use crate::{
        app::App,
        kubernetes::{
            Cluster, ClusterError, KubernetesState, LogLines, job_manifest::CONTAINER, later_lines, next_second,
        },
    };

    /// Bytes of the longest read. Only a log with more than `LOG_BYTES_MAX` bytes in one second needs it.
    const READ_BYTES_MAX: usize = 16 * LOG_BYTES_MAX;
    /// By how much a read grows, or a tail shrinks, if the bound has cut off what matters.
    const RETRY_FACTOR: usize = 4;

    /// The namespace of Jobs.
    pub(in crate::service) fn cluster_namespace(app: &App) -> String {
        let kubernetes = app.state::<KubernetesState>().get();
        kubernetes.map_or_else(String::new, |kubernetes| kubernetes.cluster.namespace().to_owned())
    }

    /// `None` if there is no such pod, or its container has not started.
    pub(super) async fn pod_log(
        app: &App,
        job: &RunnerJob,
        query: &JobLogQuery,
        lines_max: u32,
    ) -> Result<Option<RunnerJobLog>, Failure> {
        let kubernetes = app.state::<KubernetesState>().get();
        let (Some(kubernetes), Some(pod)) = (kubernetes, &job.pod_name) else { return Ok(None) };
        let read = match query.after.as_deref() {
            Some(after) => read_after(&kubernetes.cluster, pod, after).await,
            None => read_tail(&kubernetes.cluster, pod, lines_max).await,
        };
        let (found, truncated) = match read {
            Ok(read) => read,
            // The cluster refuses the log of a container that has not started.
            Err(ClusterError::Absent | ClusterError::Refused(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok(Some(RunnerJobLog {
            runner_job_id: job.runner_job_id,
            pod_name: job.pod_name.clone(),
            truncated,
            text: job_extras::redact(app, job, &joined(&found.lines)),
            next_after: found.last_at,
            finished: job.phase.is_finished(),
        }))
    }

    /// The lines after a time, and whether some were left out.
    ///
    /// The cluster begins with the second of that time, and its bound cuts the end. So a read may contain only lines that were
    /// sent before: then more is read. If that does not suffice either, the rest of the second is left out.
    async fn read_after(cluster: &Cluster, pod: &str, after: &str) -> Result<(LogLines, bool), ClusterError> {
        let mut bytes_max = LOG_BYTES_MAX;
        loop {
            let params = LogParams { since_time: after.parse().ok(), ..LogParams::default() };
            let (log, is_cut) = read(cluster, pod, params, bytes_max).await?;
            let found = later_lines(&log, Some(after), LOG_BYTES_MAX);
            let is_new = found.last_at.as_deref() != Some(after) || !found.lines.is_empty();
            if is_new || !is_cut {
                let has_gap = found.has_gap;
                return Ok((found, has_gap));
            }
            if bytes_max >= READ_BYTES_MAX {
                return Ok((LogLines { lines: vec![], last_at: next_second(after), has_gap: true }, true));
            }
            bytes_max *= RETRY_FACTOR;
        }
    }

    /// The last lines, and whether there may be earlier ones. Fewer lines than wanted if these have too many bytes: the bound of
    /// the cluster would cut off the newest of them.
    async fn read_tail(cluster: &Cluster, pod: &str, lines_max: u32) -> Result<(LogLines, bool), ClusterError> {
        let mut tail_lines = lines_max as usize;
        loop {
            let params = LogParams { tail_lines: i64::try_from(tail_lines).ok(), ..LogParams::default() };
            let (log, is_cut) = read(cluster, pod, params, LOG_BYTES_MAX).await?;
            if is_cut && tail_lines > 1 {
                tail_lines = (tail_lines / RETRY_FACTOR).max(1);
                continue;
            }
            let found = later_lines(&log, None, LOG_BYTES_MAX);
            let is_short = is_cut || found.has_gap || found.lines.len() >= tail_lines;
            return Ok((found, is_short));
        }
    }

    /// A part of the log in whole lines, and whether the bound has cut it.
    async fn read(
        cluster: &Cluster,
        pod: &str,
        params: LogParams,
        bytes_max: usize,
    ) -> Result<(String, bool), ClusterError> {
        let (container, limit_bytes) = (Some(CONTAINER.into()), i64::try_from(bytes_max).ok());
        let mut log = cluster.pod_log(pod, LogParams { container, limit_bytes, ..params }).await?;
        let is_cut = log.len() >= bytes_max;
        if is_cut {
            // Half a secret is not recognised. The next response has the rest of the line.
            let end = log.rfind('\n').map_or(0, |at| at + 1);
            log.truncate(end);
        }
        Ok((log, is_cut))
    }
}

#[cfg(feature = "kubernetes")]
pub(super) use of_pods::cluster_namespace;
#[cfg(feature = "kubernetes")]
use of_pods::pod_log;

/// Without Kubernetes, no job has a namespace of a cluster.
#[cfg(not(feature = "kubernetes"))]
pub(super) fn cluster_namespace(app: &App) -> String {
    app.config.runner.namespace.clone()
}

#[cfg(not(feature = "kubernetes"))]
async fn pod_log(_: &App, _: &RunnerJob, _: &JobLogQuery, _: u32) -> Result<Option<RunnerJobLog>, Failure> {
    Ok(None)
}
