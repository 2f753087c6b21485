//! The capabilities that this dialect promises to clients: the tags of the daemon protocol, one table for each group of them.

mod agents;
mod asides;
mod auth;
mod details;
mod files;
mod history;
mod mcp;
mod sessions;
mod streaming;
mod workspace;

use ostler_protocol::capabilities::Capability;

pub(crate) const TABLES: &[&[Capability]] = &[
    sessions::SESSIONS,
    details::DETAILS,
    streaming::STREAMING,
    details::VOTES,
    files::FILES,
    workspace::WORKSPACE,
    asides::ASIDES,
    auth::AUTH,
    mcp::MCP,
    agents::AGENTS,
    history::HISTORY,
];
