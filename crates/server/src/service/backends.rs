//! Backends: which agents this server can run.

use ostler_protocol::{
    Failure,
    backends::{Backend, BackendList},
};
use ostler_runner::agent::codex;
use ostler_store as store;

use crate::{
    app::{App, store_failure},
    config::AgentsSection,
};

pub async fn list(app: &App) -> Result<BackendList, Failure> {
    let known = store::backends::list(&app.db).await.map_err(store_failure)?;
    // Asked once, and only when somebody wants to know: it takes a process.
    let has_codex = *app.codex_works.get_or_init(|| codex_works(&app.config.agents)).await;
    let offered = |backend: Backend| {
        let available = backend.available || has_codex && backend.backend_kind.starts_with("codex");
        Backend { available, ..backend }
    };
    Ok(BackendList { backends: known.into_iter().map(offered).collect() })
}

/// Writes down what this build offers. Run once at start.
pub async fn record(db: &store::Db) -> Result<(), store::StoreError> {
    for (position, backend) in ostler_protocol::backends::built_in().iter().enumerate() {
        store::backends::insert(db, position as i64, backend).await?;
    }
    Ok(())
}

/// Whether the program that Codex's profiles run is there, and says its version.
async fn codex_works(agents: &AgentsSection) -> bool {
    let search_path = std::env::var_os("PATH");
    let Ok(program) = codex::program::find(agents.codex.as_deref(), search_path.as_deref()) else { return false };
    let version = codex::program::version(&program).await;
    tracing::debug!(program = %program.display(), ?version, "looked for Codex");
    version.is_ok()
}
