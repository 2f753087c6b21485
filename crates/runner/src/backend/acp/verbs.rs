//! One run of an ACP backend's program with other arguments, such as its commands to manage extensions. Confined as the backend is,
//! with a deadline, and with bounded output.

use std::process::Stdio;

use ostler_protocol::{
    FailureKind,
    kernel::{policy::Sandbox, provider_profiles::AgentConfig},
    redaction::Redactor,
};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::time::{Duration, timeout};

use super::{AcpBackend, companion::CompanionError};
use crate::{environment::BackendEnvironment, log_tail::LogTail};

/// The argument that makes the program speak the protocol.
const ACP_FLAGS: [&str; 2] = ["--acp", "--experimental-acp"];
/// How long the guard may take to end the program's processes.
const KILL_MS: u64 = 3_000;

/// How a run ended.
#[derive(Clone, Debug)]
pub struct VerbOutput {
    pub succeeded: bool,
    /// The last lines of its output and of its log, redacted.
    pub text: String,
}

/// Runs the program of an ACP backend with these arguments in place of the one that makes it speak the protocol.
pub async fn run_verb(
    environment: &BackendEnvironment,
    sandbox: Sandbox,
    arguments: &[String],
    limit: Duration,
    redactor: &Redactor,
) -> Result<VerbOutput, CompanionError> {
    let AgentConfig::Acp { command, keep, .. } = &environment.backend else {
        let message = "this backend is no program that speaks the Agent Client Protocol".to_owned();
        return Err(CompanionError::NotStarted { kind: FailureKind::NotImplemented, message });
    };
    let own = command.iter().filter(|word| !ACP_FLAGS.contains(&word.as_str()));
    let command: Vec<_> = own.chain(arguments).cloned().collect();
    let program = AcpBackend::new(&command, keep, environment).program(sandbox)?;
    let mut start = program.command();
    start.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let not_started = |error: std::io::Error| CompanionError::NotStarted {
        kind: FailureKind::InfraFailed,
        message: format!("the agent's program did not start: {error}"),
    };
    let mut child = start.spawn().map_err(not_started)?;
    let group = child.id().and_then(|id| Pid::from_raw(id as i32));
    let mut ended = EndedGroup { group, is_guarded: program.guarded.is_some() };
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(CompanionError::Gone);
    };
    let run = async {
        let wait = async {
            let status = child.wait().await;
            ended.reaped();
            status
        };
        tokio::join!(LogTail::read(stdout), LogTail::read(stderr), wait)
    };
    let Ok((output, log, status)) = timeout(limit, run).await else {
        if let Some(guard) = ended.group.filter(|_| ended.is_guarded) {
            // The guard ends all processes of the program, and then itself.
            let _ = kill_process(guard, Signal::TERM);
            if timeout(Duration::from_millis(KILL_MS), child.wait()).await.is_ok() {
                ended.reaped();
            }
        }
        return Err(CompanionError::TimedOut);
    };
    // The program was waited for, so that its id can be that of another process.
    ended.group = None;
    let succeeded = status.is_ok_and(|status| status.success());
    let texts = [output.redacted(redactor), log.redacted(redactor)];
    let text = texts.iter().filter(|text| !text.is_empty()).map(String::as_str).collect::<Vec<_>>().join("\n");
    Ok(VerbOutput { succeeded, text })
}

/// Ends the processes of a run that timed out or is no longer waited for.
struct EndedGroup {
    group: Option<Pid>,
    is_guarded: bool,
}

impl EndedGroup {
    /// The first process was waited for, so that its id can be that of another process. A guard has ended all others before. Without a
    /// guard, processes that are left keep the id of their group from being used again.
    fn reaped(&mut self) {
        if self.is_guarded {
            self.group = None;
        }
    }
}

impl Drop for EndedGroup {
    fn drop(&mut self) {
        let Some(group) = self.group else { return };
        // An error means that no process is left.
        let _ = match self.is_guarded {
            true => kill_process(group, Signal::TERM),
            false => kill_process_group(group, Signal::KILL),
        };
    }
}
