//! What an agent's program cannot reach: other processes, files outside its workspace, secrets.

mod guard;
mod mcp_files;
mod mcp_secrets;
mod processes;
mod secrets;
