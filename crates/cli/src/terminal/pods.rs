//! What the cluster shows of a runner's pod, as words for people.

use ostler_protocol::kernel::runner_jobs::{JobObservation, ObservedPhase, RunnerJob};

use crate::terminal::output::line;

const REASON_CHARS_MAX: usize = 100;
const MESSAGE_CHARS_MAX: usize = 300;

/// The phase of the pod, with the cluster's reason and message: `pending, ImagePullBackOff: no such image`. `None` if the runner was
/// not started in a cluster.
pub(crate) fn pod_words(job: &RunnerJob) -> Option<String> {
    let observed = job.observed.view::<JobObservation>().filter(|observed| !observed.job_name.is_empty())?;
    let phase = match observed.phase {
        ObservedPhase::Pending => "pending",
        ObservedPhase::Running => "running",
        ObservedPhase::Succeeded => "succeeded",
        ObservedPhase::Failed => "failed",
        ObservedPhase::Unknown => "unknown",
    };
    let part = |before: &str, text: &Option<String>, chars_max| {
        text.as_deref().map(|text| format!("{before}{}", line(text, chars_max))).unwrap_or_default()
    };
    let exit_code = observed.exit_code.map(|code| format!(", exit code {code}")).unwrap_or_default();
    let reason = part(", ", &observed.reason, REASON_CHARS_MAX);
    Some(format!("{phase}{reason}{exit_code}{}", part(": ", &observed.message, MESSAGE_CHARS_MAX)))
}

/// As [`pod_words`], while the runner has not started: what it waits for.
pub(crate) fn waiting_pod_words(job: &RunnerJob) -> Option<String> {
    let observed = job.observed.view::<JobObservation>()?;
    pod_words(job).filter(|_| observed.phase == ObservedPhase::Pending)
}
