//! Ostler as an MCP server: the messages that clients of the Model Context Protocol send, the tools and resources that they are
//! offered, and the ids by which a broken stream is resumed. `mcp` is the other direction: the servers that Ostler connects to.

pub mod arguments;
pub mod event_ids;
pub mod failures;
pub mod messages;
mod output_schemas;
pub mod resources;
pub mod results;
pub mod revisions;
pub mod tools;
