//! The verbs of the MCP server. Each checks its arguments and calls a service of the engine, which authorises the caller.

pub(crate) mod calls;
pub(crate) mod context;
pub(crate) mod dispatch;
mod permissions;
mod resources;
pub(crate) mod runs;
mod tools;
pub(crate) mod waits;
