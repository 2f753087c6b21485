//! The programs that profiles need, as far as this server can check them: not those in an image of runners.

use ostler_protocol::kernel::{backends::CodexProgram, provider_profiles::AgentConfig, runner_jobs::Launcher};
use ostler_runner::backend::acp;

use crate::app::App;

/// The Codex that runs use. If runners are Jobs of a cluster, it is in their image, which the server cannot look into.
pub(in crate::service) async fn codex(app: &App) -> CodexProgram {
    if app.config.runner.launcher == Launcher::Kubernetes {
        let image = app.config.kubernetes.image.clone().unwrap_or_default();
        return CodexProgram { image: Some(image), ..CodexProgram::default() };
    }
    app.codex.get(&app.config.agents).await
}

/// What is wrong with the program that a profile needs.
pub(super) fn missing(agent: &AgentConfig, codex: &CodexProgram) -> Option<String> {
    match agent {
        _ if codex.image.is_some() => None,
        AgentConfig::Acp { command, .. } => acp::program::find(command, std::env::var_os("PATH").as_deref()).err(),
        AgentConfig::Codex => codex.problem.as_ref().map(|problem| format!("Codex cannot be started: {problem}")),
        _ => None,
    }
}
