//! Backends: which agents this server can run.

use ostler_protocol::{
    Failure,
    kernel::backends::{Backend, BackendList, CodexProgram},
};
use ostler_runner::backend::codex;
use ostler_store as store;

use crate::{app::App, config::AgentsSection};

pub async fn list(app: &App) -> Result<BackendList, Failure> {
    let backends = store::kernel::backends::list(&app.db).await?;
    // Probed once, at the first request, because it starts a process.
    let codex = app.codex.get_or_init(|| codex(&app.config.agents)).await.clone();
    let has_codex = codex.version.is_some();
    let offered = |backend: Backend| {
        let available = backend.available || has_codex && backend.backend_kind.starts_with("codex");
        Backend { available, ..backend }
    };
    Ok(BackendList { backends: backends.into_iter().map(offered).collect(), codex })
}

/// Stores the backends of this build. Run once at start.
pub async fn record(db: &store::Db) -> Result<(), store::StoreError> {
    for (position, backend) in ostler_protocol::kernel::backends::built_in().iter().enumerate() {
        store::kernel::backends::insert(db, position as i64, backend).await?;
    }
    Ok(())
}

/// The program that Codex's profiles run, and whether it reports to be Codex.
async fn codex(agents: &AgentsSection) -> CodexProgram {
    let search_path = std::env::var_os("PATH");
    let program = match codex::program::find(agents.codex.as_deref(), search_path.as_deref()) {
        Ok(program) => program,
        Err(problem) => return CodexProgram { problem: Some(problem), ..CodexProgram::default() },
    };
    let version = codex::program::version(&program).await;
    tracing::debug!(program = %program.display(), ?version, "looked for Codex");
    let problem = version.as_ref().err().cloned();
    CodexProgram { program: Some(program.display().to_string()), version: version.ok(), problem }
}
