//! MCP servers: how they are configured and named, the tools that they list, the states of a connection to one, and the budget
//! of connections. Pure rules: the server connects.

pub mod budget;
pub mod config;
pub mod names;
pub mod states;
pub mod tools;
