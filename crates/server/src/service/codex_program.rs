//! The Codex program of this server, and whether it works.

use std::time::Duration;

use ostler_protocol::kernel::backends::CodexProgram;
use ostler_runner::backend::codex;
use tokio::{sync::Mutex, time::Instant};

use crate::config::AgentsSection;

/// A program that was not found, or did not work, is looked for again after this time at the earliest.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// The result of the latest probe and its time. A working program is not probed again, because each probe starts a process.
#[derive(Default)]
pub struct CodexProbe(Mutex<Option<(CodexProgram, Instant)>>);

impl CodexProbe {
    /// The program, as found by the latest probe. Concurrent callers wait for the same probe.
    pub(super) async fn get(&self, agents: &AgentsSection) -> CodexProgram {
        let mut latest = self.0.lock().await;
        if let Some((program, at)) = &*latest
            && (program.version.is_some() || at.elapsed() < RETRY_AFTER)
        {
            return program.clone();
        }
        let program = probe(agents).await;
        *latest = Some((program.clone(), Instant::now()));
        program
    }
}

/// The program that Codex's profiles run, and whether it reports to be Codex.
async fn probe(agents: &AgentsSection) -> CodexProgram {
    let search_path = std::env::var_os("PATH");
    let program = match codex::program::find(agents.codex.as_deref(), search_path.as_deref()) {
        Ok(program) => program,
        Err(problem) => return CodexProgram { problem: Some(problem), ..CodexProgram::default() },
    };
    let version = codex::program::version(&program).await;
    tracing::debug!(program = %program.display(), ?version, "looked for Codex");
    let problem = version.as_ref().err().cloned();
    CodexProgram { program: Some(program.display().to_string()), version: version.ok(), problem, image: None }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[tokio::test]
    async fn a_program_that_was_missing_is_looked_for_again_after_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("codex");
        let (agents, probe) =
            (AgentsSection { codex: Some(path.clone()), ..Default::default() }, CodexProbe::default());
        assert!(probe.get(&agents).await.problem.is_some());
        fs::write(&path, "#!/bin/sh\necho codex-cli 1.2.3\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(probe.get(&agents).await.problem.is_some(), "the failure is stored for a while");
        probe.0.lock().await.as_mut().unwrap().1 -= RETRY_AFTER;
        assert_eq!(probe.get(&agents).await.version.as_deref(), Some("1.2.3"));
        fs::remove_file(&path).unwrap();
        probe.0.lock().await.as_mut().unwrap().1 -= RETRY_AFTER;
        assert_eq!(probe.get(&agents).await.version.as_deref(), Some("1.2.3"), "a success is stored for good");
    }
}
