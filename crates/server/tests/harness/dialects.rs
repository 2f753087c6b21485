//! What the servers of these tests speak: the same as `ostler serve`.

use std::sync::{Arc, LazyLock};

use ostler_protocol::Failure;
use ostler_server::{Config, RunningServer, Server, clock::Clock, dialect::Dialects};
use serde_json::Value;

pub fn dialects() -> Dialects {
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
pub async fn start(config: Config, clock: Arc<dyn Clock>) -> Result<RunningServer, Failure> {
    Server::new(config).with_dialects(dialects()).with_clock(clock).start().await
}

/// The document of such a server.
pub fn openapi() -> &'static Value {
    static DOCUMENT: LazyLock<Value> = LazyLock::new(|| ostler_server::openapi(&dialects()));
    &DOCUMENT
}
