//! The commands of the daemon dialect: a server for one directory, a terminal that is attached to a session, and the MCP servers
//! of the directory.

pub(crate) mod attach;
pub(crate) mod mcp;
pub(crate) mod server;
