//! What the servers of these tests speak: the same as `ostler serve`.

use std::{
    fs,
    path::Path,
    sync::{Arc, LazyLock},
};

use ostler_protocol::Failure;
use ostler_server::{Config, RunningServer, Server, clock::Clock, dialect::Dialects};
use serde_json::Value;

pub(crate) fn dialects() -> Dialects {
    Dialects::new([
        ostler_manager::dialect(),
        ostler_run_input::dialect(),
        ostler_mesh::dialect(),
        ostler_trust::dialect(),
        ostler_daemon::dialect(),
        ostler_mcp_server::dialect(),
    ])
}

/// A server with a clock of the test's.
pub(crate) async fn start(config: Config, clock: Arc<dyn Clock>) -> Result<RunningServer, Failure> {
    Server::new(config).with_dialects(dialects()).with_clock(clock).start().await
}

/// The document of such a server.
pub(crate) fn openapi() -> &'static Value {
    static DOCUMENT: LazyLock<Value> = LazyLock::new(read_openapi);
    &DOCUMENT
}

/// Reads the document that an earlier test process of the same program has stored. Making it takes a third of the processor
/// time of a short test, and each test is a process.
fn read_openapi() -> Value {
    let program = std::env::current_exe().unwrap();
    let name = format!("openapi-{}.json", program.file_name().unwrap().display());
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let changed = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    if changed(&file) > changed(&program) {
        return serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    }
    let document = ostler_server::openapi(&dialects());
    let mut stored = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    serde_json::to_writer(&mut stored, &document).unwrap();
    stored.persist(file).unwrap();
    document
}
