//! Routes of the daemon dialect, for editors and SDKs.

mod agent_status;
mod approval_modes;
mod asides;
mod branches;
mod callers;
mod details;
mod events;
mod files;
mod mcp;
mod prompts;
mod rewinds;
mod sessions;
mod shell;
mod votes;
mod workspace;

use axum::extract::DefaultBodyLimit;
use ostler_server::{app::App, net::api_router::ApiRouter};

/// Maximum bytes of a request's body.
const BODY_BYTES_MAX: usize = 10 * 1024 * 1024;

/// Paths of the daemon's protocol that have no operation here. Published clients also call operations that later daemons have, and
/// read the failure as one of the daemon.
pub(crate) const UNKNOWN_PATHS: &[&str] = &[
    "/session/{sessionId}/{*operation}",
    "/workspace/{cwd}",
    "/workspace/{cwd}/{*operation}",
    "/file/{*operation}",
    "/permission/{requestId}/{*operation}",
];

/// The operations of the OpenAPI document.
pub(crate) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .merge(sessions::routes())
        .merge(prompts::routes())
        .merge(details::routes())
        .merge(agent_status::routes())
        .merge(approval_modes::routes())
        .merge(votes::routes())
        .merge(events::routes())
        .merge(files::routes())
        .merge(workspace::routes())
        .merge(asides::routes())
        .merge(mcp::routes())
        .merge(rewinds::routes())
        .merge(branches::routes())
        .merge(shell::routes())
        .map(|router| router.layer(DefaultBodyLimit::max(BODY_BYTES_MAX)))
}
