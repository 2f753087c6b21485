//! The guard of programs that this server starts.

use ostler_runner::guard::{Guard, Limits};

use super::isolation;
use crate::app::App;

/// The guard of programs that this server starts for agents. `None` if they run unguarded.
pub(crate) async fn guard(app: &App) -> Option<Guard> {
    let program = app.config.runner.guard.clone()?;
    let section = &app.config.confinement;
    let limits = Limits {
        memory_bytes: section.memory_bytes,
        cpu_seconds: section.cpu_seconds,
        file_bytes: section.file_bytes,
        open_files: section.open_files,
        processes: section.processes,
    };
    Some(Guard { program, limits, landlock: section.landlock, isolation: isolation::get(app).await })
}
